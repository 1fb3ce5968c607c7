//! The Cursus wire protocol as types.
//!
//! A connection carries *frames*: a length and a body ([`frame`]). A body is a text command in an envelope ([`command`]),
//! the reply to one ([`reply`], [`error`]), or a batch of records ([`batch`]). Both directions are here: a client encodes
//! commands and parses replies, a broker the other way round. This crate does no I/O and knows nothing of retries.
//!
//! What is parsed came from the network: nothing here panics on any input, allocates more than the frame's own length
//! justifies, or accepts what it doesn't understand without saying what was wrong and where.
#![forbid(unsafe_code)]

pub mod batch;
pub mod command;
pub mod error;
mod fields;
pub mod frame;
mod member;
pub mod name;
pub mod reply;

pub use batch::{Record, RecordBatch};
pub use command::{Command, Request};
pub use error::{BrokerError, ErrorClass, Meaning};
pub use fields::FieldError;
pub use frame::MAX_BODY;
pub use member::GroupMetadata;
pub use name::{Group, InvalidName, Member, Text, Topic};
pub use reply::{Reply, ReplyError, TextReply};
