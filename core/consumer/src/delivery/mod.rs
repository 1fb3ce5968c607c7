//! The queue of ready batches with the fences and positions that guard it: the only thing that the engine shares with the
//! threads that poll. Everything here is one short lock; nothing waits while holding it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cursus_wire::{RecordBatch, Topic};
use tokio::sync::{Notify, oneshot};

mod room;

pub(crate) use room::Room;

use crate::batch::{Batch, Fence, Frame, Record, Slice};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{State, TopicPartition, listed};

/// The fence under which something was done has ended: whoever did it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stale;

/// The shared queue.
pub(crate) struct Delivery {
    inner: Mutex<Inner>,
    /// Wakes polls: something is ready, or the state changed.
    ready: Notify,
    /// This consumer's identity: batches carry it, so that another consumer's are recognised.
    pub(crate) identity: u64,
    /// The topic it reads.
    topic: Topic,
    held: Arc<AtomicU64>,
    max_buffered: u64,
    auto_commit: bool,
}

struct Inner {
    state: State,
    /// The fence given last. It counts up by one per partition installed.
    last_fence: u64,
    local_generation: u64,
    partitions: BTreeMap<TopicPartition, Owned>,
    queue: VecDeque<Slice>,
    /// Partitions whose fence ended and of which no poll has told yet.
    revoked: BTreeSet<TopicPartition>,
    fatal: Option<Error>,
    polling: bool,
    /// What the last poll returned; the next one proves it processed.
    outstanding: BTreeMap<TopicPartition, (Fence, u64)>,
    /// The record that an iterator gave last; asking it for the next one proves this one processed.
    handed: Option<(TopicPartition, (Fence, u64))>,
    buffered: u64,
    reserved: u64,
    /// Readers that wait for room, first come first served.
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
    counts: Counts,
}

/// What the delivery itself counts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) records: u64,
    pub(crate) dropped: u64,
    pub(crate) skipped: u64,
}

/// A partition that is this consumer's.
#[derive(Debug, Clone)]
pub(crate) struct Owned {
    pub(crate) fence: Fence,
    /// The next offset that poll returns.
    pub(crate) position: u64,
    /// The next offset to fetch: behind what is queued.
    pub(crate) fetched: u64,
    pub(crate) committed: Option<u64>,
    /// The offset up to which records are proven processed.
    pub(crate) processed: Option<u64>,
    pub(crate) buffered: u64,
}

/// What one step of an iterator found.
pub(crate) enum Step<T> {
    Item(T),
    Wait,
    End,
}

impl Delivery {
    pub(crate) fn new(identity: u64, topic: Topic, max_buffered: u64, auto_commit: bool) -> Self {
        Self {
            inner: Mutex::new(Inner {
                state: State::New,
                last_fence: 0,
                local_generation: 0,
                partitions: BTreeMap::new(),
                queue: VecDeque::new(),
                revoked: BTreeSet::new(),
                fatal: None,
                polling: false,
                outstanding: BTreeMap::new(),
                handed: None,
                buffered: 0,
                reserved: 0,
                waiting: VecDeque::new(),
                counts: Counts::default(),
            }),
            ready: Notify::new(),
            identity,
            topic,
            held: Arc::default(),
            max_buffered,
            auto_commit,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics under this lock; if something did, going on is better than every poll panicking too.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- What applications do -------------------------------------------------------------------------------------------

    /// A future that ends at the next change. Made before looking, so that no change between the two is missed.
    pub(crate) fn changed(&self) -> std::pin::Pin<Box<tokio::sync::futures::Notified<'_>>> {
        let mut changed = Box::pin(self.ready.notified());
        changed.as_mut().enable();
        changed
    }

    /// A poll begins: what the one before returned is now processed.
    pub(crate) fn begin_poll(&self) -> Result<Polling<'_>> {
        let mut inner = self.lock();
        inner.usable()?;
        if self.auto_commit {
            if inner.polling {
                return Err(overlapping());
            }
            inner.polling = true;
        }
        // An iteration that was left behind may have been left for a reason: its last record proves nothing.
        inner.handed = None;
        let outstanding = std::mem::take(&mut inner.outstanding);
        inner.prove(outstanding);
        Ok(Polling(self))
    }

