//! A broker that stands alone is killed, paused or impatient: the consumer recovers by itself, and nothing is lost.

use std::time::{Duration, Instant};

use cursus_consumer::{Commit, ErrorKind, State};
use tokio::time::sleep;

use crate::consumers::{Seen, closed, poll, read, read_and_commit_all, soon, started, until};
use crate::place::Place;

/// A broker ends three times and comes back: killed, or asked to end, which it does without a word to its clients.
async fn ended(killed: bool) {
    let Some(mut place) = Place::own(&[]).await else { return };
    place.create(6).await;
    place.fill(6, 0..500, 100).await;
    let consumer = place.consumer(&[("max_poll_records", 100u64.into())]);
    let mut seen = Seen::default();
    // In the middle of reading, then with everything read and committed.
    read(&consumer, &mut seen, 1000).await;
    for round in 1..=3 {
        if killed {
            place.broker().kill();
        } else {
            place.broker().terminate().await;
        }
        until("it to be noticed", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_some()).await;
        place.broker().restart().await;
        read_and_commit_all(&place, &consumer, &mut seen).await;
        place.fill(6, 500 + 100 * (round - 1)..500 + 100 * round, 100).await;
    }
    read_and_commit_all(&place, &consumer, &mut seen).await;
    Seen::assert_nothing_lost(&[&seen], &place.ends().await);
    until("all to be well", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
    place.wait_members(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_and_started_again_loses_nothing() {
    ended(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_told_to_end_and_started_again_loses_nothing() {
    ended(false).await;
}

#[tokio::test]
async fn a_broker_that_comes_up_later_is_found() {
    let Some(mut place) = Place::own(&[]).await else { return };
    place.create(1).await;
    place.fill(1, 0..10, 10).await;
    place.broker().kill();
    let consumer = place.consumer(&[]);
    let error = soon("start's own time", consumer.start(Some(Duration::from_millis(500)))).await;
    assert_eq!(error.expect_err("nobody is there").kind(), ErrorKind::Unreachable);
    place.broker().restart().await;
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn close_ends_by_its_deadline_while_the_broker_is_away_or_paused() {
    for paused in [false, true] {
        let Some(mut place) = Place::own(&[]).await else { return };
        place.create(1).await;
        place.fill(1, 0..10, 10).await;
        let consumer = place.consumer(&[]);
        read(&consumer, &mut Seen::default(), 10).await;
        if paused {
            place.broker().pause();
        } else {
            place.broker().kill();
        }
        let commit = consumer.begin_commit(Commit::All, None).unwrap();
        let before = Instant::now();
        soon("close", consumer.close(Some(Duration::from_secs(1)))).await;
        assert!(before.elapsed() < Duration::from_millis(1500), "{:?}", before.elapsed());
        assert_eq!(consumer.state(), State::Closed);
        let kind = soon("the commit", commit).await.expect_err("nobody answered").kind();
        assert!(matches!(kind, ErrorKind::TimedOut | ErrorKind::CommitOutcomeUnknown), "{kind:?}");
        let given_up = consumer.statistics().given_up.join("; ");
        assert!(given_up.contains("committing") && given_up.contains("leaving group"), "{given_up}");
    }
}

/// Pauses the broker while a consumer reads, for as long as it is told.
async fn paused(pause: Duration) {
    let Some(mut place) = Place::own(&[]).await else { return };
    place.create(3).await;
    place.fill(3, 0..1000, 100).await;
    let consumer = place.consumer(&[("max_poll_records", 50u64.into()), ("request_timeout_ms", 2000u64.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 500).await;
    place.broker().pause();
    let before = Instant::now();
    while before.elapsed() < pause {
        poll(&consumer, &mut seen).await;
        sleep(Duration::from_millis(10)).await;
    }
    place.broker().resume();
    read_and_commit_all(&place, &consumer, &mut seen).await;
    place.fill(3, 1000..1100, 100).await;
    read_and_commit_all(&place, &consumer, &mut seen).await;
    Seen::assert_nothing_lost(&[&seen], &place.ends().await);
    until("all to be well", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
    place.wait_members(0).await;
}

#[tokio::test]
async fn a_broker_paused_for_less_than_a_session_loses_nothing() {
    paused(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_broker_paused_for_longer_than_a_session_loses_nothing() {
    paused(Duration::from_secs(16)).await;
}

#[tokio::test]
async fn connections_that_the_broker_closes_for_idleness_are_made_anew() {
    // Sixty seconds is what a broker does by itself; here heartbeats and reads are rarer than its patience.
    let Some(place) = Place::own(&["client_idle_timeout_ms: 1000"]).await else { return };
    place.create(2).await;
    place.fill(2, 0..10, 10).await;
    let consumer = place.consumer(&[("heartbeat_interval_ms", 3000u64.into()), ("fetch_wait_ms", 2000u64.into())]);
    started(&consumer).await;
    let mut seen = Seen::default();
    for round in 1..=4 {
        read_and_commit_all(&place, &consumer, &mut seen).await;
        let before = Instant::now();
        while before.elapsed() < Duration::from_secs(4) {
            poll(&consumer, &mut seen).await;
        }
        place.fill(2, 10 * round..10 * (round + 1), 10).await;
    }
    read_and_commit_all(&place, &consumer, &mut seen).await;
    seen.assert_each_once_in_order(&place.ends().await);
    assert_eq!(consumer.statistics().rebalances, 0, "{:#?}", consumer.statistics());
    closed(&consumer).await;
}

#[tokio::test]
async fn nothing_to_do_for_longer_than_a_broker_keeps_idle_connections_is_survived() {
    // Here the broker's own patience, which is a minute.
    let Some(place) = Place::own(&[]).await else { return };
    place.create(2).await;
    place.fill(2, 0..10, 10).await;
    let consumer = place.consumer(&[]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    consumer.pause(&[place.tp(0), place.tp(1)]).unwrap();
    place.fill(2, 10..20, 10).await;
    let before = Instant::now();
    while before.elapsed() < Duration::from_secs(66) {
        assert!(poll(&consumer, &mut seen).await.is_empty());
    }
    consumer.resume(&[place.tp(0), place.tp(1)]).unwrap();
    read_and_commit_all(&place, &consumer, &mut seen).await;
    place.fill(2, 20..30, 10).await;
    read_and_commit_all(&place, &consumer, &mut seen).await;
    seen.assert_each_once_in_order(&place.ends().await);
    let statistics = consumer.statistics();
    assert_eq!((statistics.rebalances, statistics.failing_seconds), (0, None), "{statistics:#?}");
    closed(&consumer).await;
}
