//! Commands, both directions: a client encodes them, a broker parses them.
//!
//! Each command is a type, and [`Request`] ties it to the type of its reply. `table.rs` is the list of all of them; a new
//! command is an entry there.

mod argument;
mod table;

use bytes::Bytes;
use thiserror::Error;

use crate::fields::FieldError;
use crate::frame::{self, FrameError};
use crate::name::{InvalidName, Text};
use crate::reply;

pub use argument::{Commits, Message};
pub use table::*;

/// Why a text isn't a command that a broker can act on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandError {
    /// The first word is no command.
    #[error("unknown command {0:?}")]
    Unknown(String),
    /// An argument is missing or can't be read.
    #[error("{command}: {problem}")]
    Argument {
        /// The command's name.
        command: &'static str,
        /// What is wrong.
        #[source]
        problem: FieldError,
    },
    /// A name holds what a name can't.
    #[error("{command}: {problem}")]
    Name {
        /// The command's name.
        command: &'static str,
        /// What is wrong.
        #[source]
        problem: InvalidName,
    },
    /// A pair of a batch commit isn't `P<partition>:<offset>`.
    #[error("{entry:?} is not P<partition>:<offset>")]
    Entry {
        /// The pair as it was sent.
        entry: String,
    },
}

/// A command with its reply's type.
pub trait Request: Into<Command> + Clone + Send + 'static {
    /// What a broker answers where it isn't an error.
    type Reply: reply::Reply;
    /// The command's first word.
    const NAME: &'static str;

    /// The command as text.
    fn text(&self) -> String;

    /// The command as a whole frame, to be written in one call.
    fn frame(&self) -> Result<Bytes, FrameError> {
        frame::encode_text(&self.text())
    }
}

/// Which records a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Isolation {
    /// Only what is committed: no open or aborted transaction, no control records.
    #[default]
    ReadCommitted,
    /// The raw log, control records included.
    ReadUncommitted,
}

impl Isolation {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadCommitted => "read_committed",
            Self::ReadUncommitted => "read_uncommitted",
        }
    }
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// What was staged is written, and the offsets are committed.
    Commit,
    /// What was staged is dropped.
    Abort,
}

impl Outcome {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Abort => "abort",
        }
    }
}

/// The key of the argument that has none: the pairs that end a command.
const PAIRS: &str = "";

/// A command's words behind the first, read again at each look: nothing is copied.
#[derive(Clone, Copy)]
struct Arguments<'a> {
    /// Everything but the message.
    words: &'a str,
    message: Option<&'a str>,
}

impl<'a> Arguments<'a> {
    fn new(rest: &'a str) -> Self {
        // `message=` swallows everything behind it, quotes and further `key=value` included.
        match rest.split_once("message=") {
            Some((words, message)) => Self { words, message: Some(message.trim()) },
            None => Self { words: rest, message: None },
        }
    }

    /// The last value under a key. Commands, unlike replies, know no quotes.
    fn get(&self, key: &str) -> Option<&'a str> {
        if key == "message" {
            return self.message;
        }
        if key == PAIRS {
            return Some(self.words);
        }
        let value = |word: &'a str| word.split_once('=').filter(|(k, _)| *k == key).map(|(_, value)| value);
        self.words.split_whitespace().rev().find_map(value)
    }
}

impl Command {
    /// Reads a command's text, the envelope already off. The first word may be in any case.
    pub fn parse(text: &str) -> Result<Self, CommandError> {
        let text = text.trim();
        let (word, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
        let name = Self::NAMES.iter().find(|name| name.eq_ignore_ascii_case(word));
        Self::read(name.unwrap_or(&word), Arguments::new(rest))
    }
}

/// The optional feature that gives errors their class and retryability.
pub const STRUCTURED_ERRORS: &str = "structured_errors_v1";

impl Negotiate {
    /// Asks for version 1 with [`STRUCTURED_ERRORS`].
    pub fn structured_errors() -> Self {
        let feature = Text::new(STRUCTURED_ERRORS).expect("the feature's name is a plain word");
        Self { version: 1, features: Some(vec![feature]), require_features: None }
    }
}
