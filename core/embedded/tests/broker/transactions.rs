//! Transactions, beyond what was recorded: in a cluster, through failures, and as readers see them.

use cursus_embedded::Cluster;

use crate::client::{Client, batch, cluster, field, soon, until, with_topic};

/// A client of the broker that coordinates `x`, with a transaction of it open: the arguments that prove it.
async fn begun(cluster: &Cluster) -> (Client, String) {
    let mut client = Client::connect(cluster, cluster.coordinator("txn:x")).await;
    let owner = begin(&mut client).await;
    (client, owner)
}

async fn begin(client: &mut Client) -> String {
    let reply = client.ask("INIT_PRODUCER_ID transactional_id=x").await;
    let (producer, epoch) = (field(&reply, "producerId"), field(&reply, "epoch"));
    let owner = format!("transactional_id=x producerId={producer} epoch={epoch}");
    let reply = client.ask(&format!("BEGIN_TXN {owner}")).await;
    assert_eq!(reply, format!("OK transactional_id=x state=open producerId={producer} epoch={epoch}"));
    owner
}

async fn publish(client: &mut Client, owner: &str, partition: u32, sequence: u64, value: &str) {
    let reply = client
        .ask(&format!("TXN_PUBLISH {owner} topic=t partition={partition} seqNum={sequence} message={value}"))
        .await;
    assert_eq!(reply, format!("OK transactional_id=x staged_messages=1 topic=t partition={partition}"));
}

#[tokio::test(start_paused = true)]
async fn only_the_coordinator_of_a_transactional_id_takes_its_commands() {
    let cluster = with_topic(3, 1).await;
    cluster.move_coordinator("txn:x", 2).unwrap();
    let mut other = Client::connect(&cluster, 0).await;
    let port = cluster.brokers()[2].rsplit(':').next().unwrap().to_owned();
    assert_eq!(
        other.ask("FIND_COORDINATOR transactional_id=x").await,
        format!("OK coordinator_id=127.0.0.1-{port} coordinator_type=transaction host=127.0.0.1 port={port}")
    );
    let elsewhere = format!("ERROR: NOT_COORDINATOR host=127.0.0.1 port={port}");
    let owner = "transactional_id=x producerId=p epoch=0";
    for command in ["INIT_PRODUCER_ID", "BEGIN_TXN", "TXN_PUBLISH", "SEND_OFFSETS_TO_TXN", "END_TXN", "TXN_STATUS"] {
        assert_eq!(other.ask(&format!("{command} {owner}")).await, elsewhere, "{command}");
        // An id that is missing is said by everybody.
        let missing = format!("ERROR: missing_transactional_id command={command}");
        assert_eq!(other.ask(&format!("{command} transactional_id=")).await, missing);
    }
    let (mut client, owner) = begun(&cluster).await;
    publish(&mut client, &owner, 0, 1, "v").await;
    let reply = client.ask(&format!("END_TXN {owner}")).await;
    assert_eq!(reply, "OK transactional_id=x state=committed messages=1 offsets=0", "commit is what nothing means");
}

#[tokio::test(start_paused = true)]
async fn a_stream_gets_a_transactions_records_when_it_is_committed() {
    let cluster = with_topic(1, 1).await;
    let mut committed = Client::connect(&cluster, 0).await;
    committed.tell("STREAM topic=t partition=0 group=g").await;
    let mut all = Client::connect(&cluster, 0).await;
    all.tell("STREAM topic=t partition=0 group=h isolation=read_uncommitted").await;
    // The first look finds nothing and says so.
    for stream in [&mut committed, &mut all] {
        assert!(stream.receive().await.unwrap().is_empty());
    }
    let (mut client, owner) = begun(&cluster).await;
    publish(&mut client, &owner, 0, 1, "one").await;
    publish(&mut client, &owner, 0, 2, "two").await;
    assert_eq!(cluster.end_offsets("t")[&0], 0, "nothing is written while it is open");
    client.ask(&format!("END_TXN {owner}")).await;
    cluster.produce("t", 0, [("", "three")]).unwrap();

    let mut seen = Vec::new();
    while seen.len() < 3 {
        let body = committed.receive().await.unwrap();
        if !body.is_empty() {
            seen.extend(batch(body).iter().map(|record| (record.offset, record.is_control())));
        }
    }
    assert_eq!(seen, [(0, false), (1, false), (3, false)]);
    seen.clear();
    while seen.len() < 4 {
        let body = all.receive().await.unwrap();
        if !body.is_empty() {
            seen.extend(batch(body).iter().map(|record| (record.offset, record.is_control())));
        }
    }
    assert_eq!(seen, [(0, false), (1, false), (2, true), (3, false)]);
}

