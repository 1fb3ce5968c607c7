//! Leaders are replaced while nothing fails: a broker that leads no more goes on answering, and has to be left.

use std::time::Duration;

use crate::client::Client;
use crate::consumers::{Seen, closed, poll, read, soon, until};
use crate::place::Place;

/// Has the broker after its leader lead a partition, and says which one that is. Brokers are known by `host-port`.
async fn replace_leader(place: &Place, partition: u32) -> String {
    let old = place.leader(partition).await;
    let number = place.brokers.iter().position(|broker| *broker == old).expect("one of CURSUS_BROKERS");
    let new = place.brokers[(number + 1) % place.brokers.len()].clone();
    let mut client = Client::connect(&old).await.unwrap();
    let id = new.replace(':', "-");
    let done = client.tell(&format!("ELECT_LEADER topic={} partition={partition} broker={id}", place.topic)).await;
    assert!(done.contains("changed=true"), "{done}");
    soon("the new leader to be named", async {
        while place.leader(partition).await != new {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_leads_no_more_is_left() {
    let Some(place) = Place::several().await else { return };
    place.create(3).await;
    place.fill(3, 0..50, 50).await;
    let consumer = place.consumer(&[("metadata_refresh_ms", 500u64.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 150).await;
    for at in [50, 100] {
        let new = replace_leader(&place, 0).await;
        until("the new leader to be read from", &consumer, |consumer| {
            consumer.statistics().partitions[&place.tp(0)].leader.as_ref() == Some(&new)
        })
        .await;
        place.fill(3, at..at + 50, 50).await;
        read(&consumer, &mut seen, 3 * (at + 50)).await;
    }
    seen.assert_each_once_in_order(&place.ends().await);
    let statistics = consumer.statistics();
    assert_eq!((statistics.reconnects, statistics.rebalances), (0, 0), "{statistics:#?}");
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_replaced_again_and_again_under_a_slow_reader_lose_nothing_and_repeat_nothing() {
    let Some(place) = Place::several().await else { return };
    place.create(6).await;
    place.fill(6, 0..500, 200).await;
    let settings = [
        ("metadata_refresh_ms", 300u64.into()),
        ("max_poll_records", 20u64.into()),
        ("fetch_batch_size", 50u64.into()),
        ("max_buffered_bytes", 60_000u64.into()),
    ];
    let consumer = place.consumer(&settings);
    let mut seen = Seen::default();
    let reading = async {
        while seen.distinct() < 3000 {
            poll(&consumer, &mut seen).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    let replacing = async {
        for partition in (0..6).cycle() {
            replace_leader(&place, partition).await;
        }
    };
    tokio::select! {
        () = soon("everything to be read", reading) => {}
        () = replacing => {}
    }
    seen.assert_each_once_in_order(&place.ends().await);
    assert_eq!(consumer.statistics().rebalances, 0);
    closed(&consumer).await;
}
