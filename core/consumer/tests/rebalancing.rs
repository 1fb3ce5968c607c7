//! Members come and go: fences, what poll and commit say of it, and that nothing is lost.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use cursus_consumer::{Commit, Consumer, ErrorKind, State, TopicPartition};
use cursus_embedded::Cluster;

/// Polls until the rebalancing error comes, and gives the partitions it names.
async fn told(consumer: &Consumer) -> Vec<TopicPartition> {
    soon("the rebalancing error", async {
        loop {
            if let Err(error) = consumer.poll(Some(PATIENCE)).await {
                assert_eq!(error.kind(), ErrorKind::Rebalancing, "{error:?}");
                return error.stale().to_vec();
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_member_takes_its_share_and_the_first_is_told_once() {
    let cluster = cluster_with(3, 6, 600).await;
    let first = consumer(&cluster);
    started(&first).await;
    let second = consumer(&cluster);
    started(&second).await;
    assert_eq!(told(&first).await.len(), 6, "every fence ended, also of what comes back");
    started(&first).await;
    assert_eq!((first.assignment().len(), second.assignment().len()), (3, 3));
    // Told once: the next polls read.
    assert!(!soon("records", first.poll(None)).await.unwrap().is_empty());
    let statistics = first.statistics();
    assert_eq!((statistics.rebalances, statistics.local_generation), (1, 2));
    let (mut one, mut two) = (Seen::default(), Seen::default());
    read(&second, &mut two, 300).await;
    one.add(&first.poll(Some(Duration::ZERO)).await.unwrap());
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_rebalances_between_two_polls_are_one_error() {
    let cluster = cluster_with(3, 6, 60).await;
    let first = consumer(&cluster);
    started(&first).await;
    for _ in 0..3 {
        let rebalances = first.statistics().rebalances;
        let other = consumer(&cluster);
        started(&other).await;
        until("the first to notice", &first, |c| c.statistics().rebalances > rebalances && c.state() == State::Running)
            .await;
        closed(&other).await;
        until("the first to have all again", &first, |c| c.assignment().len() == 6).await;
    }
    assert_eq!(told(&first).await.len(), 6);
    let batch = soon("records", first.poll(None)).await.expect("told once");
    first.commit(&batch, Some(PATIENCE)).await.unwrap();
    closed(&first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_from_before_a_rebalance_is_refused_before_a_byte_is_sent() {
    let cluster = cluster_with(3, 4, 400).await;
    let first = consumer(&cluster);
    let mut batches = Vec::new();
    soon("records of every partition", async {
        while batches
            .iter()
            .flat_map(cursus_consumer::Batch::partitions)
            .collect::<std::collections::BTreeSet<_>>()
            .len()
            < 4
        {
            batches.push(first.poll(None).await.unwrap());
        }
    })
    .await;
    let second = consumer(&cluster);
    started(&second).await;
    until("the first to notice", &first, |c| c.assignment().len() == 2).await;
    cluster.clear_requests();
    let generation = cluster.group("g").unwrap().generation;
    for batch in &batches {
        for _ in 0..2 {
            let error = first.commit(batch, Some(PATIENCE)).await.expect_err("stale");
            assert_eq!(error.kind(), ErrorKind::Rebalancing);
            assert_eq!(error.stale(), batch.partitions(), "every fence was renewed");
            assert!(error.message().contains("t-"), "{error}");
        }
        let error = first.commit(&batch.get(0).unwrap(), Some(PATIENCE)).await.expect_err("stale");
        assert_eq!(error.kind(), ErrorKind::Rebalancing);
        assert!(first.owned(batch).is_empty());
    }
    let error = first
        .commit(Commit::All, Some(PATIENCE))
        .await
        .expect_err("what poll returned is stale, and nobody was told yet");
    assert_eq!(error.kind(), ErrorKind::Rebalancing);
    told(&first).await;
    first.commit(Commit::All, Some(PATIENCE)).await.expect("nothing of the new assignment was read: nothing to commit");
    assert_eq!((received(&cluster, "BATCH_COMMIT"), received(&cluster, "COMMIT_OFFSET")), (0, 0));
    assert!(cluster.committed("g", "t").is_empty());
    assert_eq!(cluster.group("g").unwrap().generation, generation, "a stale commit makes no generation");
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_members_come_and_go() {
    let cluster = cluster_with(3, 6, 6_000).await;
    let seen = Arc::new(std::sync::Mutex::new(BTreeMap::<_, std::collections::BTreeSet<u64>>::new()));
    let member = |limit: usize| {
        let (consumer, seen) = (consumer_with(&cluster, &[("max_poll_records", 50u64.into())]), seen.clone());
        async move {
            let mut polls = 0;
            while polls < limit && seen.lock().unwrap().values().map(|s| s.len()).sum::<usize>() < 6_000 {
                polls += 1;
                match consumer.poll(Some(Duration::from_millis(100))).await {
                    Ok(batch) => {
                        for record in batch.iter() {
                            seen.lock().unwrap().entry(record.partition.clone()).or_default().insert(record.offset);
                        }
                        match consumer.commit(&batch, Some(PATIENCE)).await {
                            Err(error) if error.kind() != ErrorKind::Rebalancing => panic!("{error:?}"),
                            _ => {}
                        }
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Rebalancing, "{error:?}"),
                }
            }
            closed(&consumer).await;
        }
    };
    soon("6000 records", async { tokio::join!(member(usize::MAX), member(10), member(25), member(40)) }).await;
    for (partition, end) in cluster.end_offsets("t") {
        let offsets = seen.lock().unwrap().get(&tp(partition)).cloned().unwrap_or_default();
        assert_eq!(offsets, (0..end).collect(), "partition {partition}");
    }
}

#[tokio::test]
async fn a_spare_member_runs_with_nothing_and_takes_over() {
    let cluster = cluster_with(1, 1, 10).await;
    let first = consumer(&cluster);
    started(&first).await;
    let spare = consumer(&cluster);
    started(&spare).await;
    until("one of them to hold the partition", &first, |first| {
        let both = [first, &*spare];
        both.iter().all(|c| c.state() == State::Running)
            && both.iter().map(|c| c.assignment().len()).sum::<usize>() == 1
    })
    .await;
    let (holder, idle) = if first.assignment().is_empty() { (&spare, &first) } else { (&first, &spare) };
    assert!(
        idle.poll(Some(Duration::ZERO)).await.is_ok_and(|batch| batch.is_empty()) || idle.statistics().rebalances > 0
    );
    closed(holder).await;
    until("the spare to take over", idle, |c| c.assignment() == [tp(0)]).await;
    let mut seen = Seen::default();
    read(idle, &mut seen, 10).await;
    closed(idle).await;
}

#[tokio::test]
async fn an_expired_member_joins_afresh_and_reads_on_from_what_is_committed() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 30u64.into())]);
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    consumer.commit(&batch, Some(PATIENCE)).await.unwrap();
    let next = batch.next_offsets()[&tp(0)];
    let old = consumer.statistics().member.unwrap();
    cluster.expire_member("g", &old).unwrap();
    assert_eq!(told(&consumer).await, [tp(0)]);
    started(&consumer).await;
    assert_ne!(consumer.statistics().member.unwrap(), old);
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    assert_eq!(batch.get(0).unwrap().offset(), next);
    closed(&consumer).await;
}

#[tokio::test]
async fn what_was_proven_processed_is_not_redone_after_a_rebalance() {
    let cluster = cluster_with(1, 2, 200).await;
    // Automatic commits are far away: only the rebalance itself can commit.
    let auto = [
        ("enable_auto_commit", true.into()),
        ("auto_commit_interval_ms", 3_600_000u64.into()),
        ("max_poll_records", 20u64.into()),
    ];
    let first = consumer_with(&cluster, &auto);
    let mut proven = BTreeMap::new();
    for _ in 0..4 {
        let batch = soon("records", first.poll(None)).await.unwrap();
        proven.extend(batch.next_offsets());
    }
    // This poll proves the four before it.
    let last = first.poll(Some(Duration::ZERO)).await.unwrap();
    assert!(cluster.committed("g", "t").is_empty());
    let second = consumer_with(&cluster, &auto);
    started(&second).await;
    until("the first to have its new assignment", &first, |c| {
        c.statistics().rebalances == 1 && c.state() == State::Running
    })
    .await;
    for partition in first.assignment() {
        if let Some(next) = proven.get(&partition) {
            assert_eq!(
                cluster.committed("g", "t").get(&partition.partition),
                Some(next),
                "{partition}; last was {last:?}"
            );
            assert_eq!(first.position(&partition), Some(*next));
        }
    }
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test]
async fn iterating_goes_through_a_rebalance_without_an_error() {
    let cluster = cluster_with(1, 2, 100).await;
    let first = consumer(&cluster);
    started(&first).await;
    let second = consumer(&cluster);
    started(&second).await;
    until("the first to notice", &first, |c| c.assignment().len() == 1).await;
    assert!(soon("a record", first.next_record()).await.unwrap().is_some());
    assert!(soon("a batch", first.next_batch()).await.unwrap().is_some());
    assert_eq!(first.poll(Some(Duration::ZERO)).await.map(|_| ()).map_err(|e| e.kind()), Ok(()));
    closed(&first).await;
    closed(&second).await;
}

/// Has a member process the records of four partitions without committing any. Returns what is proven processed.
async fn uncommitted(cluster: &Cluster, first: &Consumer) -> BTreeMap<TopicPartition, u64> {
    fetched(cluster, first).await;
    let batch = soon("records", first.poll(None)).await.unwrap();
    assert_eq!(batch.len(), 40);
    first.poll(Some(Duration::ZERO)).await.unwrap();
    batch.next_offsets()
}

fn auto(cluster: &Cluster) -> Arc<Consumer> {
    let auto = [("enable_auto_commit", true.into()), ("auto_commit_interval_ms", 3_600_000u64.into())];
    consumer_with(cluster, &auto)
}

/// Waits until a member has heard of a rebalance, and reads on with so many partitions, each from where it had got to.
async fn reads_on(first: &Consumer, processed: &BTreeMap<TopicPartition, u64>, partitions: usize) {
    until("the rebalance", first, |c| c.assignment().len() == partitions && c.state() == State::Running).await;
    for partition in first.assignment() {
        assert_eq!(first.position(&partition), Some(processed[&partition]), "{partition} isn't read twice");
    }
}

#[tokio::test]
async fn what_was_processed_before_a_rebalance_is_committed_after_it_although_the_coordinator_was_away_for_a_moment() {
    let cluster = cluster_with(1, 4, 40).await;
    let first = auto(&cluster);
    let processed = uncommitted(&cluster, &first).await;
    cluster.fail_next("COMMIT_OFFSET", 1, "coordinator_not_available").unwrap();
    let second = consumer(&cluster);
    started(&second).await;
    reads_on(&first, &processed, 2).await;
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test]
async fn what_was_processed_before_a_rebalance_is_committed_under_the_generation_that_comes_of_it() {
    let cluster = cluster_with(1, 4, 40).await;
    let first = auto(&cluster);
    let processed = uncommitted(&cluster, &first).await;
    let commits = cluster.hold("COMMIT_OFFSET");
    let second = consumer_with(
        &cluster,
        &[("heartbeat_interval_ms", 60_000u64.into()), ("expected_session_timeout_ms", 600_000u64.into())],
    );
    started(&second).await;
    soon("the commit of what was processed", commits.reached()).await;
    // Yet another generation, of which no heartbeat tells: what is on its way comes too late, and says so.
    let heartbeats = cluster.hold("HEARTBEAT");
    soon("a heartbeat", heartbeats.reached()).await;
    closed(&second).await;
    commits.release();
    reads_on(&first, &processed, 4).await;
    assert_eq!(first.statistics().rebalances, 1, "nothing was read in between");
    heartbeats.release();
    closed(&first).await;
}

#[tokio::test]
async fn where_somebody_committed_further_a_rebalance_reads_on_from_there() {
    let cluster = cluster_with(1, 4, 40).await;
    let first = auto(&cluster);
    let mut processed = uncommitted(&cluster, &first).await;
    let error = "offset_regression reason=\"offset regression group=g topic=t partition=0 current=50 attempted=10\"";
    cluster.fail_next("COMMIT_OFFSET", 1, error).unwrap();
    let second = consumer(&cluster);
    started(&second).await;
    until("the rebalance", &first, |c| c.assignment().len() == 2 && c.state() == State::Running).await;
    let refused: Vec<_> = first.assignment().into_iter().filter(|p| first.position(p) != Some(processed[p])).collect();
    assert_eq!(refused.len(), 1, "one was refused, and is where the group says");
    for partition in refused {
        processed.insert(partition, 0);
    }
    reads_on(&first, &processed, 2).await;
    closed(&first).await;
    closed(&second).await;
}
