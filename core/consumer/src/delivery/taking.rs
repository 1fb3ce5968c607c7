//! Polls and iterators: taking what is ready, and what that proves of what was taken before.

use std::sync::{Arc, MutexGuard};

use tokio::time::Instant;

use super::acks::Acks;
use super::{Delivery, Inner, Proof};
use crate::batch::{Batch, Fence, Record};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Iteration, Rebalance, TopicPartition};

impl Delivery {
    /// A poll begins: what the one before returned is now processed.
    pub(crate) fn begin_poll(self: &Arc<Self>) -> Result<Polling> {
        let mut inner = self.lock();
        inner.usable()?;
        if inner.handlers {
            return Err(handled_by_handlers());
        }
        let exclusive = inner.proof == Proof::Polls;
        if exclusive {
            if inner.polling {
                return Err(overlapping());
            }
            inner.polling = true;
        }
        // An iteration that was left behind may have been left for a reason: its last record proves nothing.
        inner.handed = None;
        let outstanding = std::mem::take(&mut inner.outstanding);
        inner.prove(outstanding);
        inner.activity.waiting += 1;
        Ok(Polling { delivery: Arc::clone(self), exclusive })
    }

    /// Somebody waits for records, and does it by steps: see [`Delivery::silent_for`].
    pub(crate) fn attend(self: &Arc<Self>) -> Polling {
        self.lock().activity.waiting += 1;
        Polling { delivery: Arc::clone(self), exclusive: false }
    }

    /// A handler begins to work; the time until it returns counts as if between two polls.
    pub(crate) fn handle(&self) {
        let mut inner = self.lock();
        if inner.activity.handling == 0 {
            inner.activity.last = Instant::now();
        }
        inner.activity.handling += 1;
    }

    /// A handler returned.
    pub(crate) fn handled(&self) {
        let mut inner = self.lock();
        inner.activity.handling -= 1;
        inner.activity.last = Instant::now();
    }

    /// From now on handlers take the records, and prove them; nobody else may. Returns what proved them before.
    pub(crate) fn begin_handling(&self) -> Result<Proof> {
        let mut inner = self.lock();
        inner.usable()?;
        if inner.handlers {
            return Err(handled_by_handlers());
        }
        if inner.polling {
            return Err(overlapping());
        }
        inner.handlers = true;
        for kept in inner.partitions.values_mut() {
            // What was returned before is not theirs.
            kept.acks = Acks::at(kept.position);
        }
        // What the last poll returned was not said to be processed.
        inner.outstanding.clear();
        inner.handed = None;
        Ok(std::mem::replace(&mut inner.proof, Proof::Words))
    }

    /// Handlers are done.
    pub(crate) fn end_handling(&self, proof: Proof) {
        let mut inner = self.lock();
        inner.handlers = false;
        inner.proof = proof;
        drop(inner);
        self.announce();
    }

    /// Whether handlers run.
    pub(crate) fn is_handling(&self) -> bool {
        self.lock().handlers
    }

    /// The error that the next poll would raise, where the membership has ended because nobody polled.
    pub(crate) fn take_raised(&self) -> Option<Error> {
        self.lock().raised.take()
    }

    /// From now on rebalances are kept until somebody has heard of them, and nothing is delivered before.
    pub(crate) fn listen(&self) {
        self.lock().listening = true;
    }

    /// The next rebalance that nobody has heard of yet. An assignment is kept until a poll has raised what ended the one
    /// before: what is cleaned up for that error must not be what was just set up. Others who wait for what this held back
    /// hear of it when it was told: [`Delivery::announce`].
    pub(crate) fn next_rebalance(&self) -> Option<Rebalance> {
        let mut inner = self.lock();
        let begins = matches!(inner.rebalances.front(), Some(Rebalance::Assigned(_)));
        if begins && inner.has_to_raise() && inner.usable().is_ok() {
            return None;
        }
        inner.rebalances.pop_front()
    }

    /// Takes what is ready, at most `max` records. Nothing where there is nothing yet.
    pub(crate) fn take(&self, max: usize) -> Result<Option<Batch>> {
        self.take_under(self.lock(), max)
    }

    fn take_under(&self, mut inner: MutexGuard<'_, Inner>, max: usize) -> Result<Option<Batch>> {
        inner.usable()?;
        if inner.is_telling() {
            return Ok(None);
        }
        if let Some(error) = inner.raised.take() {
            return Err(error);
        }
        if !inner.revoked.is_empty() {
            return Err(inner.tell_revoked());
        }
        if !inner.rebalances.is_empty() {
            return Ok(None);
        }
        let mut slices = Vec::new();
        let mut left = max;
        while let Some(slice) = inner.take_slice(left) {
            left -= slice.records.len();
            slices.push(slice);
        }
        if slices.is_empty() {
            return Ok(None);
        }
        let batch = Batch::new(self.identity, inner.member.clone(), slices);
        if inner.proof == Proof::Polls {
            inner.outstanding = batch.claims();
        }
        inner.grant_room(self.max_buffered);
        Ok(Some(batch))
    }

