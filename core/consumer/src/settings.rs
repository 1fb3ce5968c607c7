//! Every setting there is: one table, from which the struct, the checks, the bindings' keyword arguments and the
//! reference page come.

use std::fmt;
use std::time::Duration;

use cursus_wire::command::Isolation;
use cursus_wire::{Group, Member, Topic};

use crate::brokers::Address;
use crate::error::{Error, ErrorKind, Result};

/// What a setting's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Text,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// A list of texts; as one text, with commas between.
    List,
    /// A whole number in a range, both ends included.
    Integer {
        /// The smallest value allowed.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// `true` or `false`.
    Boolean,
}

/// A row of the table of settings.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name; a unit is part of it (`_ms`, `_bytes`).
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// The default as text; nothing where a value must be given. An empty one is no value at all.
    pub default: Option<&'static str>,
    /// Whether its value must never be shown.
    pub secret: bool,
    /// What it does.
    pub doc: &'static str,
}

/// A value on its way into a setting, as a binding got it from its language.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A list of texts.
    List(Vec<String>),
    /// A whole number.
    Integer(i128),
    /// A truth value.
    Boolean(bool),
    /// Something else, described for the error's message.
    Other(String),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(list) => write!(f, "{list:?}"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Boolean(truth) => write!(f, "{truth}"),
            Self::Other(other) => f.write_str(other),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<&str>> for Value {
    fn from(list: Vec<&str>) -> Self {
        Self::List(list.into_iter().map(str::to_owned).collect())
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Boolean(truth)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Integer(number.into())
    }
}

impl From<Vec<String>> for Value {
    fn from(list: Vec<String>) -> Self {
        Self::List(list)
    }
}

/// How a field takes a value of its kind.
trait Field: Sized {
    fn from_value(setting: &'static Setting, value: Value) -> Result<Self>;

    /// What has no default was asked for already.
    fn from_default(setting: &'static Setting) -> Result<Self> {
        Self::from_value(setting, Value::Text(setting.default.unwrap_or_default().to_owned()))
    }
}

impl Field for Option<String> {
    fn from_value(setting: &'static Setting, value: Value) -> Result<Self> {
        String::from_value(setting, value).map(Some)
    }

    fn from_default(_: &'static Setting) -> Result<Self> {
        Ok(None)
    }
}

fn refuse<T>(setting: &'static Setting, value: &Value, accepted: impl fmt::Display) -> Result<T> {
    let shown = if setting.secret { "<secret>".to_owned() } else { cut(&format!("{value:?}")) };
    Err(Error::new(ErrorKind::InvalidSetting, format!("{}={shown} is not accepted: {accepted}", setting.name)))
}

/// The start of a text, short enough for a message.
fn cut(text: &str) -> String {
    const LONGEST: usize = 200;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl Field for String {
    fn from_value(setting: &'static Setting, value: Value) -> Result<Self> {
        match (value, setting.kind) {
            (Value::Text(text), Kind::Choice(choices)) if !choices.contains(&text.as_str()) => {
                refuse(setting, &Value::Text(text), format_args!("it is one of {}", choices.join(", ")))
            }
            (Value::Text(text), _) if text.is_empty() => refuse(setting, &Value::Text(text), "it can't be empty"),
            (Value::Text(text), _) => Ok(text),
            (other, Kind::Choice(choices)) => {
                refuse(setting, &other, format_args!("it is one of {}", choices.join(", ")))
            }
            (other, _) => refuse(setting, &other, "it is text"),
        }
    }
}

impl Field for Vec<String> {
    fn from_value(setting: &'static Setting, value: Value) -> Result<Self> {
        let list = match value {
            Value::List(list) => list,
            Value::Text(text) => text.split(',').map(|word| word.trim().to_owned()).collect(),
            other => return refuse(setting, &other, "it is a list of texts, or one text with commas between"),
        };
        if list.is_empty() || list.iter().any(String::is_empty) {
            return refuse(setting, &Value::List(list), "it has at least one entry, and none is empty");
        }
        Ok(list)
    }
}

impl Field for u64 {
    fn from_value(setting: &'static Setting, value: Value) -> Result<Self> {
        let Kind::Integer { min, max } = setting.kind else { unreachable!("an integer field has an integer row") };
        let number = match &value {
            Value::Integer(number) => Some(*number),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        };
        match number.and_then(|number| Self::try_from(number).ok()) {
            Some(number) if (min..=max).contains(&number) => Ok(number),
            _ => refuse(setting, &value, format_args!("it is a whole number from {min} to {max}")),
        }
    }
}

impl Field for bool {
    fn from_value(setting: &'static Setting, value: Value) -> Result<Self> {
        match &value {
            Value::Boolean(truth) => Ok(*truth),
            Value::Text(text) if text == "true" => Ok(true),
            Value::Text(text) if text == "false" => Ok(false),
            _ => refuse(setting, &value, "it is true or false"),
        }
    }
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $kind:expr, $default:expr;)*) => {
        /// The table of settings, in the order of the reference.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            kind: $kind,
            default: $default,
            secret: false,
            doc: concat!($($doc, "\n"),+),
        },)*];

        /// A consumer's settings, validated as a whole by [`Settings::from_values`].
        #[derive(Debug, Clone, PartialEq)]
        pub struct Settings {
            $($(#[doc = $doc])+ pub $name: $type,)*
        }

        impl Settings {
            /// Settings from names and values. A name that doesn't exist, a value out of range, a missing one and a
            /// combination that makes no sense are [`ErrorKind::InvalidSetting`], naming key, value and what is right.
            pub fn from_values<N: AsRef<str>>(values: impl IntoIterator<Item = (N, Value)>) -> Result<Self> {
                let mut given = given(values)?;
                check_given(&given)?;
                $(
                    let entry = row(stringify!($name));
                    let $name = match given.remove(stringify!($name)) {
                        Some(value) => <$type as Field>::from_value(entry, value)?,
                        None => <$type as Field>::from_default(entry)?,
                    };
                )*
                let settings = Self { $($name,)* };
                settings.check()?;
                Ok(settings)
            }
        }
    };
}

