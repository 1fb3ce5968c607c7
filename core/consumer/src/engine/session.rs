//! One membership: what the state machine asks for is done here, and what comes of it is fed back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cursus_wire::command::{Heartbeat, JoinGroup, LeaveGroup, SyncGroup};
use cursus_wire::reply;
use cursus_wire::{Group, GroupMetadata, Meaning, Member, Topic};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::brokers::CallError;
use crate::brokers::{Coordinator, is_passing};
use crate::error::{Error, ErrorKind};
use crate::health::Part;
use crate::membership::{Action, Event, Failure, Membership};
use crate::types::{TopicPartition, listed};

use super::commits::Commits;
use super::leaders::Leaders;
use super::logs::{Leadership, Logs};
use super::reader::reader_group;
use super::reading::Readings;
use super::starts::{Membership as Known, Policy, Preparation, Starts, Unplaced};
use super::{Common, Operation, Outcome};

pub(crate) struct Session {
    pub(super) id: usize,
    pub(super) common: Common,
    pub(super) topic: Topic,
    pub(super) group: Group,
    /// The base of this member's id, with a suffix of our own: the broker's four digits can collide.
    base: Member,
    pub(super) coordinator: Arc<Coordinator>,
    pub(super) machine: Membership,
    backoff: Backoff,
    /// The pauses between tries of a commit: a heartbeat that works says nothing about commits.
    pub(super) commit_backoff: Backoff,
    operations: Vec<Operation>,
    /// Whose member this is, and a token that is cancelled once it is that no longer.
    identity: (Option<(Member, u64)>, CancellationToken),
    /// What was proven processed under fences that ended: committed under the next generation.
    carried: BTreeMap<TopicPartition, u64>,
    /// What this consumer knows to be committed, over assignments: a follower's answer may be older.
    pub(super) known_committed: BTreeMap<TopicPartition, u64>,
    prepared: Starts,
    /// Where to begin on the partitions that the application assigned itself.
    chosen: BTreeMap<u32, u64>,
    /// A look around is being taken.
    pub(super) watching: bool,
    /// The positions that the last look saw beyond the ends of their logs.
    pub(super) beyond: BTreeMap<TopicPartition, u64>,
    pub(super) leaders: Leaders,
    pub(super) readings: Readings,
    pub(super) commits: Commits,
    /// How large the topic's records are, as its readers see them.
    pub(super) record_bytes: Arc<AtomicU64>,
    /// Since when every reachable broker has denied the topic.
    missing_since: Option<Instant>,
    /// Since when the coordinator has denied that there is such a group.
    denied_since: Option<Instant>,
    failed: Option<Error>,
    pub(super) over: bool,
}

/// For how long the coordinator may deny the group before it is believed: twice what was seen of one that came back.
const GROUP_DENIED: Duration = Duration::from_secs(30);

impl Session {
    pub(crate) fn new(id: usize, common: Common) -> Self {
        let settings = &common.shared.settings;
        // Validated with the settings.
        let topic = Topic::new(&settings.topic).expect("the topic was validated");
        let suffix = common.shared.environment.randomness.next_u64();
        let base =
            Member::new(format!("{}-{suffix:016x}", settings.consumer_id)).expect("the consumer id was validated");
        let (group, machine) = match &settings.group_id {
            Some(group) => (Group::new(group).expect("the group was validated"), Membership::new()),
            // A name that nobody commits under: what is asked for is where reading starts.
            None => {
                (Group::new(base.as_str()).expect("what names a member names a group"), Membership::alone(base.clone()))
            }
        };
        let coordinator = Arc::new(Coordinator::new(
            group.clone(),
            Arc::clone(&common.links),
            Arc::clone(&common.shared.health),
            settings.membership_timeout(),
        ));
        let (backoff, commit_backoff) = (common.shared.backoff(), common.shared.backoff());
        let leaders = Leaders::new(common.shared.backoff());
        Self {
            id,
            common,
            topic,
            group,
            base,
            coordinator,
            machine,
            backoff,
            commit_backoff,
            operations: Vec::new(),
            identity: (None, CancellationToken::new()),
            carried: BTreeMap::new(),
            known_committed: BTreeMap::new(),
            prepared: Starts::new(),
            chosen: BTreeMap::new(),
            watching: false,
            beyond: BTreeMap::new(),
            leaders,
            readings: Readings::default(),
            commits: Commits::default(),
            record_bytes: Arc::default(),
            missing_since: None,
            denied_since: None,
            failed: None,
            over: false,
        }
    }

