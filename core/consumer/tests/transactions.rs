//! A consumer's offsets committed by a transactional writer, together with what was made of the records.

mod common;

use common::*;
use cursus_consumer::Batch;
use cursus_embedded::{Cluster, Meaning, TransactionalWriter};

/// Writes each record of a batch to the topic `out`, and the batch's offsets, into the open transaction.
async fn stage(writer: &mut TransactionalWriter, batch: &Batch) {
    for record in batch.iter() {
        let place = format!("{}:{}", record.partition.partition, record.offset);
        soon("a record", writer.publish("out", "", &place, None)).await.unwrap();
    }
    let metadata = batch.group_metadata().expect("a batch of a member");
    let offsets = batch.next_offsets().into_iter().map(|(partition, next)| (partition.partition, next));
    soon("the offsets", writer.send_offsets(metadata, offsets)).await.unwrap();
}

/// What committed readers find in `out`.
async fn written(cluster: &Cluster, count: u64) -> Vec<String> {
    let more = [("topic", "out".into()), ("group_id", "reader".into()), ("mode", "polling".into())];
    let reader = consumer_with(cluster, &more);
    let mut values = Vec::new();
    while (values.len() as u64) < count {
        let batch = soon("what was written", reader.poll(None)).await.unwrap();
        values.extend(batch.iter().map(|record| String::from_utf8(record.value.to_vec()).unwrap()));
    }
    closed(&reader).await;
    values.sort();
    values
}

#[tokio::test]
async fn what_was_aborted_is_read_again_and_everything_is_written_once() {
    let cluster = cluster_with(3, 2, 60).await;
    cluster.create_topic("out", 2).unwrap();
    let mut writer = TransactionalWriter::new(cluster.brokers(), "worker").unwrap();
    let mut taken = 0;
    for round in 0.. {
        let consumer = consumer_with(&cluster, &[("max_poll_records", 10u64.into())]);
        let batch = soon("records", consumer.poll(None)).await.unwrap();
        soon("a transaction", writer.begin()).await.unwrap();
        stage(&mut writer, &batch).await;
        if round % 2 == 0 {
            soon("the abort", writer.abort()).await.unwrap();
        } else {
            soon("the commit", writer.commit()).await.unwrap();
            taken += batch.len();
        }
        closed(&consumer).await;
        if taken == 60 {
            break;
        }
    }
    assert_eq!(cluster.committed("g", "t"), [(0, 30), (1, 30)].into());
    let mut expected: Vec<_> = (0..2).flat_map(|p| (0..30).map(move |offset| format!("{p}:{offset}"))).collect();
    expected.sort();
    assert_eq!(written(&cluster, 60).await, expected);
}

#[tokio::test]
async fn a_rebalance_keeps_a_transaction_of_before_it_out() {
    let cluster = cluster_with(3, 2, 20).await;
    cluster.create_topic("out", 1).unwrap();
    let first = consumer(&cluster);
    let batch = soon("records", first.poll(None)).await.unwrap();
    let mut writer = TransactionalWriter::new(cluster.brokers(), "worker").unwrap();
    soon("a transaction", writer.begin()).await.unwrap();
    stage(&mut writer, &batch).await;
    let second = consumer(&cluster);
    started(&second).await;
    let error = soon("the commit", writer.commit()).await.unwrap_err();
    assert!(matches!(error.meaning(), Some(Meaning::GenerationMismatch { .. })), "{error}");
    soon("the abort", writer.abort()).await.unwrap();
    assert_eq!((cluster.end_offsets("out")[&0], cluster.committed("g", "t").len()), (0, 0));
    closed(&first).await;
    closed(&second).await;
}
