//! The membership machine by itself, along single paths. Every order of events is beside it, in `exploration`.

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
fn a_resume_that_comes_out_at_another_generation_ends_the_fences() {
    let mut machine = stable(2);
    machine.on(Event::Fenced { member: member(), generation: 2, failure: Failure::Passing });
    let other = machine.on(Event::Joined(assignment(3, &[0, 1], true)));
    assert_eq!(other, [Action::EndFences, Action::Sync { member: member(), generation: 3 }]);
    assert!(!machine.may_commit(), "another may read these partitions by now");
}

#[test]
fn what_a_heartbeat_meets_while_a_request_is_under_way_is_that_requests_to_find_out() {
    let mut machine = stable(2);
    let fenced = |failure| Event::Fenced { member: member(), generation: 2, failure };
    machine.on(fenced(Failure::Passing));
    let before = machine.ticket();
    assert_eq!(machine.on(fenced(Failure::Passing)), [], "the member is being resumed already");
    assert_eq!(machine.on(fenced(Failure::InTransition)), []);
    assert_eq!(machine.ticket(), before, "and the answer to that still counts");
}

#[test]
fn an_answer_to_a_heartbeat_is_progress_but_for_a_request_that_is_still_refused() {
    let mut machine = stable(2);
    let alive = || Event::Alive { member: member(), generation: 2 };
    assert_eq!(machine.on(alive()), [Action::Progress]);
    assert_eq!(machine.on(Event::Alive { member: member(), generation: 1 }), []);
    machine.on(Event::Fenced { member: member(), generation: 2, failure: Failure::Passing });
    machine.on(Event::Failed(Failure::Passing));
    assert_eq!(machine.on(alive()), [], "or its pauses would never grow");
}

