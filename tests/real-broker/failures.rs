//! Brokers of a cluster die, come back and stop for a while. Nothing is published meanwhile: whether the broker survives
//! that isn't the question here.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cursus_consumer::{Commit, Consumer, Record};
use tokio::time::sleep;

use crate::consumers::{PATIENCE, Seen, closed, poll, read_and_commit_all, soon, until};
use crate::place::{Place, mode, unique};

const PARTITIONS: u32 = 6;

/// A topic with so many records in each of its partitions, of which not all are led by the group's coordinator.
async fn filled(each: u64) -> Option<Place> {
    let mut place = Place::harmed().await?;
    place.create(PARTITIONS).await;
    place.fill(PARTITIONS, 0..each, 200).await;
    // A coordinator that leads every partition would be no help: another group has another.
    while a_mere_leader(&place).await.is_none() {
        place.group = unique("group").parse().unwrap();
    }
    Some(place)
}

/// A consumer that fetches little ahead, so that what fails fails in the middle of reading.
fn slow_consumer(place: &Place) -> Arc<Consumer> {
    let settings = [
        ("max_poll_records", 50u64.into()),
        ("fetch_batch_size", 100u64.into()),
        ("max_buffered_bytes", 200_000u64.into()),
        ("request_timeout_ms", 5000u64.into()),
    ];
    place.consumer(&settings)
}

/// Reads like an application that works: a pause after each batch, and a commit that isn't waited for.
async fn work(consumer: &Consumer, seen: &mut Seen, pause: Duration, mut on: impl FnMut(&Seen) -> bool) {
    while on(seen) {
        let batch = poll(consumer, seen).await;
        if !batch.is_empty() {
            sleep(pause).await;
            // Carried out even though nobody waits for it; a refusal says only that it comes again.
            drop(consumer.begin_commit((&batch).into(), Some(PATIENCE)));
        }
    }
}

