//! What polling promises, streaming promises too: the same tests, in the other mode.
#![allow(clippy::duplicate_mod)] // Each file brings `common` along.

#[path = "closing.rs"]
mod closing;
#[path = "committing.rs"]
mod committing;
#[path = "connections.rs"]
mod connections;
#[path = "control.rs"]
mod control;
#[path = "coordinators.rs"]
mod coordinators;
#[path = "handlers.rs"]
mod handlers;
#[path = "leaders.rs"]
mod leaders;
#[path = "membership.rs"]
mod membership;
#[path = "reading.rs"]
mod reading;
#[path = "rebalancing.rs"]
mod rebalancing;
#[path = "recovery.rs"]
mod recovery;
#[path = "starting.rs"]
mod starting;
#[path = "visibility.rs"]
mod visibility;