    /// Takes what is ready, at most `max` records. Nothing where there is nothing yet.
    pub(crate) fn take(&self, max: usize) -> Result<Option<Batch>> {
        self.take_under(self.lock(), max)
    }

    fn take_under(&self, mut inner: MutexGuard<'_, Inner>, max: usize) -> Result<Option<Batch>> {
        inner.usable()?;
        if !inner.revoked.is_empty() {
            return Err(inner.tell_revoked());
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
        let batch = Batch::new(self.identity, slices);
        inner.outstanding = batch.claims();
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
        self.ready.notify_waiters();
    }

    /// The next batch for an iterator over batches: a rebalance is a boundary, not an error.
    pub(crate) fn next_batch(&self, max: usize) -> Result<Step<Batch>> {
        let mut inner = self.lock();
        inner.revoked.clear();
        match self.take_under(inner, max) {
            Ok(Some(batch)) => Ok(Step::Item(batch)),
            Ok(None) => Ok(Step::Wait),
            Err(error) => step_end(error),
        }
    }

    /// The next record for an iterator over records. Asking for it proves the one before. What comes behind it stays in the
    /// queue: the position is never beyond what was given out.
    pub(crate) fn next_record(&self) -> Result<Step<Record>> {
        let mut inner = self.lock();
        if let Err(error) = inner.usable() {
            return step_end(error);
        }
        if inner.polling {
            return Err(overlapping());
        }
        inner.revoked.clear();
        let handed = inner.handed.take();
        inner.prove(handed);
        let outstanding = std::mem::take(&mut inner.outstanding);
        inner.prove(outstanding);
        let Some(slice) = inner.take_slice(1) else { return Ok(Step::Wait) };
        inner.handed = Some((slice.partition.clone(), (slice.fence, slice.next_offset())));
        inner.grant_room(self.max_buffered);
        Ok(Step::Item(Record::new(self.identity, slice)))
    }

    /// Checks that everything in `claims` may still be committed: that its fences are the current ones.
    pub(crate) fn check_claims(&self, claims: &BTreeMap<TopicPartition, (Fence, u64)>) -> Result<()> {
        self.lock().check_claims(claims)
    }

    /// Bare offsets as claims under the current fences.
    pub(crate) fn claim_offsets(
        &self,
        offsets: &BTreeMap<TopicPartition, u64>,
    ) -> Result<BTreeMap<TopicPartition, (Fence, u64)>> {
        let inner = self.lock();
        inner.usable()?;
        let mut claims = BTreeMap::new();
        if let Some(other) = offsets.keys().find(|partition| partition.topic != self.topic) {
            let message = format!("{other} can't be committed: this consumer reads topic {}", self.topic);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        for (partition, offset) in offsets {
            let Some(owned) = inner.partitions.get(partition) else {
                let stale = offsets.keys().filter(|p| !inner.partitions.contains_key(*p)).cloned().collect::<Vec<_>>();
                let message = format!(
                    "{} can't be committed: not assigned to this consumer now. It owns {}",
                    listed(&stale),
                    listed(inner.partitions.keys())
                );
                let owned = offsets.keys().filter(|p| inner.partitions.contains_key(*p)).cloned().collect();
                return Err(Error::rebalancing(message, stale, owned));
            };
            if *offset > owned.position {
                let message =
                    format!("{partition} can't be committed at {offset}: it was read only up to {}", owned.position);
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            claims.insert(partition.clone(), (owned.fence, *offset));
        }
        Ok(claims)
    }

    /// All that poll has returned, as claims. An error where some of it was revoked and no poll has told yet.
    pub(crate) fn claim_all(&self) -> Result<BTreeMap<TopicPartition, (Fence, u64)>> {
        let inner = self.lock();
        inner.usable()?;
        // Before the first assignment there is nothing that could have ended.
        let rebalancing = inner.state == State::Rebalancing && inner.local_generation > 0;
        if !inner.revoked.is_empty() || rebalancing {
            let stale: Vec<_> = inner.revoked.iter().cloned().collect();
            let what = if stale.is_empty() {
                "a rebalance is under way, and nothing is assigned now".to_owned()
            } else {
                format!("a rebalance ended the assignment of {}", listed(&stale))
            };
            let message = format!("nothing was committed: {what}. Poll to go on");
            return Err(Error::rebalancing(message, stale, Vec::new()));
        }
        Ok(inner
            .partitions
            .iter()
            .filter(|(_, owned)| owned.committed.unwrap_or(0) < owned.position)
            .map(|(partition, owned)| (partition.clone(), (owned.fence, owned.position)))
            .collect())
    }

    /// Whether a fence is still the partition's current one.
    pub(crate) fn is_current(&self, partition: &TopicPartition, fence: Fence) -> bool {
        self.lock().partitions.get(partition).is_some_and(|owned| owned.fence == fence)
    }

    pub(crate) fn state(&self) -> State {
        self.lock().state
    }

    pub(crate) fn fatal(&self) -> Option<Error> {
        self.lock().fatal.clone()
    }

    pub(crate) fn partitions(&self) -> BTreeMap<TopicPartition, Owned> {
        self.lock().partitions.clone()
    }

    pub(crate) fn partition(&self, partition: &TopicPartition) -> Option<Owned> {
        self.lock().partitions.get(partition).cloned()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }

    pub(crate) fn local_generation(&self) -> u64 {
        self.lock().local_generation
    }

    pub(crate) fn buffered(&self) -> u64 {
        self.lock().buffered
    }

    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    // ---- What the engine does -------------------------------------------------------------------------------------------

    /// Moves to a state, along the lifecycle only: closing and closed are never left for another.
    pub(crate) fn enter(&self, state: State) {
        let mut inner = self.lock();
        let allowed = match (inner.state, state) {
            (State::Closed, _) => false,
            (State::Closing, next) => next == State::Closed,
            _ => true,
        };
        if allowed && inner.state != state {
            tracing::debug!(from = %inner.state, to = %state, "state");
            inner.state = state;
        }
        drop(inner);
        self.ready.notify_waiters();
    }

    /// Remembers the error that closes the consumer. The first one counts.
    pub(crate) fn fail(&self, error: Error) {
        self.lock().fatal.get_or_insert(error);
        self.ready.notify_waiters();
    }

    /// Ends every fence: nothing read under them is delivered or committed any more. Returns what was proven processed
    /// beyond what is committed, for the engine to commit under the next generation where the partition is still ours.
    pub(crate) fn end_fences(&self) -> BTreeMap<TopicPartition, u64> {
        let mut inner = self.lock();
        let ended = std::mem::take(&mut inner.partitions);
        inner.queue.clear();
        inner.buffered = 0;
        inner.outstanding.clear();
        inner.handed = None;
        inner.revoked.extend(ended.keys().cloned());
        // Under the same lock: nobody may see a running consumer that owns nothing of what it was running with.
        if inner.state == State::Running {
            inner.state = State::Rebalancing;
        }
        inner.grant_room(self.max_buffered);
        drop(inner);
        self.ready.notify_waiters();
        let carried = ended.into_iter().filter_map(|(partition, owned)| Some((partition, owned.uncommitted()?)));
        if self.auto_commit { carried.collect() } else { BTreeMap::new() }
    }

    /// Installs an assignment: each partition with where to read on and what is committed. Its fences are new.
    pub(crate) fn install(&self, positions: &BTreeMap<TopicPartition, (u64, Option<u64>)>) {
        let mut inner = self.lock();
        if matches!(inner.state, State::Closing | State::Closed) {
            return;
        }
        inner.local_generation += 1;
        inner.partitions.clear();
        for (partition, (position, committed)) in positions {
            inner.last_fence += 1;
            let owned = Owned {
                fence: Fence(inner.last_fence),
                position: *position,
                fetched: *position,
                committed: *committed,
                processed: None,
                buffered: 0,
            };
            inner.partitions.insert(partition.clone(), owned);
        }
        inner.state = State::Running;
        drop(inner);
        self.ready.notify_waiters();
    }

    /// Closes the queue: polls end with "closed", nothing is delivered any more. What was delivered can still be flushed.
    pub(crate) fn seal(&self) {
        let mut inner = self.lock();
        if inner.state != State::Closed {
            inner.state = State::Closing;
        }
        inner.queue.clear();
        inner.buffered = 0;
        inner.waiting.clear();
        drop(inner);
        self.ready.notify_waiters();
    }

    /// Forgets everything that belonged to the assignment, once nothing runs any more.
    pub(crate) fn clear(&self) {
        let mut inner = self.lock();
        inner.partitions.clear();
        inner.outstanding.clear();
        inner.handed = None;
    }

    /// What is proven processed and not committed yet, as claims for an automatic commit.
    pub(crate) fn uncommitted(&self) -> BTreeMap<TopicPartition, (Fence, u64)> {
        let inner = self.lock();
        let claim = |(partition, owned): (&TopicPartition, &Owned)| {
            Some((partition.clone(), (owned.fence, owned.uncommitted()?)))
        };
        inner.partitions.iter().filter_map(claim).collect()
    }

    /// The broker has taken a commit, or has told what is committed. It never falls.
    pub(crate) fn set_committed(&self, partition: &TopicPartition, fence: Fence, offset: u64) {
        if let Some(owned) = self.lock().partitions.get_mut(partition).filter(|owned| owned.fence == fence) {
            owned.committed = Some(owned.committed.map_or(offset, |known| known.max(offset)));
        }
    }

    /// The reset policy moves a partition whose position is below what the broker keeps.
    pub(crate) fn reset_position(&self, partition: &TopicPartition, fence: Fence, offset: u64) {
        if let Some(owned) = self.lock().partitions.get_mut(partition).filter(|owned| owned.fence == fence) {
            owned.fetched = owned.fetched.max(offset);
            if owned.buffered == 0 {
                owned.position = owned.position.max(offset);
            }
        }
    }

    // ---- What partition readers do --------------------------------------------------------------------------------------

    /// Appends what a reader fetched. Records below the position are dropped, whoever sent them. Returns the next offset
    /// to fetch.
    pub(crate) fn push(
        &self,
        partition: &TopicPartition,
        fence: Fence,
        batch: RecordBatch,
        room: Room,
    ) -> Result<u64, Stale> {
        let mut inner = self.lock();
        // The reservation becomes the real size under the same lock.
        inner.reserved -= room.disarm();
        let result = inner.push(partition, fence, batch, &self.held);
        inner.grant_room(self.max_buffered);
        drop(inner);
        if matches!(result, Ok((_, true))) {
            self.ready.notify_waiters();
        }
        result.map(|(next, _)| next)
    }
}

fn overlapping() -> Error {
    let message = "another poll of this consumer is in progress: with enable_auto_commit each poll says that the records \
                   before it are processed, so polls can't overlap. Poll from one thread, or set enable_auto_commit to false";
    Error::new(ErrorKind::InvalidState, message)
}

/// Iteration ends without an error where the consumer was closed, and with it where it failed.
fn step_end<T>(error: Error) -> Result<Step<T>> {
    if error.kind() == ErrorKind::Closed { Ok(Step::End) } else { Err(error) }
}

impl Owned {
    fn uncommitted(&self) -> Option<u64> {
        self.processed.filter(|processed| self.committed.unwrap_or(0) < *processed)
    }
}

impl Inner {
    /// An error where no call makes sense any more.
    fn usable(&self) -> Result<()> {
        if let Some(fatal) = &self.fatal {
            return Err(fatal.clone());
        }
        if matches!(self.state, State::Closing | State::Closed) { Err(Error::closed()) } else { Ok(()) }
    }

    fn tell_revoked(&mut self) -> Error {
        let stale: Vec<_> = std::mem::take(&mut self.revoked).into_iter().collect();
        let message = format!(
            "a rebalance ended the assignment of {}: what was read from there can't be committed any more. Poll to go on",
            listed(&stale)
        );
        Error::rebalancing(message, stale, self.partitions.keys().cloned().collect())
    }

    fn prove(&mut self, claims: impl IntoIterator<Item = (TopicPartition, (Fence, u64))>) {
        for (partition, (fence, next)) in claims {
            if let Some(owned) = self.partitions.get_mut(&partition).filter(|owned| owned.fence == fence) {
                owned.processed = Some(owned.processed.map_or(next, |known| known.max(next)));
            }
        }
    }

    fn check_claims(&self, claims: &BTreeMap<TopicPartition, (Fence, u64)>) -> Result<()> {
        let current = |partition: &TopicPartition, fence| {
            self.partitions.get(partition).is_some_and(|owned| owned.fence == fence)
        };
        let (mut stale, mut owned) = (Vec::new(), Vec::new());
        for (partition, (fence, _)) in claims {
            if current(partition, *fence) { owned.push(partition.clone()) } else { stale.push(partition.clone()) }
        }
        if stale.is_empty() {
            return Ok(());
        }
        let message = format!(
            "nothing was committed: a rebalance ended the assignment of {} since these records were read. Still owned of them: {}",
            listed(&stale),
            listed(&owned)
        );
        Err(Error::rebalancing(message, stale, owned))
    }

    /// The first records of the queue, at most `max`, all of one frame.
    fn take_slice(&mut self, max: usize) -> Option<Slice> {
        let front = self.queue.front_mut()?;
        let count = front.records.len().min(max);
        if count == 0 {
            return None;
        }
        let mut slice = front.clone();
        slice.records.end = slice.records.start + count;
        front.records.start += count;
        if front.records.is_empty() {
            self.queue.pop_front();
        }
        let bytes = share(&slice);
        self.buffered -= bytes;
        self.counts.records += count as u64;
        if let Some(owned) = self.partitions.get_mut(&slice.partition) {
            owned.buffered -= bytes;
            owned.position = slice.next_offset();
        }
        Some(slice)
    }

    /// The opposite, unless the slice isn't ours any more.
    fn put_slice(&mut self, slice: &Slice) {
        let owned = self.partitions.get_mut(&slice.partition).filter(|owned| owned.fence == slice.fence);
        let Some(owned) = owned else { return };
        let bytes = share(slice);
        // Where another thread has taken what lies behind, the position falls all the same: nothing may be skipped.
        owned.position = slice.frame.batch.offset(slice.records.start);
        owned.buffered += bytes;
        self.buffered += bytes;
        self.counts.records -= slice.records.len() as u64;
        self.queue.push_front(slice.clone());
    }

    fn push(
        &mut self,
        partition: &TopicPartition,
        fence: Fence,
        batch: RecordBatch,
        held: &Arc<AtomicU64>,
    ) -> Result<(u64, bool), Stale> {
        if matches!(self.state, State::Closing | State::Closed) {
            return Err(Stale);
        }
        let owned = self.partitions.get_mut(partition).filter(|owned| owned.fence == fence).ok_or(Stale)?;
        let first = batch.position_of(owned.fetched);
        let records = first..batch.len();
        self.counts.dropped += first as u64;
        if records.is_empty() {
            return Ok((owned.fetched, false));
        }
        let last = batch.offset(records.end - 1);
        self.counts.skipped += (last + 1 - owned.fetched) - records.len() as u64;
        owned.fetched = last + 1;
        let next = owned.fetched;
        let slice = Slice {
            partition: partition.clone(),
            fence,
            frame: Arc::new(Frame::new(batch, Arc::clone(held))),
            records,
        };
        let bytes = share(&slice);
        owned.buffered += bytes;
        self.buffered += bytes;
        self.queue.push_back(slice);
        Ok((next, true))
    }
}

/// A slice's share of its frame's bytes. The shares of the slices that a frame is cut into add up to the frame.
fn share(slice: &Slice) -> u64 {
    let (bytes, all) = (slice.frame.bytes(), slice.frame.batch.len() as u64);
    let behind = |index: usize| bytes * (all - index as u64) / all;
    behind(slice.records.start) - behind(slice.records.end)
}

/// A poll in progress.
pub(crate) struct Polling<'a>(&'a Delivery);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.lock().polling = false;
    }
}

#[cfg(test)]
mod tests;
