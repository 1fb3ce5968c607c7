//! Replies and commands that are almost right: what is refused, with which words, and what is let through.

use bytes::Bytes;
use cursus_wire::command;
use cursus_wire::reply::*;
use cursus_wire::{Command, Record, RecordBatch, Reply, ReplyError, Request, batch};

fn problem<T: Reply + std::fmt::Debug>(text: &str) -> String {
    match T::parse(&Bytes::copy_from_slice(text.as_bytes())) {
        Err(ReplyError::Malformed { problem, .. }) => problem,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn only_ok_by_itself_is_ok() {
    assert_eq!(problem::<Done>("OKAY"), "it doesn't begin with OK");
    assert_eq!(problem::<Done>(""), "it doesn't begin with OK");
    assert_eq!(problem::<Done>("ok"), "it doesn't begin with OK");
    assert!(Done::parse(&Bytes::from("OK\n")).is_ok());
}

#[test]
fn metadata_has_one_leader_and_one_epoch_per_partition() {
    let bad = |partitions: u32, leaders: &str, epochs: &str| {
        problem::<Metadata>(&format!("OK topic=t partitions={partitions} leaders={leaders} epochs={epochs}"))
    };
    assert_eq!(bad(2, "a:1", "1,1"), "leaders=\"a:1\" is not one address per partition");
    assert_eq!(bad(0, "a:1", ""), "leaders=\"a:1\" is not one address per partition");
    assert_eq!(bad(2, "a:1,b:1", "1"), "epochs=\"1\" is not one epoch per partition");
    assert_eq!(bad(1, "a:1", "one"), "epochs=\"one\" is not a number in range");
    let leaderless = Metadata::parse(&Bytes::from("OK topic=t partitions=2 leaders=,b:1")).unwrap();
    assert_eq!((leaderless.leaders, leaderless.epochs), (vec![String::new(), "b:1".to_owned()], vec![]));
}

#[test]
fn bounds_are_complete_and_as_many_as_announced() {
    let bad = |entry: &str| problem::<Offsets>(&format!("OK topic=t partitions=1 offsets={entry}"));
    for entry in [
        "P0:latest=1:leo=1:hwm=1",
        "P0:earliest=1:leo=1:hwm=1",
        "P0:earliest=1:latest=1:hwm=1",
        "P0:earliest=1:latest=1:leo=1",
        "0:earliest=1:latest=1:leo=1:hwm=1",
        "P0:earliest=-1:latest=1:leo=1:hwm=1",
        "P0:earliest:latest=1:leo=1:hwm=1",
    ] {
        assert_eq!(bad(entry), format!("offsets={entry:?} is not P<n>:earliest=…:latest=…:leo=…:hwm=…"));
    }
    assert_eq!(bad(""), "offsets=\"\" is not one entry per partition");
    let newer = Bytes::from("OK topic=t partitions=1 offsets=P3:new=x:hwm=4:leo=3:latest=2:earliest=1");
    let bounds = Bounds { partition: 3, earliest: 1, latest: 2, log_end: 3, high_watermark: 4 };
    assert_eq!(Offsets::parse(&newer).unwrap().partitions, [bounds]);
}

#[test]
fn an_assignment_has_each_partition_once_between_spaces_or_commas() {
    let assigned = |list: &str| Bytes::from(format!("OK generation=1 member=m assignments={list}"));
    for (list, partitions) in [("[]", vec![]), ("[2 0]", vec![2, 0]), ("[0,1]", vec![0, 1]), ("[0, 1]", vec![0, 1])] {
        let assignment = Assignment::parse(&assigned(list)).unwrap();
        assert_eq!((assignment.partitions, assignment.resumed), (partitions, false), "{list}");
    }
    let bad = |list: &str| problem::<Assignment>(&format!("OK generation=1 member=m assignments={list}"));
    assert_eq!(bad("[0 1 0]"), "assignments=\"[0 1 0]\" is not a list that has each partition once");
    assert_eq!(bad("0"), "assignments=\"0\" is not partitions in brackets");
    assert_eq!(bad("[-1]"), "assignments=\"-1\" is not a number in range");
}

#[test]
fn a_coordinator_can_be_dialled() {
    assert_eq!(problem::<Coordinator>("OK coordinator_id=a host= port=1"), "host=\"\" is not a host");
    assert_eq!(
        problem::<Coordinator>("OK coordinator_id=a host=h port=65536"),
        "port=\"65536\" is not a number in range"
    );
}

#[test]
fn json_replies_are_ok_and_complete() {
    let status = r#"{"status":"BAD","group_name":"g","topic_name":"t","state":"Stable","generation":1,
        "member_count":0,"partition_count":1,"members":null}"#;
    assert_eq!(problem::<GroupStatus>(status), "status=\"BAD\" is not OK");
    assert_eq!(GroupStatus::parse(&Bytes::from(status.replace("BAD", "OK"))).unwrap().members, []);
    let published =
        r#"{"status":"BAD","last_offset":1,"producer_epoch":0,"producer_id":"p","seq_start":0,"seq_end":0}"#;
    assert_eq!(problem::<Published>(published), "status=\"BAD\" is not OK");
    assert_eq!(problem::<Published>("{}"), "its JSON is wrong: missing field `status` at line 1 column 2");
    assert_eq!(problem::<Published>("OK"), "its JSON is wrong: expected value at line 1 column 1");
}

#[test]
fn a_stream_s_frames_are_told_apart() {
    let parse = |body: &'static [u8]| StreamFrame::parse(&Bytes::from_static(body));
    assert!(matches!(parse(b""), Ok(StreamFrame::KeepAlive)));
    let close = parse(b"STREAM_CONTROL type=CLOSE reason=replaced offset=4");
    assert!(matches!(close, Ok(StreamFrame::Close(close)) if close.reason == "replaced" && close.offset == Some(4)));
    assert!(matches!(parse(b"ERROR: NOT_LEADER LEADER_IS h:1"), Err(ReplyError::Broker(_))));
    assert!(matches!(parse(&batch::MAGIC), Err(ReplyError::Corrupt(_))));
    assert_eq!(problem::<StreamFrame>("STREAM_CONTROL type=OPEN reason=x"), "type=\"OPEN\" is not CLOSE");
    assert_eq!(problem::<StreamFrame>("OK"), "it doesn't begin with STREAM_CONTROL");
}

#[test]
fn a_control_record_is_known_by_its_producer_and_its_value_together() {
    let control = |producer_id: &[u8], value: &[u8]| Record { producer_id, value, ..Record::default() }.is_control();
    assert!(control(b"txn-marker:t:commit", b"__cursus_txn_control_marker__"));
    assert!(!control(b"txn-marker:t:commit", b"a value"));
    assert!(!control(b"a producer", b"__cursus_txn_control_marker__"));
}

#[test]
fn a_flag_that_is_neither_zero_nor_one_is_set() {
    let mut body = batch::encode("t", 0, "1", false, &[]).to_vec();
    body[11] = 2;
    assert!(RecordBatch::parse(body.into()).unwrap().idempotent());
}

#[test]
fn commands_are_read_as_the_broker_reads_them() {
    let heartbeat = |generation| -> Command {
        let (topic, group, member) = ("x".parse().unwrap(), "x".parse().unwrap(), "x".parse().unwrap());
        command::Heartbeat { topic, group, member, generation }.into()
    };
    let parse = |text| Command::parse(text).unwrap();
    assert_eq!(parse("heartbeat topic=x group=x member=x"), heartbeat(None), "the first word in any case");
    assert_eq!(parse(" HEARTBEAT  group=x\tmember=x topic=x\n"), heartbeat(None), "in any order and spacing");
    assert_eq!(
        parse("HEARTBEAT topic=y topic=x group=x member=x generation=2"),
        heartbeat(Some(2)),
        "the last one counts"
    );
    assert_eq!(
        parse("HEARTBEAT topic=x group=x member=x new=1 word"),
        heartbeat(None),
        "what is unknown is passed over"
    );
    let error = |text| Command::parse(text).unwrap_err().to_string();
    assert_eq!(
        error("HEARTBEAT topic=x group=x member=x generation=-1"),
        "HEARTBEAT: generation=\"-1\" is not a number in range"
    );
    assert_eq!(
        error("HEARTBEAT topic=a[ group=x member=x"),
        "HEARTBEAT: topic \"a[\" has '[' at byte 1: spaces, '=', quotes, commas, brackets and control characters are not allowed"
    );
    assert_eq!(error(""), "unknown command \"\"");
    assert_eq!(
        error("NEGOTIATE version=1 require_features=yes"),
        "NEGOTIATE: require_features=\"yes\" is not true or false"
    );
    let secret = error("AUTH principal=p token=hunter2'");
    assert!(secret.starts_with("AUTH: token has") && !secret.contains("hunter2"), "{secret}");
}

#[test]
fn asking_for_structured_errors_is_one_command() {
    let asked = command::Negotiate::structured_errors();
    assert_eq!(asked.text(), "NEGOTIATE version=1 features=structured_errors_v1");
}
