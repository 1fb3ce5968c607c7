//! Commits and what is seen of them.

use std::collections::BTreeMap;
use std::time::Duration;

use cursus_embedded::{Cluster, Options};

use crate::client::{Client, numbered, piped, with_topic};

#[tokio::test(start_paused = true)]
async fn commits_are_checked_in_the_brokers_order_and_words() {
    let cluster = with_topic(1, 2).await;
    cluster.create_topic("u", 1).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    let batch = format!("BATCH_COMMIT topic=t group=g member={member} generation=1");
    let commit = format!("COMMIT_OFFSET topic=t group=g member={member} generation=1");
    for (command, error) in [
        ("COMMIT_OFFSET x=1".to_owned(), "missing_topic command=COMMIT_OFFSET".to_owned()),
        ("COMMIT_OFFSET topic=t".into(), "missing_partition command=COMMIT_OFFSET".into()),
        ("COMMIT_OFFSET topic=t partition=-1".into(), "invalid_partition".into()),
        ("COMMIT_OFFSET topic=t partition=0".into(), "missing_group command=COMMIT_OFFSET".into()),
        ("COMMIT_OFFSET topic=t partition=0 group=g".into(), "missing_offset command=COMMIT_OFFSET".into()),
        ("COMMIT_OFFSET topic=t partition=0 group=g offset=-1".into(), "invalid_offset".into()),
        (
            "COMMIT_OFFSET topic=u partition=0 group=g offset=1".into(),
            "topic_not_assigned_to_group expected=t actual=u".into(),
        ),
        ("COMMIT_OFFSET topic=t partition=0 group=g offset=1".into(), "missing_member command=COMMIT_OFFSET".into()),
        (
            "COMMIT_OFFSET topic=t partition=0 group=g offset=1 member=m".into(),
            "missing_generation command=COMMIT_OFFSET".into(),
        ),
        (
            format!("{commit} partition=5 offset=1"),
            format!("NOT_OWNER partition=5 member={member} group=g generation=1"),
        ),
        ("BATCH_COMMIT topic=t group=g member=m P0:1".into(), "missing_generation command=BATCH_COMMIT".into()),
        (format!("{batch} P0:1,"), "invalid_batch_commit_entry entry=\"\"".into()),
        (format!("{batch} P0:1:2"), "invalid_batch_commit_entry entry=\"P0:1:2\"".into()),
        (format!("{batch} p0:1"), "invalid_partition entry=\"p0:1\"".into()),
        (format!("{batch} P-1:1"), "invalid_partition entry=\"P-1:1\"".into()),
        (format!("{batch} P0:x"), "invalid_offset entry=\"P0:x\"".into()),
        (format!("{batch} P0:1,P7:1"), format!("NOT_OWNER partition=7 member={member} group=g generation=1")),
        (format!("{batch} P0:1,P0:1"), "duplicate_partition partition=0 group=g topic=t".into()),
        ("FETCH_OFFSET topic=t partition=x group=g".into(), "invalid_partition".into()),
        ("FETCH_OFFSET topic=t partition=0".into(), "missing_group command=FETCH_OFFSET".into()),
        ("FETCH_OFFSET topic=t partition=0 group=x".into(), "group_not_found group=x".into()),
        ("FETCH_OFFSET topic=u partition=0 group=g".into(), "topic_not_assigned_to_group expected=t actual=u".into()),
    ] {
        assert_eq!(client.ask(&command).await, format!("ERROR: {error}"), "{command}");
    }
    assert_eq!(cluster.committed("g", "t"), BTreeMap::new(), "nothing of a refused batch is taken");
    assert_eq!(client.ask(&format!("{commit} partition=0 offset=1 validate_only=true")).await, "OK validated=true");
    assert_eq!(client.ask("FETCH_OFFSET topic=t partition=-1 group=g").await, "OK offset=0");
    assert_eq!(client.ask("FETCH_OFFSET topic=t partition=99 group=g").await, "OK offset=0");
}

