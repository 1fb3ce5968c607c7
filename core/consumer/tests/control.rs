//! What an application does to a consumer beside polling and committing: seek, pause, acknowledge, ask, assign, be away.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use cursus_consumer::{Commit, Consumer, Environment, ErrorKind, Rebalance, Settings, State, Value};

fn offsets(seen: &Seen, partition: u32) -> Vec<u64> {
    seen.0.get(&tp(partition)).cloned().unwrap_or_default()
}

// ---- Seek ------------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_seek_goes_back_and_forward_whatever_is_committed() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    consumer.seek(&tp(0), 20).unwrap();
    assert_eq!(consumer.position(&tp(0)), Some(20));
    let mut again = Seen::default();
    read(&consumer, &mut again, 80).await;
    assert_eq!(offsets(&again, 0), (20..100).collect::<Vec<_>>(), "below the committed offset");
    consumer.seek(&tp(0), 95).unwrap();
    let mut tail = Seen::default();
    read(&consumer, &mut tail, 5).await;
    assert_eq!(offsets(&tail, 0), (95..100).collect::<Vec<_>>());
    assert_eq!(consumer.statistics().rebalances, 0);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_seek_drops_what_was_fetched_and_leaves_other_partitions_alone() {
    let cluster = cluster_with(1, 2, 200).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 10u64.into())]);
    fetched(&cluster, &consumer).await;
    consumer.seek(&tp(0), 50).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 150).await;
    assert_eq!(offsets(&seen, 0), (50..100).collect::<Vec<_>>());
    assert_eq!(offsets(&seen, 1), (0..100).collect::<Vec<_>>());
    closed(&consumer).await;
}

#[tokio::test]
async fn below_the_committed_offset_nothing_is_committed_automatically_until_it_is_passed() {
    let cluster = cluster_with(1, 1, 100).await;
    let auto = [("enable_auto_commit", true.into()), ("auto_commit_interval_ms", 20u64.into())];
    let consumer = consumer_with(&cluster, &auto);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    let _ = consumer.poll(Some(Duration::ZERO)).await.unwrap();
    soon("the commit", cluster.wait_for("100", |c| c.committed("g", "t").get(&0) == Some(&100))).await;
    consumer.seek(&tp(0), 10).unwrap();
    cluster.clear_requests();
    let mut again = Seen::default();
    read(&consumer, &mut again, 90).await;
    let _ = consumer.poll(Some(Duration::from_millis(60))).await.unwrap();
    assert_eq!(received(&cluster, "BATCH_COMMIT"), 0, "the broker would refuse each of them");
    cluster.fill("t", 1, 10).unwrap();
    read(&consumer, &mut again, 91).await;
    let _ = consumer.poll(Some(Duration::ZERO)).await.unwrap();
    soon("the commit", cluster.wait_for("101", |c| c.committed("g", "t").get(&0) == Some(&101))).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn before_an_assignment_a_seek_is_refused_and_a_rebalance_forgets_it() {
    let cluster = cluster_with(1, 2, 100).await;
    let first = consumer(&cluster);
    for refused in [first.seek(&tp(0), 0), first.pause(&[tp(0)]), first.resume(&[tp(0)])] {
        let error = refused.expect_err("nothing is assigned yet");
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        assert!(error.to_string().contains("t-0"), "{error}");
    }
    started(&first).await;
    first.seek(&tp(0), 30).unwrap();
    first.pause(&[tp(0)]).unwrap();
    let second = consumer(&cluster);
    started(&second).await;
    until("the rebalance", &first, |c| c.state() == State::Running && c.assignment().len() == 1).await;
    let kept = first.assignment().pop().unwrap();
    assert_eq!((first.position(&kept), first.paused()), (Some(0), vec![]), "the committed offset counts");
    let lost = tp(1 - kept.partition);
    assert_eq!(first.seek(&lost, 0).expect_err("it is the other's").kind(), ErrorKind::Rebalancing);
    assert_eq!(first.poll(None).await.expect_err("told once").kind(), ErrorKind::Rebalancing);
    assert_eq!(first.seek(&lost, 0).expect_err("it is the other's").kind(), ErrorKind::InvalidState);
    closed(&first).await;
    assert_eq!(first.seek(&kept, 0).expect_err("closed").kind(), ErrorKind::Closed);
    closed(&second).await;
}

#[tokio::test]
async fn a_seek_to_where_the_group_was_thought_to_be_is_law_though_it_is_further() {
    let cluster = cluster_with(1, 1, 20).await;
    let consumer = consumer(&cluster);
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    // The commit counts and its answer is lost: this consumer doesn't know how far the group is.
    cluster.lose_reply("BATCH_COMMIT", 1).unwrap();
    let hold = cluster.hold("JOIN_GROUP");
    let commit = consumer.begin_commit((&batch).into(), Some(Duration::from_millis(200))).unwrap();
    assert_eq!(soon("the commit", commit).await.expect_err("unanswered").kind(), ErrorKind::CommitOutcomeUnknown);
    assert_eq!(cluster.committed("g", "t")[&0], batch.len() as u64);
    drop(hold);
    consumer.seek(&tp(0), 0).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    assert_eq!(offsets(&seen, 0), (0..20).collect::<Vec<_>>());
    closed(&consumer).await;
}

#[tokio::test]
async fn a_commit_of_all_commits_what_was_returned_and_not_where_was_sought() {
    let cluster = cluster_with(1, 2, 40).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 40).await;
    consumer.seek(&tp(0), 1_000).unwrap();
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    assert_eq!(cluster.committed("g", "t"), BTreeMap::from([(1, 20)]));
    closed(&consumer).await;
}

