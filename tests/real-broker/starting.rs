//! Where reading begins: the reset policies, where nothing is committed and where records are gone.

use std::collections::BTreeMap;
use std::time::Duration;

use cursus_consumer::{Commit, ErrorKind, State};

use crate::client::Client;
use crate::consumers::{PATIENCE, Seen, closed, poll, read, soon, started, until};
use crate::place::Place;

const RESET: &str = "auto_offset_reset";

#[tokio::test]
async fn latest_begins_at_the_end_and_commits_that_before_it_reads() {
    let Some(place) = Place::any().await else { return };
    place.create(3).await;
    place.fill(3, 0..40, 50).await;
    let consumer = place.consumer(&[(RESET, "latest".into())]);
    started(&consumer).await;
    place.wait_committed(&BTreeMap::from([(0, 40), (1, 40), (2, 40)])).await;
    assert_eq!(consumer.statistics().records, 0, "nothing was read for that");
    place.fill(3, 40..50, 50).await;
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 30).await;
    (0..3).for_each(|partition| seen.assert_exactly(partition, 40..50));
    closed(&consumer).await;
}

#[tokio::test]
async fn what_is_written_while_nobody_reads_is_not_lost_with_latest() {
    for before in [0, 40] {
        let Some(place) = Place::any().await else { return };
        place.create(1).await;
        place.fill(1, 0..before, 50).await;
        let latest = [(RESET, "latest".into())];
        let first = place.consumer(&latest);
        started(&first).await;
        // It reads nothing and commits nothing of its own. Then nobody is there for a while.
        closed(&first).await;
        place.fill(1, before..before + 25, 50).await;
        let second = place.consumer(&latest);
        let mut seen = Seen::default();
        read(&second, &mut seen, 25).await;
        seen.assert_exactly(0, before..before + 25);
        closed(&second).await;
    }
}

#[tokio::test]
async fn a_committed_zero_is_told_from_nothing() {
    for reset in ["latest", "error"] {
        let Some(place) = Place::any().await else { return };
        place.create(1).await;
        place.fill(1, 0..50, 50).await;
        let before = place.consumer(&[]);
        started(&before).await;
        let zero = BTreeMap::from([(place.tp(0), 0)]);
        soon("the commit", before.commit(Commit::Offsets(&zero), Some(PATIENCE))).await.unwrap();
        closed(&before).await;
        let consumer = place.consumer(&[(RESET, reset.into())]);
        let mut seen = Seen::default();
        read(&consumer, &mut seen, 50).await;
        seen.assert_exactly(0, 0..50);
        closed(&consumer).await;
    }
}

#[tokio::test]
async fn with_error_a_group_that_has_committed_nothing_is_told_so_and_left() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..10, 50).await;
    let consumer = place.consumer(&[(RESET, "error".into())]);
    let error = soon("the error", consumer.poll(None)).await.expect_err("nothing is committed");
    assert_eq!(error.kind(), ErrorKind::OffsetGap, "{error}");
    until("it to be closed", &consumer, |consumer| consumer.state() == State::Closed).await;
    place.wait_members(0).await;
}

/// A topic whose first records are gone, of which a group has committed only some.
async fn outrun() -> Option<Place> {
    let lines = ["log_retention_check_interval_ms: 200"];
    let place = Place::own_with(&lines, &[("LOG_SEGMENT_BYTES", "20000")]).await?;
    place.create(1).await;
    place.fill(1, 0..100, 1000).await;
    let first = place.consumer(&[("max_poll_records", 5u64.into())]);
    let mut seen = Seen::default();
    read(&first, &mut seen, 5).await;
    soon("the commit", first.commit(Commit::All, Some(PATIENCE))).await.unwrap();
    closed(&first).await;
    let mut client = Client::connect(&place.leader(0).await).await.unwrap();
    client.tell(&format!("CREATE topic={} partitions=1 retention_bytes=40000", place.topic)).await;
    soon("the first records to go", async {
        while place.earliest(0).await <= 10 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    Some(place)
}

#[tokio::test]
async fn what_retention_took_before_it_was_read_is_passed_over_with_earliest() {
    let Some(place) = outrun().await else { return };
    let consumer = place.consumer(&[]);
    let mut seen = Seen::default();
    until("it to go on", &consumer, |consumer| started_at(consumer, &place).is_some_and(|position| position > 10))
        .await;
    let begin = place.earliest(0).await;
    read(&consumer, &mut seen, 100 - begin).await;
    seen.assert_exactly(0, begin..100);
    // A group that has committed nothing begins there at once.
    let other = place.consumer(&[("group_id", format!("{}-other", place.group).into())]);
    started(&other).await;
    assert_eq!(other.position(&place.tp(0)), Some(begin));
    closed(&other).await;
    closed(&consumer).await;
}

/// Where a consumer's reading is, once it reads; begins it, too.
fn started_at(consumer: &cursus_consumer::Consumer, place: &Place) -> Option<u64> {
    consumer.begin().unwrap();
    consumer.statistics().partitions.get(&place.tp(0)).map(|partition| partition.fetched)
}

#[tokio::test]
async fn what_retention_took_before_it_was_read_is_an_error_with_error_and_the_end_with_latest() {
    let Some(place) = outrun().await else { return };
    let strict = place.consumer(&[(RESET, "error".into())]);
    let error = soon("the error", strict.poll(None)).await.expect_err("there is a gap");
    assert_eq!(error.kind(), ErrorKind::OffsetGap, "{error}");
    until("it to be closed", &strict, |consumer| consumer.state() == State::Closed).await;
    let latest = place.consumer(&[(RESET, "latest".into())]);
    until("it to go on", &latest, |consumer| started_at(consumer, &place) == Some(100)).await;
    place.wait_committed(&BTreeMap::from([(0, 100)])).await;
    place.fill(1, 100..110, 50).await;
    let mut seen = Seen::default();
    read(&latest, &mut seen, 10).await;
    seen.assert_exactly(0, 100..110);
    poll(&latest, &mut seen).await;
    closed(&latest).await;
}

#[tokio::test]
async fn beyond_the_end_of_the_raw_log_the_policy_decides() {
    for (reset, begin) in [("earliest", 0), ("latest", 20)] {
        let Some(place) = Place::any().await else { return };
        place.create(1).await;
        place.fill(1, 0..20, 50).await;
        let raw = [("read_isolation", "read_uncommitted".into()), (RESET, reset.into())];
        let consumer = place.consumer(&raw);
        started(&consumer).await;
        consumer.seek(&place.tp(0), 500).unwrap();
        if reset == "latest" {
            until("it to go to the end", &consumer, |consumer| started_at(consumer, &place) == Some(20)).await;
        } else {
            until("it to be read again", &consumer, |consumer| {
                started_at(consumer, &place).is_some_and(|position| position <= 20)
            })
            .await;
        }
        place.fill(1, 20..30, 50).await;
        let mut seen = Seen::default();
        read(&consumer, &mut seen, 30 - begin).await;
        seen.assert_exactly(0, begin..30);
        closed(&consumer).await;
    }
}
