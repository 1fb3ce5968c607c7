//! Commits: seen by others, resumed from, refused where they are stale or a step back.

use std::collections::BTreeMap;

use cursus_consumer::{Batch, Commit, Consumer, ErrorKind};
use cursus_embedded::TransactionalWriter;
use cursus_wire::command::CommitOffset;
use cursus_wire::{Meaning, Member};

use crate::client::ask;
use crate::consumers::{PATIENCE, Seen, closed, poll, read, soon, started, told, until};
use crate::place::{Place, unique};

#[tokio::test]
async fn a_commit_is_seen_by_fetch_offset_and_the_member_by_group_status() {
    let Some(place) = Place::any().await else { return };
    place.create(3).await;
    place.fill(3, 0..200, 50).await;
    let consumer = place.consumer(&[("max_poll_records", 50u64.into())]);
    let mut seen = Seen::default();
    let mut expected = BTreeMap::from([(0, 0), (1, 0), (2, 0)]);
    while seen.distinct() < 600 {
        let batch = poll(&consumer, &mut seen).await;
        soon("the commit", consumer.commit(&batch, Some(PATIENCE))).await.unwrap();
        expected.extend(batch.next_offsets().into_iter().map(|(partition, next)| (partition.partition, next)));
        place.wait_committed(&expected).await;
    }
    assert!(expected.values().all(|offset| *offset == 200), "{expected:?}");
    for partition in consumer.assignment() {
        let committed = soon("the committed offset", consumer.committed(&partition, Some(PATIENCE))).await;
        assert_eq!(committed.unwrap(), Some(200));
    }
    let (status, statistics) = (place.group_status().await, consumer.statistics());
    assert_eq!((status.state.as_str(), status.topic_name.as_str()), ("Stable", place.topic.as_str()));
    assert_eq!(Some(status.generation), statistics.generation);
    assert_eq!(place.wait_members(1).await, BTreeMap::from([(statistics.member.unwrap(), vec![0, 1, 2])]));
    closed(&consumer).await;
}

#[tokio::test]
async fn a_new_consumer_goes_on_where_the_last_one_committed() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..100, 50).await;
    let first = place.consumer(&[("max_poll_records", 30u64.into())]);
    let mut committed = BTreeMap::new();
    let mut seen = Seen::default();
    while committed.len() < 2 {
        let batch = poll(&first, &mut seen).await;
        soon("the commit", first.commit(&batch, Some(PATIENCE))).await.unwrap();
        committed.extend(batch.next_offsets().into_iter().map(|(partition, next)| (partition.partition, next)));
    }
    // Read and not committed: it comes again.
    poll(&first, &mut seen).await;
    closed(&first).await;
    let second = place.consumer(&[]);
    let mut again = Seen::default();
    read(&second, &mut again, 200 - committed.values().sum::<u64>()).await;
    for (partition, from) in committed {
        assert_eq!(again.of(partition), (from..100).collect());
    }
    assert_eq!(again.duplicates(), 0);
    closed(&second).await;
}

#[tokio::test]
async fn automatic_commits_come_by_themselves_and_at_close() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..100, 50).await;
    let auto = [("enable_auto_commit", true.into()), ("auto_commit_interval_ms", 200u64.into())];
    let consumer = place.consumer(&auto);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 200).await;
    // This poll proves what came before it.
    poll(&consumer, &mut seen).await;
    place.wait_committed(&BTreeMap::from([(0, 100), (1, 100)])).await;
    closed(&consumer).await;
    place.fill(2, 100..150, 50).await;
    let auto = [("enable_auto_commit", true.into()), ("auto_commit_interval_ms", 3_600_000u64.into())];
    let consumer = place.consumer(&auto);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    poll(&consumer, &mut seen).await;
    assert_eq!(place.all_committed(2).await, BTreeMap::from([(0, 100), (1, 100)]));
    closed(&consumer).await;
    place.wait_committed(&BTreeMap::from([(0, 150), (1, 150)])).await;
}

