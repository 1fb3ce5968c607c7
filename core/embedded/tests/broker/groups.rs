//! The group protocol.

use std::time::Duration;

use cursus_embedded::{Cluster, Options};
use tokio::time::Instant;

use crate::client::{Client, cluster, field, piped, until, with_topic};

#[tokio::test(start_paused = true)]
async fn a_group_lives_through_joins_syncs_and_leaves() {
    let cluster = with_topic(1, 3).await;
    let mut client = Client::connect(&cluster, 0).await;
    let first = client.ask("JOIN_GROUP topic=t group=g member=m").await;
    let member = field(&first, "member").to_owned();
    let (base, suffix) = member.rsplit_once('-').unwrap();
    assert!(base == "m" && suffix.len() == 4 && suffix.bytes().all(|b| b.is_ascii_digit()), "{member}");
    assert_eq!(first, format!("OK generation=1 member={member} assignments=[0 1 2]"));
    let second = client.ask("JOIN_GROUP topic=t group=g member=n").await;
    assert!(second.ends_with("assignments=[2]"), "{second}");
    let ask =
        |command: &str, generation: i64| format!("{command} topic=t group=g member={member} generation={generation}");
    assert_eq!(
        client.ask(&ask("HEARTBEAT", 1)).await,
        format!("ERROR: GEN_MISMATCH current=2 requested=1 group=g member={member}")
    );
    assert_eq!(client.ask(&ask("SYNC_GROUP", 2)).await, format!("OK generation=2 member={member} assignments=[0 1]"));
    assert_eq!(
        client.ask(&ask("JOIN_GROUP", 2)).await,
        format!("OK generation=2 member={member} assignments=[0 1] resumed=true")
    );
    assert_eq!(client.ask(&ask("HEARTBEAT", -1)).await, format!("OK member={member} generation=-1"));
    assert_eq!(client.ask(&ask("LEAVE_GROUP", 2)).await, format!("OK group=g member={member} left=true"));
    assert_eq!(client.ask(&ask("HEARTBEAT", 3)).await, format!("ERROR: member_not_found member={member} group=g"));
    let view = cluster.group("g").unwrap();
    assert_eq!((view.generation, view.state.as_str(), view.members.len()), (3, "Stable", 1));
}

#[tokio::test(start_paused = true)]
async fn a_join_without_generation_makes_a_ghost_of_the_member_before() {
    let cluster = with_topic(1, 2).await;
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    let second = client.join("g", &member).await;
    assert!(second.starts_with(&format!("{member}-")), "{second}");
    assert_eq!(cluster.group("g").unwrap().members.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn every_command_checks_in_the_brokers_order_and_words() {
    let cluster = with_topic(1, 1).await;
    cluster.create_topic("u", 1).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "m").await;
    for (command, error) in [
        ("JOIN_GROUP group=g", "missing_topic command=JOIN_GROUP"),
        ("JOIN_GROUP topic=t", "missing_group command=JOIN_GROUP"),
        ("JOIN_GROUP topic=t group=g", "missing_member command=JOIN_GROUP"),
        ("JOIN_GROUP topic=u group=g member=m generation=x", "topic_not_assigned_to_group expected=t actual=u"),
        ("JOIN_GROUP topic=t group=g member=m generation=x", "invalid_generation command=JOIN_GROUP"),
        ("JOIN_GROUP topic=t group=x member=m generation=1", "group_not_found group=x"),
        ("JOIN_GROUP topic=x group=x member=m", "topic_not_found topic=x"),
        ("JOIN_GROUP topic=? group=x member=m", "topic_not_found topic=?"),
        ("SYNC_GROUP topic=t group=g member=m", "missing_generation command=SYNC_GROUP"),
        ("SYNC_GROUP topic=t group=x member=m generation=1", "group_not_found group=x"),
        ("SYNC_GROUP topic=t group=g member=z generation=9", "member_not_found member=z group=g"),
        ("HEARTBEAT topic=u group=g member=m", "topic_not_assigned_to_group expected=t actual=u"),
        ("HEARTBEAT topic=t group=g member=m generation=", "missing_generation command=HEARTBEAT"),
        ("LEAVE_GROUP topic=u group=g member=m", "missing_generation command=LEAVE_GROUP"),
        ("LEAVE_GROUP topic=u group=g member=m generation=x", "invalid_generation command=LEAVE_GROUP"),
        ("LEAVE_GROUP topic=u group=g member=m generation=1", "topic_not_assigned_to_group expected=t actual=u"),
        ("GROUP_STATUS x=1", "missing_group command=GROUP_STATUS"),
        ("GROUP_STATUS group=x", "group_status_failed reason=\"group 'x' not found\""),
        ("FIND_COORDINATOR x=1", "missing_coordinator_key command=FIND_COORDINATOR"),
        ("REGISTER_GROUP topic=x group=r", "topic_not_found topic=x"),
        (
            "REGISTER_GROUP topic=u group=g",
            "register_group_failed reason=\"topic mismatch (existing: t, requested: u)\"",
        ),
    ] {
        assert_eq!(client.ask(command).await, format!("ERROR: {error}"), "{command}");
    }
    assert_eq!(client.ask("REGISTER_GROUP topic=u group=r").await, "OK group=r topic=u registered=true");
    let pattern = client.ask(&format!("SYNC_GROUP topic=? group=g member={member} generation=1")).await;
    assert!(pattern.ends_with("assignments=[0]"), "a pattern that matches the group's topic passes: {pattern}");
}

#[tokio::test(start_paused = true)]
async fn any_word_is_a_name() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let joined = client.ask("JOIN_GROUP topic=t group=a,b/~ž member=x=y\"").await;
    assert!(joined.contains(" member=x=y\"-"), "{joined}");
    assert_eq!(client.ask("LIST_GROUPS").await, "OK count=1 groups=a,b/~ž");
}