    /// Takes back what a poll took and nobody saw: the next poll returns it again. What isn't ours any more is dropped.
    pub(crate) fn give_back(&self, batch: &Batch) {
        let mut inner = self.lock();
        for (partition, claim) in batch.claims() {
            if inner.outstanding.get(&partition) == Some(&claim) {
                inner.outstanding.remove(&partition);
            }
            if inner.handed.as_ref().is_some_and(|handed| (&handed.0, &handed.1) == (&partition, &claim)) {
                inner.handed = None;
            }
        }
        for slice in batch.slices().iter().rev() {
            inner.put_slice(slice);
        }
        drop(inner);
        self.announce();
    }

    /// The next batch for an iterator over batches: a rebalance is a boundary, not an error.
    pub(crate) fn next_batch(&self, max: usize) -> Result<Iteration<Batch>> {
        let mut inner = self.lock();
        inner.pass_boundary();
        match self.take_under(inner, max) {
            Ok(Some(batch)) => Ok(Iteration::Item(batch)),
            Ok(None) => Ok(Iteration::Wait),
            Err(error) => step_end(error),
        }
    }

    /// The next record for an iterator over records. Asking for it proves the one before. What comes behind it stays in the
    /// queue: the position is never beyond what was given out.
    pub(crate) fn next_record(&self) -> Result<Iteration<Record>> {
        let mut inner = self.lock();
        if let Err(error) = inner.usable() {
            return step_end(error);
        }
        if inner.handlers {
            return Err(handled_by_handlers());
        }
        if inner.polling {
            return Err(overlapping());
        }
        inner.activity.last = Instant::now();
        let handed = inner.handed.take();
        inner.prove(handed);
        let outstanding = std::mem::take(&mut inner.outstanding);
        inner.prove(outstanding);
        inner.pass_boundary();
        if inner.is_telling() {
            return Ok(Iteration::Wait);
        }
        if let Some(error) = inner.raised.take() {
            return Err(error);
        }
        if !inner.rebalances.is_empty() {
            return Ok(Iteration::Wait);
        }
        let Some(slice) = inner.take_slice(1) else { return Ok(Iteration::Wait) };
        if inner.proof == Proof::Polls {
            inner.handed = Some((slice.partition.clone(), (slice.fence, slice.next_offset())));
        }
        inner.grant_room(self.max_buffered);
        Ok(Iteration::Item(Record::new(self.identity, slice)))
    }
}

impl Inner {
    /// Whether a poll has something to raise.
    pub(super) fn has_to_raise(&self) -> bool {
        self.raised.is_some() || !self.revoked.is_empty()
    }

    /// Whether somebody has to hear first of what was revoked.
    fn is_telling(&self) -> bool {
        let front = self.rebalances.front();
        front.is_some_and(|front| matches!(front, Rebalance::Revoked(_)) || !self.has_to_raise())
    }

    /// For an iteration a rebalance is a boundary, and nothing that is raised.
    fn pass_boundary(&mut self) {
        self.revoked.clear();
    }

    fn prove(&mut self, claims: impl IntoIterator<Item = (TopicPartition, (Fence, u64))>) {
        for (partition, (fence, next)) in claims {
            if let Some(owned) = self.partitions.get_mut(&partition).filter(|owned| owned.fence == fence) {
                owned.processed = Some(owned.processed.map_or(next, |known| known.max(next)));
            }
        }
    }
}

fn overlapping() -> Error {
    let message = "another poll of this consumer is in progress: with enable_auto_commit each poll says that the records \
                   before it are processed, so polls can't overlap. Poll from one thread, or set enable_auto_commit to false";
    Error::new(ErrorKind::InvalidState, message)
}

fn handled_by_handlers() -> Error {
    let message = "handlers take this consumer's records already: they can't be polled or iterated over beside a run, and one \
                   run has to end before another begins";
    Error::new(ErrorKind::InvalidState, message)
}

/// Iteration ends without an error where the consumer was closed, and with it where it failed.
fn step_end<T>(error: Error) -> Result<Iteration<T>> {
    if error.kind() == ErrorKind::Closed { Ok(Iteration::End) } else { Err(error) }
}

/// Somebody who waits for records.
pub(crate) struct Polling {
    delivery: Arc<Delivery>,
    /// Nobody else may poll meanwhile.
    exclusive: bool,
}

impl Drop for Polling {
    fn drop(&mut self) {
        let mut inner = self.delivery.lock();
        if self.exclusive {
            inner.polling = false;
        }
        inner.activity.leave();
    }
}
