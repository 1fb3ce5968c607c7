//! Frames, envelopes, NEGOTIATE, and when connections close.

use std::time::Duration;

use cursus_embedded::{Cluster, Options};
use cursus_net::{Randomness, SplitMix};
use cursus_wire::frame;
use tokio::time::{Instant, advance, sleep};

use crate::client::{Client, cluster, numbered, piped, with_topic};

#[tokio::test(start_paused = true)]
async fn only_an_envelope_without_a_known_word_closes_the_connection() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    for (body, reply) in [
        (&b""[..], "ERROR: decode_failed reason=\"data too short\""),
        (b"\0", "ERROR: decode_failed reason=\"data too short\""),
        (b"BOGUS x=1", "ERROR: decode_failed reason=\"invalid topic length\""),
        (b"LIST x", "ERROR: unknown_command command=\"LIST x\""),
        (b"\0\0CREATE", "ERROR: unknown_command command=\"CREATE\""),
        (b"\0\0METADATA\ttopic=p", "ERROR: unknown_command command=\"METADATA\\ttopic=p\""),
        (b"\0\0metadata topic=nope", "ERROR: topic_not_found topic=nope"),
        (b"\0\x03any\0METADATA topic=nope\0\r\n", "ERROR: topic_not_found topic=nope"),
        (b"METADATA topic=nope", "ERROR: topic_not_found topic=nope"),
    ] {
        assert_eq!(client.ask_body(body).await.as_deref(), Some(reply), "{}", String::from_utf8_lossy(body));
    }
    for body in [&b"\0\0"[..], b"\0\0EXIT", b"\0\0BOGUS x=1"] {
        let mut client = Client::connect(&cluster, 0).await;
        let reply = client.ask_body(body).await;
        assert_eq!(reply.as_deref(), Some("ERROR: malformed_input reason=missing_topic_or_payload"));
        assert_eq!(client.receive().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn too_long_a_frame_closes_the_connection_without_a_word() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    client.send(&(16u32 << 20).wrapping_add(1).to_be_bytes()).await;
    assert_eq!(client.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn commands_are_answered_in_order_and_a_waiting_one_holds_back_the_rest() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    let mut sent = Vec::new();
    for command in ["METADATA topic=a", "CONSUME topic=t partition=0 offset=0 member=m wait_ms=300", "METADATA topic=b"]
    {
        sent.extend(frame::encode_text(command).unwrap());
    }
    let start = Instant::now();
    client.send(&sent).await;
    assert_eq!(client.receive_text().await, "ERROR: topic_not_found topic=a");
    assert!(start.elapsed() < Duration::from_millis(100));
    assert!(client.receive().await.unwrap().starts_with(b"\xba\x7c"));
    assert_eq!(client.receive_text().await, "ERROR: topic_not_found topic=b");
    assert!(start.elapsed() >= Duration::from_millis(300));
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_silently() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    sleep(Duration::from_secs(59)).await;
    client.ask("LIST").await;
    let start = Instant::now();
    assert_eq!(client.receive().await, None);
    assert_eq!(start.elapsed().as_secs(), 60);
    cluster.wait_for("the connection to be gone", |cluster| cluster.connections(0) == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_as_long_as_the_idle_time_is_answered_and_what_follows_it_is_lost() {
    let cluster = Cluster::start(Options { idle_timeout: Duration::from_secs(3), ..piped(1) }).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    client.tell("CONSUME topic=t partition=0 offset=0 member=m wait_ms=3000").await;
    client.tell("LIST").await;
    assert!(client.receive().await.unwrap().starts_with(b"\xba\x7c"));
    assert_eq!(client.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_frame_split_by_more_than_five_seconds_is_lost() {
    let cluster = cluster(1).await;
    let whole = frame::encode_text("METADATA topic=nope").unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    client.send(&whole[..7]).await;
    advance(Duration::from_secs(4)).await;
    client.send(&whole[7..]).await;
    assert_eq!(client.receive_text().await, "ERROR: topic_not_found topic=nope");
    client.send(&whole[..7]).await;
    sleep(Duration::from_secs(6)).await;
    // The rest is taken for a frame of its own, and its first four letters for a length: much too long.
    client.send(&whole[7..]).await;
    assert_eq!(client.receive().await, None);
}

#[tokio::test(start_paused = true)]
async fn negotiate_is_checked_and_each_success_replaces_the_one_before() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    for (arguments, reply) in [
        ("features=*", "ERROR: missing_protocol_version class=validation retryable=false command=NEGOTIATE"),
        ("version=x", "ERROR: invalid_protocol_version class=validation retryable=false requested=\"x\""),
        ("version=0", "ERROR: UNSUPPORTED_PROTOCOL_VERSION class=validation retryable=false requested=0 min=1 max=1"),
        (
            "version=1 require_features=maybe",
            "ERROR: invalid_require_features class=validation retryable=false value=\"maybe\"",
        ),
        (
            "version=1 features=Foo",
            "ERROR: invalid_protocol_features class=validation retryable=false reason=\"invalid feature name \\\"Foo\\\"\"",
        ),
        (
            "version=1 features=zz,structured_errors_v1,zz",
            "OK protocol_version=1 enabled=structured_errors_v1 unsupported=zz",
        ),
    ] {
        assert_eq!(client.ask(&format!("NEGOTIATE {arguments}")).await, reply);
    }
    let structured = "ERROR: topic_not_found class=not_found retryable=false topic=x";
    assert_eq!(client.ask("METADATA topic=x").await, structured);
    client.ask("NEGOTIATE version=1 features=zz require_features=true").await;
    assert_eq!(client.ask("METADATA topic=x").await, structured, "a failure changes nothing");
    assert_eq!(client.ask("NEGOTIATE version=1").await, "OK protocol_version=1 enabled= unsupported=");
    assert_eq!(client.ask("METADATA topic=x").await, "ERROR: topic_not_found topic=x");
}

#[tokio::test(start_paused = true)]
async fn the_errors_of_readers_never_carry_a_class() {
    let cluster = with_topic(3, 3).await;
    cluster.move_coordinator("g", 1).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    client.ask("NEGOTIATE version=1 features=*").await;
    let leader = &cluster.brokers()[1];
    let redirect = client.ask("CONSUME topic=t partition=1 offset=0 member=m").await;
    assert_eq!(redirect, format!("ERROR: NOT_LEADER LEADER_IS {leader}"));
    let far = client.ask("CONSUME topic=t partition=0 offset=9 member=m isolation=read_uncommitted").await;
    assert_eq!(far, "ERROR: OFFSET_OUT_OF_RANGE requested=9 earliest=0 latest=0");
    let elsewhere = client.ask("HEARTBEAT topic=t group=g member=m generation=1").await;
    let port = leader.rsplit(':').next().unwrap();
    assert_eq!(elsewhere, format!("ERROR: NOT_COORDINATOR class=routing retryable=true host=127.0.0.1 port={port}"));
}

#[tokio::test(start_paused = true)]
async fn credentials_are_refused_as_long_as_authentication_is_off() {
    let cluster = with_topic(1, 1).await;
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.ask("AUTH principal=a").await, "ERROR: invalid_auth command=AUTH");
    assert_eq!(client.ask("AUTH principal=a token=b").await, "ERROR: authentication_failed mechanism=PLAIN");
    assert_eq!(
        client.ask("METADATA topic=t principal=a").await,
        "ERROR: invalid_auth reason=principal_and_auth_token_required"
    );
    assert_eq!(
        client.ask("METADATA topic=t principal=a auth_token=b").await,
        "ERROR: authentication_failed mechanism=PLAIN"
    );
}

/// Commands put together at random from words that are each likely to hurt: every one is answered.
#[tokio::test(start_paused = true)]
async fn no_command_is_too_strange_to_be_answered() {
    const COMMANDS: [&str; 24] = [
        "AUTH",
        "BATCH_COMMIT",
        "COMMIT_OFFSET",
        "CONSUME",
        "CREATE",
        "DELETE",
        "DESCRIBE",
        "FETCH_OFFSET",
        "FIND_COORDINATOR",
        "GROUP_STATUS",
        "HEARTBEAT",
        "JOIN_GROUP",
        "LEAVE_GROUP",
        "LIST",
        "LIST_CLUSTER",
        "LIST_GROUPS",
        "LIST_OFFSETS",
        "METADATA",
        "NEGOTIATE",
        "PROTOCOL_INFO",
        "PUBLISH",
        "REGISTER_GROUP",
        "SYNC_GROUP",
        "CLUSTER_STATUS",
    ];
    const KEYS: [&str; 16] = [
        "topic",
        "topic",
        "partition",
        "group",
        "member",
        "generation",
        "offset",
        "batch",
        "isolation",
        "partitions",
        "version",
        "features",
        "producerId",
        "acks",
        "key",
        "message",
    ];
    const VALUES: [&str; 24] = [
        "t",
        "t",
        "t",
        "*",
        "?*",
        "g",
        "m",
        "0",
        "1",
        "2",
        "-1",
        "+1",
        "4294967295",
        "4294967296",
        "18446744073709551615",
        "-9223372036854775808",
        "99999999999999999999",
        "",
        "\u{0}",
        "=",
        "ž\u{2028}",
        "\"",
        "read_uncommitted",
        "P0:1,P1:2",
    ];
    for brokers in [1, 2] {
        let cluster = with_topic(brokers, 2).await;
        cluster.produce("t", 0, numbered(3)).unwrap();
        let mut client = Client::connect(&cluster, 0).await;
        let random = SplitMix::seeded(brokers as u64);
        let pick = |words: &[&'static str]| words[random.below(words.len() as u64) as usize];
        for _ in 0..5_000 {
            let mut command = pick(&COMMANDS).to_owned();
            for _ in 0..pick(&["0", "2", "4", "6", "8"]).parse().unwrap() {
                command.push_str(&format!(" {}={}", pick(&KEYS), pick(&VALUES)));
            }
            command.push_str(pick(&["", "", " P0:1", " P0:1,P1:9", " P99999999999:1", " :", "\t"]));
            client.tell(&command).await;
            assert!(client.receive().await.is_some(), "{command:?} closed the connection");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_carried_out_says_so() {
    let cluster = cluster(1).await;
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(
        client.ask("READ_STREAM topic=t").await,
        "ERROR: command_failed reason=\"the embedded cluster doesn't carry out READ_STREAM\""
    );
    assert!(client.ask("HELP").await.starts_with("OK commands="));
}

#[tokio::test]
async fn everything_works_over_real_sockets_too() {
    let cluster = Cluster::start(Options::default()).await.unwrap();
    cluster.create_topic("t", 3).unwrap();
    cluster.produce("t", 0, numbered(3)).unwrap();
    let mut client = Client::connect(&cluster, 0).await;
    assert_eq!(client.offsets("partition=0 offset=1 group=none").await, [1, 2]);
    assert_eq!(cluster.connections(0), 1);
    drop(client);
    cluster.wait_for("the connection to be gone", |cluster| cluster.connections(0) == 0).await;
    cluster.stop().await;
}
