//! A Cursus cluster in your process.
//!
//! Brokers on loopback sockets that speak the real wire protocol, with topics, partition leaders and a coordinator per
//! group, for tests of this project and of those who use it. It holds everything in memory. What a client can see is
//! what the real broker does, its quirks included; what a test can do beside that is to kill and pause brokers, move coordinators
//! and leaders, fail, lose, damage, delay or hold what is asked, silence connections, swap or misname addresses, and put
//! the brokers' clock forward.
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
//!
//! # What differs from real brokers
//!
//! - Leaders and coordinators are placed so that a test can tell where: partition p is led by broker p modulo their number,
//!   a group's coordinator is a hash of its name. Real brokers hash their own addresses in.
//! - What one broker knows all know at once: a topic just made, a commit (unless
//!   [`coordinator_commit_lag`](Options::coordinator_commit_lag) says otherwise), a new generation. A broker that comes back
//!   knows everything from the first moment. What real ones say meanwhile [`Cluster::fail_next`] says on command.
//! - All brokers share one log, so whoever runs may lead; real ones lose their place among the replicas for good.
//! - A write that must be forwarded to a paused leader fails at once; real brokers wait for it first.
//! - GROUP_STATUS tells the time since the cluster's start, as if that had been at the start of 2026.
//! - A transaction is decided as one: nobody ever sees half of a commit, unless it fails half-way as a real one does.
//! - There is no TLS, no authentication, no compression, no event sourcing; their commands say so.
#![forbid(unsafe_code)]

mod addresses;
mod arguments;
mod base64;
mod broker;
mod calendar;
mod classes;
mod clock;
mod cluster;
mod commands;
mod connection;
mod control;
pub mod control_port;
mod error;
mod faults;
mod groups;
mod incoming;
mod journal;
mod log;
mod options;
mod outbox;
mod patterns;
mod producers;
mod sha256;
mod shared;
mod stream;
mod switch;
mod topics;
mod transactions;
mod watch;
mod writer;

pub use cluster::Cluster;
pub use control::{GroupView, NewRecord};
pub use cursus_wire::{BrokerError, GroupMetadata, Meaning};
pub use error::ControlError;
pub use faults::Hold;
pub use journal::Request;
pub use options::Options;
pub use writer::{TransactionalWriter, WriterError};
