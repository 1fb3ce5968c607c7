//! The membership machine by itself: single paths, and every order of events in a small world.

use std::collections::BTreeSet;

use super::*;
use crate::error::ErrorKind;

fn member() -> Member {
    Member::new("m-0001").unwrap()
}

fn assignment(generation: u64, partitions: &[u32], resumed: bool) -> Assignment {
    Assignment { generation, member: member(), partitions: partitions.to_vec(), resumed }
}

/// A machine that reads partitions 0 and 1 at a generation.
fn stable(generation: u64) -> Membership {
    let mut machine = Membership::new();
    machine.on(Event::Start);
    machine.on(Event::Located);
    machine.on(Event::Joined(assignment(generation, &[0], false)));
    machine.on(Event::Synced(assignment(generation, &[0, 1], false)));
    assert_eq!(machine.on(Event::Prepared), [Action::Progress, Action::Install]);
    assert!(machine.may_commit());
    machine
}

#[test]
fn a_fresh_member_locates_joins_syncs_prepares_and_installs() {
    let mut machine = Membership::new();
    assert_eq!(machine.on(Event::Start), [Action::Locate]);
    assert_eq!(machine.on(Event::Located), [Action::Join { resume: None }]);
    let joined = machine.on(Event::Joined(assignment(3, &[0], false)));
    assert_eq!(
        joined,
        [Action::Sync { member: member(), generation: 3 }],
        "a join's assignment may be old: SYNC is believed"
    );
    let synced = machine.on(Event::Synced(assignment(3, &[0, 1], false)));
    assert_eq!(synced, [Action::Prepare { partitions: vec![0, 1] }]);
    assert!(!machine.may_commit());
    assert_eq!(machine.on(Event::Prepared), [Action::Progress, Action::Install]);
    assert_eq!(machine.on(Event::Start), [], "started once");
}

#[test]
fn another_generation_ends_fences_at_once_and_waits_for_old_readers_before_it_prepares() {
    let mut machine = stable(1);
    machine.on(Event::HeartbeatDue);
    let actions = machine.on(Event::Fenced {
        member: member(),
        generation: 1,
        failure: Failure::GenerationMismatch { current: 2 },
    });
    assert_eq!(actions, [Action::EndFences, Action::Sync { member: member(), generation: 2 }]);
    assert!(!machine.may_commit());
    assert_eq!(machine.on(Event::Synced(assignment(2, &[1], false))), [], "old readers still run");
    assert_eq!(machine.on(Event::Stopped), [Action::Prepare { partitions: vec![1] }]);
}

#[test]
fn an_answer_about_an_old_generation_changes_nothing() {
    let mut machine = stable(5);
    let mismatch = Failure::GenerationMismatch { current: 5 };
    assert_eq!(machine.on(Event::Fenced { member: member(), generation: 4, failure: mismatch }), []);
    assert_eq!(machine.on(Event::Fenced { member: member(), generation: 4, failure: Failure::UnknownMember }), []);
    assert!(machine.may_commit());
}

#[test]
fn an_answer_about_who_it_was_before_changes_nothing_even_at_the_same_generation() {
    let mut machine = stable(1);
    // The broker was restarted: it knows nobody, and the next member makes generation 1 again.
    machine.on(Event::Fenced { member: member(), generation: 1, failure: Failure::UnknownMember });
    let now = Assignment { member: Member::new("m-0002").unwrap(), ..assignment(1, &[0], false) };
    machine.on(Event::Stopped);
    machine.on(Event::Joined(now.clone()));
    machine.on(Event::Synced(now));
    machine.on(Event::Prepared);
    assert_eq!(machine.on(Event::Fenced { member: member(), generation: 1, failure: Failure::UnknownMember }), []);
    assert!(machine.may_commit());
}

