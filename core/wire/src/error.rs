//! Errors as the broker sends them: `ERROR: code [class=… retryable=…] k=v …`.

use std::fmt;

use crate::fields::{FieldError, Fields, number, quote, word};

/// The broad kind that a broker gives an error on a connection with `structured_errors_v1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// No permission, or no valid credentials.
    Authorization,
    /// Something is down or not ready yet.
    Availability,
    /// It contradicts what is stored.
    Conflict,
    /// The member or its generation is not the current one.
    Fencing,
    /// The broker doesn't know better.
    Internal,
    /// What was named doesn't exist.
    NotFound,
    /// Another broker is the one to ask.
    Routing,
    /// The command is wrong.
    Validation,
}

impl ErrorClass {
    /// All classes, in the order of their names.
    pub const ALL: [Self; 8] = [
        Self::Authorization,
        Self::Availability,
        Self::Conflict,
        Self::Fencing,
        Self::Internal,
        Self::NotFound,
        Self::Routing,
        Self::Validation,
    ];

    /// The class's name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Authorization => "authorization",
            Self::Availability => "availability",
            Self::Conflict => "conflict",
            Self::Fencing => "fencing",
            Self::Internal => "internal",
            Self::NotFound => "not_found",
            Self::Routing => "routing",
            Self::Validation => "validation",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

/// An `ERROR:` reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerError {
    /// The broker's code, as sent: `GEN_MISMATCH`, `topic_not_found`, ….
    pub code: String,
    /// Only on connections with `structured_errors_v1`, and not even there for every code.
    pub class: Option<ErrorClass>,
    /// The broker's own opinion; [`Meaning`] knows where it is wrong.
    pub retryable: Option<bool>,
    /// The other fields, in order.
    pub fields: Vec<(String, String)>,
    /// Words without a key, in order (`NOT_LEADER LEADER_IS host:port` has two).
    pub words: Vec<String>,
}

/// What an error means for a client: the few cases that decide what it does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// Another broker coordinates this group; where, if it said so.
    NotCoordinator(Option<(String, u16)>),
    /// Another broker leads this partition; where, if it said so.
    NotLeader(Option<String>),
    /// The group has moved on to another generation.
    GenerationMismatch {
        /// The generation the group is at.
        current: u64,
    },
    /// The group doesn't know this member.
    MemberNotFound,
    /// The broker doesn't know this group.
    GroupNotFound,
    /// The broker doesn't know this topic.
    TopicNotFound,
    /// The group reads another topic: one group, one topic.
    OtherTopic {
        /// The topic that the group is bound to.
        expected: String,
    },
    /// The partition isn't assigned to this member.
    NotOwner,
    /// The commit is below what is committed.
    OffsetRegression,
    /// The offset is outside of what is kept.
    OutOfRange {
        /// The first offset that is kept.
        earliest: u64,
        /// One past the last.
        latest: u64,
    },
    /// The reply would have been over the frame limit: ask for fewer records.
    ReplyTooLarge,
    /// Somebody has started a newer epoch of this transactional producer.
    ProducerFenced,
    /// Wrong or missing credentials.
    Unauthenticated,
    /// These credentials may not do this.
    Unauthorized,
    /// NEGOTIATE refused a version or a feature.
    Unsupported,
    /// It may work later without anybody changing anything.
    Transient,
    /// The command itself is wrong, or the broker can't say what is: trying again gives the same.
    Permanent,
}

/// Codes that pass by themselves, whatever `retryable=` says or where it says nothing: a leader or coordinator in
/// transition, a broker that is still starting, an answer that didn't come from the broker it was forwarded to.
const TRANSIENT: [&str; 19] = [
    "raft_apply_failed",
    "raft_batch_apply_failed",
    "offset_sync_failed",
    "register_group_failed",
    "find_coordinator_failed",
    "forward_to_coordinator_failed",
    "forward_to_leader_failed",
    "forward_to_partition_leader_failed",
    "cluster_metadata_unavailable",
    "cluster_not_available",
    "coordinator_not_available",
    "fsm_not_available",
    "leader_not_found",
    "no_raft_leader",
    "offset_manager_not_available",
    "request_cancelled",
    "router_not_available",
    "transaction_commit_failed",
    "transaction_sync_failed",
];

