//! Checking and indexing a batch: the one place that reads what nobody has checked yet.

use std::ops::Range;

use bytes::Bytes;

use super::{CorruptBatch, MAGIC, RecordBatch, SMALLEST_RECORD, be_u64};
use crate::MAX_BODY;

/// The bytes behind the value of a record that is no event: both lengths are 0, with the versions between them.
const NO_EVENT: usize = 2 + 12 + 2;

/// Reads forward through a frame; every step is checked. The steps are inlined always: by themselves they are a few
/// instructions, and a compiler that sees a whole program leaves the calls.
struct Cursor<'a> {
    frame: &'a [u8],
    at: usize,
}

/// The frame ends before something that it must have. Kept small, and put into words only when it is wanted: this is what
/// each step could return, a few times per record.
struct Missing {
    what: &'static str,
    needed: usize,
    at: usize,
    length: usize,
}

impl From<Missing> for CorruptBatch {
    #[cold]
    fn from(Missing { what, needed, at, length }: Missing) -> Self {
        Self { at, length, problem: format!("{what} needs {needed} bytes, {} are left", length - at) }
    }
}

impl<'a> Cursor<'a> {
    #[inline(always)]
    fn bytes(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], Missing> {
        let Some(bytes) = self.frame[self.at..].get(..count) else {
            return Err(Missing { what, needed: count, at: self.at, length: self.frame.len() });
        };
        self.at += count;
        Ok(bytes)
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Missing> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N, what)?);
        Ok(array)
    }

    /// Steps over a field behind its 16-bit length, giving where it stands.
    #[inline(always)]
    fn short(&mut self, what: &'static str) -> Result<Range<usize>, Missing> {
        let length = usize::from(u16::from_be_bytes(self.array(what)?));
        self.bytes(length, what)?;
        Ok(self.at - length..self.at)
    }

    #[inline(always)]
    fn skip_record(&mut self) -> Result<(), Missing> {
        self.bytes(16, "its offset and sequence")?;
        self.short("its producer id")?;
        self.short("its key")?;
        self.bytes(8, "its epoch")?;
        let length = u32::from_be_bytes(self.array("its value")?) as usize;
        self.bytes(length, "its value")?;
        // Where a record begins is known only once all lengths of the one before are. Most records have neither event type
        // nor metadata; a branch on that is guessed right, and the next record is begun without waiting for these two.
        if let Some([0, 0, .., 0, 0]) = self.frame[self.at..].first_chunk::<NO_EVENT>() {
            self.at += NO_EVENT;
            return Ok(());
        }
        self.skip_event()
    }

    #[cold]
    #[inline(never)]
    fn skip_event(&mut self) -> Result<(), Missing> {
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
        cursor.skip_record().map_err(|missing| {
            let error = CorruptBatch::from(missing);
            CorruptBatch { problem: format!("record {i}: {}", error.problem), ..error }
        })?;
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
