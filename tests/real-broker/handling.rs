//! Handlers: each partition has a worker of its own, and what it has finished is committed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cursus_consumer::{Consumer, Record, RunError};
use tokio::time::sleep;

use crate::consumers::{Seen, closed, soon, started, until};
use crate::place::Place;

type Shared = Arc<Mutex<Seen>>;

/// Runs a handler that notes what it gets, until the consumer is closed.
fn run(consumer: &Arc<Consumer>, seen: &Shared) -> tokio::task::JoinHandle<Result<(), RunError<String>>> {
    let (consumer, seen) = (Arc::clone(consumer), Arc::clone(seen));
    tokio::spawn(async move {
        let handle = move |record: Record| {
            let seen = Arc::clone(&seen);
            async move {
                tokio::task::yield_now().await;
                seen.lock().unwrap().add_record(&record);
                Ok(())
            }
        };
        consumer.run(handle).await
    })
}

async fn handled(seen: &Shared, count: u64) {
    soon(&format!("{count} records to be handled"), async {
        while seen.lock().unwrap().distinct() < count {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_gets_everything_in_order_and_what_it_finished_is_committed() {
    let Some(place) = Place::any().await else { return };
    place.create(6).await;
    place.fill(6, 0..500, 100).await;
    let consumer = place.consumer(&[("auto_commit_interval_ms", 200u64.into())]);
    let seen = Shared::default();
    let running = run(&consumer, &seen);
    handled(&seen, 3000).await;
    let ends = place.ends().await;
    place.wait_committed(&ends).await;
    place.fill(6, 500..510, 100).await;
    handled(&seen, 3060).await;
    closed(&consumer).await;
    running.await.unwrap().expect("closed");
    let ends = place.ends().await;
    seen.lock().unwrap().assert_each_once_in_order(&ends);
    place.wait_committed(&ends).await;
}

#[tokio::test]
async fn a_record_that_its_handler_failed_at_comes_again() {
    let Some(place) = Place::any().await else { return };
    place.create(1).await;
    place.fill(1, 0..50, 50).await;
    let consumer = place.consumer(&[("auto_commit_interval_ms", 100u64.into())]);
    let failing = |record: Record| async move { if record.offset() == 20 { Err("no") } else { Ok(()) } };
    let error = soon("the failure", consumer.run(failing)).await.expect_err("a handler fails");
    assert!(matches!(error, RunError::Handler { offset: 20, .. }), "{error:?}");
    place.wait_committed(&BTreeMap::from([(0, 20)])).await;
    let seen = Shared::default();
    let running = run(&consumer, &seen);
    handled(&seen, 30).await;
    closed(&consumer).await;
    running.await.unwrap().expect("closed");
    seen.lock().unwrap().assert_exactly(0, 20..50);
    place.wait_committed(&BTreeMap::from([(0, 50)])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_of_two_members_share_the_work_through_a_rebalance() {
    let Some(place) = Place::any().await else { return };
    place.create(4).await;
    place.fill(4, 0..300, 50).await;
    let auto = [("auto_commit_interval_ms", 100u64.into())];
    let (first, second) = (place.consumer(&auto), place.consumer(&auto));
    let (one, two) = (Shared::default(), Shared::default());
    let first_runs = run(&first, &one);
    handled(&one, 100).await;
    started(&second).await;
    let second_runs = run(&second, &two);
    until("the rebalance", &first, |first| first.assignment().len() == 2).await;
    place.fill(4, 300..350, 50).await;
    let total = || [&one, &two].map(|seen| seen.lock().unwrap().distinct()).iter().sum::<u64>();
    let ends = place.ends().await;
    soon("everything", async {
        while total() < 1400 {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    place.wait_committed(&ends).await;
    for (consumer, running) in [(first, first_runs), (second, second_runs)] {
        closed(&consumer).await;
        running.await.unwrap().expect("closed");
    }
    let (one, two) = (one.lock().unwrap(), two.lock().unwrap());
    Seen::assert_nothing_lost(&[&one, &two], &ends);
    assert!(two.distinct() >= 100, "{}", two.distinct());
}
