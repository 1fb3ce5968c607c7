//! CONSUME: where it starts, how it waits, what it skips.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::client::{Client, batch, numbered, with_topic};

#[tokio::test(start_paused = true)]
async fn the_connections_own_cursor_beats_offset_and_group_once_it_has_returned_something() {
    let cluster = with_topic(1, 2).await;
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.offsets("partition=0 offset=3 group=a").await, [0; 0], "an empty reply sets no cursor");
    cluster.produce("t", 0, numbered(6)).unwrap();
    cluster.produce("t", 1, numbered(6)).unwrap();
    assert_eq!(client.offsets("partition=0 offset=1 group=a batch=2").await, [1, 2]);
    assert_eq!(client.offsets("partition=0 offset=0 group=b batch=2").await, [3, 4]);
    assert_eq!(client.offsets("partition=1 offset=4 group=b").await, [4, 5], "each partition has its own");
    let uncommitted = "partition=0 offset=0 group=c isolation=read_uncommitted";
    assert_eq!(client.offsets(uncommitted).await, [5], "isolation has no part in it");
    assert_eq!(client.offsets(uncommitted).await, [0; 0]);
    let mut fresh = Client::connect(&cluster, 0).await;
    assert_eq!(fresh.offsets("partition=0 offset=4 group=a").await, [4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_committed_offset_beats_a_lower_and_a_higher_one_and_zero_counts() {
    let cluster = with_topic(1, 2).await;
    cluster.produce("t", 0, numbered(6)).unwrap();
    cluster.produce("t", 1, numbered(3)).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    client.ask(&format!("BATCH_COMMIT topic=t group=g member={member} generation=1 P0:4,P1:0")).await;
    for (arguments, offsets) in [
        ("partition=0 offset=0 group=g", &[4, 5][..]),
        ("partition=0 offset=5 group=g", &[4, 5]),
        ("partition=1 offset=2 group=g", &[0, 1, 2]),
        ("partition=0 offset=5 group=g~m", &[5]),
        ("partition=0 offset=5", &[5]),
    ] {
        let mut fresh = Client::connect(&cluster, 0).await;
        assert_eq!(fresh.offsets(arguments).await, offsets, "{arguments}");
    }
    assert_eq!(client.ask("LIST_GROUPS").await, "OK count=1 groups=g", "reading makes no group");
}

#[tokio::test(start_paused = true)]
async fn arguments_are_checked_in_the_brokers_order_and_words() {
    let cluster = with_topic(1, 3).await;
    let mut client = Client::connect(&cluster, 0).await;
    for (arguments, error) in [
        ("topic=t partition=0 offset=0", "invalid_consume_syntax"),
        ("topic=t partition=0 offset= member=m", "invalid_consume_syntax"),
        ("topic=t partition=x offset=0 member=m isolation=x", "invalid_isolation isolation=x"),
        ("topic=t partition=x offset=0 member=m", "command_failed reason=\"invalid partition value: x\""),
        ("topic=t partition=0 offset=-1 member=m", "command_failed reason=\"invalid offset value: -1\""),
        ("topic=t partition=0 offset=0 member=m generation=x", "command_failed reason=\"invalid generation value: x\""),
        ("topic=x partition=0 offset=0 member=m", "command_failed reason=\"topic 'x' does not exist\""),
        (
            "topic=t partition=9 offset=0 member=m",
            "command_failed reason=\"partition 9 out of range for topic 't' (0-2)\"",
        ),
        (
            "topic=t partition=-1 offset=0 member=m",
            "command_failed reason=\"partition -1 out of range for topic 't' (0-2)\"",
        ),
        ("topic=zz* partition=0 offset=0 member=m", "command_failed reason=\"no topics match pattern 'zz*'\""),
    ] {
        assert_eq!(client.ask(&format!("CONSUME {arguments}")).await, format!("ERROR: {error}"), "{arguments}");
    }
    let odd = "partition=0 offset=0 batch=x wait_ms=-5 isolation=READ_COMMITTED generation=-1";
    assert_eq!(client.offsets(odd).await, [0; 0], "what can't be read is the default");
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_8192_records_at_most_unless_more_are_asked_for() {
    let cluster = with_topic(1, 1).await;
    cluster.fill("t", 20_000, 30).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.offsets("partition=0 offset=0").await.len(), 8_192);
    assert_eq!(client.offsets("partition=0 offset=0 batch=10000").await.len(), 10_000);
    assert_eq!(client.offsets("partition=0 offset=0 batch=0").await.len(), 1_808);
}

#[tokio::test(start_paused = true)]
async fn a_wait_looks_every_hundred_milliseconds() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let start = Instant::now();
    assert_eq!(client.offsets("partition=0 offset=0 wait_ms=250").await, [0; 0]);
    assert_eq!(start.elapsed().as_millis(), 250);
    let start = Instant::now();
    client.tell("CONSUME topic=t partition=0 offset=0 member=m wait_ms=5000").await;
    sleep(Duration::from_millis(130)).await;
    cluster.produce("t", 0, numbered(1)).unwrap();
    assert_eq!(batch(client.receive().await.unwrap()).len(), 1);
    assert_eq!(start.elapsed().as_millis(), 200, "it is seen at the next look");
}

#[tokio::test(start_paused = true)]
async fn beyond_the_end_and_below_the_start_are_told_apart_by_isolation() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, numbered(6)).unwrap();
    cluster.delete_records("t", 0, 2).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.offsets("partition=0 offset=7").await, [0; 0]);
    assert_eq!(client.offsets("partition=0 offset=6 isolation=read_uncommitted").await, [0; 0]);
    for (offset, isolation) in [(7, "read_uncommitted"), (1, "read_uncommitted"), (1, "read_committed")] {
        let command = format!("CONSUME topic=t partition=0 offset={offset} member=m isolation={isolation}");
        let reply = client.ask(&command).await;
        assert_eq!(reply, format!("ERROR: OFFSET_OUT_OF_RANGE requested={offset} earliest=2 latest=6"));
    }
    assert_eq!(client.offsets("partition=0 offset=2").await, [2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_reply_over_the_limit_is_an_error_and_its_records_are_skipped_here() {
    let cluster = with_topic(1, 1).await;
    let large = "x".repeat(9 << 20);
    cluster.produce("t", 0, [("a", large.clone()), ("b", large)]).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let refused = client.ask("CONSUME topic=t partition=0 offset=0 member=m").await;
    let size = 2 * ((9 << 20) + 48 + "embedded".len() + 1) + 32;
    assert_eq!(
        refused,
        format!("ERROR: command_failed reason=\"failed to stream batch: data size {size} exceeds maximum 16777216\"")
    );
    assert_eq!(client.offsets("partition=0 offset=0").await, [0; 0], "the cursor has moved all the same");
    let mut fresh = Client::connect(&cluster, 0).await;
    assert_eq!(fresh.offsets("partition=0 offset=0 batch=1").await, [0]);
    assert_eq!(fresh.offsets("partition=0 offset=0 batch=1").await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_redirects_to_the_leader_and_what_is_unknown_to_oneself() {
    let cluster = with_topic(3, 3).await;
    cluster.produce("t", 1, numbered(2)).unwrap();
    let brokers = cluster.brokers();
    let mut client = Client::connect(&cluster, 0).await;
    let ask = |topic: &str, partition: i32| format!("CONSUME topic={topic} partition={partition} offset=0 member=m");
    assert_eq!(client.ask(&ask("t", 1)).await, format!("ERROR: NOT_LEADER LEADER_IS {}", brokers[1]));
    for (topic, partition) in [("nope", 0), ("t", 99), ("t", -1), ("*", 0)] {
        let reply = client.ask(&ask(topic, partition)).await;
        assert_eq!(reply, format!("ERROR: NOT_LEADER LEADER_IS {}", brokers[0]), "{topic} {partition}");
    }
    cluster.move_leader("t", 1, 0).unwrap();
    assert_eq!(cluster.leader("t", 1).unwrap(), 0);
    assert_eq!(client.offsets("partition=1 offset=0").await, [0, 1], "the connection stays usable");
    assert!(client.ask("METADATA topic=t").await.contains("epochs=1,2,1"));
}

#[tokio::test(start_paused = true)]
async fn a_pattern_reads_all_matches_each_with_its_own_cursor() {
    let cluster = with_topic(1, 1).await;
    cluster.create_topic("p1", 1).unwrap();
    cluster.create_topic("p2", 1).unwrap();
    cluster.produce("p1", 0, numbered(3)).unwrap();
    cluster.produce("p2", 0, [("", "z")]).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    // Offsets of several topics in one batch need not rise, so it can't be decoded like any other.
    client.tell("CONSUME topic=p? partition=0 offset=0 member=m batch=10").await;
    let body = client.receive().await.unwrap();
    assert_eq!(&body[2..6], b"\0\x02p?");
    assert_eq!(body[body.len() - 17 - 4..][..4], [0, 0, 0, 1], "the last value has one byte");
    let rest = client.read("CONSUME topic=p1 partition=0 offset=0 member=m").await;
    assert!(rest.is_empty(), "the cursors are those of the topics' real names");
}
