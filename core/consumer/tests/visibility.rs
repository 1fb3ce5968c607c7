//! Transactions as a reader sees them, and positions that would wait in silence for ever.

mod common;

use std::collections::BTreeMap;

use common::*;
use cursus_consumer::{Commit, Consumer, State};

async fn spoken(consumer: &Consumer, words: &[&str]) {
    until(&format!("{words:?} to be said"), consumer, |c| {
        c.statistics().last_error.is_some_and(|error| words.iter().all(|word| error.contains(word)))
            && c.statistics().failing_seconds.is_some()
    })
    .await;
}

#[tokio::test]
async fn what_transactions_leave_behind_is_a_gap_and_no_loss_and_lag_reaches_zero_behind_it() {
    let cluster = cluster_with(1, 1, 10).await;
    cluster.append_marker("t", 0).unwrap();
    cluster.append_aborted("t", 0, [("never", "seen"), ("nor", "this")]).unwrap();
    cluster.fill("t", 5, 10).unwrap();
    cluster.append_marker("t", 0).unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 15).await;
    let visible: Vec<u64> = (0..10).chain(14..19).collect();
    assert_eq!(seen.0[&tp(0)], visible);
    let ends = consumer.end_offsets(&[tp(0)], Some(PATIENCE)).await.unwrap();
    assert_eq!((ends[&tp(0)], consumer.position(&tp(0))), (20, Some(19)), "a marker stands at the end");
    assert_eq!(consumer.lag(Some(PATIENCE)).await.unwrap(), BTreeMap::from([(tp(0), 0)]));
    assert_eq!(consumer.statistics().skipped_offsets, 4);
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    let group = consumer.describe_group(Some(PATIENCE)).await.unwrap();
    assert_eq!(group.partitions[&tp(0)].lag, Some(0), "nor is the group behind");
    cluster.fill("t", 1, 10).unwrap();
    read(&consumer, &mut seen, 16).await;
    assert_eq!(seen.0[&tp(0)].last(), Some(&20));
    closed(&consumer).await;
}

#[tokio::test]
async fn read_uncommitted_shows_control_records_and_says_what_they_are() {
    let cluster = cluster_with(1, 1, 2).await;
    cluster.append_marker("t", 0).unwrap();
    cluster.fill("t", 1, 10).unwrap();
    let consumer = consumer_with(&cluster, &[("read_isolation", "read_uncommitted".into())]);
    let mut control = Vec::new();
    while control.len() < 4 {
        control.push(soon("a record", consumer.next_record()).await.unwrap().unwrap().is_control());
    }
    assert_eq!(control, [false, false, true, false]);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_beyond_the_end_is_spoken_up_about_until_the_log_gets_there() {
    let cluster = cluster_with(1, 1, 10).await;
    let first = consumer(&cluster);
    started(&first).await;
    // The engine refuses such a commit, other clients don't.
    let (member, generation) = (first.statistics().member.unwrap(), first.statistics().generation.unwrap());
    let foreign =
        format!("COMMIT_OFFSET topic=t partition=0 group=g offset=14 member={member} generation={generation}");
    send(&cluster, &foreign).await;
    closed(&first).await;
    let consumer = consumer_with(&cluster, &[("metadata_refresh_ms", 100u64.into())]);
    started(&consumer).await;
    spoken(&consumer, &["t-0", "14", "ends at 10"]).await;
    cluster.fill("t", 10, 10).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 6).await;
    assert_eq!(seen.0[&tp(0)], (14..20).collect::<Vec<_>>());
    until("it to be over", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_topic_made_anew_under_its_readers_is_spoken_up_about() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer_with(&cluster, &[("metadata_refresh_ms", 100u64.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    cluster.delete_topic("t").unwrap();
    cluster.create_topic("t", 1).unwrap();
    cluster.fill("t", 10, 10).unwrap();
    spoken(&consumer, &["t-0", "made anew"]).await;
    // The way out that the message names.
    consumer.seek(&tp(0), 0).unwrap();
    let mut anew = Seen::default();
    read(&consumer, &mut anew, 10).await;
    assert_eq!(anew.0[&tp(0)], (0..10).collect::<Vec<_>>());
    until("it to be over", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn partitions_that_a_group_does_not_know_of_are_spoken_up_about() {
    let cluster = cluster_with(1, 2, 20).await;
    let consumer = consumer_with(&cluster, &[("metadata_refresh_ms", 100u64.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    cluster.create_topic("t", 3).unwrap();
    spoken(&consumer, &["3 partitions", "the 2 that it had"]).await;
    assert_eq!((consumer.state(), consumer.assignment().len()), (State::Running, 2));
    // A group that is made now knows them all.
    let other = consumer_with(&cluster, &[("group_id", "other".into())]);
    started(&other).await;
    assert_eq!(other.assignment().len(), 3);
    closed(&consumer).await;
    closed(&other).await;
}

/// Sends one command as any client could.
async fn send(cluster: &cursus_embedded::Cluster, text: &str) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    #[allow(clippy::disallowed_methods)] // Not the engine's.
    let mut socket = tokio::net::TcpStream::connect(&cluster.brokers()[0]).await.unwrap();
    let mut frame = (text.len() as u32 + 2).to_be_bytes().to_vec();
    frame.extend([0, 0]);
    frame.extend(text.as_bytes());
    socket.write_all(&frame).await.unwrap();
    let mut reply = vec![0; 4];
    socket.read_exact(&mut reply).await.unwrap();
    reply.resize(u32::from_be_bytes(reply[..4].try_into().unwrap()) as usize, 0);
    socket.read_exact(&mut reply).await.unwrap();
    assert!(reply.starts_with(b"OK"), "{}", String::from_utf8_lossy(&reply));
}
