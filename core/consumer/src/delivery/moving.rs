//! Seek, pause and resume: what an application does to a partition that it owns. A rebalance forgets all of it.

use super::acks::Acks;
use super::{Delivery, Inner, Kept, Owned};
use crate::batch::Fence;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{State, TopicPartition, listed};

impl Delivery {
    /// Moves a partition to an offset. What was fetched of it is void, and so is what was proven processed beyond there.
    pub(crate) fn seek(&self, partition: &TopicPartition, offset: u64) -> Result<Fence> {
        let mut inner = self.lock();
        inner.owned_or_refuse([partition], "moved")?;
        let fence = inner.partitions[partition].fence;
        inner.place(partition, offset);
        inner.outstanding.remove(partition);
        if inner.handed.as_ref().is_some_and(|(handed, _)| handed == partition) {
            inner.handed = None;
        }
        if let Some(owned) = inner.partitions.get_mut(partition) {
            owned.processed = owned.processed.filter(|processed| *processed <= offset);
        }
        inner.grant_room(self.max_buffered);
        drop(inner);
        self.resumed.notify_waiters();
        Ok(fence)
    }

    /// From now on nothing of these partitions is delivered, and nothing new is asked for. All of them or none.
    pub(crate) fn pause(&self, partitions: &[TopicPartition]) -> Result<()> {
        let mut inner = self.lock();
        inner.owned_or_refuse(partitions, "paused")?;
        for partition in partitions {
            inner.hold(partition, |owned| owned.paused = true);
        }
        // Others may be waiting for the room that these take.
        inner.grant_room(self.max_buffered);
        Ok(())
    }

    /// The same for a handler that has enough, whatever the application says. Where its fence has ended it needs nothing.
    pub(crate) fn throttle(&self, partition: &TopicPartition, fence: Fence, on: bool) {
        let mut inner = self.lock();
        if inner.partitions.get(partition).is_none_or(|owned| owned.fence != fence) {
            return;
        }
        if on {
            inner.hold(partition, |owned| owned.throttled = true);
            inner.grant_room(self.max_buffered);
        } else {
            inner.release(partition, |owned| owned.throttled = false);
            drop(inner);
            self.announce();
            self.resumed.notify_waiters();
        }
    }

    /// The opposite. All of them or none.
    ///
    /// Returns those of which has to be fetched again what was kept back.
    pub(crate) fn resume(&self, partitions: &[TopicPartition]) -> Result<Vec<(TopicPartition, Fence)>> {
        let mut inner = self.lock();
        inner.owned_or_refuse(partitions, "resumed")?;
        for partition in partitions {
            inner.release(partition, |owned| owned.paused = false);
        }
        let dropped = |kept: &mut Kept| std::mem::take(&mut kept.dropped);
        let again = partitions.iter().filter_map(|partition| {
            let kept = inner.partitions.get_mut(partition)?;
            dropped(kept).then(|| (partition.clone(), kept.fence))
        });
        let again = again.collect();
        drop(inner);
        self.announce();
        self.resumed.notify_waiters();
        Ok(again)
    }

    /// Goes back to the first record of each partition that handlers were given and have not handled, with nothing held
    /// back on their account. Returns the partitions that were moved.
    pub(crate) fn rewind(&self) -> Vec<(TopicPartition, Fence)> {
        let mut inner = self.lock();
        let all: Vec<_> = inner.partitions.keys().cloned().collect();
        let mut moved = Vec::new();
        for partition in all {
            inner.release(&partition, |owned| owned.throttled = false);
            let Some(kept) = inner.partitions.get(&partition) else { continue };
            let (fence, open) = (kept.fence, kept.acks.first_open());
            if open < kept.position {
                inner.place(&partition, open);
                moved.push((partition, fence));
            }
        }
        inner.grant_room(self.max_buffered);
        drop(inner);
        self.announce();
        self.resumed.notify_waiters();
        moved
    }

    /// The partitions that are paused.
    pub(crate) fn paused(&self) -> Vec<TopicPartition> {
        let inner = self.lock();
        inner.partitions.iter().filter(|(_, owned)| owned.paused).map(|(partition, _)| partition.clone()).collect()
    }
}

impl Inner {
    /// An error where one of the partitions isn't this consumer's now.
    fn owned_or_refuse<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>, what: &str) -> Result<()> {
        self.usable()?;
        let (owned, missing): (Vec<_>, Vec<_>) =
            partitions.into_iter().cloned().partition(|partition| self.partitions.contains_key(partition));
        if missing.is_empty() {
            return Ok(());
        }
        // Who asks in the moment of a rebalance has done nothing wrong: its next poll tells what happened.
        let under_way = self.grouped && self.state == State::Rebalancing;
        if under_way || missing.iter().any(|partition| self.revoked.contains(partition)) {
            let message =
                format!("{} can't be {what}: a rebalance ended their assignment. Poll to go on", listed(&missing));
            return Err(Error::rebalancing(message, missing, owned));
        }
        let message = format!(
            "{} can't be {what}: not assigned to this consumer now. It owns {}; start() waits for what is on its way",
            listed(&missing),
            listed(self.partitions.keys())
        );
        Err(Error::new(ErrorKind::InvalidState, message))
    }

    /// Keeps back what is fetched of a partition.
    fn hold(&mut self, partition: &TopicPartition, mark: impl FnOnce(&mut Owned)) {
        let Some(kept) = self.partitions.get_mut(partition) else { return };
        let held = kept.is_held();
        mark(kept);
        if held {
            return;
        }
        let (parked, queue) = std::mem::take(&mut self.queue).into_iter().partition(|s| s.partition == *partition);
        self.queue = queue;
        if let Some(kept) = self.partitions.get_mut(partition) {
            kept.parked = parked;
        }
    }

    /// Delivers it again, unless there is another reason to keep it back.
    fn release(&mut self, partition: &TopicPartition, mark: impl FnOnce(&mut Owned)) {
        let Some(kept) = self.partitions.get_mut(partition) else { return };
        mark(kept);
        if kept.is_held() {
            return;
        }
        for slice in std::mem::take(&mut kept.parked).into_iter().rev() {
            self.queue.push_front(slice);
        }
    }

    /// Puts a partition to an offset, with nothing buffered, under a new turn.
    pub(super) fn place(&mut self, partition: &TopicPartition, offset: u64) {
        let Some(owned) = self.partitions.get_mut(partition) else { return };
        owned.turn += 1;
        owned.placed += 1;
        owned.position = offset;
        owned.fetched = offset;
        owned.returned = None;
        if self.handlers {
            // What its handler was given is left behind, and owed by nobody: also what it is at, should it fail.
            owned.acks = Acks::at(offset);
        } else {
            owned.acks.go_to(offset);
        }
        owned.parked.clear();
        self.buffered -= std::mem::take(&mut owned.buffered);
        self.queue.retain(|slice| slice.partition != *partition);
    }

    /// Lets go of what is kept back of paused partitions. It is fetched again once they are resumed.
    pub(super) fn drop_parked(&mut self) {
        for owned in self.partitions.values_mut().filter(|owned| !owned.parked.is_empty()) {
            owned.parked.clear();
            owned.dropped = true;
            owned.fetched = owned.position;
            owned.turn += 1;
            self.buffered -= std::mem::take(&mut owned.buffered);
        }
    }
}
