//! The leaders of partitions move and die, and brokers name the wrong ones: reading goes on, and nothing is lost.

mod common;

use common::*;
use cursus_consumer::Commit;
use cursus_embedded::Cluster;

/// Fails the next questions for records. A stream that is open asks none: it is cut, to begin anew.
fn fail_reads(cluster: &Cluster, times: usize, error: &str) {
    cluster.fail_next(reading(), times, error).unwrap();
    if mode() == "streaming" {
        cluster.cut_connections(Some(0)).unwrap();
    }
}

/// How often a broker was asked for records.
fn reads_at(cluster: &Cluster, broker: usize) -> usize {
    cluster.requests().iter().filter(|request| request.command == reading() && request.broker == broker).count()
}

#[tokio::test]
async fn a_redirect_to_another_leader_is_followed_in_either_form_without_asking_around() {
    for form in ["NOT_LEADER LEADER_IS", "NOT_LEADER leader=", "NOT_PARTITION_LEADER leader="] {
        let cluster = cluster_with(3, 1, 10).await;
        let consumer = consumer(&cluster);
        let mut seen = Seen::default();
        read(&consumer, &mut seen, 10).await;
        cluster.clear_requests();
        let separator = if form.ends_with('=') { "" } else { " " };
        fail_reads(&cluster, 1, &format!("{form}{separator}{}", cluster.brokers()[1]));
        // Broker 1 knows better, and sends it back.
        soon("a read at broker 1", cluster.wait_for("a read", |c| reads_at(c, 1) == 1)).await;
        cluster.fill("t", 10, 10).unwrap();
        read(&consumer, &mut seen, 20).await;
        // A stream that was cut asks first.
        let most = usize::from(mode() == "streaming");
        assert!(received(&cluster, "METADATA") <= most, "{form}");
        seen.assert_exactly_in_order();
        closed(&consumer).await;
    }
}

#[tokio::test]
async fn a_redirect_to_where_it_comes_from_or_to_nowhere_is_no_end() {
    let cluster = cluster_with(3, 1, 10).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    let (itself, dead) = (cluster.brokers()[0].clone(), nowhere());
    let mut count = 10;
    for redirect in [
        format!("NOT_LEADER LEADER_IS {itself}"),
        format!("NOT_LEADER leader={itself}"),
        format!("NOT_LEADER LEADER_IS {dead}"),
        format!("NOT_LEADER leader={dead}"),
        "NOT_LEADER".to_owned(),
        "NOT_LEADER LEADER_IS nonsense".to_owned(),
    ] {
        cluster.clear_requests();
        fail_reads(&cluster, 6, &redirect);
        soon("the redirects", cluster.wait_for("redirects", |c| received(c, reading()) > 6)).await;
        cluster.fill("t", 10, 10).unwrap();
        count += 10;
        read(&consumer, &mut seen, count).await;
        assert!(received(&cluster, "METADATA") > 0, "{redirect}: the others are asked");
    }
    assert_eq!(consumer.statistics().rebalances, 0);
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_brokers_gone_at_once_and_back_lose_nothing() {
    let cluster = cluster_with(3, 6, 600).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 600).await;
    let before = consumer.statistics();
    for broker in 0..3 {
        cluster.kill_broker(broker).await.unwrap();
    }
    until("it to be noticed", &consumer, |c| c.statistics().failing_seconds.is_some()).await;
    cluster.fill("t", 600, 10).unwrap();
    for broker in 0..3 {
        cluster.restart_broker(broker).await.unwrap();
    }
    read(&consumer, &mut seen, 1200).await;
    seen.assert_exactly_in_order();
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    let after = consumer.statistics();
    assert_eq!((after.member, after.rebalances), (before.member, 0));
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_leader_is_followed() {
    let cluster = cluster_with(3, 3, 300).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 300).await;
    for partition in 0..3 {
        let leader = cluster.leader("t", partition).unwrap();
        cluster.move_leader("t", partition, (leader + 1) % 3).unwrap();
    }
    cluster.fill("t", 300, 10).unwrap();
    read(&consumer, &mut seen, 600).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_survived() {
    let cluster = cluster_with(3, 6, 600).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 600).await;
    let dead = (cluster.coordinator("g") + 1) % 3;
    cluster.kill_broker(dead).await.unwrap();
    cluster.fill("t", 600, 10).unwrap();
    read(&consumer, &mut seen, 1200).await;
    seen.assert_exactly_in_order();
    assert_eq!(consumer.statistics().rebalances, 0, "a leader's death is no rebalance");
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_loses_nothing() {
    let cluster = cluster_with(3, 6, 600).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    for broker in 0..3 {
        read(&consumer, &mut seen, 600 * (broker as u64 + 1)).await;
        cluster.stop_broker(broker).await.unwrap();
        cluster.restart_broker(broker).await.unwrap();
        cluster.fill("t", 600, 10).unwrap();
    }
    read(&consumer, &mut seen, 2400).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test]
async fn redirects_in_circles_are_not_followed_for_ever() {
    let cluster = cluster_with(3, 1, 10).await;
    let brokers = cluster.brokers();
    cluster.fail_next(reading(), 20, &format!("NOT_LEADER LEADER_IS {}", brokers[1])).unwrap();
    cluster.fail_next("JOIN_GROUP", 6, "NOT_COORDINATOR").unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    assert!(received(&cluster, reading()) < 60, "{}", received(&cluster, reading()));
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_behind_a_full_buffer_is_noticed_and_left() {
    let cluster = cluster_with(3, 2, 0).await;
    for _ in 0..200 {
        cluster.produce("t", 0, [("k", vec![0; 20_000])]).unwrap();
    }
    let more = [
        ("max_poll_records", 1u64.into()),
        ("max_buffered_bytes", (1u64 << 18).into()),
        ("metadata_refresh_ms", 600_000u64.into()),
    ];
    let consumer = consumer_with(&cluster, &more);
    started(&consumer).await;
    until("a full buffer", &consumer, |c| c.statistics().buffered_bytes > 150_000).await;
    let dead = cluster.leader("t", 1).unwrap();
    assert_ne!(dead, cluster.leader("t", 0).unwrap());
    cluster.kill_broker(dead).await.unwrap();
    soon("another leader", cluster.wait_for("it", |c| c.leader("t", 1).unwrap() != dead)).await;
    cluster.produce("t", 1, [("k", "v")]).unwrap();
    // One record at a time, so that the buffer stays full and every request waits for room.
    soon("the other partition's record", async {
        loop {
            let batch = consumer.poll(Some(PATIENCE)).await.unwrap();
            if batch.iter().any(|record| record.partition.partition == 1) {
                break;
            }
            assert!(!batch.is_empty());
            if consumer.position(&tp(0)) > Some(190) {
                consumer.seek(&tp(0), 0).unwrap();
            }
        }
    })
    .await;
    closed(&consumer).await;
}
