//! The arguments of a request, checked against what its command takes.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Failure;
use super::table::Command;
use crate::base64;
use crate::control::NewRecord;

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number below 2^32, counted from 0: a broker, a partition, a count.
    Number,
    /// A whole number below 2^64: an offset, a count of records.
    Large,
    /// Milliseconds.
    Millis,
    /// A text.
    Text,
    /// A list of objects with a `value` and, where there is one, a `key`.
    Records,
}

impl Kind {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Number => "a whole number from 0 to 4294967295",
            Self::Large => "a whole number from 0",
            Self::Millis => "a whole number of milliseconds",
            Self::Text => "a text",
            Self::Records => {
                "a list of objects with \"value\" or \"value_base64\" and, where there is a key, \"key\" or \"key_base64\""
            }
        }
    }

    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Number => value.as_u64().is_some_and(|number| u32::try_from(number).is_ok()),
            Self::Large | Self::Millis => value.is_u64(),
            Self::Text => value.is_string(),
            Self::Records => value.is_array(),
        }
    }
}

/// An argument of a command.
#[derive(Debug)]
pub struct Argument {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What is taken where it is left out; empty where it must be given.
    pub otherwise: &'static str,
}

impl Argument {
    /// Whether it may be left out.
    pub fn is_optional(&self) -> bool {
        !self.otherwise.is_empty()
    }

    /// The number that it is where it is left out.
    pub fn default(&self) -> Option<u64> {
        self.otherwise.parse().ok()
    }
}

/// What is wrong with a request, and what its command takes.
fn wrong(command: &Command, problem: &str) -> Failure {
    let mut message = format!("{problem}; ");
    if command.arguments.is_empty() {
        let _ = write!(message, "{} has no arguments", command.name);
    } else {
        let list: Vec<String> = command
            .arguments
            .iter()
            .map(|Argument { name, kind, otherwise }| {
                let optional = if otherwise.is_empty() { String::new() } else { format!(", {otherwise} without it") };
                format!("{name} ({}{optional})", kind.words())
            })
            .collect();
        let _ = write!(message, "the arguments of {} are: {}", command.name, list.join(", "));
    }
    Failure::new("bad_argument", message)
}

/// The arguments of a request. Those that must be there are, each is of its kind, and there is no other.
#[derive(Debug)]
pub(super) struct Given {
    command: &'static Command,
    values: Map<String, Value>,
}

impl Given {
    /// Checks what was given. `null` is the same as leaving an argument out.
    pub(super) fn read(command: &'static Command, mut values: Map<String, Value>) -> Result<Self, Failure> {
        values.retain(|_, value| !value.is_null());
        for name in values.keys() {
            if !command.arguments.iter().any(|argument| argument.name == name) {
                return Err(wrong(command, &format!("unknown argument {name:?}")));
            }
        }
        for Argument { name, kind, otherwise } in command.arguments {
            match values.get(*name) {
                Some(value) if !kind.fits(value) => {
                    let mut given = value.to_string();
                    if given.len() > 100 {
                        given = format!("{}…", given.chars().take(100).collect::<String>());
                    }
                    return Err(wrong(command, &format!("{name:?} must be {}, not {given}", kind.words())));
                }
                None if otherwise.is_empty() => return Err(wrong(command, &format!("{name:?} is missing"))),
                _ => {}
            }
        }
        Ok(Self { command, values })
    }

    /// An argument, or nothing where it was left out.
    pub(super) fn optional<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Failure> {
        let Some(value) = self.values.get(name) else { return Ok(None) };
        let read = serde_json::from_value(value.clone());
        read.map(Some).map_err(|error| wrong(self.command, &format!("{name:?}: {error}")))
    }

    /// An argument that must be there.
    pub(super) fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, Failure> {
        self.optional(name)?.ok_or_else(|| wrong(self.command, &format!("{name:?} is missing")))
    }

    pub(super) fn text(&self, name: &str) -> Result<String, Failure> {
        self.get(name)
    }

    pub(super) fn millis(&self, name: &str) -> Result<Duration, Failure> {
        self.get(name).map(Duration::from_millis)
    }

    pub(super) fn records(&self, name: &str) -> Result<Vec<NewRecord>, Failure> {
        let list = self.values.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let read = list.iter().enumerate().map(|(i, value)| {
            let failed = |problem: String| wrong(self.command, &format!("record {i} {problem}"));
            let fields = value.as_object().ok_or_else(|| failed("is no object".to_owned()))?;
            let known = ["key", "key_base64", "value", "value_base64"];
            if let Some(name) = fields.keys().find(|name| !known.contains(&name.as_str())) {
                return Err(failed(format!("has an unknown field {name:?}")));
            }
            let key = bytes_of(fields, "key").map_err(failed)?;
            let value = bytes_of(fields, "value").map_err(failed)?;
            let value = value.ok_or_else(|| failed("has no value".to_owned()))?;
            Ok(NewRecord { key: key.unwrap_or_default(), value })
        });
        read.collect()
    }
}

/// A field that is given as text or, under its name with `_base64`, as base64.
fn bytes_of(fields: &Map<String, Value>, name: &str) -> Result<Option<Bytes>, String> {
    let encoded = format!("{name}_base64");
    let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
    match (given(name), given(&encoded)) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(format!("has both {name:?} and {encoded:?}")),
        (Some(Value::String(text)), None) => Ok(Some(Bytes::from(text.clone()))),
        (None, Some(Value::String(text))) => match base64::decode(text) {
            Some(bytes) => Ok(Some(bytes.into())),
            None => Err(format!("has {encoded:?}, which is no base64")),
        },
        (Some(_), None) => Err(format!("has {name:?}, which is no text")),
        (None, Some(_)) => Err(format!("has {encoded:?}, which is no text")),
    }
}