/// How many words behind the code are kept. The broker writes under ten; a hostile error shouldn't cost more memory than
/// its own length.
const MOST_WORDS: usize = 64;

impl BrokerError {
    /// The prefix of every error on the wire.
    pub const PREFIX: &'static str = "ERROR:";

    /// An error with a code and nothing else yet.
    pub fn new(code: impl Into<String>) -> Self {
        Self { code: code.into(), class: None, retryable: None, fields: Vec::new(), words: Vec::new() }
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl fmt::Display) -> Self {
        self.fields.push((key.to_owned(), value.to_string()));
        self
    }

    /// The error that an `ERROR:` text holds; nothing where the text isn't one.
    pub fn parse(text: &str) -> Option<Result<Self, FieldError>> {
        let rest = text.strip_prefix(Self::PREFIX)?.trim_start();
        Some(Self::parse_from(text, text.len() - rest.len()))
    }

    fn parse_from(text: &str, start: usize) -> Result<Self, FieldError> {
        let code = text[start..].split(char::is_whitespace).next().unwrap_or_default();
        if code.is_empty() {
            return Err(FieldError::Missing("code"));
        }
        let mut error = Self::new(code);
        for word in Fields::parse(text, start + code.len())?.words().flatten().take(MOST_WORDS) {
            match word {
                (None, word) => error.words.push(word.into_owned()),
                (Some("class"), name) if error.class.is_none() && ErrorClass::from_name(&name).is_some() => {
                    error.class = ErrorClass::from_name(&name);
                }
                (Some("retryable"), value) if error.retryable.is_none() && matches!(&*value, "true" | "false") => {
                    error.retryable = Some(value == "true");
                }
                (Some(key), value) => error.fields.push((key.to_owned(), value.into_owned())),
            }
        }
        Ok(error)
    }

    /// A field's value.
    pub fn field(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.field(key).and_then(|v| number(key, v).ok())
    }

    /// What the error means for a client. The reason beats the code, and the code beats `retryable=`.
    pub fn meaning(&self) -> Meaning {
        let reason = self.field("reason").unwrap_or_default();
        if reason.contains("offset regression") {
            return Meaning::OffsetRegression;
        }
        if reason.starts_with("producer fenced") || reason.starts_with("producer epoch not initialized") {
            return Self::fenced(reason);
        }
        // A transaction's coordinator passes on what others told it. Once the commit is decided it only has to be asked again.
        if self.code.starts_with("transaction_")
            && self.field("state") != Some("committing")
            && let Some(Ok(inner)) = Self::parse(reason)
        {
            return inner.leaf_meaning();
        }
        self.leaf_meaning()
    }

    /// What it means that a transaction is at another epoch. A broker that has just started knows only an older one.
    fn fenced(reason: &str) -> Meaning {
        let epoch = |key| reason.split(' ').find_map(|word| word.strip_prefix(key)?.parse::<i64>().ok());
        match (epoch("current_epoch="), epoch("requested_epoch=")) {
            (Some(current), Some(requested)) if current < requested => Meaning::Transient,
            _ => Meaning::ProducerFenced,
        }
    }