#[tokio::test(start_paused = true)]
async fn a_silent_member_expires_and_the_others_learn_by_mismatch() {
    let cluster = with_topic(1, 2).await;
    let mut client = Client::connect(&cluster, 0).await;
    let first = client.join("g", "a").await;
    client.join("g", "b").await;
    let heartbeat = |generation| format!("HEARTBEAT topic=t group=g member={first} generation={generation}");
    let mut silent = Duration::ZERO;
    while cluster.group("g").unwrap().members.len() == 2 {
        client.ask(&heartbeat(2)).await;
        cluster.advance(Duration::from_secs(2));
        silent += Duration::from_secs(2);
    }
    // More than the session timeout, and at most one check later.
    assert!((10..=16).contains(&silent.as_secs()), "{silent:?}");
    assert_eq!(
        client.ask(&heartbeat(2)).await,
        format!("ERROR: GEN_MISMATCH current=3 requested=2 group=g member={first}")
    );
    until(&cluster, "the other to expire too", |cluster| cluster.group("g").unwrap().state == "Dead").await;
    assert_eq!(cluster.group("g").unwrap().generation, 4);
}

#[tokio::test(start_paused = true)]
async fn the_session_timeout_and_its_check_are_options() {
    let (session_timeout, expiry_check) = (Duration::from_millis(300), Duration::from_millis(50));
    let cluster = Cluster::start(Options { session_timeout, expiry_check, ..piped(1) }).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    Client::connect(&cluster, 0).await.join("g", "a").await;
    let start = Instant::now();
    until(&cluster, "the member to expire", |cluster| cluster.group("g").unwrap().members.is_empty()).await;
    assert!((300..=350).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_member_expires_on_command() {
    let cluster = with_topic(1, 2).await;
    let mut client = Client::connect(&cluster, 0).await;
    let member = client.join("g", "a").await;
    cluster.expire_member("g", &member).unwrap();
    assert_eq!(
        client.ask(&format!("HEARTBEAT topic=t group=g member={member} generation=1")).await,
        format!("ERROR: member_not_found member={member} group=g")
    );
    let again = cluster.expire_member("g", &member).unwrap_err().to_string();
    assert_eq!(again, format!("no member \"{member}\" in group \"g\"; its members are: none"));
}

#[tokio::test(start_paused = true)]
async fn more_partitions_never_reach_a_group_that_exists() {
    let cluster = with_topic(1, 2).await;
    let mut client = Client::connect(&cluster, 0).await;
    client.join("g", "a").await;
    cluster.create_topic("t", 4).unwrap();
    client.join("g", "b").await;
    let members = cluster.group("g").unwrap().members;
    assert_eq!(members.into_values().collect::<Vec<_>>(), [[0], [1]]);
    let fresh = client.ask("JOIN_GROUP topic=t group=h member=a").await;
    assert!(fresh.ends_with("[0 1 2 3]"), "{fresh}");
}

#[tokio::test(start_paused = true)]
async fn a_surplus_member_of_a_cluster_waits_half_a_second_for_its_empty_assignment() {
    let cluster = with_topic(3, 1).await;
    let mut client = Client::connect(&cluster, cluster.coordinator("g")).await;
    client.join("g", "a").await;
    let start = Instant::now();
    let surplus = client.ask("JOIN_GROUP topic=t group=g member=b").await;
    assert!(surplus.starts_with("OK generation=2") && surplus.ends_with("assignments=[]"), "{surplus}");
    assert_eq!(start.elapsed().as_millis(), 500);
}

#[tokio::test(start_paused = true)]
async fn a_surplus_member_that_gets_something_meanwhile_learns_of_it() {
    let cluster = with_topic(3, 1).await;
    let coordinator = cluster.coordinator("g");
    let (mut first, mut second) =
        (Client::connect(&cluster, coordinator).await, Client::connect(&cluster, coordinator).await);
    let member = first.join("g", "a").await;
    second.tell("JOIN_GROUP topic=t group=g member=b").await;
    until(&cluster, "the second member", |cluster| cluster.group("g").unwrap().members.len() == 2).await;
    first.ask(&format!("LEAVE_GROUP topic=t group=g member={member} generation=2")).await;
    let joined = second.receive_text().await;
    assert!(joined.starts_with("OK generation=3") && joined.ends_with("[0]"), "{joined}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_words_a_missing_topic_differently() {
    let cluster = cluster(3).await;
    let mut client = Client::connect(&cluster, cluster.coordinator("g")).await;
    assert_eq!(
        client.ask("JOIN_GROUP topic=nope group=g member=m").await,
        "ERROR: register_group_failed reason=\"leader raft apply: ERROR: raft_apply_failed reason=\\\"topic 'nope' not \
         found during group join\\\"\""
    );
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_moves_with_members_and_generation_and_is_patient() {
    let cluster = with_topic(3, 3).await;
    let (old, new) = (cluster.coordinator("g"), (cluster.coordinator("g") + 1) % 3);
    let mut before = Client::connect(&cluster, old).await;
    let member = before.join("g", "m").await;
    cluster.advance(Duration::from_secs(9));
    cluster.move_coordinator("g", new).unwrap();
    assert_eq!(cluster.coordinator("g"), new);
    let port = cluster.brokers()[new].rsplit(':').next().unwrap().to_owned();
    let resume = format!("JOIN_GROUP topic=t group=g member={member} generation=1");
    assert_eq!(before.ask(&resume).await, format!("ERROR: NOT_COORDINATOR host=127.0.0.1 port={port}"));
    let found = before.ask("FIND_COORDINATOR group=g").await;
    assert_eq!(field(&found, "port"), port);
    cluster.advance(Duration::from_secs(9));
    let mut after = Client::connect(&cluster, new).await;
    let resumed = after.ask(&resume).await;
    assert!(resumed.starts_with("OK generation=1") && resumed.ends_with("resumed=true"), "{resumed}");
}

#[tokio::test(start_paused = true)]
async fn a_standalone_broker_calls_itself_localhost_unless_told_otherwise() {
    let alone = cluster(1).await;
    let found = Client::connect(&alone, 0).await.ask("FIND_COORDINATOR group=g").await;
    assert_eq!((field(&found, "coordinator_id"), field(&found, "host")), ("standalone", "localhost"));
    let options = Options { advertised_host: Some("broker.test".into()), ..piped(3) };
    let named = Cluster::start(options).await.unwrap();
    let found = Client::connect(&named, 0).await.ask("FIND_COORDINATOR group=g").await;
    assert_eq!(field(&found, "host"), "broker.test");
    assert!(field(&found, "coordinator_id").starts_with("broker.test-"));
}
