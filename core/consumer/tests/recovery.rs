//! Brokers, topics and groups that are not there yet, or are others than they should be: what start and poll say of it.

mod common;

use std::time::Duration;

use common::*;
use cursus_consumer::{ErrorKind, State};

#[tokio::test]
async fn without_a_broker_start_raises_poll_ends_in_time_and_the_statistics_say_why() {
    let cluster = cluster_with(1, 1, 10).await;
    cluster.kill_broker(0).await.unwrap();
    let consumer = consumer(&cluster);
    let error =
        soon("start's own time", consumer.start(Some(Duration::from_millis(200)))).await.expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().contains("connection refused"), "{error}");
    let poll = consumer.poll(Some(Duration::from_millis(100)));
    assert!(soon("poll's own time", poll).await.unwrap().is_empty());
    let statistics = consumer.statistics();
    assert!(statistics.last_error.unwrap().contains("refused") && statistics.failing_seconds.unwrap() > 0.1);
    // It recovers by itself.
    cluster.restart_broker(0).await.unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    until("it to be over", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn an_unknown_topic_is_fatal_after_a_while_and_stays_readable() {
    for brokers in [1, 3] {
        let cluster = cluster(brokers).await;
        let consumer = consumer_with(&cluster, &[("topic_missing_timeout_ms", 100u64.into())]);
        let error = soon("the error", consumer.poll(None)).await.expect_err("there is no such topic");
        assert_eq!(error.kind(), ErrorKind::UnknownTopic);
        assert!(error.message().contains("\"t\"") && error.is_fatal(), "{error}");
        until("it to be closed", &consumer, |c| c.state() == State::Closed).await;
        assert_eq!(consumer.poll(None).await.expect_err("still").kind(), ErrorKind::UnknownTopic);
        assert_eq!(consumer.fatal_error().unwrap().kind(), ErrorKind::UnknownTopic);
        closed(&consumer).await;
    }
}

#[tokio::test]
async fn a_topic_made_a_little_later_is_found() {
    let cluster = cluster(3).await;
    let consumer = consumer(&cluster);
    assert!(consumer.poll(Some(Duration::from_millis(50))).await.unwrap().is_empty());
    cluster.create_topic("t", 2).unwrap();
    cluster.fill("t", 10, 10).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_group_of_another_topic_is_fatal_and_names_all_three() {
    let cluster = cluster_with(3, 1, 10).await;
    cluster.create_topic("other", 1).unwrap();
    let first = consumer(&cluster);
    started(&first).await;
    let second = consumer_with(&cluster, &[("topic", "other".into())]);
    let error = soon("the error", second.start(None)).await.expect_err("one group, one topic");
    assert_eq!(error.kind(), ErrorKind::GroupTopicMismatch);
    for name in ["\"g\"", "\"t\"", "\"other\""] {
        assert!(error.message().contains(name), "{error}");
    }
    closed(&first).await;
}

#[tokio::test]
async fn start_says_whether_nobody_was_there_or_it_only_took_too_long() {
    let cluster = cluster(1).await;
    let consumer = consumer(&cluster);
    let error = soon("start", consumer.start(Some(Duration::from_millis(300)))).await.expect_err("no such topic yet");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.message().contains("topic_not_found"), "{error}");
    closed(&consumer).await;
}
