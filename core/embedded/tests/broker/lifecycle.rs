//! Brokers that stop, die and come back; leaders and coordinators meanwhile.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use cursus_embedded::{Cluster, ControlError, Options};
use cursus_net::{Network, Tcp};
use tokio::time::Instant;

use crate::client::{Client, field, numbered, piped, until, with_topic};

#[tokio::test(start_paused = true)]
async fn a_killed_broker_cuts_its_connections_and_comes_back_at_the_same_address() {
    let cluster = with_topic(3, 3).await;
    let brokers = cluster.brokers();
    let mut client = Client::connect(&cluster, 1).await;
    client.tell("CONSUME topic=t partition=1 offset=0 member=m wait_ms=60000").await;
    until(&cluster, "the request", |cluster| !cluster.requests().is_empty()).await;
    cluster.kill_broker(1).await.unwrap();
    assert_eq!(client.receive().await, None);
    assert!(!cluster.is_running(1));
    assert_eq!(cluster.connections(1), 0);
    let refused = Client::try_connect(&cluster, 1).await.err().unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(cluster.kill_broker(1).await.unwrap_err().to_string(), "broker 1 is down already");
    cluster.restart_broker(1).await.unwrap();
    assert_eq!(cluster.restart_broker(1).await.unwrap_err().to_string(), "broker 1 is running already");
    assert_eq!(cluster.brokers(), brokers);
    assert!(Client::connect(&cluster, 1).await.ask("LIST").await.starts_with("OK"));
    assert!(matches!(cluster.kill_broker(9).await, Err(ControlError::NoBroker { broker: 9, count: 3 })));
}

