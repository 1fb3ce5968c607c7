//! How the arguments of commands are written and read.

use std::fmt::Write as _;

use super::{CommandError, Isolation, Outcome};
use crate::fields::{FieldError, excerpt, invalid as invalid_field, number};
use crate::name::{Group, Member, Secret, Text, Topic};

/// How an argument is written and read.
pub(super) trait Argument: Sized {
    fn write(&self, key: &str, out: &mut String);
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError>;
}

fn missing(command: &'static str, key: &'static str) -> CommandError {
    CommandError::Argument { command, problem: FieldError::Missing(key) }
}

fn invalid(command: &'static str, key: &'static str, value: &str, expected: &'static str) -> CommandError {
    CommandError::Argument { command, problem: invalid_field(key, value, expected) }
}

macro_rules! number_arguments {
    ($($t:ty),*) => {$(
        impl Argument for $t {
            fn write(&self, key: &str, out: &mut String) {
                let _ = write!(out, " {key}={self}");
            }
            fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
                number(key, value.ok_or_else(|| missing(command, key))?)
                    .map_err(|problem| CommandError::Argument { command, problem })
            }
        }
    )*};
}
number_arguments!(u32, u64, i64);

macro_rules! name_arguments {
    ($($t:ty),*) => {$(
        impl Argument for $t {
            fn write(&self, key: &str, out: &mut String) {
                let _ = write!(out, " {key}={self}");
            }
            fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
                Self::new(value.ok_or_else(|| missing(command, key))?)
                    .map_err(|problem| CommandError::Name { command, problem })
            }
        }
    )*};
}
name_arguments!(Topic, Group, Member, Text);

impl Argument for Secret {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={}", self.expose());
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        Self::new(key, value.ok_or_else(|| missing(command, key))?)
            .map_err(|problem| CommandError::Name { command, problem })
    }
}

impl Argument for bool {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={self}");
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        match value.ok_or_else(|| missing(command, key))? {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(invalid(command, key, other, "true or false")),
        }
    }
}

impl Argument for Isolation {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={}", self.name());
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        match value.ok_or_else(|| missing(command, key))? {
            "read_committed" => Ok(Self::ReadCommitted),
            "read_uncommitted" => Ok(Self::ReadUncommitted),
            other => Err(invalid(command, key, other, "read_committed or read_uncommitted")),
        }
    }
}

impl Argument for Outcome {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={}", self.name());
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        match value.ok_or_else(|| missing(command, key))? {
            "commit" => Ok(Self::Commit),
            "abort" => Ok(Self::Abort),
            other => Err(invalid(command, key, other, "commit or abort")),
        }
    }
}

/// A list between commas, without spaces.
impl Argument for Vec<Text> {
    fn write(&self, key: &str, out: &mut String) {
        let words: Vec<&str> = self.iter().map(Text::as_str).collect();
        let _ = write!(out, " {key}={}", words.join(","));
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        let value = value.ok_or_else(|| missing(command, key))?;
        let words = value.split(',').filter(|word| !word.is_empty());
        words.map(Text::new).collect::<Result<_, _>>().map_err(|problem| CommandError::Name { command, problem })
    }
}

impl<T: Argument> Argument for Option<T> {
    fn write(&self, key: &str, out: &mut String) {
        if let Some(value) = self {
            value.write(key, out);
        }
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        value.map(|value| T::read(command, key, Some(value))).transpose()
    }
}

/// The text of a message: it comes last and runs to the end of the command. The broker trims white space off its ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message(pub String);

impl Argument for Message {
    fn write(&self, key: &str, out: &mut String) {
        let _ = write!(out, " {key}={}", self.0);
    }
    fn read(command: &'static str, key: &'static str, value: Option<&str>) -> Result<Self, CommandError> {
        value.map(|value| Self(value.to_owned())).ok_or_else(|| missing(command, key))
    }
}

/// The pairs of a batch commit: partition and next offset. On the wire one word without spaces: `P0:5,P1:2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commits(pub Vec<(u32, u64)>);

/// They have no key, and come last.
impl Argument for Commits {
    fn write(&self, _key: &str, out: &mut String) {
        for (i, (partition, offset)) in self.0.iter().enumerate() {
            let _ = write!(out, "{}P{partition}:{offset}", if i == 0 { ' ' } else { ',' });
        }
    }

    fn read(_command: &'static str, _key: &'static str, words: Option<&str>) -> Result<Self, CommandError> {
        let entry = |entry: &str| {
            let (partition, offset) = entry.strip_prefix('P')?.split_once(':')?;
            Some((number("partition", partition).ok()?, number("offset", offset).ok()?))
        };
        // Like the broker: the pairs are the last word; what stands after a space is lost.
        let word = words.and_then(|words| words.split_whitespace().next_back()).unwrap_or_default();
        word.split(',')
            .map(|pair| entry(pair).ok_or_else(|| CommandError::Entry { entry: excerpt(pair) }))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}
