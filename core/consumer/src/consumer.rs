//! The handle that applications hold.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::batch::{Batch, Fence, Record};
use crate::delivery::{Owned, Polling, Step};
use crate::engine::{Answer, Engine, Message, Position, Question};
use crate::error::{Error, ErrorKind, Result};
use crate::health::Part;
use crate::settings::Settings;
use crate::shared::{Environment, Shared};
use crate::statistics::{PartitionStatistics, Statistics};
use crate::types::{GroupDescription, GroupMetadata, LogBounds, Rebalance, State, TopicPartition, listed};

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
    /// Without a group: whether it was said what to read.
    assigned: AtomicBool,
}

impl Consumer {
    /// A consumer that hasn't started: nothing is sent before [`start`](Self::start) or the first poll.
    pub fn new(settings: Settings, environment: Environment) -> Self {
        let (messages, idle) = mpsc::unbounded_channel();
        Self {
            shared: Arc::new(Shared::new(settings, environment)),
            messages,
            idle: Mutex::new(Some(idle)),
            assigned: AtomicBool::new(false),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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
    ///
    /// Errors: [`ErrorKind::InvalidState`] for a consumer without a group to which nothing was [assigned](Self::assign);
    /// [`ErrorKind::Closed`]; the fatal error.
    pub fn begin(&self) -> Result<()> {
        if self.shared.settings.group_id.is_none() && !self.assigned.load(Ordering::Relaxed) {
            let message = "there is nothing to read: without a group_id, assign partitions first";
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
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
            State::New => self.send(Message::Start),
            State::Closing | State::Closed => Err(self.ended()),
            State::Running | State::Rebalancing => Ok(()),
        }
    }

    /// Reads these partitions, without a group: nobody shares them, nothing is committed, and this consumer is the only one
    /// who decides. Each begins at its offset, or where `auto_offset_reset` says. Doesn't wait. A later call replaces what
    /// was read before, which no poll tells of; an empty one reads nothing.
    ///
    /// Errors: [`ErrorKind::InvalidState`] for a consumer that has a group; [`ErrorKind::InvalidArgument`] for a partition
    /// of another topic. A partition that the topic doesn't have is waited for, and the statistics say so.
    pub fn assign(&self, partitions: impl IntoIterator<Item = (TopicPartition, Option<u64>)>) -> Result<()> {
        if let Some(group) = &self.shared.settings.group_id {
            let message = format!(
                "partitions can't be assigned: group {group:?} hands them out. Leave out group_id to choose them"
            );
            return Err(Error::new(ErrorKind::InvalidState, message));
        }
        let partitions: BTreeMap<_, _> = partitions.into_iter().collect();
        self.check_topic(partitions.keys())?;
        self.assigned.store(true, Ordering::Relaxed);
        self.begin()?;
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

    fn send(&self, message: Message) -> Result<()> {
        self.messages.send(message).map_err(|_| self.ended())
    }

    /// Passes on what polls and iterators find. One that hears that the member has left makes it join again.
    fn rejoining<T>(&self, found: Result<T>) -> Result<T> {
        if let Err(error) = &found
            && error.kind() == ErrorKind::MaxPollInterval
        {
            self.send(Message::Rejoin)?;
        }
        found
    }

    fn check_topic<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) -> Result<()> {
        let topic = &self.shared.settings.topic;
        let others: Vec<_> = partitions.into_iter().filter(|partition| partition.topic.as_str() != *topic).collect();
        if others.is_empty() {
            return Ok(());
        }
        let message = format!("{} is not of the topic that this consumer reads, {topic}", listed(others));
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    pub(crate) fn check_group(&self, what: &str) -> Result<()> {
        if self.shared.settings.group_id.is_some() {
            return Ok(());
        }
        let message = format!("{what} needs a group, and this consumer has none: set group_id");
        Err(Error::new(ErrorKind::InvalidState, message))
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
    /// more, and a new assignment may be in place already.
    pub fn next_rebalance(&self) -> Option<Rebalance> {
        self.shared.delivery.next_rebalance()
    }

    fn max_poll_records(&self) -> usize {
        self.shared.settings.max_poll_records as usize
    }

    /// The next record, if there is one by now. Asking for it says that the one before is processed; a rebalance is a
    /// boundary and not an error.
    pub fn try_next_record(&self) -> Result<Iteration<Record>> {
        self.begin_iteration()?;
        self.rejoining(self.shared.delivery.next_record()).map(Into::into)
    }

    /// The next batch, if there is one by now. Asking for it says that the one before is processed; a rebalance is a boundary
    /// and not an error.
    pub fn try_next_batch(&self) -> Result<Iteration<Batch>> {
        self.begin_iteration()?;
        let polling = self.shared.delivery.begin_poll();
        match polling {
            Ok(_polling) => self.rejoining(self.shared.delivery.next_batch(self.max_poll_records())).map(Into::into),
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
            self.send(message)?;
            answered
        };
        Ok(async move { answered.await.unwrap_or_else(|_| Err(Error::closed())) })
    }

    fn claims(&self, what: Commit<'_>) -> Result<BTreeMap<TopicPartition, (Fence, u64)>> {
        let delivery = &self.shared.delivery;
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
        if consumer == self.shared.delivery.identity {
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
        self.shared.delivery.acknowledge(record)
    }

    /// Moves a partition: the next record that poll returns of it is the first one at or behind this offset. What was
    /// fetched and not yet returned is dropped; ownership and fences stay as they are. Below the committed offset, nothing is
    /// committed automatically until that is passed. A rebalance forgets it.
    ///
    /// Errors: [`ErrorKind::InvalidState`] where the partition isn't assigned; [`ErrorKind::Rebalancing`] where a rebalance
    /// has just taken it; [`ErrorKind::Closed`].
    pub fn seek(&self, partition: &TopicPartition, offset: u64) -> Result<()> {
        self.check_topic([partition])?;
        let fence = self.shared.delivery.seek(partition, offset)?;
        self.send(Message::Moved { partition: partition.clone(), fence })
    }

    /// Returns nothing of these partitions until they are [resumed](Self::resume), and asks for nothing new. The membership
    /// goes on; so must polling, which returns what the others have. What was fetched already is kept as long as nothing
    /// else needs the room. A rebalance forgets it. All of them or none.
    ///
    /// Errors: as for [`seek`](Self::seek).
    pub fn pause(&self, partitions: &[TopicPartition]) -> Result<()> {
        self.check_topic(partitions)?;
        self.shared.delivery.pause(partitions)
    }

    /// Ends a [pause](Self::pause). What isn't paused stays as it is. All of them or none.
    ///
    /// Errors: as for [`seek`](Self::seek).
    pub fn resume(&self, partitions: &[TopicPartition]) -> Result<()> {
        self.check_topic(partitions)?;
        self.shared.delivery.resume(partitions)
    }

    /// The partitions that are paused.
    pub fn paused(&self) -> Vec<TopicPartition> {
        self.shared.delivery.paused()
    }

    /// The topics that this consumer reads.
    pub fn subscription(&self) -> Vec<String> {
        vec![self.shared.settings.topic.clone()]
    }

    /// Who this consumer is in its group now, for a transaction that commits offsets on its behalf. Where a batch is at hand,
    /// [its own](Batch::group_metadata) is safer: it is of the assignment that the records were read under, whatever has
    /// happened since.
    ///
    /// Errors: [`ErrorKind::Rebalancing`] during a rebalance; [`ErrorKind::InvalidState`] before the first assignment and
    /// without a group; [`ErrorKind::Closed`].
    pub fn group_metadata(&self) -> Result<GroupMetadata> {
        self.check_group("group metadata")?;
        if let Some(member) = self.shared.delivery.member() {
            return Ok((*member).clone());
        }
        Err(match self.state() {
            State::Closing | State::Closed => self.ended(),
            State::Rebalancing if self.shared.delivery.local_generation() > 0 => Error::rebalancing(
                "a rebalance is under way: there is no generation to name. Poll to go on",
                vec![],
                vec![],
            ),
            _ => Error::new(ErrorKind::InvalidState, "there is no assignment yet: start, or poll, first"),
        })
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
        self.check_group("a committed offset")?;
        self.check_topic([partition])?;
        let ask = |answer| Question::Committed { partition: partition.clone(), answer };
        self.find_out(ask, timeout, &format!("the coordinator did not say what is committed for {partition}")).await
    }

    /// Where the logs of these partitions begin and end, asked of their leaders. A partition that doesn't exist is left out.
    /// `None` waits for ever.
    ///
    /// Errors: [`ErrorKind::InvalidArgument`] for one of another topic; [`ErrorKind::TimedOut`]; [`ErrorKind::Closed`].
    pub async fn log_bounds(
        &self,
        partitions: &[TopicPartition],
        timeout: Option<Duration>,
    ) -> Result<BTreeMap<TopicPartition, LogBounds>> {
        self.check_topic(partitions)?;
        let partitions = partitions.iter().cloned().collect();
        let ask = |answer| Question::Bounds { partitions, answer };
        self.find_out(ask, timeout, "the leaders did not say where their logs begin and end").await
    }

    /// How many offsets each partition that is assigned has ahead of its position: 0 where there is nothing left to read,
    /// even if the log ends with a control record, which no committed reader ever comes to. `None` waits for ever.
    ///
    /// Errors: [`ErrorKind::TimedOut`]; [`ErrorKind::Closed`].
    pub async fn lag(&self, timeout: Option<Duration>) -> Result<BTreeMap<TopicPartition, u64>> {
        let owned = self.shared.delivery.partitions();
        let position = |owned: Owned| Position { offset: owned.position, more: owned.buffered > 0 };
        let positions = owned.into_iter().map(|(partition, owned)| (partition, position(owned))).collect();
        let ask = |answer| Question::Lag { positions, answer };
        self.find_out(ask, timeout, "the leaders did not say how far their logs reach").await
    }

    /// The group's members, their partitions and how far it is, asked of the coordinator and the leaders. `None` waits for
    /// ever.
    ///
    /// Errors: [`ErrorKind::InvalidState`] without a group; [`ErrorKind::TimedOut`]; [`ErrorKind::Closed`].
    pub async fn describe_group(&self, timeout: Option<Duration>) -> Result<GroupDescription> {
        self.check_group("a group description")?;
        let ask = |answer| Question::Group { answer };
        self.find_out(ask, timeout, "the coordinator did not describe the group").await
    }

    /// Has the engine ask, and waits.
    async fn find_out<T>(
        &self,
        ask: impl FnOnce(Answer<T>) -> Question,
        timeout: Option<Duration>,
        late: &str,
    ) -> Result<T> {
        self.begin()?;
        let (answer, answered) = oneshot::channel();
        self.send(Message::Ask(ask(answer)))?;
        let answer = match deadline(timeout) {
            Some(deadline) => timeout_at(deadline, answered)
                .await
                .map_err(|_| Error::new(ErrorKind::TimedOut, format!("{late} in time")))?,
            None => answered.await,
        };
        answer.unwrap_or_else(|_| Err(self.ended()))
    }

    /// What the consumer is doing right now.
    pub fn statistics(&self) -> Statistics {
        let delivery = &self.shared.delivery;
        let (counts, facts) = (delivery.counts(), self.shared.health.facts().clone());
        let partition = |(partition, owned): (TopicPartition, Owned)| {
            let leader = facts.leaders.get(&partition).cloned();
            (
                partition,
                PartitionStatistics {
                    position: owned.position,
                    fetched: owned.fetched,
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
        self.consumer.rejoining(self.consumer.shared.delivery.take(self.consumer.max_poll_records()))
    }
}

/// Somebody who waits for records: see [`Consumer::attend`].
pub struct Attending<'a>(#[allow(dead_code)] Polling<'a>);

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let settings = &self.shared.settings;
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
