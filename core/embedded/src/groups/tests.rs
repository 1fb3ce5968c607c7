use super::*;

const LAG: Duration = Duration::ZERO;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A group `g` on topic `t`.
fn groups(partitions: u32) -> Groups {
    let mut groups = Groups::default();
    groups.register("g", "t", partitions).unwrap();
    groups
}

fn caller(member: &str, generation: i64) -> Caller<'_> {
    Caller { group: "g", member, generation }
}

fn assignment(groups: &Groups) -> Vec<(String, Vec<u32>)> {
    groups.get("g").unwrap().members.iter().map(|(id, member)| (id.clone(), member.partitions.clone())).collect()
}

#[test]
fn partitions_are_shared_by_range_over_the_sorted_ids() {
    let (mut groups, now) = (groups(5), Instant::now());
    assert_eq!(groups.join("g", "m-2", now), Ok((1, vec![0, 1, 2, 3, 4])));
    assert_eq!(groups.join("g", "m-1", now), Ok((2, vec![0, 1, 2])));
    assert_eq!(groups.join("g", "m-10", now), Ok((3, vec![2, 3])));
    assert_eq!(assignment(&groups), [("m-1".into(), vec![0, 1]), ("m-10".into(), vec![2, 3]), ("m-2".into(), vec![4])]);
}

#[test]
fn a_surplus_member_gets_nothing_and_stays() {
    let (mut groups, now) = (groups(1), Instant::now());
    groups.join("g", "a", now).unwrap();
    assert_eq!(groups.join("g", "b", now), Ok((2, vec![])));
    assert_eq!(groups.sync(caller("b", 2), now), Ok(vec![]));
    groups.leave(caller("a", 2), now).unwrap();
    assert_eq!(groups.sync(caller("b", 3), now), Ok(vec![0]));
}

#[test]
fn the_last_leave_leaves_a_dead_group_that_remembers() {
    let (mut groups, now) = (groups(1), Instant::now());
    groups.join("g", "a", now).unwrap();
    groups.commit("g", &[(0, 7)], now, LAG).unwrap().unwrap();
    groups.leave(caller("a", 1), now).unwrap();
    let group = groups.get("g").unwrap();
    assert_eq!((group.state(), group.generation, group.seen(0, now)), ("Dead", 2, Some(7)));
    assert_eq!(groups.join("g", "b", now), Ok((3, vec![0])));
}

#[test]
fn a_stale_generation_is_refused_and_a_negative_one_passes() {
    let (mut groups, now) = (groups(1), Instant::now());
    groups.join("g", "a", now).unwrap();
    let refusal = groups.heartbeat(caller("a", 9), now).unwrap_err();
    assert_eq!(refusal.to_string(), "GEN_MISMATCH current=1 requested=9 group=g member=a");
    assert_eq!(groups.heartbeat(caller("z", 1), now).unwrap_err().to_string(), "member_not_found member=z group=g");
    let unknown = Caller { group: "x", member: "a", generation: 1 };
    assert_eq!(groups.heartbeat(unknown, now).unwrap_err().to_string(), "group_not_found group=x");
    assert_eq!(groups.heartbeat(caller("a", -1), now), Ok(()));
}

#[test]
fn all_who_are_overdue_go_with_one_generation_and_only_a_good_heartbeat_saves() {
    let (mut groups, start) = (groups(3), Instant::now());
    for member in ["a", "b", "c", "d"] {
        groups.join("g", member, start).unwrap();
    }
    let later = start + TIMEOUT;
    assert!(!groups.expire(later, TIMEOUT, |_| true), "the timeout itself is still in time");
    groups.heartbeat(caller("a", 4), later).unwrap();
    groups.sync(caller("b", 4), later).unwrap();
    groups.heartbeat(caller("c", 3), later).unwrap_err();
    groups.commit("g", &[(2, 1)], later, LAG).unwrap().unwrap();
    let later = later + Duration::from_millis(1);
    assert!(!groups.expire(later, TIMEOUT, |_| false), "a coordinator that is down expires nobody");
    assert!(groups.expire(later, TIMEOUT, |_| true));
    assert_eq!(groups.get("g").unwrap().generation, 5);
    assert_eq!(assignment(&groups), [("a".into(), vec![0, 1]), ("b".into(), vec![2])]);
}

