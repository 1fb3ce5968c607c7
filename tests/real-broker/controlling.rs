//! What an application does to a consumer beside polling and committing: seek, pause, acknowledge, ask, assign, be away.

use std::collections::BTreeMap;
use std::time::Duration;

use cursus_consumer::{Commit, ErrorKind};
use cursus_embedded::TransactionalWriter;

use crate::consumers::{PATIENCE, Seen, closed, poll, read, soon, started, until};
use crate::place::{Place, unique};

#[tokio::test]
async fn a_seek_goes_below_and_above_what_is_committed() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..100, 50).await;
    let auto = [("enable_auto_commit", true.into()), ("auto_commit_interval_ms", 100u64.into())];
    let consumer = place.consumer(&auto);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 200).await;
    poll(&consumer, &mut seen).await;
    place.wait_committed(&BTreeMap::from([(0, 100), (1, 100)])).await;
    for from in [20, 95, 0] {
        consumer.seek(&place.tp(0), from).unwrap();
        assert_eq!(consumer.position(&place.tp(0)), Some(from));
        let mut again = Seen::default();
        read(&consumer, &mut again, 100 - from).await;
        again.assert_exactly(0, from..100);
        again.assert_exactly(1, 0..0);
        poll(&consumer, &mut again).await;
    }
    // What was read below it was not committed; what comes behind it is.
    place.fill(2, 100..110, 50).await;
    read(&consumer, &mut seen, 220).await;
    poll(&consumer, &mut seen).await;
    place.wait_committed(&BTreeMap::from([(0, 110), (1, 110)])).await;
    let statistics = consumer.statistics();
    assert_eq!((statistics.rebalances, statistics.failing_seconds), (0, None), "{statistics:#?}");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_paused_partition_waits_and_the_others_are_read() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    let consumer = place.consumer(&[]);
    started(&consumer).await;
    consumer.pause(&[place.tp(0)]).unwrap();
    place.fill(2, 0..100, 50).await;
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    poll(&consumer, &mut seen).await;
    seen.assert_exactly(0, 0..0);
    seen.assert_exactly(1, 0..100);
    consumer.resume(&[place.tp(0)]).unwrap();
    read(&consumer, &mut seen, 200).await;
    seen.assert_each_once_in_order(&place.ends().await);
    closed(&consumer).await;
}

#[tokio::test]
async fn bounds_and_lag_are_told_and_a_marker_at_the_end_is_no_lag() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..5, 10).await;
    let mut writer = TransactionalWriter::new(&place.brokers, &unique("transaction")).unwrap();
    soon("a transaction", writer.begin()).await.unwrap();
    soon("a record", writer.publish(place.topic.as_str(), "5", "0:5:", Some(0))).await.unwrap();
    soon("the commit", writer.commit()).await.unwrap();
    assert_eq!(place.ends().await, BTreeMap::from([(0, 7), (1, 5)]));
    for (isolation, more) in [("read_committed", 0), ("read_uncommitted", 1)] {
        let group = unique("group");
        let settings = [
            ("read_isolation", isolation.into()),
            ("group_id", group.as_str().into()),
            ("max_poll_records", 1u64.into()),
        ];
        let consumer = place.consumer(&settings);
        started(&consumer).await;
        let both = [place.tp(0), place.tp(1), place.tp(9)];
        let begins = soon("the begins", consumer.begin_offsets(&both, Some(PATIENCE))).await.unwrap();
        assert_eq!(begins, BTreeMap::from([(place.tp(0), 0), (place.tp(1), 0)]), "{isolation}");
        let ends = soon("the ends", consumer.end_offsets(&both, Some(PATIENCE))).await.unwrap();
        assert_eq!(ends, BTreeMap::from([(place.tp(0), 7), (place.tp(1), 5)]), "{isolation}");
        let lag = soon("the lag", consumer.lag(Some(PATIENCE))).await.unwrap();
        assert_eq!(lag, BTreeMap::from([(place.tp(0), 7), (place.tp(1), 5)]), "{isolation}");
        let (mut records, mut markers) = (0, 0);
        soon("all records", async {
            while records < 11 + more {
                let batch = consumer.poll(Some(PATIENCE)).await.unwrap();
                records += batch.len();
                markers += batch.iter().filter(|record| record.is_control()).count();
            }
        })
        .await;
        assert_eq!(markers, more, "{isolation}");
        let lag = soon("the lag", consumer.lag(Some(PATIENCE))).await.unwrap();
        assert_eq!(lag, BTreeMap::from([(place.tp(0), 0), (place.tp(1), 0)]), "{isolation}");
        closed(&consumer).await;
    }
}

