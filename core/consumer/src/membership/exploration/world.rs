//! A small world: our members, the coordinator, the network between them, and how much may still go wrong. Each step is one
//! event; what it leads to is another world.

use std::iter::repeat_with;

use super::coordinator::{Coordinator, Refusal, Reply, Request};
use super::member::{Call, OurMember, Signal, name};
use super::properties::{Ledger, Property};
use super::steps::{Chances, Kind, Step};
use crate::membership::{Event, Membership, Phase};

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) members: Vec<OurMember>,
    pub(super) coordinator: Coordinator,
    /// Requests that whoever sent them has given up, and that haven't arrived.
    pub(super) delayed: Vec<Request>,
    pub(super) chances: Chances,
}

impl World {
    /// Some members of a group, all of which have been told to start, and where nothing is slow have found their topic.
    pub(super) fn group(members: usize, chances: Chances) -> Self {
        let mut ledger = Ledger::new();
        let member = || {
            let mut member = OurMember::new(Membership::new());
            member.feed(Event::Start, &mut ledger);
            if !chances.slow
                && let Some(locate) = member.calls.pop()
            {
                member.answered(&locate, Reply::Done, &mut ledger);
            }
            member
        };
        Self {
            members: repeat_with(member).take(members).collect(),
            coordinator: Coordinator::new(),
            delayed: Vec::new(),
            chances,
        }
    }

    /// One who reads without a group.
    pub(super) fn alone(chances: Chances) -> Self {
        let mut member = OurMember::new(Membership::alone(name(0)));
        member.assign(1, &mut Ledger::new());
        Self { members: vec![member], coordinator: Coordinator::new(), delayed: Vec::new(), chances }
    }

    /// Each member reads at the group's generation, or is done where it was closed.
    pub(super) fn is_home(&self) -> bool {
        self.members.iter().all(|member| {
            if member.closed {
                member.done
            } else if member.machine.is_alone() {
                member.reads_what_was_said()
            } else {
                let now = member.identity().is_some_and(|(id, generation)| {
                    self.coordinator.verdict(id, generation) == Ok(())
                        && member.reading == Some(self.coordinator.given(id))
                });
                now && member.machine.may_commit()
            }
        })
    }

    pub(super) fn check(&self, ledger: &mut Ledger) {
        for (at, member) in self.members.iter().enumerate() {
            member.check(ledger);
            for other in &self.members[..at] {
                let (Some(mine), Some(theirs)) = (member.reading, other.reading) else { continue };
                if (mine.life, mine.generation) == (theirs.life, theirs.generation) {
                    ledger.check(Property::ReadersApart, mine.partitions & theirs.partitions == 0);
                }
            }
        }
    }

    /// The world after a step.
    pub(super) fn after(&self, step: Step, ledger: &mut Ledger) -> Self {
        let mut world = self.clone();
        world.take(step, ledger);
        if !self.chances.slow {
            world.end_late_calls(ledger);
        }
        for (before, after) in self.members.iter().zip(&world.members) {
            let says_so = after.left && !before.left && !after.machine.is_alone();
            let departed = before.machine.phase() == Phase::Departing && after.identity().is_none() && !after.let_down;
            if let Some((id, _)) = before.identity().filter(|_| says_so || departed) {
                ledger.check(Property::LeftIsLeft, !world.coordinator.knows(id));
            }
        }
        world
    }

    fn end_late_calls(&mut self, ledger: &mut Ledger) {
        for member in &mut self.members {
            let current = member.machine.ticket();
            let is_late = |call: &Call| call.ticket != current && !call.request.has_effect();
            while let Some(number) = member.calls.iter().position(is_late) {
                let call = member.calls.remove(number);
                let reply = self.coordinator.carry_out(call.request);
                member.answered(&call, reply, ledger);
            }
        }
    }

