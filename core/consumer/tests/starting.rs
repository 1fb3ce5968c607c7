//! Where reading begins: the reset policies, where nothing is committed and where the position can't be served.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::*;
use cursus_consumer::{Commit, ErrorKind};
use cursus_embedded::{Cluster, Options};

const RESET: &str = "auto_offset_reset";

fn offsets(seen: &Seen, partition: u32) -> Vec<u64> {
    seen.0.get(&tp(partition)).cloned().unwrap_or_default()
}

#[tokio::test]
async fn earliest_asks_the_leader_where_the_log_begins_before_it_reads() {
    let cluster = cluster_with(3, 3, 300).await;
    cluster.delete_records("t", 1, 60).unwrap();
    let consumer = consumer(&cluster);
    started(&consumer).await;
    assert_eq!(consumer.position(&tp(1)), Some(60));
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 240).await;
    seen.assert_exactly_in_order();
    let statistics = consumer.statistics();
    assert_eq!((statistics.skipped_offsets, statistics.last_error), (0, None), "nothing had to be refused first");
    closed(&consumer).await;
}

#[tokio::test]
async fn latest_begins_at_the_end_and_commits_that_before_the_first_read() {
    let cluster = cluster_with(3, 3, 300).await;
    let consumer = consumer_with(&cluster, &[(RESET, "latest".into())]);
    started(&consumer).await;
    assert_eq!(cluster.committed("g", "t"), BTreeMap::from([(0, 100), (1, 100), (2, 100)]));
    assert!(consumer.statistics().partitions.values().all(|partition| partition.committed == Some(100)));
    let requests = cluster.requests();
    let last_commit = requests.iter().rposition(|request| request.command == "COMMIT_OFFSET").expect("three commits");
    let probe = |text: &str| text.contains(" batch=1") && text.starts_with("CONSUME");
    let reads = requests.iter().position(|request| request.command == reading() && !probe(&request.text));
    assert!(reads.is_none_or(|first| last_commit < first), "committed before anything is read: {requests:#?}");
    cluster.fill("t", 30, 10).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 30).await;
    for partition in 0..3 {
        assert_eq!(offsets(&seen, partition), (100..110).collect::<Vec<_>>());
    }
    closed(&consumer).await;
}

#[tokio::test]
async fn what_is_written_while_a_partition_moves_is_not_lost_with_latest() {
    for written_before in [0, 40] {
        let cluster = cluster_with(3, 1, written_before).await;
        let first = consumer_with(&cluster, &[(RESET, "latest".into())]);
        started(&first).await;
        let committed = (written_before > 0).then_some(written_before);
        assert_eq!(first.statistics().partitions[&tp(0)].committed, committed, "0 says that nothing is, too");
        // It never reads a record, and never commits one. Then nobody reads for a while.
        closed(&first).await;
        cluster.fill("t", 25, 10).unwrap();
        let second = consumer_with(&cluster, &[(RESET, "latest".into())]);
        let mut seen = Seen::default();
        read(&second, &mut seen, 25).await;
        assert_eq!(offsets(&seen, 0), (written_before..written_before + 25).collect::<Vec<_>>());
        closed(&second).await;
    }
}

#[tokio::test]
async fn a_committed_zero_is_not_taken_for_nothing_by_latest_and_error() {
    for reset in ["latest", "error"] {
        let cluster = cluster_with(1, 1, 50).await;
        let before = consumer(&cluster);
        started(&before).await;
        before.commit(Commit::Offsets(&BTreeMap::from([(tp(0), 0)])), Some(PATIENCE)).await.unwrap();
        closed(&before).await;
        if cluster.committed("g", "t").is_empty() {
            panic!("the engine kept a commit of 0 to itself");
        }
        let consumer = consumer_with(&cluster, &[(RESET, reset.into())]);
        let mut seen = Seen::default();
        read(&consumer, &mut seen, 50).await;
        assert_eq!(offsets(&seen, 0), (0..50).collect::<Vec<_>>(), "{reset}");
        closed(&consumer).await;
    }
}

#[tokio::test]
async fn with_latest_what_is_committed_goes_on_from_there() {
    let cluster = cluster_with(1, 1, 100).await;
    let before = consumer_with(&cluster, &[("max_poll_records", 30u64.into())]);
    let batch = soon("records", before.poll(None)).await.unwrap();
    before.commit(&batch, Some(PATIENCE)).await.unwrap();
    closed(&before).await;
    let consumer = consumer_with(&cluster, &[(RESET, "latest".into())]);
    let mut seen = Seen::default();
    let left = 100 - batch.len() as u64;
    read(&consumer, &mut seen, left).await;
    assert_eq!(offsets(&seen, 0), (batch.len() as u64..100).collect::<Vec<_>>());
    closed(&consumer).await;
}

