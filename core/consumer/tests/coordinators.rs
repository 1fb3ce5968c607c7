//! The group's coordinator moves, dies, comes back, forgets or lags: the membership goes on, and so does reading.

mod common;

use std::time::Duration;

use common::*;
use cursus_consumer::{Commit, ErrorKind, State};
use cursus_embedded::{Cluster, Options};

#[tokio::test]
async fn a_dead_broker_that_is_named_as_coordinator_is_survived_for_as_long_as_it_is_named() {
    let cluster = cluster_with(3, 1, 10).await;
    let dead = nowhere();
    let redirect = format!("NOT_COORDINATOR host=127.0.0.1 port={}", dead.rsplit_once(':').unwrap().1);
    // Before it is a member,
    cluster.fail_next("JOIN_GROUP", 10, &redirect).unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    assert!(received(&cluster, "JOIN_GROUP") > 10);
    // and while it is one.
    let before = consumer.statistics();
    cluster.clear_requests();
    cluster.fail_next("JOIN_GROUP", 10, &redirect).unwrap();
    cluster.fail_next("HEARTBEAT", 2, &redirect).unwrap();
    until("it to be noticed", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_some()).await;
    cluster.fill("t", 10, 10).unwrap();
    read(&consumer, &mut seen, 20).await;
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    until("it to be over", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_none()).await;
    let after = consumer.statistics();
    assert_eq!((after.member, after.generation, after.rebalances), (before.member, before.generation, 0));
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test]
async fn a_redirect_to_the_coordinator_is_followed_without_asking_around() {
    let cluster = cluster_with(3, 1, 10).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    let to = (cluster.coordinator("g") + 1) % 3;
    cluster.clear_requests();
    cluster.move_coordinator("g", to).unwrap();
    let followed = |c: &Cluster| c.requests().iter().any(|r| r.command == "HEARTBEAT" && r.broker == to);
    soon("heartbeats at the new one", cluster.wait_for("heartbeats", followed)).await;
    assert_eq!(received(&cluster, "FIND_COORDINATOR"), 0);
    assert_eq!(received(&cluster, "JOIN_GROUP"), 0, "no new membership");
    closed(&consumer).await;
}

