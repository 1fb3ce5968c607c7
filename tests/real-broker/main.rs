//! The engine against a real broker, which the environment names; `docs/real-broker.md` says how. Where it names none, every
//! test passes and says that it was skipped.

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
mod transactions;
mod watching;