#[tokio::test]
async fn acknowledged_records_are_committed_up_to_the_first_that_is_missing() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    place.fill(1, 0..10, 10).await;
    let consumer = place.consumer(&[("auto_commit_interval_ms", 50u64.into())]);
    let mut records = Vec::new();
    while records.len() < 10 {
        records.push(soon("a record", consumer.next_record()).await.unwrap().unwrap());
    }
    for index in [4, 0, 2, 1] {
        consumer.ack(&records[index]).unwrap();
    }
    place.wait_committed(&BTreeMap::from([(0, 3)])).await;
    for index in [9, 8, 7, 6, 5, 3] {
        consumer.ack(&records[index]).unwrap();
    }
    // Close flushes what is acknowledged.
    closed(&consumer).await;
    place.wait_committed(&BTreeMap::from([(0, 10)])).await;
}

#[tokio::test]
async fn a_group_is_described_with_members_owners_and_lag() {
    let Some(place) = Place::any().await else { return };
    place.create(3).await;
    place.fill(3, 0..100, 50).await;
    let consumer = place.consumer(&[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 300).await;
    soon("the commit", consumer.commit(Commit::All, Some(PATIENCE))).await.unwrap();
    place.wait_committed(&BTreeMap::from([(0, 100), (1, 100), (2, 100)])).await;
    place.fill(3, 100..110, 50).await;
    let group = soon("the description", consumer.describe_group(Some(PATIENCE))).await.unwrap();
    assert_eq!((group.group.as_str(), group.topic.as_str()), (place.group.as_str(), place.topic.as_str()));
    assert_eq!((group.state.as_str(), Some(group.generation)), ("Stable", consumer.statistics().generation));
    let [member] = &group.members[..] else { panic!("{group:?}") };
    assert_eq!(Some(&member.member), consumer.statistics().member.as_ref());
    assert_eq!(member.partitions, [place.tp(0), place.tp(1), place.tp(2)]);
    for (partition, told) in &group.partitions {
        let expected = (Some(100), Some(10), Some(&member.member));
        assert_eq!((told.committed, told.lag, told.member.as_ref()), expected, "{partition}");
    }
    closed(&consumer).await;
}

#[tokio::test]
async fn a_member_that_nobody_polls_leaves_is_told_once_and_joins_again() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    place.fill(1, 0..20, 50).await;
    let consumer = place.consumer(&[("max_poll_interval_ms", 1000u64.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    place.wait_members(0).await;
    let error = consumer.poll(Some(Duration::ZERO)).await.expect_err("told once");
    assert_eq!((error.kind(), error.stale()), (ErrorKind::MaxPollInterval, &[place.tp(0)][..]));
    let mut again = Seen::default();
    read(&consumer, &mut again, 20).await;
    again.assert_exactly(0, 0..20);
    closed(&consumer).await;
    place.wait_members(0).await;
}

#[tokio::test]
async fn without_a_group_what_is_assigned_is_read_from_where_it_is_told() {
    let Some(place) = Place::any().await else { return };
    place.create(3).await;
    place.fill(3, 0..100, 50).await;
    // What a group has committed is nothing to it.
    place.commit_by_hand(0, 50).await;
    let consumer = place.alone(&[]);
    consumer.assign([(place.tp(0), Some(90)), (place.tp(2), None)]).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 110).await;
    seen.assert_exactly(0, 90..100);
    seen.assert_exactly(2, 0..100);
    consumer.assign([(place.tp(1), None), (place.tp(0), None)]).unwrap();
    let mut other = Seen::default();
    read(&consumer, &mut other, 200).await;
    other.assert_exactly(0, 0..100);
    other.assert_exactly(1, 0..100);
    assert_eq!(consumer.commit(Commit::All, None).await.unwrap_err().kind(), ErrorKind::InvalidState);
    closed(&consumer).await;
    assert_eq!(place.group_status().await.member_count, 0);
}

#[tokio::test]
async fn without_a_group_latest_begins_at_the_end() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    place.fill(2, 0..100, 50).await;
    let consumer = place.alone(&[("auto_offset_reset", "latest".into())]);
    consumer.assign((0..2).map(|partition| (place.tp(partition), None))).unwrap();
    started(&consumer).await;
    until("the ends", &consumer, |consumer| consumer.position(&place.tp(1)) == Some(100)).await;
    place.fill(2, 100..110, 50).await;
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    (0..2).for_each(|partition| seen.assert_exactly(partition, 100..110));
    closed(&consumer).await;
}