    /// What the code means, whoever passed it on.
    fn leaf_meaning(&self) -> Meaning {
        let reason = self.field("reason").unwrap_or_default();
        match self.code.as_str() {
            "NOT_COORDINATOR" => Meaning::NotCoordinator(match (self.field("host"), self.number("port")) {
                (Some(host), Some(port)) if !host.is_empty() && (1..=65535).contains(&port) => {
                    Some((host.to_owned(), port as u16))
                }
                _ => None,
            }),
            "NOT_LEADER" | "NOT_PARTITION_LEADER" => Meaning::NotLeader(self.leader().map(str::to_owned)),
            "GEN_MISMATCH" => match self.number("current") {
                Some(current) => Meaning::GenerationMismatch { current },
                None => Meaning::MemberNotFound,
            },
            "member_not_found" => Meaning::MemberNotFound,
            "group_not_found" => Meaning::GroupNotFound,
            "topic_not_found" => Meaning::TopicNotFound,
            "topic_not_assigned_to_group" => {
                Meaning::OtherTopic { expected: self.field("expected").unwrap_or_default().to_owned() }
            }
            "NOT_OWNER" => Meaning::NotOwner,
            "producer_fenced" | "stale_producer_epoch" => Meaning::ProducerFenced,
            // Where nothing is decided yet, trying again changes nothing; nor does it where the sequence numbers were wrong, and
            // then the transaction is stuck for good.
            "transaction_commit_failed" if self.field("state") == Some("open") || reason.contains("idempotency") => {
                Meaning::Permanent
            }
            "offset_regression" => Meaning::OffsetRegression,
            "OFFSET_OUT_OF_RANGE" => Meaning::OutOfRange {
                earliest: self.number("earliest").unwrap_or(0),
                latest: self.number("latest").unwrap_or(0),
            },
            "authentication_failed" | "authentication_required" => Meaning::Unauthenticated,
            "NOT_AUTHORIZED_FOR_OPERATION" | "NOT_AUTHORIZED_FOR_TOPIC" | "NOT_AUTHORIZED_FOR_PARTITION" => {
                Meaning::Unauthorized
            }
            "UNSUPPORTED_FEATURE" | "UNSUPPORTED_PROTOCOL_VERSION" => Meaning::Unsupported,
            "group_status_failed" if reason.ends_with("not found") => Meaning::GroupNotFound,
            "command_failed" if reason.contains("exceeds maximum") => Meaning::ReplyTooLarge,
            "command_failed" if reason.ends_with("does not exist") && reason.starts_with("topic '") => {
                Meaning::TopicNotFound
            }
            code if TRANSIENT.contains(&code) => Meaning::Transient,
            _ => match (self.retryable, self.class) {
                (Some(true), _) | (None, Some(ErrorClass::Availability)) => Meaning::Transient,
                _ => Meaning::Permanent,
            },
        }
    }

    /// The address in either form of a leader redirect: `LEADER_IS host:port` or `leader=host:port`.
    fn leader(&self) -> Option<&str> {
        let spoken = self.words.iter().position(|w| w == "LEADER_IS").and_then(|i| self.words.get(i + 1));
        spoken.map(String::as_str).or_else(|| self.field("leader")).filter(|address| !address.is_empty())
    }
}

/// The text as it goes on the wire. A value that isn't one plain word is quoted.
impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", Self::PREFIX, self.code)?;
        if let Some(class) = self.class {
            write!(f, " class={}", class.name())?;
        }
        if let Some(retryable) = self.retryable {
            write!(f, " retryable={retryable}")?;
        }
        for word in &self.words {
            write!(f, " {word}")?;
        }
        for (key, value) in &self.fields {
            // The broker quotes `entry`, what a batch commit held, even where it needn't.
            let value = if key == "entry" { quote(value).into() } else { word(value) };
            write!(f, " {key}={value}")?;
        }
        Ok(())
    }
}