#[test]
fn a_lost_coordinator_is_resumed_and_the_same_generation_keeps_its_fences() {
    let mut machine = stable(2);
    let actions = machine.on(Event::Fenced { member: member(), generation: 2, failure: Failure::Passing });
    assert_eq!(actions, [Action::Join { resume: Some((member(), 2)) }]);
    assert!(!machine.may_commit(), "commits wait until the coordinator has answered");
    assert_eq!(machine.on(Event::Failed(Failure::Passing)), [Action::Pause]);
    assert_eq!(machine.on(Event::Retry), [Action::Join { resume: Some((member(), 2)) }]);
    let resumed = machine.on(Event::Joined(assignment(2, &[0, 1], true)));
    assert_eq!(resumed, [Action::Progress, Action::Refresh]);
    assert!(machine.may_commit());
}

#[test]
fn a_resume_that_is_too_late_syncs_and_one_that_was_forgotten_joins_afresh() {
    let mut machine = stable(2);
    machine.on(Event::Fenced { member: member(), generation: 2, failure: Failure::Passing });
    let late = machine.clone().on(Event::Failed(Failure::GenerationMismatch { current: 4 }));
    assert_eq!(late, [Action::EndFences, Action::Sync { member: member(), generation: 4 }]);
    let forgotten = machine.on(Event::Failed(Failure::UnknownMember));
    assert_eq!(forgotten, [Action::EndFences, Action::Join { resume: None }], "without a generation of old");
    assert_eq!(machine.identity(), None);
}

#[test]
fn generations_that_fly_past_are_met_with_a_pause() {
    let mut machine = stable(1);
    machine.on(Event::Fenced { member: member(), generation: 1, failure: Failure::GenerationMismatch { current: 2 } });
    let mut actions = Vec::new();
    for current in 3..10 {
        actions = machine.on(Event::Failed(Failure::GenerationMismatch { current }));
        if actions == [Action::Pause] {
            break;
        }
    }
    assert_eq!(actions, [Action::Pause]);
    assert!(matches!(machine.on(Event::Retry)[..], [Action::Sync { .. }]));
}

#[test]
fn an_answer_to_an_older_request_is_dropped() {
    let mut machine = Membership::new();
    machine.on(Event::Start);
    let old = machine.ticket();
    machine.on(Event::Located);
    assert_eq!(machine.on_answer(old, Event::Failed(Failure::UnknownMember)), []);
    assert_eq!(machine.phase(), Phase::Joining);
}

#[test]
fn close_leaves_and_a_leave_that_was_outrun_syncs_and_leaves_again() {
    let mut machine = stable(1);
    assert_eq!(machine.on(Event::Close), [Action::Leave { member: member(), generation: 1 }]);
    let outrun = machine.on(Event::Failed(Failure::GenerationMismatch { current: 2 }));
    assert_eq!(outrun, [Action::Sync { member: member(), generation: 2 }]);
    let synced = machine.on(Event::Synced(assignment(2, &[0], false)));
    assert_eq!(synced, [Action::Leave { member: member(), generation: 2 }]);
    assert_eq!(machine.on(Event::Left), [Action::Done { left: true }]);
    assert_eq!(machine.on(Event::HeartbeatDue), []);
}

#[test]
fn close_during_a_join_waits_for_the_member_it_makes() {
    let mut machine = Membership::new();
    machine.on(Event::Start);
    machine.on(Event::Located);
    assert_eq!(machine.on(Event::Close), []);
    assert_eq!(
        machine.on(Event::Joined(assignment(1, &[0], false))),
        [Action::Leave { member: member(), generation: 1 }]
    );
    assert_eq!(machine.on(Event::Failed(Failure::Passing)), [Action::Pause], "a cluster in transition is asked again");
    assert_eq!(machine.on(Event::Retry), [Action::Leave { member: member(), generation: 1 }]);
    assert_eq!(machine.on(Event::Failed(Failure::UnknownMember)), [Action::Done { left: true }]);
}

#[test]
fn a_leave_that_never_works_is_given_up() {
    let mut machine = stable(1);
    machine.on(Event::Close);
    let mut tries = 1;
    while machine.on(Event::Failed(Failure::Passing)) == [Action::Pause] {
        assert!(matches!(machine.on(Event::Retry)[..], [Action::Leave { .. }]));
        tries += 1;
    }
    assert!((2..10).contains(&tries), "{tries}");
    assert_eq!(machine.phase(), Phase::Over);
}

