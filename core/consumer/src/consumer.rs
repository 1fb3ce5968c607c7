//! The handle that applications hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::batch::{Batch, Fence, Record};
use crate::delivery::{Polling, Step};
use crate::engine::{Engine, Message};
use crate::error::{Error, ErrorKind, Result};
use crate::health::Part;
use crate::settings::Settings;
use crate::shared::{Environment, Shared};
use crate::statistics::{PartitionStatistics, Statistics};
use crate::types::{State, TopicPartition};

/// How long [`Consumer::close`] may take where no time is given.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What to commit.
#[derive(Debug, Clone, Copy, Default)]
pub enum Commit<'a> {
    /// All that poll has returned.
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

/// What one step of an iteration gives.
#[derive(Debug)]
pub enum Iteration<T> {
    /// The next one.
    Item(T),
    /// Nothing yet: wait with [`Consumer::changed`] and ask again.
    Wait,
    /// The consumer is closed.
    End,
}

impl<T> From<Step<T>> for Iteration<T> {
    fn from(step: Step<T>) -> Self {
        match step {
            Step::Item(item) => Self::Item(item),
            Step::Wait => Self::Wait,
            Step::End => Self::End,
        }
    }
}

/// A consumer: a member of a group that reads a topic's partitions.
///
/// All methods may be called from any thread and any number of tasks. Dropping it without [`close`](Self::close) flushes
/// nothing and waits for nothing; it sends one LEAVE at most.
pub struct Consumer {
    shared: Arc<Shared>,
    messages: mpsc::UnboundedSender<Message>,
    /// The engine's end of the messages, until it starts.
    idle: Mutex<Option<mpsc::UnboundedReceiver<Message>>>,
}

impl Consumer {
    /// A consumer that hasn't started: nothing is sent before [`start`](Self::start) or the first poll.
    pub fn new(settings: Settings, environment: Environment) -> Self {
        let (messages, idle) = mpsc::unbounded_channel();
        Self { shared: Arc::new(Shared::new(settings, environment)), messages, idle: Mutex::new(Some(idle)) }
    }

    /// Where the consumer is in its life.
    pub fn state(&self) -> State {
        self.shared.delivery.state()
    }

    /// The error that closed the consumer, where one did.
    pub fn fatal_error(&self) -> Option<Error> {
        self.shared.delivery.fatal()
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Begins to join, and does not wait. Any number of calls is one.
    pub fn begin(&self) -> Result<()> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(messages) = idle {
            let engine = Engine::new(Arc::clone(&self.shared), messages);
            let end = EngineEnd(Arc::clone(&self.shared));
            self.shared.environment.runtime.spawn(async move {
                let _end = end;
                engine.run().await;
            });
        }
        match self.state() {
            State::New => self.messages.send(Message::Start).map_err(|_| self.ended()),
            State::Closing | State::Closed => Err(self.ended()),
            State::Running | State::Rebalancing => Ok(()),
        }
    }

