//! What is failing, since when and why. Written by the engine, read by `stats()`; each change is logged once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::types::TopicPartition;

/// What can be failing on its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// The group's coordinator: joining, heartbeats, commits.
    Coordinator,
    /// Getting on with joining, synchronising or preparing: the coordinator may answer, and still not with what is needed.
    Membership,
    /// Finding out about the topic.
    Topic,
    /// Reading a partition.
    Partition(TopicPartition),
    /// Where a partition is read: beyond its log's end nothing comes.
    Position(TopicPartition),
    /// Commits: the coordinator may take everything else.
    Commits,
    /// A question of the application.
    Question,
    /// Partitions that the group doesn't know of.
    Growth,
}

/// What fails, since when, and whether that is for want of anybody to talk to.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) why: String,
    pub(crate) since: Instant,
    pub(crate) unreachable: bool,
}

#[derive(Default)]
pub(crate) struct Health(Mutex<Facts>);

#[derive(Default, Clone)]
pub(crate) struct Facts {
    pub(crate) member: Option<String>,
    pub(crate) generation: Option<u64>,
    pub(crate) coordinator: Option<String>,
    pub(crate) leaders: BTreeMap<TopicPartition, String>,
    pub(crate) rebalances: u64,
    pub(crate) reconnects: u64,
    pub(crate) corrupt_frames: u64,
    pub(crate) commits: u64,
    pub(crate) last_error: Option<String>,
    pub(crate) troubles: BTreeMap<Part, Trouble>,
    pub(crate) given_up: Vec<String>,
}

impl Health {
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was lost with requests open, or couldn't be made.
    pub(crate) fn reconnect(&self) {
        self.facts().reconnects += 1;
    }

    /// A reply couldn't be decoded, which ends its connection.
    pub(crate) fn corrupt_frame(&self) {
        let mut facts = self.facts();
        facts.corrupt_frames += 1;
        facts.reconnects += 1;
    }

    /// Nobody answers. See [`trouble`](Self::trouble).
    pub(crate) fn unreachable(&self, part: Part, why: &str) {
        self.note(part, why, true);
    }

    /// Something fails. How long is counted from the first time; the log has a line per change, not per attempt.
    pub(crate) fn trouble(&self, part: Part, why: &str) {
        self.note(part, why, false);
    }

    fn note(&self, part: Part, why: &str, unreachable: bool) {
        let mut facts = self.facts();
        facts.last_error = Some(why.to_owned());
        let known = facts.troubles.get(&part).map(|trouble| (trouble.why == why, trouble.since));
        if !matches!(known, Some((true, _))) {
            tracing::warn!(?part, why, "failing");
        }
        let since = known.map_or_else(Instant::now, |(_, since)| since);
        let unreachable =
            unreachable || facts.troubles.get(&part).is_some_and(|trouble| trouble.unreachable && trouble.why == why);
        facts.troubles.insert(part, Trouble { why: why.to_owned(), since, unreachable });
    }

    /// It works again.
    pub(crate) fn recovered(&self, part: &Part) {
        if self.facts().troubles.remove(part).is_some() {
            tracing::info!(?part, "works again");
        }
    }
}