// ---- Pause -----------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_paused_partition_returns_nothing_and_the_membership_goes_on() {
    let cluster = cluster_with(1, 2, 200).await;
    let consumer = consumer(&cluster);
    started(&consumer).await;
    consumer.pause(&[tp(0)]).unwrap();
    assert_eq!(consumer.paused(), [tp(0)]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    assert_eq!((offsets(&seen, 0).len(), offsets(&seen, 1).len()), (0, 100));
    assert!(consumer.poll(Some(Duration::from_millis(30))).await.unwrap().is_empty());
    let heartbeats = received(&cluster, "HEARTBEAT");
    soon("heartbeats", cluster.wait_for("more", |c| received(c, "HEARTBEAT") > heartbeats + 2)).await;
    consumer.resume(&[tp(0)]).unwrap();
    read(&consumer, &mut seen, 200).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_partition_that_filled_the_buffer_starves_nobody_and_loses_nothing() {
    let cluster = cluster_with(1, 2, 0).await;
    for partition in 0..2 {
        cluster.produce("t", partition, (0..400).map(|i| (i.to_string(), vec![0; 1_000]))).unwrap();
    }
    let small = [("max_buffered_bytes", 50_000u64.into()), ("max_poll_records", 10u64.into())];
    let consumer = consumer_with(&cluster, &small);
    started(&consumer).await;
    until("something", &consumer, |c| c.statistics().buffered_bytes > 0).await;
    let buffered = |c: &Consumer, p: u32| c.statistics().partitions[&tp(p)].buffered_bytes > 0;
    let (paused, other) = if buffered(&consumer, 0) { (0, 1) } else { (1, 0) };
    consumer.pause(&[tp(paused)]).unwrap();
    let mut seen = Seen::default();
    soon("all of the other", async {
        while offsets(&seen, other).len() < 400 {
            seen.add(&consumer.poll(Some(PATIENCE)).await.unwrap());
        }
    })
    .await;
    assert!(offsets(&seen, paused).is_empty());
    consumer.resume(&[tp(paused)]).unwrap();
    read(&consumer, &mut seen, 800).await;
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

// ---- Acknowledgements ------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn acknowledged_records_are_committed_up_to_the_first_that_is_missing() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer_with(&cluster, &[("auto_commit_interval_ms", 20u64.into())]);
    let mut records = Vec::new();
    while records.len() < 10 {
        records.push(soon("a record", consumer.next_record()).await.unwrap().unwrap());
    }
    for index in [4, 0, 2, 1] {
        consumer.ack(&records[index]).unwrap();
    }
    soon("the prefix", cluster.wait_for("3", |c| c.committed("g", "t").get(&0) == Some(&3))).await;
    for index in [9, 8, 7, 6, 5] {
        consumer.ack(&records[index]).unwrap();
    }
    consumer.ack(&records[3]).unwrap();
    // Close flushes what is acknowledged.
    closed(&consumer).await;
    assert_eq!(cluster.committed("g", "t")[&0], 10);
    assert_eq!(consumer.ack(&records[0]).expect_err("closed").kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn an_acknowledgement_is_fenced_and_refused_where_polls_prove() {
    let cluster = cluster_with(1, 2, 20).await;
    let auto = consumer_with(&cluster, &[("enable_auto_commit", true.into()), ("group_id", "other".into())]);
    let record = soon("a record", auto.next_record()).await.unwrap().unwrap();
    let error = auto.ack(&record).expect_err("polls prove");
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    assert!(error.to_string().contains("enable_auto_commit"), "{error}");
    closed(&auto).await;
    let first = consumer(&cluster);
    assert_eq!(first.ack(&record).expect_err("another's").kind(), ErrorKind::InvalidArgument);
    let own = soon("a record", first.next_record()).await.unwrap().unwrap();
    let second = consumer(&cluster);
    started(&second).await;
    until("the rebalance", &first, |c| c.statistics().rebalances == 1).await;
    assert_eq!(first.ack(&own).expect_err("of an ended assignment").kind(), ErrorKind::Rebalancing);
    closed(&first).await;
    closed(&second).await;
}

// ---- Questions -------------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn bounds_lag_and_subscription_are_told() {
    let cluster = cluster_with(3, 3, 300).await;
    cluster.delete_records("t", 1, 40).unwrap();
    let consumer = consumer_with(&cluster, &[("max_poll_records", 10u64.into())]);
    assert_eq!(consumer.subscription(), ["t"]);
    started(&consumer).await;
    let asked = [tp(0), tp(1), tp(7)];
    let begins = consumer.begin_offsets(&asked, Some(PATIENCE)).await.unwrap();
    assert_eq!(begins, BTreeMap::from([(tp(0), 0), (tp(1), 40)]), "a partition that doesn't exist is left out");
    let ends = consumer.end_offsets(&asked, Some(PATIENCE)).await.unwrap();
    assert_eq!(ends, BTreeMap::from([(tp(0), 100), (tp(1), 100)]));
    let lag = consumer.lag(Some(PATIENCE)).await.unwrap();
    assert_eq!(lag, BTreeMap::from([(tp(0), 100), (tp(1), 60), (tp(2), 100)]));
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 260).await;
    assert!(consumer.lag(Some(PATIENCE)).await.unwrap().values().all(|lag| *lag == 0));
    let other = cursus_consumer::TopicPartition::new(cursus_consumer::Topic::new("u").unwrap(), 0);
    assert_eq!(consumer.end_offsets(&[other], None).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    for broker in 0..3 {
        cluster.kill_broker(broker).await.unwrap();
    }
    let late = consumer.lag(Some(Duration::from_millis(50))).await.expect_err("nobody is there");
    assert_eq!(late.kind(), ErrorKind::TimedOut, "{late}");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_group_is_described_with_members_owners_and_lag() {
    let cluster = cluster_with(3, 3, 300).await;
    let first = consumer_with(&cluster, &[("consumer_id", "one".into())]);
    let mut seen = Seen::default();
    read(&first, &mut seen, 300).await;
    first.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    cluster.fill("t", 30, 10).unwrap();
    let group = first.describe_group(Some(PATIENCE)).await.unwrap();
    assert_eq!((group.group.as_str(), group.topic.as_str(), group.state.as_str()), ("g", "t", "Stable"));
    assert_eq!(Some(group.generation), first.statistics().generation);
    let [member] = &group.members[..] else { panic!("{group:?}") };
    assert_eq!(Some(&member.member), first.statistics().member.as_ref());
    assert_eq!(member.partitions, [tp(0), tp(1), tp(2)]);
    for (partition, told) in &group.partitions {
        assert_eq!(
            (told.committed, told.lag, &told.member),
            (Some(100), Some(10), &first.statistics().member),
            "{partition}"
        );
    }
    closed(&first).await;
}

#[tokio::test]
async fn group_metadata_names_the_member_and_a_batch_its_own_generation() {
    let cluster = cluster_with(1, 2, 20).await;
    let first = consumer(&cluster);
    assert_eq!(first.group_metadata().expect_err("not yet").kind(), ErrorKind::InvalidState);
    let batch = soon("records", first.poll(None)).await.unwrap();
    let metadata = first.group_metadata().unwrap();
    assert_eq!((metadata.group.as_str(), metadata.topic.as_str()), ("g", "t"));
    assert_eq!(Some(&metadata.member), first.statistics().member.as_ref());
    assert_eq!(batch.group_metadata(), Some(&metadata));
    let second = consumer(&cluster);
    started(&second).await;
    until("the rebalance", &first, |c| c.state() == State::Running && c.statistics().rebalances == 1).await;
    let now = first.group_metadata().unwrap();
    assert!(now.generation > metadata.generation);
    assert_eq!(batch.group_metadata(), Some(&metadata), "records keep what they were read under");
    closed(&first).await;
    assert_eq!(first.group_metadata().expect_err("closed").kind(), ErrorKind::Closed);
    closed(&second).await;
}

#[tokio::test]
async fn who_listens_hears_of_every_assignment_in_order_and_of_the_end() {
    let cluster = cluster_with(1, 2, 20).await;
    let first = consumer(&cluster);
    first.driver().listen();
    let next = async |what: &str| {
        soon(what, async {
            loop {
                let changed = first.driver().changed();
                match first.driver().next_rebalance() {
                    Some(rebalance) => break rebalance,
                    None => changed.await,
                }
            }
        })
        .await
    };
    first.begin().unwrap();
    assert_eq!(next("the first assignment").await, Rebalance::Assigned(vec![tp(0), tp(1)]));
    let second = consumer(&cluster);
    started(&second).await;
    assert_eq!(next("the revocation").await, Rebalance::Revoked(vec![tp(0), tp(1)]));
    until("another assignment", &first, |first| first.state() == State::Running).await;
    assert_eq!(first.driver().next_rebalance(), None, "first a poll tells what has ended");
    assert_eq!(first.poll(None).await.expect_err("told once").kind(), ErrorKind::Rebalancing);
    let Rebalance::Assigned(kept) = next("the new assignment").await else { panic!("revoked twice") };
    assert_eq!(kept.len(), 1);
    closed(&first).await;
    assert_eq!(next("close").await, Rebalance::Revoked(kept));
    closed(&second).await;
}

// ---- Spare members ---------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_spare_member_idles_without_an_error_and_takes_over() {
    let cluster = cluster_with(1, 1, 20).await;
    let (first, second) = (consumer(&cluster), consumer(&cluster));
    started(&first).await;
    started(&second).await;
    until("one of them to be spare", &first, |first| first.assignment().len() + second.assignment().len() == 1).await;
    let (owner, spare) = if first.assignment().is_empty() { (second, first) } else { (first, second) };
    // It may have owned the partition until the other joined.
    match spare.poll(Some(Duration::from_millis(20))).await {
        Ok(batch) => assert!(batch.is_empty()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Rebalancing),
    }
    until("it to idle in peace", &spare, |spare| {
        spare.state() == State::Running && spare.statistics().failing_seconds.is_none()
    })
    .await;
    closed(&owner).await;
    let mut seen = Seen::default();
    read(&spare, &mut seen, 20).await;
    seen.assert_exactly_in_order();
    closed(&spare).await;
}

// ---- Nobody polls ----------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_member_that_nobody_polls_leaves_is_told_once_and_joins_again() {
    let cluster = cluster_with(1, 1, 20).await;
    let consumer = consumer_with(&cluster, &[("max_poll_interval_ms", 200u64.into())]);
    let batch = soon("records", consumer.poll(None)).await.unwrap();
    soon("it to leave", cluster.wait_for("no member", |c| c.group("g").is_some_and(|g| g.members.is_empty()))).await;
    assert_eq!(consumer.commit(&batch, None).await.expect_err("stale").kind(), ErrorKind::Rebalancing);
    let error = consumer.poll(Some(Duration::ZERO)).await.expect_err("told once");
    assert_eq!((error.kind(), error.stale()), (ErrorKind::MaxPollInterval, &[tp(0)][..]));
    assert!(error.to_string().contains("max_poll_interval_ms=200"), "{error}");
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    assert_eq!(offsets(&seen, 0), (0..20).collect::<Vec<_>>(), "nothing was committed, so everything comes again");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_poll_that_waits_and_a_slow_handler_that_polls_in_time_keep_the_membership() {
    let cluster = cluster_with(1, 1, 0).await;
    let consumer = consumer_with(&cluster, &[("max_poll_interval_ms", 100u64.into())]);
    started(&consumer).await;
    let member = consumer.statistics().member;
    assert!(consumer.poll(Some(Duration::from_millis(400))).await.unwrap().is_empty(), "an open poll never expires");
    let waiting = tokio::time::timeout(Duration::from_millis(300), consumer.next_record()).await;
    assert!(waiting.is_err(), "nor does an iterator that waits");
    cluster.fill("t", 1, 10).unwrap();
    assert_eq!(soon("the record", consumer.poll(None)).await.unwrap().len(), 1);
    assert_eq!((consumer.statistics().member, consumer.statistics().rebalances), (member, 0));
    closed(&consumer).await;
}

#[tokio::test]
async fn a_start_after_that_tells_it_too_and_joins_again() {
    let cluster = cluster_with(1, 1, 20).await;
    let consumer = consumer_with(&cluster, &[("max_poll_interval_ms", 100u64.into())]);
    started(&consumer).await;
    soon("it to leave", cluster.wait_for("no member", |c| c.group("g").is_some_and(|g| g.members.is_empty()))).await;
    until("the statistics to say so", &consumer, |c| {
        let statistics = c.statistics();
        statistics.failing_seconds.is_some()
            && statistics.last_error.is_some_and(|e| e.contains("max_poll_interval_ms"))
    })
    .await;
    let error = consumer.start(Some(PATIENCE)).await.expect_err("told once");
    assert_eq!(error.kind(), ErrorKind::MaxPollInterval);
    started(&consumer).await;
    assert_eq!(consumer.statistics().failing_seconds, None);
    closed(&consumer).await;
}

#[tokio::test]
async fn close_of_a_member_that_has_left_because_nobody_polled_ends() {
    let cluster = cluster_with(1, 1, 20).await;
    let consumer = consumer_with(&cluster, &[("max_poll_interval_ms", 100u64.into())]);
    started(&consumer).await;
    soon("it to leave", cluster.wait_for("no member", |c| c.group("g").is_some_and(|g| g.members.is_empty()))).await;
    closed(&consumer).await;
    assert!(consumer.statistics().given_up.is_empty());
}

// ---- Without a group -------------------------------------------------------------------------------------------------------

fn alone(cluster: &cursus_embedded::Cluster, more: &[(&str, Value)]) -> Arc<Consumer> {
    let base = [
        ("brokers", Value::List(cluster.brokers())),
        ("topic", "t".into()),
        ("retry_backoff_ms", 10u64.into()),
        ("fetch_wait_ms", 100u64.into()),
        ("mode", mode().into()),
    ];
    let settings = Settings::from_values(base.into_iter().chain(more.iter().cloned())).unwrap();
    Arc::new(Consumer::new(settings, Environment::current()))
}

#[tokio::test]
async fn without_a_group_what_is_assigned_is_read_and_nothing_is_asked_of_a_coordinator() {
    let cluster = cluster_with(3, 3, 300).await;
    let consumer = alone(&cluster, &[]);
    assert_eq!(consumer.poll(None).await.expect_err("nothing to read").kind(), ErrorKind::InvalidState);
    consumer.assign([(tp(0), Some(90)), (tp(2), None)]).unwrap();
    started(&consumer).await;
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 110).await;
    assert_eq!(offsets(&seen, 0), (90..100).collect::<Vec<_>>());
    assert_eq!(offsets(&seen, 2), (0..100).collect::<Vec<_>>());
    // Another assignment replaces it, and no poll makes a fuss.
    consumer.assign([(tp(1), None)]).unwrap();
    let mut other = Seen::default();
    read(&consumer, &mut other, 100).await;
    other.assert_exactly_in_order();
    assert_eq!(offsets(&other, 1).len(), 100, "from the moment of the call on nothing else comes");
    consumer.seek(&tp(1), 99).unwrap();
    assert_eq!(soon("the last", consumer.poll(None)).await.unwrap().iter().next().unwrap().offset, 99);
    assert_eq!(consumer.lag(Some(PATIENCE)).await.unwrap(), BTreeMap::from([(tp(1), 0)]));
    for error in [
        consumer.commit(Commit::All, None).await.unwrap_err(),
        consumer.committed(&tp(0), None).await.unwrap_err(),
        consumer.describe_group(None).await.unwrap_err(),
        consumer.group_metadata().unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidState);
        assert!(error.to_string().contains("group_id"), "{error}");
    }
    closed(&consumer).await;
    let asked: std::collections::BTreeSet<_> = cluster.requests().into_iter().map(|r| r.command).collect();
    for command in ["FIND_COORDINATOR", "JOIN_GROUP", "HEARTBEAT", "LEAVE_GROUP", "BATCH_COMMIT", "FETCH_OFFSET"] {
        assert!(!asked.iter().any(|asked| asked == command), "{asked:?}");
    }
    assert!(cluster.group("g").is_none());
}

