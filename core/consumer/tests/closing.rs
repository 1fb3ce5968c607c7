//! Close: from anywhere, any number of times, by its deadline, whatever the brokers do.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::*;
use cursus_consumer::{Consumer, Environment, ErrorKind, State};

#[tokio::test]
async fn close_ends_a_poll_that_waits_and_every_close_waits_for_the_end() {
    let cluster = cluster_with(1, 1, 0).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    let hold = cluster.hold("LEAVE_GROUP");
    let (poll, next, (), (), ()) = tokio::join!(
        soon("the poll", consumer.poll(None)),
        soon("the iteration", consumer.next_record()),
        closed(&consumer),
        closed(&consumer),
        async {
            soon("the leave to arrive", hold.reached()).await;
            assert_eq!(consumer.state(), State::Closing);
            hold.release();
        }
    );
    assert_eq!(poll.expect_err("closed").kind(), ErrorKind::Closed);
    assert!(next.unwrap().is_none(), "iteration just ends");
}

#[tokio::test]
async fn close_before_start_is_quick_and_sends_nothing() {
    let cluster = cluster_with(1, 1, 0).await;
    let consumer = consumer(&cluster);
    closed(&consumer).await;
    assert!(cluster.requests().is_empty());
}

#[tokio::test]
async fn close_while_joining_leaves_what_the_join_makes() {
    let cluster = cluster_with(1, 1, 0).await;
    let hold = cluster.hold("JOIN_GROUP");
    let consumer = consumer(&cluster);
    consumer.begin().unwrap();
    soon("the join to arrive", hold.reached()).await;
    tokio::join!(closed(&consumer), async {
        until("closing", &consumer, |c| c.state() != State::Rebalancing).await;
        hold.release();
    });
    assert!(cluster.group("g").is_some_and(|group| group.members.is_empty()), "{:?}", cluster.group("g"));
}

#[tokio::test]
async fn close_ends_by_its_deadline_with_every_broker_gone_or_silent_and_says_what_it_gave_up() {
    for silent in [false, true] {
        let cluster = cluster_with(1, 1, 10).await;
        let consumer = consumer(&cluster);
        fetched(&cluster, &consumer).await;
        let batch = soon("records", consumer.poll(None)).await.unwrap();
        let holds = if silent { vec![cluster.hold("BATCH_COMMIT"), cluster.hold("LEAVE_GROUP")] } else { vec![] };
        if !silent {
            cluster.kill_broker(0).await.unwrap();
            until("it to be noticed", &consumer, |c| c.statistics().coordinator_unreachable_seconds.is_some()).await;
        }
        let commit = consumer.begin_commit((&batch).into(), None).unwrap();
        soon("close's own deadline", consumer.close(Some(Duration::from_millis(300)))).await;
        assert_eq!(consumer.state(), State::Closed);
        let error = soon("the commit", commit).await.expect_err("it was never answered");
        let expected = if silent { ErrorKind::CommitOutcomeUnknown } else { ErrorKind::TimedOut };
        assert_eq!(error.kind(), expected, "{error}");
        let given_up = consumer.statistics().given_up.join("; ");
        assert!(given_up.contains("committing t-0 at 10") && given_up.contains("leaving group g"), "{given_up}");
        drop(holds);
    }
}

#[tokio::test]
async fn close_while_another_member_joins_synchronises_and_leaves() {
    let cluster = cluster_with(1, 2, 10).await;
    let slow = [("heartbeat_interval_ms", 60_000u64.into()), ("expected_session_timeout_ms", 600_000u64.into())];
    let first = consumer_with(&cluster, &slow);
    started(&first).await;
    let second = consumer_with(&cluster, &slow);
    started(&second).await;
    // The first doesn't know yet that the generation is another one.
    closed(&first).await;
    let members: Vec<String> = cluster.group("g").unwrap().members.into_keys().collect();
    assert_eq!(members, [second.statistics().member.unwrap()]);
    closed(&second).await;
}

#[tokio::test]
async fn close_in_the_middle_of_a_rebalance_wins() {
    let cluster = cluster_with(1, 2, 10).await;
    let first = consumer(&cluster);
    started(&first).await;
    let hold = cluster.hold("SYNC_GROUP");
    let second = consumer(&cluster);
    second.begin().unwrap();
    soon("a sync to arrive", hold.reached()).await;
    let (first_closed, second_closed) = (closed(&first), closed(&second));
    tokio::join!(first_closed, second_closed, async { hold.release() });
    assert!(cluster.group("g").unwrap().members.is_empty());
    soon("the connections to go", cluster.wait_for("no connections", |c| c.connections(0) == 0)).await;
}

