//! STREAM.

use std::time::Duration;

use cursus_wire::batch::RecordBatch;
use tokio::time::{Instant, sleep};

use crate::client::{Client, batch, numbered, until, with_topic};

const STREAM: &str = "STREAM topic=t partition=0 group=s member=m";

async fn offsets(stream: &mut Client) -> Vec<u64> {
    loop {
        let body = stream.receive().await.expect("a frame");
        if !body.is_empty() {
            return batch(body).iter().map(|record| record.offset).collect();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn records_come_at_once_and_a_sign_of_life_every_five_seconds() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(3)).unwrap();
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell(&format!("{STREAM} batch=2 offset=0")).await;
    assert_eq!(offsets(&mut stream).await, [0, 1]);
    assert_eq!(offsets(&mut stream).await, [2]);
    assert!(stream.receive().await.unwrap().is_empty(), "the first sign of life comes soon");
    let start = Instant::now();
    assert!(stream.receive().await.unwrap().is_empty());
    assert_eq!(start.elapsed().as_secs(), 5);
    sleep(Duration::from_secs(1)).await;
    cluster.produce("t", 0, numbered(1)).unwrap();
    let start = Instant::now();
    assert_eq!(offsets(&mut stream).await, [3]);
    assert!(start.elapsed() < Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn a_stream_starts_at_the_commit_or_the_offset_or_as_told() {
    let cluster = with_topic(1, 2).await;
    cluster.produce("t", 0, numbered(4)).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    client.ask(&format!("COMMIT_OFFSET topic=t partition=0 group=g member={member} generation=1 offset=2")).await;
    for (arguments, first) in
        [("group=g offset=0", 2), ("group=x offset=3", 3), ("group=y", 0), ("group=z autoOffsetReset=earliest", 0)]
    {
        let mut stream = Client::connect(&cluster, 0).await;
        stream.tell(&format!("STREAM topic=t partition=0 {arguments}")).await;
        assert_eq!(offsets(&mut stream).await[0], first, "{arguments}");
    }
    let mut latest = Client::connect(&cluster, 0).await;
    latest.tell("STREAM topic=t partition=0 group=l autoOffsetReset=latest").await;
    until(&cluster, "the stream", |cluster| cluster.requests().last().unwrap().text.contains("group=l")).await;
    assert!(latest.receive().await.unwrap().is_empty());
    cluster.produce("t", 0, numbered(1)).unwrap();
    assert_eq!(offsets(&mut latest).await, [4]);
}

#[tokio::test(start_paused = true)]
async fn a_second_stream_replaces_the_first() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(2)).unwrap();
    let mut first = Client::connect(&cluster, 0).await;
    first.tell(&format!("{STREAM} offset=0")).await;
    assert_eq!(offsets(&mut first).await, [0, 1]);
    let mut second = Client::connect(&cluster, 0).await;
    second.tell(&format!("{STREAM} offset=0")).await;
    assert_eq!(offsets(&mut second).await, [0, 1]);
    assert_eq!(first.receive_text().await, "STREAM_CONTROL type=CLOSE reason=replaced offset=2");
    assert_eq!(first.receive().await, None);
    let mut other = Client::connect(&cluster, 0).await;
    other.tell("STREAM topic=t partition=0 group=other offset=0").await;
    assert_eq!(offsets(&mut other).await, [0, 1]);
    cluster.produce("t", 0, numbered(1)).unwrap();
    assert_eq!(offsets(&mut second).await, [2], "another group's stream leaves it alone");
}

#[tokio::test(start_paused = true)]
async fn a_refused_stream_leaves_the_connection_as_it_was() {
    let cluster = with_topic(3, 2).await;
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.ask("STREAM topic=t partition=0").await, "ERROR: invalid_stream_syntax");
    assert_eq!(
        client.ask("STREAM topic=t partition=1 group=g").await,
        format!("ERROR: NOT_LEADER LEADER_IS {}", cluster.brokers()[1])
    );
    assert!(client.ask("LIST").await.starts_with("OK"));
}

#[tokio::test(start_paused = true)]
async fn a_stream_takes_the_whole_connection_and_flows_from_a_demoted_leader() {
    let cluster = with_topic(3, 1).await;
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell(&format!("{STREAM} offset=0")).await;
    stream.tell("LIST").await;
    assert!(stream.receive().await.unwrap().is_empty());
    cluster.move_leader("t", 0, 1).unwrap();
    cluster.produce("t", 0, numbered(1)).unwrap();
    assert_eq!(offsets(&mut stream).await, [0], "and LIST is never answered");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_falls_out_of_range_or_over_the_limit_says_so() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(5)).unwrap();
    cluster.delete_records("t", 0, 3).unwrap();
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell(&format!("{STREAM} offset=1")).await;
    assert_eq!(
        stream.receive_text().await,
        "STREAM_CONTROL type=CLOSE reason=offset_out_of_range offset=1 requested=1 earliest=3 latest=5"
    );
    assert_eq!(stream.receive().await, None);
    let large = "x".repeat(9 << 20);
    cluster.create_topic("t", 2).unwrap();
    cluster.produce("t", 1, [("", large.clone()), ("", large)]).unwrap();
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell("STREAM topic=t partition=1 group=s").await;
    let closed = stream.receive_text().await;
    assert!(closed.starts_with("STREAM_CONTROL type=CLOSE reason=error offset="), "{closed}");
    assert_eq!(stream.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_broker_ends_its_streams_without_a_word() {
    let cluster = with_topic(1, 1).await;
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell(&format!("{STREAM} offset=0")).await;
    assert!(stream.receive().await.unwrap().is_empty());
    cluster.stop_broker(0).await.unwrap();
    assert_eq!(stream.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_streams_client_that_leaves_is_noticed() {
    let cluster = with_topic(1, 1).await;
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell(&format!("{STREAM} offset=0")).await;
    assert!(stream.receive().await.unwrap().is_empty());
    drop(stream);
    until(&cluster, "the connection to be gone", |cluster| cluster.connections(0) == 0).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_batch_of_a_stream_can_be_damaged() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(2)).unwrap();
    cluster.corrupt_next("STREAM", 1).unwrap();
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell(&format!("{STREAM} offset=0 batch=1")).await;
    assert!(RecordBatch::parse(stream.receive().await.unwrap()).is_err());
    assert_eq!(offsets(&mut stream).await, [1]);
}
