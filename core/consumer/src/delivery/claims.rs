//! What may be committed: offsets with the fence that they were read under.

use std::collections::BTreeMap;

use super::{Delivery, Inner, Kept, Proof};
use crate::batch::{Fence, Record};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{State, TopicPartition, listed};

type Claims = BTreeMap<TopicPartition, (Fence, u64)>;

impl Delivery {
    /// Checks that everything in `claims` may still be committed: that its fences are the current ones.
    pub(crate) fn check_claims(&self, claims: &Claims) -> Result<()> {
        self.lock().check_claims(claims)
    }

    /// Bare offsets as claims under the current fences.
    pub(crate) fn claim_offsets(&self, offsets: &BTreeMap<TopicPartition, u64>) -> Result<Claims> {
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

    /// All that poll has returned, or where records are acknowledged or handled, all that is without a gap, as claims. An error
    /// where some of it was revoked and no poll has told yet.
    pub(crate) fn claim_all(&self) -> Result<Claims> {
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
        let claim = |(partition, owned): (&TopicPartition, &Kept)| {
            // What was handed to handlers is not theirs who commit, but what handlers have finished is.
            let returned = owned.returned.filter(|_| !inner.acking && !inner.handlers);
            let done = returned.max(owned.processed)?;
            (owned.committed.unwrap_or(0) < done).then(|| (partition.clone(), (owned.fence, done)))
        };
        Ok(inner.partitions.iter().filter_map(claim).collect())
    }

    /// A record is processed. What is acknowledged without a gap counts as proven, and is committed as such.
    pub(crate) fn acknowledge(&self, record: &Record) -> Result<()> {
        let mut inner = self.lock();
        inner.usable()?;
        if inner.proof == Proof::Polls {
            let message = "records can't be acknowledged with enable_auto_commit: each poll says that the records before \
                           it are processed. Set enable_auto_commit to false";
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
        let partition = record.partition();
        inner.check_claims(&Claims::from([(partition.clone(), (record.slice.fence, record.offset()))]))?;
        inner.acking = true;
        let Some(owned) = inner.partitions.get_mut(partition) else { return Ok(()) };
        if owned.acks.is_overgrown() {
            let message = format!(
                "the records of {partition} can't be acknowledged one by one any more: too many were read before the first was. \
                 Commit them, or acknowledge from the start"
            );
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
        if let Some(done) = owned.acks.acknowledge(record.offset()) {
            owned.processed = Some(owned.processed.map_or(done, |known| known.max(done)));
        }
        Ok(())
    }

    /// A handler has finished a record, and before it all that it was given. What a seek has left behind proves nothing: what
    /// lies there now is handled by itself. False where there is nothing more to handle.
    pub(crate) fn finish(&self, record: &Record) -> bool {
        let mut inner = self.lock();
        if !inner.handlers || inner.usable().is_err() {
            return false;
        }
        let (fence, placed) = (record.slice.fence, record.slice.placed);
        let owned = inner.partitions.get_mut(record.partition());
        let Some(owned) = owned.filter(|owned| owned.fence == fence) else { return false };
        if owned.placed == placed {
            owned.acks.advance(record.offset() + 1);
            owned.processed = owned.processed.max(Some(owned.acks.first_open()));
        }
        true
    }

    /// Whether a fence is still the partition's current one.
    pub(crate) fn is_current(&self, partition: &TopicPartition, fence: Fence) -> bool {
        self.lock().partitions.get(partition).is_some_and(|owned| owned.fence == fence)
    }
}

impl Inner {
    fn check_claims(&self, claims: &Claims) -> Result<()> {
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
}