#[test]
fn a_partition_that_is_not_ours_at_our_own_generation_ends_the_fences_at_once() {
    let mut machine = stable(5);
    let failure = Failure::GenerationMismatch { current: 5 };
    let actions = machine.on(Event::Fenced { member: member(), generation: 5, failure });
    assert_eq!(actions, [Action::EndFences, Action::Sync { member: member(), generation: 5 }]);
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
fn generations_that_fly_past_are_met_with_pauses_until_an_assignment_is_installed() {
    let mut machine = stable(1);
    let mismatch = |current| Failure::GenerationMismatch { current };
    machine.on(Event::Fenced { member: member(), generation: 1, failure: mismatch(2) });
    for current in 3..5 {
        let again = [Action::Sync { member: member(), generation: current }];
        assert_eq!(machine.on(Event::Failed(mismatch(current))), again, "once or twice is no storm");
    }
    for current in 5..12 {
        assert_eq!(machine.on(Event::Failed(mismatch(current))), [Action::Pause]);
        assert_eq!(machine.on(Event::Retry), [Action::Sync { member: member(), generation: current }]);
    }
    machine.on(Event::Stopped);
    machine.on(Event::Synced(assignment(11, &[0], false)));
    machine.on(Event::Prepared);
    let calm = machine.on(Event::Fenced { member: member(), generation: 11, failure: mismatch(12) });
    assert_eq!(calm, [Action::EndFences, Action::Sync { member: member(), generation: 12 }]);
}

/// A member in each phase, and where the phase asks for something, while it pauses before it asks again.
fn in_each_phase() -> Vec<Membership> {
    let mut all = vec![Membership::new()];
    let mut along = |mut machine: Membership, path: Vec<Event>| {
        for event in path {
            machine.on(event);
            let mut paused = machine.clone();
            if paused.on(Event::Failed(Failure::Passing)) == [Action::Pause] {
                all.push(paused);
            }
            all.push(machine.clone());
        }
    };
    let joins = [Event::Start, Event::Located, Event::Joined(assignment(1, &[0], false))];
    along(Membership::new(), joins.clone().into());
    along(Membership::new(), [&joins[..2], &[Event::Close, Event::Joined(assignment(1, &[0], false))]].concat());
    along(Membership::new(), [&joins[..], &[Event::Synced(assignment(1, &[0], false)), Event::Prepared]].concat());
    let fenced = |failure| Event::Fenced { member: member(), generation: 1, failure };
    along(stable(1), vec![fenced(Failure::Passing), fenced(Failure::UnknownMember)]);
    let moved_on = fenced(Failure::GenerationMismatch { current: 2 });
    along(stable(1), vec![moved_on, Event::Synced(assignment(2, &[0], false)), Event::Stopped]);
    along(stable(1), vec![Event::Overdue, Event::Left]);
    along(stable(1), vec![Event::Close, Event::Left]);
    all
}

#[test]
fn one_request_is_open_at_a_time_and_what_answers_another_changes_nothing() {
    let events = [
        Event::Start,
        Event::Assigned(vec![7]),
        Event::Located,
        Event::Joined(assignment(9, &[7], false)),
        Event::Synced(assignment(9, &[7], false)),
        Event::Prepared,
        Event::Failed(Failure::Passing),
        Event::Failed(Failure::UnknownMember),
        Event::Left,
        Event::Retry,
        Event::Rejoin,
    ];
    let mut phases = Vec::new();
    for machine in in_each_phase() {
        let (phase, pausing) = (machine.phase, machine.pausing);
        for event in &events {
            let waits = match event {
                Event::Start => phase == Phase::New,
                // In a group the coordinator assigns.
                Event::Assigned(_) => false,
                Event::Located => phase == Phase::Locating && !pausing,
                Event::Joined(_) => matches!(phase, Phase::Joining | Phase::Resuming) && !pausing,
                Event::Synced(_) => phase == Phase::Syncing && !pausing,
                Event::Prepared => phase == Phase::Preparing && !pausing,
                Event::Left => matches!(phase, Phase::Departing | Phase::Leaving),
                Event::Failed(_) => {
                    let asks_nobody =
                        matches!(phase, Phase::New | Phase::Stopping | Phase::Stable | Phase::Away | Phase::Over);
                    !asks_nobody && !pausing
                }
                Event::Retry => pausing,
                _ => matches!(phase, Phase::Departing | Phase::Away),
            };
            let mut after = machine.clone();
            let actions = after.on(event.clone());
            let changed = !actions.is_empty() || format!("{after:?}") != format!("{machine:?}");
            assert_eq!(changed, waits, "{event:?} led to {actions:?} in {machine:?}");
        }
        phases.push(phase as u8);
    }
    phases.sort_unstable();
    phases.dedup();
    assert_eq!(phases, (0..=Phase::Over as u8).collect::<Vec<_>>(), "no phase was left out");
}

#[test]
fn only_an_assignment_on_its_way_to_a_member_keeps_a_close_from_ending_at_once() {
    for machine in in_each_phase() {
        let comes = matches!(machine.phase, Phase::Resuming | Phase::Syncing | Phase::Stopping | Phase::Preparing);
        assert_eq!(machine.is_settling(), comes, "{machine:?}");
    }
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

/// How many times a member says LEAVE that began to do so and hears one failure each time.
fn leaves(machine: &mut Membership, began: &[Action], mut failure: impl FnMut(u32) -> Failure) -> u32 {
    let mut tries = 0;
    let mut actions = began.to_vec();
    loop {
        match actions.last() {
            Some(Action::Leave { .. }) => {
                tries += 1;
                assert!(tries < 100, "it never gives up");
                actions = machine.on(Event::Failed(failure(tries)));
            }
            Some(Action::Pause) => actions = machine.on(Event::Retry),
            Some(Action::Sync { generation, .. }) => {
                actions = machine.on(Event::Synced(assignment(*generation, &[0], false)));
            }
            _ => return tries,
        }
    }
}

fn outrun(tries: u32) -> Failure {
    Failure::GenerationMismatch { current: u64::from(tries) + 1 }
}

#[test]
fn a_leave_that_never_works_is_given_up() {
    for failure in [outrun, |_| Failure::Passing] {
        let mut machine = stable(1);
        let began = machine.on(Event::Close);
        assert_eq!(leaves(&mut machine, &began, failure), MOST_LEAVES);
        assert_eq!(machine.phase(), Phase::Over);
    }
}

#[test]
fn a_member_that_nobody_polls_is_away_even_where_its_leave_never_works_and_joins_again_afterwards() {
    for failure in [outrun, |_| Failure::Passing, |_| Failure::InTransition] {
        let mut machine = stable(1);
        let began = machine.on(Event::Overdue);
        assert_eq!(leaves(&mut machine, &began, failure), MOST_LEAVES);
        assert_eq!((machine.phase(), machine.identity()), (Phase::Away, None), "its session ends by itself");
        assert_eq!(machine.on(Event::Rejoin), [Action::Join { resume: None }]);
    }
    let mut machine = stable(1);
    let began = machine.on(Event::Overdue);
    assert_eq!(leaves(&mut machine, &began, |_| Failure::UnknownMember), 1, "already gone is as good as left");
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
