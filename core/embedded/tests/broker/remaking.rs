//! Topics that are deleted and made anew, that grow, and whose records are forgotten.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::client::{Client, batch, field, numbered, until, with_topic};

#[tokio::test(start_paused = true)]
async fn a_topic_made_anew_starts_over_and_what_points_into_the_old_one_stays() {
    let cluster = with_topic(3, 1).await;
    cluster.produce("t", 0, numbered(5)).unwrap();
    cluster.move_coordinator("g", 0).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    client.ask(&format!("COMMIT_OFFSET topic=t partition=0 group=g member={member} generation=1 offset=4")).await;
    assert_eq!(client.offsets("partition=0 offset=0").await, [0, 1, 2, 3, 4]);
    cluster.move_leader("t", 0, 1).unwrap();
    assert_eq!(field(&client.ask("METADATA topic=t").await, "epochs"), "2");
    cluster.delete_topic("t").unwrap();
    cluster.create_topic("t", 2).unwrap();
    cluster.produce("t", 0, numbered(6)).unwrap();
    let metadata = client.ask("METADATA topic=t").await;
    assert_eq!(field(&metadata, "epochs"), "1,1", "the epoch starts over, below the old one");
    assert_eq!(client.offsets("partition=0 offset=0").await, [5], "the connection's cursor is the old topic's");
    assert_eq!(client.ask("FETCH_OFFSET topic=t partition=0 group=g").await, "OK offset=4");
    assert_eq!(cluster.committed("g", "t")[&0], 4);
    let mut fresh = Client::connect(&cluster, 0).await;
    assert_eq!(fresh.offsets("partition=0 offset=0 group=g").await, [4, 5]);
    let mut fresh = Client::connect(&cluster, 0).await;
    assert_eq!(fresh.offsets("partition=0 offset=0 group=other").await, [0, 1, 2, 3, 4, 5]);
    let heartbeat = format!("HEARTBEAT topic=t group=g member={member} generation=1");
    assert!(client.ask(&heartbeat).await.starts_with("OK"), "the group didn't notice");
    let other = client.join("g", "n").await;
    assert_eq!(cluster.group("g").unwrap().members[&other], [0; 0], "and has one partition as before");
}