    fn take(&mut self, step: Step, ledger: &mut Ledger) {
        match step {
            Step::CarryOut(at, number) => {
                let member = &mut self.members[at];
                let reply = self.coordinator.carry_out(member.calls[number].request);
                if self.chances.slow && member.calls[number].ticket == member.machine.ticket() {
                    member.calls[number].reply = Some(reply);
                } else {
                    // When an answer arrives that doesn't count makes no difference.
                    let call = member.calls.remove(number);
                    member.answered(&call, reply, ledger);
                }
            }
            Step::Answer(at, number) => {
                let call = self.members[at].calls.remove(number);
                self.members[at].answered(&call, call.reply.unwrap_or(Reply::Done), ledger);
            }
            Step::Lose(at, number) => {
                self.chances.mishaps -= 1;
                let call = self.members[at].calls.remove(number);
                self.members[at].answered(&call, Reply::Refused(Refusal::Passing), ledger);
            }
            Step::Delay(at, number) => {
                self.chances.mishaps -= 1;
                let call = self.members[at].calls.remove(number);
                self.delayed.push(call.request);
                self.members[at].answered(&call, Reply::Refused(Refusal::Passing), ledger);
            }
            Step::Arrive(number) => {
                let request = self.delayed.remove(number);
                self.coordinator.carry_out(request);
            }
            Step::Refuse(at, number, refusal) => {
                self.chances.mishaps -= 1;
                let call = self.members[at].calls.remove(number);
                self.members[at].answered(&call, Reply::Refused(refusal), ledger);
            }
            Step::HeartbeatDue(at) => {
                self.members[at].feed(Event::HeartbeatDue, ledger);
                self.hurry(at, Kind::Heartbeat, ledger);
            }
            Step::Commit(at) => {
                self.chances.commits -= 1;
                let member = &mut self.members[at];
                // Without either the commit's own property is broken.
                if let (Some((id, generation)), Some(reading)) = (member.identity(), member.reading) {
                    let partitions = reading.partitions;
                    member.commit = Some(Signal { id, generation, partitions, reply: None });
                }
                self.hurry(at, Kind::Commit, ledger);
            }
            Step::CarryOutSignal(at, kind) => self.carry_out_signal(at, kind, ledger),
            Step::AnswerSignal(at, kind) => self.answer_signal(at, kind, ledger),
            Step::LoseSignal(at, kind) => {
                self.chances.mishaps -= 1;
                self.signalled(at, kind, Err(Refusal::Passing), ledger);
            }
            Step::RefuseSignal(at, kind, refusal) => {
                self.chances.mishaps -= 1;
                self.signalled(at, kind, Err(refusal), ledger);
            }
            Step::HeartbeatFails(at, refusal) => {
                self.chances.mishaps -= 1;
                self.members[at].feed(Event::HeartbeatDue, ledger);
                self.signalled(at, Kind::Heartbeat, Err(refusal), ledger);
            }
            Step::Stopped(at) => {
                self.members[at].stopping = false;
                self.members[at].feed(Event::Stopped, ledger);
            }
            Step::Overdue(at) => {
                self.chances.mishaps -= 1;
                self.members[at].feed(Event::Overdue, ledger);
            }
            Step::Rejoin(at) => {
                self.members[at].expelled = false;
                self.members[at].feed(Event::Rejoin, ledger);
            }
            Step::Assign(at, partitions) => {
                self.chances.assignments -= 1;
                self.members[at].assign(partitions, ledger);
            }
            Step::Close(at) => {
                self.chances.closes = self.chances.closes.saturating_sub(1);
                self.members[at].close(ledger);
            }
            Step::StrangerJoins => {
                self.chances.mishaps -= 1;
                self.coordinator.join();
            }
            Step::Expire(id) => {
                self.chances.mishaps -= 1;
                self.coordinator.remove(id);
            }
            Step::Restart => {
                self.chances.mishaps -= 1;
                self.coordinator.restart();
            }
        }
    }

    fn carry_out_signal(&mut self, at: usize, kind: Kind, ledger: &mut Ledger) {
        let coordinator = self.coordinator.clone();
        let Some(signal) = self.signal(at, kind) else { return };
        let verdict = coordinator.verdict(signal.id, signal.generation);
        signal.reply = Some(verdict);
        if kind == Kind::Commit && verdict.is_ok() {
            let owned = coordinator.given(signal.id).partitions;
            ledger.check(Property::CommitsWhatIsOwned, signal.partitions & !owned == 0);
        }
    }

    fn answer_signal(&mut self, at: usize, kind: Kind, ledger: &mut Ledger) {
        if let Some(reply) = self.signal(at, kind).as_ref().and_then(|signal| signal.reply) {
            self.signalled(at, kind, reply, ledger);
        }
    }

    /// Where nothing is slow a heartbeat or commit is answered before anything else happens.
    fn hurry(&mut self, at: usize, kind: Kind, ledger: &mut Ledger) {
        if !self.chances.slow {
            self.carry_out_signal(at, kind, ledger);
            self.answer_signal(at, kind, ledger);
        }
    }

    fn signal(&mut self, at: usize, kind: Kind) -> &mut Option<Signal> {
        let member = &mut self.members[at];
        match kind {
            Kind::Heartbeat => &mut member.heartbeat,
            Kind::Commit => &mut member.commit,
        }
    }

    fn signalled(&mut self, at: usize, kind: Kind, reply: Result<(), Refusal>, ledger: &mut Ledger) {
        let Some(signal) = self.signal(at, kind).take() else { return };
        if kind == Kind::Heartbeat {
            self.members[at].machine.heartbeat_answered();
        }
        // A commit that meets a cluster in transition is sent again, and membership doesn't hear of it.
        if kind == Kind::Heartbeat || reply != Err(Refusal::InTransition) {
            self.members[at].signalled(signal, reply, ledger);
        }
    }

    pub(super) fn summary(&self) -> String {
        let member = |member: &OurMember| {
            let reading = member.reading.map(|reading| (reading.generation, reading.partitions));
            let phase: Phase = member.machine.phase();
            format!("{phase:?} as {:?} reads {reading:?}", member.identity())
        };
        let members: Vec<_> = self.members.iter().map(member).collect();
        let Coordinator { generation, members: known, .. } = &self.coordinator;
        format!("group at {generation} knows {known:?}; {}", members.join("; "))
    }
}