#[tokio::test(start_paused = true)]
async fn a_gap_can_be_made_without_a_transaction() {
    let cluster = with_topic(1, 1).await;
    cluster.produce("t", 0, [("", "a")]).unwrap();
    assert_eq!(cluster.append_marker("t", 0).unwrap(), 2);
    assert_eq!(cluster.append_aborted("t", 0, [("", "x"), ("", "y")]).unwrap(), 5);
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.offsets("partition=0 offset=0").await, [0]);
    assert_eq!(client.offsets("partition=0 offset=0").await, [0; 0], "the cursor waits before the gap");
    cluster.produce("t", 0, [("", "b"), ("", "c")]).unwrap();
    assert_eq!(client.offsets("partition=0 offset=0 batch=1").await, [5], "a batch counts what is seen");
    assert_eq!(client.offsets("partition=0 offset=0").await, [6]);

    let mut client = Client::connect(&cluster, 0).await;
    let raw = client.read("CONSUME topic=t partition=0 offset=0 member=m isolation=read_uncommitted").await;
    let control: Vec<_> = raw.iter().map(|record| record.is_control()).collect();
    assert_eq!(control, [false, true, false, false, true, false, false]);
    assert_eq!(raw.record(1).producer_id, b"txn-marker:embedded:commit");
    assert_eq!(raw.record(4).producer_id, b"txn-marker:embedded:abort");
    assert!(client.ask("LIST_OFFSETS topic=t").await.ends_with("P0:earliest=0:latest=7:leo=7:hwm=7"));

    assert!(cluster.append_marker("t", 9).is_err());
    assert!(cluster.append_aborted("t", 0, [(vec![0; 70_000], Vec::new())]).is_err());
    assert_eq!(cluster.end_offsets("t")[&0], 7);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_finds_a_leader_down_goes_on_once_there_is_another() {
    let cluster = with_topic(3, 3).await;
    cluster.move_coordinator("txn:x", 0).unwrap();
    let (mut client, owner) = begun(&cluster).await;
    publish(&mut client, &owner, 0, 1, "here").await;
    publish(&mut client, &owner, 1, 1, "there").await;
    cluster.kill_broker(1).await.unwrap();
    let reply = client.ask(&format!("END_TXN {owner} result=commit")).await;
    assert!(
        reply.starts_with("ERROR: transaction_commit_failed state=committing reason=\"ERROR: broker_error"),
        "{reply}"
    );
    assert!(client.ask("TXN_STATUS transactional_id=x").await.ends_with("state=committing messages=2 offsets=0"));
    assert!(client.ask("INIT_PRODUCER_ID transactional_id=x").await.starts_with("ERROR: init_producer_failed"));
    // What is written already stays hidden until all of it is.
    assert_eq!(cluster.end_offsets("t")[&0], 1);
    assert_eq!(client.offsets("partition=0 offset=0").await, [0; 0]);

    until(&cluster, "another leader", |cluster| cluster.leader("t", 1).unwrap() != 1).await;
    let reply = client.ask(&format!("END_TXN {owner} result=commit")).await;
    assert_eq!(reply, "OK transactional_id=x state=committed messages=2 offsets=0");
    assert_eq!(client.offsets("partition=0 offset=0").await, [0]);
    assert_eq!(cluster.end_offsets("t"), [(0, 2), (1, 2), (2, 0)].into(), "each record once, and a marker");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_outlives_its_coordinator() {
    let cluster = with_topic(3, 1).await;
    cluster.move_coordinator("txn:x", 1).unwrap();
    let (mut client, owner) = begun(&cluster).await;
    publish(&mut client, &owner, 0, 1, "v").await;
    cluster.kill_broker(1).await.unwrap();
    cluster.restart_broker(1).await.unwrap();
    let mut client = Client::connect(&cluster, 1).await;
    let reply = client.ask(&format!("END_TXN {owner} result=commit")).await;
    assert_eq!(reply, "OK transactional_id=x state=committed messages=1 offsets=0");
}

#[tokio::test(start_paused = true)]
async fn offsets_are_committed_with_the_records_or_not_at_all() {
    let cluster = with_topic(3, 2).await;
    cluster.move_coordinator("txn:x", 0).unwrap();
    cluster.move_coordinator("g", 1).unwrap();
    let mut group = Client::connect(&cluster, 1).await;
    let member = group.join("g", "m").await;
    let (mut client, owner) = begun(&cluster).await;
    // The transaction's coordinator asks the group's for whom the partitions are.
    let offsets = format!("SEND_OFFSETS_TO_TXN {owner} topic=t group=g member={member} generation=1 P0:5,P1:6");
    assert_eq!(client.ask(&offsets).await, "OK transactional_id=x staged_offsets=2");
    publish(&mut client, &owner, 0, 1, "v").await;
    assert!(cluster.committed("g", "t").is_empty());
    assert_eq!(
        client.ask(&format!("END_TXN {owner}")).await,
        "OK transactional_id=x state=committed messages=1 offsets=2"
    );
    assert_eq!(cluster.committed("g", "t"), [(0, 5), (1, 6)].into());

    let owner = begin(&mut client).await;
    publish(&mut client, &owner, 0, 1, "w").await;
    let back = format!("SEND_OFFSETS_TO_TXN {owner} topic=t group=g member={member} generation=1 P1:4");
    assert_eq!(
        client.ask(&back).await,
        "OK transactional_id=x staged_offsets=1",
        "a step back is found out at the end"
    );
    assert_eq!(
        client.ask(&format!("END_TXN {owner}")).await,
        "ERROR: transaction_commit_failed state=open reason=\"ERROR: offset_regression reason=\\\"offset regression \
         group=g topic=t partition=1 current=6 got=4\\\"\""
    );

    let owner = begin(&mut client).await;
    publish(&mut client, &owner, 0, 1, "w").await;
    let stale = format!("SEND_OFFSETS_TO_TXN {owner} topic=t group=g member={member} generation=1 P0:9");
    assert_eq!(client.ask(&stale).await, "OK transactional_id=x staged_offsets=1");
    group.join("g", "n").await;
    assert_eq!(
        client.ask(&format!("END_TXN {owner}")).await,
        format!(
            "ERROR: transaction_commit_failed state=open reason=\"ERROR: GEN_MISMATCH current=2 requested=1 group=g \
             member={member}\""
        )
    );
    assert_eq!(cluster.committed("g", "t"), [(0, 5), (1, 6)].into());
    assert_eq!(cluster.end_offsets("t")[&0], 2, "of the refused ones nothing was written");
}

#[tokio::test(start_paused = true)]
async fn a_gap_in_the_sequence_numbers_leaves_a_transaction_stuck() {
    let cluster = with_topic(3, 1).await;
    let (mut client, owner) = begun(&cluster).await;
    publish(&mut client, &owner, 0, 1, "v").await;
    publish(&mut client, &owner, 0, 3, "v").await;
    let producer = field(&owner, "producerId");
    for _ in 0..2 {
        assert_eq!(
            client.ask(&format!("END_TXN {owner}")).await,
            format!(
                "ERROR: transaction_commit_failed state=committing reason=\"ERROR: broker_error reason=\\\"failed to \
                 append locally: idempotency gap for producer {producer}: expected 2, got 3\\\"\""
            )
        );
    }
    assert_eq!(cluster.end_offsets("t")[&0], 1, "what came before it is written once");
    assert_eq!(
        client.ask(&format!("END_TXN {owner} result=abort")).await,
        "ERROR: transaction_not_abortable transactional_id=x state=committing"
    );
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_goes_away_keeps_a_transaction_from_its_commit() {
    let cluster = with_topic(1, 1).await;
    let (mut client, owner) = begun(&cluster).await;
    publish(&mut client, &owner, 0, 1, "v").await;
    cluster.delete_topic("t").unwrap();
    assert_eq!(
        client.ask(&format!("END_TXN {owner}")).await,
        "ERROR: transaction_commit_failed state=open reason=\"topic t not found\""
    );
    assert_eq!(client.ask(&format!("END_TXN {owner} result=ABORT")).await, "OK transactional_id=x state=aborted");
}

#[tokio::test(start_paused = true)]
async fn a_transactions_epoch_is_the_producers_where_the_topic_checks_them() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    client.ask("CREATE topic=t partitions=1 idempotent=true").await;
    for end in [2, 4] {
        let owner = begin(&mut client).await;
        publish(&mut client, &owner, 0, 1, "v").await;
        // A repetition, as after a lost reply, is staged twice and written once.
        publish(&mut client, &owner, 0, 1, "v").await;
        let reply = client.ask(&format!("END_TXN {owner}")).await;
        assert_eq!(reply, "OK transactional_id=x state=committed messages=2 offsets=0");
        assert_eq!(cluster.end_offsets("t")[&0], end);
    }
    assert_eq!(client.offsets("partition=0 offset=0").await, [0, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_consume_that_waits_is_answered_by_the_commit() {
    let cluster = with_topic(1, 1).await;
    let mut reader = Client::connect(&cluster, 0).await;
    reader.tell("CONSUME topic=t partition=0 offset=0 member=m wait_ms=30000").await;
    let (mut client, owner) = begun(&cluster).await;
    publish(&mut client, &owner, 0, 1, "v").await;
    client.ask(&format!("END_TXN {owner}")).await;
    let body = soon(reader.receive()).await.unwrap();
    assert_eq!(batch(body).record(0).value, b"v");
}
