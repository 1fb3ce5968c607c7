//! Batches of records, as CONSUME and STREAM return them and as a batch publish sends them.
//!
//! Decoding checks the whole frame once and keeps where each record begins; keys and values stay where they are, and a
//! [`Record`] borrows from the frame. All integers are big-endian:
//!
//! ```text
//! batch   magic BA7C · topic u16+bytes · partition i32 · acks u8+bytes · idempotent u8 · first seq u64 · last seq u64 · count i32
//! record  offset u64 · seq u64 · producer id u16+bytes · key u16+bytes · epoch i64 · value u32+bytes
//!         · event type u16+bytes · schema version u32 · aggregate version u64 · metadata u16+bytes
//! ```

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

/// The first two bytes of a batch. No text reply begins with them: they aren't UTF-8.
pub const MAGIC: [u8; 2] = [0xBA, 0x7C];

/// The bytes of a record whose every variable field is empty.
pub const SMALLEST_RECORD: usize = 48;

/// Why a frame isn't a batch.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a record batch of {length} bytes is corrupt at byte {at}: {problem}")]
pub struct CorruptBatch {
    /// Where in the frame's body.
    pub at: usize,
    /// The body's length.
    pub length: usize,
    /// What is wrong there.
    pub problem: String,
}

/// One record, borrowed from its frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record<'a> {
    /// Position in the partition.
    pub offset: u64,
    /// The producer's sequence number.
    pub sequence: u64,
    /// Who wrote it.
    pub producer_id: &'a [u8],
    /// The key; empty where there is none (the protocol doesn't tell the two apart).
    pub key: &'a [u8],
    /// The producer's epoch.
    pub epoch: i64,
    /// The payload.
    pub value: &'a [u8],
    /// Event sourcing: the event's type.
    pub event_type: &'a [u8],
    /// Event sourcing: the version of its schema.
    pub schema_version: u32,
    /// Event sourcing: the version of its aggregate.
    pub aggregate_version: u64,
    /// Event sourcing: free metadata.
    pub metadata: &'a [u8],
}

const MARKER_PRODUCER: &[u8] = b"txn-marker:";
const MARKER_VALUE: &[u8] = b"__cursus_txn_control_marker__";

impl Record<'_> {
    /// Whether this is a transaction's control record, which only `read_uncommitted` shows.
    pub fn is_control(&self) -> bool {
        self.value == MARKER_VALUE && self.producer_id.starts_with(MARKER_PRODUCER)
    }
}

/// A decoded batch: the frame's body and an index over it.
#[derive(Debug, Clone)]
pub struct RecordBatch {
    frame: Bytes,
    topic: Range<usize>,
    acks: Range<usize>,
    partition: u32,
    idempotent: bool,
    /// Where each record begins. A frame has at most 16 MiB, so 32 bits do.
    index: Vec<u32>,
}

/// Reads forward through a frame; every step is checked.
struct Cursor<'a> {
    frame: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    #[cold]
    fn corrupt(&self, problem: impl Into<String>) -> CorruptBatch {
        CorruptBatch { at: self.at, length: self.frame.len(), problem: problem.into() }
    }

    fn bytes(&mut self, count: usize, what: &str) -> Result<&'a [u8], CorruptBatch> {
        let left = self.frame.len() - self.at;
        if count > left {
            return Err(self.corrupt(format!("{what} needs {count} bytes, {left} are left")));
        }
        let bytes = &self.frame[self.at..self.at + count];
        self.at += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], CorruptBatch> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N, what)?);
        Ok(array)
    }

    fn u16(&mut self, what: &str) -> Result<usize, CorruptBatch> {
        Ok(usize::from(u16::from_be_bytes(self.array(what)?)))
    }

    fn u32(&mut self, what: &str) -> Result<usize, CorruptBatch> {
        Ok(u32::from_be_bytes(self.array(what)?) as usize)
    }

    /// Steps over a length-prefixed field, giving where it stands.
    fn short(&mut self, what: &str) -> Result<Range<usize>, CorruptBatch> {
        let length = self.u16(what)?;
        self.bytes(length, what)?;
        Ok(self.at - length..self.at)
    }

    fn skip_record(&mut self) -> Result<(), CorruptBatch> {
        self.bytes(16, "a record's offset and sequence")?;
        self.short("a record's producer id")?;
        self.short("a record's key")?;
        self.bytes(8, "a record's epoch")?;
        let length = self.u32("a record's value")?;
        self.bytes(length, "a record's value")?;
        self.short("a record's event type")?;
        self.bytes(12, "a record's versions")?;
        self.short("a record's metadata")?;
        Ok(())
    }
}

impl RecordBatch {
    /// Whether a reply's body is a batch rather than a text.
    pub fn is_batch(body: &[u8]) -> bool {
        body.starts_with(&MAGIC)
    }

