//! Reading a topic from its start: everything, in order, each record once; positions and offsets; bounds.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::*;
use cursus_consumer::{ErrorKind, Iteration, State};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_alone_reads_every_record_once_and_in_order() {
    let cluster = cluster_with(3, 6, 20_000).await;
    let consumer = consumer(&cluster);
    assert_eq!(consumer.state(), State::New);
    assert!(cluster.requests().is_empty(), "the constructor sends nothing");
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20_000).await;
    seen.assert_exactly_in_order();
    assert_eq!(seen.total(), 20_000, "some came twice");
    assert_eq!(consumer.assignment().len(), 6);
    for (partition, end) in cluster.end_offsets("t") {
        assert_eq!(consumer.position(&tp(partition)), Some(end));
    }
    closed(&consumer).await;
    assert_eq!(cluster.group("g").unwrap().members.len(), 0, "close leaves the group");
}

#[tokio::test]
async fn keys_and_values_are_bytes_and_outlive_the_consumer() {
    let cluster = cluster_with(1, 1, 0).await;
    let (key, value) = (Bytes::from_static(&[0, 0xff, b'='][..]), Bytes::from_static(b"\xf0\x00\n"));
    cluster.produce("t", 0, [(key.clone(), value.clone())]).unwrap();
    let consumer = consumer(&cluster);
    let batch = soon("a record", consumer.poll(None)).await.unwrap();
    closed(&consumer).await;
    drop(consumer);
    let record = batch.get(0).unwrap();
    assert_eq!((record.key(), record.value(), record.offset(), record.is_control()), (key, value, 0, false));
}

#[tokio::test]
async fn a_poll_without_records_ends_empty_at_its_time_and_zero_does_not_wait() {
    let cluster = cluster_with(1, 1, 0).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    assert!(consumer.poll(Some(Duration::ZERO)).await.unwrap().is_empty());
    let waiting = consumer.poll(Some(Duration::from_millis(50)));
    assert!(soon("the poll's own time", waiting).await.unwrap().is_empty());
    closed(&consumer).await;
}

#[tokio::test]
async fn records_written_later_end_a_poll_that_waits() {
    let cluster = cluster_with(1, 2, 0).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    let (batch, ()) = tokio::join!(soon("the record", consumer.poll(None)), async {
        cluster.produce("t", 1, [("k", "v")]).unwrap();
    });
    assert_eq!(batch.unwrap().get(0).unwrap().partition(), &tp(1));
    closed(&consumer).await;
}

#[tokio::test]
async fn a_cancelled_poll_loses_no_record() {
    let cluster = cluster_with(1, 1, 0).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    let mut seen = Seen::default();
    for i in 0..50 {
        cluster.produce("t", 0, [("k", i.to_string())]).unwrap();
        // The poll is dropped wherever it happens to be.
        if let Ok(batch) = tokio::time::timeout(Duration::from_micros(200 * i), consumer.poll(None)).await {
            seen.add(&batch.unwrap());
        }
    }
    read(&consumer, &mut seen, 50).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_byte_limit_holds_over_all_partitions_and_frees_as_it_is_read() {
    let cluster = cluster_with(1, 8, 0).await;
    for partition in 0..8 {
        cluster.produce("t", partition, (0..200).map(|i| (i.to_string(), vec![0; 10_000]))).unwrap();
    }
    let limit: u64 = 1_000_000;
    let consumer = consumer_with(&cluster, &[("max_buffered_bytes", limit.into()), ("max_poll_records", 10u64.into())]);
    started(&consumer).await;
    // Nobody polls for a second, in which everything could be fetched.
    soon("heartbeats", cluster.wait_for("twenty heartbeats", |c| received(c, "HEARTBEAT") >= 20)).await;
    let mut seen = Seen::default();
    let mut most = consumer.statistics().buffered_bytes;
    soon("all of 16 MB", async {
        while seen.distinct() < 1600 {
            let batch = consumer.poll(Some(PATIENCE)).await.unwrap();
            assert!(batch.len() <= 10);
            seen.add(&batch);
            most = most.max(consumer.statistics().buffered_bytes);
        }
    })
    .await;
    assert!(most <= limit + (1 << 20), "{most} bytes were buffered with a limit of {limit}");
    let before = consumer.statistics().partitions;
    assert!(before.values().all(|partition| partition.buffered_bytes == 0), "{before:?}");
    assert_eq!(consumer.statistics().buffered_bytes, 0);
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_over_the_frame_limit_skip_no_record() {
    let cluster = cluster_with(1, 1, 0).await;
    // 256 records, which is what is asked for first, are far over 16 MiB; two of the large ones are too.
    cluster.produce("t", 0, (0..60).map(|i| (i.to_string(), vec![i; 400_000]))).unwrap();
    cluster.produce("t", 0, (60..64).map(|i| (i.to_string(), vec![i; 9 << 20]))).unwrap();
    cluster.produce("t", 0, (64..70).map(|i| (i.to_string(), vec![i; 10]))).unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 70).await;
    seen.assert_exactly_in_order();
    assert_eq!(seen.0[&tp(0)], (0..70).collect::<Vec<_>>());
    closed(&consumer).await;
}

#[tokio::test]
async fn iteration_gives_records_one_by_one_and_an_abandoned_tail_comes_first_in_the_next_poll() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer(&cluster);
    fetched(&cluster, &consumer).await;
    let mut offsets = Vec::new();
    for _ in 0..10 {
        let record = soon("a record", consumer.next_record()).await.unwrap().expect("not closed");
        offsets.push(record.offset());
    }
    let batch = consumer.poll(Some(Duration::ZERO)).await.unwrap();
    offsets.extend(batch.iter().map(|record| record.offset));
    assert_eq!(offsets, (0..100).collect::<Vec<_>>());
    closed(&consumer).await;
    assert!(matches!(consumer.driver().try_next_record(), Ok(Iteration::End)));
    assert!(matches!(consumer.driver().try_next_batch(), Ok(Iteration::End)));
}

