//! Every error there is: one table, from which the bindings' classes, codes and constants come.

use std::fmt;
use std::sync::Arc;

use cursus_wire::{BrokerError, InvalidName};

use crate::types::TopicPartition;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<InvalidName> for Error {
    fn from(problem: InvalidName) -> Self {
        Self::new(ErrorKind::InvalidArgument, problem.to_string())
    }
}

/// A row of the table of errors.
#[derive(Debug, Clone, Copy)]
pub struct ErrorRow {
    /// What it is in Rust.
    pub kind: ErrorKind,
    /// Its stable number. Numbers are never used again.
    pub number: u32,
    /// Its stable name: `ERR_REBALANCING`.
    pub name: &'static str,
    /// The name of its class in languages with exceptions: `RebalancingError`.
    pub class: &'static str,
    /// Whether the same call may work later.
    pub retryable: bool,
    /// Whether the consumer is closed by it.
    pub fatal: bool,
    /// When it is raised.
    pub doc: &'static str,
}

macro_rules! errors {
    ($($(#[doc = $doc:literal])+ $number:literal $kind:ident $name:literal $class:literal retryable=$retryable:literal fatal=$fatal:literal;)*) => {
        /// What went wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind { $($(#[doc = $doc])+ $kind,)* }

        /// The table of errors, by number.
        pub const ERRORS: &[ErrorRow] = &[$(ErrorRow {
            kind: ErrorKind::$kind,
            number: $number,
            name: $name,
            class: $class,
            retryable: $retryable,
            fatal: $fatal,
            doc: concat!($($doc, "\n"),+),
        },)*];
    };
}

errors! {
    /// A setting's name or value is wrong. The message lists the right ones.
    1 InvalidSetting "ERR_INVALID_SETTING" "InvalidSettingError" retryable=false fatal=false;
    /// An argument of a call is wrong: a negative timeout, a batch of another consumer, an offset beyond the position.
    2 InvalidArgument "ERR_INVALID_ARGUMENT" "InvalidArgumentError" retryable=false fatal=false;
    /// The call isn't possible in the consumer's present state.
    3 InvalidState "ERR_INVALID_STATE" "InvalidStateError" retryable=false fatal=false;
    /// The consumer is closed, or was closed while the call waited.
    4 Closed "ERR_CLOSED" "ClosedError" retryable=false fatal=false;
    /// The partitions of what was asked are no longer this consumer's, or are being handed out anew. Poll again.
    5 Rebalancing "ERR_REBALANCING" "RebalancingError" retryable=true fatal=false;
    /// The time given to a call was over before it was done. A commit was not sent; a start goes on trying.
    6 TimedOut "ERR_TIMED_OUT" "TimedOutError" retryable=true fatal=false;
    /// A commit was sent, and its answer didn't come in time: it may or may not have been carried out.
    7 CommitOutcomeUnknown "ERR_COMMIT_OUTCOME_UNKNOWN" "CommitOutcomeUnknownError" retryable=true fatal=false;
    /// A commit is below what is committed. Nothing was changed, here or there.
    8 OffsetRegression "ERR_OFFSET_REGRESSION" "OffsetRegressionError" retryable=false fatal=false;
    /// No broker could be reached.
    9 Unreachable "ERR_UNREACHABLE" "UnreachableError" retryable=true fatal=false;
    /// Every reachable broker says that there is no such topic.
    10 UnknownTopic "ERR_UNKNOWN_TOPIC" "UnknownTopicError" retryable=false fatal=true;
    /// The group reads another topic: one group, one topic.
    11 GroupTopicMismatch "ERR_GROUP_TOPIC_MISMATCH" "GroupTopicMismatchError" retryable=false fatal=true;
    /// The broker asks for credentials, or refuses these.
    12 Authentication "ERR_AUTHENTICATION" "AuthenticationError" retryable=false fatal=true;
    /// These credentials may not do this.
    13 Authorization "ERR_AUTHORIZATION" "AuthorizationError" retryable=false fatal=true;
    /// A record is too large for any reply: at the protocol's frame limit it can't be read at all.
    14 RecordTooLarge "ERR_RECORD_TOO_LARGE" "RecordTooLargeError" retryable=false fatal=true;
    /// The broker answered with an error that has no kind of its own here.
    15 Broker "ERR_BROKER" "BrokerResponseError" retryable=false fatal=false;
    /// The broker answered a question of the application with something that the protocol doesn't allow.
    16 Protocol "ERR_PROTOCOL" "ProtocolError" retryable=true fatal=false;
    /// This object was made before a fork and belongs to the parent process.
    17 Forked "ERR_FORKED" "ForkedError" retryable=false fatal=false;
    /// A defect of this library. Please report it.
    18 Internal "ERR_INTERNAL" "InternalError" retryable=false fatal=false;
    /// Nobody polled for `max_poll_interval_ms`, so the member left its group. Raised once; poll again to join anew.
    19 MaxPollInterval "ERR_MAX_POLL_INTERVAL" "MaxPollIntervalError" retryable=true fatal=false;
    /// With `auto_offset_reset=error`: nothing is committed for a partition, or its next record is no longer kept.
    20 OffsetGap "ERR_OFFSET_GAP" "OffsetGapError" retryable=false fatal=true;
}

impl ErrorKind {
    /// The kind's row in the table.
    pub fn row(self) -> &'static ErrorRow {
        ERRORS.iter().find(|row| row.kind == self).expect("every kind has its row")
    }
}

/// An error: what kind, about what, and what to do.
///
/// Cheap to clone: a fatal error is raised by poll and stays readable afterwards.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    broker: Option<BrokerError>,
    stale: Vec<TopicPartition>,
    owned: Vec<TopicPartition>,
}

