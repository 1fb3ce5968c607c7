//! One of our members: the machine, what it has under way, and what the engine does for it.

use cursus_wire::Member;
use cursus_wire::reply::Assignment;

use super::coordinator::{Given, Id, Partitions, Refusal, Reply, Request};
use super::properties::{Ledger, Property};
use crate::error::{Error, ErrorKind};
use crate::membership::{Action, Event, Failure, Membership, Phase};

/// A request of a phase, its ticket, and its answer once there is one.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) ticket: u64,
    pub(super) request: Request,
    pub(super) reply: Option<Reply>,
}

/// A heartbeat or a commit.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Signal {
    pub(super) id: Id,
    pub(super) generation: u64,
    /// What a commit is of.
    pub(super) partitions: Partitions,
    pub(super) reply: Option<Result<(), Refusal>>,
}

#[derive(Clone, Debug)]
pub(super) struct OurMember {
    pub(super) machine: Membership,
    pub(super) calls: Vec<Call>,
    pub(super) heartbeat: Option<Signal>,
    pub(super) commit: Option<Signal>,
    /// What is read, under live fences.
    pub(super) reading: Option<Given>,
    /// What SYNC said last, or the application assigned.
    pub(super) said: Option<Given>,
    /// What the last preparation that counted was of.
    pub(super) prepared: Partitions,
    /// Old readers haven't ended yet.
    pub(super) stopping: bool,
    /// The next poll will be told that the member left, and make it join again.
    pub(super) expelled: bool,
    /// A LEAVE since then went wrong: it may not have counted.
    pub(super) let_down: bool,
    /// Who this was when it heard that nobody knows it.
    pub(super) unknown: Option<Id>,
    pub(super) failed: bool,
    pub(super) closed: bool,
    pub(super) done: bool,
    /// Done, and it says that the coordinator knows.
    pub(super) left: bool,
}

pub(super) fn name(id: Id) -> Member {
    Member::new(format!("m-{id}")).expect("a number makes a name")
}

pub(super) fn id(member: &Member) -> Id {
    member.as_str().strip_prefix("m-").and_then(|id| id.parse().ok()).expect("every name is one of ours")
}

fn assignment(given: Given, resumed: bool) -> Assignment {
    let partitions = (0..Partitions::BITS).filter(|partition| given.partitions >> partition & 1 == 1).collect();
    Assignment { generation: given.generation, member: name(given.id), partitions, resumed }
}

pub(super) fn set(partitions: &[u32]) -> Partitions {
    partitions.iter().fold(0, |set, partition| set | 1 << partition)
}

fn failure(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Passing => Failure::Passing,
        Refusal::InTransition => Failure::InTransition,
        Refusal::Mismatch(current) => Failure::GenerationMismatch { current },
        Refusal::Unknown => Failure::UnknownMember,
        Refusal::Fatal => Failure::Fatal(Error::new(ErrorKind::Authorization, "refused for good")),
    }
}

impl OurMember {
    pub(super) fn new(machine: Membership) -> Self {
        Self {
            machine,
            calls: Vec::new(),
            heartbeat: None,
            commit: None,
            reading: None,
            said: None,
            prepared: 0,
            stopping: false,
            expelled: false,
            let_down: false,
            unknown: None,
            failed: false,
            closed: false,
            done: false,
            left: false,
        }
    }

    pub(super) fn identity(&self) -> Option<(Id, u64)> {
        self.machine.identity().map(|(member, generation)| (id(member), generation))
    }

    pub(super) fn reads_what_was_said(&self) -> bool {
        self.reading.is_some() && self.reading == self.said
    }

    pub(super) fn feed(&mut self, event: Event, ledger: &mut Ledger) {
        let actions = self.machine.on(event);
        self.perform(actions, ledger);
    }

    pub(super) fn assign(&mut self, partitions: Partitions, ledger: &mut Ledger) {
        self.said = Some(Given { id: 0, life: 0, generation: 0, partitions });
        self.feed(Event::Assigned(assignment(self.said.expect("just said"), false).partitions), ledger);
    }

    /// The engine ends readers itself before it closes the membership.
    pub(super) fn close(&mut self, ledger: &mut Ledger) {
        self.closed = true;
        self.reading = None;
        self.commit = None;
        self.feed(Event::Close, ledger);
    }