    pub(crate) fn take_operations(&mut self) -> Vec<Operation> {
        std::mem::take(&mut self.operations)
    }

    pub(super) fn run(&mut self, operation: impl Future<Output = Outcome> + Send + 'static) {
        self.operations.push(Box::pin(operation));
    }

    /// Whether something waits to be committed under the next generation.
    pub(super) fn carries(&self) -> bool {
        !self.carried.is_empty()
    }

    /// The error that this session can't go on with.
    pub(crate) fn failed(&self) -> Option<Error> {
        self.failed.clone()
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    pub(crate) fn heartbeat(&mut self) {
        self.feed(Event::HeartbeatDue);
    }

    /// Gives the machine an event and does what it asks for.
    pub(crate) fn feed(&mut self, event: Event) {
        let actions = self.machine.on(event);
        self.perform(actions);
    }

    fn failed_answer(&mut self, ticket: u64, error: CallError) {
        let why = error.to_string();
        let failure = self.failure(error);
        let actions = self.machine.on_answer(ticket, Event::Failed(failure));
        if actions.contains(&Action::Pause) {
            // Whatever is tried again is visible.
            self.common.shared.health.trouble(Part::Membership, &why);
        }
        self.perform(actions);
    }

    fn answer(&mut self, ticket: u64, event: Event) {
        let actions = self.machine.on_answer(ticket, event);
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        if self.machine.identity() != self.identity.0.as_ref().map(|(member, generation)| (member, *generation)) {
            self.identity.1.cancel();
            let identity = self.machine.identity().map(|(member, generation)| (member.clone(), generation));
            self.identity = (identity, CancellationToken::new());
        }
        for action in actions {
            self.perform_one(action);
        }
        let mut facts = self.common.shared.health.facts();
        facts.member = self.machine.identity().map(|(member, _)| member.to_string());
        facts.generation = self.machine.identity().map(|(_, generation)| generation);
    }

    fn perform_one(&mut self, action: Action) {
        tracing::trace!(group = %self.group, ?action, "membership");
        let ticket = self.machine.ticket();
        let (topic, group) = (self.topic.clone(), self.group.clone());
        match action {
            Action::Locate => {
                let logs = self.logs();
                self.run(async move { Outcome::Leaders { ticket: Some(ticket), result: logs.leadership().await } });
            }
            Action::Join { resume } => {
                let (member, generation) = match resume {
                    Some((member, generation)) => (member, Some(generation)),
                    None => (self.base.clone(), None),
                };
                self.ask(ticket, JoinGroup { topic, group, member, generation }, Event::Joined);
            }
            Action::Sync { member, generation } => {
                self.ask(ticket, SyncGroup { topic, group, member, generation: Some(generation) }, Event::Synced);
            }
            Action::Leave { member, generation } => {
                let request = LeaveGroup { topic, group, member, generation: Some(generation) };
                self.ask(ticket, request, |_: reply::Left| Event::Left);
            }
            Action::Heartbeat { member, generation } => {
                let coordinator = Arc::clone(&self.coordinator);
                let request = Heartbeat { topic, group, member: member.clone(), generation: Some(generation) };
                self.run(async move {
                    Outcome::Heartbeat { member, generation, result: coordinator.call_as_member(&request).await }
                });
            }
            Action::EndFences => {
                let carried = self.common.shared.delivery.end_fences();
                self.carried.extend(carried);
                self.common.shared.health.facts().rebalances += 1;
                self.fences_ended();
            }
            Action::EndFencesQuietly => {
                self.common.shared.delivery.end_fences_quietly();
                self.fences_ended();
            }
            Action::Expel => self.expel(),
            Action::Prepare { partitions } => {
                let Some(policy) = self.policy() else { return };
                let preparation = Preparation {
                    policy,
                    partitions,
                    carried: self.carried.clone(),
                    known: self.known_committed.clone(),
                    chosen: self.chosen.clone(),
                };
                self.run(async move { Outcome::Prepared { ticket, result: preparation.run().await } });
            }
            Action::Install => self.install(),
            Action::Refresh => self.refresh_committed(),
            Action::Pause => {
                let pause = self.backoff.next();
                self.run(async move {
                    sleep(pause).await;
                    Outcome::Membership { ticket, result: Ok(Event::Retry) }
                });
            }
            Action::Progress => {
                self.common.shared.health.recovered(&Part::Membership);
                self.denied_since = None;
                self.backoff.reset();
                self.send_commits();
            }
            Action::Fail => {
                if let Some(error) = self.machine.error().cloned() {
                    self.fail(error);
                }
            }
            Action::Done { left } => {
                self.over = true;
                if !left {
                    self.note_not_left();
                }
            }
        }
    }

    /// Asks the coordinator in the name of the machine's present phase.
    fn ask<R: cursus_wire::Request + Sync>(
        &mut self,
        ticket: u64,
        request: R,
        event: impl Fn(R::Reply) -> Event + Send + 'static,
    ) {
        let coordinator = Arc::clone(&self.coordinator);
        self.run(async move {
            Outcome::Membership { ticket, result: coordinator.call_as_member(&request).await.map(event) }
        });
    }

    pub(crate) fn on_outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Membership { ticket, result } => match result {
                Ok(event) => self.answer(ticket, event),
                Err(error) => self.failed_answer(ticket, error),
            },
            Outcome::Heartbeat { member, generation, result } => {
                self.machine.heartbeat_answered();
                match result {
                    Ok(_) => self.feed(Event::Alive { member, generation }),
                    Err(error) => self.fenced(member, generation, error),
                }
            }
            Outcome::Prepared { ticket, .. } if ticket != self.machine.ticket() => {}
            Outcome::Prepared { ticket, result } => match result {
                Ok(starts) => {
                    self.prepared = starts;
                    self.carried.clear();
                    self.answer(ticket, Event::Prepared);
                }
                Err(Unplaced::Call(error)) => self.failed_answer(ticket, error),
                Err(Unplaced::Fatal(error)) => self.answer(ticket, Event::Failed(Failure::Fatal(error))),
            },
            Outcome::Replaced { partition, fence, turn, result } => self.on_replaced(partition, fence, turn, result),
            Outcome::Recommitted { partition, fence, committed } => self.on_recommitted(partition, fence, committed),
            Outcome::Watched(seen) => self.on_watched(seen),
            Outcome::Refreshed(committed) => {
                for (partition, (fence, offset)) in committed {
                    self.note_committed(&partition, fence, offset);
                }
            }
            Outcome::Leaders { ticket, result } => self.on_leaders(ticket, result),
            Outcome::Stopped => self.feed(Event::Stopped),
            Outcome::ReaderDue { partition, fence } => self.read(&partition, fence),
            Outcome::Committed { member, generation, result } => self.on_committed(member, generation, result),
            Outcome::CommitDue => {
                self.commits.pausing = false;
                self.send_commits();
            }
            Outcome::Nothing => {}
        }
    }

    /// A heartbeat or a commit failed: what it says of the membership.
    pub(super) fn fenced(&mut self, member: Member, generation: u64, error: CallError) {
        let failure = self.failure(error);
        self.feed(Event::Fenced { member, generation, failure });
    }

    fn failure(&mut self, error: CallError) -> Failure {
        let denied = matches!(&error, CallError::Refused(refused) if refused.meaning() == Meaning::GroupNotFound);
        if !denied {
            return failure(error, &(self.group.clone(), self.topic.clone()));
        }
        // A coordinator that has just come back denies groups until it has read its log again, which after a long absence
        // takes ten seconds and more. To join afresh there would leave a ghost, and end fences that are still good.
        let since = *self.denied_since.get_or_insert_with(Instant::now);
        if since.elapsed() < GROUP_DENIED {
            return Failure::InTransition;
        }
        self.denied_since = None;
        // What was committed is gone with it.
        self.known_committed.clear();
        self.carried.clear();
        Failure::UnknownMember
    }

    /// Nothing of the old assignment is delivered or committed any more; what runs for it ends.
    fn fences_ended(&mut self) {
        self.refuse_stale_commits();
        let old = self.stop_reading();
        self.run(async move {
            for reader in old {
                // It was cancelled; whether it ended by that or by itself is all the same.
                let _ = reader.await;
            }
            Outcome::Stopped
        });
    }

    /// Nobody polls: others had better read what this member doesn't.
    fn expel(&mut self) {
        let limit = self.common.shared.settings.max_poll_interval_ms;
        let group = self.group.clone();
        tracing::warn!(%group, limit, "nobody polled for longer than max_poll_interval_ms: leaving the group");
        self.common.shared.delivery.expel(|stale| {
            let message = format!(
                "nobody polled for more than max_poll_interval_ms={limit}, so this member left group {:?}: what it held of {} \
                 can't be committed any more. Poll to join again; poll more often, take fewer records \
                 (max_poll_records), or raise the limit",
                group.as_str(),
                listed(&stale)
            );
            Error::overdue(message, stale)
        });
        self.common.shared.health.facts().rebalances += 1;
        // It stays in the statistics until somebody polls.
        let why = format!("nobody polled for more than max_poll_interval_ms={limit}, so this member left its group");
        self.common.shared.health.trouble(Part::Membership, &why);
        self.fences_ended();
    }

    fn install(&mut self) {
        let starts = std::mem::take(&mut self.prepared);
        for (partition, start) in &starts {
            match start.committed {
                Some(committed) => self.known_committed.insert(partition.clone(), committed),
                None => self.known_committed.remove(partition),
            };
        }
        let member = self.machine.identity().filter(|_| !self.machine.is_alone());
        let member = member.map(|(member, generation)| GroupMetadata {
            group: self.group.to_string(),
            topic: self.topic.to_string(),
            member: member.to_string(),
            generation,
        });
        if starts.is_empty() && !self.machine.is_alone() {
            tracing::info!(group = %self.group, "nothing is assigned: there are more members than partitions, and this one waits to take over");
        }
        self.common.shared.delivery.install(&starts, member);
        self.begin_reading();
        self.watch();
    }

    /// Looks up again what is committed, after a membership was resumed. Positions stay where they are.
    pub(super) fn refresh_committed(&mut self) {
        let Some(membership) = self.policy().and_then(|policy| policy.membership) else { return };
        let owned: Vec<_> =
            self.common.shared.delivery.partitions().into_iter().map(|(name, owned)| (name, owned.fence)).collect();
        self.run(async move {
            let membership = &membership;
            let fetched = join_all(owned.into_iter().map(|(partition, fence)| async move {
                Some((membership.fetch(partition.partition).await.ok()?, partition, fence))
            }));
            // One that failed stays as it was known; the membership notices a lost coordinator by itself.
            let known = fetched.await.into_iter().flatten().filter(|(offset, _, _)| *offset > 0);
            Outcome::Refreshed(known.map(|(offset, partition, fence)| (partition, (fence, offset))).collect())
        });
    }

    /// Reads these partitions, without a group, from where the application chose or the reset policy says.
    pub(crate) fn assign(&mut self, chosen: BTreeMap<TopicPartition, Option<u64>>) {
        let partitions = chosen.keys().map(|partition| partition.partition).collect();
        self.chosen = chosen.into_iter().filter_map(|(p, offset)| Some((p.partition, offset?))).collect();
        self.feed(Event::Assigned(partitions));
    }

    /// Whom to ask about logs.
    pub(super) fn logs(&self) -> Logs {
        Logs {
            links: Arc::clone(&self.common.links),
            topic: self.topic.clone(),
            isolation: self.common.shared.settings.isolation(),
            member: self.base.clone(),
            stranger: reader_group(&self.group, &self.base),
        }
    }

    /// The reset policy, under the membership of this moment. Nothing where a group has none yet.
    pub(super) fn policy(&self) -> Option<Policy> {
        let (member, generation) = self.machine.identity()?;
        let membership = (!self.machine.is_alone()).then(|| Known {
            coordinator: Arc::clone(&self.coordinator),
            topic: self.topic.clone(),
            group: self.group.clone(),
            member: member.clone(),
            generation,
            over: self.identity.1.clone(),
        });
        Some(Policy { reset: self.common.shared.settings.reset(), logs: self.logs(), membership })
    }

    /// Leaves the group where nobody has polled for too long.
    pub(crate) fn check_activity(&mut self) {
        let limit = self.common.shared.settings.max_poll_interval();
        if self.common.shared.delivery.silent_for().is_some_and(|silent| silent > limit) {
            self.feed(Event::Overdue);
        }
    }

    /// The topic is there, or nobody asks for it any more.
    pub(super) fn forgive_topic(&mut self) {
        self.common.shared.health.recovered(&Part::Topic);
        self.missing_since = None;
    }

    /// METADATA came back: for a session that isn't a member yet, this says whether there is such a topic.
    fn on_leaders(&mut self, ticket: Option<u64>, result: Result<Leadership, CallError>) {
        let health = Arc::clone(&self.common.shared.health);
        match result {
            Ok(leadership) => {
                self.forgive_topic();
                self.take_leaders(&leadership);
                if let Some(ticket) = ticket {
                    self.answer(ticket, Event::Located);
                }
            }
            Err(error) => {
                match &error {
                    CallError::Unsent(why) | CallError::Lost(why) => health.unreachable(Part::Topic, why),
                    other => health.trouble(Part::Topic, &other.to_string()),
                }
                let missing =
                    matches!(&error, CallError::Refused(refused) if refused.meaning() == Meaning::TopicNotFound);
                let since = *self.missing_since.get_or_insert_with(Instant::now);
                if !missing {
                    self.missing_since = None;
                }
                let patience = Duration::from_millis(self.common.shared.settings.topic_missing_timeout_ms);
                if missing && since.elapsed() >= patience {
                    let message = format!(
                        "there is no topic {:?}: every reachable broker has said so for {patience:?}",
                        self.topic.as_str()
                    );
                    let CallError::Refused(refused) = error else { return };
                    self.fail(Error::from_broker(ErrorKind::UnknownTopic, message, refused));
                    return;
                }
                match ticket {
                    Some(ticket) => {
                        let failure = self.failure(error);
                        self.answer(ticket, Event::Failed(failure));
                    }
                    None => self.leaders_failed(),
                }
            }
        }
    }
}

