//! The way to the brokers: addresses, one connection, all of a consumer's connections, and the group's coordinator.

mod address;
mod buffers;
mod coordinator;
mod link;
mod links;
mod stream;

pub(crate) use address::Address;
pub(crate) use coordinator::{Coordinator, is_passing};
pub(crate) use link::{CallError, LinkContext};
pub(crate) use links::{Links, Purpose, Seat};
pub(crate) use stream::StreamAt;
