//! Bytes that mean harm: nothing panics, nothing takes memory beyond what the frame's length justifies, and the error says
//! what was wrong and where.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::{Bytes, BytesMut};
use cursus_wire::reply::*;
use cursus_wire::{BrokerError, Command, Record, RecordBatch, Reply, ReplyError, batch, frame};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Counts, for each thread, what is allocated and the most that ever was.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // Gone while a thread ends; what it frees then is nobody's business.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + change);
        MOST.with(|most| most.set(most.get().max(now.get())));
    });
}

// Every call goes to the system's allocator with the arguments that came, so its contract is kept.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(memory, layout) }
    }
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While it is moved, both exist.
        count(size as isize);
        count(-(layout.size() as isize));
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that `work` had allocated at any time.
fn most_allocated<T>(work: impl FnOnce() -> T) -> usize {
    let before = NOW.get();
    MOST.set(before);
    drop(work());
    (MOST.get() - before) as usize
}

/// Text is kept as strings: its costliest list is one of empty entries, a byte on the wire and 24 in memory.
fn fair_for_text(length: usize) -> usize {
    32 * length + 4096
}

/// A batch is kept as its frame and four bytes a record, of which none has fewer than 48.
fn fair_for_batch(length: usize) -> usize {
    length / batch::SMALLEST_RECORD * 4 + 1024
}

/// Reads a body as everything that it could be, and asserts of each that it took a fair amount of memory.
fn read_as_everything(body: &Bytes) {
    macro_rules! replies {
        ($($reply:ident)*) => {$({
            let most = most_allocated(|| $reply::parse(body));
            let fair = fair_for_text(body.len());
            assert!(most <= fair, "{} took {most} bytes for {}: {:?}", stringify!($reply), body.len(), start_of(body));
        })*};
    }
    replies! {
        Authenticated Negotiated ProtocolInfo Created Deleted Topics Groups Metadata Offsets Coordinator Assignment Heartbeat
        Left Offset BatchCommitted Done GroupStatus Published Records StreamFrame StreamClose ProducerEpoch TransactionBegun
        RecordStaged OffsetsStaged TransactionEnded TransactionStatus
    }
    if RecordBatch::is_batch(body) {
        let most = most_allocated(|| (RecordBatch::parse(body.clone()), RecordBatch::parse_published(body.clone())));
        assert!(most <= 2 * fair_for_batch(body.len()), "a batch took {most} bytes for {}", body.len());
    }
    let most = most_allocated(|| {
        let _ = frame::take(&mut BytesMut::from(&body[..]));
        let _ = frame::open_envelope(body).map(|(_, text)| Command::parse(text).map(drop));
        let text = String::from_utf8_lossy(body);
        let _ = (Command::parse(&text), BrokerError::parse(&text).map(|error| error.map(|e| e.meaning())));
    });
    assert!(most <= fair_for_text(body.len()), "a command took {most} bytes for {}", body.len());
}

fn start_of(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned()
}

