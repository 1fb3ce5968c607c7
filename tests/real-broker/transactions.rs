//! The transactional writer: what a real broker makes of its transactions.

use std::collections::BTreeMap;
use std::time::Duration;

use cursus_embedded::{GroupMetadata, TransactionalWriter, WriterError};
use cursus_wire::Meaning;
use cursus_wire::command::{Consume, FindTransactionCoordinator, Isolation, JoinGroup};

use crate::client::ask;
use crate::consumers::{PATIENCE, soon};
use crate::place::{Place, unique};

fn writer(place: &Place, id: &str) -> TransactionalWriter {
    TransactionalWriter::new(&place.brokers, id).unwrap().with_timeout(PATIENCE)
}

/// Joins the place's group by hand, which nothing keeps alive: its session is enough for a test.
async fn joined(place: &Place) -> GroupMetadata {
    let (topic, group) = (place.topic.clone(), place.group.clone());
    let request =
        JoinGroup { topic: topic.clone(), group: group.clone(), member: "by-hand".parse().unwrap(), generation: None };
    let joined = ask(&place.coordinator(&group).await, &request).await.expect("a member");
    let (group, topic) = (group.to_string(), topic.to_string());
    GroupMetadata { group, topic, member: joined.member.to_string(), generation: joined.generation }
}

/// A record as it is seen: offset, value and whether it is a marker.
type Shown = (u64, String, bool);