fn row(name: &str) -> &'static Setting {
    SETTINGS.iter().find(|row| row.name == name).expect("every field has its row")
}

/// An error where something that has no default isn't given; it names all that is missing.
fn check_given(given: &std::collections::BTreeMap<String, Value>) -> Result<()> {
    let missing = SETTINGS.iter().filter(|row| row.default.is_none() && !given.contains_key(row.name));
    let missing: Vec<_> =
        missing.map(|row| format!("{} ({})", row.name, row.doc.trim().trim_end_matches('.'))).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidSetting, format!("what must be given is missing: {}", missing.join("; "))))
}

/// The values by name, each name once and in the table.
fn given<N: AsRef<str>>(
    values: impl IntoIterator<Item = (N, Value)>,
) -> Result<std::collections::BTreeMap<String, Value>> {
    let mut given = std::collections::BTreeMap::new();
    for (name, value) in values {
        let name = name.as_ref();
        if !SETTINGS.iter().any(|row| row.name == name) {
            let near = nearest(name).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
            let all: Vec<_> = SETTINGS.iter().map(|row| row.name).collect();
            let name = cut(name);
            let message = format!("there is no setting {name:?}: {near}The settings are {}", all.join(", "));
            return Err(Error::new(ErrorKind::InvalidSetting, message));
        }
        if given.insert(name.to_owned(), value).is_some() {
            return Err(Error::new(ErrorKind::InvalidSetting, format!("{name} is given twice")));
        }
    }
    Ok(given)
}

/// The setting whose name is a slip away from what was typed.
fn nearest(typed: &str) -> Option<&'static str> {
    fn distance(a: &str, b: &str) -> usize {
        let b: Vec<char> = b.chars().collect();
        let mut row: Vec<usize> = (0..=b.len()).collect();
        for (i, x) in a.chars().enumerate() {
            let mut diagonal = row[0];
            row[0] = i + 1;
            for (j, y) in b.iter().enumerate() {
                let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
                diagonal = row[j + 1];
                row[j + 1] = next;
            }
        }
        row[b.len()]
    }
    // What is typed can be of any length; beyond the longest name nothing is near.
    if typed.len() > 64 {
        return None;
    }
    let typed = typed.to_lowercase().replace(['-', '.'], "_");
    SETTINGS
        .iter()
        .map(|row| (distance(&typed, row.name), row.name))
        .min()
        .filter(|(d, _)| *d <= 3)
        .map(|(_, name)| name)
}