#[tokio::test]
async fn without_a_group_a_killed_leader_is_survived_and_latest_begins_at_the_end() {
    let cluster = cluster_with(3, 3, 300).await;
    let consumer = alone(&cluster, &[("auto_offset_reset", "latest".into())]);
    consumer.assign((0..3).map(|partition| (tp(partition), None))).unwrap();
    started(&consumer).await;
    cluster.kill_broker(1).await.unwrap();
    cluster.fill("t", 300, 10).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 300).await;
    for partition in 0..3 {
        assert_eq!(offsets(&seen, partition), (100..200).collect::<Vec<_>>());
    }
    closed(&consumer).await;
}

#[tokio::test]
async fn a_partition_that_does_not_exist_yet_is_waited_for_and_said_so() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = alone(&cluster, &[]);
    consumer.assign([(tp(0), None), (tp(1), None)]).unwrap();
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    until("it to be said", &consumer, |c| c.statistics().last_error.is_some_and(|e| e.contains("t-1"))).await;
    cluster.create_topic("t", 2).unwrap();
    cluster.produce("t", 1, [("k", "v")]).unwrap();
    read(&consumer, &mut seen, 11).await;
    until("it to be over", &consumer, |c| c.statistics().failing_seconds.is_none()).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_group_hands_partitions_out_itself() {
    let cluster = cluster_with(1, 1, 10).await;
    let consumer = consumer(&cluster);
    let error = consumer.assign([(tp(0), None)]).expect_err("it has a group");
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    assert!(error.to_string().contains("group_id"), "{error}");
}

