//! The queue of ready batches with the fences and positions that guard it: the only thing that the engine shares with the
//! threads that poll. Everything here is one short lock; nothing waits while holding it.
//!
//! Here is what the engine and its readers do to it; what applications do is in `taking` (polls and iterators), `claims`
//! (what may be committed) and `moving` (seek, pause, resume); `waking` tells those who wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cursus_wire::{GroupMetadata, RecordBatch, Topic};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Duration, Instant};

mod acks;
mod claims;
mod moving;
mod room;
mod taking;
mod waking;

pub(crate) use room::Room;
pub(crate) use taking::Polling;
pub use waking::{Changed, WakeUp};

use crate::batch::{Fence, Frame, Slice};
use crate::error::{Error, Result};
use crate::types::{Rebalance, State, TopicPartition, listed};
use acks::Acks;
use waking::Wakes;

/// The fence or the turn under which something was done has ended: whoever did it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stale;

/// What proves that a record is processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The next poll, or asking an iterator for the next record: auto-commit.
    Polls,
    /// Only what the application says: its commits and acknowledgements.
    Words,
}

/// The shared queue.
pub(crate) struct Delivery {
    inner: Mutex<Inner>,
    /// Wakes polls: something is ready, or the state changed.
    ready: Arc<Notify>,
    /// How many wake-ups are armed: most consumers have none, and pay for a look at this alone.
    armed: AtomicUsize,
    /// Wakes readers whose partition is paused: it no longer is, or they have to go.
    resumed: Notify,
    /// This consumer's identity: batches carry it, so that another consumer's are recognised.
    pub(crate) identity: u64,
    /// The topic it reads.
    topic: Topic,
    held: Arc<AtomicU64>,
    max_buffered: u64,
}

struct Inner {
    state: State,
    /// The fence given last. It counts up by one per partition installed.
    last_fence: u64,
    local_generation: u64,
    /// Who this is in its group, under the assignment that is installed.
    member: Option<Arc<GroupMetadata>>,
    /// Whether it was a group that assigned them, which takes them away again by itself.
    grouped: bool,
    partitions: BTreeMap<TopicPartition, Kept>,
    queue: VecDeque<Slice>,
    /// Partitions whose fence ended and of which no poll has told yet.
    revoked: BTreeSet<TopicPartition>,
    /// What the next poll raises, once.
    raised: Option<Error>,
    fatal: Option<Error>,
    proof: Proof,
    /// Whether records are acknowledged one by one: then only that says what is processed.
    acking: bool,
    /// Handlers run, and nobody else takes records.
    handlers: bool,
    polling: bool,
    activity: Activity,
    wakes: Wakes,
    /// What happened to the assignment, for those who listen; nothing is delivered before they have heard.
    rebalances: VecDeque<Rebalance>,
    listening: bool,
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

/// Signs of life of the application, for `max_poll_interval_ms`.
struct Activity {
    last: Instant,
    /// Polls, iterators and armed wake-ups that wait for records now. While there is one, the interval doesn't run.
    waiting: u32,
    /// Handlers that work now. Theirs is the interval then, whatever polls for them.
    handling: u32,
}

impl Activity {
    /// Somebody who waited for records no longer does.
    fn leave(&mut self) {
        self.waiting -= 1;
        if self.handling == 0 {
            self.last = Instant::now();
        }
    }
}

/// What the delivery itself counts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) records: u64,
    pub(crate) dropped: u64,
    pub(crate) skipped: u64,
}

/// A partition that is this consumer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) fence: Fence,
    /// Grows whenever reading has to begin anew. What is fetched under an old turn is void.
    pub(crate) turn: u64,
    /// Grows whenever the position is moved by other than reading.
    pub(crate) placed: u64,
    /// The next offset that poll returns.
    pub(crate) position: u64,
    /// The next offset to fetch: behind what is queued.
    pub(crate) fetched: u64,
    pub(crate) committed: Option<u64>,
    /// The offset up to which records are proven processed.
    pub(crate) processed: Option<u64>,
    /// The offset behind what was returned since the position was last moved.
    pub(crate) returned: Option<u64>,
    pub(crate) buffered: u64,
    /// The application wants nothing of it for now.
    pub(crate) paused: bool,
    /// Its handler has enough for now.
    pub(crate) throttled: bool,
}