#[test]
fn a_leave_that_meets_a_cluster_in_transition_is_tried_for_as_long_as_close_has_time() {
    let mut machine = stable(1);
    machine.on(Event::Close);
    for _ in 0..100 {
        assert_eq!(machine.on(Event::Failed(Failure::InTransition)), [Action::Pause]);
        assert!(matches!(machine.on(Event::Retry)[..], [Action::Leave { .. }]));
    }
    assert_eq!(machine.on(Event::Left), [Action::Done { left: true }]);
}

#[test]
fn a_generation_before_ours_is_not_believed_at_once() {
    let mut machine = stable(5);
    let mismatch = |current| Failure::GenerationMismatch { current };
    let resume = [Action::Join { resume: Some((member(), 5)) }];
    assert_eq!(machine.on(Event::Fenced { member: member(), generation: 5, failure: mismatch(1) }), resume);
    assert_eq!(machine.on(Event::Failed(mismatch(1))), [Action::Pause], "it is still reading its log");
    assert_eq!(machine.on(Event::Retry), resume);
    let mut recovered = machine.clone();
    recovered.on(Event::Joined(assignment(5, &[0, 1], true)));
    assert!(recovered.may_commit(), "the fences were never ended");
    // One that insists is believed in the end.
    for _ in 0..20 {
        let actions = machine.on(Event::Failed(mismatch(1)));
        if actions.contains(&Action::EndFences) {
            return;
        }
        machine.on(Event::Retry);
    }
    panic!("never believed");
}

#[test]
fn a_generation_for_somebody_who_is_no_member_leads_to_another_join() {
    let mut machine = Membership::new();
    machine.on(Event::Start);
    machine.on(Event::Located);
    assert_eq!(machine.on(Event::Failed(Failure::GenerationMismatch { current: 7 })), [Action::Pause]);
    assert_eq!(machine.on(Event::Retry), [Action::Join { resume: None }]);
}

#[test]
fn a_member_that_is_forgotten_before_it_settled_joins_again_after_a_pause() {
    let mut machine = Membership::new();
    machine.on(Event::Start);
    machine.on(Event::Located);
    machine.on(Event::Joined(assignment(1, &[0], false)));
    assert_eq!(machine.on(Event::Failed(Failure::UnknownMember)), [Action::Pause], "each join could leave a ghost");
    assert_eq!(machine.on(Event::Retry), [Action::Join { resume: None }]);
}

#[test]
fn a_fatal_answer_fails() {
    let mut machine = Membership::new();
    machine.on(Event::Start);
    machine.on(Event::Located);
    let error = Error::new(ErrorKind::GroupTopicMismatch, "another topic");
    assert_eq!(machine.on(Event::Failed(Failure::Fatal(error))), [Action::Fail]);
    assert_eq!(machine.error().unwrap().kind(), ErrorKind::GroupTopicMismatch);
    assert_eq!(machine.on(Event::Close), [Action::Done { left: true }], "there is no answer to wait for");
}

#[test]
fn the_first_of_two_fatal_answers_is_the_error() {
    let mut machine = stable(1);
    let fatal = |kind| Failure::Fatal(Error::new(kind, "refused for good"));
    machine.on(Event::HeartbeatDue);
    assert_eq!(
        machine.on(Event::Fenced { member: member(), generation: 1, failure: fatal(ErrorKind::Authorization) }),
        [Action::Fail]
    );
    assert_eq!(
        machine.on(Event::Fenced { member: member(), generation: 1, failure: fatal(ErrorKind::Authentication) }),
        []
    );
    assert_eq!(machine.error().unwrap().kind(), ErrorKind::Authorization);
}

#[test]
fn close_waits_for_a_join_although_something_else_was_refused_for_good() {
    let mut machine = stable(1);
    let error = Error::new(ErrorKind::Authorization, "refused for good");
    machine.on(Event::Fenced { member: member(), generation: 1, failure: Failure::Fatal(error) });
    let forgotten = machine.on(Event::Fenced { member: member(), generation: 1, failure: Failure::UnknownMember });
    assert_eq!(forgotten, [Action::EndFences, Action::Join { resume: None }]);
    assert_eq!(machine.on(Event::Close), [], "the join makes a member, and that has to leave");
    let joined = machine.on(Event::Joined(assignment(2, &[0], false)));
    assert_eq!(joined, [Action::Leave { member: member(), generation: 2 }]);
}