#[tokio::test]
async fn error_closes_the_consumer_where_nothing_is_committed() {
    let cluster = cluster_with(1, 2, 20).await;
    let consumer = consumer_with(&cluster, &[(RESET, "error".into())]);
    let error = soon("the error", consumer.poll(None)).await.expect_err("nothing is committed");
    assert_eq!(error.kind(), ErrorKind::OffsetGap, "{error}");
    assert!(error.to_string().contains("t-") && error.to_string().contains("auto_offset_reset"), "{error}");
    until("it to close", &consumer, |c| c.state() == cursus_consumer::State::Closed).await;
    assert_eq!(consumer.fatal_error().unwrap().kind(), ErrorKind::OffsetGap, "it stays readable");
    assert_eq!(cluster.group("g").unwrap().members.len(), 0, "the group is left");
}

#[tokio::test]
async fn what_was_returned_before_the_policy_moved_the_position_is_committed_by_all() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    overtaken(&cluster, &consumer).await;
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    assert_eq!(cluster.committed("g", "t")[&0], 10);
    closed(&consumer).await;
}

#[tokio::test]
async fn records_deleted_before_they_were_read_are_treated_by_the_policy() {
    for (reset, isolation) in
        [("earliest", "read_committed"), ("earliest", "read_uncommitted"), ("latest", "read_committed")]
    {
        let cluster = cluster_with(1, 1, 100).await;
        let first = consumer_with(&cluster, &[("max_poll_records", 10u64.into())]);
        let batch = soon("records", first.poll(None)).await.unwrap();
        first.commit(&batch, Some(PATIENCE)).await.unwrap();
        closed(&first).await;
        cluster.delete_records("t", 0, 60).unwrap();
        let consumer = consumer_with(&cluster, &[(RESET, reset.into()), ("read_isolation", isolation.into())]);
        started(&consumer).await;
        let begin = if reset == "earliest" { 60 } else { 100 };
        until("the policy to act", &consumer, |c| c.statistics().partitions[&tp(0)].fetched >= begin).await;
        if reset == "latest" {
            assert_eq!(cluster.committed("g", "t")[&0], 100, "the resolved start is committed");
        }
        cluster.fill("t", 10, 10).unwrap();
        let mut seen = Seen::default();
        read(&consumer, &mut seen, 110 - begin).await;
        assert_eq!(offsets(&seen, 0), (begin..110).collect::<Vec<_>>(), "{reset} {isolation}");
        closed(&consumer).await;
    }
}

#[tokio::test]
async fn records_deleted_before_they_were_read_close_the_consumer_with_error() {
    let cluster = cluster_with(1, 1, 100).await;
    let first = consumer_with(&cluster, &[("max_poll_records", 10u64.into())]);
    let batch = soon("records", first.poll(None)).await.unwrap();
    first.commit(&batch, Some(PATIENCE)).await.unwrap();
    closed(&first).await;
    cluster.delete_records("t", 0, 60).unwrap();
    let consumer = consumer_with(&cluster, &[(RESET, "error".into())]);
    let error = soon("the error", consumer.poll(None)).await.expect_err("there is a gap");
    assert_eq!(error.kind(), ErrorKind::OffsetGap);
    assert!(error.to_string().contains("keeps 60 to 100"), "{error}");
}

