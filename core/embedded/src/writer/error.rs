//! What can go wrong for a writer.

use std::time::Duration;

use cursus_wire::{BrokerError, Meaning};
use thiserror::Error;

/// Why a writer couldn't do what it was told.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WriterError {
    /// A name, a value or an address that can't go on the wire. Nothing was sent.
    #[error("{0}")]
    InvalidArgument(String),
    /// Not at this point of a transaction. Nothing was sent.
    #[error("{0}")]
    InvalidState(String),
    /// Another writer has started with this transactional id: this one is done, and what it hadn't committed is dropped.
    #[error("another writer has taken over the transactional id {transactional_id:?}: this one is fenced for good")]
    Fenced {
        /// The transactional id.
        transactional_id: String,
    },
    /// The broker said no, and wouldn't say anything else if it was asked again.
    #[error("{command} was refused: {error}")]
    Refused {
        /// The command.
        command: &'static str,
        /// What the broker said.
        error: BrokerError,
    },
    /// No broker did it in the time that a call has. It may work later.
    #[error("{command} was not carried out within {} s: {last}", .within.as_secs_f64())]
    Unavailable {
        /// The command.
        command: &'static str,
        /// How long it was tried.
        within: Duration,
        /// The last thing that went wrong.
        last: String,
    },
    /// A commit was sent, and what became of it couldn't be learned. Ask for the commit again.
    #[error("whether the transaction of {transactional_id:?} is committed is unknown: {last}")]
    OutcomeUnknown {
        /// The transactional id.
        transactional_id: String,
        /// The last thing that went wrong.
        last: String,
    },
}

impl WriterError {
    /// What a broker's refusal means, for instance [`Meaning::GenerationMismatch`] where the offsets' member has lost its
    /// generation; nothing where no broker refused anything.
    pub fn meaning(&self) -> Option<Meaning> {
        match self {
            Self::Refused { error, .. } => Some(error.meaning()),
            Self::Fenced { .. } => Some(Meaning::ProducerFenced),
            _ => None,
        }
    }
}