#[test]
fn a_member_that_nobody_polls_leaves_and_joins_again_when_somebody_does() {
    let mut machine = stable(3);
    let leave = |generation| Action::Leave { member: member(), generation };
    assert_eq!(machine.on(Event::Overdue), [Action::Expel, leave(3)]);
    assert!(!machine.may_commit() && !machine.is_member(), "no heartbeat keeps it alive");
    assert_eq!(machine.on(Event::Overdue), [], "once");
    machine.on(Event::Stopped);
    assert_eq!(machine.on(Event::Failed(Failure::GenerationMismatch { current: 4 })), [leave(4)]);
    assert_eq!(machine.on(Event::Left), []);
    assert_eq!((machine.phase(), machine.identity()), (Phase::Away, None));
    assert_eq!(machine.on(Event::Rejoin), [Action::Join { resume: None }], "as a new member");
    machine.on(Event::Joined(assignment(6, &[0], false)));
    machine.on(Event::Synced(assignment(6, &[0], false)));
    assert!(machine.on(Event::Prepared).contains(&Action::Install));
}

#[test]
fn somebody_who_polls_while_the_member_departs_joins_once_it_has_left() {
    let mut machine = stable(3);
    machine.on(Event::Overdue);
    assert_eq!(machine.on(Event::Rejoin), []);
    assert_eq!(machine.on(Event::Left), [Action::Join { resume: None }]);
}

#[test]
fn a_reader_without_a_group_asks_for_no_membership_and_reads_what_it_was_told_last() {
    let mut machine = Membership::alone(member());
    assert_eq!(machine.on(Event::Start), []);
    assert_eq!(machine.on(Event::Assigned(vec![0])), [Action::Locate]);
    assert_eq!(machine.on(Event::Assigned(vec![1])), [], "what is under way comes to it");
    assert_eq!(machine.on(Event::Located), [Action::Prepare { partitions: vec![1] }]);
    let late = machine.ticket();
    assert_eq!(machine.on(Event::Assigned(vec![2])), [Action::Prepare { partitions: vec![2] }]);
    assert_eq!(machine.on_answer(late, Event::Prepared), [], "that was the assignment before");
    assert_eq!(machine.on(Event::Prepared), [Action::Progress, Action::Install]);
    assert_eq!(machine.on(Event::HeartbeatDue), []);
    assert_eq!(machine.on(Event::Overdue), [], "it holds nothing up");
    assert!(!machine.may_commit());
    assert_eq!(machine.on(Event::Assigned(vec![0, 3])), [Action::EndFencesQuietly]);
    assert_eq!(machine.on(Event::Assigned(vec![4])), []);
    assert_eq!(machine.on(Event::Stopped), [Action::Prepare { partitions: vec![4] }]);
    assert_eq!(machine.on(Event::Close), [Action::Done { left: true }]);
}

// ---- Every order of events in a small world --------------------------------------------------------------------------------

/// The machine, the coordinator's truth, and what is under way between them.
#[derive(Clone, Debug)]
struct World {
    machine: Membership,
    /// The group's generation, and whether it knows our member.
    generation: u64,
    known: bool,
    /// The phase's open request, and a heartbeat's generation.
    request: Option<(u64, Action)>,
    heartbeat: Option<u64>,
    /// Readers run, or old ones still have to end.
    reading: bool,
    stopping: bool,
    closed: bool,
    done: bool,
    /// How much may still go wrong.
    joins_of_others: u32,
    expiries: u32,
    losses: u32,
    overruns: u32,
}

impl World {
    fn new() -> Self {
        Self {
            machine: Membership::new(),
            generation: 0,
            known: false,
            request: None,
            heartbeat: None,
            reading: false,
            stopping: false,
            closed: false,
            done: false,
            joins_of_others: 3,
            expiries: 2,
            losses: 2,
            overruns: 1,
        }
    }

