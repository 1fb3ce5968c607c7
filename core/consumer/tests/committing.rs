//! Commits: what is sent, what is refused, and what happens while the coordinator is away.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use cursus_consumer::{Batch, Commit, Consumer, ErrorKind, State};
use cursus_embedded::{Cluster, TransactionalWriter};

/// Nothing happens by itself within the time of a test: no heartbeat, and no automatic commit before close.
fn slow() -> [(&'static str, cursus_consumer::Value); 3] {
    [
        ("heartbeat_interval_ms", 60_000u64.into()),
        ("expected_session_timeout_ms", 600_000u64.into()),
        ("auto_commit_interval_ms", 3_600_000u64.into()),
    ]
}

/// Commits an offset in the name of who read a batch, without the consumer knowing of it.
async fn commit_beside(cluster: &Cluster, batch: &Batch, partition: u32, offset: u64) {
    let mut writer = TransactionalWriter::new(cluster.brokers(), "beside").unwrap();
    soon("a transaction", writer.begin()).await.unwrap();
    let metadata = batch.group_metadata().expect("a batch of a member");
    soon("the offset", writer.send_offsets(metadata, [(partition, offset)])).await.unwrap();
    soon("the commit", writer.commit()).await.unwrap();
}

/// A member that was given the first two tens of so many records, and has committed nothing.
async fn two_batches(records: u64) -> (Cluster, Arc<Consumer>, Batch, Batch) {
    let cluster = cluster_with(1, 1, records).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 10u64.into())]);
    fetched(&cluster, &consumer).await;
    let first = soon("records", consumer.poll(None)).await.unwrap();
    let second = soon("records", consumer.poll(None)).await.unwrap();
    (cluster, consumer, first, second)
}

#[tokio::test]
async fn the_next_offset_is_committed_by_batch_record_offsets_and_all() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 10u64.into())]);
    fetched(&cluster, &consumer).await;
    let committed = || cluster.committed("g", "t").get(&0).copied();
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    consumer.commit(&batch.get(3).unwrap(), Some(PATIENCE)).await.unwrap();
    assert_eq!(committed(), Some(4));
    consumer.commit(&batch, Some(PATIENCE)).await.unwrap();
    assert_eq!(committed(), Some(10));
    let _ = soon("records", consumer.poll(None)).await.unwrap();
    consumer.commit(&BTreeMap::from([(tp(0), 15)]), Some(PATIENCE)).await.unwrap();
    assert_eq!(committed(), Some(15));
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    assert_eq!(committed(), Some(20));
    assert_eq!(consumer.committed(&tp(0), Some(PATIENCE)).await.unwrap(), Some(20));
    assert_eq!(consumer.statistics().commits, 4);
    // The same again is fine and costs nothing.
    cluster.clear_requests();
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    consumer.commit(&BTreeMap::from([(tp(0), 20)]), Some(PATIENCE)).await.unwrap();
    assert_eq!(received(&cluster, "BATCH_COMMIT"), 0);
    closed(&consumer).await;
    // A new member begins there.
    let next = consumer_with(&cluster, &[]);
    assert_eq!(soon("records", next.poll(None)).await.unwrap().get(0).unwrap().offset(), 20);
    closed(&next).await;
}

#[tokio::test]
async fn a_step_back_and_a_leap_ahead_are_refused_here() {
    let (cluster, consumer, first, second) = two_batches(100).await;
    let partition = first.partitions()[0].clone();
    consumer.commit(&second, Some(PATIENCE)).await.unwrap();
    cluster.clear_requests();
    let error = consumer.commit(&first, Some(PATIENCE)).await.expect_err("a step back");
    assert_eq!(error.kind(), ErrorKind::OffsetRegression);
    assert!(error.message().contains("committed up to"), "{error}");
    assert_eq!(received(&cluster, "BATCH_COMMIT"), 0);
    let position = consumer.position(&partition).unwrap();
    let error = consumer
        .commit(&BTreeMap::from([(partition.clone(), position + 1)]), Some(PATIENCE))
        .await
        .expect_err("a leap");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = consumer.commit(&BTreeMap::from([(tp(7), 1)]), Some(PATIENCE)).await.expect_err("not ours");
    assert_eq!((error.kind(), error.stale()), (ErrorKind::Rebalancing, &[tp(7)][..]));
    closed(&consumer).await;
}