settings! {
    /// Where to find the cluster first: `host:port` of one or more brokers. The others are learned from them.
    brokers: Vec<String> = Kind::List, None;
    /// The topic to read.
    topic: String = Kind::Text, None;
    /// The consumer group. A group reads one topic; its members share the partitions. Without one the consumer reads what it
    /// assigns to itself, and commits nothing.
    group_id: Option<String> = Kind::Text, Some("");
    /// The base of this member's id. A random suffix is always added, since the broker's own four digits can collide.
    consumer_id: String = Kind::Text, Some("consumer");
    /// How to read: `polling` asks for records, `streaming` has the broker send them, on a connection per partition. What
    /// is promised is the same.
    mode: String = Kind::Choice(&["polling", "streaming"]), Some("polling");
    /// Where to start on a partition for which the group has committed nothing, or whose next record is no longer kept:
    /// `earliest` is the earliest record kept, `latest` what is written from now on (committed at once, so that nothing
    /// written later is missed), and `error` closes the consumer with an error (an empty log excepted, where there is
    /// nothing to miss).
    auto_offset_reset: String = Kind::Choice(&["earliest", "latest", "error"]), Some("earliest");
    /// What to see: `read_committed` hides open and aborted transactions, `read_uncommitted` shows the raw log.
    read_isolation: String = Kind::Choice(&["read_committed", "read_uncommitted"]), Some("read_committed");
    /// Whether to commit what is proven processed by itself: every interval, and at close.
    enable_auto_commit: bool = Kind::Boolean, Some("true");
    /// How often to commit automatically, in milliseconds.
    auto_commit_interval_ms: u64 = Kind::Integer { min: 10, max: 3_600_000 }, Some("5000");
    /// How often to tell the coordinator that this member is alive, in milliseconds.
    heartbeat_interval_ms: u64 = Kind::Integer { min: 10, max: 300_000 }, Some("3000");
    /// After how long without a heartbeat the broker expires a member, in milliseconds. The broker owns the real value;
    /// this one only checks that heartbeats come at least three times as often.
    expected_session_timeout_ms: u64 = Kind::Integer { min: 100, max: 3_600_000 }, Some("10000");
    /// The longest time between two polls, in milliseconds. Where it passes, the member leaves its group, so that others read
    /// what it doesn't; the next poll raises an error once and joins again. A poll that waits may wait for ever.
    max_poll_interval_ms: u64 = Kind::Integer { min: 100, max: 604_800_000 }, Some("300000");
    /// The most records that one poll returns.
    max_poll_records: u64 = Kind::Integer { min: 1, max: 1_000_000 }, Some("500");
    /// The most records asked for in one request. Large records are asked for in smaller batches by themselves.
    fetch_batch_size: u64 = Kind::Integer { min: 1, max: 100_000 }, Some("8192");
    /// How long a read of an empty partition may wait for a record before it asks again, in milliseconds.
    fetch_wait_ms: u64 = Kind::Integer { min: 0, max: 30_000 }, Some("500");
    /// The most bytes fetched and not yet returned by poll, over all partitions. One frame may always exceed it.
    max_buffered_bytes: u64 = Kind::Integer { min: 1, max: 1 << 40 }, Some("67108864");
    /// The most connections for reading to one broker. Partitions beyond it share connections.
    max_connections_per_broker: u64 = Kind::Integer { min: 1, max: 256 }, Some("4");
    /// How long to wait for a connection, in milliseconds.
    connect_timeout_ms: u64 = Kind::Integer { min: 10, max: 600_000 }, Some("5000");
    /// How long to wait for the answer to a request, in milliseconds.
    request_timeout_ms: u64 = Kind::Integer { min: 10, max: 600_000 }, Some("10000");
    /// The first pause before something that failed is tried again, in milliseconds. It doubles, with jitter.
    retry_backoff_ms: u64 = Kind::Integer { min: 1, max: 60_000 }, Some("50");
    /// The longest pause between two tries, in milliseconds.
    retry_backoff_max_ms: u64 = Kind::Integer { min: 1, max: 600_000 }, Some("2000");
    /// How often to look for leaders that changed, logs that end before the position, and partitions that nobody reads, in
    /// milliseconds.
    metadata_refresh_ms: u64 = Kind::Integer { min: 100, max: 3_600_000 }, Some("10000");
    /// For how long every reachable broker must deny the topic before it counts as missing, in milliseconds.
    topic_missing_timeout_ms: u64 = Kind::Integer { min: 0, max: 3_600_000 }, Some("5000");
}

