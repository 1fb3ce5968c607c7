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

mod encode;
mod scan;

use std::ops::Range;

use bytes::Bytes;
use thiserror::Error;

pub use encode::{Head, encode, encoded_length, fits, put_head, put_record};

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
    largest: usize,
}

impl RecordBatch {
    /// Whether a reply's body is a batch rather than a text.
    pub fn is_batch(body: &[u8]) -> bool {
        body.starts_with(&MAGIC)
    }

    /// Checks and indexes a frame's body. Offsets must rise from record to record.
    pub fn parse(frame: Bytes) -> Result<Self, CorruptBatch> {
        scan::scan(frame, true)
    }

    /// The same for a batch that a producer sends: its records have no offsets yet.
    pub fn parse_published(frame: Bytes) -> Result<Self, CorruptBatch> {
        scan::scan(frame, false)
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

    /// The size of the largest record as it lies in the frame, in bytes; 0 where there is none.
    pub fn largest(&self) -> usize {
        self.largest
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
        let last = self.len().checked_sub(1)?;
        Some((self.offset(0), self.offset(last)))
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
        // Nothing follows the last record: that was checked.
        let end = self.index.get(i + 1).map_or(self.frame.len(), |end| *end as usize);
        &self.frame[self.index[i] as usize..end]
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
