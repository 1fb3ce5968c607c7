//! A consumer for the Cursus message broker. It runs on the tokio runtime that it is given.
//!
//! ```no_run
//! # async fn example() -> cursus_consumer::Result<()> {
//! use std::time::Duration;
//! use cursus_consumer::{Consumer, Environment, ErrorKind, Settings};
//!
//! let settings = Settings::from_values([
//!     ("brokers", "127.0.0.1:9000".into()),
//!     ("topic", "orders".into()),
//!     ("group_id", "billing".into()),
//! ])?;
//! let consumer = Consumer::new(settings, Environment::current());
//! loop {
//!     match consumer.poll(Some(Duration::from_secs(1))).await {
//!         Ok(batch) => {
//!             for record in batch.iter() {
//!                 println!("{}@{}: {} bytes", record.partition, record.offset, record.value.len());
//!             }
//!             consumer.commit(&batch, Some(Duration::from_secs(10))).await?;
//!         }
//!         // Partitions were handed out anew: drop what is still held of them, and go on.
//!         Err(error) if error.kind() == ErrorKind::Rebalancing => {}
//!         Err(error) if error.kind() == ErrorKind::Closed => break,
//!         Err(error) => return Err(error),
//!     }
//! }
//! consumer.close(None).await;
//! # Ok(())
//! # }
//! ```
//!
//! The way of a record through the crate: a link to a broker (`brokers`) reads a frame off its socket, `cursus-wire` checks
//! and indexes it, the partition's reader (`engine`) pushes it into the queue (`delivery`), where [`Consumer::poll`] takes
//! it. The engine decides who reads what; the membership machine (`membership`) decides when that changes.
#![forbid(unsafe_code)]

mod backoff;
mod batch;
mod brokers;
mod consumer;
mod delivery;
mod engine;
pub mod error;
mod health;
mod membership;
pub mod settings;
mod shared;
pub mod statistics;
mod types;

pub use batch::{Batch, Record, RecordRef};
pub use consumer::{Commit, Consumer, RunError, driver};
pub use error::{Error, ErrorKind, Result};
pub use settings::{Settings, Value};
pub use shared::Environment;
pub use statistics::{PartitionStatistics, Statistics};
pub use types::{GroupDescription, GroupMember, Iteration, PartitionDescription, Rebalance, State, TopicPartition};

pub use cursus_wire::{BrokerError, ErrorClass, GroupMetadata, InvalidName, Topic};
