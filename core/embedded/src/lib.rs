//! A Cursus cluster in your process.
//!
//! Brokers on loopback sockets that speak the real wire protocol, with topics, partition leaders and a coordinator per
//! group, for tests of this project and of those who use it. It holds everything in memory. What a client can see is
//! what the real broker does, its quirks included; what a test can do beside that is to kill brokers, move coordinators
//! and leaders, and to fail, lose, damage or hold any command.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use cursus_embedded::{Cluster, Options};
//!
//! let cluster = Cluster::start(Options::default()).await?;
//! cluster.create_topic("orders", 6)?;
//! cluster.produce("orders", 0, [("key", "value")])?;
//! let brokers = cluster.brokers(); // ["127.0.0.1:…", …], for the client under test
//! # assert_eq!(brokers.len(), 3);
//! cluster.stop().await;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod arguments;
mod broker;
mod calendar;
mod classes;
mod cluster;
mod commands;
mod connection;
mod control;
mod error;
mod faults;
mod groups;
mod incoming;
mod journal;
mod log;
mod options;
mod patterns;
mod producers;
mod shared;
mod stream;
mod topics;

pub use cluster::Cluster;
pub use control::{GroupView, NewRecord};
pub use error::ControlError;
pub use faults::Hold;
pub use journal::Request;
pub use options::Options;