/// The same with what nobody outside needs to see.
#[derive(Debug)]
struct Kept {
    owned: Owned,
    /// What was fetched of it and is kept back while it is paused or throttled.
    parked: VecDeque<Slice>,
    /// Some of that was let go, since others needed the room.
    dropped: bool,
    acks: Acks,
}

impl std::ops::Deref for Kept {
    type Target = Owned;
    fn deref(&self) -> &Owned {
        &self.owned
    }
}

impl std::ops::DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut Owned {
        &mut self.owned
    }
}

/// Where a partition of a new assignment is read on, and what is committed of it, if anything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) position: u64,
    pub(crate) committed: Option<u64>,
}

impl Delivery {
    pub(crate) fn new(identity: u64, topic: Topic, max_buffered: u64, auto_commit: bool) -> Self {
        Self {
            inner: Mutex::new(Inner {
                state: State::New,
                last_fence: 0,
                local_generation: 0,
                member: None,
                grouped: false,
                partitions: BTreeMap::new(),
                queue: VecDeque::new(),
                revoked: BTreeSet::new(),
                raised: None,
                fatal: None,
                proof: if auto_commit { Proof::Polls } else { Proof::Words },
                acking: false,
                handlers: false,
                polling: false,
                activity: Activity { last: Instant::now(), waiting: 0, handling: 0 },
                wakes: Wakes::default(),
                rebalances: VecDeque::new(),
                listening: false,
                outstanding: BTreeMap::new(),
                handed: None,
                buffered: 0,
                reserved: 0,
                waiting: VecDeque::new(),
                counts: Counts::default(),
            }),
            ready: Arc::default(),
            armed: AtomicUsize::new(0),
            resumed: Notify::new(),
            identity,
            topic,
            held: Arc::default(),
            max_buffered,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics under this lock; if something did, going on is better than every poll panicking too.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> State {
        self.lock().state
    }

    pub(crate) fn fatal(&self) -> Option<Error> {
        self.lock().fatal.clone()
    }

    pub(crate) fn partitions(&self) -> BTreeMap<TopicPartition, Owned> {
        self.lock().partitions.iter().map(|(partition, kept)| (partition.clone(), kept.owned)).collect()
    }

    pub(crate) fn partition(&self, partition: &TopicPartition) -> Option<Owned> {
        self.lock().partitions.get(partition).map(|kept| kept.owned)
    }

    /// Who this is in its group, while it has an assignment.
    pub(crate) fn member(&self) -> Option<Arc<GroupMetadata>> {
        self.lock().member.clone()
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
        self.announce();
    }

    /// Remembers the error that closes the consumer. The first one counts.
    pub(crate) fn fail(&self, error: Error) {
        self.lock().fatal.get_or_insert(error);
        self.announce();
    }

    /// Ends every fence: nothing read under them is delivered or committed any more. Returns what was proven processed
    /// beyond what is committed, for the engine to commit under the next generation where the partition is still ours.
    pub(crate) fn end_fences(&self) -> BTreeMap<TopicPartition, u64> {
        self.end_fences_telling(|inner, ended| inner.revoked.extend(ended.keys().cloned()))
    }

    /// The same where the application itself has asked for another assignment: there is nothing to tell.
    pub(crate) fn end_fences_quietly(&self) {
        self.end_fences_telling(|_, _| ());
    }

    /// The same where the member has left because nobody polled. The next poll raises this instead of a rebalance.
    pub(crate) fn expel(&self, error: impl FnOnce(Vec<TopicPartition>) -> Error) {
        self.end_fences_telling(|inner, ended| {
            // What an earlier rebalance took, and nobody was told of, is told with it.
            let mut stale = std::mem::take(&mut inner.revoked);
            stale.extend(ended.keys().cloned());
            inner.raised = Some(error(stale.into_iter().collect()));
        });
    }

    fn end_fences_telling(
        &self,
        tell: impl FnOnce(&mut Inner, &BTreeMap<TopicPartition, Kept>),
    ) -> BTreeMap<TopicPartition, u64> {
        let mut inner = self.lock();
        let ended = std::mem::take(&mut inner.partitions);
        inner.queue.clear();
        inner.buffered = 0;
        inner.outstanding.clear();
        inner.handed = None;
        inner.member = None;
        tell(&mut inner, &ended);
        inner.note_revoked(&ended);
        // Under the same lock: nobody may see a running consumer that owns nothing of what it was running with.
        if inner.state == State::Running {
            inner.state = State::Rebalancing;
        }
        inner.grant_room(self.max_buffered);
        drop(inner);
        self.announce();
        self.resumed.notify_waiters();
        ended.into_iter().filter_map(|(partition, owned)| Some((partition, owned.uncommitted()?))).collect()
    }

    /// Installs an assignment: each partition with where to read on and what is committed. Its fences are new, nothing of it
    /// is paused.
    pub(crate) fn install(&self, starts: &BTreeMap<TopicPartition, Start>, member: Option<GroupMetadata>) {
        let mut inner = self.lock();
        if matches!(inner.state, State::Closing | State::Closed) {
            return;
        }
        inner.local_generation += 1;
        inner.grouped = member.is_some();
        inner.member = member.map(Arc::new);
        inner.partitions.clear();
        if inner.local_generation == 1 {
            // The time in which to poll runs from the first assignment.
            inner.activity.last = Instant::now();
        }
        for (partition, start) in starts {
            inner.last_fence += 1;
            let owned = Owned {
                fence: Fence(inner.last_fence),
                turn: 0,
                placed: 0,
                position: start.position,
                fetched: start.position,
                committed: start.committed,
                processed: None,
                returned: None,
                buffered: 0,
                paused: false,
                throttled: false,
            };
            let acks = Acks::at(start.position);
            let kept = Kept { owned, parked: VecDeque::new(), dropped: false, acks };
            inner.partitions.insert(partition.clone(), kept);
        }
        if inner.listening {
            let assigned = starts.keys().cloned().collect();
            inner.rebalances.push_back(Rebalance::Assigned(assigned));
        }
        inner.state = State::Running;
        drop(inner);
        self.announce();
    }

    /// Closes the queue: polls end with "closed", nothing is delivered any more. What was delivered can still be flushed.
    pub(crate) fn seal(&self) {
        let mut inner = self.lock();
        if inner.state != State::Closed {
            inner.state = State::Closing;
        }
        inner.queue.clear();
        for kept in inner.partitions.values_mut() {
            kept.parked.clear();
            kept.buffered = 0;
        }
        inner.buffered = 0;
        inner.waiting.clear();
        drop(inner);
        self.announce();
        self.resumed.notify_waiters();
    }

    /// Forgets everything that belonged to the assignment, once nothing runs any more.
    pub(crate) fn clear(&self) {
        let mut inner = self.lock();
        let ended = std::mem::take(&mut inner.partitions);
        inner.note_revoked(&ended);
        inner.member = None;
        inner.outstanding.clear();
        inner.handed = None;
    }

    /// What is proven processed and not committed yet, as claims for an automatic commit.
    pub(crate) fn uncommitted(&self) -> BTreeMap<TopicPartition, (Fence, u64)> {
        let inner = self.lock();
        let claim = |(partition, owned): (&TopicPartition, &Kept)| {
            Some((partition.clone(), (owned.fence, owned.uncommitted()?)))
        };
        inner.partitions.iter().filter_map(claim).collect()
    }

    /// The broker has taken a commit, or has told what is committed. It never falls.
    pub(crate) fn set_committed(&self, partition: &TopicPartition, fence: Fence, offset: u64) {
        if let Some(owned) = self.lock().partitions.get_mut(partition).filter(|owned| owned.fence == fence) {
            owned.committed = Some(owned.committed.map_or(offset, |known| known.max(offset)));
            owned.acks.advance(offset);
        }
    }

    /// The reset policy moves a partition whose position the broker can't serve.
    pub(crate) fn reset_position(&self, partition: &TopicPartition, fence: Fence, turn: u64, offset: u64) {
        let mut inner = self.lock();
        let owned = inner.partitions.get_mut(partition);
        let Some(owned) = owned.filter(|owned| (owned.fence, owned.turn) == (fence, turn)) else { return };
        if offset >= owned.fetched {
            // What was fetched before is good, and comes first; so is what was handed out, for commits and for handlers.
            owned.fetched = offset;
            if owned.buffered == 0 {
                owned.position = offset;
            }
        } else {
            // Handlers are given again what they have not finished.
            let open = owned.acks.first_open();
            let offset = if inner.handlers { offset.min(open) } else { offset };
            inner.place(partition, offset);
        }
        inner.grant_room(self.max_buffered);
    }

    /// Whether this was neither taken away nor left behind by a seek.
    pub(crate) fn is_wanted(&self, slice: &Slice) -> bool {
        let inner = self.lock();
        let owned = inner.partitions.get(&slice.partition);
        owned.is_some_and(|owned| (owned.fence, owned.placed) == (slice.fence, slice.placed))
    }

    /// For how long the application has given no sign of life; nothing while somebody waits for records.
    pub(crate) fn silent_for(&self) -> Option<Duration> {
        let inner = self.lock();
        let activity = &inner.activity;
        let attended = activity.waiting > 0 && activity.handling == 0;
        (inner.state == State::Running && !attended).then(|| activity.last.elapsed())
    }

    // ---- What partition readers do --------------------------------------------------------------------------------------

    /// Appends what a reader fetched. Records below the position are dropped, whoever sent them. Returns the next offset
    /// to fetch.
    pub(crate) fn push(
        &self,
        partition: &TopicPartition,
        fence: Fence,
        turn: u64,
        batch: RecordBatch,
        room: Room,
    ) -> Result<u64, Stale> {
        let mut inner = self.lock();
        // The reservation becomes the real size under the same lock.
        inner.reserved -= room.disarm();
        let result = inner.push(partition, fence, turn, batch, &self.held);
        inner.grant_room(self.max_buffered);
        drop(inner);
        if matches!(result, Ok((_, true))) {
            self.announce();
        }
        result.map(|(next, _)| next)
    }
}

impl Owned {
    /// Whether nothing of it is delivered for now.
    fn is_held(&self) -> bool {
        self.paused || self.throttled
    }

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

    fn note_revoked(&mut self, ended: &BTreeMap<TopicPartition, Kept>) {
        if self.listening && !ended.is_empty() {
            self.rebalances.push_back(Rebalance::Revoked(ended.keys().cloned().collect()));
        }
    }

    fn tell_revoked(&mut self) -> Error {
        let stale: Vec<_> = std::mem::take(&mut self.revoked).into_iter().collect();
        let message = format!(
            "a rebalance ended the assignment of {}: what was read from there can't be committed any more. Poll to go on",
            listed(&stale)
        );
        Error::rebalancing(message, stale, self.partitions.keys().cloned().collect())
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
            owned.returned = Some(owned.position);
            if self.proof == Proof::Words {
                let batch = &slice.frame.batch;
                let (first, last) = (batch.offset(slice.records.start), slice.next_offset() - 1);
                let whole = last - first + 1 == count as u64;
                let inside = if whole { 0..0 } else { slice.records.clone() };
                owned.acks.deliver(first, last, inside.map(|i| batch.offset(i)));
            }
        }
        Some(slice)
    }

    /// The opposite, unless the slice isn't ours any more.
    fn put_slice(&mut self, slice: &Slice) {
        let owned = self.partitions.get_mut(&slice.partition);
        let Some(owned) = owned.filter(|owned| (owned.fence, owned.placed) == (slice.fence, slice.placed)) else {
            return;
        };
        let bytes = share(slice);
        // Where another thread has taken what lies behind, the position falls all the same: nothing may be skipped.
        owned.position = slice.frame.batch.offset(slice.records.start);
        owned.buffered += bytes;
        self.buffered += bytes;
        self.counts.records -= slice.records.len() as u64;
        owned.returned = Some(owned.position);
        let queue = if owned.is_held() { &mut owned.parked } else { &mut self.queue };
        queue.push_front(slice.clone());
    }

    fn push(
        &mut self,
        partition: &TopicPartition,
        fence: Fence,
        turn: u64,
        batch: RecordBatch,
        held: &Arc<AtomicU64>,
    ) -> Result<(u64, bool), Stale> {
        if matches!(self.state, State::Closing | State::Closed) {
            return Err(Stale);
        }
        let owned = self.partitions.get_mut(partition);
        let owned = owned.filter(|owned| (owned.fence, owned.turn) == (fence, turn)).ok_or(Stale)?;
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
            placed: owned.placed,
            frame: Arc::new(Frame::new(batch, Arc::clone(held))),
            records,
        };
        let bytes = share(&slice);
        owned.buffered += bytes;
        self.buffered += bytes;
        let ready = !owned.is_held();
        if ready {
            self.queue.push_back(slice);
        } else {
            owned.parked.push_back(slice);
        }
        Ok((next, ready))
    }
}

/// A slice's share of its frame's bytes. The shares of the slices that a frame is cut into add up to the frame.
fn share(slice: &Slice) -> u64 {
    let (bytes, all) = (slice.frame.bytes(), slice.frame.batch.len() as u64);
    let behind = |index: usize| bytes * (all - index as u64) / all;
    behind(slice.records.start) - behind(slice.records.end)
}

#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
