//! The engine: one actor that owns everything that changes. It takes messages from the application's handles, answers of
//! brokers, ends of readers and timers, one at a time, and never waits for any of them.
//!
//! A [`Session`](session::Session) is one membership in one group, with its coordinator, leaders, readers and commits. The
//! engine holds a set of them and runs what they ask for.

mod closing;
mod commits;
mod committing;
mod leaders;
mod logs;
mod polling;
mod questions;
mod reader;
mod reading;
mod session;
mod sizing;
mod starts;
mod streaming;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cursus_wire::{Member, reply};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::batch::Fence;
use crate::brokers::{CallError, LinkContext, Links};
use crate::error::{Error, Result};
use crate::membership::Event;
use crate::shared::Shared;
use crate::types::{State, TopicPartition};
use closing::Closing;
use logs::Leadership;
use reader::End;
use session::Session;
use sizing::Sizing;
use starts::{Starts, Unplaced};
use watch::Seen;

pub(crate) use questions::{Answer, Position, Question};

/// What the application's handles say to the engine.
pub(crate) enum Message {
    /// Begin to join.
    Start,
    /// Commit these offsets; answered when it is done, refused or over.
    Commit {
        claims: BTreeMap<TopicPartition, (Fence, u64)>,
        deadline: Option<Instant>,
        answer: oneshot::Sender<Result<()>>,
    },
    /// Find something out.
    Ask(Question),
    /// Read these partitions without a group, from an offset where one is given.
    Assign(BTreeMap<TopicPartition, Option<u64>>),
    /// A partition's position was moved: read it from there.
    Moved { partition: TopicPartition, fence: Fence },
    /// Somebody polls again, after the membership ended because nobody did.
    Rejoin,
    /// Flush, leave, end, by this time.
    Close { deadline: Instant },
}

/// What came of something that a session asked for.
pub(crate) enum Outcome {
    /// The answer to a request of the membership's present phase, or the end of its pause.
    Membership { ticket: u64, result: Result<Event, CallError> },
    /// A heartbeat's.
    Heartbeat { member: Member, generation: u64, result: Result<reply::Heartbeat, CallError> },
    /// Where to read on, for an assignment that is about to be installed.
    Prepared { ticket: u64, result: Result<Starts, Unplaced> },
    /// Where to go on with a position that the leader can't serve.
    Replaced { partition: TopicPartition, fence: Fence, turn: u64, result: Result<u64, Unplaced> },
    /// What is committed for a partition whose stream was lost, if anybody said so.
    Recommitted { partition: TopicPartition, fence: Fence, committed: Option<u64> },
    /// What a look around has shown.
    Watched(Option<Seen>),
    /// What is committed, looked up anew under an assignment that goes on.
    Refreshed(BTreeMap<TopicPartition, (Fence, u64)>),
    /// The leaders of the topic, asked for by the membership (then with its ticket) or for readers.
    Leaders { ticket: Option<u64>, result: Result<Leadership, CallError> },
    /// Old readers have ended.
    Stopped,
    /// It is time for a reader that had to wait.
    ReaderDue { partition: TopicPartition, fence: Fence },
    /// The batch of commits on its way.
    Committed { member: Member, generation: u64, result: Result<reply::BatchCommitted, CallError> },
    /// It is time to try commits again.
    CommitDue,
    /// Nothing to do: somebody else was told.
    Nothing,
}

/// Something that a session waits for.
pub(crate) type Operation = BoxFuture<'static, Outcome>;

/// The end of a reader, as it tells the engine.
pub(crate) struct ReaderEnd {
    session: usize,
    partition: TopicPartition,
    fence: Fence,
    run: u64,
    end: End,
    sizing: Sizing,
}

/// What the sessions of an engine have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) shared: Arc<Shared>,
    pub(crate) links: Arc<Links>,
    pub(crate) tasks: TaskTracker,
    pub(crate) ends: mpsc::UnboundedSender<ReaderEnd>,
}

