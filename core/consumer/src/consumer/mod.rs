//! The handle that applications hold: its life, and what moves it. Taking records is in `polling`, saying what is processed
//! in `committing`, questions are in `asking`, and handlers, a layer over the others, in `handler`; `driver` has the same step
//! by step, for other languages.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::engine::{Engine, Message};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::Settings;
use crate::shared::{Environment, Shared};
use crate::types::{State, TopicPartition, listed};

mod asking;
mod committing;
pub mod driver;
mod handler;
mod polling;

pub use committing::Commit;
pub use handler::RunError;

/// How long [`Consumer::close`] may take where no time is given.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A consumer: a member of a group that reads a topic's partitions.
///
/// This is a handle: a clone is the same consumer. All methods may be called from any thread and any number of tasks.
/// Dropping the last one without [`close`](Self::close) flushes nothing and waits for nothing; it sends one LEAVE at most.
#[derive(Clone)]
pub struct Consumer(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    messages: mpsc::UnboundedSender<Message>,
    /// The engine's end of the messages, until it starts.
    idle: Mutex<Option<mpsc::UnboundedReceiver<Message>>>,
    /// Without a group: whether it was said what to read.
    assigned: AtomicBool,
}

impl Consumer {
    /// A consumer that hasn't started: nothing is sent before [`start`](Self::start) or the first poll.
    pub fn new(settings: Settings, environment: Environment) -> Self {
        let (messages, idle) = mpsc::unbounded_channel();
        Self(Arc::new(Handle {
            shared: Arc::new(Shared::new(settings, environment)),
            messages,
            idle: Mutex::new(Some(idle)),
            assigned: AtomicBool::new(false),
        }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Where the consumer is in its life.
    pub fn state(&self) -> State {
        self.0.shared.delivery.state()
    }

    /// The error that closed the consumer, where one did.
    pub fn fatal_error(&self) -> Option<Error> {
        self.0.shared.delivery.fatal()
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.0.shared.settings
    }

    /// Begins to join, and does not wait. Any number of calls is one.
    ///
    /// Errors: [`ErrorKind::InvalidState`] for a consumer without a group to which nothing was [assigned](Self::assign);
    /// [`ErrorKind::Closed`]; the fatal error.
    pub fn begin(&self) -> Result<()> {
        if self.0.shared.settings.group_id.is_none() && !self.0.assigned.load(Ordering::Relaxed) {
            let message = "there is nothing to read: without a group_id, assign partitions first";
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
        self.wake();
        match self.state() {
            State::New => self.send(Message::Start),
            State::Closing | State::Closed => Err(self.ended()),
            State::Running | State::Rebalancing => Ok(()),
        }
    }

    /// Lets the engine run, so that it can be asked. It doesn't join by that.
    fn wake(&self) {
        let idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(messages) = idle {
            let engine = Engine::new(Arc::clone(&self.0.shared), messages);
            let end = EngineEnd(Arc::clone(&self.0.shared));
            self.0.shared.environment.runtime.spawn(async move {
                let _end = end;
                engine.run().await;
            });
        }
    }

    /// Reads these partitions, without a group: nobody shares them, nothing is committed, and this consumer is the only one
    /// who decides. Each begins at its offset, or where `auto_offset_reset` says. Doesn't wait. A later call replaces what
    /// was read before, which no poll tells of; an empty one reads nothing.
    ///
    /// Errors: [`ErrorKind::InvalidState`] for a consumer that has a group; [`ErrorKind::InvalidArgument`] for a partition
    /// of another topic. A partition that the topic doesn't have is waited for, and the statistics say so.
    pub fn assign(&self, partitions: impl IntoIterator<Item = (TopicPartition, Option<u64>)>) -> Result<()> {
        if let Some(group) = &self.0.shared.settings.group_id {
            let message = format!(
                "partitions can't be assigned: group {group:?} hands them out. Leave out group_id to choose them"
            );
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
        let partitions: BTreeMap<_, _> = partitions.into_iter().collect();
        self.check_topic(partitions.keys())?;
        self.0.assigned.store(true, Ordering::Relaxed);
        self.begin()?;
        // What is being read ends here, not when the engine gets to it.
        self.0.shared.delivery.end_fences_quietly();
        self.send(Message::Assign(partitions))
    }

    /// Joins the group and waits for the first assignment, an empty one included. `None` waits for ever.
    ///
    /// Errors: [`ErrorKind::Unreachable`] where no broker, or no coordinator, could be reached in the time, and
    /// [`ErrorKind::TimedOut`] where they answered and it wasn't enough; the consumer goes on trying. The fatal error where the consumer can't ever join.
    pub async fn start(&self, timeout: Option<Duration>) -> Result<()> {
        let deadline = deadline(timeout);
        self.begin()?;
        loop {
            let changed = self.0.shared.delivery.changed();
            if let Some(error) = self.0.shared.delivery.fatal() {
                return Err(error);
            }
            if let Some(error) = self.0.shared.delivery.take_raised() {
                // The member had left, because nobody polled; now somebody is back.
                return self.rejoining(Err(error));
            }
            match self.state() {
                State::Running => return Ok(()),
                State::Closing | State::Closed => return Err(self.ended()),
                State::New | State::Rebalancing => {}
            }
            if !wait(changed, deadline).await {
                return Err(self.not_started(timeout));
            }
        }
    }

    fn not_started(&self, timeout: Option<Duration>) -> Error {
        let waited = match timeout {
            Some(time) if !time.is_zero() => format!("no assignment in {time:?}"),
            _ => "no assignment yet".to_owned(),
        };
        let facts = self.0.shared.health.facts();
        let brokers = self.0.shared.settings.brokers.join(", ");
        match facts.troubles.values().next() {
            Some(trouble) => {
                let kind = if trouble.unreachable { ErrorKind::Unreachable } else { ErrorKind::TimedOut };
                Error::new(kind, format!("{waited} from {brokers}: {}. Still trying", trouble.why))
            }
            None => Error::new(ErrorKind::TimedOut, format!("{waited} from {brokers}. Still trying")),
        }
    }

    /// What to raise where nothing can be done any more.
    fn ended(&self) -> Error {
        self.0.shared.delivery.fatal().unwrap_or_else(Error::closed)
    }

    fn send(&self, message: Message) -> Result<()> {
        self.0.messages.send(message).map_err(|_| self.ended())
    }

    fn check_topic<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) -> Result<()> {
        let topic = &self.0.shared.settings.topic;
        let others: Vec<_> = partitions.into_iter().filter(|partition| partition.topic.as_str() != *topic).collect();
        if others.is_empty() {
            return Ok(());
        }
        let message = format!("{} is not of the topic that this consumer reads, {topic}", listed(others));
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    pub(crate) fn check_group(&self, what: &str) -> Result<()> {
        if self.0.shared.settings.group_id.is_some() {
            return Ok(());
        }
        let message = format!("{what} needs a group, and this consumer has none: set group_id");
        Err(Error::new(ErrorKind::InvalidState, message))
    }

    /// Moves a partition: the next record that poll returns of it is the first one at or behind this offset. What was
    /// fetched and not yet returned is dropped; ownership and fences stay as they are. Below the committed offset, nothing is
    /// committed automatically until that is passed. A rebalance forgets it.
    ///
    /// Errors: [`ErrorKind::InvalidState`] where the partition isn't assigned; [`ErrorKind::Rebalancing`] where a rebalance
    /// has just taken it; [`ErrorKind::Closed`].
    pub fn seek(&self, partition: &TopicPartition, offset: u64) -> Result<()> {
        self.check_topic([partition])?;
        let fence = self.0.shared.delivery.seek(partition, offset)?;
        self.send(Message::Moved { partition: partition.clone(), fence })
    }

    /// Returns nothing of these partitions until they are [resumed](Self::resume), and asks for nothing new. The membership
    /// goes on; so must polling, which returns what the others have. What was fetched already is kept as long as nothing
    /// else needs the room. A rebalance forgets it. All of them or none.
    ///
    /// Errors: as for [`seek`](Self::seek).
    pub fn pause(&self, partitions: &[TopicPartition]) -> Result<()> {
        self.check_topic(partitions)?;
        self.0.shared.delivery.pause(partitions)
    }

    /// Ends a [pause](Self::pause). What isn't paused stays as it is. All of them or none.
    ///
    /// Errors: as for [`seek`](Self::seek).
    pub fn resume(&self, partitions: &[TopicPartition]) -> Result<()> {
        self.check_topic(partitions)?;
        for (partition, fence) in self.0.shared.delivery.resume(partitions)? {
            self.send(Message::Moved { partition, fence })?;
        }
        Ok(())
    }

    /// Closes: commits what is waiting and what is proven processed, leaves the group, ends everything. `None` is 10 seconds.
    /// Returns once the consumer is closed, also to those who call it meanwhile; what could not be done in the time is in
    /// the statistics.
    pub async fn close(&self, timeout: Option<Duration>) {
        /// A time that no clock will see.
        const FOR_EVER: Duration = Duration::from_secs(3_000_000_000);
        let timeout = timeout.unwrap_or(CLOSE_TIMEOUT).min(FOR_EVER);
        let deadline = Instant::now() + timeout;
        self.begin_close(deadline);
        loop {
            let changed = self.0.shared.delivery.changed();
            if self.state() == State::Closed {
                break;
            }
            changed.await;
        }
        // Handlers end at their next await. One that never comes to it isn't waited for longer than close may take.
        while self.0.shared.delivery.is_handling() {
            let changed = self.0.shared.delivery.changed();
            if !self.0.shared.delivery.is_handling() || timeout_at(deadline, changed).await.is_err() {
                break;
            }
        }
    }

    fn begin_close(&self, deadline: Instant) {
        let never_started = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
        if never_started {
            self.0.shared.delivery.enter(State::Closed);
        } else {
            // Polls end now, not when the engine gets to it.
            self.0.shared.delivery.enter(State::Closing);
            if self.0.messages.send(Message::Close { deadline }).is_err() {
                self.0.shared.delivery.enter(State::Closed);
            }
        }
    }
}

/// Whatever ends the engine, nobody waits for it afterwards: not where its runtime was shut down, nor where it panicked.
struct EngineEnd(Arc<Shared>);

impl Drop for EngineEnd {
    fn drop(&mut self) {
        if self.0.delivery.state() != State::Closed {
            let message = "the engine ended without being closed: its runtime was shut down, or it has a defect";
            self.0.delivery.fail(Error::new(ErrorKind::Internal, message));
            self.0.delivery.enter(State::Closed);
        }
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let settings = &self.0.shared.settings;
        match &settings.group_id {
            Some(group) => write!(f, "Consumer({} of group {group:?}, {})", settings.topic, self.state()),
            None => write!(f, "Consumer({} without a group, {})", settings.topic, self.state()),
        }
    }
}

fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    // A time that no clock will see is for ever.
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Waits for a change; false where the time was over first.
async fn wait(changed: impl Future<Output = ()>, deadline: Option<Instant>) -> bool {
    match deadline {
        Some(deadline) => timeout_at(deadline, changed).await.is_ok(),
        None => {
            changed.await;
            true
        }
    }
}
