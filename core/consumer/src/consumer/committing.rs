//! Saying what is processed: commits, of batches, records and offsets, and acknowledgements of single records.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Consumer, deadline};
use crate::batch::{Batch, Fence, Record};
use crate::engine::Message;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{State, TopicPartition};

/// What to commit.
#[derive(Debug, Clone, Copy, Default)]
pub enum Commit<'a> {
    /// All that poll has returned; once records are acknowledged one by one, what is acknowledged without a gap.
    #[default]
    All,
    /// A batch, whole.
    Batch(&'a Batch),
    /// Everything up to a record, itself included.
    Record(&'a Record),
    /// The next offset to read, partition by partition. Not beyond what poll returned.
    Offsets(&'a BTreeMap<TopicPartition, u64>),
}

impl<'a> From<&'a Batch> for Commit<'a> {
    fn from(batch: &'a Batch) -> Self {
        Self::Batch(batch)
    }
}

impl<'a> From<&'a Record> for Commit<'a> {
    fn from(record: &'a Record) -> Self {
        Self::Record(record)
    }
}

impl<'a> From<&'a BTreeMap<TopicPartition, u64>> for Commit<'a> {
    fn from(offsets: &'a BTreeMap<TopicPartition, u64>) -> Self {
        Self::Offsets(offsets)
    }
}

impl Consumer {
    /// Commits, and waits until the group's coordinator has taken it. `None` waits for ever.
    ///
    /// What is committed is the next offset to read. All partitions of one call are committed or none.
    ///
    /// Errors: [`ErrorKind::Rebalancing`] where a partition's assignment has ended since it was read: nothing was sent;
    /// [`ErrorKind::OffsetRegression`]; [`ErrorKind::InvalidArgument`] for a batch of another consumer or an offset beyond the
    /// position; [`ErrorKind::TimedOut`] where it couldn't be sent in time and was withdrawn;
    /// [`ErrorKind::CommitOutcomeUnknown`] where it was sent and not answered in time; [`ErrorKind::Closed`].
    pub async fn commit<'a>(&self, what: impl Into<Commit<'a>>, timeout: Option<Duration>) -> Result<()> {
        self.begin_commit(what.into(), timeout)?.await
    }

    /// Checks and hands over a commit, and gives the future of its outcome. It is carried out even if that is dropped.
    pub fn begin_commit(
        &self,
        what: Commit<'_>,
        timeout: Option<Duration>,
    ) -> Result<impl Future<Output = Result<()>> + Send + 'static + use<>> {
        let claims = self.claims(what)?;
        let (answer, answered) = oneshot::channel();
        let answered = if claims.is_empty() {
            let _ = answer.send(Ok(()));
            answered
        } else {
            self.0.shared.delivery.check_claims(&claims)?;
            let message = Message::Commit { claims, deadline: deadline(timeout), answer };
            self.send(message)?;
            answered
        };
        Ok(async move { answered.await.unwrap_or_else(|_| Err(Error::closed())) })
    }

    fn claims(&self, what: Commit<'_>) -> Result<BTreeMap<TopicPartition, (Fence, u64)>> {
        let delivery = &self.0.shared.delivery;
        self.check_group("a commit")?;
        if matches!(self.state(), State::Closing | State::Closed) {
            return Err(self.ended());
        }
        let (consumer, claims) = match what {
            Commit::All => return delivery.claim_all(),
            Commit::Offsets(offsets) => return delivery.claim_offsets(offsets),
            Commit::Batch(batch) if batch.is_empty() => return Ok(BTreeMap::new()),
            Commit::Batch(batch) => (batch.consumer, batch.claims()),
            Commit::Record(record) => {
                let claim = (record.partition().clone(), (record.slice.fence, record.offset() + 1));
                (record.consumer, BTreeMap::from([claim]))
            }
        };
        self.check_own(consumer)?;
        Ok(claims)
    }

    fn check_own(&self, consumer: u64) -> Result<()> {
        if consumer == self.0.shared.delivery.identity {
            return Ok(());
        }
        let message = "these records were read by another consumer: only the one that read them can commit them";
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Says that a record is processed, whatever the order. What is acknowledged without a gap is committed every
    /// `auto_commit_interval_ms` and at close, so that several workers can share a batch.
    ///
    /// Errors: [`ErrorKind::Rebalancing`] where the partition's assignment has ended since the record was read;
    /// [`ErrorKind::InvalidState`] under auto-commit and without a group; [`ErrorKind::InvalidArgument`] for a record of
    /// another consumer; [`ErrorKind::Closed`].
    pub fn ack(&self, record: &Record) -> Result<()> {
        self.check_group("an acknowledgement")?;
        self.check_own(record.consumer)?;
        self.0.shared.delivery.acknowledge(record)
    }

    /// The records of a batch that may still be committed: those of partitions whose assignment goes on.
    pub fn owned(&self, batch: &Batch) -> Batch {
        batch.filtered(|partition, fence| {
            batch.consumer == self.0.shared.delivery.identity && self.0.shared.delivery.is_current(partition, fence)
        })
    }
}