pub(crate) struct Engine {
    common: Common,
    cancelled: CancellationToken,
    messages: mpsc::UnboundedReceiver<Message>,
    ends: mpsc::UnboundedReceiver<ReaderEnd>,
    sessions: Vec<Session>,
    operations: FuturesUnordered<BoxFuture<'static, (usize, Outcome)>>,
    closing: Option<Closing>,
}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>, messages: mpsc::UnboundedReceiver<Message>) -> Self {
        let settings = &shared.settings;
        let context = LinkContext {
            network: Arc::clone(&shared.environment.network),
            connect_timeout: Duration::from_millis(settings.connect_timeout_ms),
            request_timeout: settings.request_timeout(),
            health: Arc::clone(&shared.health),
            buffers: Arc::default(),
        };
        let (tasks, cancelled) = (TaskTracker::new(), CancellationToken::new());
        let links = Arc::new(Links::new(
            Arc::new(context),
            shared.environment.runtime.clone(),
            tasks.clone(),
            cancelled.clone(),
            settings.bootstrap(),
            settings.max_connections_per_broker as usize,
        ));
        let (ended, ends) = mpsc::unbounded_channel();
        let common = Common { shared, links, tasks, ends: ended };
        let session = Session::new(0, common.clone());
        Self {
            common,
            cancelled,
            messages,
            ends,
            sessions: vec![session],
            operations: FuturesUnordered::new(),
            closing: None,
        }
    }

    /// Runs until the consumer is closed or dropped. Nothing of it is left when this ends.
    pub(crate) async fn run(mut self) {
        let settings = &self.common.shared.settings;
        let every = |period: u64| {
            let period = Duration::from_millis(period);
            let mut ticks = interval_at(Instant::now() + period, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        };
        let mut heartbeats = every(settings.heartbeat_interval_ms);
        let mut auto_commits = every(settings.auto_commit_interval_ms);
        let mut looks = every(settings.metadata_refresh_ms);
        let mut activity = every((settings.max_poll_interval_ms / 10).clamp(10, 1000));
        let mut held = true;
        loop {
            self.collect_operations();
            if self.is_over() {
                return self.finish().await;
            }
            let deadline = self.next_deadline();
            // In a fixed order, as everywhere in the core, so that a simulation replays. The clock comes first: nothing keeps
            // a heartbeat waiting.
            tokio::select! {
                biased;
                _ = heartbeats.tick() => self.sessions.iter_mut().for_each(Session::heartbeat),
                _ = auto_commits.tick() => self.sessions.iter_mut().for_each(Session::auto_commit),
                _ = looks.tick() => self.sessions.iter_mut().for_each(Session::watch),
                _ = activity.tick() => self.sessions.iter_mut().for_each(Session::check_activity),
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => self.on_deadline(),
                Some((session, outcome)) = self.operations.next() => self.sessions[session].on_outcome(outcome),
                Some(end) = self.ends.recv() => self.sessions[end.session].on_reader_end(end),
                message = self.messages.recv(), if held => match message {
                    Some(message) => self.on_message(message),
                    // Dropped while it closes is closed all the same; dropped without close is abandoned.
                    None if self.closing.is_some() => held = false,
                    None => return self.abandon().await,
                },
            }
            self.check_failed();
            self.step_closing();
        }
    }

    fn collect_operations(&mut self) {
        for (id, session) in self.sessions.iter_mut().enumerate() {
            for operation in session.take_operations() {
                self.operations.push(Box::pin(async move { (id, operation.await) }));
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Start => self.start(),
            Message::Commit { claims, deadline, answer } => {
                // With one topic there is one session; with several, each takes its part.
                match self.sessions.first_mut() {
                    Some(session) if self.closing.is_none() => session.commit(claims, deadline, answer),
                    _ => drop(answer.send(Err(Error::closed()))),
                }
            }
            Message::Ask(question) => match self.sessions.first_mut() {
                Some(session) if self.closing.is_none() => session.ask_for_application(question),
                _ => question.refuse(Error::closed()),
            },
            Message::Assign(partitions) => self.tell(|session| session.assign(partitions.clone())),
            Message::Moved { partition, fence } => self.tell(|session| session.read_anew(&partition, fence)),
            Message::Rejoin => self.tell(|session| session.feed(Event::Rejoin)),
            Message::Close { deadline } => self.close(deadline),
        }
    }

    /// Something for the sessions, unless they are about to end.
    fn tell(&mut self, what: impl Fn(&mut Session)) {
        if self.closing.is_none() {
            self.sessions.iter_mut().for_each(what);
        }
    }

    fn start(&mut self) {
        if self.closing.is_none() && self.common.shared.delivery.state() == State::New {
            self.common.shared.delivery.enter(State::Rebalancing);
            for session in &mut self.sessions {
                session.feed(Event::Start);
            }
        }
    }

    /// A session that can't go on closes the whole consumer.
    fn check_failed(&mut self) {
        if self.closing.is_some() {
            return;
        }
        if let Some(error) = self.sessions.iter().find_map(Session::failed) {
            self.common.shared.delivery.fail(error);
            self.close(Instant::now() + closing::AFTER_FAILURE);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let commits = self.sessions.iter().filter_map(Session::next_commit_deadline).min();
        let closing = self.closing.as_ref().map(Closing::next_deadline);
        commits.into_iter().chain(closing).min()
    }

    fn on_deadline(&mut self) {
        let now = Instant::now();
        for session in &mut self.sessions {
            session.expire_commits(now);
        }
    }
}