impl Error {
    /// An error of a kind with its message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), broker: None, stale: Vec::new(), owned: Vec::new() }))
    }

    /// An error that a broker's answer caused.
    pub(crate) fn from_broker(kind: ErrorKind, message: impl Into<String>, broker: BrokerError) -> Self {
        let message = message.into();
        Self(Arc::new(Inner { kind, message, broker: Some(broker), stale: Vec::new(), owned: Vec::new() }))
    }

    /// A rebalancing error over the partitions whose fence ended, and those still owned.
    pub(crate) fn rebalancing(
        message: impl Into<String>,
        stale: Vec<TopicPartition>,
        owned: Vec<TopicPartition>,
    ) -> Self {
        Self(Arc::new(Inner { kind: ErrorKind::Rebalancing, message: message.into(), broker: None, stale, owned }))
    }

    /// Nobody polled for too long, and the membership ended with that.
    pub(crate) fn overdue(message: impl Into<String>, stale: Vec<TopicPartition>) -> Self {
        let message = message.into();
        Self(Arc::new(Inner { kind: ErrorKind::MaxPollInterval, message, broker: None, stale, owned: Vec::new() }))
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the consumer is closed: make a new one")
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message alone, without the kind's name.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether the same call may work later.
    pub fn is_retryable(&self) -> bool {
        self.kind().row().retryable
    }

    /// Whether the consumer is closed by it.
    pub fn is_fatal(&self) -> bool {
        self.kind().row().fatal
    }

    /// The broker's own error, where one caused this: code, class, fields.
    pub fn broker(&self) -> Option<&BrokerError> {
        self.0.broker.as_ref()
    }

    /// With [`ErrorKind::Rebalancing`] and [`ErrorKind::MaxPollInterval`]: the partitions of what was asked that are no longer
    /// this consumer's.
    pub fn stale(&self) -> &[TopicPartition] {
        &self.0.stale
    }

    /// With [`ErrorKind::Rebalancing`] from a commit: those that still are, and may be committed.
    pub fn still_owned(&self) -> &[TopicPartition] {
        &self.0.owned
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:?})", self.kind().row().name, self.0.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.broker.as_ref().map(|broker| broker as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_and_names_are_each_used_once() {
        assert_eq!(ERRORS.iter().map(|row| row.number).collect::<BTreeSet<_>>().len(), ERRORS.len());
        assert_eq!(ERRORS.iter().map(|row| row.name).collect::<BTreeSet<_>>().len(), ERRORS.len());
        assert_eq!(ERRORS.iter().map(|row| row.class).collect::<BTreeSet<_>>().len(), ERRORS.len());
        for row in ERRORS {
            assert_eq!(row.kind.row().number, row.number);
            assert!(row.name.starts_with("ERR_") && row.class.ends_with("Error"), "{row:?}");
        }
    }

    #[test]
    fn the_numbers_of_old_stay_what_they_were() {
        // Programs store them. A new error is added at the end; nothing here ever changes.
        let known = [
            (1, "ERR_INVALID_SETTING"),
            (2, "ERR_INVALID_ARGUMENT"),
            (3, "ERR_INVALID_STATE"),
            (4, "ERR_CLOSED"),
            (5, "ERR_REBALANCING"),
            (6, "ERR_TIMED_OUT"),
            (7, "ERR_COMMIT_OUTCOME_UNKNOWN"),
            (8, "ERR_OFFSET_REGRESSION"),
            (9, "ERR_UNREACHABLE"),
            (10, "ERR_UNKNOWN_TOPIC"),
            (11, "ERR_GROUP_TOPIC_MISMATCH"),
            (12, "ERR_AUTHENTICATION"),
            (13, "ERR_AUTHORIZATION"),
            (14, "ERR_RECORD_TOO_LARGE"),
            (15, "ERR_BROKER"),
            (16, "ERR_PROTOCOL"),
            (17, "ERR_FORKED"),
            (18, "ERR_INTERNAL"),
            (19, "ERR_MAX_POLL_INTERVAL"),
            (20, "ERR_OFFSET_GAP"),
        ];
        for (number, name) in known {
            assert!(ERRORS.iter().any(|row| row.number == number && row.name == name), "{number} {name}");
        }
    }

    #[test]
    fn retryable_and_fatal_exclude_each_other() {
        assert!(ERRORS.iter().all(|row| !(row.retryable && row.fatal)));
    }
}
