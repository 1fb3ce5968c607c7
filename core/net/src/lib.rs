//! The seams between the core and the world.
//!
//! The engine and the embedded cluster reach the network and randomness only through this crate, so that a simulation, or
//! a TLS layer, can stand in for either. Time is tokio's own, which tests can pause; there is no seam for it here.
#![forbid(unsafe_code)]

mod network;
mod randomness;
mod tcp;

pub use network::{BoxFuture, Listener, Network, Socket};
pub use randomness::{Randomness, SplitMix, SystemRandomness};
pub use tcp::Tcp;
