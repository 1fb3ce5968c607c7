//! Membership in a group as a pure state machine: events in, actions out. It knows no socket, no clock and no task, so
//! that tests drive it through every order of events.
//!
//! Two things live beside each other: the *phase*, which is about the coordinator (joining, syncing, …), and the *fences*,
//! which are about the records being read. Fences live from the installation of an assignment to the first news that the
//! group has moved on; a lost coordinator alone doesn't end them.

use cursus_wire::Member;
use cursus_wire::reply::Assignment;

use crate::error::Error;

/// Why a request to the coordinator failed, as far as membership cares.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// Out of reach, or not sure of itself: try again.
    Passing,
    /// It answers that it can't just now, while leaders change or it reads its log: it will, in seconds.
    InTransition,
    /// The group is at another generation.
    GenerationMismatch { current: u64 },
    /// The group doesn't know this member, or the broker doesn't know the group.
    UnknownMember,
    /// Trying again gives the same.
    Fatal(Error),
}

/// What happened.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// The application wants to read.
    Start,
    /// The topic was found, and so was somebody to ask about it.
    Located,
    Joined(Assignment),
    Synced(Assignment),
    /// Committed offsets are known for the whole assignment.
    Prepared,
    /// The request that `ticket` stands for failed.
    Failed(Failure),
    /// Everything that ran under the old fences has ended.
    Stopped,
    /// The pause before trying again is over.
    Retry,
    /// It is time for a heartbeat.
    HeartbeatDue,
    /// A heartbeat or commit of this member at this generation was answered.
    Alive {
        member: Member,
        generation: u64,
    },
    /// A heartbeat or commit of this member at this generation failed.
    Fenced {
        member: Member,
        generation: u64,
        failure: Failure,
    },
    /// Nobody has polled for too long.
    Overdue,
    /// Somebody polls again.
    Rejoin,
    /// Without a group: the application wants to read these partitions.
    Assigned(Vec<u32>),
    /// The application closes, and what it had to commit is committed.
    Close,
    Left,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Check that the topic exists.
    Locate,
    /// JOIN_GROUP: afresh, or to resume a membership.
    Join {
        resume: Option<(Member, u64)>,
    },
    Sync {
        member: Member,
        generation: u64,
    },
    Heartbeat {
        member: Member,
        generation: u64,
    },
    Leave {
        member: Member,
        generation: u64,
    },
    /// End all fences at once, stop what runs under them, then say [`Event::Stopped`].
    EndFences,
    /// The same where the application asked for it, and need not be told.
    EndFencesQuietly,
    /// The same where the member leaves because nobody polls, which the next poll has to be told.
    Expel,
    /// Find out where to read on for these partitions, then say [`Event::Prepared`].
    Prepare {
        partitions: Vec<u32>,
    },
    /// Give the prepared assignment new fences and read it.
    Install,
    /// Look up committed offsets again, without touching fences or positions.
    Refresh,
    /// Pause, longer each time, then say [`Event::Retry`].
    Pause,
    /// The pauses start short again.
    Progress,
    /// The consumer can't go on.
    Fail,
    /// Membership is over; `left`: the coordinator knows, or never knew of it.
    Done {
        left: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    New,
    Locating,
    Joining,
    Resuming,
    Syncing,
    /// Synced, and waiting for old readers to end.
    Stopping,
    Preparing,
    Stable,
    /// Leaving because nobody polls.
    Departing,
    /// Left because nobody polls, until somebody does.
    Away,
    Leaving,
    Over,
}

/// How many times LEAVE is tried, while nobody says that it will be taken in a moment.
const MOST_LEAVES: u32 = 6;

