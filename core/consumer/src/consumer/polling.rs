//! Taking records: polls, and iterators over records and batches.

use std::time::Duration;

use super::{Consumer, deadline, wait};
use crate::batch::{Batch, Record};
use crate::delivery::Polling;
use crate::engine::Message;
use crate::error::{ErrorKind, Result};
use crate::types::{Iteration, Rebalance};

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
        let deadline = deadline(timeout);
        let poll = self.begin_poll()?;
        // Most polls of a busy consumer find something at once.
        if let Some(batch) = poll.take()? {
            return Ok(batch);
        }
        loop {
            let changed = self.changed();
            if let Some(batch) = poll.take()? {
                return Ok(batch);
            }
            if !wait(changed, deadline).await {
                return Ok(Batch::default());
            }
        }
    }

    /// Begins a poll for those who wait by themselves: [`Poll::take`] never waits.
    pub fn begin_poll(&self) -> Result<Poll<'_>> {
        self.begin()?;
        Ok(Poll { consumer: self, _polling: self.shared.delivery.begin_poll()? })
    }

    /// A future that ends at the next change of what a poll could find. Made before looking, it misses nothing.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + '_ {
        self.shared.delivery.changed()
    }

    /// Somebody waits for records step by step: while this lives, `max_poll_interval_ms` doesn't run.
    pub fn attend(&self) -> Attending<'_> {
        Attending(self.shared.delivery.attend())
    }

    /// From now on every change of the assignment is kept for [`next_rebalance`](Self::next_rebalance), and no record is
    /// delivered before all of them were taken. For those who call somebody back.
    pub fn listen(&self) {
        self.shared.delivery.listen();
    }

    /// The next change of the assignment since [`listen`](Self::listen), in order. What was revoked can't be committed any
    /// more, and a new assignment may be in place already; it is told once a poll has raised that the one before has ended, or
    /// an iteration has stepped over it.
    pub fn next_rebalance(&self) -> Option<Rebalance> {
        self.shared.delivery.next_rebalance()
    }

    /// The next record, if there is one by now. Asking for it says that the one before is processed; a rebalance is a
    /// boundary and not an error.
    pub fn try_next_record(&self) -> Result<Iteration<Record>> {
        self.begin_iteration()?;
        self.rejoining(self.shared.delivery.next_record())
    }

    /// The next batch, if there is one by now. Asking for it says that the one before is processed; a rebalance is a boundary
    /// and not an error.
    pub fn try_next_batch(&self) -> Result<Iteration<Batch>> {
        self.begin_iteration()?;
        let polling = self.shared.delivery.begin_poll();
        match polling {
            Ok(_polling) => self.rejoining(self.shared.delivery.next_batch(self.max_poll_records())),
            Err(error) if error.kind() == ErrorKind::Closed => Ok(Iteration::End),
            Err(error) => Err(error),
        }
    }

    /// Iterating over a closed consumer ends; over one that failed it raises.
    fn begin_iteration(&self) -> Result<()> {
        match self.begin() {
            Err(error) if error.kind() != ErrorKind::Closed => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives back a batch that was just taken and reaches nobody, because the language was interrupted: it comes again.
    pub fn give_back(&self, batch: &Batch) {
        self.shared.delivery.give_back(batch);
    }

    /// The same for a record.
    pub fn give_back_record(&self, record: &Record) {
        self.shared.delivery.give_back(&Batch::new(record.consumer, None, vec![record.slice.clone()]));
    }

    /// The next record; `None` once the consumer is closed. See [`try_next_record`](Self::try_next_record).
    pub async fn next_record(&self) -> Result<Option<Record>> {
        let _attending = self.attend();
        loop {
            let changed = self.changed();
            match self.try_next_record()? {
                Iteration::Item(record) => return Ok(Some(record)),
                Iteration::Wait => changed.await,
                Iteration::End => return Ok(None),
            }
        }
    }

    /// The next batch; `None` once the consumer is closed. See [`try_next_batch`](Self::try_next_batch).
    pub async fn next_batch(&self) -> Result<Option<Batch>> {
        let _attending = self.attend();
        loop {
            let changed = self.changed();
            match self.try_next_batch()? {
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
        self.shared.settings.max_poll_records as usize
    }
}

/// A poll in progress, for those who wait by themselves.
pub struct Poll<'a> {
    consumer: &'a Consumer,
    _polling: Polling<'a>,
}

impl Poll<'_> {
    /// Takes what is ready; nothing where there is nothing yet.
    pub fn take(&self) -> Result<Option<Batch>> {
        self.consumer.rejoining(self.consumer.shared.delivery.take(self.consumer.max_poll_records()))
    }
}

/// Somebody who waits for records: see [`Consumer::attend`].
pub struct Attending<'a>(#[allow(dead_code)] Polling<'a>);