    /// The answer to a request of a phase has come.
    pub(super) fn answered(&mut self, call: &Call, reply: Reply, ledger: &mut Ledger) {
        let counts = call.ticket == self.machine.ticket();
        if let Request::Leave(_, generation) = call.request {
            self.let_down |= match reply {
                Reply::Refused(Refusal::Mismatch(current)) => current < generation,
                Reply::Refused(refusal) => refusal != Refusal::Unknown,
                _ => false,
            };
        }
        if call.request == Request::Join {
            ledger.check(Property::JoinIsAwaited, counts);
        }
        let event = match reply {
            Reply::Joined { given, resumed } => Event::Joined(assignment(given, resumed)),
            Reply::Synced(given) => {
                if counts {
                    self.said = Some(given);
                }
                Event::Synced(assignment(given, false))
            }
            Reply::Refused(refusal) => Event::Failed(failure(refusal)),
            Reply::Done => match call.request {
                Request::Locate => Event::Located,
                Request::Prepare(partitions) => {
                    if counts {
                        self.prepared = partitions;
                    }
                    Event::Prepared
                }
                Request::Pause => Event::Retry,
                _ => Event::Left,
            },
        };
        if counts && reply == Reply::Refused(Refusal::Unknown) {
            self.unknown = call.request.named().map(|(id, _)| id);
        }
        let (before, reading) = ((self.identity(), self.machine.phase()), self.reading);
        let actions = self.machine.on_answer(call.ticket, event);
        if counts {
            self.perform(actions, ledger);
            self.check_news(reading, reply, ledger);
        } else {
            let after = (self.identity(), self.machine.phase());
            ledger.check(Property::LateMeansNothing, actions.is_empty() && after == before);
            self.perform(actions, ledger);
        }
    }

    /// The answer to a heartbeat or commit has come.
    pub(super) fn signalled(&mut self, signal: Signal, reply: Result<(), Refusal>, ledger: &mut Ledger) {
        let generation = signal.generation;
        let event = match reply {
            Ok(()) => Event::Alive { member: name(signal.id), generation },
            Err(refusal) => Event::Fenced { member: name(signal.id), generation, failure: failure(refusal) },
        };
        let (before, reading) = ((self.identity(), self.machine.phase()), self.reading);
        let counts = before.0 == Some((signal.id, generation));
        if counts && reply == Err(Refusal::Unknown) {
            self.unknown = Some(signal.id);
        }
        let actions = self.machine.on(event);
        if counts {
            self.perform(actions, ledger);
            if let Err(refusal) = reply {
                self.check_news(reading, Reply::Refused(refusal), ledger);
            }
        } else {
            // That things go well says nothing wrong about anybody.
            let after = (self.identity(), self.machine.phase());
            ledger.check(Property::LateMeansNothing, reply.is_ok() || actions.is_empty() && after == before);
            self.perform(actions, ledger);
        }
    }

    /// What an answer that counts has done to what was read before.
    fn check_news(&self, before: Option<Given>, reply: Reply, ledger: &mut Ledger) {
        let Some(before) = before else { return };
        let keeps = match reply {
            Reply::Refused(Refusal::Passing | Refusal::InTransition) => true,
            Reply::Refused(Refusal::Mismatch(current)) => current < before.generation,
            Reply::Joined { given, resumed } => resumed && given.generation == before.generation,
            _ => false,
        };
        if keeps {
            ledger.check(Property::KeepsReading, self.reading == Some(before));
        }
        let ends = |generation| self.reading.is_none_or(|reading| generation <= reading.generation);
        match reply {
            Reply::Joined { given, .. } | Reply::Synced(given) => {
                let same = self.reading.is_none_or(|reading| reading.id == given.id);
                ledger.check(Property::NewsEndsFences, same && ends(given.generation));
            }
            Reply::Refused(Refusal::Mismatch(current)) => ledger.check(Property::NewsEndsFences, ends(current)),
            Reply::Refused(Refusal::Unknown) => ledger.check(Property::NewsEndsFences, self.reading.is_none()),
            Reply::Refused(_) | Reply::Done => {}
        }
    }

    fn perform(&mut self, actions: Vec<Action>, ledger: &mut Ledger) {
        let calls = self.calls.len();
        for action in actions {
            self.perform_one(action, ledger);
        }
        ledger.check(Property::OneRequest, self.done || self.calls.len() <= calls + 1);
    }