#[tokio::test]
async fn a_batch_of_another_consumer_is_refused() {
    let cluster = cluster_with(1, 1, 10).await;
    let (one, other) = (consumer(&cluster), consumer_with(&cluster, &[("group_id", "other".into())]));
    let batch = soon("records", one.poll(None)).await.unwrap();
    started(&other).await;
    let error = other.commit(&batch, Some(PATIENCE)).await.expect_err("not its own");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(other.owned(&batch).is_empty());
    assert_eq!(one.owned(&batch).len(), batch.len());
    closed(&one).await;
    closed(&other).await;
}

#[tokio::test]
async fn commits_that_meet_while_one_is_on_its_way_become_one_request() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 10u64.into())]);
    fetched(&cluster, &consumer).await;
    let mut batches = Vec::new();
    for _ in 0..5 {
        batches.push(soon("records", consumer.poll(None)).await.unwrap());
    }
    let hold = cluster.hold("BATCH_COMMIT");
    cluster.clear_requests();
    let mut commits: Vec<_> =
        batches.iter().map(|batch| Box::pin(consumer.begin_commit(batch.into(), Some(PATIENCE)).unwrap())).collect();
    soon("the first to arrive", hold.reached()).await;
    hold.release();
    for commit in &mut commits {
        soon("the commit", commit).await.unwrap();
    }
    assert_eq!(cluster.committed("g", "t")[&0], 50);
    assert_eq!(received(&cluster, "BATCH_COMMIT"), 2, "one on its way, and one for the four behind it");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_nobody_waits_for_is_carried_out_before_close_ends() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer(&cluster);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    drop(consumer.begin_commit((&batch).into(), None).unwrap());
    closed(&consumer).await;
    assert_eq!(cluster.committed("g", "t")[&0], batch.len() as u64);
}

#[tokio::test]
async fn automatic_commits_take_what_the_next_poll_proved_and_close_proves_nothing() {
    let cluster = cluster_with(1, 1, 100).await;
    let auto = [
        ("enable_auto_commit", true.into()),
        ("auto_commit_interval_ms", 20u64.into()),
        ("max_poll_records", 10u64.into()),
    ];
    let consumer = consumer_with(&cluster, &auto);
    fetched(&cluster, &consumer).await;
    soon("records", consumer.poll(None)).await.unwrap();
    soon("records", consumer.poll(None)).await.unwrap();
    soon("the automatic commit", cluster.wait_for("commit", |c| c.committed("g", "t").get(&0) == Some(&10))).await;
    closed(&consumer).await;
    assert_eq!(cluster.committed("g", "t")[&0], 10, "the second batch was never proven processed");

    let consumer = consumer_with(
        &cluster,
        &[("enable_auto_commit", true.into()), ("auto_commit_interval_ms", 3_600_000u64.into())],
    );
    for _ in 0..6 {
        soon("a record", consumer.next_record()).await.unwrap();
    }
    closed(&consumer).await;
    assert_eq!(
        cluster.committed("g", "t")[&0],
        15,
        "iteration proves a record when the next is asked for; close commits that"
    );
}

#[tokio::test]
async fn overlapping_polls_are_refused_under_automatic_commits_and_allowed_without() {
    let cluster = cluster_with(1, 1, 0).await;
    let auto = consumer_with(&cluster, &[("enable_auto_commit", true.into())]);
    started(&auto).await;
    let open = auto.driver().begin_poll(None).unwrap();
    assert_eq!(auto.poll(None).await.expect_err("overlapping").kind(), ErrorKind::InvalidState);
    drop(open);
    assert!(auto.poll(Some(Duration::ZERO)).await.is_ok());
    closed(&auto).await;
    let manual = consumer(&cluster);
    let (one, two) = (manual.driver().begin_poll(None), manual.driver().begin_poll(None));
    assert!(one.is_ok() && two.is_ok());
    drop((one, two));
    closed(&manual).await;
}

