//! CREATE, DELETE, LIST, METADATA, LIST_OFFSETS, DESCRIBE, and the control of topics.

use cursus_embedded::ControlError;

use crate::client::{Client, cluster, field, numbered, with_topic};

const POLICY: &str = "cleanup_policy=delete partitioner=hash_key auth_policy=open read_acl= write_acl= retention_hours=0 retention_bytes=0";

#[tokio::test(start_paused = true)]
async fn create_checks_its_arguments_in_the_brokers_order_and_words() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    for (command, error) in [
        ("CREATE partitions=x", "missing_topic expected=\"CREATE topic=<name> [partitions=<N>]\""),
        (
            "CREATE topic=b/2 partitions=x",
            "invalid_topic_name topic=\"b/2\" reason=\"topic name \\\"b/2\\\" contains unsupported characters\"",
        ),
        ("CREATE topic=.. ", "invalid_topic_name topic=\"..\" reason=\"invalid topic name \\\"..\\\"\""),
        ("CREATE topic=t partitions=0", "invalid_partitions reason=\"must be a positive integer\""),
        ("CREATE topic=t retention_hours=x", "invalid_retention_hours value=x"),
        ("CREATE topic=t retention_bytes=x", "invalid_retention_bytes value=x"),
        ("CREATE topic=t partitioner=zzz", "invalid_topic_policy reason=\"invalid partitioner \\\"zzz\\\"\""),
        ("CREATE topic=t retention_hours=-1", "invalid_topic_policy reason=\"retention_hours must be >= 0\""),
        ("CREATE topic=t replication_factor=0", "invalid_replication_factor reason=\"must be a positive integer\""),
    ] {
        assert_eq!(client.ask(command).await, format!("ERROR: {error}"), "{command}");
    }
    assert_eq!(client.ask("CREATE topic=t").await, format!("OK topic=t partitions=4 {POLICY}"));
}

