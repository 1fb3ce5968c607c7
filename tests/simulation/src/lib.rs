//! Engine and embedded cluster under a simulated network and clock: a seed stands for a schedule of work and harm, an oracle
//! that sees the brokers' state looks at everything that happens, and the same seed does the same again, to the byte.
//!
//! Clock and scheduler are tokio's own: one thread, whose paused clock jumps to the next thing that is due. Network and
//! randomness come in by the core's seams. What nobody seeds, the order in which `select!` looks, is fixed in the core.
//! Libraries that step a clock by fixed ticks would spend ten thousand times as long on the quiet between faults.

mod application;
mod draw;
mod network;
mod oracle;
mod plan;
mod shrink;
mod world;

pub use oracle::Checks;
pub use plan::{MemberPlan, Plan, Step, Style, What};
pub use shrink::shrink;
pub use world::{Outcome, run};