#[tokio::test]
async fn what_passes_by_itself_is_tried_again_at_every_step_whatever_it_says_of_itself() {
    let cluster = cluster_with(3, 2, 20).await;
    let never = "class=internal retryable=false reason=\"leader raft apply: no leader\"";
    let refusals = [
        ("METADATA", "cluster_metadata_unavailable"),
        ("FIND_COORDINATOR", "find_coordinator_failed"),
        ("JOIN_GROUP", "register_group_failed"),
        ("JOIN_GROUP", "raft_apply_failed"),
        ("SYNC_GROUP", "raft_apply_failed"),
        ("FETCH_OFFSET", "offset_sync_failed"),
        (reading(), "raft_apply_failed"),
        ("HEARTBEAT", "raft_apply_failed"),
    ];
    for (command, code) in refusals {
        cluster.fail_next(command, 3, &format!("{code} {never}")).unwrap();
    }
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    for code in ["raft_apply_failed", "raft_batch_apply_failed", "offset_sync_failed", "find_coordinator_failed"] {
        cluster.fail_next("BATCH_COMMIT", 2, &format!("{code} {never}")).unwrap();
    }
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    assert_eq!(cluster.committed("g", "t"), cluster.end_offsets("t"));
    let beats = cluster.wait_for("heartbeats again", |c| received(c, "HEARTBEAT") > 4);
    soon("heartbeats again", beats).await;
    for (command, _) in refusals {
        assert!(received(&cluster, command) > 3, "{command} was not tried again");
    }
    assert_eq!(cluster.group("g").unwrap().members.len(), 1, "none of it left a ghost");
    assert_eq!(consumer.statistics().rebalances, 0);
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test]
async fn a_coordinator_that_does_not_know_of_the_last_commit_yet_sends_nobody_back() {
    let options = Options {
        session_timeout: Duration::from_secs(60),
        coordinator_commit_lag: Duration::from_millis(150),
        ..Options::default()
    };
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 2).unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    for round in 1..=4 {
        cluster.fill("t", 20, 10).unwrap();
        read(&consumer, &mut seen, 20 * round).await;
        consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
        // The next assignment asks for offsets at once.
        cluster.expire_member("g", &consumer.statistics().member.unwrap()).unwrap();
        until("another assignment", &consumer, |c| c.statistics().rebalances == round && c.state() == State::Running)
            .await;
        for (partition, end) in cluster.end_offsets("t") {
            assert_eq!(consumer.position(&tp(partition)), Some(end), "partition {partition} in round {round}");
        }
    }
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test]
async fn a_reader_that_the_broker_starts_at_an_offset_before_the_last_commit_repeats_nothing() {
    let options = Options {
        session_timeout: Duration::from_secs(60),
        coordinator_commit_lag: Duration::from_secs(2),
        ..Options::default()
    };
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    cluster.move_coordinator("g", 1).unwrap();
    cluster.fill("t", 40, 10).unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 40).await;
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    soon("40 to be seen", async { while consumer.committed(&tp(0), Some(PATIENCE)).await.unwrap() != Some(40) {} })
        .await;
    cluster.fill("t", 60, 10).unwrap();
    read(&consumer, &mut seen, 100).await;
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    // Its position is what is committed, so it names the group, for which the broker still begins at 40.
    cluster.cut_connections(Some(0)).unwrap();
    until("the old records", &consumer, |c| c.statistics().dropped_records == 60).await;
    cluster.fill("t", 50, 10).unwrap();
    read(&consumer, &mut seen, 150).await;
    seen.assert_exactly_in_order();
    assert_eq!(seen.total(), 150);
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_is_away_for_long_gets_every_commit_that_has_not_timed_out_when_it_is_back() {
    let cluster = cluster_with(3, 2, 20).await;
    cluster.move_coordinator("g", 2).unwrap();
    let auto = [("enable_auto_commit", true.into()), ("auto_commit_interval_ms", 20u64.into())];
    let consumer = consumer_with(&cluster, &auto);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    let before = consumer.statistics();
    cluster.kill_broker(2).await.unwrap();
    until("it to be noticed", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_some()).await;
    for round in 2..=6 {
        cluster.clear_requests();
        cluster.fill("t", 20, 10).unwrap();
        read(&consumer, &mut seen, 20 * round).await;
        // Asked for again and again, as long as it is away.
        soon("another search", cluster.wait_for("a search", |c| received(c, "FIND_COORDINATOR") > 3)).await;
    }
    assert_eq!(consumer.state(), State::Running);
    let waiting = consumer.begin_commit(Commit::All, Some(PATIENCE)).unwrap();
    let error = consumer.commit(Commit::All, Some(Duration::from_millis(50))).await.expect_err("nobody to send it to");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    cluster.fill("t", 20, 10).unwrap();
    read(&consumer, &mut seen, 140).await;
    // This poll proves what the ones before it returned: automatic commits go beyond the explicit one.
    consumer.poll(Some(Duration::ZERO)).await.unwrap();
    cluster.restart_broker(2).await.unwrap();
    soon("the explicit commit", waiting).await.unwrap();
    soon("the automatic one", cluster.wait_for("all", |c| c.committed("g", "t") == c.end_offsets("t"))).await;
    until("it to be over", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_none()).await;
    let after = consumer.statistics();
    assert_eq!((after.member, after.rebalances), (before.member, 0));
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_for_which_no_connection_could_be_made_was_not_sent() {
    let cluster = cluster_with(3, 1, 10).await;
    cluster.move_coordinator("g", 1).unwrap();
    // No heartbeat finds out first.
    let slow = [("heartbeat_interval_ms", 60_000u64.into()), ("expected_session_timeout_ms", 600_000u64.into())];
    let consumer = consumer_with(&cluster, &slow);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    cluster.kill_broker(1).await.unwrap();
    // A question in vain shows that the old connection is known to be gone.
    let asked = consumer.committed(&tp(0), Some(Duration::from_millis(100))).await;
    assert_eq!(asked.expect_err("nobody is there").kind(), ErrorKind::TimedOut);
    let commit = consumer.commit(Commit::All, Some(Duration::from_millis(200))).await;
    assert_eq!(commit.expect_err("nobody is there").kind(), ErrorKind::TimedOut);
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_coordinator_is_followed_without_a_new_generation() {
    let cluster = cluster_with(3, 3, 300).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 20u64.into())]);
    started(&consumer).await;
    let generation = consumer.statistics().generation;
    for step in 1..=2 {
        let to = (cluster.coordinator("g") + step) % 3;
        cluster.move_coordinator("g", to).unwrap();
        let batch = soon("records", consumer.poll(None)).await.unwrap();
        consumer.commit(&batch, Some(PATIENCE)).await.unwrap();
        for (partition, next) in batch.next_offsets() {
            assert_eq!(cluster.committed("g", "t")[&partition.partition], next);
        }
    }
    assert_eq!(consumer.statistics().generation, generation);
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_coordinator_is_down_reading_goes_on_and_the_commit_waits_for_its_return() {
    let cluster = cluster_with(3, 3, 30).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 30).await;
    let (dead, member) = (cluster.coordinator("g"), consumer.statistics().member);
    cluster.kill_broker(dead).await.unwrap();
    until("it to be noticed", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_some()).await;
    cluster.fill("t", 30, 10).unwrap();
    read(&consumer, &mut seen, 60).await;
    assert_eq!(consumer.state(), State::Running);
    let commit = consumer.begin_commit(Commit::All, Some(PATIENCE)).unwrap();
    cluster.restart_broker(dead).await.unwrap();
    soon("the commit", commit).await.unwrap();
    for (partition, end) in cluster.end_offsets("t") {
        assert_eq!(cluster.committed("g", "t").get(&partition), Some(&end));
    }
    assert_eq!(consumer.statistics().member, member, "resumed, not joined afresh");
    until("it to be over", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_none()).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}