    /// Tickets only grow and mean nothing by themselves: worlds that differ in them alone are the same.
    fn key(&self) -> String {
        let mut world = self.clone();
        let current = world.machine.ticket;
        world.machine.ticket = 0;
        if let Some((ticket, _)) = &mut world.request {
            *ticket = u64::from(*ticket == current);
        }
        format!("{world:?}")
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::EndFences | Action::Expel => {
                    assert!(self.reading, "fences ended twice");
                    self.reading = false;
                    self.stopping = true;
                }
                Action::Install => {
                    assert!(!self.reading && !self.stopping, "installed beside old readers");
                    assert!(!self.closed, "installed after close");
                    self.reading = true;
                }
                Action::Heartbeat { generation, .. } => {
                    assert!(self.heartbeat.is_none(), "two heartbeats at once");
                    self.heartbeat = Some(generation);
                }
                Action::Prepare { .. } => {
                    assert!(!self.stopping, "prepared while old readers run: their progress would be missed");
                    self.request = Some((self.machine.ticket(), action));
                }
                Action::Progress | Action::Refresh => {}
                Action::Done { .. } => self.done = true,
                Action::Fail | Action::EndFencesQuietly => panic!("nothing here is fatal, and nobody assigns"),
                Action::Locate | Action::Join { .. } | Action::Sync { .. } | Action::Leave { .. } | Action::Pause => {
                    let allowed_in_close = matches!(action, Action::Leave { .. } | Action::Sync { .. } | Action::Pause);
                    assert!(!self.closed || allowed_in_close, "{action:?} after close");
                    self.request = Some((self.machine.ticket(), action));
                }
            }
        }
        let waits = match self.machine.phase() {
            Phase::New | Phase::Stable | Phase::Away | Phase::Over => true,
            Phase::Stopping => self.stopping,
            _ => self.request.as_ref().is_some_and(|(ticket, _)| *ticket == self.machine.ticket()),
        };
        assert!(waits, "{:?} waits for nothing", self.machine);
        assert!(!self.machine.may_commit() || self.reading || self.closed, "commits without fences");
        if self.machine.may_commit() {
            assert!(self.machine.identity().is_some());
        }
    }

    fn feed(mut self, event: Event) -> Self {
        let actions = self.machine.on(event);
        self.act(actions);
        self
    }

    /// The coordinator's verdict on a member and generation.
    fn verdict(&self, generation: u64) -> Result<(), Failure> {
        if !self.known {
            Err(Failure::UnknownMember)
        } else if generation != self.generation {
            Err(Failure::GenerationMismatch { current: self.generation })
        } else {
            Ok(())
        }
    }

    /// The open request is carried out; the event is its answer.
    fn carry_out(&mut self, action: &Action) -> Event {
        let answer = |verdict: Result<(), Failure>, event: Event| verdict.map_or_else(Event::Failed, |()| event);
        match action {
            Action::Locate => Event::Located,
            Action::Join { resume: None } => {
                self.generation += 1;
                self.known = true;
                Event::Joined(assignment(self.generation, &[0], false))
            }
            Action::Join { resume: Some((_, generation)) } => {
                answer(self.verdict(*generation), Event::Joined(assignment(*generation, &[0], true)))
            }
            Action::Sync { generation, .. } => {
                answer(self.verdict(*generation), Event::Synced(assignment(*generation, &[0], false)))
            }
            Action::Prepare { .. } => Event::Prepared,
            Action::Leave { generation, .. } => match self.verdict(*generation) {
                Ok(()) => {
                    self.known = false;
                    self.generation += 1;
                    Event::Left
                }
                Err(failure) => Event::Failed(failure),
            },
            Action::Pause => Event::Retry,
            other => panic!("{other:?} is no request"),
        }
    }

    /// The open request is answered.
    fn answered(mut self) -> Option<Self> {
        let (ticket, action) = self.request.take()?;
        let event = self.carry_out(&action);
        let actions = self.machine.on_answer(ticket, event);
        self.act(actions);
        Some(self)
    }

    /// The open request gets no answer, though it may have been carried out.
    fn lost(mut self, carried_out: bool) -> Option<Self> {
        let (ticket, action) = self.request.take()?;
        if matches!(action, Action::Pause) || self.losses == 0 {
            return None;
        }
        self.losses -= 1;
        if carried_out {
            self.carry_out(&action);
        }
        let actions = self.machine.on_answer(ticket, Event::Failed(Failure::Passing));
        self.act(actions);
        Some(self)
    }

    fn heartbeat_answered(mut self, lost: bool) -> Option<Self> {
        let generation = self.heartbeat.take()?;
        self.machine.heartbeat_answered();
        if lost {
            self.losses = self.losses.checked_sub(1)?;
        }
        let verdict = if lost { Err(Failure::Passing) } else { self.verdict(generation) };
        Some(self.feed(verdict.map_or_else(
            |failure| Event::Fenced { member: member(), generation, failure },
            |()| Event::Alive { member: member(), generation },
        )))
    }

    fn next(&self) -> Vec<Self> {
        let mut next = vec![];
        next.extend(self.clone().answered());
        next.extend(self.clone().lost(false));
        next.extend(self.clone().lost(true));
        next.extend(self.clone().heartbeat_answered(false));
        next.extend(self.clone().heartbeat_answered(true));
        if self.stopping {
            let mut world = self.clone();
            world.stopping = false;
            next.push(world.feed(Event::Stopped));
        }
        next.push(self.clone().feed(Event::HeartbeatDue));
        if self.joins_of_others > 0 && self.generation > 0 {
            let mut world = self.clone();
            world.joins_of_others -= 1;
            world.generation += 1;
            next.push(world);
        }
        if self.expiries > 0 && self.known {
            let mut world = self.clone();
            world.expiries -= 1;
            world.known = false;
            world.generation += 1;
            next.push(world);
        }
        if self.overruns > 0 && self.reading && !self.closed {
            let mut world = self.clone();
            world.overruns -= 1;
            next.push(world.feed(Event::Overdue));
        }
        if self.is_away() {
            next.push(self.clone().feed(Event::Rejoin));
        }
        if !self.closed {
            let mut world = self.clone();
            world.closed = true;
            // The engine ends readers itself before it closes the membership.
            world.reading = false;
            next.push(world.feed(Event::Close));
        }
        next
    }

    /// Out of the group because nobody polled, or on its way out.
    fn is_away(&self) -> bool {
        matches!(self.machine.phase(), Phase::Away | Phase::Departing)
    }

    /// With nothing more going wrong, heartbeats and answers lead home.
    fn settles(&self) -> bool {
        let mut world = self.clone();
        for _ in 0..40 {
            if world.closed {
                if world.done {
                    return true;
                }
            } else if world.reading
                && world.machine.may_commit()
                && world.verdict(world.machine.identity().unwrap().1).is_ok()
            {
                return true;
            }
            let before = world.key();
            if world.stopping {
                world.stopping = false;
                world = world.feed(Event::Stopped);
            }
            if world.is_away() {
                world = world.feed(Event::Rejoin);
            }
            world = world.clone().answered().unwrap_or(world);
            world = world.feed(Event::HeartbeatDue);
            world = world.clone().heartbeat_answered(false).unwrap_or(world);
            if world.key() == before {
                return false;
            }
        }
        false
    }
}

#[test]
fn in_every_order_of_events_readers_never_overlap_and_the_machine_finds_home() {
    let mut seen = BTreeSet::new();
    let mut open = vec![World::new().feed(Event::Start)];
    let mut steps = 0u64;
    while let Some(world) = open.pop() {
        if !seen.insert(world.key()) {
            continue;
        }
        assert!(world.settles(), "this world is stuck: {world:#?}");
        if world.done {
            continue;
        }
        let next = world.next();
        steps += next.len() as u64;
        open.extend(next);
    }
    assert!(seen.len() > 10_000, "the exploration has shrunk to {} worlds", seen.len());
    println!("{} worlds, {steps} steps", seen.len());
}
