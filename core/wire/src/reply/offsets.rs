//! Committed offsets.

use super::{TextReply, ok};
use crate::fields::FieldError;

/// A committed offset. 0 also means "never committed", and "no such partition".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    /// The next offset to read.
    pub offset: u64,
}

impl TextReply for Offset {
    const OF: &'static str = "FETCH_OFFSET";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { offset: ok(text)?.number("offset")? })
    }
    fn to_text(&self) -> String {
        format!("OK offset={}", self.offset)
    }
}

/// A batch of commits was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchCommitted {
    /// How many partitions: fewer than were sent means that some were lost on the way.
    pub count: usize,
}

impl TextReply for BatchCommitted {
    const OF: &'static str = "BATCH_COMMIT";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { count: ok(text)?.number("batched")? })
    }
    fn to_text(&self) -> String {
        format!("OK batched={}", self.count)
    }
}

/// A plain `OK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done;

impl TextReply for Done {
    const OF: &'static str = "COMMIT_OFFSET";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        ok(text).map(|_| Self)
    }
    fn to_text(&self) -> String {
        "OK".to_owned()
    }
}