#[tokio::test]
async fn nothing_outlives_closed() {
    let cluster = cluster_with(3, 6, 600).await;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    let consumers: Vec<_> = (0..3).map(|_| consumer(&cluster)).collect();
    for consumer in &consumers {
        started(consumer).await;
    }
    for consumer in &consumers {
        closed(consumer).await;
    }
    for broker in 0..3 {
        soon("the sockets to go", cluster.wait_for("no connections", |c| c.connections(broker) == 0)).await;
    }
    soon("the tasks to go", async {
        while metrics.num_alive_tasks() > before {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_consumer_dropped_in_the_middle_of_close_is_closed_all_the_same() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    let hold = cluster.hold("LEAVE_GROUP");
    {
        let close = consumer.close(None);
        tokio::pin!(close);
        tokio::select! {
            () = &mut close => panic!("the leave is held"),
            () = hold.reached() => {}
        }
    }
    drop(consumer);
    hold.release();
    soon("the member to leave", cluster.wait_for("no members", |c| c.group("g").unwrap().members.is_empty())).await;
    soon("its connections to go", cluster.wait_for("no connections", |c| c.connections(0) == 0)).await;
}

#[tokio::test]
async fn a_member_that_is_not_answered_about_its_topic_still_syncs() {
    // METADATA for readers and SYNC for the membership are open at once: the failure of one is not the failure of the other.
    let cluster = cluster_with(3, 3, 30).await;
    let first = consumer(&cluster);
    let mut seen = Seen::default();
    read(&first, &mut seen, 30).await;
    cluster.fail_next("METADATA", 10, "cluster_metadata_unavailable").unwrap();
    cluster.cut_connections(None).unwrap();
    let second = consumer(&cluster);
    started(&second).await;
    until("both to share", &first, |first| first.state() == State::Running && first.assignment().len() < 3).await;
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test]
async fn a_leave_that_meets_a_cluster_in_transition_is_tried_again() {
    let cluster = cluster_with(1, 1, 0).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    // A new leader takes seconds: more tries than brokers that are gone get.
    cluster.fail_next("LEAVE_GROUP", 20, "raft_apply_failed reason=\"node is not the leader\"").unwrap();
    closed(&consumer).await;
    assert!(cluster.group("g").unwrap().members.is_empty());
    assert!(consumer.statistics().given_up.is_empty());
}

#[test]
fn a_consumer_whose_runtime_is_gone_is_closed_and_nobody_waits_for_it() {
    let engine = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let cluster = engine.block_on(cluster_with(1, 1, 0));
    let consumer = engine.block_on(async { consumer(&cluster) });
    engine.block_on(started(&consumer));
    drop(cluster);
    engine.shutdown_background();
    let caller = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    caller.block_on(async {
        let error = soon("the poll", consumer.poll(None)).await.expect_err("the engine is gone");
        assert_eq!(error.kind(), ErrorKind::Internal);
        closed(&consumer).await;
    });
}

#[tokio::test]
async fn a_time_that_no_clock_will_see_is_for_ever() {
    let cluster = cluster_with(1, 1, 0).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    soon("close", consumer.close(Some(Duration::MAX))).await;
    assert_eq!(consumer.state(), State::Closed);
}

#[tokio::test]
async fn a_consumer_that_nobody_holds_any_more_leaves_its_group_without_being_waited_for() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    drop(consumer);
    soon("the member to leave", cluster.wait_for("no members", |c| c.group("g").unwrap().members.is_empty())).await;
    soon("its connections to go", cluster.wait_for("no connections", |c| c.connections(0) == 0)).await;
    assert_eq!(received(&cluster, "LEAVE_GROUP"), 1);
    // One that never started had nothing to end.
    drop(Consumer::new(settings(&cluster, &[]), Environment::current()));
}

#[tokio::test]
async fn members_that_close_one_after_another_commit_what_each_has_processed() {
    let cluster = cluster_with(1, 2, 200).await;
    let auto = [("enable_auto_commit", true.into()), ("auto_commit_interval_ms", 3_600_000u64.into())];
    let consumers = [(); 2].map(|()| consumer_with(&cluster, &auto));
    for consumer in &consumers {
        started(consumer).await;
    }
    for consumer in &consumers {
        until("a partition each", consumer, |c| c.state() == State::Running && c.assignment().len() == 1).await;
        let mut seen = Seen::default();
        read(consumer, &mut seen, 100).await;
        // The next poll says that they are processed.
        assert!(consumer.poll(Some(Duration::ZERO)).await.unwrap().is_empty());
    }
    // Members close quicker than heartbeats tell the others of it.
    let holds = [(); 2].map(|()| cluster.hold("HEARTBEAT"));
    for hold in &holds {
        soon("a heartbeat that isn't answered", hold.reached()).await;
    }
    // The second has both partitions from the moment in which the first leaves, and doesn't know it.
    for consumer in &consumers {
        closed(consumer).await;
        assert_eq!(consumer.statistics().given_up, Vec::<String>::new());
    }
    assert_eq!(cluster.committed("g", "t"), BTreeMap::from([(0, 100), (1, 100)]));
    drop(holds);
}
