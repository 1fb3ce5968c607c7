//! What every binding needs once, whatever its language: the process's runtime, values that must not cross a fork, panics
//! that must not cross a language, waits on a foreign thread, timeouts, outcomes that are asked for later, whose turn it is to
//! tell of rebalances, and above these the consumer as a binding holds it ([`client`]), with what every language does to take
//! something from it ([`taking`]); and the cluster for tests. Nothing here knows any of the languages.
//!
//! The binary `generate` of this crate writes what is generated from the core's tables.
#![forbid(unsafe_code)]

pub mod client;
pub mod panics;
pub mod pending;
pub mod process;
pub mod runtime;
pub mod taking;
#[cfg(feature = "testing")]
pub mod testing;
pub mod timeout;
pub mod turns;
pub mod wait;

pub use client::{Client, Named};
pub use panics::guard;
pub use pending::Pending;
pub use process::OfProcess;
pub use taking::{Step, Taking};
pub use timeout::Timeout;
pub use turns::Caller;