    /// Checks and indexes a frame's body. Offsets must rise from record to record.
    pub fn parse(frame: Bytes) -> Result<Self, CorruptBatch> {
        let (batch, end) = Self::scan(frame, true)?;
        if end != batch.frame.len() {
            let left = batch.frame.len() - end;
            return Err(CorruptBatch {
                at: end,
                length: batch.frame.len(),
                problem: format!("{left} bytes follow the last record"),
            });
        }
        Ok(batch)
    }

    /// The same for a batch that a producer sends: its records have no offsets yet.
    pub fn parse_published(frame: Bytes) -> Result<Self, CorruptBatch> {
        Ok(Self::scan(frame, false)?.0)
    }

    fn scan(frame: Bytes, rising: bool) -> Result<(Self, usize), CorruptBatch> {
        let mut cursor = Cursor { frame: &frame, at: 0 };
        if cursor.array::<2>("the magic number")? != MAGIC {
            cursor.at = 0;
            return Err(cursor.corrupt("it doesn't begin with BA7C"));
        }
        let topic = cursor.short("the topic")?;
        if let Err(error) = std::str::from_utf8(&frame[topic.clone()]) {
            cursor.at = topic.start + error.valid_up_to();
            return Err(cursor.corrupt("the topic is not UTF-8"));
        }
        let partition = i32::from_be_bytes(cursor.array("the partition")?);
        let partition =
            u32::try_from(partition).map_err(|_| cursor.corrupt(format!("the partition is {partition}")))?;
        let [length] = cursor.array::<1>("the acks")?;
        let acks = cursor.at..cursor.at + usize::from(length);
        cursor.bytes(usize::from(length), "the acks")?;
        let [idempotent] = cursor.array::<1>("the idempotent flag")?;
        cursor.bytes(16, "the sequence range")?;
        let count = i32::from_be_bytes(cursor.array("the count")?);
        let room = (frame.len() - cursor.at) / SMALLEST_RECORD;
        let count = match usize::try_from(count) {
            Ok(count) if count <= room => count,
            _ => return Err(cursor.corrupt(format!("the count is {count}, and there is room for {room} records"))),
        };
        let mut index = Vec::with_capacity(count);
        let mut least = 0;
        for _ in 0..count {
            let start = cursor.at;
            cursor.skip_record()?;
            if rising {
                let offset = be_u64(&frame, start);
                if offset < least {
                    cursor.at = start;
                    return Err(cursor.corrupt(format!("offset {offset} follows offset {}", least - 1)));
                }
                least =
                    offset.checked_add(1).ok_or_else(|| cursor.corrupt("an offset is 2^64-1, which has no next"))?;
            }
            index.push(start as u32);
        }
        let end = cursor.at;
        Ok((Self { topic, acks, partition, idempotent: idempotent != 0, index, frame }, end))
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        // Checked by `scan`; an empty name is the honest answer to what can't happen.
        std::str::from_utf8(&self.frame[self.topic.clone()]).unwrap_or_default()
    }

    /// The partition's number.
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// The acknowledgement a producer asked for: `0`, `1`, `-1` or `all`.
    pub fn acks(&self) -> &[u8] {
        &self.frame[self.acks.clone()]
    }

    /// Whether the producer asked for idempotence.
    pub fn idempotent(&self) -> bool {
        self.idempotent
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The frame's body, which every record borrows from.
    pub fn frame(&self) -> &Bytes {
        &self.frame
    }

    /// The offset of record `i`, without looking at the rest of it. Panics where `i` is out of range, as a slice does.
    #[inline]
    pub fn offset(&self, i: usize) -> u64 {
        be_u64(&self.frame, self.index[i] as usize)
    }

    /// The offsets of the first and the last record.
    pub fn bounds(&self) -> Option<(u64, u64)> {
        Some((self.offset(0), self.offset(self.len().checked_sub(1)?)))
    }

    /// Record `i`. Panics where `i` is out of range, as a slice does.
    #[inline]
    pub fn record(&self, i: usize) -> Record<'_> {
        let frame = &self.frame[..];
        let start = self.index[i] as usize;
        let mut at = start + 16;
        let short = |at: &mut usize| {
            let length = usize::from(u16::from_be_bytes([frame[*at], frame[*at + 1]]));
            let field = &frame[*at + 2..*at + 2 + length];
            *at += 2 + length;
            field
        };
        let producer_id = short(&mut at);
        let key = short(&mut at);
        let epoch = be_u64(frame, at) as i64;
        at += 8;
        let length = be_u32(frame, at) as usize;
        let value = &frame[at + 4..at + 4 + length];
        at += 4 + length;
        let event_type = short(&mut at);
        let schema_version = be_u32(frame, at);
        let aggregate_version = be_u64(frame, at + 4);
        at += 12;
        let metadata = short(&mut at);
        Record {
            offset: be_u64(frame, start),
            sequence: be_u64(frame, start + 8),
            producer_id,
            key,
            epoch,
            value,
            event_type,
            schema_version,
            aggregate_version,
            metadata,
        }
    }

