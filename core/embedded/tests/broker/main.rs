//! The brokers over sockets, as a client sees them.

mod binary;
mod client;
mod faults;
mod golden;
mod groups;
mod lifecycle;
mod offsets;
mod pipes;
mod protocol;
mod publishing;
mod reading;
mod streams;
mod topics;
mod transactions;
mod writer;