#[tokio::test]
async fn the_same_with_real_sockets() {
    let cluster = Cluster::start(Options::default()).await.unwrap();
    for _ in 0..3 {
        let mut client = Client::connect(&cluster, 0).await;
        client.ask("LIST").await;
        cluster.kill_broker(0).await.unwrap();
        assert_eq!(client.receive().await, None);
        let refused = Client::try_connect(&cluster, 0).await.err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        cluster.restart_broker(0).await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_broker_finishes_what_it_is_at() {
    let cluster = with_topic(1, 1).await;
    let mut waiting = Client::connect(&cluster, 0).await;
    waiting.tell("CONSUME topic=t partition=0 offset=0 member=m wait_ms=60000").await;
    until(&cluster, "the request", |cluster| !cluster.requests().is_empty()).await;
    let start = Instant::now();
    cluster.stop_broker(0).await.unwrap();
    assert!(waiting.receive().await.unwrap().starts_with(b"\xba\x7c"));
    assert_eq!(waiting.receive().await, None);
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn survivors_name_a_dead_leader_until_another_is_elected() {
    let cluster = with_topic(3, 3).await;
    cluster.produce("t", 1, numbered(2)).unwrap();
    let brokers = cluster.brokers();
    let mut client = Client::connect(&cluster, 0).await;
    cluster.kill_broker(1).await.unwrap();
    cluster.advance(Duration::from_millis(400));
    let consume = "CONSUME topic=t partition=1 offset=0 member=m";
    assert_eq!(client.ask(consume).await, format!("ERROR: NOT_LEADER LEADER_IS {}", brokers[1]));
    let refused = client.ask("PUBLISH topic=t producerId=p partition=1 message=x").await;
    assert!(refused.starts_with("ERROR: broker_error reason=\"failed to forward PUBLISH"), "{refused}");
    until(&cluster, "another leader", |cluster| cluster.leader("t", 1).unwrap() == 0).await;
    let metadata = client.ask("METADATA topic=t").await;
    assert_eq!(field(&metadata, "leaders"), [&*brokers[0], &*brokers[0], &*brokers[2]].join(","));
    assert_eq!(field(&metadata, "epochs"), "1,2,1");
    assert_eq!(client.offsets("partition=1 offset=0").await, [0, 1]);
    cluster.restart_broker(1).await.unwrap();
    cluster.advance(Duration::from_secs(60));
    assert_eq!(cluster.leader("t", 1).unwrap(), 0, "leadership doesn't move back");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_back_in_time_stays_and_without_anybody_nobody_leads() {
    let cluster = with_topic(2, 2).await;
    cluster.kill_broker(1).await.unwrap();
    cluster.advance(Duration::from_millis(300));
    cluster.restart_broker(1).await.unwrap();
    cluster.advance(Duration::from_secs(5));
    assert_eq!(cluster.leader("t", 1).unwrap(), 1);
    cluster.kill_broker(0).await.unwrap();
    cluster.kill_broker(1).await.unwrap();
    cluster.advance(Duration::from_secs(5));
    assert_eq!((cluster.leader("t", 0).unwrap(), cluster.leader("t", 1).unwrap()), (0, 1));
    cluster.restart_broker(0).await.unwrap();
    until(&cluster, "broker 0 to lead both", |cluster| cluster.leader("t", 1).unwrap() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_coordinator_is_never_replaced_and_knows_its_members_when_it_returns() {
    let cluster = with_topic(3, 3).await;
    cluster.move_coordinator("g", 2).unwrap();
    let mut client = Client::connect(&cluster, 2).await;
    let member = client.join("g", "m").await;
    client.ask(&format!("COMMIT_OFFSET topic=t partition=0 group=g member={member} generation=1 offset=1")).await;
    cluster.kill_broker(2).await.unwrap();
    cluster.advance(Duration::from_secs(30));
    let mut other = Client::connect(&cluster, 0).await;
    let port = cluster.brokers()[2].rsplit(':').next().unwrap().to_owned();
    assert_eq!(field(&other.ask("FIND_COORDINATOR group=g").await, "port"), port);
    assert_eq!(other.ask("GROUP_STATUS group=g").await, format!("ERROR: NOT_COORDINATOR host=127.0.0.1 port={port}"));
    cluster.restart_broker(2).await.unwrap();
    cluster.advance(Duration::from_secs(9));
    let mut client = Client::connect(&cluster, 2).await;
    let resumed = client.ask(&format!("JOIN_GROUP topic=t group=g member={member} generation=1")).await;
    assert!(resumed.ends_with("resumed=true"), "{resumed}");
    assert_eq!(client.ask("FETCH_OFFSET topic=t partition=0 group=g").await, "OK offset=1");
}

#[tokio::test(start_paused = true)]
async fn a_standalone_restart_loses_members_and_keeps_offsets() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(3)).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    client.join("g", "n").await;
    client.ask(&format!("COMMIT_OFFSET topic=t partition=0 group=g member={member} generation=2 offset=2")).await;
    cluster.stop_broker(0).await.unwrap();
    cluster.restart_broker(0).await.unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(
        client.ask(&format!("HEARTBEAT topic=t group=g member={member} generation=2")).await,
        format!("ERROR: member_not_found member={member} group=g")
    );
    assert_eq!(client.ask("FETCH_OFFSET topic=t partition=0 group=g").await, "OK offset=2");
    assert!(client.ask("JOIN_GROUP topic=t group=g member=m").await.starts_with("OK generation=1 "));
    assert_eq!(client.offsets("partition=0 offset=0 group=g").await, [2]);
}

#[tokio::test]
async fn nothing_listens_after_stop_or_after_the_last_handle_is_gone() {
    let cluster = Cluster::start(Options { brokers: 2, ..Options::default() }).await.unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    client.ask("LIST").await;
    cluster.stop().await;
    cluster.stop().await;
    assert_eq!(client.receive().await, None);
    assert!(matches!(cluster.restart_broker(0).await, Err(ControlError::Stopped)));

    let cluster = Cluster::start(Options { brokers: 1, ..Options::default() }).await.unwrap();
    let address: SocketAddr = cluster.brokers()[0].parse().unwrap();
    let clone = cluster.clone();
    drop(cluster);
    let mut client = Client::to(&Tcp, address).await.unwrap();
    client.ask("LIST").await;
    drop(clone);
    assert_eq!(client.receive().await, None);
    // The listener goes with its task, which the runtime gets to once this one waits.
    let refused = async { while Tcp.connect(address).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(60), refused).await.expect("nothing may listen any more");
}

#[tokio::test(start_paused = true)]
async fn bad_options_are_refused() {
    for options in [
        Options { brokers: 0, ..piped(1) },
        Options { advertised_host: Some("a b".into()), ..piped(1) },
        Options { advertised_host: Some(String::new()), ..piped(1) },
        Options { port: Some(65_535), ..piped(2) },
    ] {
        let error = Cluster::start(options).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn never_is_a_time_too() {
    let never = Duration::MAX;
    let options = Options {
        session_timeout: never,
        expiry_check: never,
        leader_election: never,
        coordinator_commit_lag: never,
        idle_timeout: never,
        ..piped(2)
    };
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 2).unwrap();
    cluster.move_coordinator("g", 0).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    client.ask(&format!("COMMIT_OFFSET topic=t partition=0 group=g member={member} generation=1 offset=1")).await;
    cluster.kill_broker(1).await.unwrap();
    cluster.advance(Duration::from_secs(365 * 86_400));
    assert_eq!(cluster.leader("t", 1).unwrap(), 1);
    assert_eq!(client.ask("FETCH_OFFSET topic=t partition=0 group=g").await, "OK offset=0");
    assert_eq!(cluster.group("g").unwrap().members.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn over_the_limit_of_connections_one_waits_in_silence_for_a_slot() {
    let cluster = with_topic(1, 1).await;
    let mut clients = Vec::new();
    for _ in 0..1_000 {
        clients.push(Client::connect(&cluster, 0).await);
    }
    until(&cluster, "a thousand connections", |cluster| cluster.connections(0) == 1_000).await;
    let mut late = Client::connect(&cluster, 0).await;
    late.tell("LIST").await;
    until(&cluster, "one more", |cluster| cluster.connections(0) == 1_001).await;
    // The clock is paused: this ends once nobody has anything to do any more.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(cluster.requests().is_empty());
    clients.pop();
    assert!(late.receive_text().await.starts_with("OK"));
}