#[tokio::test(start_paused = true)]
async fn a_space_between_the_pairs_silently_loses_all_but_the_last() {
    let cluster = with_topic(1, 2).await;
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    let batch = format!("BATCH_COMMIT topic=t group=g member={member} generation=1");
    assert_eq!(client.ask(&format!("{batch} P0:1, P1:2")).await, "OK batched=1");
    assert_eq!(cluster.committed("g", "t"), BTreeMap::from([(1, 2)]));
    assert_eq!(client.ask(&format!("{batch} P0:1,P1:3 ")).await, "OK batched=2");
    assert_eq!(cluster.committed("g", "t"), BTreeMap::from([(0, 1), (1, 3)]));
}

#[tokio::test(start_paused = true)]
async fn a_regression_is_refused_and_a_cluster_words_that_of_a_batch_differently() {
    for (brokers, code) in [(1, "offset_regression"), (3, "raft_apply_failed")] {
        let cluster = with_topic(brokers, 2).await;
        let mut client = Client::connect(&cluster, cluster.coordinator("g")).await;
        let member = client.join("g", "m").await;
        let batch = format!("BATCH_COMMIT topic=t group=g member={member} generation=1");
        assert_eq!(client.ask(&format!("{batch} P0:5,P1:5")).await, "OK batched=2");
        assert_eq!(client.ask(&format!("{batch} P0:5,P1:5")).await, "OK batched=2", "the same again is fine");
        assert_eq!(
            client.ask(&format!("{batch} P0:9,P1:4")).await,
            format!(
                "ERROR: {code} reason=\"offset regression for group=g topic=t partition=1: current=5 attempted=4\""
            )
        );
        let commit = format!("COMMIT_OFFSET topic=t partition=1 group=g member={member} generation=1 offset=4");
        assert_eq!(
            client.ask(&commit).await,
            "ERROR: offset_regression reason=\"offset regression group=g topic=t partition=1 current=5 got=4\""
        );
        assert_eq!(cluster.committed("g", "t"), BTreeMap::from([(0, 5), (1, 5)]));
    }
}

#[tokio::test(start_paused = true)]
async fn commits_beyond_the_end_are_taken_and_a_new_topic_keeps_the_old_ones() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    client.ask(&format!("COMMIT_OFFSET topic=t partition=0 group=g member={member} generation=1 offset=500")).await;
    client.ask("DELETE topic=t").await;
    let heartbeat = format!("HEARTBEAT topic=t group=g member={member} generation=1");
    assert!(client.ask(&heartbeat).await.starts_with("OK"), "a group outlives its topic");
    cluster.create_topic("t", 1).unwrap();
    cluster.produce("t", 0, numbered(3)).unwrap();
    assert_eq!(client.ask("FETCH_OFFSET topic=t partition=0 group=g").await, "OK offset=500");
    assert_eq!(client.offsets("partition=0 offset=0 group=g").await, [0; 0], "silence for ever");
    let beyond = client.ask("CONSUME topic=t partition=0 offset=0 member=m group=g isolation=read_uncommitted").await;
    assert_eq!(beyond, "ERROR: OFFSET_OUT_OF_RANGE requested=500 earliest=0 latest=3");
}

#[tokio::test(start_paused = true)]
async fn a_lagging_cluster_shows_a_commit_later() {
    let coordinator_commit_lag = Duration::from_millis(100);
    for (brokers, before) in [(3, 0), (1, 2)] {
        let cluster = Cluster::start(Options { coordinator_commit_lag, ..piped(brokers) }).await.unwrap();
        cluster.create_topic("t", 1).unwrap();
        cluster.produce("t", 0, numbered(4)).unwrap();
        cluster.move_coordinator("g", 0).unwrap();
        let mut client = Client::connect(&cluster, 0).await;
        let member = client.join("g", "m").await;
        let commit = format!("COMMIT_OFFSET topic=t partition=0 group=g member={member} generation=1 offset=2");
        assert_eq!(client.ask(&commit).await, "OK");
        let fetch = "FETCH_OFFSET topic=t partition=0 group=g";
        assert_eq!(client.ask(fetch).await, format!("OK offset={before}"));
        let mut reader = Client::connect(&cluster, 0).await;
        assert_eq!(reader.offsets("partition=0 offset=0 group=g batch=1").await, [before]);
        assert_eq!(cluster.committed("g", "t"), BTreeMap::from([(0, 2)]));
        cluster.advance(coordinator_commit_lag);
        assert_eq!(client.ask(fetch).await, "OK offset=2");
    }
}
