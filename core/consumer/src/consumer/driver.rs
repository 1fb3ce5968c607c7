//! A consumer step by step, for other languages: whoever can't await, or awaits on an event loop of its own. Nothing here borrows from
//! the consumer, so that a promise, an event loop or a callback can hold it between two steps.
//!
//! A wait goes: look, prepare to wait ([`Driver::changed`], or arm a [`WakeUp`]), look once more, wait. In Rust, use
//! [`Consumer`]'s own methods, which do so.

use std::fmt;

use super::Consumer;
use crate::batch::{Batch, Record};
use crate::delivery::Polling;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Iteration, Rebalance};

pub use crate::delivery::{Changed, WakeUp};

/// A consumer's steps. It is a handle, as [`Consumer`] is.
#[derive(Clone, Debug)]
pub struct Driver(Consumer);

impl Consumer {
    /// The same consumer step by step.
    pub fn driver(&self) -> Driver {
        Driver(self.clone())
    }
}

impl Driver {
    /// The consumer.
    pub fn consumer(&self) -> &Consumer {
        &self.0
    }

    /// Begins a poll; [`Poll::take`] never waits. It returns `max_records` at most, and never more than the setting
    /// `max_poll_records`. While it is open the consumer is attended.
    ///
    /// Errors: [`ErrorKind::InvalidArgument`] for a `max_records` of 0; those of [`Consumer::poll`].
    pub fn begin_poll(&self, max_records: Option<usize>) -> Result<Poll> {
        if max_records == Some(0) {
            let message =
                "max_records=0 is not accepted: it is 1 or more, or left out for as many as max_poll_records says";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let max = self.0.max_poll_records();
        let max = max_records.map_or(max, |wanted| wanted.min(max));
        self.0.begin()?;
        let polling = self.0.0.shared.delivery.begin_poll()?;
        Ok(Poll { consumer: self.0.clone(), max, _polling: polling })
    }

    /// A future that ends at the next change of what a poll could find. Made before looking, it misses nothing.
    pub fn changed(&self) -> Changed {
        self.0.0.shared.delivery.changed()
    }

    /// A wake-up that calls this function: for an event loop that can't await. See [`WakeUp`].
    pub fn wake_up(&self, call: impl Fn() + Send + Sync + 'static) -> WakeUp {
        self.0.0.shared.delivery.wake_up(call)
    }

    /// Somebody waits for records step by step: while this lives, `max_poll_interval_ms` doesn't run.
    pub fn attend(&self) -> Attending {
        Attending(self.0.0.shared.delivery.attend())
    }

    /// From now on every change of the assignment is kept for [`next_rebalance`](Self::next_rebalance), and no record is
    /// delivered before all of them were taken. For those who call somebody back.
    pub fn listen(&self) {
        self.0.0.shared.delivery.listen();
    }

    /// The next change of the assignment since [`listen`](Self::listen), in order. What was revoked can't be committed any
    /// more, and a new assignment may be in place already; it is told once a poll has raised that the one before has ended, or
    /// an iteration has stepped over it.
    pub fn next_rebalance(&self) -> Option<Rebalance> {
        self.0.0.shared.delivery.next_rebalance()
    }

    /// What [`next_rebalance`](Self::next_rebalance) gave was told: others who wait may take what that held back.
    pub fn told(&self) {
        self.0.0.shared.delivery.announce();
    }

    /// The next record, if there is one by now. Asking for it says that the one before is processed; a rebalance is a
    /// boundary and not an error.
    pub fn try_next_record(&self) -> Result<Iteration<Record>> {
        self.begin_iteration()?;
        self.0.rejoining(self.0.0.shared.delivery.next_record())
    }

    /// The next batch, if there is one by now. Asking for it says that the one before is processed; a rebalance is a boundary
    /// and not an error.
    pub fn try_next_batch(&self) -> Result<Iteration<Batch>> {
        self.begin_iteration()?;
        let delivery = &self.0.0.shared.delivery;
        match delivery.begin_poll() {
            Ok(_polling) => self.0.rejoining(delivery.next_batch(self.0.max_poll_records())),
            Err(error) if error.kind() == ErrorKind::Closed => Ok(Iteration::End),
            Err(error) => Err(error),
        }
    }

    /// Iterating over a closed consumer ends; over one that failed it raises.
    fn begin_iteration(&self) -> Result<()> {
        match self.0.begin() {
            Err(error) if error.kind() != ErrorKind::Closed => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives back a batch that was just taken and reaches nobody, because the language was interrupted: it comes again.
    pub fn give_back(&self, batch: &Batch) {
        self.0.0.shared.delivery.give_back(batch);
    }

    /// The same for a record.
    pub fn give_back_record(&self, record: &Record) {
        self.give_back(&Batch::new(record.consumer, None, vec![record.slice.clone()]));
    }
}

/// A poll in progress.
pub struct Poll {
    consumer: Consumer,
    max: usize,
    _polling: Polling,
}

impl Poll {
    /// Takes what is ready; nothing where there is nothing yet.
    pub fn take(&self) -> Result<Option<Batch>> {
        self.consumer.rejoining(self.consumer.0.shared.delivery.take(self.max))
    }
}

impl fmt::Debug for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Poll(of {:?})", self.consumer)
    }
}

/// Somebody who waits for records: see [`Driver::attend`].
pub struct Attending(#[allow(dead_code)] Polling);

impl fmt::Debug for Attending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attending")
    }
}