/// Everything is read and committed, nothing is lost, and all is well again.
async fn finished(place: &Place, consumer: &Consumer, seen: &mut Seen) {
    read_and_commit_all(place, consumer, seen).await;
    Seen::assert_nothing_lost(&[seen], &place.ends().await);
    until("all to be well", consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(consumer).await;
    place.wait_members(0).await;
}

/// The figures of a run, for the report: shown with `--nocapture`.
#[allow(clippy::print_stdout)]
fn report(what: &str, consumer: &Consumer, seen: &mut Seen) {
    let statistics = consumer.statistics();
    println!(
        "{}: {what}: {} records, {} duplicates, longest silence {:.1} s, {} rebalances, {} reconnects, {} commits",
        mode(),
        seen.distinct(),
        seen.duplicates(),
        seen.longest_silence().as_secs_f64(),
        statistics.rebalances,
        statistics.reconnects,
        statistics.commits,
    );
}

/// A partition's leader that does not coordinate the group.
async fn a_mere_leader(place: &Place) -> Option<String> {
    let coordinator = place.coordinator(&place.group).await;
    place.leaders().await.into_iter().find(|leader| *leader != coordinator)
}

/// How long it takes from now on until the cluster names other leaders than this broker.
async fn failover(place: &Place, dead: &str) -> Duration {
    let before = Instant::now();
    soon("other leaders", async {
        while place.leaders().await.iter().any(|leader| leader == dead) {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    before.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_is_killed_and_reading_goes_on_without_it() {
    let Some(place) = filled(1000).await else { return };
    let leader = a_mere_leader(&place).await.unwrap();
    let consumer = slow_consumer(&place);
    let mut seen = Seen::default();
    work(&consumer, &mut seen, Duration::from_millis(20), |seen| seen.distinct() < 1500).await;
    place.cluster().kill(&leader);
    let all = |seen: &Seen| seen.distinct() < 6000;
    let (took, ()) = tokio::join!(failover(&place, &leader), work(&consumer, &mut seen, Duration::ZERO, all));
    finished(&place, &consumer, &mut seen).await;
    report(&format!("leader killed, others named after {took:.1?}"), &consumer, &mut seen);
    assert_eq!(consumer.statistics().rebalances, 0, "a leader's death is no rebalance");
    place.cluster().heal(&leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_is_killed_for_a_minute_and_a_leader_for_good_while_a_slow_handler_reads() {
    let Some(place) = filled(10_000).await else { return };
    let coordinator = place.coordinator(&place.group).await;
    let consumer = slow_consumer(&place);
    let mut seen = Seen::default();
    let pause = Duration::from_millis(95);
    work(&consumer, &mut seen, pause, |seen| seen.distinct() < 5000).await;
    let member = consumer.statistics().member;
    place.cluster().kill(&coordinator);
    let (killed, before) = (Instant::now(), seen.distinct());
    work(&consumer, &mut seen, pause, |_| killed.elapsed() < Duration::from_secs(60)).await;
    assert!(seen.distinct() > before + 15_000, "reading stood still: {before} to {}", seen.distinct());
    assert!(consumer.statistics().coordinator_unreachable_seconds.is_some_and(|seconds| seconds > 50.0));
    let committed = consumer.statistics().commits;
    // A commit of that time waits, and is carried out when the coordinator is back.
    let commit = consumer.begin_commit(Commit::All, Some(PATIENCE)).unwrap();
    place.cluster().heal(&coordinator).await;
    let back = Instant::now();
    soon("the commit", commit).await.expect("a commit made while the coordinator was down");
    let landed = back.elapsed();
    report(
        &format!("coordinator down for 60 s, the commit that waited {landed:.1?} after its return"),
        &consumer,
        &mut seen,
    );
    assert_eq!(consumer.statistics().member, member, "resumed, not joined afresh");
    work(&consumer, &mut seen, pause, |seen| seen.distinct() < 45_000).await;
    assert!(consumer.statistics().commits > committed + 10, "{:#?}", consumer.statistics());
    // After the coordinator's death another broker may lead all that it led.
    let leader = a_mere_leader(&place).await.unwrap();
    place.cluster().kill(&leader);
    let all = |seen: &Seen| seen.distinct() < 60_000;
    let (took, ()) = tokio::join!(failover(&place, &leader), work(&consumer, &mut seen, pause, all));
    finished(&place, &consumer, &mut seen).await;
    report(&format!("then a leader killed, others named after {took:.1?}"), &consumer, &mut seen);
    assert_eq!((seen.duplicates(), consumer.statistics().rebalances), (0, 0));
    place.cluster().heal(&leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_outlive_a_coordinator_killed_for_a_minute_and_then_a_leader() {
    let Some(place) = filled(10_000).await else { return };
    let coordinator = place.coordinator(&place.group).await;
    let consumer = slow_consumer(&place);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (handling, noted) = (Arc::clone(&consumer), Arc::clone(&seen));
    let handle = move |record: Record| {
        let noted = Arc::clone(&noted);
        async move {
            sleep(Duration::from_millis(11)).await;
            noted.lock().unwrap().add_record(&record);
            Ok::<_, String>(())
        }
    };
    let running = tokio::spawn(async move { handling.run(handle).await });
    let count = || seen.lock().unwrap().distinct();
    let until_handled = async |goal: u64| {
        // Six partitions at 11 ms a record: slower than anything here is waited for.
        let end = Instant::now() + 4 * PATIENCE;
        while count() < goal {
            assert!(
                Instant::now() < end && !running.is_finished(),
                "{} handled; {:#?}",
                count(),
                consumer.statistics()
            );
            sleep(Duration::from_millis(20)).await;
        }
    };
    until_handled(5000).await;
    let member = consumer.statistics().member;
    place.cluster().kill(&coordinator);
    let before = count();
    sleep(Duration::from_secs(60)).await;
    assert!(count() > before + 15_000, "handling stood still: {before} to {}", count());
    place.cluster().heal(&coordinator).await;
    report("handlers, coordinator down for 60 s", &consumer, &mut seen.lock().unwrap());
    until_handled(45_000).await;
    assert_eq!(consumer.statistics().member, member, "resumed, not joined afresh");
    let leader = a_mere_leader(&place).await.unwrap();
    place.cluster().kill(&leader);
    let took = failover(&place, &leader).await;
    until_handled(60_000).await;
    let ends = place.ends().await;
    place.wait_committed(&ends).await;
    until("all to be well", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
    soon("the run to end", running).await.unwrap().expect("closed");
    seen.lock().unwrap().assert_each_once_in_order(&ends);
    let what = format!("handlers, then a leader killed, others named after {took:.1?}");
    report(&what, &consumer, &mut seen.lock().unwrap());
    assert_eq!(consumer.statistics().rebalances, 0);
    place.cluster().heal(&leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_is_paused_and_resumed() {
    let Some(place) = filled(1000).await else { return };
    let leader = a_mere_leader(&place).await.unwrap();
    let consumer = slow_consumer(&place);
    let mut seen = Seen::default();
    let pause = Duration::from_millis(20);
    work(&consumer, &mut seen, pause, |seen| seen.distinct() < 1500).await;
    place.cluster().pause(&leader);
    let paused = Instant::now();
    let on = |_: &Seen| paused.elapsed() < Duration::from_secs(15);
    let (took, ()) = tokio::join!(failover(&place, &leader), work(&consumer, &mut seen, pause, on));
    place.cluster().heal(&leader).await;
    finished(&place, &consumer, &mut seen).await;
    report(&format!("leader paused for 15 s, others named after {took:.1?}"), &consumer, &mut seen);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_is_paused_and_resumed() {
    let Some(place) = filled(1000).await else { return };
    let coordinator = place.coordinator(&place.group).await;
    let consumer = slow_consumer(&place);
    let mut seen = Seen::default();
    let pause = Duration::from_millis(20);
    work(&consumer, &mut seen, pause, |seen| seen.distinct() < 1500).await;
    place.cluster().pause(&coordinator);
    let paused = Instant::now();
    work(&consumer, &mut seen, pause, |_| paused.elapsed() < Duration::from_secs(25)).await;
    assert_eq!(seen.distinct(), u64::from(PARTITIONS) * 1000, "everything can be read without it");
    place.cluster().heal(&coordinator).await;
    finished(&place, &consumer, &mut seen).await;
    report("coordinator paused for 25 s", &consumer, &mut seen);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_brokers_but_one_are_restarted_one_after_the_other() {
    // A broker that comes back isn't taken into the replicas again, so that the last one must stay.
    let Some(place) = filled(4000).await else { return };
    let consumer = slow_consumer(&place);
    let mut seen = Seen::default();
    let pause = Duration::from_millis(30);
    for (round, broker) in (1..).zip(&place.brokers[1..]) {
        work(&consumer, &mut seen, pause, |seen| seen.distinct() < 4000 * round).await;
        place.cluster().kill(broker);
        let killed = Instant::now();
        work(&consumer, &mut seen, pause, |_| killed.elapsed() < Duration::from_secs(8)).await;
        place.cluster().heal(broker).await;
    }
    finished(&place, &consumer, &mut seen).await;
    report("two of three restarted", &consumer, &mut seen);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_member_joins_once_the_coordinator_is_back() {
    let Some(place) = filled(100).await else { return };
    let coordinator = place.coordinator(&place.group).await;
    place.cluster().kill(&coordinator);
    let consumer = place.consumer(&[]);
    assert!(consumer.start(Some(Duration::from_secs(2))).await.is_err(), "nobody replaces a coordinator");
    place.cluster().heal(&coordinator).await;
    let mut seen = Seen::default();
    finished(&place, &consumer, &mut seen).await;
    report("joined late", &consumer, &mut seen);
}
