//! Memberships are resumed where they can be, and begun anew where the coordinator has forgotten them.

mod common;

use std::time::Duration;

use common::*;
use cursus_consumer::{Commit, Consumer, State};
use cursus_embedded::{Cluster, Options};

/// Whether a command was received whose text has all of these words.
fn asked(cluster: &Cluster, command: &str, words: &[&str]) -> bool {
    let has = |text: &str, word: &str| text.split(' ').any(|found| found == word);
    cluster
        .requests()
        .iter()
        .any(|request| request.command == command && words.iter().all(|word| has(&request.text, word)))
}

fn member_word(consumer: &Consumer) -> String {
    format!("member={}", consumer.statistics().member.expect("a member"))
}

#[tokio::test]
async fn a_lost_connection_is_resumed_by_id_and_generation_and_what_was_read_may_still_be_committed() {
    let cluster = cluster_with(3, 2, 20).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    let before = consumer.statistics();
    cluster.clear_requests();
    cluster.lose_reply("HEARTBEAT", 1).unwrap();
    let (member, generation) = (member_word(&consumer), format!("generation={}", before.generation.unwrap()));
    let resume = cluster.wait_for("the resume", |c| asked(c, "JOIN_GROUP", &[&member, &generation]));
    soon("the resume", resume).await;
    consumer.commit(Commit::All, Some(PATIENCE)).await.expect("the fences go on");
    assert_eq!(cluster.committed("g", "t"), cluster.end_offsets("t"));
    let after = consumer.statistics();
    assert_eq!((after.member, after.generation, after.rebalances), (before.member, before.generation, 0));
    assert!(!asked(&cluster, "SYNC_GROUP", &[]), "the same generation is the same assignment");
    closed(&consumer).await;
}

#[tokio::test]
async fn a_member_whose_group_has_moved_on_synchronises_and_does_not_join_again() {
    let cluster = cluster_with(3, 4, 40).await;
    let first = consumer(&cluster);
    let mut seen = Seen::default();
    read(&first, &mut seen, 40).await;
    let member = first.statistics().member;
    let second = consumer(&cluster);
    started(&second).await;
    until("the new assignment", &first, |c| c.assignment().len() == 2).await;
    let generation = format!("generation={}", second.statistics().generation.unwrap());
    assert!(asked(&cluster, "SYNC_GROUP", &[&member_word(&first), &generation]));
    assert_eq!(first.statistics().member, member);
    assert_eq!(received(&cluster, "JOIN_GROUP"), 2, "one for each");
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test]
async fn a_resume_that_finds_the_group_moved_on_synchronises() {
    let cluster = cluster_with(1, 4, 40).await;
    let first = consumer(&cluster);
    let mut seen = Seen::default();
    read(&first, &mut seen, 40).await;
    first.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    let member = first.statistics().member;
    // While its heartbeat isn't answered the first one learns nothing.
    let hold = cluster.hold("HEARTBEAT");
    soon("a heartbeat", hold.reached()).await;
    let second = consumer(&cluster);
    started(&second).await;
    cluster.clear_requests();
    cluster.cut_connections(None).unwrap();
    until("the new assignment", &first, |c| c.assignment().len() == 2 && c.state() == State::Running).await;
    assert!(asked(&cluster, "JOIN_GROUP", &[&member_word(&first), "generation=1"]));
    assert!(asked(&cluster, "SYNC_GROUP", &[&member_word(&first), "generation=2"]));
    assert_eq!((first.statistics().member, first.statistics().rebalances), (member, 1));
    drop(hold);
    closed(&first).await;
    closed(&second).await;
}

#[tokio::test]
async fn a_ghost_left_by_a_lost_join_reply_expires_and_every_partition_is_read() {
    let options = Options {
        brokers: 1,
        session_timeout: Duration::from_millis(500),
        expiry_check: Duration::from_millis(50),
        ..Default::default()
    };
    let cluster = Cluster::start(options).await.unwrap();
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
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
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
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
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
async fn a_broker_that_comes_back_without_its_data_is_believed_about_what_is_committed() {
    let cluster = cluster_with(1, 1, 100).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 100).await;
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    // Another cluster takes over its address: without the group, and with another log under the topic's name.
    let port = cluster.brokers()[0].rsplit_once(':').unwrap().1.parse().unwrap();
    cluster.stop().await;
    let options = Options { brokers: 1, port: Some(port), ..Default::default() };
    let wiped = Cluster::start(options).await.unwrap();
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
    let options = Options {
        brokers: 1,
        session_timeout: Duration::from_secs(3),
        expiry_check: Duration::from_millis(50),
        ..Default::default()
    };
    let cluster = Cluster::start(options).await.unwrap();
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
