//! Checking and indexing a batch: the one place that reads what nobody has checked yet.

use std::ops::Range;

use bytes::Bytes;

use super::{CorruptBatch, MAGIC, RecordBatch, SMALLEST_RECORD, be_u64};
use crate::MAX_BODY;

/// Reads forward through a frame; every step is checked.
struct Cursor<'a> {
    frame: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn bytes(&mut self, count: usize, what: &str) -> Result<&'a [u8], CorruptBatch> {
        let left = &self.frame[self.at..];
        let Some(bytes) = left.get(..count) else {
            return Err(self.corrupt(self.at, format!("{what} needs {count} bytes, {} are left", left.len())));
        };
        self.at += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], CorruptBatch> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N, what)?);
        Ok(array)
    }

    /// Steps over a field behind its 16-bit length, giving where it stands.
    fn short(&mut self, what: &str) -> Result<Range<usize>, CorruptBatch> {
        let length = usize::from(u16::from_be_bytes(self.array(what)?));
        self.bytes(length, what)?;
        Ok(self.at - length..self.at)
    }

    fn skip_record(&mut self) -> Result<(), CorruptBatch> {
        self.bytes(16, "its offset and sequence")?;
        self.short("its producer id")?;
        self.short("its key")?;
        self.bytes(8, "its epoch")?;
        let length = u32::from_be_bytes(self.array("its value")?) as usize;
        self.bytes(length, "its value")?;
        self.short("its event type")?;
        self.bytes(12, "its versions")?;
        self.short("its metadata")?;
        Ok(())
    }

    #[cold]
    fn corrupt(&self, at: usize, problem: String) -> CorruptBatch {
        CorruptBatch { at, length: self.frame.len(), problem }
    }
}

/// Checks a whole frame. `rising`: whether every record's offset must be above the one before.
pub(super) fn scan(frame: Bytes, rising: bool) -> Result<RecordBatch, CorruptBatch> {
    let mut cursor = Cursor { frame: &frame, at: 0 };
    if frame.len() > MAX_BODY {
        return Err(cursor.corrupt(MAX_BODY, format!("it is over the limit of {MAX_BODY} bytes")));
    }
    if cursor.array("the magic number")? != MAGIC {
        return Err(cursor.corrupt(0, "it doesn't begin with BA7C".to_owned()));
    }
    let topic = cursor.short("the topic")?;
    if let Err(error) = std::str::from_utf8(&frame[topic.clone()]) {
        return Err(cursor.corrupt(topic.start + error.valid_up_to(), "the topic is not UTF-8".to_owned()));
    }
    let number_at = cursor.at;
    let partition = i32::from_be_bytes(cursor.array("the partition")?);
    let Ok(partition) = u32::try_from(partition) else {
        return Err(cursor.corrupt(number_at, format!("the partition is {partition}")));
    };
    let [length] = cursor.array("the acks field")?;
    let acks = cursor.at..cursor.at + usize::from(length);
    cursor.bytes(acks.len(), "the acks field")?;
    let [idempotent] = cursor.array("the idempotent flag")?;
    cursor.bytes(16, "the sequence range")?;
    let count_at = cursor.at;
    let count = i32::from_be_bytes(cursor.array("the count")?);
    // What there is room for, not what the count says, bounds the index.
    let room = (frame.len() - cursor.at) / SMALLEST_RECORD;
    let Some(count) = usize::try_from(count).ok().filter(|count| *count <= room) else {
        return Err(cursor.corrupt(count_at, format!("the count is {count}, and there is room for {room} records")));
    };
    let mut index = Vec::with_capacity(count);
    let (mut least, mut largest) = (0, 0);
    for i in 0..count {
        let start = cursor.at;
        cursor
            .skip_record()
            .map_err(|error| CorruptBatch { problem: format!("record {i}: {}", error.problem), ..error })?;
        if rising {
            let offset = be_u64(&frame, start);
            if offset < least {
                return Err(cursor.corrupt(start, format!("record {i}: offset {offset} follows offset {}", least - 1)));
            }
            let Some(next) = offset.checked_add(1) else {
                return Err(cursor.corrupt(start, format!("record {i}: offset {offset} has no next")));
            };
            least = next;
        }
        largest = largest.max(cursor.at - start);
        index.push(start as u32);
    }
    if cursor.at != frame.len() {
        let left = frame.len() - cursor.at;
        return Err(cursor.corrupt(cursor.at, format!("{left} bytes follow the last record")));
    }
    Ok(RecordBatch { topic, acks, partition, idempotent: idempotent != 0, index, largest, frame })
}