    /// Joins the group and waits for the first assignment, an empty one included. `None` waits for ever.
    ///
    /// Errors: [`ErrorKind::Unreachable`] where no broker, or no coordinator, could be reached in the time, and
    /// [`ErrorKind::TimedOut`] where they answered and it wasn't enough; the consumer goes on trying. The fatal error where the consumer can't ever join.
    pub async fn start(&self, timeout: Option<Duration>) -> Result<()> {
        let deadline = deadline(timeout);
        self.begin()?;
        loop {
            let changed = self.shared.delivery.changed();
            if let Some(error) = self.shared.delivery.fatal() {
                return Err(error);
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
        let facts = self.shared.health.facts();
        let brokers = self.shared.settings.brokers.join(", ");
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
        self.shared.delivery.fatal().unwrap_or_else(Error::closed)
    }

    /// Waits for records and takes them: at most `max_poll_records`, from any of the assigned partitions. The batch is empty
    /// where the time is over first. `None` waits for ever, zero doesn't wait.
    ///
    /// Cancelling the future loses no record. With auto-commit this poll says that what the one before returned is processed.
    ///
    /// Errors: [`ErrorKind::Rebalancing`] once after each rebalance that ended fences; [`ErrorKind::Closed`]; the fatal error;
    /// [`ErrorKind::InvalidState`] for a poll beside another one under auto-commit.
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

    fn max_poll_records(&self) -> usize {
        self.shared.settings.max_poll_records as usize
    }

    /// The next record, if there is one by now. Asking for it says that the one before is processed; a rebalance is a
    /// boundary and not an error.
    pub fn try_next_record(&self) -> Result<Iteration<Record>> {
        self.begin_iteration()?;
        self.shared.delivery.next_record().map(Into::into)
    }

    /// The next batch, if there is one by now. Asking for it says that the one before is processed; a rebalance is a boundary
    /// and not an error.
    pub fn try_next_batch(&self) -> Result<Iteration<Batch>> {
        self.begin_iteration()?;
        let polling = self.shared.delivery.begin_poll();
        match polling {
            Ok(_polling) => self.shared.delivery.next_batch(self.max_poll_records()).map(Into::into),
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
        self.shared.delivery.give_back(&Batch::new(record.consumer, vec![record.slice.clone()]));
    }

    /// The next record; `None` once the consumer is closed. See [`try_next_record`](Self::try_next_record).
    pub async fn next_record(&self) -> Result<Option<Record>> {
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
        loop {
            let changed = self.changed();
            match self.try_next_batch()? {
                Iteration::Item(batch) => return Ok(Some(batch)),
                Iteration::Wait => changed.await,
                Iteration::End => return Ok(None),
            }
        }
    }

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
            self.shared.delivery.check_claims(&claims)?;
            let message = Message::Commit { claims, deadline: deadline(timeout), answer };
            self.messages.send(message).map_err(|_| self.ended())?;
            answered
        };
        Ok(async move { answered.await.unwrap_or_else(|_| Err(Error::closed())) })
    }

    fn claims(&self, what: Commit<'_>) -> Result<BTreeMap<TopicPartition, (Fence, u64)>> {
        let delivery = &self.shared.delivery;
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
        if consumer != delivery.identity {
            let message = "these records were read by another consumer: only the one that read them can commit them";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(claims)
    }

    /// The records of a batch that may still be committed: those of partitions whose assignment goes on.
    pub fn owned(&self, batch: &Batch) -> Batch {
        batch.filtered(|partition, fence| {
            batch.consumer == self.shared.delivery.identity && self.shared.delivery.is_current(partition, fence)
        })
    }

    /// The partitions that are this consumer's now.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.shared.delivery.partitions().into_keys().collect()
    }

    /// The next offset that poll will return of a partition; nothing where it isn't assigned.
    pub fn position(&self, partition: &TopicPartition) -> Option<u64> {
        self.shared.delivery.partition(partition).map(|owned| owned.position)
    }

    /// The offset that the group has committed for a partition, asked of the coordinator; `None` where nothing is, and the
    /// broker doesn't tell that from 0.
    pub async fn committed(&self, partition: &TopicPartition, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.begin()?;
        if partition.topic.as_str() != self.shared.settings.topic {
            let message =
                format!("{partition} is not of the topic that this consumer reads, {}", self.shared.settings.topic);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let (answer, answered) = oneshot::channel();
        let message = Message::Committed { partition: partition.clone(), answer };
        self.messages.send(message).map_err(|_| self.ended())?;
        let answer = match deadline(timeout) {
            Some(deadline) => timeout_at(deadline, answered).await.map_err(|_| {
                Error::new(
                    ErrorKind::TimedOut,
                    format!("the coordinator did not say in time what is committed for {partition}"),
                )
            })?,
            None => answered.await,
        };
        answer.unwrap_or_else(|_| Err(self.ended()))
    }

    /// What the consumer is doing right now.
    pub fn statistics(&self) -> Statistics {
        let delivery = &self.shared.delivery;
        let (counts, facts) = (delivery.counts(), self.shared.health.facts().clone());
        let partition = |(partition, owned): (TopicPartition, crate::delivery::Owned)| {
            let leader = facts.leaders.get(&partition).cloned();
            (
                partition,
                PartitionStatistics {
                    position: owned.position,
                    committed: owned.committed,
                    buffered_bytes: owned.buffered,
                    leader,
                },
            )
        };
        let age = |since: Instant| since.elapsed().as_secs_f64();
        let unreachable = facts.troubles.get(&Part::Coordinator).map(|trouble| age(trouble.since));
        let failing = facts.troubles.values().map(|trouble| age(trouble.since)).reduce(f64::max);
        Statistics {
            state: self.state(),
            member: facts.member.clone(),
            generation: facts.generation,
            local_generation: delivery.local_generation(),
            coordinator: facts.coordinator.clone(),
            coordinator_unreachable_seconds: unreachable,
            partitions: delivery.partitions().into_iter().map(partition).collect(),
            rebalances: facts.rebalances,
            reconnects: facts.reconnects,
            corrupt_frames: facts.corrupt_frames,
            records: counts.records,
            dropped_records: counts.dropped,
            skipped_offsets: counts.skipped,
            commits: facts.commits,
            buffered_bytes: delivery.buffered(),
            held_bytes: delivery.held(),
            last_error: self.fatal_error().map(|error| error.to_string()).or_else(|| facts.last_error.clone()),
            failing_seconds: failing,
            given_up: facts.given_up,
        }
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
            let changed = self.changed();
            if self.state() == State::Closed {
                return;
            }
            changed.await;
        }
    }

    fn begin_close(&self, deadline: Instant) {
        let never_started = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
        if never_started {
            self.shared.delivery.enter(State::Closed);
        } else {
            // Polls end now, not when the engine gets to it.
            self.shared.delivery.enter(State::Closing);
            if self.messages.send(Message::Close { deadline }).is_err() {
                self.shared.delivery.enter(State::Closed);
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

/// A poll in progress, for those who wait by themselves.
pub struct Poll<'a> {
    consumer: &'a Consumer,
    _polling: Polling<'a>,
}

impl Poll<'_> {
    /// Takes what is ready; nothing where there is nothing yet.
    pub fn take(&self) -> Result<Option<Batch>> {
        self.consumer.shared.delivery.take(self.consumer.max_poll_records())
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let settings = &self.shared.settings;
        write!(f, "Consumer({} of group {:?}, {})", settings.topic, settings.group_id, self.state())
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
