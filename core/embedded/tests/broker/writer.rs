//! The transactional writer, through everything that can be in its way.

use std::time::Duration;

use cursus_embedded::{Cluster, GroupMetadata, TransactionalWriter, WriterError};
use cursus_wire::Meaning;

use crate::client::{Client, soon, with_topic};

/// A writer on the cluster's pipes.
fn writer(cluster: &Cluster) -> TransactionalWriter {
    TransactionalWriter::new(cluster.brokers(), "x").unwrap().with_network(cluster.options().network.clone())
}

/// A writer with a transaction open.
async fn begun(cluster: &Cluster) -> TransactionalWriter {
    let mut writer = writer(cluster);
    writer.begin().await.unwrap();
    writer
}

/// A member of group `g`, which reads `t`.
async fn joined(cluster: &Cluster) -> GroupMetadata {
    let mut client = Client::connect(cluster, cluster.coordinator("g")).await;
    let member = client.join("g", "m").await;
    GroupMetadata { group: "g".to_owned(), topic: "t".to_owned(), member, generation: 1 }
}

/// The values of a partition that committed readers see.
async fn values(cluster: &Cluster, partition: u32) -> Vec<String> {
    let leader = cluster.leader("t", partition).unwrap();
    let mut client = Client::connect(cluster, leader).await;
    let batch = client.read(&format!("CONSUME topic=t partition={partition} offset=0 member=m")).await;
    batch.iter().map(|record| String::from_utf8(record.value.to_vec()).unwrap()).collect()
}

/// How many of a command the brokers received.
fn received(cluster: &Cluster, command: &str) -> usize {
    cluster.requests().iter().filter(|request| request.command == command).count()
}