/// One membership in one group.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    phase: Phase,
    /// Whether the phase waits for [`Event::Retry`] rather than for an answer, or, once it was refused for good, for nothing.
    pausing: bool,
    /// Who this is in the group, once it has said so, and at which generation.
    identity: Option<(Member, u64)>,
    partitions: Vec<u32>,
    fences: bool,
    /// Old readers haven't ended yet.
    stopping: bool,
    heartbeat_open: bool,
    closing: bool,
    /// How many times in a row SYNC was outrun by another generation.
    outrun: u32,
    /// How many times in a row the coordinator named a generation before ours.
    behind: u32,
    /// Whether this identity has ever had an assignment installed.
    settled: bool,
    /// How many times LEAVE was tried.
    leaves: u32,
    /// Somebody polls again already, while the member still departs.
    rejoining: bool,
    /// There is no group: the application decides what is read.
    alone: bool,
    error: Option<Error>,
    /// Which request of the phase is the current one: an answer to any other comes too late to mean anything.
    ticket: u64,
}

impl Membership {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::New,
            pausing: false,
            identity: None,
            partitions: Vec::new(),
            fences: false,
            stopping: false,
            heartbeat_open: false,
            closing: false,
            outrun: 0,
            behind: 0,
            settled: false,
            leaves: 0,
            rejoining: false,
            alone: false,
            error: None,
            ticket: 0,
        }
    }

    /// Somebody who reads by itself, in no group. The name is for requests that want one.
    pub(crate) fn alone(name: Member) -> Self {
        Self { alone: true, identity: Some((name, 0)), ..Self::new() }
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Whether another assignment, for the same member, is on its way.
    pub(crate) fn is_settling(&self) -> bool {
        matches!(self.phase, Phase::Resuming | Phase::Syncing | Phase::Stopping | Phase::Preparing)
    }

    /// Whether an assignment is being read.
    pub(crate) fn is_reading(&self) -> bool {
        self.fences
    }

    /// The ticket of the phase's current request: the one that the last of Locate, Join, Sync, Leave, Prepare or Pause
    /// began.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Takes the answer to the request that was begun under a ticket.
    pub(crate) fn on_answer(&mut self, ticket: u64, event: Event) -> Vec<Action> {
        if ticket == self.ticket { self.on(event) } else { Vec::new() }
    }

    /// The heartbeat on its way was answered, or never will be: the next one may go.
    pub(crate) fn heartbeat_answered(&mut self) {
        self.heartbeat_open = false;
    }

    fn ask(&mut self, action: Action, actions: &mut Vec<Action>) {
        self.ticket += 1;
        self.pausing = action == Action::Pause;
        actions.push(action);
    }

    #[cfg(test)]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn identity(&self) -> Option<(&Member, u64)> {
        self.identity.as_ref().map(|(member, generation)| (member, *generation))
    }

    /// Whether commits may be sent: the coordinator is believed to know this member, and the fences live.
    pub(crate) fn may_commit(&self) -> bool {
        self.fences && self.phase == Phase::Stable && !self.alone
    }

    /// Whether heartbeats are due at all.
    pub(crate) fn is_member(&self) -> bool {
        self.identity.is_some()
            && !self.alone
            && matches!(self.phase, Phase::Syncing | Phase::Stopping | Phase::Preparing | Phase::Stable)
    }

    /// The error behind [`Action::Fail`].
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Takes an event, gives what to do.
    pub(crate) fn on(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Start if self.phase == Phase::New && !self.alone => self.locate(&mut actions),
            Event::Assigned(partitions) if self.alone => self.assigned(partitions, &mut actions),
            Event::Located if self.phase == Phase::Locating && !self.pausing => {
                if self.alone {
                    self.prepare(&mut actions);
                } else {
                    self.join(&mut actions);
                }
            }
            Event::Joined(assignment) if matches!(self.phase, Phase::Joining | Phase::Resuming) && !self.pausing => {
                self.joined(assignment, &mut actions);
            }
            Event::Synced(assignment) if self.phase == Phase::Syncing && !self.pausing => {
                self.synced(assignment, &mut actions);
            }
            Event::Prepared if self.phase == Phase::Preparing && !self.pausing => {
                self.phase = Phase::Stable;
                self.fences = true;
                self.settled = true;
                self.outrun = 0;
                actions.extend([Action::Progress, Action::Install]);
            }
            Event::Failed(failure)
                if !self.pausing
                    && !matches!(
                        self.phase,
                        Phase::New | Phase::Stopping | Phase::Stable | Phase::Away | Phase::Over
                    ) =>
            {
                self.failed(failure, &mut actions);
            }
            Event::Stopped => {
                self.stopping = false;
                if self.phase == Phase::Stopping {
                    self.prepare(&mut actions);
                }
            }
            Event::Retry if self.pausing => self.retry(&mut actions),
            Event::HeartbeatDue if !self.heartbeat_open && self.is_member() => {
                if let Some((member, generation)) = self.identity.clone() {
                    self.heartbeat_open = true;
                    actions.push(Action::Heartbeat { member, generation });
                }
            }
            Event::Alive { member, generation }
                if self.is_current(&member, generation) && self.phase == Phase::Stable =>
            {
                actions.push(Action::Progress);
            }
            // An answer about a generation that this member has left already says nothing new. Nor does one about who it was
            // before: a broker that begins anew counts its generations from 1 again.
            Event::Fenced { member, generation, failure } if self.is_current(&member, generation) => {
                self.fenced(failure, &mut actions);
            }
            Event::Overdue if self.fences && !self.closing && !self.alone => self.depart(&mut actions),
            Event::Rejoin if self.phase == Phase::Away => self.join(&mut actions),
            Event::Rejoin if self.phase == Phase::Departing => self.rejoining = true,
            Event::Close => self.close(&mut actions),
            Event::Left if self.phase == Phase::Departing => self.away(&mut actions),
            Event::Left if self.phase == Phase::Leaving => self.over(true, &mut actions),
            _ => {}
        }
        actions
    }

    fn is_current(&self, member: &Member, generation: u64) -> bool {
        self.identity() == Some((member, generation))
    }

    fn locate(&mut self, actions: &mut Vec<Action>) {
        self.phase = Phase::Locating;
        self.ask(Action::Locate, actions);
    }

    fn join(&mut self, actions: &mut Vec<Action>) {
        self.phase = if self.identity.is_some() { Phase::Resuming } else { Phase::Joining };
        self.ask(Action::Join { resume: self.identity.clone() }, actions);
    }

    fn joined(&mut self, assignment: Assignment, actions: &mut Vec<Action>) {
        let resumed = self.phase == Phase::Resuming && self.is_current(&assignment.member, assignment.generation);
        self.identity = Some((assignment.member, assignment.generation));
        if self.closing {
            self.leave(actions);
        } else if resumed && self.fences {
            // The same generation is the same assignment: what is being read stays valid.
            self.phase = Phase::Stable;
            actions.extend([Action::Progress, Action::Refresh]);
        } else {
            // Another member may have joined since: only SYNC is believed.
            self.end_fences(actions);
            self.sync(actions);
        }
    }

    /// The application has chosen what to read, perhaps once more.
    fn assigned(&mut self, partitions: Vec<u32>, actions: &mut Vec<Action>) {
        self.partitions = partitions;
        match self.phase {
            Phase::New => self.locate(actions),
            Phase::Preparing => self.prepare(actions),
            Phase::Stable => {
                self.fences = false;
                self.stopping = true;
                self.phase = Phase::Stopping;
                actions.push(Action::EndFencesQuietly);
            }
            // What is under way comes to it.
            _ => {}
        }
    }

    /// Nobody polls: others had better read what this member doesn't.
    fn depart(&mut self, actions: &mut Vec<Action>) {
        self.fences = false;
        self.stopping = true;
        self.rejoining = false;
        self.leaves = 0;
        actions.push(Action::Expel);
        self.take_leave(actions);
    }

    fn take_leave(&mut self, actions: &mut Vec<Action>) {
        self.phase = Phase::Departing;
        self.leaves += 1;
        match self.identity.clone() {
            Some((member, generation)) => self.ask(Action::Leave { member, generation }, actions),
            None => self.away(actions),
        }
    }

    /// A LEAVE that was outrun goes again; where the coordinator is out of reach, the member expires by itself.
    fn failed_to_depart(&mut self, failure: &Failure, actions: &mut Vec<Action>) {
        match failure {
            Failure::GenerationMismatch { current } if self.leaves < MOST_LEAVES => {
                self.at_generation(*current);
                self.take_leave(actions);
            }
            Failure::Passing | Failure::InTransition if self.leaves < MOST_LEAVES => {
                self.ask(Action::Pause, actions);
            }
            _ => self.away(actions),
        }
    }

    fn away(&mut self, actions: &mut Vec<Action>) {
        self.identity = None;
        self.leaves = 0;
        self.phase = Phase::Away;
        if std::mem::take(&mut self.rejoining) {
            self.join(actions);
        }
    }

    fn sync(&mut self, actions: &mut Vec<Action>) {
        match self.identity.clone() {
            Some((member, generation)) => {
                self.phase = Phase::Syncing;
                self.ask(Action::Sync { member, generation }, actions);
            }
            // Who isn't a member has nothing to synchronise.
            None => self.pause_to_join(actions),
        }
    }

    fn pause_to_join(&mut self, actions: &mut Vec<Action>) {
        self.phase = Phase::Joining;
        self.ask(Action::Pause, actions);
    }

    fn synced(&mut self, assignment: Assignment, actions: &mut Vec<Action>) {
        self.behind = 0;
        self.identity = Some((assignment.member, assignment.generation));
        self.partitions = assignment.partitions;
        if self.closing {
            self.leave(actions);
        } else if self.stopping {
            self.phase = Phase::Stopping;
        } else {
            self.prepare(actions);
        }
    }

    fn prepare(&mut self, actions: &mut Vec<Action>) {
        self.phase = Phase::Preparing;
        self.ask(Action::Prepare { partitions: self.partitions.clone() }, actions);
    }

    /// The request of the present phase failed.
    fn failed(&mut self, failure: Failure, actions: &mut Vec<Action>) {
        if self.closing {
            return self.failed_to_leave(&failure, actions);
        }
        if self.phase == Phase::Departing {
            return self.failed_to_depart(&failure, actions);
        }
        match failure {
            Failure::Passing | Failure::InTransition => {
                self.ask(Action::Pause, actions);
            }
            Failure::GenerationMismatch { current } => self.moved_on(current, actions),
            Failure::UnknownMember => self.forgotten(actions),
            Failure::Fatal(error) => {
                self.pausing = true;
                self.fail(error, actions);
            }
        }
    }

    /// A LEAVE that was outrun is synchronised, one that met a cluster in transition is tried again for as long as close has
    /// time. Brokers that are gone don't hold it up until then.
    fn failed_to_leave(&mut self, failure: &Failure, actions: &mut Vec<Action>) {
        match failure {
            // Already gone is as good as left.
            Failure::UnknownMember => self.over(true, actions),
            Failure::GenerationMismatch { current } if self.leaves < MOST_LEAVES => {
                self.at_generation(*current);
                self.sync(actions);
            }
            Failure::Passing | Failure::InTransition
                if self.identity.is_some()
                    && (self.leaves < MOST_LEAVES || matches!(failure, Failure::InTransition)) =>
            {
                self.phase = Phase::Leaving;
                self.ask(Action::Pause, actions);
            }
            _ => self.over(false, actions),
        }
    }

    fn retry(&mut self, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Locating => self.locate(actions),
            // A lost connection may have been a lost coordinator: resume first, which also finds the new one.
            Phase::Joining | Phase::Resuming => self.join(actions),
            Phase::Syncing => self.sync(actions),
            Phase::Preparing => self.prepare(actions),
            Phase::Departing => self.take_leave(actions),
            Phase::Leaving => self.leave(actions),
            _ => {}
        }
    }

    /// A heartbeat or a commit learned something about the membership.
    fn fenced(&mut self, failure: Failure, actions: &mut Vec<Action>) {
        if self.closing || self.phase == Phase::Departing {
            if let Failure::GenerationMismatch { current } = failure {
                self.at_generation(current);
            }
            return;
        }
        match failure {
            Failure::GenerationMismatch { current } => self.moved_on(current, actions),
            Failure::UnknownMember => self.forgotten(actions),
            Failure::Fatal(error) => self.fail(error, actions),
            // Reading goes on. In the other phases a request is open or paused already, and finds out by itself.
            Failure::Passing | Failure::InTransition if self.phase == Phase::Stable => self.join(actions),
            Failure::Passing | Failure::InTransition => {}
        }
    }

    /// The group is at another generation: nothing read so far is ours any more, and SYNC says what is.
    fn moved_on(&mut self, current: u64, actions: &mut Vec<Action>) {
        if self.is_behind(current) {
            // Generations only grow: a coordinator that names an older one is still reading its log.
            return match self.phase {
                Phase::Stable => self.join(actions),
                Phase::Locating | Phase::Joining | Phase::Resuming | Phase::Syncing | Phase::Preparing => {
                    self.ask(Action::Pause, actions);
                }
                _ => {}
            };
        }
        self.end_fences(actions);
        self.at_generation(current);
        self.outrun += 1;
        if self.outrun > 3 {
            // Members come and go faster than we synchronise: no need to be part of the storm.
            self.phase = Phase::Syncing;
            self.ask(Action::Pause, actions);
        } else {
            self.sync(actions);
        }
    }

    /// Whether a coordinator that names this generation isn't to be believed yet. One that insists is.
    fn is_behind(&mut self, current: u64) -> bool {
        const BELIEVED_AFTER: u32 = 10;
        let behind = self.identity.as_ref().is_some_and(|(_, generation)| current < *generation);
        self.behind = if behind { self.behind + 1 } else { 0 };
        behind && self.behind <= BELIEVED_AFTER
    }

    /// The coordinator has forgotten this member: begin again as a new one.
    fn forgotten(&mut self, actions: &mut Vec<Action>) {
        self.end_fences(actions);
        self.identity = None;
        if std::mem::take(&mut self.settled) {
            self.join(actions);
        } else {
            // It was forgotten before it had anything. To join again at once could leave ghosts without end.
            self.pause_to_join(actions);
        }
    }

    /// The first error is the one that the consumer ends with. Until it is closed for that, others may come in.
    fn fail(&mut self, error: Error, actions: &mut Vec<Action>) {
        if self.error.is_none() {
            self.error = Some(error);
            actions.push(Action::Fail);
        }
    }

    fn end_fences(&mut self, actions: &mut Vec<Action>) {
        if self.fences {
            self.fences = false;
            self.stopping = true;
            actions.push(Action::EndFences);
        }
    }

    fn at_generation(&mut self, current: u64) {
        if let Some((_, generation)) = &mut self.identity {
            *generation = current;
        }
    }

    fn close(&mut self, actions: &mut Vec<Action>) {
        if self.closing {
            return;
        }
        self.closing = true;
        self.outrun = 0;
        self.fences = false;
        match self.phase {
            // A JOIN on its way may make a member: its answer is awaited, so that the member can leave. One that was refused
            // for good has its answer.
            Phase::Joining if !self.pausing => {}
            _ if self.identity.is_some() && !self.alone => self.leave(actions),
            _ => self.over(true, actions),
        }
    }

    fn leave(&mut self, actions: &mut Vec<Action>) {
        self.phase = Phase::Leaving;
        self.leaves += 1;
        if let Some((member, generation)) = self.identity.clone() {
            self.ask(Action::Leave { member, generation }, actions);
        }
    }

    fn over(&mut self, left: bool, actions: &mut Vec<Action>) {
        self.phase = Phase::Over;
        actions.push(Action::Done { left });
    }
}

#[cfg(test)]
mod exploration;
#[cfg(test)]
mod tests;