#[tokio::test(start_paused = true)]
async fn an_open_stream_outlives_its_topic_and_sees_nothing_of_the_new_one() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(2)).unwrap();
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell("STREAM topic=t partition=0 group=s offset=0").await;
    assert_eq!(batch(stream.receive().await.unwrap()).len(), 2);
    cluster.delete_topic("t").unwrap();
    cluster.create_topic("t", 1).unwrap();
    cluster.produce("t", 0, numbered(5)).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        assert!(stream.receive().await.expect("the stream stays").is_empty(), "signs of life and nothing else");
    }
    let mut again = Client::connect(&cluster, 0).await;
    again.tell("STREAM topic=t partition=0 group=s offset=2").await;
    assert_eq!(batch(again.receive().await.unwrap()).len(), 3);
    while let Some(frame) = stream.receive().await {
        assert!(frame.is_empty() || frame.starts_with(b"STREAM_CONTROL type=CLOSE reason=replaced offset=2"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_consume_looks_for_its_topic_again() {
    let cluster = with_topic(1, 2).await;
    let mut client = Client::connect(&cluster, 0).await;
    let waiting = "CONSUME topic=t partition=1 offset=0 member=m wait_ms=60000";
    client.tell(waiting).await;
    until(&cluster, "the request", |cluster| cluster.requests().len() == 1).await;
    cluster.delete_topic("t").unwrap();
    cluster.create_topic("t", 2).unwrap();
    cluster.produce("t", 1, numbered(1)).unwrap();
    assert_eq!(batch(client.receive().await.unwrap()).len(), 1, "of the new topic");
    client.tell(waiting).await;
    until(&cluster, "the request", |cluster| cluster.requests().len() == 2).await;
    cluster.delete_topic("t").unwrap();
    assert_eq!(client.receive_text().await, "ERROR: command_failed reason=\"topic 't' does not exist\"");
    cluster.create_topic("t", 2).unwrap();
    client.tell(waiting).await;
    until(&cluster, "the request", |cluster| cluster.requests().len() == 3).await;
    cluster.delete_topic("t").unwrap();
    cluster.create_topic("t", 1).unwrap();
    assert_eq!(
        client.receive_text().await,
        "ERROR: command_failed reason=\"partition 1 out of range for topic 't' (0-0)\""
    );
}

#[tokio::test(start_paused = true)]
async fn growth_is_seen_by_metadata_and_new_groups_and_not_by_one_that_exists() {
    let cluster = with_topic(3, 2).await;
    cluster.move_coordinator("old", 0).unwrap();
    cluster.move_coordinator("new", 0).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("old", "m").await;
    cluster.create_topic("t", 4).unwrap();
    let metadata = client.ask("METADATA topic=t").await;
    assert_eq!((field(&metadata, "partitions"), field(&metadata, "epochs")), ("4", "1,1,1,1"));
    let synced = client.ask(&format!("SYNC_GROUP topic=t group=old member={member} generation=1")).await;
    assert!(synced.ends_with("assignments=[0 1]"), "{synced}");
    let beyond = format!("COMMIT_OFFSET topic=t partition=3 group=old member={member} generation=1 offset=1");
    assert_eq!(
        client.ask(&beyond).await,
        format!("ERROR: NOT_OWNER partition=3 member={member} group=old generation=1")
    );
    assert_eq!(
        client.ask("REGISTER_GROUP topic=t group=old").await,
        "ERROR: register_group_failed reason=\"partition count mismatch (existing: 2, requested: 4)\""
    );
    // Neither the last one's leaving nor a restart of the coordinator lets it grow.
    client.ask(&format!("LEAVE_GROUP topic=t group=old member={member} generation=1")).await;
    cluster.kill_broker(0).await.unwrap();
    cluster.restart_broker(0).await.unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    assert!(client.ask("JOIN_GROUP topic=t group=old member=m").await.ends_with("assignments=[0 1]"));
    assert!(client.ask("JOIN_GROUP topic=t group=new member=m").await.ends_with("assignments=[0 1 2 3]"));
}

#[tokio::test(start_paused = true)]
async fn whoever_reads_below_the_earliest_record_is_told_the_bounds() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(10)).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.offsets("partition=0 offset=0 batch=2").await, [0, 1]);
    let mut stream = Client::connect(&cluster, 0).await;
    stream.tell("STREAM topic=t partition=0 group=s offset=0 batch=100").await;
    assert_eq!(batch(stream.receive().await.unwrap()).len(), 10);
    cluster.delete_records("t", 0, 6).unwrap();
    let consume = "CONSUME topic=t partition=0 offset=9 member=m";
    for isolation in ["read_committed", "read_uncommitted"] {
        assert_eq!(
            client.ask(&format!("{consume} isolation={isolation}")).await,
            "ERROR: OFFSET_OUT_OF_RANGE requested=2 earliest=6 latest=10",
            "the cursor counts, and an error leaves it where it is"
        );
    }
    let mut fresh = Client::connect(&cluster, 0).await;
    assert_eq!(fresh.offsets("partition=0 offset=6").await, [6, 7, 8, 9]);
    // A stream that is past what was forgotten doesn't notice; one that isn't any more is closed.
    cluster.produce("t", 0, numbered(1)).unwrap();
    loop {
        let frame = stream.receive().await.expect("the stream goes on");
        if !frame.is_empty() {
            assert_eq!(batch(frame).bounds(), Some((10, 10)));
            break;
        }
    }
    let mut late = Client::connect(&cluster, 0).await;
    cluster.delete_records("t", 0, 11).unwrap();
    late.tell("STREAM topic=t partition=0 group=late offset=10").await;
    assert_eq!(
        late.receive_text().await,
        "STREAM_CONTROL type=CLOSE reason=offset_out_of_range offset=10 requested=10 earliest=11 latest=11"
    );
    assert_eq!(late.receive().await, None);
    let mut at_the_end = Client::connect(&cluster, 0).await;
    assert_eq!(at_the_end.offsets("partition=0 offset=11").await, [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_consume_that_waits_is_told_when_its_place_is_forgotten() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(3)).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    client.tell("CONSUME topic=t partition=0 offset=3 member=m wait_ms=60000").await;
    until(&cluster, "the request", |cluster| !cluster.requests().is_empty()).await;
    assert!(timeout(Duration::from_secs(1), client.receive()).await.is_err());
    // Both before it looks again.
    cluster.produce("t", 0, numbered(2)).unwrap();
    cluster.delete_records("t", 0, 5).unwrap();
    assert_eq!(client.receive_text().await, "ERROR: OFFSET_OUT_OF_RANGE requested=3 earliest=5 latest=5");
}
