//! What can happen next, and how much of it.

use super::coordinator::{Id, Partitions, Refusal, Request};
use super::member::OurMember;
use super::world::World;

/// How much may happen that doesn't follow from anything.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Chances {
    /// How many things may go wrong, of any kind, in any order: a request or an answer is lost, or arrives after it was given
    /// up; the coordinator refuses for a while or for good, names a generation of the past, lets a member expire, or begins
    /// from nothing; a stranger joins; nobody polls for too long.
    pub(super) mishaps: u8,
    /// Commits that are sent.
    pub(super) commits: u8,
    /// Members that the application closes.
    pub(super) closes: u8,
    /// Without a group: how often the application assigns after the first time.
    pub(super) assignments: u8,
    /// Whether other things may happen between what the coordinator does and the arrival of its answer, while heartbeats and
    /// commits are on their way, and before answers arrive that nobody waits for any more.
    pub(super) slow: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Heartbeat,
    Commit,
}

/// What can happen. The first number says to which of our members, the second to which of its requests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The coordinator carries out a request; the answer is on its way.
    CarryOut(usize, usize),
    /// The answer arrives.
    Answer(usize, usize),
    /// A request is lost, and never arrives.
    Lose(usize, usize),
    /// A request is given up, and arrives later.
    Delay(usize, usize),
    /// One of those arrives.
    Arrive(usize),
    Refuse(usize, usize, Refusal),
    HeartbeatDue(usize),
    Commit(usize),
    CarryOutSignal(usize, Kind),
    AnswerSignal(usize, Kind),
    LoseSignal(usize, Kind),
    RefuseSignal(usize, Kind, Refusal),
    /// A heartbeat fails, where none is ever on its way.
    HeartbeatFails(usize, Refusal),
    Stopped(usize),
    Overdue(usize),
    Rejoin(usize),
    Assign(usize, Partitions),
    Close(usize),
    StrangerJoins,
    Expire(Id),
    Restart,
}

impl World {
    /// Whether a step belongs to a world in which nothing goes wrong.
    pub(super) fn is_kind(&self, step: Step) -> bool {
        match step {
            Step::CarryOut(..)
            | Step::Answer(..)
            | Step::HeartbeatDue(_)
            | Step::CarryOutSignal(..)
            | Step::AnswerSignal(..)
            | Step::Stopped(_)
            | Step::Rejoin(_) => true,
            // The engine closes a consumer that failed.
            Step::Close(member) => self.members[member].failed,
            _ => false,
        }
    }

    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, member) in self.members.iter().enumerate().filter(|(_, member)| !member.done) {
            self.steps_of_calls(at, member, &mut steps);
            self.steps_of_signals(at, member, &mut steps);
            if member.stopping {
                steps.push(Step::Stopped(at));
            }
            if member.machine.is_member() {
                steps.push(Step::HeartbeatDue(at));
                if !self.chances.slow && self.chances.mishaps > 0 {
                    let refusals = self.refusals(true).chain([Refusal::Passing]);
                    steps.extend(refusals.map(|refusal| Step::HeartbeatFails(at, refusal)));
                }
            }
            if member.machine.may_commit() && member.commit.is_none() && self.chances.commits > 0 {
                steps.push(Step::Commit(at));
            }
            if member.reading.is_some() && self.chances.mishaps > 0 {
                steps.push(Step::Overdue(at));
            }
            if member.expelled && !member.closed {
                steps.push(Step::Rejoin(at));
            }
            if member.machine.is_alone() && self.chances.assignments > 0 && !member.closed {
                steps.extend([Step::Assign(at, 2), Step::Assign(at, 3)]);
            }
            if !member.closed && (self.chances.closes > 0 || member.failed) {
                steps.push(Step::Close(at));
            }
        }
        steps.extend((0..self.delayed.len()).map(Step::Arrive));
        if self.coordinator.generation > 0 && self.chances.mishaps > 0 {
            steps.extend([Step::StrangerJoins, Step::Restart]);
            steps.extend(self.coordinator.members.iter().copied().map(Step::Expire));
        }
        steps
    }

    fn steps_of_calls(&self, at: usize, member: &OurMember, steps: &mut Vec<Step>) {
        for (number, call) in member.calls.iter().enumerate() {
            let waits = call.reply.is_none();
            if waits && call.request.is_for_coordinator() {
                steps.push(Step::CarryOut(at, number));
                if self.chances.mishaps > 0 {
                    steps.push(Step::Delay(at, number));
                }
            } else {
                steps.push(Step::Answer(at, number));
            }
            if self.chances.mishaps > 0 && call.request != Request::Pause {
                steps.push(Step::Lose(at, number));
            }
            // An answer that doesn't count is the same whatever it says.
            if waits && call.ticket == member.machine.ticket() && call.request != Request::Pause {
                steps.extend(
                    self.refusals(call.request.named().is_some()).map(|refusal| Step::Refuse(at, number, refusal)),
                );
            }
        }
    }

    fn steps_of_signals(&self, at: usize, member: &OurMember, steps: &mut Vec<Step>) {
        for (kind, signal) in [(Kind::Heartbeat, member.heartbeat), (Kind::Commit, member.commit)] {
            let Some(signal) = signal else { continue };
            if signal.reply.is_some() {
                steps.push(Step::AnswerSignal(at, kind));
            } else {
                steps.push(Step::CarryOutSignal(at, kind));
                steps.extend(self.refusals(true).map(|refusal| Step::RefuseSignal(at, kind, refusal)));
                if kind == Kind::Commit && self.chances.mishaps > 0 {
                    // How membership is told that a partition isn't its own.
                    steps.push(Step::RefuseSignal(at, kind, Refusal::Mismatch(signal.generation)));
                }
            }
            if self.chances.mishaps > 0 {
                steps.push(Step::LoseSignal(at, kind));
            }
        }
    }

    fn refusals(&self, names_generation: bool) -> impl Iterator<Item = Refusal> + use<'_> {
        let generation = self.coordinator.generation;
        let echo = (names_generation && generation > 1).then(|| Refusal::Mismatch(generation - 1));
        let refusals = [Some(Refusal::InTransition), Some(Refusal::Fatal), echo];
        refusals.into_iter().flatten().filter(move |_| self.chances.mishaps > 0)
    }

    /// What a step is about, for people.
    pub(super) fn describe(&self, step: Step) -> String {
        match step {
            Step::CarryOut(at, number)
            | Step::Answer(at, number)
            | Step::Lose(at, number)
            | Step::Delay(at, number)
            | Step::Refuse(at, number, _) => {
                let call = &self.members[at].calls[number];
                let late = if call.ticket == self.members[at].machine.ticket() { "" } else { ", of an older request" };
                let reply = call.reply.map_or(String::new(), |reply| format!(" -> {reply:?}"));
                format!("{step:?}: {:?}{reply}{late}", call.request)
            }
            Step::AnswerSignal(at, Kind::Heartbeat) | Step::LoseSignal(at, Kind::Heartbeat) => {
                format!("{step:?}: {:?}", self.members[at].heartbeat)
            }
            Step::AnswerSignal(at, Kind::Commit) | Step::LoseSignal(at, Kind::Commit) => {
                format!("{step:?}: {:?}", self.members[at].commit)
            }
            Step::Arrive(number) => format!("{step:?}: {:?}", self.delayed[number]),
            _ => format!("{step:?}"),
        }
    }
}