/// Asserts what a partition shows. In a cluster a leader learns a moment later than the writer that all is committed.
async fn assert_shown(place: &Place, partition: u32, isolation: Isolation, expected: &[Shown]) {
    let request = Consume {
        topic: place.topic.clone(),
        partition,
        offset: 0,
        member: "reader".parse().unwrap(),
        group: Some(unique("reader").parse().unwrap()),
        generation: None,
        isolation: Some(isolation),
        batch: None,
        wait_ms: None,
    };
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    soon("the records", async {
        loop {
            let records = ask(&place.leader(partition).await, &request).await.expect("a batch").0;
            let seen: Vec<Shown> =
                records.iter().map(|record| (record.offset, text(record.value), record.is_control())).collect();
            if seen.len() >= expected.len() {
                return assert_eq!(seen, expected);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn records_and_offsets_are_written_together_or_not_at_all() {
    let Some(place) = Place::any().await else { return };
    place.create(2).await;
    let topic = place.topic.as_str();
    let metadata = joined(&place).await;
    let mut writer = writer(&place, &unique("transactional"));
    for (round, value) in (1..).zip(["first", "dropped", "second"]) {
        soon("a transaction", writer.begin()).await.unwrap();
        for partition in [0, 1, 0] {
            assert_eq!(soon("a record", writer.publish(topic, "k", value, Some(partition))).await, Ok(partition));
        }
        soon("offsets", writer.send_offsets(&metadata, [(0, round), (1, 10 * round)])).await.unwrap();
        let before = place.ends().await;
        if value == "dropped" {
            soon("the abort", writer.abort()).await.unwrap();
            assert_eq!(place.ends().await, before, "an abort writes nothing");
        } else {
            soon("the commit", writer.commit()).await.unwrap();
            // A marker in each.
            assert_eq!(place.ends().await, BTreeMap::from([(0, before[&0] + 3), (1, before[&1] + 2)]));
            place.wait_committed(&BTreeMap::from([(0, round), (1, 10 * round)])).await;
        }
    }
    let record = |offset, value: &str| (offset, value.to_owned(), false);
    let marker = |offset| (offset, "__cursus_txn_control_marker__".to_owned(), true);
    let seen = [record(0, "first"), record(1, "first"), record(3, "second"), record(4, "second")];
    assert_shown(&place, 0, Isolation::ReadCommitted, &seen).await;
    let raw = [record(0, "first"), marker(1), record(2, "second"), marker(3)];
    assert_shown(&place, 1, Isolation::ReadUncommitted, &raw).await;
}

#[tokio::test]
async fn a_newer_writer_fences_the_older_one() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    let (topic, id) = (place.topic.as_str(), unique("transactional"));
    let (mut old, mut new) = (writer(&place, &id), writer(&place, &id));
    soon("a transaction", old.begin()).await.unwrap();
    soon("a record", old.publish(topic, "", "old", Some(0))).await.unwrap();
    soon("a transaction", new.begin()).await.unwrap();
    let fenced = WriterError::Fenced { transactional_id: id };
    assert_eq!(soon("a refusal", old.publish(topic, "", "old", Some(0))).await, Err(fenced.clone()));
    assert_eq!(soon("a refusal", old.commit()).await, Err(fenced.clone()));
    soon("a record", new.publish(topic, "", "new", Some(0))).await.unwrap();
    soon("the commit", new.commit()).await.unwrap();
    assert_eq!(soon("a refusal", old.begin()).await, Err(fenced));
    soon("a transaction", new.begin()).await.unwrap();
    soon("the abort", new.abort()).await.unwrap();
    assert_shown(&place, 0, Isolation::ReadCommitted, &[(0, "new".to_owned(), false)]).await;
}

#[tokio::test]
async fn between_transactions_an_older_writer_is_fenced_too() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    let id = unique("transactional");
    let (mut old, mut new) = (writer(&place, &id), writer(&place, &id));
    soon("a transaction", old.begin()).await.unwrap();
    soon("the commit", old.commit()).await.unwrap();
    soon("a transaction", new.begin()).await.unwrap();
    assert_eq!(soon("a refusal", old.begin()).await, Err(WriterError::Fenced { transactional_id: id }));
    // Whom the older one has not harmed.
    soon("a record", new.publish(place.topic.as_str(), "", "new", None)).await.unwrap();
    soon("the commit", new.commit()).await.unwrap();
}

#[tokio::test]
async fn offsets_of_a_generation_that_is_over_keep_the_records_out_too() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    let metadata = joined(&place).await;
    let mut writer = writer(&place, &unique("transactional"));
    soon("a transaction", writer.begin()).await.unwrap();
    soon("a record", writer.publish(place.topic.as_str(), "", "v", Some(0))).await.unwrap();
    soon("offsets", writer.send_offsets(&metadata, [(0, 5)])).await.unwrap();
    let current = joined(&place).await.generation;
    let over = Some(Meaning::GenerationMismatch { current });
    assert_eq!(soon("a refusal", writer.commit()).await.unwrap_err().meaning(), over);
    assert_eq!(soon("a refusal", writer.send_offsets(&metadata, [(0, 5)])).await.unwrap_err().meaning(), over);
    soon("the abort", writer.abort()).await.unwrap();
    assert_eq!((place.ends().await[&0], place.committed(0).await), (0, 0));
}

#[tokio::test]
async fn a_transaction_outlives_its_broker() {
    let Some(mut place) = Place::own(&[]).await else { return };
    place.create(1).await;
    let topic = place.topic.clone();
    let mut writer = writer(&place, &unique("transactional"));
    for value in ["first", "second"] {
        soon("a transaction", writer.begin()).await.unwrap();
        soon("a record", writer.publish(topic.as_str(), "", value, None)).await.unwrap();
        place.broker().kill();
        place.broker().restart().await;
        soon("the commit", writer.commit()).await.unwrap();
    }
    let expected = [(0, "first".to_owned(), false), (2, "second".to_owned(), false)];
    assert_shown(&place, 0, Isolation::ReadCommitted, &expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_its_coordinator_to_come_back() {
    let Some(place) = Place::harmed().await else { return };
    place.create(6).await;
    let id = unique("transactional");
    let mut writer = writer(&place, &id);
    let found = place.ask(&FindTransactionCoordinator { transactional_id: id.parse().unwrap() }).await;
    let coordinator = format!("{}:{}", found.host, found.port);
    // Nothing is published where a leader is away.
    let leaders = place.leaders().await;
    let partition = leaders.iter().position(|leader| *leader != coordinator).expect("another leader");
    let partition = u32::try_from(partition).unwrap();
    soon("a transaction", writer.begin()).await.unwrap();
    soon("a record", writer.publish(place.topic.as_str(), "", "v", Some(partition))).await.unwrap();
    place.cluster().kill(&coordinator);
    let (committed, ()) = tokio::join!(soon("the commit", writer.commit()), place.cluster().heal(&coordinator));
    committed.unwrap();
    assert_shown(&place, partition, Isolation::ReadCommitted, &[(0, "v".to_owned(), false)]).await;
}