#[tokio::test]
async fn a_commit_from_before_a_rebalance_is_refused_and_changes_nothing() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..50, 50).await;
    let first = place.consumer(&[]);
    let mut seen = Seen::default();
    let batch = soon("records", async {
        loop {
            let batch = poll(&first, &mut seen).await;
            if !batch.is_empty() {
                return batch;
            }
        }
    })
    .await;
    let second = place.consumer(&[]);
    started(&second).await;
    assert_eq!(told(&first).await, 2);
    let generation = place.group_status().await.generation;
    for _ in 0..2 {
        let error = first.commit(&batch, Some(PATIENCE)).await.expect_err("stale");
        assert_eq!(error.kind(), ErrorKind::Rebalancing, "{error}");
        assert_eq!(error.stale(), batch.partitions());
    }
    assert_eq!(place.all_committed(2).await, BTreeMap::from([(0, 0), (1, 0)]));
    assert_eq!(place.group_status().await.generation, generation);
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test]
async fn a_commit_that_the_group_has_outrun_is_refused_by_the_broker_and_is_a_rebalance() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..50, 50).await;
    // No heartbeat finds out first. The broker waits ten seconds for one, this test is done before.
    let slow = [("heartbeat_interval_ms", 60_000u64.into()), ("expected_session_timeout_ms", 600_000u64.into())];
    let first = place.consumer(&slow);
    let mut seen = Seen::default();
    read(&first, &mut seen, 100).await;
    let second = place.consumer(&slow);
    started(&second).await;
    let error = soon("the commit", first.commit(Commit::All, Some(PATIENCE))).await.expect_err("the group moved on");
    assert_eq!(error.kind(), ErrorKind::Rebalancing, "{error}");
    assert_eq!(place.all_committed(2).await, BTreeMap::from([(0, 0), (1, 0)]));
    until("the new assignment", &first, |c| c.statistics().rebalances == 1 && c.assignment().len() == 1).await;
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test]
async fn a_commit_below_the_groups_own_is_a_regression_whoever_finds_out() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    place.fill(1, 0..100, 50).await;
    let consumer = place.consumer(&[("max_poll_records", 10u64.into())]);
    let mut seen = Seen::default();
    let mut batches = Vec::new();
    while batches.len() < 4 {
        batches.push(poll(&consumer, &mut seen).await);
        batches.retain(|batch| !batch.is_empty());
    }
    soon("the commit", consumer.commit(&batches[1], Some(PATIENCE))).await.unwrap();
    let error = consumer.commit(&batches[0], Some(PATIENCE)).await.expect_err("a step back");
    assert_eq!(error.kind(), ErrorKind::OffsetRegression);
    assert!(error.broker().is_none(), "it was known here: {error}");
    // Somebody else commits in this member's name, which it can't know.
    let statistics = consumer.statistics();
    let behind_our_back = CommitOffset {
        topic: place.topic.clone(),
        partition: 0,
        group: place.group.clone(),
        offset: 90,
        member: Member::new(statistics.member.unwrap()).unwrap(),
        generation: statistics.generation,
    };
    ask(&place.coordinator(&place.group).await, &behind_our_back).await.unwrap();
    let error = consumer.commit(&batches[2], Some(PATIENCE)).await.expect_err("a step back");
    assert_eq!(error.kind(), ErrorKind::OffsetRegression, "{error}");
    assert!(error.broker().is_some(), "the broker said so: {error}");
    place.wait_committed(&BTreeMap::from([(0, 90)])).await;
    // Reading goes on, and so do commits from there on.
    read(&consumer, &mut seen, 100).await;
    soon("the commit", consumer.commit(Commit::All, Some(PATIENCE))).await.unwrap();
    place.wait_committed(&BTreeMap::from([(0, 100)])).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_transaction_takes_a_batchs_offsets_with_it_and_a_rebalance_keeps_them_out() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..20, 50).await;
    let out = unique("out").parse().unwrap();
    place.create_topic(&out, 1).await;
    let first = place.consumer(&[("max_poll_records", 10u64.into())]);
    let mut writer = TransactionalWriter::new(&place.brokers, &unique("transactional")).unwrap();
    let mut seen = Seen::default();
    let mut expected = BTreeMap::from([(0, 0), (1, 0)]);
    for _ in 0..2 {
        let batch = some(&first, &mut seen).await;
        stage(&mut writer, out.as_str(), &batch).await;
        soon("the commit", writer.commit()).await.unwrap();
        expected.extend(batch.next_offsets().into_iter().map(|(partition, next)| (partition.partition, next)));
        place.wait_committed(&expected).await;
    }
    let batch = some(&first, &mut seen).await;
    stage(&mut writer, out.as_str(), &batch).await;
    let second = place.consumer(&[]);
    started(&second).await;
    let error = soon("the commit", writer.commit()).await.expect_err("the group moved on");
    assert!(matches!(error.meaning(), Some(Meaning::GenerationMismatch { .. })), "{error}");
    soon("the abort", writer.abort()).await.unwrap();
    assert_eq!(place.all_committed(2).await, expected);
    // The consumer knows nothing of those commits, and goes on from what the group has.
    assert_eq!(told(&first).await, 2);
    let [mut one, mut two] = [Seen::default(), Seen::default()];
    let left = |owner: &Consumer| owner.assignment().iter().map(|tp| 20 - expected[&tp.partition]).sum();
    read(&first, &mut one, left(&first)).await;
    read(&second, &mut two, left(&second)).await;
    for (partition, from) in &expected {
        let read = if one.of(*partition).is_empty() { &two } else { &one };
        read.assert_exactly(*partition, *from..20);
    }
    closed(&first).await;
    closed(&second).await;
}

/// The next batch that has records.
async fn some(consumer: &Consumer, seen: &mut Seen) -> Batch {
    soon("records", async {
        loop {
            let batch = poll(consumer, seen).await;
            if !batch.is_empty() {
                return batch;
            }
        }
    })
    .await
}

/// Begins a transaction with a record and a batch's offsets.
async fn stage(writer: &mut TransactionalWriter, out: &str, batch: &Batch) {
    soon("a transaction", writer.begin()).await.unwrap();
    soon("a record", writer.publish(out, "", "made of a batch", Some(0))).await.unwrap();
    let metadata = batch.group_metadata().expect("a batch of a member");
    let offsets = batch.next_offsets().into_iter().map(|(partition, next)| (partition.partition, next));
    soon("the offsets", writer.send_offsets(metadata, offsets)).await.unwrap();
}
