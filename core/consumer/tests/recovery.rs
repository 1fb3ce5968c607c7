//! Brokers die, leaders and coordinators move, connections break, replies are lost or damaged: reading goes on, and
//! nothing is lost.

mod common;

use std::time::Duration;

use common::*;
use cursus_consumer::{Consumer, Environment, ErrorKind, State};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_leader_is_followed() {
    let cluster = cluster_with(3, 3, 300).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 300).await;
    for partition in 0..3 {
        let leader = cluster.leader("t", partition).unwrap();
        cluster.move_leader("t", partition, (leader + 1) % 3).unwrap();
    }
    cluster.fill("t", 300, 10).unwrap();
    read(&consumer, &mut seen, 600).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_survived() {
    let cluster = cluster_with(3, 6, 600).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 600).await;
    let dead = (cluster.coordinator("g") + 1) % 3;
    cluster.kill_broker(dead).await.unwrap();
    cluster.fill("t", 600, 10).unwrap();
    read(&consumer, &mut seen, 1200).await;
    seen.assert_exactly_in_order();
    assert_eq!(consumer.statistics().rebalances, 0, "a leader's death is no rebalance");
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_coordinator_is_followed_without_a_new_generation() {
    let cluster = cluster_with(3, 3, 300).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 20u64.into())]);
    started(&consumer).await;
    let generation = consumer.statistics().generation;
    for step in 1..=2 {
        let to = (cluster.coordinator("g") + step) % 3;
        cluster.move_coordinator("g", to).unwrap();
        let batch = soon("records", consumer.poll(None)).await.unwrap();
        consumer.commit(&batch, Some(PATIENCE)).await.unwrap();
        for (partition, next) in batch.next_offsets() {
            assert_eq!(cluster.committed("g", "t")[&partition.partition], next);
        }
    }
    assert_eq!(consumer.statistics().generation, generation);
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_coordinator_is_down_reading_goes_on_and_the_commit_waits_for_its_return() {
    let cluster = cluster_with(3, 3, 30).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 30).await;
    let (dead, member) = (cluster.coordinator("g"), consumer.statistics().member);
    cluster.kill_broker(dead).await.unwrap();
    until("it to be noticed", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_some()).await;
    cluster.fill("t", 30, 10).unwrap();
    read(&consumer, &mut seen, 60).await;
    assert_eq!(consumer.state(), State::Running);
    let commit = consumer.begin_commit(cursus_consumer::Commit::All, Some(PATIENCE)).unwrap();
    cluster.restart_broker(dead).await.unwrap();
    soon("the commit", commit).await.unwrap();
    for (partition, end) in cluster.end_offsets("t") {
        assert_eq!(cluster.committed("g", "t").get(&partition), Some(&end));
    }
    assert_eq!(consumer.statistics().member, member, "resumed, not joined afresh");
    until("it to be over", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_none()).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_are_made_anew_and_the_membership_resumes() {
    let cluster = cluster_with(3, 6, 6_000).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 100u64.into())]);
    started(&consumer).await;
    let generation = consumer.statistics().generation;
    let mut seen = Seen::default();
    for part in 1..=10 {
        read(&consumer, &mut seen, part * 600).await;
        cluster.cut_connections(None).unwrap();
    }
    seen.assert_exactly_in_order();
    assert_eq!(consumer.statistics().generation, generation);
    assert_eq!(consumer.statistics().rebalances, 0);
    assert!(consumer.statistics().reconnects > 0);
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_loses_nothing() {
    let cluster = cluster_with(3, 6, 600).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    for broker in 0..3 {
        read(&consumer, &mut seen, 600 * (broker as u64 + 1)).await;
        cluster.stop_broker(broker).await.unwrap();
        cluster.restart_broker(broker).await.unwrap();
        cluster.fill("t", 600, 10).unwrap();
    }
    read(&consumer, &mut seen, 2400).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_and_damaged_replies_skip_no_record() {
    let cluster = cluster_with(1, 2, 5_000).await;
    let consumer = consumer_with(&cluster, &[("fetch_batch_size", 100u64.into())]);
    let mut seen = Seen::default();
    for part in 1..=5 {
        read(&consumer, &mut seen, part * 1000).await;
        // The connection's own cursor has moved past what these replies would have brought.
        cluster.lose_reply(reading(), 2).unwrap();
        cluster.corrupt_next(reading(), 2).unwrap();
        if mode() == "streaming" {
            // Only what opens a stream meets these, and the first records that it brings.
            cluster.cut_connections(None).unwrap();
        }
    }
    cluster.fill("t", 100, 10).unwrap();
    read(&consumer, &mut seen, 5_100).await;
    seen.assert_exactly_in_order();
    assert!(consumer.statistics().corrupt_frames > 0, "{:?}", consumer.statistics());
    assert_eq!(consumer.statistics().rebalances, 0);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_ghost_left_by_a_lost_join_reply_expires_and_every_partition_is_read() {
    let options = cursus_embedded::Options {
        brokers: 1,
        session_timeout: Duration::from_millis(500),
        expiry_check: Duration::from_millis(50),
        ..Default::default()
    };
    let cluster = cursus_embedded::Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 4).unwrap();
    cluster.fill("t", 400, 10).unwrap();
    cluster.lose_reply("JOIN_GROUP", 1).unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 400).await;
    assert_eq!(cluster.group("g").unwrap().members.len(), 1);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_standalone_broker_that_lost_its_members_is_joined_afresh() {
    let cluster = cluster_with(1, 2, 100).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    consumer.commit(cursus_consumer::Commit::All, Some(PATIENCE)).await.unwrap();
    let member = consumer.statistics().member;
    cluster.kill_broker(0).await.unwrap();
    cluster.restart_broker(0).await.unwrap();
    cluster.fill("t", 100, 10).unwrap();
    read(&consumer, &mut seen, 200).await;
    seen.assert_exactly_in_order();
    until("another member", &consumer, |c| c.state() == State::Running && c.statistics().member != member).await;
    assert_eq!(consumer.statistics().rebalances, 1);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_broker_that_knows_no_negotiation_is_served_without() {
    let cluster = cluster_with(1, 1, 10).await;
    cluster.fail_next("NEGOTIATE", 1000, "malformed_input reason=missing_topic_or_payload").unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn structured_errors_are_asked_for_on_every_connection() {
    let cluster = cluster_with(3, 3, 30).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 30).await;
    let requests = cluster.requests();
    let mut first = std::collections::BTreeMap::new();
    for request in &requests {
        first.entry(request.connection).or_insert(request.command.as_str());
    }
    assert!(first.values().all(|command| *command == "NEGOTIATE"), "{first:?}");
    closed(&consumer).await;
}

#[tokio::test]
async fn redirects_in_circles_are_not_followed_for_ever() {
    let cluster = cluster_with(3, 1, 10).await;
    let brokers = cluster.brokers();
    cluster.fail_next(reading(), 20, &format!("NOT_LEADER LEADER_IS {}", brokers[1])).unwrap();
    cluster.fail_next("JOIN_GROUP", 6, "NOT_COORDINATOR").unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    assert!(received(&cluster, reading()) < 60, "{}", received(&cluster, reading()));
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_denies_the_group_until_it_has_read_its_log_ends_no_fence() {
    let cluster = cluster_with(3, 2, 20).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    let before = consumer.statistics();
    let denial = "group_not_found class=not_found retryable=false group=g";
    cluster.fail_next("JOIN_GROUP", 4, denial).unwrap();
    cluster.fail_next("BATCH_COMMIT", 1, denial).unwrap();
    // The commit is denied, and so is the resume that it leads to; both are tried until the coordinator knows better.
    consumer.commit(cursus_consumer::Commit::All, Some(PATIENCE)).await.unwrap();
    cluster.fail_next("JOIN_GROUP", 4, denial).unwrap();
    cluster.fail_next("HEARTBEAT", 1, denial).unwrap();
    until("the denial to be seen", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_some()).await;
    cluster.fill("t", 20, 10).unwrap();
    read(&consumer, &mut seen, 40).await;
    until("it to be over", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_none()).await;
    let after = consumer.statistics();
    assert_eq!((after.rebalances, after.member, after.generation), (0, before.member, before.generation));
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test]
async fn a_member_that_a_coordinator_without_its_log_has_taken_in_is_not_left_behind_as_a_ghost() {
    let cluster = cluster_with(3, 2, 20).await;
    cluster.fail_next("SYNC_GROUP", 3, "group_not_found group=g").unwrap();
    cluster.fail_next("FETCH_OFFSET", 1, "group_not_found group=g").unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    assert_eq!(received(&cluster, "JOIN_GROUP"), 1);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_group_that_is_denied_for_long_is_joined_afresh() {
    let cluster = cluster_with(1, 2, 20).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    let member = consumer.statistics().member;
    cluster.fail_next("HEARTBEAT", 1, "group_not_found group=g").unwrap();
    cluster.fail_next("JOIN_GROUP", 2, "group_not_found group=g").unwrap();
    let hold = cluster.hold("JOIN_GROUP");
    soon("the attempt to resume", hold.reached()).await;
    // Half a minute goes by in no time.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    hold.release();
    until("another member to be joined as", &consumer, |c| {
        c.statistics().rebalances == 1 && c.state() == State::Running && c.statistics().member != member
    })
    .await;
    closed(&consumer).await;
}

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
async fn dead_bootstrap_addresses_are_passed_over() {
    let cluster = cluster_with(1, 1, 10).await;
    let brokers = vec![nowhere(), "nowhere.invalid:9000".to_owned(), cluster.brokers()[0].clone()];
    let consumer = consumer_with(&cluster, &[("brokers", brokers.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
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
async fn a_consumer_that_nobody_holds_any_more_leaves_its_group_without_being_waited_for() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer: std::sync::Arc<Consumer> = consumer(&cluster);
    started(&consumer).await;
    drop(consumer);
    soon("the member to leave", cluster.wait_for("no members", |c| c.group("g").unwrap().members.is_empty())).await;
    soon("its connections to go", cluster.wait_for("no connections", |c| c.connections(0) == 0)).await;
    assert_eq!(received(&cluster, "LEAVE_GROUP"), 1);
    // One that never started had nothing to end.
    drop(Consumer::new(settings(&cluster, &[]), Environment::current()));
}

/// The loopback network under another name: what is called `localhost` can't be reached.
struct Elsewhere;

impl cursus_net::Network for Elsewhere {
    fn resolve<'a>(
        &'a self,
        host: &'a str,
        port: u16,
    ) -> cursus_net::BoxFuture<'a, std::io::Result<Vec<std::net::SocketAddr>>> {
        Box::pin(async move {
            match host {
                "broker.example" => Ok(vec![std::net::SocketAddr::from(([127, 0, 0, 1], port))]),
                _ => Err(std::io::Error::other(format!("{host} is not this broker"))),
            }
        })
    }

    fn connect(
        &self,
        address: std::net::SocketAddr,
    ) -> cursus_net::BoxFuture<'_, std::io::Result<Box<dyn cursus_net::Socket>>> {
        cursus_net::Tcp.connect(address)
    }

    fn listen(
        &self,
        address: std::net::SocketAddr,
    ) -> cursus_net::BoxFuture<'_, std::io::Result<Box<dyn cursus_net::Listener>>> {
        cursus_net::Tcp.listen(address)
    }
}

#[tokio::test]
async fn a_remote_broker_that_calls_itself_localhost_is_read_under_the_name_it_was_reached_by() {
    let cluster = cluster_with(1, 2, 20).await;
    let broker = cluster.brokers()[0].replace("127.0.0.1", "broker.example");
    let settings = settings(&cluster, &[("brokers", broker.as_str().into())]);
    let environment = Environment { network: std::sync::Arc::new(Elsewhere), ..Environment::current() };
    let consumer = Consumer::new(settings, environment);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_broker_that_comes_back_without_its_data_is_believed_about_what_is_committed() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    consumer.commit(cursus_consumer::Commit::All, Some(PATIENCE)).await.unwrap();
    // Another cluster takes over its address: without the group, and with another log under the topic's name.
    let port = cluster.brokers()[0].rsplit_once(':').unwrap().1.parse().unwrap();
    cluster.stop().await;
    let options = cursus_embedded::Options { brokers: 1, port: Some(port), ..Default::default() };
    let wiped = cursus_embedded::Cluster::start(options).await.unwrap();
    wiped.create_topic("t", 1).unwrap();
    wiped.fill("t", 50, 100).unwrap();
    // The second try says that the denial of the first was heard.
    soon("the group to be denied", wiped.wait_for("two joins", |wiped| received(wiped, "JOIN_GROUP") > 1)).await;
    // The doubt of half a minute goes by in no time.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    let mut again = Seen::default();
    read(&consumer, &mut again, 50).await;
    assert_eq!(again.0[&tp(0)], (0..50).collect::<Vec<_>>());
    closed(&consumer).await;
}

#[tokio::test]
async fn a_heartbeat_or_a_commit_without_an_answer_does_not_cost_the_membership() {
    let options = cursus_embedded::Options {
        brokers: 1,
        session_timeout: Duration::from_secs(3),
        expiry_check: Duration::from_millis(50),
        ..Default::default()
    };
    let cluster = cursus_embedded::Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    cluster.fill("t", 10, 10).unwrap();
    let consumer = consumer_with(&cluster, &[("expected_session_timeout_ms", 3_000u64.into())]);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    let member = consumer.statistics().member;
    let holds = [cluster.hold("HEARTBEAT"), cluster.hold("BATCH_COMMIT")];
    let commit = consumer.begin_commit((&batch).into(), None).unwrap();
    for hold in &holds {
        soon("what is never answered", hold.reached()).await;
    }
    cluster.clear_requests();
    // A member that is kept alive goes on for two sessions' time.
    soon(
        "heartbeats for two sessions",
        cluster.wait_for("heartbeats", |c| {
            c.requests().iter().filter(|request| request.command == "HEARTBEAT").count() > 60
        }),
    )
    .await;
    assert_eq!((consumer.statistics().member, consumer.statistics().rebalances), (member, 0));
    for hold in holds {
        hold.release();
    }
    soon("the commit", commit).await.unwrap();
    closed(&consumer).await;
}

#[tokio::test]
async fn an_empty_partition_is_not_asked_without_a_pause() {
    let cluster = cluster_with(1, 1, 0).await;
    let consumer = consumer_with(&cluster, &[("fetch_wait_ms", 0u64.into())]);
    started(&consumer).await;
    cluster.clear_requests();
    consumer.poll(Some(Duration::from_millis(500))).await.unwrap();
    assert!(received(&cluster, reading()) < 60, "{} requests", received(&cluster, reading()));
    closed(&consumer).await;
}

#[tokio::test]
async fn readers_that_begin_anew_do_not_pile_up_connections() {
    let cluster = cluster_with(1, 8, 80).await;
    let consumer = consumer_with(&cluster, &[("max_connections_per_broker", 2u64.into())]);
    let mut seen = Seen::default();
    for round in 1..=20 {
        cluster.fail_next(reading(), 3, "broker_error reason=\"try again\"").unwrap();
        cluster.fill("t", 80, 10).unwrap();
        read(&consumer, &mut seen, 80 * (round + 1)).await;
    }
    // Two to read, or one for each stream, and three for the rest; what makes way goes as soon as its readers have moved.
    let most = if mode() == "streaming" { 8 + 3 } else { 2 + 3 };
    soon("connections to go", cluster.wait_for("few connections", |c| c.connections(0) <= most)).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_member_that_is_in_the_way_of_nothing_says_nothing_fails_while_its_buffer_is_full() {
    let options =
        cursus_embedded::Options { brokers: 1, idle_timeout: Duration::from_millis(300), ..Default::default() };
    let cluster = cursus_embedded::Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    cluster.fill("t", 2_000, 1_000).unwrap();
    let consumer =
        consumer_with(&cluster, &[("max_buffered_bytes", 100_000u64.into()), ("max_poll_records", 50u64.into())]);
    started(&consumer).await;
    // The buffer fills, nothing is asked for, and the broker closes the connection that it finds idle.
    until("a full buffer", &consumer, |c| c.statistics().buffered_bytes > 50_000).await;
    // What is left is the one with the heartbeats, and a stream.
    let rest = if mode() == "streaming" { 2 } else { 1 };
    soon("the idle connections to go", cluster.wait_for("closed", |c| c.connections(0) == rest)).await;
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 2_000).await;
    seen.assert_exactly_in_order();
    let statistics = consumer.statistics();
    assert_eq!((statistics.failing_seconds, statistics.last_error), (None, None));
    closed(&consumer).await;
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