/// Every recorded reply's body, and every recorded command's text.
fn recorded() -> Vec<Bytes> {
    let unhex = |text: &str| -> Bytes {
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
    };
    let files = ["standalone", "cluster", "transactions"].map(|file| {
        let path = format!("{}/../../tests/golden/{file}.jsonl", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    });
    let mut bodies = Vec::new();
    for line in files.iter().flat_map(|file| file.lines()) {
        let exchange: serde_json::Value = serde_json::from_str(line).expect("an exchange");
        bodies.extend(exchange["response"].as_str().map(unhex));
        bodies.extend(
            ["response_text", "request"]
                .iter()
                .filter_map(|key| exchange[key].as_str())
                .map(|text| Bytes::copy_from_slice(text.as_bytes())),
        );
    }
    bodies
}

#[test]
fn every_truncation_of_a_batch_is_an_error_that_says_where() {
    let mut batches = 0;
    for body in recorded().into_iter().filter(|body| RecordBatch::is_batch(body)) {
        batches += 1;
        assert!(RecordBatch::parse(body.clone()).is_ok());
        for end in 0..body.len() {
            let error = RecordBatch::parse(body.slice(..end)).expect_err("a part");
            assert!(error.at <= end && error.length == end, "{error}");
            assert!(!error.problem.is_empty());
            read_as_everything(&body.slice(..end));
        }
        let longer: Bytes = body.iter().copied().chain([0]).collect();
        for error in [RecordBatch::parse(longer.clone()), RecordBatch::parse_published(longer)] {
            let error = error.expect_err("one byte too many");
            assert_eq!((error.at, error.problem.as_str()), (body.len(), "1 bytes follow the last record"));
        }
    }
    assert_eq!(batches, 23);
}

#[test]
fn truncations_of_texts_are_read_without_harm() {
    for body in recorded().iter().filter(|body| !RecordBatch::is_batch(body)) {
        (0..=body.len()).step_by(1 + body.len() / 50).for_each(|end| read_as_everything(&body.slice(..end)));
    }
}

/// A batch of two records and where its numbers stand.
fn two_records() -> (Vec<u8>, usize, usize) {
    let record = |offset| Record { offset, producer_id: b"p", key: b"key", value: b"value", ..Record::default() };
    let body = batch::encode("topic", 3, "1", false, &[record(7), record(8)]);
    let count_at = 2 + 2 + "topic".len() + 4 + 1 + 1 + 1 + 16;
    let value_at = count_at + 4 + 16 + 2 + 1 + 2 + 3 + 8;
    (body.to_vec(), count_at, value_at)
}

#[test]
fn a_lying_number_is_an_error_that_says_what_and_where() {
    let says = |change: &dyn Fn(&mut Vec<u8>), problem: &str| {
        let (mut body, ..) = two_records();
        change(&mut body);
        let length = body.len();
        let body = Bytes::from(body);
        read_as_everything(&body);
        let error = RecordBatch::parse(body).expect_err(problem).to_string();
        assert_eq!(error, format!("a record batch of {length} bytes is corrupt at byte {problem}"));
    };
    let (_, count_at, value_at) = two_records();
    let put = |at: usize, bytes: [u8; 4]| move |body: &mut Vec<u8>| body[at..at + 4].copy_from_slice(&bytes);
    says(&put(0, *b"OK  "), "0: it doesn't begin with BA7C");
    says(&put(9, (-1i32).to_be_bytes()), "9: the partition is -1");
    says(&|body| body[2..4].fill(0xff), "4: the topic needs 65535 bytes, 146 are left");
    says(&|body| body[5] = 0xff, "5: the topic is not UTF-8");
    says(&|body| body[13] = 0xff, "14: the acks field needs 255 bytes, 136 are left");
    for lie in [i32::MAX, i32::MIN, -1, 3] {
        let problem = format!("{count_at}: the count is {lie}, and there is room for 2 records");
        says(&put(count_at, lie.to_be_bytes()), &problem);
    }
    says(&put(count_at, 1i32.to_be_bytes()), "93: 57 bytes follow the last record");
    for lie in [u32::MAX, 1 << 31, 200] {
        let problem = format!("{}: record 0: its value needs {lie} bytes, 78 are left", value_at + 4);
        says(&put(value_at, lie.to_be_bytes()), &problem);
    }
    says(&|body| body[100] = 7, "93: record 1: offset 7 follows offset 7");
    says(&|body| body[93..101].fill(0xff), "93: record 1: offset 18446744073709551615 has no next");
}

#[test]
fn a_batch_over_the_frame_limit_is_refused_before_it_is_read() {
    let head = batch::encode("t", 0, "1", false, &[Record::default()]).len();
    let value = vec![0; frame::MAX_BODY - head + 1];
    let of = |value| batch::encode("t", 0, "1", false, &[Record { value, ..Record::default() }]);
    assert_eq!(RecordBatch::parse(of(&value[1..])).unwrap().frame().len(), frame::MAX_BODY);
    let body = of(&value);
    let mut error = None;
    let most = most_allocated(|| error = RecordBatch::parse(body).err());
    assert!(error.expect("over the limit").problem.contains("over the limit"));
    assert!(most < 1024, "{most}");
}

#[test]
fn long_texts_of_short_words_cost_a_small_multiple() {
    const LENGTH: usize = 1 << 16;
    let long = |start: &str, again: &str, end: &str| {
        Bytes::from(format!("{start}{}{end}", again.repeat(LENGTH / again.len())))
    };
    for body in [
        long("OK ", "a ", ""),
        long("OK ", "a=1 ", ""),
        long("OK count=1 topics=", "a,", ""),
        long("OK topic=t partitions=65537 leaders=", ",", " epochs="),
        long("OK topic=t partitions=32769 epochs= leaders=", ",a", ""),
        long("OK topic=t partitions=1 leaders=a epochs=", "1,", ""),
        long("OK generation=1 member=m assignments=[", "1 ", "]"),
        long("OK topic=t partitions=1 offsets=", "P0:earliest=0:latest=0:leo=0:hwm=0,", ""),
        long("ERROR: code ", "a ", ""),
        long("ERROR: code ", "a=1 ", ""),
        long("ERROR: ", "a", ""),
        long("ERROR: code reason=\"", "\\n", "\""),
        long("ERROR: code reason=\"", "\\n", ""),
        long(r#"{"status":"OK","group_name":"g","topic_name":"t","state":""#, "s", r#""}"#),
        long(r#"{"members":["#, r#"{"member_id":""},"#, r#"]}"#),
        long(r#"{"members":[{"member_id":"","assignments":["#, "1,", "1]}]}"),
        long("", "[", ""),
        long("", "{\"a\":", ""),
        long("BATCH_COMMIT topic=t group=g member=m generation=1 ", "P0:1,", "P0:1"),
        long("NEGOTIATE version=1 features=", "a,", ""),
        long("PUBLISH topic=t producerId=p ", "k=v ", "message=m"),
    ] {
        read_as_everything(&body);
    }
}

#[test]
fn a_full_batch_of_the_smallest_records_costs_a_twelfth() {
    let records: Vec<Record<'_>> = (0..20_000).map(|offset| Record { offset, ..Record::default() }).collect();
    let body = batch::encode("t", 0, "1", false, &records);
    let most = most_allocated(|| RecordBatch::parse(body.clone()).expect("a batch").len());
    assert!(most <= fair_for_batch(body.len()), "{most} for {}", body.len());
}

#[test]
fn a_reply_that_makes_no_sense_is_named_with_its_problem() {
    let says = |error: ReplyError| error.to_string();
    let body = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    assert_eq!(
        says(Offset::parse(&body("OK offset=-1")).unwrap_err()),
        "the reply \"OK offset=-1\" to FETCH_OFFSET makes no sense: offset=\"-1\" is not a number in range"
    );
    assert_eq!(
        says(Heartbeat::parse(&body("OK member=m")).unwrap_err()),
        "the reply \"OK member=m\" to HEARTBEAT makes no sense: generation= is missing"
    );
    assert_eq!(
        says(Assignment::parse(&body("OK generation=1 member=m assignments=[0 1")).unwrap_err()),
        "the reply \"OK generation=1 member=m assignments=[0 1\" to JOIN_GROUP or SYNC_GROUP makes no sense: \
         the bracket opened at byte 37 is never closed"
    );
    assert_eq!(
        says(Metadata::parse(&body("OK topic=t partitions=3 leaders=a:1,b:1 epochs=")).unwrap_err()),
        "the reply \"OK topic=t partitions=3 leaders=a:1,b:1 epochs=\" to METADATA makes no sense: \
         leaders=\"a:1,b:1\" is not one address per partition"
    );
    assert_eq!(
        says(Done::parse(&Bytes::from_static(b"OK\xff")).unwrap_err()),
        "the reply \"OK\u{fffd}\" to COMMIT_OFFSET makes no sense: it is not UTF-8 from byte 2 on"
    );
    assert_eq!(
        says(Records::parse(&body("OK")).unwrap_err()),
        "the reply \"OK\" to CONSUME makes no sense: it is neither a batch of records nor an error"
    );
    let status = says(GroupStatus::parse(&body(r#"{"status":"OK"}"#)).unwrap_err());
    assert!(status.ends_with("its JSON is wrong: missing field `group_name` at line 1 column 15"), "{status}");
    let long = says(Done::parse(&Bytes::from("x".repeat(100_000))).unwrap_err());
    assert!(long.len() < 300, "{long}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_bytes_do_no_harm(body in vec(any::<u8>(), 0..300)) {
        read_as_everything(&body.into());
    }

    #[test]
    fn random_bytes_behind_a_batch_s_first_two_do_no_harm(body in vec(any::<u8>(), 0..300)) {
        read_as_everything(&batch::MAGIC.into_iter().chain(body).collect());
    }

    #[test]
    fn mutations_of_recorded_bodies_do_no_harm(
        body in select(recorded()),
        changes in vec((any::<Index>(), any::<u8>()), 1..6),
        cut in any::<Option<Index>>(),
    ) {
        let mut body = body.to_vec();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len()));
        }
        read_as_everything(&body.into());
    }

    #[test]
    fn a_recorded_body_spliced_into_another_does_no_harm(
        (a, b) in (select(recorded()), select(recorded())),
        (at, from) in any::<(Index, Index)>(),
    ) {
        let spliced = a.slice(..at.index(a.len())).into_iter().chain(b.slice(from.index(b.len())..));
        read_as_everything(&spliced.collect());
    }
}
