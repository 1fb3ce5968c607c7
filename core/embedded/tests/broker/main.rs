//! The brokers over sockets, as a client sees them.

#[cfg(feature = "cli")]
mod binary;
mod client;
mod clock;
mod control;
mod faults;
mod golden;
mod groups;
mod lifecycle;
mod network;
mod offsets;
mod pausing;
mod pipes;
mod protocol;
mod publishing;
mod reading;
mod remaking;
mod streams;
mod topics;
mod transactions;
mod writer;