#[test]
fn a_new_coordinator_is_patient_for_one_session() {
    let (mut groups, start) = (groups(1), Instant::now());
    groups.join("g", "a", start).unwrap();
    let moved = start + TIMEOUT;
    groups.taken_over(moved, TIMEOUT, |name| name == "g");
    assert!(!groups.expire(moved + TIMEOUT / 2, TIMEOUT, |_| true));
    assert!(groups.expire(moved + TIMEOUT, TIMEOUT, |_| true));
}

#[test]
fn a_batch_commits_all_or_nothing() {
    let (mut groups, now) = (groups(3), Instant::now());
    groups.join("g", "a", now).unwrap();
    assert_eq!(groups.check_owner(caller("a", 1), 2), Ok(()));
    assert_eq!(
        groups.check_owner(caller("a", 1), 3).unwrap_err().to_string(),
        "NOT_OWNER partition=3 member=a group=g generation=1"
    );
    groups.commit("g", &[(0, 5)], now, LAG).unwrap().unwrap();
    let regression = groups.commit("g", &[(1, 9), (0, 4)], now, LAG).unwrap().unwrap_err();
    assert_eq!(regression, Regression { partition: 0, current: 5, attempted: 4 });
    let twice = groups.commit("g", &[(1, 9), (1, 9)], now, LAG).unwrap_err();
    assert_eq!(twice.to_string(), "duplicate_partition partition=1 group=g topic=t");
    assert_eq!(groups.get("g").unwrap().committed(), BTreeMap::from([(0, 5)]));
    groups.commit("g", &[(0, 5), (1, 9)], now, LAG).unwrap().unwrap();
    assert_eq!(groups.get("g").unwrap().committed(), BTreeMap::from([(0, 5), (1, 9)]));
}

#[test]
fn with_a_lag_a_commit_is_seen_later_and_regressions_at_once() {
    let (mut groups, now) = (groups(1), Instant::now());
    let (lag, ms) = (Duration::from_millis(100), Duration::from_millis);
    groups.commit("g", &[(0, 5)], now, lag).unwrap().unwrap();
    groups.commit("g", &[(0, 6)], now + ms(50), lag).unwrap().unwrap();
    let seen = |at| groups.get("g").unwrap().seen(0, now + at);
    assert_eq!([seen(ms(0)), seen(ms(99))], [None, None]);
    assert_eq!([seen(ms(100)), seen(ms(149))], [Some(5), Some(5)]);
    assert_eq!(seen(ms(150)), Some(6));
    assert_eq!(groups.get("g").unwrap().committed(), BTreeMap::from([(0, 6)]));
    assert!(groups.commit("g", &[(0, 4)], now, lag).unwrap().is_err());
}

#[test]
fn a_group_reads_one_topic_and_keeps_its_first_number_of_partitions() {
    let groups_ = &mut groups(2);
    assert_eq!(
        groups_.check_topic("g", "u").unwrap_err().to_string(),
        "topic_not_assigned_to_group expected=t actual=u"
    );
    assert_eq!(groups_.check_topic("g", "?"), Ok(()));
    assert_eq!(groups_.check_topic("unknown", "u"), Ok(()));
    assert_eq!(
        groups_.register("g", "u", 2).unwrap_err().to_string(),
        "register_group_failed reason=\"topic mismatch (existing: t, requested: u)\""
    );
    assert_eq!(
        groups_.register("g", "t", 3).unwrap_err().to_string(),
        "register_group_failed reason=\"partition count mismatch (existing: 2, requested: 3)\""
    );
}

#[test]
fn a_standalone_restart_forgets_members_and_keeps_offsets() {
    let (mut groups, now) = (groups(1), Instant::now());
    groups.join("g", "a", now).unwrap();
    groups.join("g", "b", now).unwrap();
    groups.commit("g", &[(0, 3)], now, LAG).unwrap().unwrap();
    groups.forget_members();
    assert!(matches!(groups.heartbeat(caller("a", 2), now), Err(Refusal::MemberNotFound { .. })));
    assert_eq!(groups.start("g", "t", 0, now), Some(3));
    assert_eq!(groups.start("g", "u", 0, now), None);
    assert_eq!(groups.join("g", "c", now), Ok((1, vec![0])));
}
