//! What a real broker was asked and answered, asked of this one: the same frames, and byte for byte the same replies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cursus_embedded::{Cluster, Options};
use cursus_net::Randomness;
use cursus_wire::frame;
use serde_json::Value;

use crate::client::{Client, piped};

/// Draws the numbers that the recording's member ids end with.
struct Scripted(&'static [u64], AtomicUsize);

impl Randomness for Scripted {
    fn next_u64(&self) -> u64 {
        self.below(u64::MAX)
    }

    fn below(&self, _: u64) -> u64 {
        self.0[self.1.fetch_add(1, Ordering::Relaxed)]
    }
}

fn options(brokers: usize, suffixes: &'static [u64]) -> Options {
    let randomness = Arc::new(Scripted(suffixes, AtomicUsize::new(0)));
    Options { port: Some(9000), randomness, ..piped(brokers) }
}

fn recording(name: &str) -> Vec<Value> {
    let path = format!("{}/../../tests/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A reply without what is different each time: times, and what else the recorded broker had in it.
fn comparable(name: &str, text: &str) -> String {
    match name {
        "group_status" => {
            let mut status: Value = serde_json::from_str(text).unwrap();
            status["last_rebalance"] = Value::Null;
            for member in status["members"].as_array_mut().unwrap() {
                member["last_heartbeat"] = Value::Null;
            }
            status.to_string()
        }
        // The recorded broker had more topics and groups, and lists them in any order.
        "list" | "list_groups" => {
            let names = text.rsplit('=').next().unwrap().split(',');
            let mut names: Vec<_> =
                names.filter(|name| ["gt0965", "gg0965", "__consumer_offsets"].contains(name)).collect();
            names.sort_unstable();
            names.join(",")
        }
        // Leaders were moved to where the recording has them, which counts their epochs up.
        "metadata" if text.contains("ct0965") => {
            let (before, after) = text.split_once("epochs=").unwrap();
            format!("{before}{}", after.split_once(' ').unwrap().1)
        }
        "list_cluster" => {
            let mut parts = text.split("\"last_seen\":\"");
            let first = parts.next().unwrap().to_owned();
            parts.fold(first, |text, part| text + part.split_once('"').unwrap().1)
        }
        _ => text.to_owned(),
    }
}

/// Sends a recorded frame and compares the reply.
async fn replay(client: &mut Client, exchange: &Value, expected: impl Fn(&str) -> String) {
    let name = exchange["name"].as_str().unwrap();
    client.send(&unhex(exchange["request_frame"].as_str().unwrap())).await;
    let reply = client.receive().await.unwrap_or_else(|| panic!("{name}: the connection was closed"));
    match exchange["response_text"].as_str() {
        Some(text) => {
            let got = String::from_utf8(reply.to_vec()).unwrap();
            assert_eq!(comparable(name, &got), comparable(name, &expected(text)), "{name}");
        }
        None => assert_eq!(hex(&reply), exchange["response"].as_str().unwrap(), "{name}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_standalone_broker_answers_as_recorded() {
    let cluster = Cluster::start(options(1, &[8755, 2694])).await.unwrap();
    let mut main = Client::connect(&cluster, 0).await;
    let mut negotiated = Client::connect(&cluster, 0).await;
    let mut replayed = 0;
    for exchange in recording("standalone") {
        let name = exchange["name"].as_str().unwrap();
        // Streams have a test of their own.
        if name.starts_with("stream_") {
            continue;
        }
        // These were asked on connections of their own: a connection's cursor would have beaten them.
        let fresh = name.starts_with("consume_commit_wins")
            || matches!(name, "consume_dummy_group_offset_is_law" | "consume_beyond_end_uncommitted")
            || matches!(name, "consume_read_committed_gap" | "consume_read_uncommitted_marker")
            || name.starts_with("unknown_command");
        if fresh {
            replay(&mut Client::connect(&cluster, 0).await, &exchange, str::to_owned).await;
        } else if name.starts_with("negotiat") {
            replay(&mut negotiated, &exchange, str::to_owned).await;
        } else {
            replay(&mut main, &exchange, str::to_owned).await;
        }
        replayed += 1;
    }
    assert!(replayed >= 66, "only {replayed} exchanges were replayed");
}

#[tokio::test(start_paused = true)]
async fn transactions_are_answered_as_recorded() {
    let cluster = Cluster::start(options(1, &[7030, 3859])).await.unwrap();
    let mut main = Client::connect(&cluster, 0).await;
    let mut with_cursor = Client::connect(&cluster, 0).await;
    let mut negotiated = Client::connect(&cluster, 0).await;
    let exchanges = recording("transactions");
    for exchange in &exchanges {
        let name = exchange["name"].as_str().unwrap();
        // These were asked on connections of their own: a connection's cursor would have beaten them.
        let mut fresh = Client::connect(&cluster, 0).await;
        let client = match name.split('_').next().unwrap() {
            "cursor" => &mut with_cursor,
            "negotiate" | "negotiated" => &mut negotiated,
            "consume" | "read" => &mut fresh,
            _ => &mut main,
        };
        replay(client, exchange, |text| text.replace("port=19480", "port=9000")).await;
    }
    assert_eq!(exchanges.len(), 113);
}

#[tokio::test(start_paused = true)]
async fn streams_flow_and_close_as_recorded() {
    let exchanges: BTreeMap<String, Value> =
        recording("standalone").into_iter().map(|e| (e["name"].as_str().unwrap().to_owned(), e)).collect();
    let cluster = Cluster::start(options(1, &[8755])).await.unwrap();
    let mut setup = Client::connect(&cluster, 0).await;
    for name in ["create", "publish_0", "publish_1", "publish_2", "publish_3", "publish_4", "publish_5"] {
        replay(&mut setup, &exchanges[name], str::to_owned).await;
    }
    let frames = &exchanges["stream_frames"];
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell(frames["request"].as_str().unwrap()).await;
    let mut at = tokio::time::Instant::now();
    for frame in frames["frames"].as_array().unwrap() {
        assert_eq!(hex(&stream.receive().await.unwrap()), frame[1].as_str().unwrap());
        let tenths = at.elapsed().as_millis().div_ceil(100);
        assert_eq!(tenths as f64 / 10.0, frame[0].as_f64().unwrap(), "seconds since the frame before");
        at = tokio::time::Instant::now();
    }
    let closes = &exchanges["stream_out_of_range"];
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell(closes["request"].as_str().unwrap()).await;
    assert_eq!(stream.receive_text().await, closes["response_text"].as_str().unwrap());
    assert_eq!(stream.receive().await, None);
}

/// The recorded brokers' addresses, as they are here: three ports of one host instead of three hosts.
fn here(text: &str) -> String {
    let mut text = text.to_owned();
    for broker in 1..=3 {
        let (client, raft) = (8999 + broker, 9000 + broker);
        text = text
            .replace(&format!("10.77.0.{broker}:9001"), &format!("127.0.0.1:{raft}"))
            .replace(&format!("10.77.0.{broker}:9000"), &format!("127.0.0.1:{client}"))
            .replace(&format!("10.77.0.{broker}-9000"), &format!("127.0.0.1-{client}"))
            .replace(&format!("host=10.77.0.{broker} port=9000"), &format!("host=127.0.0.1 port={client}"));
    }
    text
}

#[tokio::test(start_paused = true)]
async fn three_brokers_answer_as_recorded() {
    let cluster = Cluster::start(options(3, &[1601])).await.unwrap();
    cluster.move_coordinator("cg0965", 1).unwrap();
    cluster.move_coordinator("cg0965x", 0).unwrap();
    let mut brokers = Vec::new();
    for broker in 0..3 {
        brokers.push(Client::connect(&cluster, broker).await);
    }
    let mut replayed = 0;
    for exchange in recording("cluster") {
        let name = exchange["name"].as_str().unwrap();
        let broker = match name {
            // The coordinator.
            "join" | "batch_commit" | "batch_commit_regression" | "commit_regression" | "join_missing_topic" => 1,
            // The leader of partition 0.
            "consume_on_leader" => 2,
            // Numbers of a Raft log that isn't here.
            "cluster_status" => continue,
            _ => 0,
        };
        replay(&mut brokers[broker], &exchange, here).await;
        if name == "create" {
            for (partition, leader) in (0..).zip([2, 0, 2, 0, 0, 0]) {
                cluster.move_leader("ct0965", partition, leader).unwrap();
            }
        }
        replayed += 1;
    }
    assert_eq!(replayed, 23);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_word_in_an_envelope_is_answered_before_the_connection_closes() {
    let exchanges = recording("standalone");
    let exchange = exchanges.iter().find(|e| e["name"] == "unknown_command_enveloped").unwrap();
    let cluster = Cluster::start(options(1, &[])).await.unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let mut sent = unhex(exchange["request_frame"].as_str().unwrap());
    sent.extend(frame::encode_text("LIST").unwrap());
    client.send(&sent).await;
    assert_eq!(client.receive_text().await, exchange["response_text"].as_str().unwrap());
    assert_eq!(client.receive().await, None);
}