#[tokio::test(start_paused = true)]
async fn records_and_offsets_are_written_at_the_commit_and_only_then() {
    let cluster = with_topic(3, 2).await;
    let metadata = joined(&cluster).await;
    let mut writer = begun(&cluster).await;
    assert_eq!(writer.publish("t", "", "one", Some(0)).await, Ok(0));
    assert_eq!(writer.publish("t", "k", "two words", Some(1)).await, Ok(1));
    assert_eq!(writer.publish("t", "", "three", Some(0)).await, Ok(0));
    writer.send_offsets(&metadata, [(0, 7), (1, 9)]).await.unwrap();
    writer.send_offsets(&metadata, []).await.unwrap();
    assert_eq!(cluster.end_offsets("t"), [(0, 0), (1, 0)].into());
    writer.commit().await.unwrap();
    assert_eq!(
        (values(&cluster, 0).await, values(&cluster, 1).await),
        (vec!["one".into(), "three".into()], vec!["two words".into()])
    );
    assert_eq!(cluster.committed("g", "t"), [(0, 7), (1, 9)].into());

    for value in ["dropped", "kept"] {
        writer.begin().await.unwrap();
        writer.publish("t", "", value, Some(1)).await.unwrap();
        if value == "kept" {
            writer.commit().await.unwrap();
        } else {
            writer.abort().await.unwrap();
        }
    }
    assert_eq!(values(&cluster, 1).await, ["two words", "kept"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_goes_where_the_broker_puts_it_and_the_rest_is_dealt_out() {
    let cluster = with_topic(3, 5).await;
    let mut client = Client::connect(&cluster, 0).await;
    let mut writer = begun(&cluster).await;
    for key in ["a", "customer-17", "žluťoučký"] {
        let before = cluster.end_offsets("t");
        client.ask(&format!("PUBLISH topic=t producerId=p key={key} message=v")).await;
        let after = cluster.end_offsets("t");
        let place = (0..5).find(|partition| before[partition] != after[partition]).unwrap();
        assert_eq!(writer.publish("t", key, "v", None).await, Ok(place), "{key}");
    }
    let mut dealt = Vec::new();
    for _ in 0..6 {
        dealt.push(writer.publish("t", "", "v", None).await.unwrap());
    }
    assert_eq!(dealt, [0, 1, 2, 3, 4, 0]);
    writer.commit().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whichever_answer_is_lost_the_record_is_written_once() {
    for command in
        ["INIT_PRODUCER_ID", "BEGIN_TXN", "TXN_PUBLISH", "SEND_OFFSETS_TO_TXN", "END_TXN", "FIND_COORDINATOR"]
    {
        let cluster = with_topic(3, 1).await;
        let metadata = joined(&cluster).await;
        cluster.lose_reply(command, 2).unwrap();
        let mut writer = writer(&cluster);
        for round in 1..=2 {
            writer.begin().await.unwrap();
            writer.publish("t", "", "v", Some(0)).await.unwrap();
            writer.send_offsets(&metadata, [(0, round)]).await.unwrap();
            writer.commit().await.unwrap();
        }
        assert_eq!(values(&cluster, 0).await, ["v", "v"], "{command}");
        assert_eq!(cluster.committed("g", "t"), [(0, 2)].into(), "{command}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_writer_fences_the_older_one_wherever_that_one_is() {
    let cluster = with_topic(3, 1).await;
    let metadata = joined(&cluster).await;
    for at in ["publish", "publish while the newer one writes", "send_offsets", "commit", "abort", "begin"] {
        let mut old = begun(&cluster).await;
        old.publish("t", "", "never", Some(0)).await.unwrap();
        if at == "begin" {
            old.abort().await.unwrap();
        }
        let mut new = writer(&cluster);
        let mut other = TransactionalWriter::new(cluster.brokers(), "other")
            .unwrap()
            .with_network(cluster.options().network.clone());
        other.begin().await.unwrap();
        new.begin().await.unwrap();
        new.publish("t", "", at, Some(0)).await.unwrap();
        if at != "publish while the newer one writes" {
            new.abort().await.unwrap();
        }
        let fenced = Err(WriterError::Fenced { transactional_id: "x".to_owned() });
        match at {
            "send_offsets" => assert_eq!(old.send_offsets(&metadata, [(0, 1)]).await, fenced),
            "commit" => assert_eq!(old.commit().await, fenced),
            "abort" => assert_eq!(old.abort().await, fenced),
            "begin" => assert_eq!(old.begin().await, fenced),
            _ => assert_eq!(old.publish("t", "", "never", Some(0)).await.map(drop), fenced),
        }
        // For good, and the newer one has taken no harm.
        assert_eq!(old.begin().await, fenced, "{at}");
        assert_eq!(old.commit().await, fenced, "{at}");
        if at != "publish while the newer one writes" {
            new.begin().await.unwrap();
        }
        new.commit().await.unwrap();
        other.commit().await.unwrap();
    }
    assert_eq!(values(&cluster, 0).await, ["publish while the newer one writes"]);
}

#[tokio::test(start_paused = true)]
async fn a_moved_coordinator_is_followed() {
    let cluster = with_topic(3, 1).await;
    cluster.move_coordinator("txn:x", 0).unwrap();
    let mut writer = begun(&cluster).await;
    cluster.move_coordinator("txn:x", 1).unwrap();
    writer.publish("t", "", "v", Some(0)).await.unwrap();
    cluster.move_coordinator("txn:x", 2).unwrap();
    writer.commit().await.unwrap();
    assert_eq!(values(&cluster, 0).await, ["v"]);
    assert_eq!(received(&cluster, "FIND_COORDINATOR"), 1, "the redirects say where it is");
}

#[tokio::test(start_paused = true)]
async fn what_passes_is_tried_again_and_what_doesnt_is_not() {
    let cluster = with_topic(3, 1).await;
    for command in ["FIND_COORDINATOR", "INIT_PRODUCER_ID", "BEGIN_TXN", "TXN_PUBLISH", "END_TXN"] {
        cluster.fail_next(command, 2, "coordinator_not_available").unwrap();
    }
    let mut writer = begun(&cluster).await;
    writer.publish("t", "", "v", Some(0)).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(values(&cluster, 0).await, ["v"]);

    writer.begin().await.unwrap();
    cluster.clear_requests();
    let error = writer.publish("t", "", "v", Some(9)).await.unwrap_err();
    assert_eq!(error.to_string(), "TXN_PUBLISH was refused: ERROR: partition_not_found partition=9");
    assert_eq!(received(&cluster, "TXN_PUBLISH"), 1);
    // What was refused isn't in the transaction, and the rest still is.
    writer.publish("t", "", "w", Some(0)).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(values(&cluster, 0).await, ["v", "w"]);
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_was_just_made_may_be_denied_for_a_moment() {
    let cluster = with_topic(3, 1).await;
    cluster.fail_next("METADATA", 2, "topic_not_found topic=t").unwrap();
    cluster.fail_next("TXN_PUBLISH", 2, "topic_not_found topic=t").unwrap();
    let mut writer = begun(&cluster).await;
    writer.publish("t", "", "v", None).await.unwrap();
    let error = writer.publish("nowhere", "", "v", None).await.unwrap_err();
    assert_eq!(error.meaning(), Some(Meaning::TopicNotFound), "{error}");
    writer.commit().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_commit_waits_for_its_coordinator_to_come_back() {
    let cluster = with_topic(3, 3).await;
    cluster.move_coordinator("txn:x", 1).unwrap();
    let mut writer = begun(&cluster).await;
    writer.publish("t", "", "v", Some(0)).await.unwrap();
    let hold = cluster.hold("END_TXN");
    let committing = tokio::spawn(async move { writer.commit().await });
    soon(hold.reached()).await;
    cluster.kill_broker(1).await.unwrap();
    drop(hold);
    cluster.restart_broker(1).await.unwrap();
    soon(committing).await.unwrap().unwrap();
    assert_eq!(values(&cluster, 0).await, ["v"]);
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_has_just_started_is_not_believed_at_once() {
    let cluster = with_topic(3, 1).await;
    let mut writer = begun(&cluster).await;
    let denied = "reason=\"transaction x not found\"";
    let behind = "reason=\"producer fenced transactional_id=x current_epoch=0 requested_epoch=1\"";
    for round in 0..2 {
        cluster.fail_next("TXN_PUBLISH", 2, &format!("transaction_publish_failed {denied}")).unwrap();
        writer.publish("t", "", "v", Some(0)).await.unwrap();
        cluster.fail_next("END_TXN", 2, &format!("transaction_not_found {denied}")).unwrap();
        cluster.fail_next("END_TXN", 2, &format!("transaction_not_found {behind}")).unwrap();
        writer.commit().await.unwrap();
        if round == 0 {
            writer.begin().await.unwrap();
        }
    }
    assert_eq!(values(&cluster, 0).await, ["v", "v"]);

    // It doesn't know of a commit whose answer was lost, and that it was aborted is not what is said then.
    writer.begin().await.unwrap();
    writer.publish("t", "", "w", Some(0)).await.unwrap();
    cluster.lose_reply("END_TXN", 1).unwrap();
    let first = cluster.hold("END_TXN");
    let committing = tokio::spawn(async move { writer.commit().await });
    soon(first.reached()).await;
    cluster.fail_next("END_TXN", 1000, "transaction_aborted transactional_id=x").unwrap();
    first.release();
    let outcome = soon(committing).await.unwrap();
    assert!(matches!(outcome, Err(WriterError::OutcomeUnknown { .. })), "{outcome:?}");
    assert_eq!(values(&cluster, 0).await, ["v", "v", "w"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_with_its_time_and_says_what_is_known() {
    let cluster = with_topic(3, 1).await;
    cluster.move_coordinator("txn:x", 1).unwrap();
    cluster.move_leader("t", 0, 0).unwrap();
    let mut writer = writer(&cluster).with_timeout(Duration::from_secs(3));
    writer.begin().await.unwrap();
    writer.publish("t", "", "v", Some(0)).await.unwrap();
    cluster.kill_broker(1).await.unwrap();

    // Nothing could have reached the coordinator.
    let begun = tokio::time::Instant::now();
    let error = writer.publish("t", "", "w", Some(0)).await.unwrap_err();
    assert!(begun.elapsed() <= Duration::from_secs(3));
    let WriterError::Unavailable { command: "TXN_PUBLISH", last, .. } = &error else { panic!("{error}") };
    assert!(last.contains("127.0.0.1"), "{last}");
    cluster.restart_broker(1).await.unwrap();

    // The connection was lost with that request, which may have been read: such a transaction is only good for an abort.
    let error = writer.commit().await.unwrap_err();
    assert!(matches!(&error, WriterError::InvalidState(why) if why.contains("abort it")), "{error}");
    writer.abort().await.unwrap();

    // The commit's answer is lost, and nobody can be asked: unknown, until somebody can.
    writer.begin().await.unwrap();
    writer.publish("t", "", "v", Some(0)).await.unwrap();
    cluster.lose_reply("END_TXN", 1).unwrap();
    let watched = cluster.clone();
    cluster.clear_requests();
    let killed = tokio::spawn(async move {
        watched.wait_for("the commit", |cluster| received(cluster, "END_TXN") > 0).await;
        watched.kill_broker(1).await.unwrap();
    });
    let error = writer.commit().await.unwrap_err();
    soon(killed).await.unwrap();
    assert!(matches!(error, WriterError::OutcomeUnknown { .. }), "{error}");
    assert!(matches!(writer.abort().await, Err(WriterError::InvalidState(_))));
    cluster.restart_broker(1).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(values(&cluster, 0).await, ["v"]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_outcome_is_lost_to_a_newer_writer_is_unknown() {
    let cluster = with_topic(1, 1).await;
    let mut old = begun(&cluster).await;
    old.publish("t", "", "v", Some(0)).await.unwrap();
    cluster.lose_reply("END_TXN", 1).unwrap();
    // The second try waits until there is a newer writer.
    let first = cluster.hold("END_TXN");
    let second = cluster.hold("END_TXN");
    let committing = tokio::spawn(async move { old.commit().await });
    soon(first.reached()).await;
    first.release();
    soon(second.reached()).await;
    let _new = begun(&cluster).await;
    second.release();
    let error = soon(committing).await.unwrap().unwrap_err();
    assert!(matches!(error, WriterError::OutcomeUnknown { .. }), "{error}");
    assert_eq!(values(&cluster, 0).await, ["v"]);
}

#[tokio::test(start_paused = true)]
async fn a_writer_doesnt_take_its_own_lost_epoch_for_anothers() {
    let cluster = with_topic(1, 1).await;
    let mut writer = begun(&cluster).await.with_timeout(Duration::from_secs(1));
    writer.commit().await.unwrap();
    cluster.lose_reply("INIT_PRODUCER_ID", 20).unwrap();
    assert!(matches!(writer.begin().await, Err(WriterError::Unavailable { .. })));
    let lost = received(&cluster, "INIT_PRODUCER_ID");
    assert!(lost > 2, "{lost}");
    // As many of them are left to lose as there are tries left; the writer has to get through to the last.
    let mut outcome = writer.begin().await;
    while matches!(outcome, Err(WriterError::Unavailable { .. })) {
        outcome = writer.begin().await;
    }
    assert_eq!(outcome, Ok(()), "and not fenced");
    writer.publish("t", "", "v", Some(0)).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(values(&cluster, 0).await, ["v"]);
}

#[tokio::test(start_paused = true)]
async fn offsets_of_a_generation_that_is_over_are_refused_and_nothing_is_written() {
    let cluster = with_topic(3, 1).await;
    let metadata = joined(&cluster).await;
    let mut writer = begun(&cluster).await;
    writer.publish("t", "", "v", Some(0)).await.unwrap();
    writer.send_offsets(&metadata, [(0, 1)]).await.unwrap();
    joined(&cluster).await;
    // At the commit it is looked at again.
    let error = writer.commit().await.unwrap_err();
    assert_eq!(error.meaning(), Some(Meaning::GenerationMismatch { current: 2 }), "{error}");
    writer.abort().await.unwrap();

    writer.begin().await.unwrap();
    let error = writer.send_offsets(&metadata, [(0, 1)]).await.unwrap_err();
    assert_eq!(error.meaning(), Some(Meaning::GenerationMismatch { current: 2 }), "{error}");
    writer.abort().await.unwrap();
    assert!(values(&cluster, 0).await.is_empty());
    assert!(cluster.committed("g", "t").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_leaves_a_transaction_that_can_only_be_aborted() {
    let cluster = with_topic(1, 1).await;
    let mut writer = begun(&cluster).await;
    let hold = cluster.hold("TXN_PUBLISH");
    tokio::select! {
        published = writer.publish("t", "", "v", Some(0)) => panic!("{published:?}"),
        () = hold.reached() => {}
    }
    hold.release();
    assert!(matches!(writer.publish("t", "", "w", Some(0)).await, Err(WriterError::InvalidState(_))));
    // The next one drops it too.
    writer.begin().await.unwrap();
    writer.publish("t", "", "x", Some(0)).await.unwrap();

    let hold = cluster.hold("END_TXN");
    tokio::select! {
        committed = writer.commit() => panic!("{committed:?}"),
        () = hold.reached() => {}
    }
    hold.release();
    writer.commit().await.unwrap();
    assert_eq!(values(&cluster, 0).await, ["x"]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_sent_is_refused_before_anything_is() {
    let cluster = with_topic(1, 1).await;
    let none: [&str; 0] = [];
    for (brokers, id) in [(&none[..], "x"), (&["broker"], "x"), (&["broker:1"], "a b"), (&["broker:1"], "")] {
        let error = TransactionalWriter::new(brokers, id).unwrap_err();
        assert!(matches!(error, WriterError::InvalidArgument(_)), "{error}");
    }
    let mut writer = writer(&cluster);
    assert!(matches!(writer.publish("t", "", "v", None).await, Err(WriterError::InvalidState(_))));
    assert!(matches!(writer.commit().await, Err(WriterError::InvalidState(_))));
    assert!(matches!(writer.abort().await, Err(WriterError::InvalidState(_))));
    writer.begin().await.unwrap();
    assert!(matches!(writer.begin().await, Err(WriterError::InvalidState(_))));
    cluster.clear_requests();
    let long = "x".repeat(17 << 20);
    for (topic, key, value) in [
        ("a b", "", "v"),
        ("t", "a b", "v"),
        ("t", "", ""),
        ("t", "", " v"),
        ("t", "", "v\n"),
        ("t", "", "v\0"),
        ("t", "", &long),
    ] {
        let error = writer.publish(topic, key, value, Some(0)).await.unwrap_err();
        assert!(matches!(error, WriterError::InvalidArgument(_)), "{error}");
    }
    assert_eq!(cluster.requests(), []);
    writer.publish("t", "", "a message=with \"all\" \u{1f980}\n\0 in it", Some(0)).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(values(&cluster, 0).await, ["a message=with \"all\" \u{1f980}\n\0 in it"]);
}
