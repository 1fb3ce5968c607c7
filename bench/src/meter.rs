//! What a run takes: time on the wall, and what the operating system says that this process has used.

use std::time::Instant;

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use serde::Serialize;

use crate::Result;

/// What one run took. `bench/poll.py` prints the same.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    records: u64,
    seconds: f64,
    /// CPU time of all threads of this process, in user mode and in the kernel.
    user_seconds: f64,
    system_seconds: f64,
    /// Pages that the kernel had to provide.
    page_faults: i64,
    /// How often a thread waited.
    waits: i64,
}

/// A measurement in progress. It begins with the first records in hand, which therefore don't count: joining a group,
/// connecting and the first allocations are a matter of start-up.
pub(crate) struct Meter {
    begun: Instant,
    usage: Usage,
}

impl Meter {
    pub(crate) fn start() -> Result<Self> {
        Ok(Self { usage: getrusage(UsageWho::RUSAGE_SELF)?, begun: Instant::now() })
    }

    pub(crate) fn stop(&self, records: u64) -> Result<Measured> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let (before, now) = (&self.usage, getrusage(UsageWho::RUSAGE_SELF)?);
        let between = |before: TimeVal, now: TimeVal| (now - before).num_microseconds() as f64 / 1e6;
        Ok(Measured {
            records,
            seconds,
            user_seconds: between(before.user_time(), now.user_time()),
            system_seconds: between(before.system_time(), now.system_time()),
            page_faults: now.minor_page_faults() - before.minor_page_faults(),
            waits: now.voluntary_context_switches() - before.voluntary_context_switches(),
        })
    }
}
