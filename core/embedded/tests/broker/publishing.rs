//! PUBLISH and batches of records.

use std::time::Duration;

use cursus_wire::batch::{self, Record};
use tokio::time::Instant;

use crate::client::{Client, cluster, with_topic};

fn record<'a>(sequence: u64, key: &'a [u8], value: &'a [u8]) -> Record<'a> {
    Record { sequence, producer_id: b"bp", key, epoch: 2, value, ..Record::default() }
}

#[tokio::test(start_paused = true)]
async fn publish_checks_its_arguments_in_the_brokers_order_and_words() {
    let cluster = with_topic(1, 3).await;
    let mut client = Client::connect(&cluster, 0).await;
    for (arguments, error) in [
        ("x=1", "missing_topic command=PUBLISH"),
        ("topic=t producerId=p message=  ", "missing_message command=PUBLISH"),
        ("topic=t message=x", "missing_producer_id command=PUBLISH"),
        ("topic=__consumer_offsets producerId=p message=x", "internal_topic_write_forbidden topic=__consumer_offsets"),
        ("topic=t producerId=p isIdempotent=1 acks=2 message=x", "invalid_is_idempotent value=1"),
        ("topic=t producerId=p acks=2 seqNum=q message=x", "invalid_acks value=2"),
        (
            "topic=t producerId=p seqNum=q message=x",
            "invalid_seq_num reason=\"strconv.ParseUint: parsing \\\"q\\\": invalid syntax\"",
        ),
        ("topic=t producerId=p partition=9 message=x", "partition_not_found partition=9"),
        ("topic=t producerId=p transactional_id=z message=x", "transaction_metadata_forbidden command=PUBLISH"),
    ] {
        assert_eq!(client.ask(&format!("PUBLISH {arguments}")).await, format!("ERROR: {error}"), "{arguments}");
    }
    assert_eq!(cluster.end_offsets("t").values().sum::<u64>(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_missing_topic_is_waited_for() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let start = Instant::now();
    assert_eq!(client.ask("PUBLISH topic=t producerId=p message=x").await, "ERROR: topic_not_found topic=t");
    assert_eq!(start.elapsed().as_millis(), 500);
    client.tell("PUBLISH topic=t producerId=p acks=0 message=x").await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    cluster.create_topic("t", 1).unwrap();
    assert_eq!(client.receive_text().await, "OK", "acks=0 gets a plain OK");
}

#[tokio::test(start_paused = true)]
async fn a_partition_is_chosen_by_key_or_in_turn() {
    let cluster = with_topic(1, 3).await;
    let mut client = Client::connect(&cluster, 0).await;
    for _ in 0..3 {
        client.ask("PUBLISH topic=t producerId=p message=in turn").await;
    }
    assert_eq!(cluster.end_offsets("t").into_values().collect::<Vec<_>>(), [1, 1, 1]);
    for _ in 0..2 {
        client.ask("PUBLISH topic=t producerId=p partition=-1 key=a message=by key").await;
    }
    // FNV-1a of "a" is 0xaf63dc4c8601ec8c, which is 1 modulo 3.
    assert_eq!(cluster.end_offsets("t").into_values().collect::<Vec<_>>(), [1, 3, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_message_takes_everything_behind_it_and_any_bytes() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    client.ask_body(b"\0\0PUBLISH topic=t producerId=p message= a=b \xff\xfe key=z \r\n").await.unwrap();
    let batch = client.read("CONSUME topic=t partition=0 offset=0 member=m").await;
    assert_eq!((batch.record(0).key, batch.record(0).value), (&b""[..], &b"a=b \xff\xfe key=z"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_batch_comes_back_field_by_field() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let full = Record {
        offset: 99,
        sequence: 7,
        producer_id: b"bp",
        key: b"k\xff",
        epoch: -2,
        value: b"bin\0\xff",
        event_type: b"ev",
        schema_version: 3,
        aggregate_version: 4,
        metadata: b"md",
    };
    let frame = batch::encode("t", 0, "", true, &[full, record(8, b"", b"")]);
    assert_eq!(
        client.ask_body(&frame).await.unwrap(),
        "{\"status\":\"OK\",\"last_offset\":1,\"producer_epoch\":2,\"producer_id\":\"bp\",\"seq_start\":7,\"seq_end\":8}"
    );
    let back = client.read("CONSUME topic=t partition=0 offset=0 member=m").await;
    assert_eq!(
        back.iter().collect::<Vec<_>>(),
        [Record { offset: 0, ..full }, Record { offset: 1, ..record(8, b"", b"") }]
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_cannot_be_taken_says_why() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let whole = batch::encode("t", 0, "1", false, &[record(1, b"k", b"v")]);
    let short = client.ask_body(&whole[..whole.len() - 1]).await.unwrap();
    assert!(short.starts_with("ERROR: batch_decode_failed reason="), "{short}");
    for (frame, reply) in [
        (batch::encode("t", 0, "zz", false, &[record(1, b"", b"")]), "ERROR: invalid_acks value=zz"),
        (batch::encode("x", 0, "1", false, &[record(1, b"", b"")]), "ERROR: topic_not_found topic=x"),
        (batch::encode("t", 7, "1", false, &[record(1, b"", b"")]), "ERROR: partition_not_found partition=7"),
        (batch::encode("t", 0, "1", false, &[]), "ERROR: broker_error reason=\"empty batch messages\""),
        (batch::encode("t", 0, "0", false, &[record(1, b"", b"")]), "OK"),
    ] {
        assert_eq!(client.ask_body(&frame).await.as_deref(), Some(reply));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idempotent_topic_refuses_gaps_and_swallows_repetitions() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    client.ask("CREATE topic=t partitions=1 idempotent=true").await;
    let publish = |sequence| format!("PUBLISH topic=t producerId=x seqNum={sequence} message=m");
    for sequence in [1, 2, 2, 1] {
        assert!(client.ask(&publish(sequence)).await.contains("\"last_offset\":"));
    }
    assert_eq!(cluster.end_offsets("t")[&0], 2);
    assert_eq!(
        client.ask(&publish(4)).await,
        "ERROR: broker_error reason=\"acks=1 publish failed: sync publish failed: idempotency gap for producer x: \
         expected 3, got 4\""
    );
    // In a batch the same closes the connection without a word, and what stood before it stays.
    let frame = batch::encode("t", 0, "1", true, &[record(1, b"", b"a"), record(3, b"", b"b")]);
    assert_eq!(client.ask_body(&frame).await, None);
    assert_eq!(cluster.end_offsets("t")[&0], 3);
}

#[tokio::test(start_paused = true)]
async fn any_broker_of_a_cluster_takes_records_but_forwarding_loses_a_chosen_key() {
    let cluster = with_topic(3, 1).await;
    let mut other = Client::connect(&cluster, 1).await;
    let first = other.ask("PUBLISH topic=t producerId=p acks=0 key=kk message=a").await;
    assert!(first.contains("\"last_offset\":0,") && first.contains("\"leader\":\"127.0.0.1:"), "{first}");
    other.ask("PUBLISH topic=t producerId=p partition=0 key=kk message=b").await;
    other.ask_body(&batch::encode("t", 0, "1", false, &[record(1, b"kk", b"c")])).await.unwrap();
    let mut leader = Client::connect(&cluster, 0).await;
    leader.ask("PUBLISH topic=t producerId=p key=kk message=d").await;
    let batch = leader.read("CONSUME topic=t partition=0 offset=0 member=m").await;
    let keys: Vec<_> = batch.iter().map(|record| String::from_utf8_lossy(record.key).into_owned()).collect();
    assert_eq!(keys, ["", "kk", "kk", "kk"]);
    let lost = other.ask_body(&batch::encode("t", 9, "1", false, &[record(1, b"", b"")])).await.unwrap();
    assert!(lost.starts_with("ERROR: broker_error reason=\"failed to forward BATCH"), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_record_over_the_limit_is_refused_and_one_just_below_is_read() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let publish = |size: usize| format!("PUBLISH topic=t producerId=p partition=0 message={}", "x".repeat(size));
    let most = (16 << 20) - 200;
    assert!(client.ask(&publish(most)).await.contains("\"last_offset\":1"));
    let batch = client.read("CONSUME topic=t partition=0 offset=0 member=m").await;
    assert_eq!(batch.record(0).value.len(), most);
    let room = (16 << 20) - 2 - publish(0).len();
    let refused = client.ask(&publish(room)).await;
    assert!(refused.contains("exceeds maximum 16777216") || refused.contains("last_offset"), "{refused}");
}
