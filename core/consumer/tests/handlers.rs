//! Handlers: a worker per partition, in order, committed after success, fenced.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use cursus_consumer::{Commit, Consumer, ErrorKind, Record, RunError, State};
use tokio::sync::Notify;

type Handled = Arc<Mutex<BTreeMap<u32, Vec<u64>>>>;

fn note(handled: &Handled, record: &Record) {
    handled.lock().unwrap().entry(record.partition().partition).or_default().push(record.offset());
}

fn total(handled: &Handled) -> usize {
    handled.lock().unwrap().values().map(Vec::len).sum()
}

/// Runs a handler on a task of its own.
fn run<F>(
    consumer: &Arc<Consumer>,
    handler: impl Fn(Record) -> F + Send + Sync + 'static,
) -> tokio::task::JoinHandle<Result<(), RunError<String>>>
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let consumer = Arc::clone(consumer);
    tokio::spawn(async move { consumer.run(handler).await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_record_is_handled_once_in_order_and_committed_at_close() {
    for auto_commit in [true, false] {
        let cluster = cluster_with(3, 6, 6_000).await;
        let consumer = consumer_with(&cluster, &[("enable_auto_commit", auto_commit.into())]);
        let handled = Handled::default();
        let noting = Arc::clone(&handled);
        let running = run(&consumer, move |record| {
            note(&noting, &record);
            async { Ok(()) }
        });
        until("all to be handled", &consumer, |_| total(&handled) == 6_000).await;
        closed(&consumer).await;
        soon("run to end", running).await.unwrap().unwrap();
        for (partition, offsets) in &*handled.lock().unwrap() {
            assert_eq!(offsets, &(0..1000).collect::<Vec<_>>(), "partition {partition}");
            assert_eq!(cluster.committed("g", "t")[partition], 1000);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_do_not_wait_for_each_other_and_only_what_is_handled_is_committed() {
    let cluster = cluster_with(1, 2, 200).await;
    let consumer = consumer_with(&cluster, &[("auto_commit_interval_ms", 20u64.into())]);
    let handled = Handled::default();
    let noting = Arc::clone(&handled);
    let running = run(&consumer, move |record| {
        let stuck = record.partition().partition == 0 && record.offset() == 3;
        note(&noting, &record);
        async move {
            if stuck {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    });
    soon(
        "all that can be",
        cluster.wait_for("commits", |cluster| cluster.committed("g", "t") == BTreeMap::from([(0, 3), (1, 100)])),
    )
    .await;
    // What is at work when the consumer closes ends at its await, and counts for nothing.
    closed(&consumer).await;
    soon("run to end", running).await.unwrap().unwrap();
    assert_eq!(cluster.committed("g", "t")[&0], 3);
    assert_eq!(handled.lock().unwrap()[&0], [0, 1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_fails_stops_its_partition_there_and_another_run_goes_on() {
    let cluster = cluster_with(1, 2, 200).await;
    let consumer = consumer(&cluster);
    let handled = Handled::default();
    let noting = Arc::clone(&handled);
    let running = run(&consumer, move |record| {
        let fails = record.partition().partition == 1 && record.offset() == 42;
        if !fails {
            note(&noting, &record);
        }
        async move { if fails { Err("no".to_owned()) } else { Ok(()) } }
    });
    let error = soon("the failure", running).await.unwrap().expect_err("it failed");
    assert_eq!(error.to_string(), "the handler failed at offset 42 of t-1: no");
    let RunError::Handler { partition, offset, error } = error else { panic!("{error}") };
    assert_eq!((partition, offset, error.as_str()), (tp(1), 42, "no"));
    assert_eq!(consumer.position(&tp(1)), Some(42));
    assert_eq!(consumer.paused(), []);
    let noting = Arc::clone(&handled);
    let running = run(&consumer, move |record| {
        note(&noting, &record);
        async { Ok(()) }
    });
    until("the rest", &consumer, |_| total(&handled) >= 200).await;
    closed(&consumer).await;
    soon("run to end", running).await.unwrap().unwrap();
    for offsets in handled.lock().unwrap().values() {
        assert_eq!(offsets, &(0..100).collect::<Vec<_>>(), "none was skipped, none came twice");
    }
    assert_eq!(cluster.committed("g", "t"), BTreeMap::from([(0, 100), (1, 100)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebalance_ends_the_old_handlers_before_a_record_of_the_new_assignment_is_handled() {
    let cluster = cluster_with(1, 2, 20).await;
    let first = consumer(&cluster);
    let (at_work, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    struct AtWork(Arc<AtomicUsize>);
    impl Drop for AtWork {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let (counter, notify) = (Arc::clone(&at_work), Arc::clone(&ended));
    let most = Arc::new(AtomicUsize::new(0));
    let highest = Arc::clone(&most);
    let running = run(&first, move |_| {
        let now = counter.fetch_add(1, Ordering::SeqCst) + 1;
        highest.fetch_max(now, Ordering::SeqCst);
        let guard = AtWork(Arc::clone(&counter));
        let notify = Arc::clone(&notify);
        async move {
            let _guard = guard;
            notify.notify_one();
            std::future::pending::<Result<(), String>>().await
        }
    });
    until("both to be at work", &first, |_| at_work.load(Ordering::SeqCst) == 2).await;
    let second = consumer(&cluster);
    started(&second).await;
    until("one to be at work", &first, |c| c.assignment().len() == 1 && at_work.load(Ordering::SeqCst) == 1).await;
    assert_eq!(most.load(Ordering::SeqCst), 2, "the old ones had ended before the new one began");
    assert!(cluster.committed("g", "t").is_empty());
    closed(&first).await;
    soon("run to end", running).await.unwrap().unwrap();
    assert_eq!(at_work.load(Ordering::SeqCst), 0, "close waits for nothing, and leaves nothing");
    closed(&second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_takes_too_long_costs_the_membership_and_joins_again() {
    let cluster = cluster_with(1, 1, 3).await;
    let consumer = consumer_with(&cluster, &[("max_poll_interval_ms", 200u64.into())]);
    let tries = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&tries);
    let running = run(&consumer, move |record| {
        let stuck = record.offset() == 0 && counter.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if stuck {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    });
    until("the second try", &consumer, |c| tries.load(Ordering::SeqCst) == 2 && c.position(&tp(0)) == Some(3)).await;
    closed(&consumer).await;
    soon("run to end", running).await.unwrap().unwrap();
    assert_eq!(cluster.committed("g", "t")[&0], 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_handler_goes_on_in_the_caller_and_a_fatal_error_ends_the_run() {
    let cluster = cluster_with(1, 1, 3).await;
    let consumer = consumer(&cluster);
    let running = run(&consumer, |_| async { panic!("a defect of the handler") });
    assert!(soon("the panic", running).await.expect_err("it panicked").is_panic());
    closed(&consumer).await;
    let lost = consumer_with(&cluster, &[("topic", "nowhere".into()), ("topic_missing_timeout_ms", 50u64.into())]);
    let running = run(&lost, |_| async { Ok(()) });
    let error = soon("the error", running).await.unwrap().expect_err("there is no such topic");
    let RunError::Consumer(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), ErrorKind::UnknownTopic);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_handler_holds_back_its_partition_and_no_more_than_it_was_given_is_in_memory() {
    let cluster = cluster_with(1, 2, 0).await;
    for partition in 0..2 {
        cluster.produce("t", partition, (0..2_000).map(|i| (i.to_string(), vec![0; 1_000]))).unwrap();
    }
    let small = [("max_buffered_bytes", 200_000u64.into()), ("max_poll_records", 50u64.into())];
    let consumer = consumer_with(&cluster, &small);
    let handled = Handled::default();
    let noting = Arc::clone(&handled);
    let go = Arc::new(Notify::new());
    let gate = Arc::clone(&go);
    let running = run(&consumer, move |record| {
        let (slow, gate) = (record.partition().partition == 0 && record.offset() == 0, Arc::clone(&gate));
        note(&noting, &record);
        async move {
            if slow {
                gate.notified().await;
            }
            Ok(())
        }
    });
    until("the other to be done", &consumer, |_| handled.lock().unwrap().get(&1).is_some_and(|o| o.len() == 2_000))
        .await;
    assert_eq!(handled.lock().unwrap()[&0], [0], "in order, so nothing overtakes");
    let statistics = consumer.statistics();
    assert!(statistics.held_bytes < 1_000_000, "{} bytes are held for a worker that has enough", statistics.held_bytes);
    go.notify_one();
    until("everything", &consumer, |_| total(&handled) == 4_000).await;
    closed(&consumer).await;
    soon("run to end", running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_dropped_leaves_its_partitions_at_the_first_records_that_were_not_handled() {
    let cluster = cluster_with(1, 2, 200).await;
    let small = [("enable_auto_commit", true.into()), ("max_poll_records", 20u64.into())];
    let consumer = consumer_with(&cluster, &small);
    let handled = Handled::default();
    let noting = Arc::clone(&handled);
    let run = consumer.run(move |record| {
        let stuck = record.offset() == 3;
        if !stuck {
            note(&noting, &record);
        }
        async move {
            if stuck {
                std::future::pending::<()>().await;
            }
            Ok::<(), String>(())
        }
    });
    tokio::select! {
        ended = run => panic!("{ended:?}"),
        () = until("both to be stuck", &consumer, |_| total(&handled) == 6) => {}
    }
    assert_eq!((consumer.position(&tp(0)), consumer.position(&tp(1)), consumer.paused()), (Some(3), Some(3), vec![]));
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 194).await;
    for partition in 0..2 {
        assert_eq!(seen.0[&tp(partition)], (3..100).collect::<Vec<_>>());
    }
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_takes_records_beside_handlers() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    let running = run(&consumer, |_| std::future::pending());
    until("the run", &consumer, |c| c.driver().begin_poll(None).is_err()).await;
    for error in [
        consumer.poll(Some(Duration::ZERO)).await.map(drop).unwrap_err(),
        consumer.driver().try_next_record().map(drop).unwrap_err(),
        consumer.driver().try_next_batch().map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    }
    let second = consumer.run(|_| async { Ok::<(), String>(()) }).await.expect_err("one at a time");
    assert!(matches!(second, RunError::Consumer(error) if error.kind() == ErrorKind::InvalidState));
    closed(&consumer).await;
    soon("run to end", running).await.unwrap().unwrap();
    assert!(cluster.committed("g", "t").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_pauses_its_own_partition_and_that_holds() {
    let cluster = cluster_with(1, 1, 400).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 40u64.into())]);
    let handled = Handled::default();
    let (noting, weak) = (Arc::clone(&handled), Arc::downgrade(&consumer));
    let running = run(&consumer, move |record| {
        note(&noting, &record);
        if record.offset() == 50 {
            weak.upgrade().unwrap().pause(&[tp(0)]).unwrap();
        }
        async { Ok(()) }
    });
    until("what was handed out to be handled", &consumer, |c| {
        c.paused() == [tp(0)] && c.position(&tp(0)) == Some(total(&handled) as u64)
    })
    .await;
    assert!(total(&handled) < 400, "the pause was undone");
    consumer.resume(&[tp(0)]).unwrap();
    until("the rest", &consumer, |_| total(&handled) == 400).await;
    closed(&consumer).await;
    soon("run to end", running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_hangs_beside_one_that_failed_keeps_nobody_from_closing() {
    let cluster = cluster_with(1, 2, 20).await;
    let consumer = consumer(&cluster);
    let stuck = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&stuck);
    let running = run(&consumer, move |record| {
        let fails = record.partition().partition == 1;
        if !fails {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        let other = Arc::clone(&counter);
        async move {
            if !fails {
                std::future::pending::<()>().await;
            }
            while other.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            Err("no".to_owned())
        }
    });
    until("one to hang", &consumer, |_| stuck.load(Ordering::SeqCst) == 1).await;
    closed(&consumer).await;
    let _ = soon("run to end", running).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seek_beside_handlers_is_obeyed_by_what_is_handed_out_already() {
    let cluster = cluster_with(1, 1, 400).await;
    let consumer = consumer_with(&cluster, &[("auto_commit_interval_ms", 100u64.into())]);
    let handled = Handled::default();
    let (noting, weak) = (Arc::clone(&handled), Arc::downgrade(&consumer));
    let running = run(&consumer, move |record| {
        note(&noting, &record);
        if record.offset() == 10 {
            weak.upgrade().unwrap().seek(&tp(0), 300).unwrap();
        }
        async { Ok(()) }
    });
    until("all from there", &consumer, |_| total(&handled) == 111).await;
    assert_eq!(handled.lock().unwrap()[&0], (0..=10).chain(300..400).collect::<Vec<_>>());
    soon(
        "what was left behind to hold up no commit",
        cluster.wait_for("400", |c| c.committed("g", "t").get(&0) == Some(&400)),
    )
    .await;
    closed(&consumer).await;
    soon("run to end", running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_keep_what_they_were_given_where_retention_overtakes_them() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer_with(&cluster, &[("auto_commit_interval_ms", 100u64.into())]);
    let (handled, gate) = (Handled::default(), Arc::new(Notify::new()));
    let (noting, waiting) = (Arc::clone(&handled), Arc::clone(&gate));
    let running = run(&consumer, move |record| {
        let (noting, waiting) = (Arc::clone(&noting), Arc::clone(&waiting));
        async move {
            note(&noting, &record);
            if record.offset() == 0 {
                waiting.notified().await;
            }
            Ok(())
        }
    });
    until("the first record", &consumer, |_| total(&handled) == 1).await;
    overtaken(&cluster, &consumer).await;
    gate.notify_one();
    until("all that was handed out, and what is left", &consumer, |_| total(&handled) == 30).await;
    assert_eq!(handled.lock().unwrap()[&0], (0..10).chain(40..60).collect::<Vec<_>>());
    soon("the commit", cluster.wait_for("60", |c| c.committed("g", "t").get(&0) == Some(&60))).await;
    closed(&consumer).await;
    soon("run to end", running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn close_waits_for_a_handler_that_is_at_work() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    let (release, waits) = std::sync::mpsc::channel::<()>();
    let (begun, waits) = (Arc::new(Notify::new()), Mutex::new(waits));
    let begins = Arc::clone(&begun);
    let running = run(&consumer, move |_| {
        begins.notify_one();
        // It never comes to an await in between.
        let _ = waits.lock().unwrap().recv();
        async { Ok(()) }
    });
    soon("the handler", begun.notified()).await;
    let mut ended = std::pin::pin!(consumer.close(None));
    soon("the rest to end", async {
        while consumer.state() != State::Closed {
            let changed = consumer.driver().changed();
            assert!(futures_util::poll!(&mut ended).is_pending());
            let _ = tokio::time::timeout(Duration::from_millis(10), changed).await;
        }
    })
    .await;
    assert!(futures_util::poll!(&mut ended).is_pending(), "the handler still works");
    drop(release);
    soon("close", ended).await;
    soon("run to end", running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_all_beside_handlers_and_after_them_is_of_what_they_have_finished() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer_with(&cluster, &[("auto_commit_interval_ms", 3_600_000u64.into())]);
    for last in [0, 7] {
        let gate = Arc::new(Notify::new());
        let waiting = Arc::clone(&gate);
        let running = run(&consumer, move |record| {
            let waiting = Arc::clone(&waiting);
            async move {
                if record.offset() < last {
                    return Ok(());
                }
                waiting.notified().await;
                Err("as planned".to_owned())
            }
        });
        let handed = |c: &Consumer| c.position(&tp(0)) == Some(100);
        until("all to be handed out", &consumer, handed).await;
        if last == 0 {
            consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
        }
        gate.notify_one();
        soon("run to end", running).await.unwrap().expect_err("a handler failed");
        consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
        assert_eq!(cluster.committed("g", "t").get(&0), (last > 0).then_some(&last), "{last} records were handled");
    }
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeks_back_and_forth_beside_handlers_hold_up_no_commit() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer_with(&cluster, &[("auto_commit_interval_ms", 20u64.into())]);
    let running = run(&consumer, |_| async { Ok(()) });
    let mut end = 100;
    let committed = |end| cluster.wait_for("the end", move |c| c.committed("g", "t").get(&0) == Some(&end));
    soon("the first commit", committed(end)).await;
    for _ in 0..30 {
        consumer.seek(&tp(0), end - 10).unwrap();
        // At once, or when what lies there has just been handed out.
        if end % 2 == 0 {
            until("that to be handed out", &consumer, |c| c.position(&tp(0)) == Some(end)).await;
        }
        consumer.seek(&tp(0), end).unwrap();
        cluster.fill("t", 5, 10).unwrap();
        end += 5;
        soon("a commit of the end", committed(end)).await;
    }
    closed(&consumer).await;
    soon("run to end", running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seek_counts_also_where_the_handler_fails_or_the_run_is_dropped_afterwards() {
    for (fails, seeks) in [(true, vec![300]), (true, vec![5, 300]), (true, vec![5]), (false, vec![300])] {
        let cluster = cluster_with(1, 1, 400).await;
        let consumer = consumer(&cluster);
        let (at_ten, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, waiting) = (Arc::clone(&at_ten), Arc::clone(&gate));
        let running = run(&consumer, move |record| {
            let (told, waiting) = (Arc::clone(&told), Arc::clone(&waiting));
            async move {
                if record.offset() < 10 {
                    return Ok(());
                }
                told.notify_one();
                waiting.notified().await;
                Err("as planned".to_owned())
            }
        });
        soon("the eleventh record", at_ten.notified()).await;
        for seek in &seeks {
            consumer.seek(&tp(0), *seek).unwrap();
        }
        if fails {
            gate.notify_one();
            soon("run to end", running).await.unwrap().expect_err("a handler failed");
        } else {
            running.abort();
            let _ = soon("run to end", running).await;
        }
        let there = seeks.last().copied();
        assert_eq!(consumer.position(&tp(0)), there, "fails: {fails}, seeks: {seeks:?}");
        let batch = soon("what lies there", consumer.poll(None)).await.unwrap();
        assert_eq!(batch.get(0).map(|record| record.offset()), there);
        closed(&consumer).await;
    }
}
