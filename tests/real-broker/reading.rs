//! Reading a topic from its start: everything, in order, each record once, byte for byte.

use std::collections::BTreeMap;
use std::time::Duration;

use cursus_consumer::{ErrorKind, State};
use cursus_embedded::TransactionalWriter;
use cursus_wire::MAX_BODY;

use crate::client::Client;
use crate::consumers::{Seen, closed, poll, read, soon, started, until};
use crate::place::{Place, unique};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_partitions_are_read_once_and_in_order() {
    let Some(place) = Place::any().await else { return };
    place.create(6).await;
    place.fill(6, 0..2000, 100).await;
    let ends = place.ends().await;
    assert_eq!(ends.values().sum::<u64>(), 12_000);
    let consumer = place.consumer(&[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 12_000).await;
    seen.assert_each_once_in_order(&ends);
    for partition in consumer.assignment() {
        assert_eq!(consumer.position(&partition), Some(ends[&partition.partition]));
    }
    assert_eq!(consumer.assignment().len(), 6);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_record_written_while_a_poll_waits_ends_the_poll() {
    let Some(place) = Place::any().await else { return };
    place.create(3).await;
    let consumer = place.consumer(&[]);
    started(&consumer).await;
    for offset in 0..3 {
        let (batch, ()) = tokio::join!(soon("the record", consumer.poll(None)), place.fill(1, offset..offset + 1, 10));
        assert_eq!(batch.unwrap().get(0).unwrap().offset(), offset);
    }
    closed(&consumer).await;
}

#[tokio::test]
async fn keys_and_values_are_bytes() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let records = [
        (every_byte.clone(), every_byte.repeat(100)),
        (vec![], b"no key".to_vec()),
        (b"no value".to_vec(), vec![]),
        (vec![0xba, 0x7c], vec![0; 3]),
        ("\u{17e}ivjo message=x \n".into(), b"ERROR: no error\r\n".to_vec()),
        (vec![b'k'; 60_000], vec![0xff]),
    ];
    place.publish(0, &records).await;
    let mut client = Client::connect(&place.leader(0).await).await.unwrap();
    let text = format!("PUBLISH topic={} acks=1 producerId=p partition=0 key=word message=some text", place.topic);
    client.tell(&text).await;
    let consumer = place.consumer(&[]);
    let mut read = Vec::new();
    soon("all records", async {
        while read.len() < records.len() + 1 {
            let batch = consumer.poll(Some(Duration::from_secs(1))).await.unwrap();
            read.extend(batch.iter().map(|record| (record.key.to_vec(), record.value.to_vec())));
        }
    })
    .await;
    assert_eq!(read[..records.len()], records);
    assert_eq!(read[records.len()], (b"word".to_vec(), b"some text".to_vec()));
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_over_the_frame_limit_skip_no_record() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    // What is asked for first would be far over 16 MiB, and so are two of the large ones.
    place.fill(1, 0..60, 400_000).await;
    place.fill(1, 60..64, 9 << 20).await;
    place.fill(1, 64..70, 10).await;
    let consumer = place.consumer(&[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 70).await;
    seen.assert_each_once_in_order(&BTreeMap::from([(0, 70)]));
    closed(&consumer).await;
}

#[tokio::test]
async fn a_record_as_large_as_can_be_written_is_read() {
    // A cluster can't copy records over some 12 MiB to its followers.
    let Some(place) = Place::own(&[]).await else { return };
    place.create(1).await;
    place.fill(1, 0..5, 10).await;
    place.fill(1, 5..6, MAX_BODY - 512).await;
    place.fill(1, 6..10, 10).await;
    let consumer = place.consumer(&[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    seen.assert_each_once_in_order(&BTreeMap::from([(0, 10)]));
    closed(&consumer).await;
}

#[tokio::test]
async fn a_transactions_marker_is_a_gap_for_some_and_a_marked_record_for_others() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    let topic = &place.topic;
    place.fill(1, 0..5, 10).await;
    let mut writer = TransactionalWriter::new(&place.brokers, &unique("transaction")).unwrap();
    for result in ["commit", "abort"] {
        soon("a transaction", writer.begin()).await.unwrap();
        soon("a record", writer.publish(topic.as_str(), "k", result, Some(0))).await.unwrap();
        match result {
            "commit" => soon("the commit", writer.commit()).await.unwrap(),
            _ => soon("the abort", writer.abort()).await.unwrap(),
        }
    }
    // Five records, the transaction's, its marker; nothing of the one that was aborted.
    place.fill(1, 7..10, 10).await;
    for (isolation, expected) in
        [("read_committed", vec![0, 1, 2, 3, 4, 5, 7, 8, 9]), ("read_uncommitted", (0..10).collect::<Vec<u64>>())]
    {
        let group = unique("group");
        let consumer = place.consumer(&[("read_isolation", isolation.into()), ("group_id", group.as_str().into())]);
        let (mut offsets, mut markers, mut values) = (Vec::new(), Vec::new(), Vec::new());
        soon("all records", async {
            while offsets.last() != Some(&9) {
                let batch = consumer.poll(Some(Duration::from_secs(1))).await.unwrap();
                offsets.extend(batch.iter().map(|record| record.offset));
                markers.extend(batch.iter().filter(|record| record.is_control()).map(|record| record.offset));
                values.extend(batch.iter().map(|record| record.value.to_vec()));
            }
        })
        .await;
        assert_eq!(offsets, expected, "{isolation}");
        assert_eq!(values[5], b"commit");
        let (marked, skipped) = if isolation == "read_committed" { (vec![], 1) } else { (vec![6], 0) };
        assert_eq!((markers, consumer.statistics().skipped_offsets), (marked, skipped), "{isolation}");
        closed(&consumer).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_partitions_than_connections_share_them() {
    let Some(place) = Place::any().await else { return };
    place.create(24).await;
    place.fill(24, 0..100, 50).await;
    let consumer = place.consumer(&[("max_connections_per_broker", 2u64.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 2400).await;
    // Also what comes after all were found empty.
    place.fill(24, 100..110, 50).await;
    read(&consumer, &mut seen, 2640).await;
    seen.assert_each_once_in_order(&place.ends().await);
    closed(&consumer).await;
}

#[tokio::test]
async fn an_unknown_topic_is_fatal() {
    let Some(place) = Place::any().await else { return };
    let consumer = place.consumer(&[("topic_missing_timeout_ms", 1000u64.into())]);
    let error = soon("the error", consumer.poll(None)).await.expect_err("there is no such topic");
    assert_eq!(error.kind(), ErrorKind::UnknownTopic, "{error}");
    assert!(error.message().contains(place.topic.as_str()) && error.is_fatal(), "{error}");
    until("it to be closed", &consumer, |consumer| consumer.state() == State::Closed).await;
    assert_eq!(consumer.poll(None).await.expect_err("still").kind(), ErrorKind::UnknownTopic);
}

#[tokio::test]
async fn a_topic_made_a_little_later_is_found() {
    let Some(place) = Place::any().await else { return };
    let consumer = place.consumer(&[]);
    assert!(consumer.poll(Some(Duration::from_millis(300))).await.unwrap().is_empty());
    place.create(2).await;
    place.fill(2, 0..10, 10).await;
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_group_of_another_topic_is_fatal_and_the_error_names_all_three() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    let other = unique("other").parse().unwrap();
    place.create_topic(&other, 1).await;
    let first = place.consumer(&[]);
    started(&first).await;
    let second = place.consumer(&[("topic", other.as_str().into())]);
    let error = soon("the error", second.start(None)).await.expect_err("one group, one topic");
    assert_eq!(error.kind(), ErrorKind::GroupTopicMismatch);
    for name in [place.group.as_str(), place.topic.as_str(), other.as_str()] {
        assert!(error.message().contains(name), "{error}");
    }
    poll(&first, &mut Seen::default()).await;
    closed(&first).await;
}