/// Where to start where nothing says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reset {
    Earliest,
    Latest,
    Error,
}

impl Settings {
    /// Checks what no single value can show.
    fn check(&self) -> Result<()> {
        let contradiction = |message: String| Err(Error::new(ErrorKind::InvalidSetting, message));
        for broker in &self.brokers {
            if let Err(problem) = broker.parse::<Address>() {
                return contradiction(format!("brokers has {broker:?}, which is not host:port: {problem}"));
            }
        }
        let name = |setting: &str, result: std::result::Result<(), cursus_wire::InvalidName>| {
            result.map_err(|problem| {
                Error::new(ErrorKind::InvalidSetting, format!("{setting} is not accepted: {problem}"))
            })
        };
        name("topic", Topic::new(&self.topic).map(drop))?;
        if let Some(group) = &self.group_id {
            name("group_id", Group::new(group).map(drop))?;
        }
        name("consumer_id", Member::new(&self.consumer_id).map(drop))?;
        if self.topic.contains(['*', '?']) {
            return contradiction(format!(
                "topic={:?} is a pattern, and a group can't join one: name the topic",
                self.topic
            ));
        }
        if self.consumer_id.len() > 200 {
            return contradiction(
                "consumer_id is longer than 200 bytes, which leaves no room for its suffixes".to_owned(),
            );
        }
        if self.heartbeat_interval_ms.saturating_mul(3) > self.expected_session_timeout_ms {
            return contradiction(format!(
                "heartbeat_interval_ms={} is more than a third of expected_session_timeout_ms={}: one lost heartbeat could end the membership",
                self.heartbeat_interval_ms, self.expected_session_timeout_ms
            ));
        }
        if self.fetch_wait_ms >= self.request_timeout_ms {
            return contradiction(format!(
                "fetch_wait_ms={} is not below request_timeout_ms={}: a read that waits would count as not answered",
                self.fetch_wait_ms, self.request_timeout_ms
            ));
        }
        if self.retry_backoff_ms > self.retry_backoff_max_ms {
            return contradiction(format!(
                "retry_backoff_ms={} is more than retry_backoff_max_ms={}",
                self.retry_backoff_ms, self.retry_backoff_max_ms
            ));
        }
        Ok(())
    }

    /// The isolation, as the protocol has it.
    pub(crate) fn isolation(&self) -> Isolation {
        if self.read_isolation == "read_uncommitted" { Isolation::ReadUncommitted } else { Isolation::ReadCommitted }
    }

    pub(crate) fn reset(&self) -> Reset {
        match self.auto_offset_reset.as_str() {
            "latest" => Reset::Latest,
            "error" => Reset::Error,
            _ => Reset::Earliest,
        }
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.mode == "streaming"
    }

    pub(crate) fn max_poll_interval(&self) -> Duration {
        Duration::from_millis(self.max_poll_interval_ms)
    }

    pub(crate) fn bootstrap(&self) -> Vec<Address> {
        self.brokers.iter().filter_map(|broker| broker.parse().ok()).collect()
    }

