//! Brokers that are stopped without having ended.

use std::time::Duration;

use cursus_embedded::{Cluster, ControlError, Options};
use tokio::time::timeout;

use crate::client::{Client, field, numbered, soon, until, with_topic};

/// Long after whatever would come has come, on a paused clock.
async fn stays_silent(client: &mut Client) {
    assert!(timeout(Duration::from_secs(30), client.receive()).await.is_err(), "nothing may come");
}

#[tokio::test(start_paused = true)]
async fn a_paused_broker_can_be_connected_to_and_answers_once_it_is_resumed() {
    let cluster = with_topic(1, 1).await;
    let mut before = Client::connect(&cluster, 0).await;
    before.ask("LIST").await;
    cluster.pause_broker(0).unwrap();
    assert!(cluster.is_running(0) && cluster.is_paused(0));
    cluster.clear_requests();
    before.tell("LIST").await;
    let mut during = Client::connect(&cluster, 0).await;
    during.tell("LIST").await;
    stays_silent(&mut before).await;
    stays_silent(&mut during).await;
    assert!(cluster.requests().is_empty());
    assert_eq!(cluster.connections(0), 1, "what was connected meanwhile wasn't accepted yet");
    cluster.resume_broker(0).unwrap();
    assert!(before.receive_text().await.starts_with("OK"));
    assert!(during.receive_text().await.starts_with("OK"));
}

