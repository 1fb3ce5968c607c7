//! Replies, both directions: a client parses them, a broker encodes them.
//!
//! A reply is `OK`, `OK k=v …`, a JSON object with `"status":"OK"`, a batch of records, or `ERROR: …`.

mod groups;
mod offsets;
mod records;
mod session;
mod topics;
mod transactions;

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::batch::CorruptBatch;
use crate::error::BrokerError;
use crate::fields::{FieldError, Fields, excerpt, invalid};

pub use groups::{Assignment, Coordinator, CoordinatorKind, GroupStatus, Groups, Heartbeat, Left, MemberStatus};
pub use offsets::{BatchCommitted, Done, Offset};
pub use records::{Published, Records, StreamClose, StreamFrame};
pub use session::{Authenticated, Negotiated, ProtocolInfo};
pub use topics::{Bounds, Created, Deleted, Metadata, Offsets, Topics};
pub use transactions::{
    OffsetsStaged, ProducerEpoch, RecordStaged, TransactionBegun, TransactionEnded, TransactionState, TransactionStatus,
};

/// Why a reply isn't what its command promises.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReplyError {
    /// The broker refused or failed, and said so.
    #[error("{0}")]
    Broker(#[from] BrokerError),
    /// The reply makes no sense. What else is on its connection can't be trusted either.
    #[error("the reply {text} to {expected} makes no sense: {problem}")]
    Malformed {
        /// The command that was answered.
        expected: &'static str,
        /// What is wrong.
        problem: String,
        /// The reply's start, quoted.
        text: String,
    },
    /// A batch of records that can't be decoded.
    #[error(transparent)]
    Corrupt(#[from] CorruptBatch),
}

impl ReplyError {
    fn malformed(expected: &'static str, problem: &dyn fmt::Display, body: &[u8]) -> Self {
        // Bytes that are no text are shown too, as far as they can be.
        let start = String::from_utf8_lossy(&body[..body.len().min(256)]);
        Self::Malformed { expected, problem: problem.to_string(), text: format!("{:?}", excerpt(&start)) }
    }
}

/// A reply that can be parsed.
pub trait Reply: Sized + Send + 'static {
    /// Reads a reply's body.
    fn parse(body: &Bytes) -> Result<Self, ReplyError>;
}

/// A reply that is text, in both directions.
pub trait TextReply: Sized + Send + 'static {
    /// The command that it answers, for messages.
    const OF: &'static str;

    /// Reads a text that is no error.
    fn from_text(text: &str) -> Result<Self, FieldError>;

    /// The reply as text.
    fn to_text(&self) -> String;
}

impl<T: TextReply> Reply for T {
    fn parse(body: &Bytes) -> Result<Self, ReplyError> {
        let text = text(T::OF, body)?;
        T::from_text(text).map_err(|problem| ReplyError::malformed(T::OF, &problem, body))
    }
}

/// The text of a body that is no error.
fn text<'a>(of: &'static str, body: &'a [u8]) -> Result<&'a str, ReplyError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let problem = format!("it is not UTF-8 from byte {} on", error.valid_up_to());
        ReplyError::malformed(of, &problem, body)
    })?;
    match BrokerError::parse(text) {
        None => Ok(text),
        Some(Ok(error)) => Err(error.into()),
        Some(Err(problem)) => Err(ReplyError::malformed(of, &problem, body)),
    }
}

/// The fields behind `OK`.
fn ok(text: &str) -> Result<Fields<'_>, FieldError> {
    match text.strip_prefix("OK") {
        Some(rest) if rest.is_empty() || rest.starts_with(char::is_whitespace) => Fields::parse(text, 2),
        _ => Err(FieldError::Start("OK")),
    }
}

fn name<T: std::str::FromStr>(fields: &Fields<'_>, key: &'static str) -> Result<T, FieldError> {
    let value = fields.require(key)?;
    value.parse().map_err(|_| invalid(key, &value, "a name"))
}

/// The entries between commas; none in an empty value.
fn list(value: &str) -> Vec<String> {
    let entries = || value.split(',').filter(|entry| !entry.is_empty());
    // Counted first: growing step by step would take three times the memory.
    let mut list = Vec::with_capacity(entries().count());
    list.extend(entries().map(str::to_owned));
    list
}

fn json<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, FieldError> {
    // The message may quote what it refuses, at any length.
    serde_json::from_str(text).map_err(|error| FieldError::Json(excerpt(&error.to_string())))
}

/// JSON of a type that has nothing which JSON can't hold.
fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Checks the `"status"` of a JSON reply.
fn status_ok(status: &str) -> Result<(), FieldError> {
    if status == "OK" { Ok(()) } else { Err(invalid("status", status, "OK")) }
}