/// What a coordinator's answer means for the membership.
fn failure(error: CallError, (group, topic): &(Group, Topic)) -> Failure {
    let CallError::Refused(refused) = error else { return Failure::Passing };
    let fatal = |kind, message: String| Failure::Fatal(Error::from_broker(kind, message, refused.clone()));
    match refused.meaning() {
        meaning if is_passing(&meaning) => Failure::InTransition,
        Meaning::GenerationMismatch { current } => Failure::GenerationMismatch { current },
        Meaning::MemberNotFound => Failure::UnknownMember,
        Meaning::OtherTopic { expected } => fatal(
            ErrorKind::GroupTopicMismatch,
            format!(
                "group {:?} reads topic {expected:?}, not {:?}: a group reads one topic. Use another group_id",
                group.as_str(),
                topic.as_str()
            ),
        ),
        Meaning::Unauthenticated => {
            fatal(ErrorKind::Authentication, format!("the broker refuses these credentials: {refused}"))
        }
        Meaning::Unauthorized => {
            fatal(ErrorKind::Authorization, format!("not allowed in group {:?}: {refused}", group.as_str()))
        }
        // The topic's absence is judged by METADATA, from all brokers, over a while; a broker that just started says it too.
        Meaning::TopicNotFound => Failure::Passing,
        // A code that nobody foresaw. Closing the consumer over it would be worse than trying on, visibly.
        _ => Failure::Passing,
    }
}
