//! Commits that wait to be sent, and the one that is on its way.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::batch::Fence;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{TopicPartition, listed};

/// Offsets to commit, and under which fences.
pub(crate) type Claims = BTreeMap<TopicPartition, (Fence, u64)>;

/// A commit that somebody waits for.
pub(crate) struct Pending {
    pub(super) claims: Claims,
    deadline: Option<Instant>,
    /// Nobody: the engine's own commits.
    answer: Option<oneshot::Sender<Result<()>>>,
    /// Nobody ever waited for it.
    own: bool,
    /// It was on its way at least once and got no answer, so that its outcome is unknown.
    unknown: bool,
    /// Its time was over while it was on its way: it isn't sent again.
    expired: bool,
    /// It was refused together with others: it goes by itself, so that it can't sink them or be sunk.
    alone: bool,
}

impl Pending {
    pub(super) fn new(claims: Claims, deadline: Option<Instant>, answer: Option<oneshot::Sender<Result<()>>>) -> Self {
        let own = answer.is_none();
        Self { claims, deadline, answer, own, unknown: false, expired: false, alone: false }
    }

    pub(super) fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// One commit for each partition, so that what is wrong with one doesn't hold up the others. Only the engine's own may be
    /// taken apart.
    pub(super) fn apart(self) -> Vec<Self> {
        let single = |(partition, claim)| Self::new(Claims::from([(partition, claim)]), None, None).alone();
        self.claims.into_iter().map(single).collect()
    }

    /// Whether it is the engine's own, and nobody waits for it.
    pub(super) fn is_own(&self) -> bool {
        self.own
    }

    /// It was on its way, and whether it counts was never said.
    pub(super) fn unknown(self) -> Self {
        Self { unknown: true, ..self }
    }

    /// The end of a commit whose partitions are no longer this member's.
    pub(super) fn end_stale(self, error: Error) {
        if !self.unknown {
            return self.end(Err(error));
        }
        let message = format!(
            "the commit of {} was sent, its answer was lost, and a rebalance came: it may or may not count",
            listed(self.claims.keys())
        );
        self.end(Err(Error::new(ErrorKind::CommitOutcomeUnknown, message)));
    }

    pub(super) fn end(mut self, result: Result<()>) {
        self.tell(result);
    }

    /// The end of a commit whose time is over.
    pub(super) fn expire(mut self) {
        self.tell_expired();
    }

    fn tell_expired(&mut self) {
        let partitions = listed(self.claims.keys());
        let error = if self.unknown {
            Error::new(
                ErrorKind::CommitOutcomeUnknown,
                format!("the commit of {partitions} was sent and not answered in time: it may or may not count"),
            )
        } else {
            Error::new(
                ErrorKind::TimedOut,
                format!(
                    "the commit of {partitions} could not be sent in time: it was withdrawn, and nothing was committed"
                ),
            )
        };
        self.deadline = None;
        self.tell(Err(error));
    }

    fn tell(&mut self, result: Result<()>) {
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(result);
        }
    }
}

#[derive(Default)]
pub(crate) struct Commits {
    pub(super) waiting: VecDeque<Pending>,
    /// What the request on its way carries.
    pub(super) in_flight: Vec<Pending>,
    pub(super) open: bool,
    /// Trying again has to wait.
    pub(super) pausing: bool,
}

impl Commits {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.open
    }

    /// The highest offset that is committed for a partition once everything accepted so far is.
    pub(super) fn floor(&self, partition: &TopicPartition, fence: Fence) -> Option<u64> {
        let all = self.waiting.iter().chain(&self.in_flight);
        all.filter_map(|pending| pending.claims.get(partition))
            .filter(|(f, _)| *f == fence)
            .map(|(_, offset)| *offset)
            .max()
    }

    /// Takes what goes into the next request, merged: the highest offset of each partition.
    pub(super) fn take_next(&mut self) -> Option<Claims> {
        let mut merged = Claims::new();
        while let Some(pending) = self.waiting.front() {
            if pending.alone && !self.in_flight.is_empty() {
                break;
            }
            let Some(pending) = self.waiting.pop_front() else { break };
            for (partition, claim) in &pending.claims {
                let entry = merged.entry(partition.clone()).or_insert(*claim);
                entry.1 = entry.1.max(claim.1);
            }
            let alone = pending.alone;
            self.in_flight.push(pending);
            if alone {
                break;
            }
        }
        (!merged.is_empty()).then_some(merged)
    }

    /// The request is answered, or never will be.
    pub(super) fn take_in_flight(&mut self) -> Vec<Pending> {
        self.open = false;
        std::mem::take(&mut self.in_flight)
    }

    /// Puts back what has to be sent again, in order.
    pub(super) fn put_back(&mut self, pending: Vec<Pending>) {
        for pending in pending.into_iter().rev().filter(|pending| !pending.expired) {
            self.waiting.push_front(pending);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.iter().chain(&self.in_flight).filter_map(|pending| pending.deadline).min()
    }

    /// Ends what is over. What is on its way can still be taken by the broker, so it stays until that is known.
    pub(super) fn expire(&mut self, now: Instant) {
        let over = |pending: &Pending| pending.deadline.is_some_and(|deadline| deadline <= now);
        for mut pending in std::mem::take(&mut self.waiting) {
            if over(&pending) { pending.tell_expired() } else { self.waiting.push_back(pending) }
        }
        for pending in self.in_flight.iter_mut().filter(|pending| over(pending)) {
            pending.unknown = true;
            pending.tell_expired();
            pending.expired = true;
        }
    }

    /// Takes out everything, because nothing more will be sent.
    pub(super) fn take_all(&mut self) -> Vec<Pending> {
        self.open = false;
        let in_flight = std::mem::take(&mut self.in_flight).into_iter().map(Pending::unknown);
        in_flight.chain(std::mem::take(&mut self.waiting)).collect()
    }
}