#[tokio::test]
async fn more_partitions_than_connections_share_them() {
    let cluster = cluster_with(1, 40, 4_000).await;
    let consumer = consumer_with(&cluster, &[("max_connections_per_broker", 3u64.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 4_000).await;
    seen.assert_exactly_in_order();
    // Three to read, or one for each stream; one to the bootstrap address, two to the name that a single broker gives itself.
    let most = if mode() == "streaming" { 43 } else { 6 };
    assert!(cluster.connections(0) <= most, "{} connections", cluster.connections(0));
    // Also what comes after all were found empty.
    cluster.fill("t", 400, 10).unwrap();
    read(&consumer, &mut seen, 4_400).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
    soon("the connections to go", cluster.wait_for("no connections", |cluster| cluster.connections(0) == 0)).await;
}

#[tokio::test]
async fn where_the_earliest_record_is_no_longer_zero_reading_begins_there() {
    let cluster = cluster_with(1, 1, 100).await;
    cluster.delete_records("t", 0, 60).unwrap();
    for isolation in ["read_committed", "read_uncommitted"] {
        let consumer = consumer_with(&cluster, &[("read_isolation", isolation.into()), ("group_id", isolation.into())]);
        let mut seen = Seen::default();
        read(&consumer, &mut seen, 40).await;
        assert_eq!(seen.0[&tp(0)], (60..100).collect::<Vec<_>>(), "{isolation}");
        closed(&consumer).await;
    }
}

#[tokio::test]
async fn every_call_after_close_says_closed() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    let record = batch.get(0).unwrap();
    closed(&consumer).await;
    closed(&consumer).await;
    let kind = |result: cursus_consumer::Result<()>| result.expect_err("it should be closed").kind();
    assert_eq!(kind(consumer.poll(None).await.map(drop)), ErrorKind::Closed);
    assert_eq!(kind(consumer.start(None).await), ErrorKind::Closed);
    assert_eq!(kind(consumer.commit(&batch, None).await), ErrorKind::Closed);
    assert_eq!(kind(consumer.commit(&record, None).await), ErrorKind::Closed);
    assert_eq!(kind(consumer.commit(cursus_consumer::Commit::All, None).await), ErrorKind::Closed);
    assert_eq!(kind(consumer.committed(&tp(0), None).await.map(drop)), ErrorKind::Closed);
    assert!(consumer.assignment().is_empty());
    assert_eq!(consumer.statistics().state, State::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_byte_limit_holds_when_many_partitions_of_large_records_begin_at_once() {
    let cluster = cluster_with(1, 16, 0).await;
    for partition in 0..16 {
        cluster.produce("t", partition, (0..200).map(|i| (i.to_string(), vec![0; 32_000]))).unwrap();
    }
    let limit: u64 = 4 << 20;
    let consumer = consumer_with(&cluster, &[("max_buffered_bytes", limit.into())]);
    started(&consumer).await;
    until("a full buffer", &consumer, |c| c.statistics().buffered_bytes > limit - (limit / 4)).await;
    // Nobody polls for a second, in which what was asked for at once comes in.
    soon("heartbeats", cluster.wait_for("twenty heartbeats", |c| received(c, "HEARTBEAT") >= 20)).await;
    let mut seen = Seen::default();
    let mut most = consumer.statistics().buffered_bytes;
    soon("all of 100 MB", async {
        while seen.distinct() < 3200 {
            most = most.max(consumer.statistics().buffered_bytes);
            seen.add(&consumer.poll(Some(PATIENCE)).await.unwrap());
        }
    })
    .await;
    assert!(most <= limit + (1 << 20), "{most} bytes were buffered with a limit of {limit}");
    closed(&consumer).await;
}

#[tokio::test]
async fn an_empty_partition_keeps_no_room_that_others_need() {
    let cluster = cluster_with(1, 2, 0).await;
    cluster.produce("t", 1, (0..20).map(|i| (i.to_string(), "record"))).unwrap();
    // Room for one reply at a time. Were the empty partition to wait with it each time, twenty records would take 50 s.
    let settings = [("max_buffered_bytes", 1u64.into()), ("fetch_wait_ms", 2_500u64.into())];
    let consumer = consumer_with(&cluster, &settings);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn iterating_beside_a_poll_is_refused_under_automatic_commits() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer_with(&cluster, &[("enable_auto_commit", true.into())]);
    fetched(&cluster, &consumer).await;
    let open = consumer.driver().begin_poll(None).unwrap();
    assert_eq!(consumer.driver().try_next_record().expect_err("overlapping").kind(), ErrorKind::InvalidState);
    assert_eq!(consumer.driver().try_next_batch().expect_err("overlapping").kind(), ErrorKind::InvalidState);
    drop(open);
    assert!(matches!(consumer.driver().try_next_record(), Ok(Iteration::Item(_))));
    closed(&consumer).await;
}

#[tokio::test]
async fn an_empty_partition_is_not_asked_without_a_pause() {
    let cluster = cluster_with(1, 1, 0).await;
    let consumer = consumer_with(&cluster, &[("fetch_wait_ms", 0u64.into())]);
    started(&consumer).await;
    cluster.clear_requests();
    consumer.poll(Some(Duration::from_millis(500))).await.unwrap();
    assert!(received(&cluster, reading()) < 60, "{} requests", received(&cluster, reading()));
    closed(&consumer).await;
}

#[tokio::test]
async fn a_poll_may_ask_for_fewer_records_and_never_gets_more_than_the_setting() {
    let cluster = cluster_with(1, 1, 20).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 5u64.into())]);
    fetched(&cluster, &consumer).await;
    for (wanted, got) in [(2, 2), (1, 1), (usize::MAX, 5)] {
        assert_eq!(consumer.poll_at_most(wanted, Some(PATIENCE)).await.unwrap().len(), got, "of {wanted}");
    }
    let rest = consumer.poll(Some(PATIENCE)).await.unwrap();
    assert_eq!(rest.get(0).unwrap().offset(), 8, "what a smaller poll leaves is the next one's");
    let error = consumer.poll_at_most(0, None).await.unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("1 or more"), "{error}");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_clone_is_the_same_consumer_and_the_last_one_ends_it() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = (*consumer_with(&cluster, &[])).clone();
    let poll = consumer.driver().begin_poll(None).unwrap();
    let clone = consumer.clone();
    drop(consumer);
    clone.start(Some(PATIENCE)).await.unwrap();
    assert_eq!(cluster.group("g").unwrap().members.len(), 1);
    drop(clone);
    let has_records = async {
        while poll.take().unwrap().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, has_records).await.expect("a poll that is open is a handle too");
    drop(poll);
    let left = |cluster: &cursus_embedded::Cluster| cluster.group("g").is_none_or(|group| group.members.is_empty());
    tokio::time::timeout(PATIENCE, cluster.wait_for("the member to leave", left))
        .await
        .expect("nobody holds it any more");
}