#[tokio::test]
async fn the_same_with_real_sockets() {
    let cluster = Cluster::start(Options { brokers: 1, ..Options::default() }).await.unwrap();
    let mut before = Client::connect(&cluster, 0).await;
    before.ask("LIST").await;
    cluster.pause_broker(0).unwrap();
    before.tell("LIST").await;
    let mut during = Client::connect(&cluster, 0).await;
    during.tell("LIST").await;
    // The others of this runtime get their turns, and this one does nothing with them.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(cluster.requests().len(), 1);
    cluster.resume_broker(0).unwrap();
    assert!(before.receive_text().await.starts_with("OK"));
    assert!(during.receive_text().await.starts_with("OK"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_it_is_paused_nothing_moves_on_other_threads_either() {
    let cluster = Cluster::start(Options { brokers: 1, ..Options::default() }).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let writing = tokio::spawn(async move {
        for _ in 0..2_000 {
            client.ask("PUBLISH topic=t producerId=p message=x").await;
        }
    });
    for _ in 0..20 {
        let before = cluster.end_offsets("t")[&0];
        soon(cluster.wait_for("a record", |cluster| cluster.end_offsets("t")[&0] > before.min(1_999))).await;
        cluster.pause_broker(0).unwrap();
        let paused = cluster.end_offsets("t")[&0];
        for _ in 0..100 {
            tokio::task::yield_now().await;
            assert_eq!(cluster.end_offsets("t")[&0], paused);
        }
        cluster.resume_broker(0).unwrap();
    }
    soon(writing).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_paused_leader_is_replaced_and_is_none_when_it_goes_on() {
    let cluster = with_topic(3, 3).await;
    cluster.produce("t", 1, numbered(2)).unwrap();
    let mut of_old = Client::connect(&cluster, 1).await;
    cluster.pause_broker(1).unwrap();
    let mut other = Client::connect(&cluster, 0).await;
    let consume = "CONSUME topic=t partition=1 offset=0 member=m";
    assert_eq!(other.ask(consume).await, format!("ERROR: NOT_LEADER LEADER_IS {}", cluster.brokers()[1]));
    of_old.tell(consume).await;
    cluster.advance(Duration::from_millis(499));
    assert_eq!(cluster.leader("t", 1).unwrap(), 1);
    cluster.advance(Duration::from_millis(2));
    assert_eq!(cluster.leader("t", 1).unwrap(), 0);
    assert_eq!(other.offsets("partition=1 offset=0").await, [0, 1]);
    cluster.resume_broker(1).unwrap();
    assert_eq!(of_old.receive_text().await, format!("ERROR: NOT_LEADER LEADER_IS {}", cluster.brokers()[0]));
    cluster.advance(Duration::from_secs(60));
    assert_eq!(cluster.leader("t", 1).unwrap(), 0, "leadership doesn't move back");
    let metadata = other.ask("METADATA topic=t").await;
    assert_eq!(field(&metadata, "epochs"), "1,2,1");
}

#[tokio::test(start_paused = true)]
async fn a_paused_coordinator_expires_nobody_until_it_goes_on_and_then_before_it_reads() {
    let cluster = with_topic(2, 2).await;
    cluster.move_coordinator("g", 1).unwrap();
    let mut client = Client::connect(&cluster, 1).await;
    let member = client.join("g", "m").await;
    cluster.pause_broker(1).unwrap();
    client.tell(&format!("HEARTBEAT topic=t group=g member={member} generation=1")).await;
    cluster.advance(Duration::from_secs(60));
    assert_eq!(cluster.group("g").unwrap().members.len(), 1);
    cluster.resume_broker(1).unwrap();
    assert!(cluster.group("g").unwrap().members.is_empty());
    assert_eq!(client.receive_text().await, format!("ERROR: member_not_found member={member} group=g"));
}

#[tokio::test(start_paused = true)]
async fn a_short_pause_of_the_coordinator_costs_no_member() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    cluster.pause_broker(0).unwrap();
    let heartbeat = format!("HEARTBEAT topic=t group=g member={member} generation=1");
    client.tell(&heartbeat).await;
    // Two checks fall into it, and the session hasn't ended.
    cluster.advance(Duration::from_secs(10));
    cluster.resume_broker(0).unwrap();
    assert!(client.receive_text().await.starts_with("OK"));
    assert_eq!(cluster.group("g").unwrap().members.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_behind_a_pause() {
    let cluster = with_topic(1, 1).await;
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell("STREAM topic=t partition=0 group=s offset=0").await;
    assert!(stream.receive().await.unwrap().is_empty());
    cluster.pause_broker(0).unwrap();
    cluster.produce("t", 0, numbered(1)).unwrap();
    stays_silent(&mut stream).await;
    cluster.resume_broker(0).unwrap();
    while stream.receive().await.expect("a frame").is_empty() {}
}

#[tokio::test(start_paused = true)]
async fn a_paused_broker_can_be_killed_stopped_and_restarted() {
    let cluster = with_topic(2, 2).await;
    let said = |result: Result<(), ControlError>| result.unwrap_err().to_string();
    for graceful in [false, true] {
        let mut client = Client::connect(&cluster, 1).await;
        client.ask("LIST").await;
        cluster.pause_broker(1).unwrap();
        assert_eq!(said(cluster.pause_broker(1)), "broker 1 is paused already");
        assert!(format!("{cluster:?}").contains("paused, 1 connections"));
        if graceful {
            cluster.stop_broker(1).await.unwrap();
        } else {
            cluster.kill_broker(1).await.unwrap();
        }
        assert_eq!(client.receive().await, None);
        assert!(!cluster.is_paused(1));
        assert_eq!(said(cluster.pause_broker(1)), "broker 1 is down; restart it first");
        assert_eq!(said(cluster.resume_broker(1)), "broker 1 is down; restart it first");
        cluster.restart_broker(1).await.unwrap();
        assert_eq!(said(cluster.resume_broker(1)), "broker 1 is running already");
        assert!(Client::connect(&cluster, 1).await.ask("LIST").await.starts_with("OK"));
    }
    assert_eq!(said(cluster.pause_broker(2)), "no broker 2; there are 2, counted from 0");
    cluster.pause_broker(0).unwrap();
    until(&cluster, "the pause", |cluster| cluster.is_paused(0)).await;
    soon(cluster.stop()).await;
}
