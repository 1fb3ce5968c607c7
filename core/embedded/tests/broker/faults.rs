//! Faults on command.

use std::time::Duration;

use cursus_wire::batch::RecordBatch;
use tokio::time::timeout;

use crate::client::{Client, cluster, numbered, until, with_topic};

#[tokio::test(start_paused = true)]
async fn the_next_of_a_command_fail_on_any_broker_and_are_not_carried_out() {
    let cluster = with_topic(3, 1).await;
    cluster.fail_next("publish", 2, "raft_apply_failed reason=\"no leader\"").unwrap();
    let publish = "PUBLISH topic=t producerId=p message=x";
    let (mut first, mut second) = (Client::connect(&cluster, 0).await, Client::connect(&cluster, 1).await);
    second.ask("NEGOTIATE version=1 features=*").await;
    assert_eq!(first.ask(publish).await, "ERROR: raft_apply_failed reason=\"no leader\"");
    assert_eq!(
        second.ask(publish).await,
        "ERROR: raft_apply_failed class=internal retryable=false reason=\"no leader\""
    );
    assert_eq!(cluster.end_offsets("t")[&0], 0);
    assert!(first.ask(publish).await.contains("\"status\":\"OK\""));
    assert_eq!(cluster.end_offsets("t")[&0], 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_was_carried_out() {
    let cluster = with_topic(1, 1).await;
    cluster.lose_reply("JOIN_GROUP", 1).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    client.tell("JOIN_GROUP topic=t group=g member=ghost").await;
    assert_eq!(client.receive().await, None);
    assert_eq!(cluster.group("g").unwrap().members.len(), 1);
    Client::connect(&cluster, 0).await.join("g", "m").await;
    assert_eq!(cluster.group("g").unwrap().members.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_reply_cannot_be_read() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(2)).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    for command in ["LIST", "GROUP_STATUS group=x", "PUBLISH topic=t producerId=p message=x"] {
        cluster.corrupt_next(command.split(' ').next().unwrap(), 1).unwrap();
        client.tell(command).await;
        assert!(String::from_utf8(client.receive().await.unwrap().to_vec()).is_err(), "{command}");
    }
    cluster.corrupt_next("CONSUME", 2).unwrap();
    for _ in 0..2 {
        client.tell("CONSUME topic=t partition=0 offset=0 member=m").await;
        assert!(RecordBatch::parse(client.receive().await.unwrap()).is_err());
    }
    assert!(client.offsets("partition=0 offset=0").await.is_empty(), "the cursor has moved all the same");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_reply_comes_twice() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    cluster.repeat_reply("LIST", 1).unwrap();
    let first = client.ask("LIST").await;
    assert_eq!(client.ask("METADATA topic=t").await, first, "what was asked next is answered by the repetition");
    assert!(client.ask("LIST").await.contains("partitions=1"), "and so on: everything comes one request late");
}

#[tokio::test(start_paused = true)]
async fn a_held_command_is_carried_out_after_its_release() {
    let cluster = with_topic(1, 1).await;
    let hold = cluster.hold("JOIN_GROUP");
    let mut held = Client::connect(&cluster, 0).await;
    held.tell("JOIN_GROUP topic=t group=g member=m").await;
    hold.reached().await;
    assert!(cluster.group("g").is_none());
    Client::connect(&cluster, 0).await.join("other", "m").await;
    hold.release();
    assert!(held.receive_text().await.starts_with("OK generation=1"));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_hold_releases_and_a_stopping_broker_does_not_wait_for_one() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    drop(cluster.hold("LIST"));
    assert!(client.ask("LIST").await.starts_with("OK"));
    let unknown = cluster.hold("NO_SUCH_COMMAND");
    let hold = cluster.hold("LIST");
    client.tell("LIST").await;
    hold.reached().await;
    cluster.stop_broker(0).await.unwrap();
    assert_eq!(client.receive().await, None);
    assert!(!unknown.is_reached());
}

#[tokio::test(start_paused = true)]
async fn connections_are_cut_on_one_broker_or_on_all() {
    let cluster = cluster(3).await;
    let mut clients = Vec::new();
    for broker in 0..3 {
        let mut client = Client::connect(&cluster, broker).await;
        client.ask("LIST").await;
        clients.push(client);
    }
    cluster.cut_connections(Some(1)).unwrap();
    assert_eq!(clients[1].receive().await, None);
    assert!(clients[0].ask("LIST").await.starts_with("OK"));
    cluster.cut_connections(None).unwrap();
    assert_eq!(clients[0].receive().await, None);
    assert_eq!(clients[2].receive().await, None);
    assert!(Client::connect(&cluster, 1).await.ask("LIST").await.starts_with("OK"));
    until(&cluster, "the cut ones to be gone", |cluster| cluster.connections(2) == 0).await;
}

#[tokio::test(start_paused = true)]
async fn requests_are_remembered_in_order() {
    let cluster = with_topic(2, 1).await;
    let mut client = Client::connect(&cluster, 1).await;
    client.ask("LIST").await;
    cluster.clear_requests();
    client.ask("metadata topic=t").await;
    client.ask_body(&cursus_wire::batch::encode("t", 0, "1", false, &[])).await;
    client.ask_body(b"").await;
    client.ask_body(b"\0\0BOGUS").await;
    let requests = cluster.requests();
    let seen: Vec<_> = requests.iter().map(|r| (r.broker, r.command.as_str(), r.text.as_str())).collect();
    assert_eq!(
        seen,
        [(1, "METADATA", "metadata topic=t"), (1, "BATCH", ""), (1, "UNDECODABLE", ""), (1, "MALFORMED", "BOGUS")]
    );
    assert!(requests.iter().all(|request| request.connection == requests[0].connection));
}

#[tokio::test(start_paused = true)]
async fn what_was_waited_for_in_vain_is_told() {
    let cluster = with_topic(1, 1).await;
    let waiting = timeout(Duration::from_secs(1), cluster.wait_for("pigs to fly", |_| false));
    assert!(waiting.await.is_err());
    let told = format!("{cluster:?}");
    assert!(told.contains("pigs to fly") && told.contains("t up to [0]"), "{told}");
    // A wait whose condition is true already ends at once, and one that becomes true with the change.
    cluster.wait_for("nothing", |_| true).await;
    let (there, other) = (cluster.clone(), cluster.clone());
    let waiting = tokio::spawn(async move { there.wait_for("a record", |c| c.end_offsets("t")[&0] == 1).await });
    tokio::task::yield_now().await;
    other.produce("t", 0, numbered(1)).unwrap();
    waiting.await.unwrap();
}
