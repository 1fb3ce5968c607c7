//! The recorded exchanges of a real broker, through the types and back: the bytes must be the same.

use std::collections::BTreeSet;

use bytes::Bytes;
use cursus_wire::command::*;
use cursus_wire::reply::{Records, StreamFrame};
use cursus_wire::{BrokerError, Meaning, Record, RecordBatch, Reply, ReplyError, TextReply, batch, frame};
use serde::Deserialize;

#[derive(Deserialize)]
struct Exchange {
    name: String,
    request: String,
    request_frame: Option<String>,
    response: Option<String>,
    response_text: Option<String>,
    #[serde(default)]
    frames: Vec<(f64, String)>,
}

/// Every exchange, its name behind the file's: some names are in both.
fn exchanges() -> Vec<Exchange> {
    let read = |file: &'static str| {
        let path = format!("{}/../../tests/golden/{file}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let exchange = move |line: &str| {
            let mut exchange: Exchange = serde_json::from_str(line).expect("an exchange");
            exchange.name = format!("{file}/{}", exchange.name);
            exchange
        };
        text.lines().map(exchange).collect::<Vec<_>>()
    };
    [read("standalone"), read("cluster"), read("transactions")].into_iter().flatten().collect()
}

fn unhex(text: &str) -> Bytes {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

/// Commands that this project has no use for.
const FOREIGN: &[&str] = &["cluster/list_cluster", "cluster/cluster_status", "standalone/describe"];

/// Commands that were wrong on purpose, and what our own parser says to them.
const MALFORMED: &[(&str, &str)] = &[
    ("standalone/consume_missing_member", "CONSUME: member= is missing"),
    ("standalone/consume_bad_isolation", "CONSUME: isolation=\"bogus\" is not read_committed or read_uncommitted"),
    ("standalone/batch_commit_malformed", "\"P1\" is not P<partition>:<offset>"),
    ("standalone/batch_commit_empty", "\"generation=1\" is not P<partition>:<offset>"),
    ("standalone/unknown_command_enveloped", "unknown command \"BOGUS\""),
    ("standalone/unknown_command_raw", "unknown command \"BOGUS\""),
    ("transactions/init_no_id", "INIT_PRODUCER_ID: transactional_id= is missing"),
    ("transactions/begin_bad_epoch", "BEGIN_TXN: epoch=\"x\" is not a number in range"),
    ("transactions/begin_no_producer", "BEGIN_TXN: producerId= is missing"),
    ("transactions/publish_no_seq", "TXN_PUBLISH: seqNum= is missing"),
    ("transactions/publish_seq_bad", "TXN_PUBLISH: seqNum=\"x\" is not a number in range"),
    ("transactions/publish_partition_text", "TXN_PUBLISH: partition=\"x\" is not a number in range"),
    ("transactions/offsets_none", "\"generation=1\" is not P<partition>:<offset>"),
    ("transactions/offsets_bad_pair", "\"1:2\" is not P<partition>:<offset>"),
    ("transactions/offsets_bad_number", "\"Px:1\" is not P<partition>:<offset>"),
    ("transactions/offsets_bad_offset", "\"P0:x\" is not P<partition>:<offset>"),
    ("transactions/offsets_bad_generation", "SEND_OFFSETS_TO_TXN: generation=\"x\" is not a number in range"),
    ("transactions/end_bad_result", "END_TXN: result=\"zzz\" is not commit or abort"),
    ("transactions/end_no_producer", "END_TXN: producerId= is missing"),
    ("transactions/negotiated_no_offsets", "\"generation=1\" is not P<partition>:<offset>"),
];

/// What each recorded error means to a client.
fn meanings() -> Vec<(&'static str, Meaning)> {
    let mismatch = |current| Meaning::GenerationMismatch { current };
    let leader = |address: &str| Meaning::NotLeader(Some(address.to_owned()));
    let coordinator = |host: &str| Meaning::NotCoordinator(Some((host.to_owned(), 9000)));
    vec![
        ("standalone/metadata_unknown", Meaning::TopicNotFound),
        ("standalone/fetch_offset_unknown_group", Meaning::GroupNotFound),
        ("standalone/resume_unknown", Meaning::MemberNotFound),
        ("standalone/join_other_topic", Meaning::OtherTopic { expected: "gt0965".to_owned() }),
        ("standalone/join_missing_topic", Meaning::TopicNotFound),
        ("standalone/consume_missing_member", Meaning::Permanent),
        ("standalone/consume_bad_partition", Meaning::Permanent),
        ("standalone/consume_bad_topic", Meaning::TopicNotFound),
        ("standalone/consume_beyond_end_uncommitted", Meaning::OutOfRange { earliest: 0, latest: 6 }),
        ("standalone/consume_bad_isolation", Meaning::Permanent),
        ("standalone/commit_regression", Meaning::OffsetRegression),
        ("standalone/commit_missing_generation", Meaning::Permanent),
        ("standalone/commit_stale_generation", mismatch(1)),
        ("standalone/commit_unknown_member", Meaning::MemberNotFound),
        ("standalone/commit_not_owner", Meaning::NotOwner),
        ("standalone/batch_commit_regression", Meaning::OffsetRegression),
        ("standalone/batch_commit_duplicate", Meaning::Permanent),
        ("standalone/batch_commit_malformed", Meaning::Permanent),
        ("standalone/batch_commit_empty", Meaning::Permanent),
        ("standalone/heartbeat_stale", mismatch(2)),
        ("standalone/resume_stale", mismatch(2)),
        ("standalone/leave_no_generation", Meaning::Permanent),
        ("standalone/heartbeat_after_leave_of_other", mismatch(3)),
        ("standalone/negotiated_error", Meaning::MemberNotFound),
        ("standalone/negotiate_required_unknown", Meaning::Unsupported),
        ("standalone/negotiate_bad_version", Meaning::Unsupported),
        ("standalone/unknown_command_enveloped", Meaning::Permanent),
        ("standalone/unknown_command_raw", Meaning::Permanent),
        ("standalone/auth_when_off", Meaning::Unauthenticated),
        ("cluster/join_on_other", coordinator("10.77.0.2")),
        ("cluster/not_coordinator_sync_group", coordinator("10.77.0.2")),
        ("cluster/not_coordinator_heartbeat", coordinator("10.77.0.2")),
        ("cluster/not_coordinator_fetch_offset", coordinator("10.77.0.2")),
        ("cluster/not_coordinator_commit_offset", coordinator("10.77.0.2")),
        ("cluster/not_coordinator_batch_commit", coordinator("10.77.0.2")),
        ("cluster/not_coordinator_leave_group", coordinator("10.77.0.2")),
        ("cluster/not_coordinator_group_status", coordinator("10.77.0.2")),
        ("cluster/consume_on_other", leader("10.77.0.3:9000")),
        ("cluster/stream_on_other", leader("10.77.0.3:9000")),
        ("cluster/consume_unknown_topic", leader("10.77.0.1:9000")),
        ("cluster/consume_bad_partition", leader("10.77.0.1:9000")),
        ("cluster/join_missing_topic", coordinator("10.77.0.1")),
        ("cluster/batch_commit_regression", Meaning::OffsetRegression),
        ("cluster/commit_regression", Meaning::OffsetRegression),
        ("transactions/status_unknown", Meaning::Permanent),
        ("transactions/init_no_id", Meaning::Permanent),
        ("transactions/publish_before_begin", Meaning::Permanent),
        ("transactions/end_before_begin", Meaning::Permanent),
        ("transactions/begin_twice", Meaning::Permanent),
        ("transactions/begin_future_epoch", Meaning::Transient),
        ("transactions/begin_other_producer", Meaning::Permanent),
        ("transactions/begin_bad_epoch", Meaning::Permanent),
        ("transactions/begin_no_producer", Meaning::Permanent),
        ("transactions/begin_unknown", Meaning::Permanent),
        ("transactions/publish_no_seq", Meaning::Permanent),
        ("transactions/publish_seq_0", Meaning::Permanent),
        ("transactions/publish_seq_bad", Meaning::Permanent),
        ("transactions/publish_bad_partition", Meaning::Permanent),
        ("transactions/publish_partition_text", Meaning::Permanent),
        ("transactions/publish_no_topic", Meaning::TopicNotFound),
        ("transactions/publish_no_message", Meaning::Permanent),
        ("transactions/publish_other_epoch", Meaning::Transient),
        ("transactions/offsets_lower", Meaning::OffsetRegression),
        ("transactions/offsets_none", Meaning::Permanent),
        ("transactions/offsets_bad_pair", Meaning::Permanent),
        ("transactions/offsets_bad_number", Meaning::Permanent),
        ("transactions/offsets_bad_offset", Meaning::Permanent),
        ("transactions/offsets_stale", mismatch(1)),
        ("transactions/offsets_bad_generation", Meaning::Permanent),
        ("transactions/offsets_not_owner", Meaning::NotOwner),
        ("transactions/offsets_unknown_member", Meaning::MemberNotFound),
        ("transactions/offsets_unknown_group", Meaning::GroupNotFound),
        ("transactions/offsets_other_topic", Meaning::OtherTopic { expected: "tt1".to_owned() }),
        ("transactions/offsets_other_epoch", Meaning::Transient),
        ("transactions/end_other_epoch", Meaning::Transient),
        ("transactions/end_bad_result", Meaning::Permanent),
        ("transactions/end_no_producer", Meaning::Permanent),
        ("transactions/end_unknown", Meaning::Permanent),
        ("transactions/abort_after_commit", Meaning::Permanent),
        ("transactions/publish_after_commit", Meaning::Permanent),
        ("transactions/offsets_after_commit", Meaning::Permanent),
        ("transactions/begin_after_commit", Meaning::Permanent),
        ("transactions/fenced_begin", Meaning::ProducerFenced),
        ("transactions/fenced_publish", Meaning::Permanent),
        ("transactions/fenced_end", Meaning::ProducerFenced),
        ("transactions/commit_after_abort", Meaning::Permanent),
        ("transactions/publish_after_abort", Meaning::Permanent),
        ("transactions/commit_regressing", Meaning::OffsetRegression),
        ("transactions/commit_of_old_generation", mismatch(2)),
        ("transactions/commit_with_gap", Meaning::Permanent),
        ("transactions/commit_with_gap_again", Meaning::Permanent),
        ("transactions/abort_committing", Meaning::Permanent),
        ("transactions/init_committing", Meaning::Permanent),
        ("transactions/negotiated_fenced", Meaning::ProducerFenced),
        ("transactions/negotiated_fenced_end", Meaning::ProducerFenced),
        ("transactions/negotiated_commit_failed", Meaning::Permanent),
        ("transactions/negotiated_no_offsets", Meaning::Permanent),
        ("transactions/negotiated_publish", Meaning::Permanent),
        ("transactions/internal_topic", Meaning::Permanent),
    ]
}

/// A text reply through its type and back.
fn text_again<T: TextReply>(body: &Bytes) -> Result<Bytes, ReplyError> {
    T::parse(body).map(|reply| reply.to_text().into())
}

fn batch_again(batch: &RecordBatch) -> Bytes {
    let records: Vec<Record<'_>> = batch.iter().collect();
    let acks = std::str::from_utf8(batch.acks()).expect("acks are text");
    batch::encode(batch.topic(), batch.partition(), acks, batch.idempotent(), &records)
}

/// A reply through the type that its command has for it, and back.
fn again(command: &Command, body: &Bytes) -> Result<Bytes, ReplyError> {
    macro_rules! by_type {
        ($($name:ident)*) => {
            match command {
                $(Command::$name(_) => text_again::<<$name as Request>::Reply>(body),)*
                Command::Consume(_) => Records::parse(body).map(|records| batch_again(&records.0)),
                Command::Stream(_) => StreamFrame::parse(body).map(|frame| match frame {
                    StreamFrame::Records(batch) => batch_again(&batch),
                    StreamFrame::KeepAlive => Bytes::new(),
                    StreamFrame::Close(close) => close.to_text().into(),
                }),
            }
        };
    }
    by_type! {
        Auth Negotiate ProtocolInfo Create Delete List Metadata ListOffsets FindCoordinator JoinGroup SyncGroup Heartbeat
        LeaveGroup FetchOffset CommitOffset BatchCommit GroupStatus ListGroups Publish InitProducerId BeginTxn TxnPublish
        SendOffsetsToTxn EndTxn TxnStatus FindTransactionCoordinator
    }
}

#[test]
fn every_request_is_rebuilt_byte_for_byte() {
    let mut excused = BTreeSet::new();
    for Exchange { name, request, request_frame, .. } in exchanges() {
        let parsed = Command::parse(&request);
        if FOREIGN.contains(&name.as_str()) {
            assert!(matches!(parsed, Err(CommandError::Unknown(_))), "{name}: {parsed:?}");
            excused.insert(name);
        } else if let Some((_, message)) = MALFORMED.iter().find(|(malformed, _)| *malformed == name) {
            assert_eq!(parsed.expect_err(&name).to_string(), *message, "{name}");
            excused.insert(name);
        } else {
            let command = parsed.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(command.text(), request, "{name}");
            // Streams were recorded without their request's bytes.
            if let Some(recorded) = request_frame {
                let recorded = unhex(&recorded);
                assert_eq!(frame::encode_text(&command.text()).unwrap(), recorded, "{name}");
                assert_eq!(frame::open_envelope(&recorded[frame::HEADER..]).unwrap(), ("", &*request), "{name}");
            }
        }
    }
    assert_eq!(excused.len(), FOREIGN.len() + MALFORMED.len(), "every excuse is of a recorded exchange");
}

#[test]
fn every_reply_goes_through_its_type_and_back() {
    let mut checked = 0;
    for Exchange { name, request, response, response_text, frames, .. } in exchanges() {
        let Ok(command) = Command::parse(&request) else { continue };
        let bodies = response_text.map(Bytes::from).into_iter();
        let bodies = bodies.chain(response.as_deref().map(unhex)).chain(frames.iter().map(|(_, hex)| unhex(hex)));
        for body in bodies {
            let written = match again(&command, &body) {
                Ok(written) => written,
                Err(ReplyError::Broker(error)) => error.to_string().into(),
                Err(error) => panic!("{name}: {error}"),
            };
            assert_eq!(written, body, "{name}");
            checked += 1;
        }
    }
    assert_eq!(checked, 193);
}

#[test]
fn every_error_has_its_meaning() {
    let mut meanings = meanings();
    for Exchange { name, response_text, .. } in exchanges() {
        let Some(error) = response_text.as_deref().and_then(BrokerError::parse) else { continue };
        let error = error.unwrap_or_else(|problem| panic!("{name}: {problem}"));
        assert_eq!(Some(error.to_string()), response_text, "{name}");
        let at = meanings.iter().position(|(of, _)| *of == name).unwrap_or_else(|| panic!("{name} has no meaning"));
        assert_eq!(error.meaning(), meanings.swap_remove(at).1, "{name}");
    }
    assert!(meanings.is_empty(), "{meanings:?} are of no recorded error");
}

#[test]
fn keys_and_values_are_bytes_and_markers_are_recognised() {
    let records_of = |name: &str| {
        let exchange = exchanges().into_iter().find(|exchange| exchange.name == name).expect(name);
        RecordBatch::parse(unhex(&exchange.response.expect("a batch"))).expect(name)
    };
    let unicode = records_of("standalone/consume_unicode");
    assert_eq!(unicode.record(0).value, "žluťoučký 🦀".as_bytes());
    let marker = records_of("standalone/consume_read_uncommitted_marker");
    assert_eq!(marker.iter().map(|record| record.is_control()).collect::<Vec<_>>(), [false, true, false]);
    let gap = records_of("standalone/consume_read_committed_gap");
    assert_eq!(gap.iter().map(|record| record.offset).collect::<Vec<_>>(), [0, 2]);
    assert_eq!((gap.bounds(), gap.position_of(1)), (Some((0, 2)), 1));
    assert!(records_of("standalone/consume_empty").is_empty());
}
