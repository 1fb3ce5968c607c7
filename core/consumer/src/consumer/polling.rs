//! Taking records: polls, and iterators over records and batches.

use std::time::Duration;

use super::{Consumer, deadline, wait};
use crate::batch::{Batch, Record};
use crate::engine::Message;
use crate::error::{ErrorKind, Result};
use crate::types::Iteration;

impl Consumer {
    /// Waits for records and takes them: at most `max_poll_records`, from any of the assigned partitions. The batch is empty
    /// where the time is over first. `None` waits for ever, zero doesn't wait.
    ///
    /// Cancelling the future loses no record. With auto-commit this poll says that what the one before returned is processed.
    ///
    /// Errors: [`ErrorKind::Rebalancing`] once after each rebalance that ended fences; [`ErrorKind::MaxPollInterval`] once where
    /// nobody has polled for `max_poll_interval_ms`; [`ErrorKind::Closed`]; the fatal error; [`ErrorKind::InvalidState`] for a
    /// poll beside another one under auto-commit, and without a group before partitions are assigned.
    pub async fn poll(&self, timeout: Option<Duration>) -> Result<Batch> {
        self.wait_for_records(None, timeout).await
    }

    /// [`poll`](Self::poll) for `max_records` at most, and never more than `max_poll_records`. What it leaves is the next poll's.
    ///
    /// Errors: those of [`poll`](Self::poll); [`ErrorKind::InvalidArgument`] for 0.
    pub async fn poll_at_most(&self, max_records: usize, timeout: Option<Duration>) -> Result<Batch> {
        self.wait_for_records(Some(max_records), timeout).await
    }

    async fn wait_for_records(&self, max_records: Option<usize>, timeout: Option<Duration>) -> Result<Batch> {
        let deadline = deadline(timeout);
        let driver = self.driver();
        let poll = driver.begin_poll(max_records)?;
        // Most polls of a busy consumer find something at once.
        if let Some(batch) = poll.take()? {
            return Ok(batch);
        }
        loop {
            let changed = driver.changed();
            if let Some(batch) = poll.take()? {
                return Ok(batch);
            }
            if !wait(changed, deadline).await {
                return Ok(Batch::default());
            }
        }
    }

    /// The next record; `None` once the consumer is closed. Asking for it says that the one before is processed; a rebalance is
    /// a boundary and not an error.
    pub async fn next_record(&self) -> Result<Option<Record>> {
        let driver = self.driver();
        let _attending = driver.attend();
        loop {
            let changed = driver.changed();
            match driver.try_next_record()? {
                Iteration::Item(record) => return Ok(Some(record)),
                Iteration::Wait => changed.await,
                Iteration::End => return Ok(None),
            }
        }
    }

    /// The next batch; `None` once the consumer is closed. Otherwise as [`next_record`](Self::next_record).
    pub async fn next_batch(&self) -> Result<Option<Batch>> {
        let driver = self.driver();
        let _attending = driver.attend();
        loop {
            let changed = driver.changed();
            match driver.try_next_batch()? {
                Iteration::Item(batch) => return Ok(Some(batch)),
                Iteration::Wait => changed.await,
                Iteration::End => return Ok(None),
            }
        }
    }

    /// Passes on what polls and iterators find. One that hears that the member has left makes it join again.
    pub(super) fn rejoining<T>(&self, found: Result<T>) -> Result<T> {
        if let Err(error) = &found
            && error.kind() == ErrorKind::MaxPollInterval
        {
            self.send(Message::Rejoin)?;
        }
        found
    }

    pub(super) fn max_poll_records(&self) -> usize {
        self.0.shared.settings.max_poll_records as usize
    }
}
