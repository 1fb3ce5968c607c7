//! Slow and half-open connections, and addresses that aren't what they were.

use std::net::SocketAddr;
use std::time::Duration;

use cursus_embedded::{Cluster, ControlError, Options};
use tokio::time::{Instant, timeout};

use crate::client::{Client, batch, cluster, field, numbered, piped, until, with_topic};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn delayed_replies_come_late_in_order_and_don_t_add_up() {
    let cluster = with_topic(2, 2).await;
    let (mut slow, mut quick) = (Client::connect(&cluster, 0).await, Client::connect(&cluster, 1).await);
    cluster.delay(Some(0), SECOND).unwrap();
    let start = Instant::now();
    quick.ask("LIST").await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    for command in ["LIST", "METADATA topic=t", "PUBLISH topic=t producerId=p partition=0 message=x"] {
        slow.tell(command).await;
    }
    until(&cluster, "the record", |cluster| cluster.end_offsets("t")[&0] == 1).await;
    assert_eq!(start.elapsed(), Duration::ZERO, "what is asked is done at once");
    assert!(slow.receive_text().await.starts_with("OK count="));
    assert!(slow.receive_text().await.starts_with("OK topic=t"));
    assert!(slow.receive_text().await.starts_with('{'));
    assert_eq!(start.elapsed(), SECOND);
    // What is on its way stays so, and what follows doesn't overtake it.
    slow.tell("LIST").await;
    until(&cluster, "the request", |cluster| cluster.requests().len() == 5).await;
    cluster.delay(None, Duration::ZERO).unwrap();
    assert!(slow.ask("METADATA topic=t").await.starts_with("OK count="));
    assert!(slow.receive_text().await.starts_with("OK topic=t"));
    assert_eq!(start.elapsed(), 2 * SECOND);
    slow.ask("LIST").await;
    assert_eq!(start.elapsed(), 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_delay_ends_with_the_clusters_clock_and_outlives_a_restart() {
    let cluster = with_topic(1, 1).await;
    cluster.delay(None, Duration::MAX).unwrap();
    cluster.kill_broker(0).await.unwrap();
    cluster.restart_broker(0).await.unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    client.tell("LIST").await;
    assert!(timeout(60 * SECOND, client.receive()).await.is_err());
    cluster.advance(11 * 365 * 24 * 3_600 * SECOND);
    assert!(client.receive_text().await.starts_with("OK"));
    assert!(matches!(cluster.delay(Some(1), SECOND), Err(ControlError::NoBroker { broker: 1, count: 1 })));
}

#[tokio::test(start_paused = true)]
async fn a_last_reply_is_still_written_before_the_connection_closes() {
    let cluster = cluster(1).await;
    cluster.delay(None, SECOND).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    client.send(&cursus_wire::frame::encode(b"\0\0BOGUS").unwrap()).await;
    assert!(client.receive_text().await.starts_with("ERROR: malformed_input"));
    assert_eq!(client.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_late_and_loses_nothing() {
    let cluster = with_topic(1, 1).await;
    cluster.delay(Some(0), SECOND).unwrap();
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell("STREAM topic=t partition=0 group=s offset=0").await;
    until(&cluster, "the request", |cluster| !cluster.requests().is_empty()).await;
    let start = Instant::now();
    let mut seen = Vec::new();
    for _ in 0..3 {
        cluster.produce("t", 0, numbered(1)).unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    while seen.len() < 3 {
        let body = stream.receive().await.expect("a frame");
        if !body.is_empty() {
            seen.extend(batch(body).iter().map(|record| record.offset));
        }
    }
    assert_eq!(seen, [0, 1, 2]);
    assert!(start.elapsed() < Duration::from_millis(1_100), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_frozen_connection_is_neither_answered_nor_closed_and_new_ones_work() {
    let cluster = with_topic(2, 1).await;
    let mut frozen = Client::connect(&cluster, 0).await;
    frozen.ask("LIST").await;
    let mut waiting = Client::connect(&cluster, 0).await;
    waiting.tell("CONSUME topic=t partition=0 offset=0 member=m wait_ms=60000").await;
    let mut elsewhere = Client::connect(&cluster, 1).await;
    until(&cluster, "the requests", |cluster| cluster.requests().len() == 2 && cluster.connections(1) == 1).await;
    cluster.freeze_connections(Some(0)).unwrap();
    cluster.clear_requests();
    frozen.tell("LIST").await;
    cluster.produce("t", 0, numbered(1)).unwrap();
    assert!(elsewhere.ask("LIST").await.starts_with("OK"), "another broker's go on");
    cluster.clear_requests();
    for client in [&mut frozen, &mut waiting] {
        assert!(timeout(100 * SECOND, client.receive()).await.is_err(), "not even closed as idle");
    }
    assert!(cluster.requests().is_empty());
    let mut fresh = Client::connect(&cluster, 0).await;
    assert_eq!(fresh.offsets("partition=0 offset=0").await, [0]);
    assert_eq!(cluster.connections(0), 3, "the broker takes the frozen ones for open");
    cluster.cut_connections(Some(0)).unwrap();
    assert_eq!(frozen.receive().await, None);
    assert!(matches!(cluster.freeze_connections(Some(7)), Err(ControlError::NoBroker { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_broker_with_frozen_connections_stops_without_waiting_for_them() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    client.ask("LIST").await;
    cluster.freeze_connections(None).unwrap();
    let start = Instant::now();
    cluster.stop_broker(0).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(client.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn brokers_name_the_addresses_that_they_are_told_to() {
    let options = Options { advertised: [(1, "kafka.example:9001".to_owned())].into(), ..piped(3) };
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 3).unwrap();
    cluster.move_coordinator("g", 1).unwrap();
    let own = cluster.brokers();
    let mut client = Client::connect(&cluster, 0).await;
    let metadata = client.ask("METADATA topic=t").await;
    assert_eq!(field(&metadata, "leaders"), [&own[0], "kafka.example:9001", &own[2]].join(","));
    let coordinator = client.ask("FIND_COORDINATOR group=g").await;
    assert_eq!((field(&coordinator, "host"), field(&coordinator, "port")), ("kafka.example", "9001"));
    assert_eq!(
        client.ask("CONSUME topic=t partition=1 offset=0 member=m").await,
        "ERROR: NOT_LEADER LEADER_IS kafka.example:9001"
    );
    assert_eq!(client.ask("GROUP_STATUS group=g").await, "ERROR: NOT_COORDINATOR host=kafka.example port=9001");
    // It still listens where it did.
    assert!(Client::connect(&cluster, 1).await.ask("LIST").await.starts_with("OK"));
    cluster.advertise(1, Some("[::1]:7")).unwrap();
    cluster.advertise(2, Some(&own[0])).unwrap();
    let metadata = client.ask("METADATA topic=t").await;
    assert_eq!(field(&metadata, "leaders"), [&own[0], "[::1]:7", &own[0]].join(","));
    assert_eq!(client.ask("GROUP_STATUS group=g").await, "ERROR: NOT_COORDINATOR host=::1 port=7");
    cluster.advertise(1, None).unwrap();
    cluster.advertise(2, None).unwrap();
    assert_eq!(field(&client.ask("METADATA topic=t").await, "leaders"), own.join(","));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_address_is_not_advertised() {
    let cluster = cluster(1).await;
    for (address, problem) in [
        ("localhost", "expected HOST:PORT"),
        ("localhost:0", "the port must be 1 to 65535"),
        ("localhost:70000", "the port must be 1 to 65535"),
        ("localhost:x", "the port must be 1 to 65535"),
        (":9000", "the host must be one word without commas and equals signs"),
        ("a b:9000", "the host must be one word without commas and equals signs"),
        ("a,b:9000", "the host must be one word without commas and equals signs"),
        ("::1:9000", "an IPv6 address must stand in brackets"),
    ] {
        let refused = cluster.advertise(0, Some(address)).unwrap_err().to_string();
        assert_eq!(refused, format!("\"{address}\" is no address to advertise: {problem}"));
        let options = Options { advertised: [(0, address.to_owned())].into(), ..piped(1) };
        let refused = Cluster::start(options).await.unwrap_err().to_string();
        assert!(refused.contains(problem), "{refused}");
    }
    assert!(matches!(cluster.advertise(1, None), Err(ControlError::NoBroker { .. })));
    let options = Options { advertised: [(1, "a:1".to_owned())].into(), ..piped(1) };
    let refused = Cluster::start(options).await.unwrap_err().to_string();
    assert_eq!(refused, "there is no broker 1 to advertise as \"a:1\"");
}

async fn swap(options: Options) {
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 2).unwrap();
    for partition in 0..2 {
        cluster.produce("t", partition, numbered(1 + partition as usize)).unwrap();
    }
    let before = cluster.brokers();
    let ids = Client::connect(&cluster, 0).await.ask("LIST_CLUSTER").await;
    let mut client = Client::connect(&cluster, 0).await;
    client.ask("LIST").await;
    cluster.swap_addresses(0, 1).unwrap();
    assert_eq!(client.receive().await, None);
    assert_eq!(cluster.brokers(), [before[1].clone(), before[0].clone()]);
    let network = cluster.options().network.clone();
    let address: SocketAddr = before[0].parse().unwrap();
    let mut reused = Client::to(&*network, address).await.unwrap();
    cluster.clear_requests();
    assert_eq!(
        reused.ask("CONSUME topic=t partition=0 offset=0 member=m").await,
        format!("ERROR: NOT_LEADER LEADER_IS {}", before[1]),
        "who leads partition 0 is elsewhere now"
    );
    assert_eq!(cluster.requests()[0].broker, 1, "and broker 1 answers here");
    assert_eq!(reused.offsets("partition=1 offset=0").await, [0, 1]);
    let swapped = reused.ask("LIST_CLUSTER").await;
    let id = |reply: &str, broker: usize| {
        let brokers: serde_json::Value = serde_json::from_str(reply.split_once('=').unwrap().1).unwrap();
        brokers[broker]["id"].as_str().unwrap().to_owned()
    };
    assert_eq!([id(&swapped, 0), id(&swapped, 1)], [id(&ids, 0), id(&ids, 1)], "a broker keeps its id");
    // Each comes back where it is now.
    cluster.kill_broker(1).await.unwrap();
    assert_eq!(reused.receive().await, None);
    assert!(Client::to(&*network, address).await.is_err());
    assert_eq!(cluster.swap_addresses(0, 1).unwrap_err().to_string(), "broker 1 is down; restart it first");
    cluster.restart_broker(1).await.unwrap();
    let mut reused = Client::to(&*network, address).await.unwrap();
    assert_eq!(reused.offsets("partition=1 offset=0").await, [0, 1]);
    cluster.swap_addresses(1, 0).unwrap();
    assert_eq!(cluster.brokers(), before);
    cluster.swap_addresses(0, 0).unwrap();
    assert_eq!(cluster.swap_addresses(0, 2).unwrap_err().to_string(), "no broker 2; there are 2, counted from 0");
    assert_eq!(Client::connect(&cluster, 0).await.offsets("partition=0 offset=0").await, [0]);
}

#[tokio::test(start_paused = true)]
async fn brokers_swap_their_addresses_and_stay_who_they_are() {
    swap(piped(2)).await;
}

#[tokio::test]
async fn they_do_so_on_real_sockets() {
    swap(Options { brokers: 2, ..Options::default() }).await;
}