    /// All records, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Record<'_>> {
        (0..self.len()).map(|i| self.record(i))
    }

    /// Where the first record with an offset of at least `offset` stands.
    pub fn position_of(&self, offset: u64) -> usize {
        self.index.partition_point(|start| be_u64(&self.frame, *start as usize) < offset)
    }

    /// The bytes of record `i` as they stand in the frame.
    pub fn encoded(&self, i: usize) -> &[u8] {
        let end = self.index.get(i + 1).map_or_else(|| self.end_of_last(), |end| *end as usize);
        &self.frame[self.index[i] as usize..end]
    }

    fn end_of_last(&self) -> usize {
        let Some(last) = self.index.last() else { return self.frame.len() };
        let mut cursor = Cursor { frame: &self.frame, at: *last as usize };
        // The record was checked when the batch was parsed.
        let _ = cursor.skip_record();
        cursor.at
    }
}

#[inline]
fn be_u64(frame: &[u8], at: usize) -> u64 {
    let mut array = [0; 8];
    array.copy_from_slice(&frame[at..at + 8]);
    u64::from_be_bytes(array)
}

#[inline]
fn be_u32(frame: &[u8], at: usize) -> u32 {
    let mut array = [0; 4];
    array.copy_from_slice(&frame[at..at + 4]);
    u32::from_be_bytes(array)
}

/// The head of a batch: everything before its records.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// The topic's name.
    pub topic: &'a str,
    /// The partition's number.
    pub partition: u32,
    /// What a producer asks for; the broker always answers `1`.
    pub acks: &'a str,
    /// Whether the producer wants idempotence.
    pub idempotent: bool,
    /// The sequence numbers of the first and the last record.
    pub sequences: (u64, u64),
    /// How many records follow.
    pub count: u32,
}

/// Appends a batch's head. Panics on a topic or acks longer than their length fields allow: names are checked before.
pub fn put_head(out: &mut BytesMut, head: &Head<'_>) {
    out.put_slice(&MAGIC);
    put_short(out, head.topic.as_bytes());
    out.put_u32(head.partition);
    out.put_u8(u8::try_from(head.acks.len()).expect("acks are at most 255 bytes"));
    out.put_slice(head.acks.as_bytes());
    out.put_u8(u8::from(head.idempotent));
    out.put_u64(head.sequences.0);
    out.put_u64(head.sequences.1);
    out.put_u32(head.count);
}

/// Appends a record. Panics on a producer id, key, event type or metadata over 65,535 bytes: the protocol has no room
/// for more, see [`fits`].
pub fn put_record(out: &mut BytesMut, record: &Record<'_>) {
    out.put_u64(record.offset);
    out.put_u64(record.sequence);
    put_short(out, record.producer_id);
    put_short(out, record.key);
    out.put_i64(record.epoch);
    out.put_u32(u32::try_from(record.value.len()).expect("a value is at most 4 GiB"));
    out.put_slice(record.value);
    put_short(out, record.event_type);
    out.put_u32(record.schema_version);
    out.put_u64(record.aggregate_version);
    put_short(out, record.metadata);
}

/// Whether a record's fields fit the lengths that the protocol has for them.
pub fn fits(record: &Record<'_>) -> bool {
    let short = [record.producer_id, record.key, record.event_type, record.metadata];
    short.iter().all(|field| u16::try_from(field.len()).is_ok()) && record.value.len() <= crate::MAX_BODY
}

fn put_short(out: &mut BytesMut, field: &[u8]) {
    out.put_u16(u16::try_from(field.len()).expect("the field has at most 65,535 bytes"));
    out.put_slice(field);
}

/// A whole batch, as one body.
pub fn encode(topic: &str, partition: u32, acks: &str, idempotent: bool, records: &[Record<'_>]) -> Bytes {
    let size: usize = records.iter().map(|r| SMALLEST_RECORD + r.key.len() + r.value.len() + r.producer_id.len()).sum();
    let mut out = BytesMut::with_capacity(64 + topic.len() + size);
    let sequence = |r: Option<&Record<'_>>| r.map_or(0, |r| r.sequence);
    let sequences = (sequence(records.first()), sequence(records.last()));
    let count = u32::try_from(records.len()).expect("a batch has fewer than 2^32 records");
    put_head(&mut out, &Head { topic, partition, acks, idempotent, sequences, count });
    for record in records {
        put_record(&mut out, record);
    }
    out.freeze()
}
