//! Writing batches.

use bytes::{BufMut, Bytes, BytesMut};

use super::{MAGIC, Record, SMALLEST_RECORD};

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

/// Appends a batch's head. Panics on what its fields have no room for: names, partitions and counts are checked before.
pub fn put_head(out: &mut BytesMut, head: &Head<'_>) {
    out.put_slice(&MAGIC);
    put_short(out, head.topic.as_bytes());
    out.put_i32(i32::try_from(head.partition).expect("a partition is below 2^31"));
    out.put_u8(u8::try_from(head.acks.len()).expect("acks are at most 255 bytes"));
    out.put_slice(head.acks.as_bytes());
    out.put_u8(u8::from(head.idempotent));
    out.put_u64(head.sequences.0);
    out.put_u64(head.sequences.1);
    out.put_i32(i32::try_from(head.count).expect("a batch has fewer than 2^31 records"));
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

/// The bytes that a record takes in a batch.
pub fn encoded_length(record: &Record<'_>) -> usize {
    let fields = [record.producer_id, record.key, record.value, record.event_type, record.metadata];
    SMALLEST_RECORD + fields.iter().map(|field| field.len()).sum::<usize>()
}

fn put_short(out: &mut BytesMut, field: &[u8]) {
    out.put_u16(u16::try_from(field.len()).expect("the field has at most 65,535 bytes"));
    out.put_slice(field);
}

/// A whole batch, as one body.
pub fn encode(topic: &str, partition: u32, acks: &str, idempotent: bool, records: &[Record<'_>]) -> Bytes {
    let size: usize = records.iter().map(encoded_length).sum();
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