#[tokio::test(start_paused = true)]
async fn creating_again_adds_partitions_and_resets_the_policy() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let reply = client.ask("CREATE topic=t partitions=2 partitioner=round_robin retention_hours=5").await;
    assert_eq!((field(&reply, "partitioner"), field(&reply, "retention_hours")), ("round_robin", "5"));
    assert_eq!(client.ask("CREATE topic=t partitions=3").await, format!("OK topic=t partitions=3 {POLICY}"));
    assert_eq!(
        client.ask("CREATE topic=t partitions=1").await,
        "ERROR: create_topic_failed topic=t reason=\"cannot decrease partition count for topic 't': 3 -> 1\""
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_refuses_some_of_it_in_other_words() {
    let cluster = cluster(3).await;
    let mut client = Client::connect(&cluster, 1).await;
    client.ask("CREATE topic=ct partitions=8").await;
    assert_eq!(
        client.ask("CREATE topic=ct partitions=2").await,
        "ERROR: create_topic_failed reason=\"cannot decrease partition count for topic \\\"ct\\\": 8 -> 2\""
    );
    assert_eq!(
        client.ask("CREATE topic=cc cleanup_policy=compact").await,
        "ERROR: unsupported_topic_policy field=cleanup_policy reason=\"compaction is not supported in distributed mode\""
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_create_makes_the_default_group() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.ask("LIST_GROUPS").await, "OK count=0 groups=");
    client.ask("CREATE topic=a").await;
    client.ask("CREATE topic=b").await;
    assert_eq!(client.ask("LIST_GROUPS").await, "OK count=1 groups=default-group");
    let status = client.ask("GROUP_STATUS group=default-group").await;
    assert!(status.contains("\"topic_name\":\"a\"") && status.contains("\"state\":\"Dead\""), "{status}");
    assert!(status.contains("\"members\":[],\"last_rebalance\":\"0001-01-01T00:00:00Z\""), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_knows_its_default_group_on_one_broker_only() {
    let cluster = cluster(3).await;
    Client::connect(&cluster, 1).await.ask("CREATE topic=a").await;
    assert_eq!(Client::connect(&cluster, 0).await.ask("LIST_GROUPS").await, "OK count=1 groups=default-group");
    assert_eq!(Client::connect(&cluster, 2).await.ask("LIST_GROUPS").await, "OK count=0 groups=");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_topic_is_gone_and_the_internal_one_stays() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.ask("LIST").await, "OK count=2 topics=__consumer_offsets,t");
    assert_eq!(client.ask("DELETE topic=t").await, "OK topic=t deleted=true");
    assert_eq!(client.ask("DELETE topic=t").await, "ERROR: topic_not_found topic=t");
    assert_eq!(client.ask("DELETE x=1").await, "ERROR: missing_topic expected=\"DELETE topic=<name>\"");
    assert_eq!(
        client.ask("DELETE topic=__consumer_offsets").await,
        "ERROR: delete_topic_failed topic=__consumer_offsets reason=\"cannot delete broker-owned internal consumer \
         metadata topic\""
    );
    assert_eq!(client.ask("LIST").await, "OK count=1 topics=__consumer_offsets");
}

#[tokio::test(start_paused = true)]
async fn metadata_and_offsets_are_answered_by_every_broker() {
    let cluster = with_topic(3, 3).await;
    cluster.produce("t", 1, numbered(5)).unwrap();
    cluster.delete_records("t", 1, 2).unwrap();
    let leaders = cluster.brokers().join(",");
    for broker in 0..3 {
        let mut client = Client::connect(&cluster, broker).await;
        assert_eq!(
            client.ask("METADATA topic=t").await,
            format!("OK topic=t partitions=3 leaders={leaders} epochs=1,1,1 {POLICY}")
        );
        assert_eq!(
            client.ask("LIST_OFFSETS topic=t partition=1").await,
            "OK topic=t partitions=1 offsets=P1:earliest=2:latest=5:leo=5:hwm=5"
        );
        for (command, error) in [
            ("METADATA x=1", "missing_topic command=METADATA"),
            ("LIST_OFFSETS", "missing_topic command=LIST_OFFSETS"),
            ("LIST_OFFSETS topic=x", "topic_not_found topic=x"),
            ("LIST_OFFSETS topic=t partition=x", "invalid_partition command=LIST_OFFSETS"),
            ("LIST_OFFSETS topic=t partition=7", "partition_not_found partition=7"),
        ] {
            assert_eq!(client.ask(command).await, format!("ERROR: {error}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn administrators_see_the_cluster() {
    let cluster = with_topic(3, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let described: serde_json::Value = serde_json::from_str(&client.ask("DESCRIBE topic=t").await).unwrap();
    assert_eq!(described["partitions"][0]["isr"].as_array().unwrap().len(), 3);
    let status = client.ask("CLUSTER_STATUS").await;
    let status: serde_json::Value = serde_json::from_str(status.strip_prefix("OK cluster=").unwrap()).unwrap();
    assert_eq!((&status["broker_count"], &status["leaderless_partitions"]), (&3.into(), &0.into()));
    let alone = crate::client::cluster(1).await;
    let mut client = Client::connect(&alone, 0).await;
    assert_eq!(client.ask("CLUSTER_STATUS").await, "ERROR: distribution_required command=CLUSTER_STATUS");
    assert_eq!(client.ask("LIST_CLUSTER").await, "ERROR: distribution_not_enabled");
}

#[tokio::test(start_paused = true)]
async fn the_control_refuses_what_cannot_be_and_names_what_is() {
    let cluster = with_topic(2, 2).await;
    let said = |result: Result<(), ControlError>| result.unwrap_err().to_string();
    assert_eq!(
        said(cluster.create_topic("a b", 1)),
        "a topic can't be named \"a b\": topic name \"a b\" contains unsupported characters"
    );
    assert_eq!(said(cluster.create_topic("", 1)), "a topic can't be named \"\": topic name is empty");
    assert_eq!(said(cluster.create_topic("u", 0)), "topic \"u\" can't have 0 partitions: there can be 1 to 10000");
    assert_eq!(said(cluster.create_topic("t", 1)), "topic \"t\" can't have 1 partitions: it has 2 and can't lose any");
    assert_eq!(said(cluster.fill("x", 1, 1)), "no topic \"x\"; there are: t");
    assert_eq!(said(cluster.delete_topic("x")), "no topic \"x\"; there are: t");
    assert_eq!(said(cluster.delete_records("t", 5, 1)), "no partition 5 in topic \"t\"; it has 2, counted from 0");
    assert_eq!(said(cluster.move_leader("t", 0, 9)), "no broker 9; there are 2, counted from 0");
    assert_eq!(said(cluster.move_coordinator("g", 2)), "no broker 2; there are 2, counted from 0");
    assert_eq!(said(cluster.expire_member("g", "m")), "no group \"g\"; there are: none");
    assert_eq!(said(cluster.cut_connections(Some(3))), "no broker 3; there are 2, counted from 0");
    assert!(said(cluster.fail_next("JOIN", 1, "x")).starts_with("no command \"JOIN\"; there are: APPEND_STREAM, AUTH"));
    let key = "k".repeat(65_536);
    let refused = cluster.produce("t", 0, [("k".to_owned(), ""), (key, "")]).unwrap_err();
    assert_eq!(refused.to_string(), "record 1 has a key of 65536 bytes, over 65,535");
    assert_eq!(cluster.end_offsets("t").values().sum::<u64>(), 0, "none of a refused lot is written");
    assert!(cluster.end_offsets("x").is_empty());
}

#[tokio::test(start_paused = true)]
async fn fill_deals_records_out_in_turn_and_always_the_same() {
    let cluster = with_topic(1, 3).await;
    cluster.fill("t", 7, 25).unwrap();
    assert_eq!(cluster.end_offsets("t").into_values().collect::<Vec<_>>(), [3, 2, 2]);
    let mut client = Client::connect(&cluster, 0).await;
    let batch = client.read("CONSUME topic=t partition=1 offset=0 member=m").await;
    let records: Vec<_> = batch.iter().map(|record| (record.key, record.value)).collect();
    assert_eq!(records, [(&b"1"[..], &b"00000000000000000001....."[..]), (b"4", b"00000000000000000004.....")]);
    cluster.fill("t", 12, 1).unwrap();
    let batch = client.read("CONSUME topic=t partition=2 offset=0 member=m").await;
    assert_eq!(batch.iter().map(|record| record.value).collect::<Vec<_>>()[2..], [b"2", b"5", b"8", b"1"]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_is_replaced_by_command_and_every_broker_names_the_new_one() {
    let cluster = cluster(3).await;
    let mut client = Client::connect(&cluster, 1).await;
    client.ask("CREATE topic=t partitions=1").await;
    let ids: Vec<_> = cluster.brokers().iter().map(|broker| broker.replace(':', "-")).collect();
    let old = cluster.leader("t", 0).unwrap();
    let new = (old + 1) % 3;
    let [from, to] = [&ids[old], &ids[new]];
    let elect = format!("ELECT_LEADER topic=t partition=0 broker={to}");
    let done = format!("OK topic=t partition=0 previous_leader={from} leader={to} leader_epoch=2 changed=true");
    assert_eq!(client.ask(&elect).await, done);
    let same = format!("OK topic=t partition=0 previous_leader={to} leader={to} leader_epoch=2 changed=false");
    assert_eq!(client.ask(&elect).await, same);
    let told = client.ask("METADATA topic=t").await;
    assert_eq!((field(&told, "leaders"), field(&told, "epochs")), (cluster.brokers()[new].as_str(), "2"));
    for (command, error) in [
        ("ELECT_LEADER partition=x", "missing_topic command=ELECT_LEADER"),
        ("ELECT_LEADER topic=t partition=-1", "invalid_partition command=ELECT_LEADER"),
        ("ELECT_LEADER topic=t partition=0", "missing_broker command=ELECT_LEADER"),
        ("ELECT_LEADER topic=nope partition=0 broker=x", "partition_not_found topic=nope partition=0"),
        ("ELECT_LEADER topic=t partition=9 broker=x", "partition_not_found topic=t partition=9"),
        (
            "ELECT_LEADER topic=t partition=0 broker=x",
            "leader_election_rejected topic=t partition=0 broker=x reason=\"broker x not found\"",
        ),
    ] {
        assert_eq!(client.ask(command).await, format!("ERROR: {error}"), "{command}");
    }
    assert_eq!(cluster.leader("t", 0).unwrap(), new, "an error changes nothing");
}

#[tokio::test(start_paused = true)]
async fn a_broker_alone_elects_nobody() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    client.ask("CREATE topic=t partitions=1").await;
    let refused = "ERROR: distribution_required command=ELECT_LEADER";
    assert_eq!(client.ask("ELECT_LEADER topic=t partition=0 broker=x").await, refused);
}
