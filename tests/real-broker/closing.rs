//! Close leaves the group at once, and so does a consumer that nobody holds any more.

use crate::consumers::{Seen, closed, read, soon, started};
use crate::place::Place;

#[tokio::test]
async fn close_leaves_the_group() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..10, 10).await;
    let consumer = place.consumer(&[]);
    read(&consumer, &mut Seen::default(), 20).await;
    assert_eq!(place.group_status().await.member_count, 1);
    let generation = consumer.statistics().generation.unwrap();
    closed(&consumer).await;
    assert!(place.wait_members(0).await.is_empty());
    let status = place.group_status().await;
    // By a LEAVE: expiring takes the broker ten seconds.
    assert_eq!((status.state.as_str(), status.generation), ("Dead", generation + 1));
}

#[tokio::test]
async fn close_while_another_member_joins_leaves_only_the_other() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    let slow = [("heartbeat_interval_ms", 60_000u64.into()), ("expected_session_timeout_ms", 600_000u64.into())];
    let (first, second) = (place.consumer(&slow), place.consumer(&slow));
    started(&first).await;
    started(&second).await;
    // The first doesn't know yet that the generation is another one.
    closed(&first).await;
    let members: Vec<String> = place.wait_members(1).await.into_keys().collect();
    assert_eq!(members, [second.statistics().member.unwrap()]);
    closed(&second).await;
    place.wait_members(0).await;
}

#[tokio::test]
async fn a_consumer_that_is_dropped_leaves_its_group() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    let consumer = place.consumer(&[]);
    started(&consumer).await;
    drop(consumer);
    let left = soon("the member to leave", place.wait_members(0));
    let before = std::time::Instant::now();
    left.await;
    assert!(before.elapsed().as_secs() < 5, "it expired rather than left");
}
