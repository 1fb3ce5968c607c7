//! What only streams meet: how they end, who else reads, and brokers that no longer lead.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use cursus_consumer::{Consumer, ErrorKind, State, Value};
use cursus_embedded::{Cluster, Options};
use cursus_wire::{Request, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn streaming(cluster: &Cluster, more: &[(&str, Value)]) -> Arc<Consumer> {
    let mode = [("mode", "streaming".into())];
    consumer_with(cluster, &mode.into_iter().chain(more.iter().cloned()).collect::<Vec<_>>())
}

fn streams(cluster: &Cluster) -> Vec<String> {
    cluster.requests().into_iter().filter(|request| request.command == "STREAM").map(|request| request.text).collect()
}

/// A reader that isn't ours: a stream of its own under the group's name.
async fn foreign_stream(cluster: &Cluster, partition: u32) -> TcpStream {
    #[allow(clippy::disallowed_methods)] // Not the engine's.
    let mut socket = TcpStream::connect(&cluster.brokers()[0]).await.unwrap();
    let request = cursus_wire::command::Stream {
        topic: cursus_wire::Topic::new("t").unwrap(),
        partition,
        member: cursus_wire::Member::new("stranger").unwrap(),
        group: cursus_wire::Group::new("g").unwrap(),
        generation: None,
        isolation: None,
        batch: None,
        offset: Some(0),
    };
    socket.write_all(&request.frame().unwrap()).await.unwrap();
    socket
}

/// Commits, and has the streams opened anew: where the position is the committed one they have the group's own name.
async fn committed_and_under_the_groups_name(cluster: &Cluster, consumer: &Consumer, count: usize) {
    consumer.commit(cursus_consumer::Commit::All, Some(PATIENCE)).await.unwrap();
    cluster.clear_requests();
    cluster.cut_connections(None).unwrap();
    let named = |cluster: &Cluster| streams(cluster).iter().filter(|text| text.contains(" group=g ")).count();
    soon("streams of the group", cluster.wait_for("the group's name", |cluster| named(cluster) >= count)).await;
}

/// The next frame's body; nothing where the connection has ended.
async fn next_frame(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut header = [0; frame::HEADER];
    socket.read_exact(&mut header).await.ok()?;
    let mut body = vec![0; frame::body_length(header).unwrap()];
    socket.read_exact(&mut body).await.ok()?;
    Some(body)
}

#[tokio::test]
async fn a_stream_asks_once_and_records_come_as_they_are_written() {
    let cluster = cluster_with(3, 3, 300).await;
    let consumer = streaming(&cluster, &[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 300).await;
    for round in 1..=10 {
        cluster.fill("t", 30, 10).unwrap();
        read(&consumer, &mut seen, 300 + round * 30).await;
    }
    seen.assert_exactly_in_order();
    assert_eq!((received(&cluster, "CONSUME"), consumer.statistics().reconnects), (0, 0));
    assert!(
        streams(&cluster).len() <= 6,
        "one each, and one more where the first asked for too few: {:#?}",
        streams(&cluster)
    );
    closed(&consumer).await;
    soon("the streams to end", cluster.wait_for("none", |c| (0..3).all(|b| c.connections(b) == 0))).await;
}

#[tokio::test]
async fn a_stream_that_is_silent_for_three_keepalives_is_opened_anew() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = streaming(&cluster, &[("request_timeout_ms", 1_000u64.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    let opened = streams(&cluster).len();
    // Half-open: nothing is answered and nothing closed.
    cluster.freeze_connections(Some(0)).unwrap();
    cluster.fill("t", 10, 10).unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(16)).await;
    tokio::time::resume();
    read(&consumer, &mut seen, 20).await;
    seen.assert_exactly_in_order();
    assert!(streams(&cluster).len() > opened);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_stream_that_another_member_takes_over_tells_of_the_rebalance_at_once() {
    let cluster = cluster_with(1, 2, 200).await;
    // Heartbeats alone would tell in a minute.
    let slow = [("heartbeat_interval_ms", 60_000u64.into()), ("expected_session_timeout_ms", 600_000u64.into())];
    let first = streaming(&cluster, &slow);
    let mut seen = Seen::default();
    read(&first, &mut seen, 200).await;
    committed_and_under_the_groups_name(&cluster, &first, 2).await;
    let second = streaming(&cluster, &slow);
    started(&second).await;
    until("the first to learn of it", &first, |c| c.statistics().rebalances == 1 && c.state() == State::Running).await;
    until("the second to have its half", &second, |c| c.assignment().len() == 1).await;
    cluster.fill("t", 20, 10).unwrap();
    let (mut one, mut other) = (Seen::default(), Seen::default());
    tokio::join!(read(&first, &mut one, 10), read(&second, &mut other, 10));
    assert_eq!((one.total(), other.total()), (10, 10));
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test]
async fn two_readers_of_one_group_do_not_fight_over_a_stream() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = streaming(&cluster, &[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    committed_and_under_the_groups_name(&cluster, &consumer, 1).await;
    // Somebody outside of the group streams under its name, and is left in peace.
    let mut foreign = foreign_stream(&cluster, 0).await;
    soon(
        "ours to be opened again",
        cluster.wait_for("a stream of our own", |cluster| {
            streams(cluster).last().is_some_and(|text| text.contains(" group=g~"))
        }),
    )
    .await;
    let opened = streams(&cluster).len();
    for round in 1..=5 {
        cluster.fill("t", 10, 10).unwrap();
        read(&consumer, &mut seen, 10 + round * 10).await;
        let body = loop {
            let body = soon("the other's records", next_frame(&mut foreign)).await.expect("it is still open");
            if !body.is_empty() {
                break body;
            }
        };
        assert!(!body.starts_with(b"STREAM_CONTROL"), "{}", String::from_utf8_lossy(&body));
    }
    seen.assert_exactly_in_order();
    assert_eq!(streams(&cluster).len(), opened, "nobody took turns");
    assert_eq!(consumer.statistics().rebalances, 0);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_lost_stream_asks_what_is_committed_and_goes_on_at_its_own_position() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = streaming(&cluster, &[("max_poll_records", 40u64.into())]);
    fetched(&cluster, &consumer).await;
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    consumer.commit(&batch, Some(PATIENCE)).await.unwrap();
    cluster.clear_requests();
    cluster.cut_connections(None).unwrap();
    soon("another stream", cluster.wait_for("a stream", |cluster| !streams(cluster).is_empty())).await;
    let requests = cluster.requests();
    let at = |command: &str| requests.iter().position(|request| request.command == command);
    assert!(at("FETCH_OFFSET").unwrap() < at("STREAM").unwrap(), "{requests:#?}");
    assert!(streams(&cluster)[0].contains(" offset=100"), "the position never falls: {:?}", streams(&cluster));
    let mut seen = Seen::default();
    seen.add(&batch);
    cluster.fill("t", 20, 10).unwrap();
    read(&consumer, &mut seen, 120).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_demoted_under_a_stream_is_noticed() {
    let cluster = cluster_with(3, 1, 10).await;
    let consumer = streaming(&cluster, &[("metadata_refresh_ms", 100u64.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    let before = cluster.leader("t", 0).unwrap();
    let to = (before + 1) % 3;
    cluster.move_leader("t", 0, to).unwrap();
    soon(
        "a stream from the new leader",
        cluster.wait_for("it", |cluster| {
            cluster.requests().iter().any(|request| request.command == "STREAM" && request.broker == to)
        }),
    )
    .await;
    cluster.fill("t", 10, 10).unwrap();
    read(&consumer, &mut seen, 20).await;
    seen.assert_exactly_in_order();
    assert_eq!(consumer.statistics().rebalances, 0);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_stream_below_what_is_kept_is_closed_by_the_broker_and_goes_on_by_the_policy() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = streaming(&cluster, &[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    consumer.pause(&[tp(0)]).unwrap();
    cluster.fill("t", 100, 10).unwrap();
    cluster.delete_records("t", 0, 150).unwrap();
    consumer.seek(&tp(0), 20).unwrap();
    consumer.resume(&[tp(0)]).unwrap();
    read(&consumer, &mut seen, 150).await;
    assert_eq!(seen.0[&tp(0)][100..], (150..200).collect::<Vec<_>>());
    assert_eq!(consumer.statistics().failing_seconds, None, "it is no fault once it goes on");
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_close_to_the_limit_passes_a_stream_and_one_at_the_limit_is_told() {
    let cluster = cluster_with(1, 1, 0).await;
    let most = 16 << 20;
    cluster.produce("t", 0, [("small", vec![1; 10])]).unwrap();
    cluster.produce("t", 0, [("large", vec![2; most - 200]), ("large", vec![3; most - 200])]).unwrap();
    let consumer = streaming(&cluster, &[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 3).await;
    seen.assert_exactly_in_order();
    cluster.produce("t", 0, [("too large", vec![4; most])]).unwrap();
    let error = soon("the error", async {
        loop {
            match consumer.poll(Some(PATIENCE)).await {
                Ok(batch) => assert!(batch.is_empty()),
                Err(error) => break error,
            }
        }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::RecordTooLarge, "{error}");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_stream_that_the_broker_ends_with_a_word_is_opened_again_and_is_no_fault() {
    for reason in ["timeout", "stopped", "removed", "error", "something_new"] {
        let cluster = cluster_with(1, 1, 10).await;
        let consumer = streaming(&cluster, &[]);
        let mut seen = Seen::default();
        read(&consumer, &mut seen, 10).await;
        cluster.close_streams(reason).unwrap();
        cluster.fill("t", 10, 10).unwrap();
        read(&consumer, &mut seen, 20).await;
        seen.assert_exactly_in_order();
        until("peace", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
        assert_eq!(consumer.statistics().rebalances, 0, "{reason}");
        closed(&consumer).await;
    }
}

#[tokio::test]
async fn a_full_buffer_holds_a_stream_up_and_nothing_is_lost() {
    let cluster = cluster_with(1, 4, 0).await;
    for partition in 0..4 {
        cluster.produce("t", partition, (0..500).map(|i| (i.to_string(), vec![0; 2_000]))).unwrap();
    }
    let limit: u64 = 200_000;
    let consumer = streaming(&cluster, &[("max_buffered_bytes", limit.into()), ("max_poll_records", 10u64.into())]);
    started(&consumer).await;
    let (mut seen, mut most) = (Seen::default(), 0);
    soon("all of 4 MB", async {
        while seen.distinct() < 2_000 {
            most = most.max(consumer.statistics().buffered_bytes);
            seen.add(&consumer.poll(Some(PATIENCE)).await.unwrap());
        }
    })
    .await;
    seen.assert_exactly_in_order();
    assert!(most <= limit, "{most} bytes were buffered, with a limit of {limit}");
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_open_for_long_lives_on_keepalives() {
    let options = Options { brokers: 1, idle_timeout: Duration::from_secs(60), ..Options::default() };
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    cluster.fill("t", 10, 10).unwrap();
    let consumer = streaming(&cluster, &[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    let opened = streams(&cluster).len();
    for _ in 0..10 {
        // A minute and more of the broker's time, in steps that a session survives.
        cluster.advance(Duration::from_secs(7));
        let heard = received(&cluster, "HEARTBEAT");
        soon("heartbeats", cluster.wait_for("two", |c| received(c, "HEARTBEAT") > heard + 1)).await;
    }
    cluster.fill("t", 10, 10).unwrap();
    read(&consumer, &mut seen, 20).await;
    seen.assert_exactly_in_order();
    assert_eq!((streams(&cluster).len(), consumer.statistics().rebalances), (opened, 0));
    closed(&consumer).await;
}
