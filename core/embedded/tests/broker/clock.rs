//! The clock of the brokers, which a test puts forward. Tokio's own stands still meanwhile: what happens here happens
//! because the cluster's clock was advanced.

use std::time::Duration;

use cursus_embedded::{Cluster, Options};
use tokio::time::Instant;

use crate::client::{Client, cluster, numbered, piped, soon, until, with_topic};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn whoever_was_silent_for_longer_than_a_session_is_gone_at_once() {
    let cluster = with_topic(1, 2).await;
    let start = Instant::now();
    let mut client = Client::connect(&cluster, 0).await;
    let silent = client.join("g", "silent").await;
    let heard = client.join("g", "heard").await;
    cluster.advance(9 * SECOND);
    let heartbeat =
        |member: &str, generation| format!("HEARTBEAT topic=t group=g member={member} generation={generation}");
    assert!(client.ask(&heartbeat(&heard, 2)).await.starts_with("OK"));
    cluster.advance(5 * SECOND);
    // No await since: it has happened already.
    let group = cluster.group("g").unwrap();
    assert_eq!((group.members.keys().collect::<Vec<_>>(), group.generation), (vec![&heard], 3));
    assert_eq!(client.ask(&heartbeat(&silent, 3)).await, format!("ERROR: member_not_found member={silent} group=g"));
    cluster.advance(Duration::MAX);
    assert!(cluster.group("g").unwrap().members.is_empty());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_replaced_when_the_clock_says_so() {
    let cluster = with_topic(2, 2).await;
    cluster.kill_broker(1).await.unwrap();
    cluster.advance(Duration::from_millis(499));
    assert_eq!(cluster.leader("t", 1).unwrap(), 1);
    cluster.advance(Duration::from_millis(1));
    assert_eq!(cluster.leader("t", 1).unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_close_and_those_that_wait_get_their_reply() {
    let cluster = with_topic(1, 1).await;
    let start = Instant::now();
    let mut idle = Client::connect(&cluster, 0).await;
    idle.ask("LIST").await;
    let mut waiting = Client::connect(&cluster, 0).await;
    waiting.tell("CONSUME topic=t partition=0 offset=0 member=m wait_ms=60000").await;
    until(&cluster, "the request", |cluster| cluster.requests().len() == 2).await;
    cluster.advance(59 * SECOND);
    assert!(idle.ask("LIST").await.starts_with("OK"));
    cluster.advance(59 * SECOND);
    assert!(waiting.receive().await.unwrap().starts_with(b"\xba\x7c"));
    assert_eq!(waiting.receive().await, None, "nothing was heard of it for 118 s");
    cluster.advance(2 * SECOND);
    assert_eq!(idle.receive().await, None);
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stream_shows_that_it_lives_and_catches_up_with_no_sign_of_life() {
    let cluster = with_topic(1, 1).await;
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell("STREAM topic=t partition=0 group=s offset=0").await;
    assert!(stream.receive().await.unwrap().is_empty());
    let start = Instant::now();
    cluster.advance(3_600 * SECOND);
    assert!(stream.receive().await.unwrap().is_empty());
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(stream.receive().await.unwrap().is_empty());
    assert_eq!(start.elapsed(), 5 * SECOND, "one sign of life for the whole hour");
}

#[tokio::test(start_paused = true)]
async fn a_lagging_commit_is_seen() {
    let options = Options { coordinator_commit_lag: SECOND, ..piped(2) };
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    cluster.produce("t", 0, numbered(5)).unwrap();
    cluster.move_coordinator("g", 0).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    client.ask(&format!("COMMIT_OFFSET topic=t partition=0 group=g member={member} generation=1 offset=4")).await;
    assert_eq!(client.ask("FETCH_OFFSET topic=t partition=0 group=g").await, "OK offset=0");
    cluster.advance(SECOND);
    assert_eq!(client.ask("FETCH_OFFSET topic=t partition=0 group=g").await, "OK offset=4");
    assert_eq!(client.offsets("partition=0 offset=0 group=g").await, [4]);
}

#[tokio::test]
async fn with_the_systems_clock_nobody_waits_for_an_hour_either() {
    let cluster = Cluster::start(Options { brokers: 1, ..Options::default() }).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    let mut waiting = Client::connect(&cluster, 0).await;
    waiting.tell("CONSUME topic=t partition=0 offset=0 member=m wait_ms=3600000").await;
    until(&cluster, "the request", |cluster| !cluster.requests().is_empty()).await;
    cluster.advance(3_600 * SECOND);
    assert!(soon(waiting.receive()).await.unwrap().starts_with(b"\xba\x7c"));
}

#[tokio::test(start_paused = true)]
async fn the_time_of_group_status_is_the_clusters() {
    let cluster = cluster(1).await;
    cluster.create_topic("t", 1).unwrap();
    cluster.advance(61 * SECOND);
    let mut client = Client::connect(&cluster, 0).await;
    client.join("g", "m").await;
    let status = client.ask("GROUP_STATUS group=g").await;
    assert!(status.contains("\"last_rebalance\":\"2026-01-01T00:01:01Z\""), "{status}");
}