impl std::error::Error for BrokerError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> BrokerError {
        BrokerError::parse(text).expect("an ERROR: text").expect("readable")
    }

    #[test]
    fn a_structured_error_gives_code_class_retryable_and_fields() {
        let error = parse("ERROR: member_not_found class=fencing retryable=false member=zz-1 group=g");
        assert_eq!(error.code, "member_not_found");
        assert_eq!(error.class, Some(ErrorClass::Fencing));
        assert_eq!(error.retryable, Some(false));
        assert_eq!(error.field("member"), Some("zz-1"));
        assert_eq!(error.meaning(), Meaning::MemberNotFound);
    }

    #[test]
    fn both_redirect_forms_and_the_ones_without_an_address_are_read() {
        let leader = |text| parse(text).meaning();
        assert_eq!(
            leader("ERROR: NOT_LEADER LEADER_IS 10.0.0.1:9000"),
            Meaning::NotLeader(Some("10.0.0.1:9000".into()))
        );
        assert_eq!(leader("ERROR: NOT_LEADER leader=h:1"), Meaning::NotLeader(Some("h:1".into())));
        assert_eq!(leader("ERROR: NOT_LEADER"), Meaning::NotLeader(None));
        assert_eq!(leader("ERROR: NOT_LEADER LEADER_IS"), Meaning::NotLeader(None));
        assert_eq!(leader("ERROR: NOT_LEADER leader="), Meaning::NotLeader(None));
        assert_eq!(leader("ERROR: NOT_PARTITION_LEADER leader=h:1"), Meaning::NotLeader(Some("h:1".into())));
        assert_eq!(
            leader("ERROR: NOT_COORDINATOR host=h port=9000"),
            Meaning::NotCoordinator(Some(("h".into(), 9000)))
        );
        for without in [
            "ERROR: NOT_COORDINATOR",
            "ERROR: NOT_COORDINATOR host=h port=0",
            "ERROR: NOT_COORDINATOR host= port=1",
            "ERROR: NOT_COORDINATOR host=h port=65536",
        ] {
            assert_eq!(leader(without), Meaning::NotCoordinator(None), "{without}");
        }
        let last_port = Meaning::NotCoordinator(Some(("h".into(), 65535)));
        assert_eq!(leader("ERROR: NOT_COORDINATOR host=h port=65535"), last_port);
    }

    #[test]
    fn the_reason_beats_the_code_and_the_code_beats_retryable() {
        assert_eq!(parse("ERROR: raft_apply_failed reason=\"offset regression for group=g topic=t partition=0: current=5 attempted=1\"").meaning(), Meaning::OffsetRegression);
        assert_eq!(
            parse("ERROR: raft_apply_failed class=internal retryable=false reason=\"no leader\"").meaning(),
            Meaning::Transient
        );
        assert_eq!(parse("ERROR: whatever class=availability retryable=true").meaning(), Meaning::Transient);
        assert_eq!(parse("ERROR: whatever class=validation retryable=false").meaning(), Meaning::Permanent);
        assert_eq!(
            parse("ERROR: command_failed reason=\"failed to stream batch: data size 17 exceeds maximum 16\"").meaning(),
            Meaning::ReplyTooLarge
        );
    }

    #[test]
    fn each_code_has_its_meaning() {
        for code in TRANSIENT {
            let error = format!("ERROR: {code} class=internal retryable=false reason=\"x\"");
            assert_eq!(parse(&error).meaning(), Meaning::Transient, "{code}");
        }
        let out_of_range = Meaning::OutOfRange { earliest: 3, latest: 9 };
        for (text, meaning) in [
            ("GEN_MISMATCH current=4", Meaning::GenerationMismatch { current: 4 }),
            ("GEN_MISMATCH", Meaning::MemberNotFound),
            ("OFFSET_OUT_OF_RANGE requested=1 earliest=3 latest=9", out_of_range),
            ("NOT_AUTHORIZED_FOR_OPERATION command=X", Meaning::Unauthorized),
            ("NOT_AUTHORIZED_FOR_TOPIC operation=read", Meaning::Unauthorized),
            ("NOT_AUTHORIZED_FOR_PARTITION", Meaning::Unauthorized),
            ("producer_fenced transactional_id=t", Meaning::ProducerFenced),
            ("stale_producer_epoch producer=p current=1 got=0", Meaning::ProducerFenced),
            (
                "transaction_not_found reason=\"producer fenced transactional_id=t current_epoch=1\"",
                Meaning::ProducerFenced,
            ),
            ("transaction_not_found reason=\"transaction t not found\"", Meaning::Permanent),
            (
                "transaction_not_found reason=\"producer fenced transactional_id=t current_epoch=2 requested_epoch=1\"",
                Meaning::ProducerFenced,
            ),
            (
                "transaction_not_found reason=\"producer fenced transactional_id=t current_epoch=1 requested_epoch=2\"",
                Meaning::Transient,
            ),
            (
                "transaction_commit_failed state=open reason=\"ERROR: GEN_MISMATCH current=2 requested=1\"",
                Meaning::GenerationMismatch { current: 2 },
            ),
            (
                "transaction_commit_failed class=availability retryable=true state=open reason=\"topic t not found\"",
                Meaning::Permanent,
            ),
            (
                "transaction_commit_failed class=availability retryable=true state=committing reason=\"ERROR: NOT_OWNER\"",
                Meaning::Transient,
            ),
            ("transaction_commit_failed state=open reason=\"offset regression group=g\"", Meaning::OffsetRegression),
            (
                "transaction_commit_failed state=committing reason=\"x: idempotency gap for producer p\"",
                Meaning::Permanent,
            ),
            ("authentication_required command=X", Meaning::Unauthenticated),
            ("UNSUPPORTED_FEATURE features=x", Meaning::Unsupported),
            ("UNSUPPORTED_PROTOCOL_VERSION requested=7", Meaning::Unsupported),
            ("command_failed reason=\"topic 't' does not exist\"", Meaning::TopicNotFound),
            ("command_failed reason=\"file 't' does not exist\"", Meaning::Permanent),
            ("command_failed reason=\"topic 't' is odd\"", Meaning::Permanent),
            ("raft_batch_apply_failed class=internal retryable=false", Meaning::Transient),
            ("offset_sync_failed class=internal retryable=false", Meaning::Transient),
            ("register_group_failed class=internal retryable=false", Meaning::Transient),
            ("find_coordinator_failed class=internal retryable=false", Meaning::Transient),
            ("new_code class=availability", Meaning::Transient),
            ("new_code class=availability retryable=false", Meaning::Permanent),
            ("new_code class=internal retryable=true", Meaning::Transient),
            ("new_code class=of_its_own", Meaning::Permanent),
            ("new_code", Meaning::Permanent),
        ] {
            assert_eq!(parse(&format!("ERROR: {text}")).meaning(), meaning, "{text}");
        }
    }

    #[test]
    fn a_class_that_is_unknown_or_comes_again_stays_a_field() {
        let error =
            parse("ERROR: x class=odd class=fencing class=routing retryable=maybe retryable=true retryable=false");
        assert_eq!((error.class, error.retryable), (Some(ErrorClass::Fencing), Some(true)));
        let fields: Vec<_> = error.fields.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(fields, ["class=odd", "class=routing", "retryable=maybe", "retryable=false"]);
    }

    #[test]
    fn a_hostile_error_is_kept_in_part() {
        let error = parse(&format!("ERROR: code{}{}", " word".repeat(40), " k=v".repeat(100_000)));
        assert_eq!((error.words.len(), error.fields.len()), (40, MOST_WORDS - 40));
    }

    #[test]
    fn what_is_no_error_or_has_no_code_is_told_apart() {
        assert!(BrokerError::parse("OK").is_none());
        assert!(BrokerError::parse("ERROR:").unwrap().is_err());
        assert!(BrokerError::parse("ERROR: x reason=\"open").unwrap().is_err());
    }

    proptest::proptest! {
        #[test]
        fn an_error_survives_the_wire(reason in ".*", current in 0u64.., retryable: Option<bool>) {
            let mut error = BrokerError::new("some_code").with("current", current).with("reason", &reason);
            error.retryable = retryable;
            error.class = retryable.map(|_| ErrorClass::Conflict);
            proptest::prop_assert_eq!(parse(&error.to_string()), error);
        }
    }
}