// ---- From outside ----------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn asking_about_a_group_does_not_join_it() {
    let cluster = cluster_with(3, 2, 20).await;
    let member = consumer(&cluster);
    let mut seen = Seen::default();
    read(&member, &mut seen, 20).await;
    member.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    let outside = consumer(&cluster);
    let group = outside.describe_group(Some(PATIENCE)).await.unwrap();
    assert_eq!((group.members.len(), group.partitions[&tp(0)].lag), (1, Some(0)));
    assert_eq!(outside.committed(&tp(1), Some(PATIENCE)).await.unwrap(), Some(10));
    assert_eq!(outside.end_offsets(&[tp(0)], Some(PATIENCE)).await.unwrap()[&tp(0)], 10);
    assert_eq!(outside.state(), State::New);
    closed(&outside).await;
    assert_eq!((member.statistics().rebalances, received(&cluster, "JOIN_GROUP")), (0, 1));
    closed(&member).await;
}

#[tokio::test]
async fn a_group_that_nobody_has_joined_is_described_as_one_without_members() {
    let cluster = cluster_with(1, 1, 20).await;
    let outside = consumer(&cluster);
    let group = outside.describe_group(Some(PATIENCE)).await.unwrap();
    assert_eq!((group.state.as_str(), group.members.len(), group.generation), ("Dead", 0, 0));
    assert_eq!((group.partitions[&tp(0)].committed, group.partitions[&tp(0)].lag), (None, Some(20)));
    assert!(cluster.group("g").is_none(), "it was not made by asking");
    closed(&outside).await;
}

#[tokio::test]
async fn a_commit_of_all_takes_only_what_is_acknowledged_where_records_are() {
    let cluster = cluster_with(1, 1, 20).await;
    let consumer = consumer_with(&cluster, &[("auto_commit_interval_ms", 3_600_000u64.into())]);
    let mut records = Vec::new();
    while records.len() < 5 {
        records.push(soon("a record", consumer.next_record()).await.unwrap().unwrap());
    }
    consumer.ack(&records[0]).unwrap();
    consumer.ack(&records[3]).unwrap();
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    assert_eq!(cluster.committed("g", "t")[&0], 1);
    closed(&consumer).await;
}