    fn perform_one(&mut self, action: Action, ledger: &mut Ledger) {
        ledger.check(Property::DoneOnce, !self.done);
        if self.closed {
            let closing = matches!(
                action,
                Action::Leave { .. }
                    | Action::Sync { .. }
                    | Action::Pause
                    | Action::Heartbeat { .. }
                    | Action::Done { .. }
            );
            ledger.check(Property::ClosesOnly, closing);
        }
        if self.machine.is_alone() {
            let own = !matches!(
                action,
                Action::Join { .. }
                    | Action::Sync { .. }
                    | Action::Leave { .. }
                    | Action::Heartbeat { .. }
                    | Action::Expel
                    | Action::EndFences
                    | Action::Refresh
            );
            ledger.check(Property::AloneAsksNobody, own);
        }
        match action {
            Action::Locate => self.ask(Request::Locate, ledger),
            Action::Join { resume: None } => self.ask(Request::Join, ledger),
            Action::Join { resume: Some((member, generation)) } => {
                self.ask(Request::Resume(id(&member), generation), ledger);
            }
            Action::Sync { member, generation } => self.ask(Request::Sync(id(&member), generation), ledger),
            Action::Leave { member, generation } => self.ask(Request::Leave(id(&member), generation), ledger),
            Action::Pause => self.ask(Request::Pause, ledger),
            Action::Prepare { partitions } => {
                ledger.check(Property::AfterStopped, !self.stopping);
                self.ask(Request::Prepare(set(&partitions)), ledger);
            }
            Action::Heartbeat { member, generation } => {
                ledger.check(Property::OneHeartbeat, self.heartbeat.is_none());
                let signal = Signal { id: id(&member), generation, partitions: 0, reply: None };
                self.check_named(signal.id, generation, ledger);
                ledger.check(Property::ForgottenForGood, self.closed || self.unknown != Some(signal.id));
                self.heartbeat = Some(signal);
            }
            Action::EndFences | Action::EndFencesQuietly => self.end_fences(ledger),
            Action::Expel => {
                self.end_fences(ledger);
                self.expelled = true;
                self.let_down = false;
            }
            Action::Install => self.install(ledger),
            Action::Fail => {
                ledger.check(Property::FailsOnce, !self.failed);
                self.failed = true;
            }
            Action::Done { left } => {
                self.left = left;
                ledger.check(Property::DoneOnce, self.closed);
                ledger.check(Property::JoinIsAwaited, self.calls.iter().all(|call| call.request != Request::Join));
                self.done = true;
                // With the engine ends what it waits for.
                self.calls.clear();
                (self.heartbeat, self.commit) = (None, None);
            }
            Action::Progress | Action::Refresh => {}
        }
    }

    fn ask(&mut self, request: Request, ledger: &mut Ledger) {
        if let Some((id, generation)) = request.named() {
            self.check_named(id, generation, ledger);
            // Who leaves asks on: that nobody knows it is then as good as having left.
            if !self.closed && !matches!(request, Request::Leave(..)) {
                ledger.check(Property::ForgottenForGood, self.unknown != Some(id));
            }
        }
        self.calls.push(Call { ticket: self.machine.ticket(), request, reply: None });
    }

    fn check_named(&self, id: Id, generation: u64, ledger: &mut Ledger) {
        ledger.check(Property::NamesItself, self.identity() == Some((id, generation)));
    }

    fn end_fences(&mut self, ledger: &mut Ledger) {
        ledger.check(Property::EndsOnce, self.reading.is_some());
        self.reading = None;
        self.stopping = true;
    }

    fn install(&mut self, ledger: &mut Ledger) {
        ledger.check(Property::AfterStopped, !self.stopping && self.reading.is_none());
        let said = self.said.filter(|said| {
            let who = self.identity() == Some((said.id, said.generation));
            said.partitions == self.prepared && who
        });
        ledger.check(Property::InstallsWhatWasSaid, said.is_some());
        self.reading = said;
    }

    /// What must hold in each state.
    pub(super) fn check(&self, ledger: &mut Ledger) {
        let phase = self.machine.phase();
        if let Some(reading) = self.reading {
            let now = self.identity() == Some((reading.id, reading.generation));
            ledger.check(Property::FencesAreOfNow, now && self.machine.is_reading());
        } else {
            ledger.check(Property::FencesAreOfNow, !self.machine.is_reading());
        }
        if matches!(phase, Phase::Departing | Phase::Away | Phase::Leaving | Phase::Over) {
            ledger.check(Property::NoFencesAway, self.reading.is_none() && !self.machine.is_reading());
        }
        if self.machine.may_commit() {
            let reading = self.reading.map(|reading| (reading.id, reading.generation));
            let known = phase == Phase::Stable && !self.closed && !self.machine.is_alone();
            ledger.check(Property::CommitsUnderFences, known && reading.is_some() && reading == self.identity());
        }
        if self.machine.is_member() {
            ledger.check(Property::OneHeartbeat, self.identity().is_some() && !self.machine.is_alone());
        }
        let waits = match phase {
            Phase::New | Phase::Stable | Phase::Over => true,
            Phase::Stopping => self.stopping,
            Phase::Away => self.expelled || self.closed,
            // The engine closes it.
            _ if self.failed && !self.closed => true,
            _ => self.calls.iter().any(|call| call.ticket == self.machine.ticket()),
        };
        ledger.check(Property::WaitsForSomething, waits);
    }
}
