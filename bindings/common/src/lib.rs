//! What every binding needs once, whatever its language: the process's runtime, values that must not cross a fork, panics
//! that must not cross a language, waits on a foreign thread, timeouts, outcomes that are asked for later, and whose turn it
//! is to tell of rebalances. Nothing here knows any of the languages.
//!
//! The binary `generate` of this crate writes what is generated from the core's tables.
#![forbid(unsafe_code)]

pub mod panics;
pub mod pending;
pub mod process;
pub mod runtime;
pub mod timeout;
pub mod turns;
pub mod wait;

pub use panics::guard;
pub use pending::Pending;
pub use process::OfProcess;
pub use timeout::Timeout;
pub use turns::{Turn, Turns};

use cursus_consumer::{Consumer, Error, ErrorKind, Result, State};

/// An error where the consumer is closed or about to be: the one that closed it, if one did. For the calls that the
/// engine itself answers at any time.
pub fn ensure_open(consumer: &Consumer) -> Result<()> {
    if !matches!(consumer.state(), State::Closing | State::Closed) {
        return Ok(());
    }
    let closed = || Error::new(ErrorKind::Closed, "the consumer is closed: make a new one");
    Err(consumer.fatal_error().unwrap_or_else(closed))
}