    /// How long a request that keeps the membership alive may take: a third of a session, so that it can be tried again. A
    /// second at least, since joining alone can take half of one.
    pub(crate) fn membership_timeout(&self) -> Duration {
        let third = Duration::from_millis(self.expected_session_timeout_ms / 3);
        third.max(Duration::from_secs(1)).min(self.request_timeout())
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(more: &[(&str, Value)]) -> Result<Settings> {
        let base =
            [("brokers", Value::from("127.0.0.1:9000")), ("topic", "orders".into()), ("group_id", "billing".into())];
        let base = base.into_iter().filter(|(name, _)| !more.iter().any(|(other, _)| other == name));
        Settings::from_values(base.chain(more.iter().cloned()))
    }

    fn refused(more: &[(&str, Value)]) -> String {
        let error = with(more).expect_err("it should be refused");
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        error.to_string()
    }

    #[test]
    fn the_defaults_are_the_documented_ones() {
        let settings = with(&[]).unwrap();
        assert_eq!((settings.heartbeat_interval_ms, settings.expected_session_timeout_ms), (3000, 10_000));
        assert_eq!(settings.read_isolation, "read_committed");
        assert!(settings.enable_auto_commit);
    }

    #[test]
    fn every_default_in_the_table_is_accepted_by_its_own_row() {
        for row in SETTINGS {
            if let Some(default) = row.default.filter(|default| !default.is_empty()) {
                with(&[(row.name, default.into())]).unwrap_or_else(|error| panic!("{}: {error}", row.name));
            }
            assert!(!row.doc.trim().is_empty() && !row.name.is_empty());
        }
    }

    #[test]
    fn both_ends_of_every_range_are_accepted_or_contradict_another_setting_and_beyond_is_refused() {
        for row in SETTINGS {
            let Kind::Integer { min, max } = row.kind else { continue };
            for value in [min, max] {
                if let Err(error) = with(&[(row.name, value.into())]) {
                    assert!(!error.to_string().contains("whole number"), "{}={value}: {error}", row.name);
                }
            }
            for beyond in [i128::from(min) - 1, i128::from(max) + 1] {
                let message = refused(&[(row.name, Value::Integer(beyond))]);
                assert!(message.contains(row.name) && message.contains(&format!("from {min} to {max}")), "{message}");
            }
        }
    }

    #[test]
    fn a_slip_is_named_with_what_was_meant() {
        let message = refused(&[("grup_id", "x".into())]);
        assert!(message.contains("\"grup_id\"") && message.contains("did you mean group_id?"), "{message}");
        assert!(refused(&[("bootstrap.servers", "x".into())]).contains("The settings are brokers, topic"));
    }

    #[test]
    fn wrong_values_are_named_with_the_right_ones() {
        for (name, value, must) in [
            ("auto_offset_reset", Value::from("newest"), "one of earliest"),
            ("read_isolation", "dirty".into(), "one of read_committed, read_uncommitted"),
            ("enable_auto_commit", "yes".into(), "true or false"),
            ("enable_auto_commit", 1u64.into(), "true or false"),
            ("group_id", Value::Other("None".into()), "it is text"),
            ("group_id", "".into(), "can't be empty"),
            ("group_id", "a b".into(), "' ' at byte 1"),
            ("topic", "a=b".into(), "'=' at byte 1"),
            ("topic", "a*".into(), "pattern"),
            ("brokers", "localhost".into(), "not host:port"),
            ("brokers", Value::List(vec![]), "at least one"),
            ("max_poll_records", "many".into(), "whole number"),
            ("heartbeat_interval_ms", 5000u64.into(), "more than a third"),
            ("retry_backoff_ms", 5000u64.into(), "retry_backoff_max_ms"),
            ("fetch_wait_ms", 10_000u64.into(), "request_timeout_ms"),
        ] {
            let message = refused(&[(name, value)]);
            assert!(message.contains(name) && message.contains(must), "{name}: {message}");
        }
        assert!(refused(&[("topic", "a".into()), ("topic", "b".into())]).contains("twice"));
    }

    #[test]
    fn what_must_be_given_is_asked_for() {
        let error = Settings::from_values([("group_id", Value::from("g"))]).unwrap_err();
        for name in ["brokers", "topic"] {
            assert!(error.to_string().contains(&format!("{name} (")), "{error}");
        }
        assert!(!error.to_string().contains("group_id ("), "{error}");
    }

    #[test]
    fn a_group_may_be_left_out_but_not_be_empty() {
        let base = [("brokers", Value::from("h:1")), ("topic", "t".into())];
        assert_eq!(Settings::from_values(base.clone()).unwrap().group_id, None);
        let error = Settings::from_values(base.into_iter().chain([("group_id", "".into())])).unwrap_err();
        assert!(error.to_string().starts_with("group_id="), "{error}");
    }
}
