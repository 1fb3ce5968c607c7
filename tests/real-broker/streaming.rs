//! What polling promises, streaming promises too: the same cases, in the other mode, and those that only a stream has.

mod broker;
mod client;
mod cluster;
mod consumers;
mod place;

mod closing;
mod committing;
mod controlling;
mod failures;
mod handling;
mod leading;
mod reading;
mod rebalancing;
mod restarting;
mod starting;
mod streams;
mod watching;