#[tokio::test]
async fn transient_refusals_are_tried_again_whatever_they_call_themselves() {
    let cluster = cluster_with(3, 1, 10).await;
    let consumer = consumer(&cluster);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    for code in [
        "raft_apply_failed class=internal retryable=false reason=\"no leader\"",
        "raft_batch_apply_failed",
        "coordinator_not_available",
    ] {
        cluster.fail_next("BATCH_COMMIT", 2, code).unwrap();
    }
    consumer.commit(&batch, Some(PATIENCE)).await.unwrap();
    assert_eq!(cluster.committed("g", "t")[&0], 10);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_regression_by_the_broker_is_typed_however_it_comes() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    let refusal =
        "raft_apply_failed reason=\"offset regression for group=g topic=t partition=0: current=50 attempted=10\"";
    cluster.fail_next("BATCH_COMMIT", 1, refusal).unwrap();
    let error = consumer.commit(&batch, Some(PATIENCE)).await.expect_err("a regression");
    assert_eq!(error.kind(), ErrorKind::OffsetRegression);
    assert_eq!(error.broker().unwrap().code, "raft_apply_failed");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_fenced_by_the_broker_is_a_rebalance_and_what_follows_reads_on() {
    let cluster = cluster_with(1, 1, 10).await;
    // No heartbeat finds out first.
    let slow = [("heartbeat_interval_ms", 60_000u64.into()), ("expected_session_timeout_ms", 600_000u64.into())];
    let consumer = consumer_with(&cluster, &slow);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    let other = consumer_with(&cluster, &slow);
    started(&other).await;
    let error = consumer.commit(&batch, Some(PATIENCE)).await.expect_err("the group has moved on");
    assert_eq!(error.kind(), ErrorKind::Rebalancing);
    assert!(cluster.committed("g", "t").is_empty());
    until("the new assignment", &consumer, |c| c.statistics().rebalances == 1 && c.state() == State::Running).await;
    closed(&consumer).await;
    closed(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_a_commit_was_fenced_no_poll_returns_a_record_of_the_old_assignment() {
    let cluster = cluster_with(1, 1, 1000).await;
    let slow = [
        ("heartbeat_interval_ms", 60_000u64.into()),
        ("expected_session_timeout_ms", 600_000u64.into()),
        ("max_poll_records", 1u64.into()),
    ];
    // The engine answers the commit on one thread while another polls on: some rounds would meet in between.
    for _ in 0..50 {
        let consumer = consumer_with(&cluster, &slow);
        fetched(&cluster, &consumer).await;
        let batch = soon("records", consumer.poll(None)).await.unwrap();
        let other = consumer_with(&cluster, &slow);
        started(&other).await;
        let error = consumer.commit(&batch, Some(PATIENCE)).await.expect_err("the group has moved on");
        assert_eq!(error.kind(), ErrorKind::Rebalancing);
        let told = consumer.poll(Some(Duration::ZERO)).await.expect_err("the next poll tells of it");
        assert_eq!(told.kind(), ErrorKind::Rebalancing);
        closed(&consumer).await;
        closed(&other).await;
    }
}

#[tokio::test]
async fn a_commit_that_times_out_says_whether_it_was_sent() {
    let (cluster, consumer, first, second) = two_batches(20).await;
    let hold = cluster.hold("BATCH_COMMIT");
    let sent = consumer.begin_commit((&first).into(), Some(Duration::from_millis(300))).unwrap();
    soon("the commit to arrive", hold.reached()).await;
    let unsent = consumer.begin_commit((&second).into(), Some(Duration::from_millis(50))).unwrap();
    let error = soon("the time of the second", unsent).await.expect_err("it can't be sent");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let error = soon("the time of the first", sent).await.expect_err("it is not answered");
    assert_eq!(error.kind(), ErrorKind::CommitOutcomeUnknown, "{error}");
    hold.release();
    consumer.commit(&second, Some(PATIENCE)).await.unwrap();
    assert_eq!(cluster.committed("g", "t")[&0], 20);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_whose_connection_always_breaks_is_tried_again_with_pauses() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    cluster.lose_reply("BATCH_COMMIT", 1000).unwrap();
    cluster.clear_requests();
    let error = consumer.commit(&batch, Some(Duration::from_millis(500))).await.expect_err("it is never answered");
    assert_eq!(error.kind(), ErrorKind::CommitOutcomeUnknown);
    // The pauses are 10 to 100 ms here.
    assert!(received(&cluster, "BATCH_COMMIT") < 40, "{} tries", received(&cluster, "BATCH_COMMIT"));
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_before_a_rebalance_does_not_claim_that_nothing_was_committed() {
    let cluster = cluster_with(1, 1, 10).await;
    // No heartbeat finds out first.
    let slow = [("heartbeat_interval_ms", 60_000u64.into()), ("expected_session_timeout_ms", 600_000u64.into())];
    let first = consumer_with(&cluster, &slow);
    fetched(&cluster, &first).await;
    let batch = soon("records", first.poll(None)).await.unwrap();
    let hold = cluster.hold("BATCH_COMMIT");
    let commit = first.begin_commit((&batch).into(), Some(PATIENCE)).unwrap();
    soon("the commit to arrive", hold.reached()).await;
    let second = consumer_with(&cluster, &slow);
    started(&second).await;
    cluster.cut_connections(None).unwrap();
    let error = soon("the commit", commit).await.expect_err("the group has moved on");
    assert_eq!(error.kind(), ErrorKind::CommitOutcomeUnknown, "{error}");
    hold.release();
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test]
async fn one_partition_that_somebody_else_committed_further_does_not_hold_up_automatic_commits_of_the_others() {
    let cluster = cluster_with(1, 2, 20).await;
    let auto = [("enable_auto_commit", true.into()), ("auto_commit_interval_ms", 20u64.into())];
    let consumer = consumer_with(&cluster, &auto);
    fetched(&cluster, &consumer).await;
    let refusal =
        "offset_regression reason=\"offset regression for group=g topic=t partition=0: current=50 attempted=10\"";
    // Once for both together, and once for the first of them by itself.
    cluster.fail_next("BATCH_COMMIT", 2, refusal).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    consumer.poll(Some(Duration::ZERO)).await.unwrap();
    soon("the other's commit", cluster.wait_for("commit", |c| c.committed("g", "t").get(&1) == Some(&10))).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn what_is_committed_is_asked_until_the_coordinator_can_be_believed() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    consumer.commit(&batch, Some(PATIENCE)).await.unwrap();
    cluster.fail_next("FETCH_OFFSET", 1, "group_not_found group=g").unwrap();
    cluster.fail_next("FETCH_OFFSET", 1, "coordinator_not_available").unwrap();
    cluster.lose_reply("FETCH_OFFSET", 1).unwrap();
    assert_eq!(consumer.committed(&tp(0), Some(PATIENCE)).await.unwrap(), Some(10));
    cluster.fail_next("FETCH_OFFSET", 1000, "coordinator_not_available").unwrap();
    let error = consumer.committed(&tp(0), Some(Duration::from_millis(100))).await.expect_err("never");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_that_was_unanswered_once_is_not_said_to_have_done_nothing() {
    let cluster = cluster_with(1, 1, 20).await;
    let consumer = consumer(&cluster);
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    let statistics = consumer.statistics();
    let (generation, member) = (statistics.generation.unwrap(), statistics.member.unwrap());
    cluster.lose_reply("BATCH_COMMIT", 1).unwrap();
    let hold = cluster.hold("BATCH_COMMIT");
    let commit = consumer.begin_commit((&batch).into(), None).unwrap();
    soon("the commit", hold.reached()).await;
    let refusal = format!("GEN_MISMATCH current={} requested={generation} group=g member={member}", generation + 1);
    drop(hold);
    soon("it to count", cluster.wait_for("a commit", |c| !c.committed("g", "t").is_empty())).await;
    cluster.fail_next("BATCH_COMMIT", 1, &refusal).unwrap();
    let error = soon("the outcome", commit).await.expect_err("nobody knows");
    assert_eq!(error.kind(), ErrorKind::CommitOutcomeUnknown, "{error}");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_step_back_behind_a_commit_that_is_still_on_its_way_is_refused_at_once() {
    let (cluster, consumer, first, second) = two_batches(20).await;
    let hold = cluster.hold("BATCH_COMMIT");
    let further = consumer.begin_commit((&second).into(), Some(PATIENCE)).unwrap();
    soon("the commit to arrive", hold.reached()).await;
    let error = soon("the refusal", consumer.commit(&first, None)).await.expect_err("a step back");
    assert_eq!(error.kind(), ErrorKind::OffsetRegression);
    assert!(error.message().contains("up to 20"), "{error}");
    hold.release();
    soon("the first", further).await.unwrap();
    closed(&consumer).await;
}

#[tokio::test]
async fn an_automatic_commit_on_its_way_is_not_sent_twice_and_what_was_proven_meanwhile_follows_it() {
    let cluster = cluster_with(1, 1, 20).await;
    let auto = [
        ("enable_auto_commit", true.into()),
        ("auto_commit_interval_ms", 3_600_000u64.into()),
        ("max_poll_records", 10u64.into()),
    ];
    let consumer = consumer_with(&cluster, &auto);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    soon("records", consumer.poll(None)).await.unwrap();
    let hold = cluster.hold("BATCH_COMMIT");
    cluster.clear_requests();
    let commit = consumer.begin_commit((&batch).into(), None).unwrap();
    soon("the commit to arrive", hold.reached()).await;
    // Close commits what is proven: the same as is on its way.
    let ended = consumer.close(None);
    tokio::pin!(ended);
    assert!(futures_util::poll!(&mut ended).is_pending());
    until("it to be noticed", &consumer, |c| c.state() == State::Closing).await;
    hold.release();
    soon("the commit", commit).await.unwrap();
    soon("close", ended).await;
    assert_eq!((cluster.committed("g", "t")[&0], received(&cluster, "BATCH_COMMIT")), (10, 1));

    let consumer = consumer_with(&cluster, &auto);
    fetched(&cluster, &consumer).await;
    soon("a record", consumer.next_record()).await.unwrap();
    let second = soon("a record", consumer.next_record()).await.unwrap().unwrap();
    let hold = cluster.hold("BATCH_COMMIT");
    let commit = consumer.begin_commit((&second).into(), None).unwrap();
    soon("the commit to arrive", hold.reached()).await;
    for _ in 0..3 {
        soon("a record", consumer.next_record()).await.unwrap();
    }
    let ended = consumer.close(None);
    tokio::pin!(ended);
    assert!(futures_util::poll!(&mut ended).is_pending());
    until("it to be noticed", &consumer, |c| c.state() == State::Closing).await;
    hold.release();
    soon("the commit", commit).await.unwrap();
    soon("close", ended).await;
    assert_eq!(cluster.committed("g", "t")[&0], 14, "the last of five was never proven processed");
}

#[tokio::test]
async fn one_partition_that_somebody_else_committed_further_does_not_keep_close_from_committing_the_others() {
    let cluster = cluster_with(1, 3, 30).await;
    let consumer = consumer_with(&cluster, &[&slow()[..], &[("enable_auto_commit", true.into())]].concat());
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    assert_eq!(batch.len(), 30);
    consumer.poll(Some(Duration::ZERO)).await.unwrap();
    commit_beside(&cluster, &batch, 1, 50).await;
    closed(&consumer).await;
    assert_eq!(cluster.committed("g", "t"), [(0, 10), (1, 50), (2, 10)].into());
    assert!(consumer.statistics().given_up.is_empty(), "{:?}", consumer.statistics().given_up);
}

#[tokio::test]
async fn a_commit_that_was_refused_beside_another_does_not_sink_it() {
    let cluster = cluster_with(1, 3, 30).await;
    let consumer = consumer_with(&cluster, &slow());
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    commit_beside(&cluster, &batch, 1, 50).await;
    let offsets = |partition, offset| BTreeMap::from([(tp(partition), offset)]);
    let hold = cluster.hold("BATCH_COMMIT");
    let first = consumer.begin_commit(Commit::Offsets(&offsets(0, 1)), Some(PATIENCE)).unwrap();
    soon("the commit to arrive", hold.reached()).await;
    // These two wait, and go together.
    let regresses = consumer.begin_commit(Commit::Offsets(&offsets(1, 10)), Some(PATIENCE)).unwrap();
    let good = consumer.begin_commit(Commit::Offsets(&offsets(2, 10)), Some(PATIENCE)).unwrap();
    hold.release();
    soon("the first", first).await.unwrap();
    assert_eq!(soon("the second", regresses).await.expect_err("a step back").kind(), ErrorKind::OffsetRegression);
    soon("the third", good).await.expect("there is nothing wrong with it");
    assert_eq!(cluster.committed("g", "t"), [(0, 1), (1, 50), (2, 10)].into());
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_of_a_partition_that_the_group_has_given_to_another_ends_the_assignment() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer_with(&cluster, &slow());
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    cluster.fail_next("BATCH_COMMIT", 1, "NOT_OWNER partition=0 member=m").unwrap();
    let error = consumer.commit(&batch, Some(PATIENCE)).await.expect_err("it is another's");
    assert_eq!((error.kind(), error.stale()), (ErrorKind::Rebalancing, &[tp(0)][..]));
    let told = consumer.poll(Some(Duration::ZERO)).await.expect_err("what was read before is void");
    assert_eq!(told.kind(), ErrorKind::Rebalancing);
    until("the group's own word", &consumer, |c| c.state() == State::Running).await;
    assert_eq!(consumer.statistics().rebalances, 1);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_that_is_not_allowed_says_so_and_leaves_no_trouble_behind() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    for (code, kind) in [
        ("authentication_required command=BATCH_COMMIT", ErrorKind::Authentication),
        ("NOT_AUTHORIZED_FOR_OPERATION command=BATCH_COMMIT", ErrorKind::Authorization),
        ("something_new", ErrorKind::Broker),
    ] {
        cluster.fail_next("BATCH_COMMIT", 1, code).unwrap();
        assert_eq!(consumer.commit(&batch, Some(PATIENCE)).await.expect_err(code).kind(), kind);
    }
    cluster.fail_next("BATCH_COMMIT", 1_000_000, "coordinator_not_available").unwrap();
    consumer.commit(&batch, Some(Duration::from_millis(50))).await.expect_err("never taken");
    until("the trouble to be over", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_that_still_waits_ends_with_the_assignment_that_it_was_of() {
    let (cluster, consumer, first, second) = two_batches(20).await;
    let hold = cluster.hold("BATCH_COMMIT");
    let sent = consumer.begin_commit((&first).into(), None).unwrap();
    soon("the commit to arrive", hold.reached()).await;
    let waits = consumer.begin_commit((&second).into(), None).unwrap();
    let other = consumer_with(&cluster, &slow());
    started(&other).await;
    let error = soon("the one that waits", waits).await.expect_err("it will never be sent");
    assert_eq!(error.kind(), ErrorKind::Rebalancing, "{error}");
    hold.release();
    soon("the one that was sent", sent).await.expect_err("it came too late");
    assert!(cluster.committed("g", "t").is_empty());
    closed(&consumer).await;
    closed(&other).await;
}