#[tokio::test]
async fn a_position_beyond_the_end_is_reset_by_the_policy_only_after_bounded_retries() {
    let cluster = cluster_with(1, 1, 100).await;
    let more = [("read_isolation", "read_uncommitted".into()), (RESET, "latest".into())];
    let consumer = consumer_with(&cluster, &more);
    started(&consumer).await;
    consumer.seek(&tp(0), 500).unwrap();
    until("the policy to act", &consumer, |c| c.statistics().partitions[&tp(0)].fetched == 100).await;
    let refused = cluster.requests().iter().filter(|request| request.text.contains("offset=500")).count();
    assert!((5..10).contains(&refused), "{refused} tries");
    cluster.fill("t", 10, 10).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    assert_eq!(offsets(&seen, 0), (100..110).collect::<Vec<_>>());
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_that_a_follower_still_tells_from_before_a_commit_are_not_believed() {
    let options = Options {
        brokers: 3,
        session_timeout: Duration::from_secs(60),
        coordinator_commit_lag: Duration::from_millis(100),
        ..Options::default()
    };
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 2).unwrap();
    cluster.fill("t", 200, 10).unwrap();
    let first = consumer(&cluster);
    let mut seen = Seen::default();
    read(&first, &mut seen, 200).await;
    first.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    // Another joins while the commit can't be seen yet: the first is told its own assignment anew.
    let second = consumer(&cluster);
    started(&second).await;
    until("the rebalance", &first, |c| c.statistics().rebalances == 1 && c.assignment().len() == 1).await;
    let partition = first.assignment().pop().unwrap();
    assert_eq!(first.position(&partition), Some(100), "an old answer would read everything again");
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_at_where_reads_would_start_take_few_connections_at_a_time() {
    let cluster = cluster_with(1, 200, 400).await;
    let consumer = consumer_with(&cluster, &[(RESET, "latest".into()), ("mode", "polling".into())]);
    let most = std::cell::Cell::new(0);
    let watching = cluster.wait_for("an end that never comes", |cluster| {
        most.set(most.get().max(cluster.connections(0)));
        false
    });
    tokio::select! {
        () = watching => {}
        () = started(&consumer) => {}
    }
    assert!(most.get() < 30, "{} connections at once", most.get());
    assert_eq!(cluster.committed("g", "t").len(), 200);
    closed(&consumer).await;
}

#[tokio::test]
async fn with_error_an_empty_partition_is_no_gap() {
    let cluster = cluster_with(1, 2, 0).await;
    let consumer = consumer_with(&cluster, &[(RESET, "error".into())]);
    started(&consumer).await;
    cluster.fill("t", 20, 10).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test]
async fn with_latest_a_committed_zero_whose_records_are_gone_goes_on_where_the_log_begins() {
    let cluster = cluster_with(1, 1, 100).await;
    let before = consumer(&cluster);
    started(&before).await;
    before.commit(Commit::Offsets(&BTreeMap::from([(tp(0), 0)])), Some(PATIENCE)).await.unwrap();
    closed(&before).await;
    cluster.delete_records("t", 0, 60).unwrap();
    let consumer = consumer_with(&cluster, &[(RESET, "latest".into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 40).await;
    assert_eq!(offsets(&seen, 0), (60..100).collect::<Vec<_>>(), "what is left is not skipped");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_that_can_not_be_seen_yet_is_where_the_next_member_begins() {
    for reset in ["latest", "error"] {
        let options = Options {
            brokers: 3,
            session_timeout: Duration::from_secs(60),
            coordinator_commit_lag: Duration::from_millis(190),
            ..Options::default()
        };
        let cluster = Cluster::start(options).await.unwrap();
        cluster.create_topic("t", 1).unwrap();
        cluster.fill("t", 100, 10).unwrap();
        let before = consumer_with(&cluster, &[("max_poll_records", 30u64.into())]);
        let batch = soon("records", before.poll(None)).await.unwrap();
        before.commit(&batch, Some(PATIENCE)).await.unwrap();
        closed(&before).await;
        let consumer = consumer_with(&cluster, &[(RESET, reset.into())]);
        started(&consumer).await;
        assert_eq!(consumer.position(&tp(0)), Some(batch.len() as u64), "{reset}");
        assert_eq!(consumer.statistics().last_error, None, "{reset}: nothing had to be tried twice");
        closed(&consumer).await;
    }
}

#[tokio::test]
async fn with_latest_a_coordinator_that_is_away_for_a_moment_does_not_make_it_read_from_the_beginning() {
    let cluster = cluster_with(1, 1, 100).await;
    cluster.fail_next("COMMIT_OFFSET", 1, "coordinator_not_available").unwrap();
    let consumer = consumer_with(&cluster, &[(RESET, "latest".into())]);
    started(&consumer).await;
    assert_eq!(consumer.position(&tp(0)), Some(100));
    closed(&consumer).await;
}

#[tokio::test]
async fn with_latest_a_record_written_while_it_looks_for_the_end_is_the_first_and_no_sign_of_a_commit() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer_with(&cluster, &[(RESET, "latest".into())]);
    let hold = cluster.hold("CONSUME");
    consumer.begin().unwrap();
    soon("the look", hold.reached()).await;
    cluster.fill("t", 1, 10).unwrap();
    hold.release();
    started(&consumer).await;
    assert_eq!(consumer.position(&tp(0)), Some(100));
    closed(&consumer).await;
}
