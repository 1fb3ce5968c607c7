//! A partition's log: records as they stand on the wire, in large chunks.
//!
//! Serving a read is finding two places in an index and handing out slices of chunks: no record is looked at, and what is
//! older than the chunk being written isn't copied either.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use cursus_wire::batch::{self, Record};

/// A chunk this large is closed and shared from then on. What a read needs of the open one is copied, so this also bounds
/// that copy.
const CHUNK: usize = 1 << 20;

/// Records that follow each other, and where each begins.
#[derive(Debug, Default)]
struct Index {
    /// The offset of the first record.
    base: u64,
    /// Where each record begins; a chunk is far below 4 GiB.
    starts: Vec<u32>,
}

impl Index {
    fn end(&self) -> u64 {
        self.base + self.starts.len() as u64
    }

    /// The bytes of the records from `from` up to `to`, both within this chunk, which is `length` bytes long.
    fn range(&self, from: u64, to: u64, length: usize) -> Range<usize> {
        let at = |offset: u64| self.starts.get((offset - self.base) as usize).map_or(length, |start| *start as usize);
        at(from)..at(to)
    }
}

/// What a read found: whole encoded records, ready to be sent behind a batch's head.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Slices {
    /// The records' bytes, in order.
    pub(crate) bytes: Vec<Bytes>,
    /// How many records.
    pub(crate) count: u32,
    /// The producer's sequence numbers of the first and the last record, which a batch's head repeats.
    pub(crate) sequences: (u64, u64),
    /// The offset behind the last record.
    pub(crate) next: u64,
}

impl Slices {
    /// The records' size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.iter().map(Bytes::len).sum()
    }
}

/// A transaction as records name it: the transactional id and its epoch.
pub(crate) type TransactionKey = (String, i64);

/// A partition's log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    earliest: u64,
    /// What a committed reader doesn't see: control records, and the records of aborted transactions.
    hidden: BTreeSet<u64>,
    /// The records of each transaction that isn't decided. A committed reader sees nothing from the first of them on.
    undecided: BTreeMap<TransactionKey, Vec<u64>>,
    closed: Vec<(Index, Bytes)>,
    open: Index,
    tail: BytesMut,
}

impl Log {
    /// The first offset that is kept.
    pub(crate) fn earliest(&self) -> u64 {
        self.earliest
    }

    /// One past the last record.
    pub(crate) fn end(&self) -> u64 {
        self.open.end()
    }

    /// Writes a record at the end, whatever offset it says, and gives the one it got. The record must fit the
    /// protocol's fields ([`batch::fits`]).
    pub(crate) fn append(&mut self, record: &Record<'_>) -> u64 {
        let offset = self.end();
        self.open.starts.push(self.tail.len() as u32);
        batch::put_record(&mut self.tail, &Record { offset, ..*record });
        if self.tail.len() >= CHUNK {
            let next = Index { base: self.end(), starts: Vec::new() };
            let closed = std::mem::replace(&mut self.open, next);
            self.closed.push((closed, self.tail.split().freeze()));
        }
        offset
    }

    /// Writes a transaction's record. It is undecided until [`Log::decide`].
    pub(crate) fn append_undecided(&mut self, transaction: &TransactionKey, record: &Record<'_>) {
        let offset = self.append(record);
        self.undecided.entry(transaction.clone()).or_default().push(offset);
    }

    /// Writes a record that no committed reader sees.
    pub(crate) fn append_hidden(&mut self, record: &Record<'_>) {
        let offset = self.append(record);
        self.hidden.insert(offset);
    }

    /// A transaction is committed: from here on its records are like all others.
    pub(crate) fn decide(&mut self, transaction: &TransactionKey) {
        self.undecided.remove(transaction);
    }

    /// Forgets the records below `earliest`, as retention does. Beyond the end it stops at the end.
    pub(crate) fn truncate(&mut self, earliest: u64) {
        self.earliest = earliest.clamp(self.earliest, self.end());
        self.closed.retain(|(index, _)| index.end() > self.earliest);
        self.hidden = self.hidden.split_off(&self.earliest);
    }

    /// At most `most` of the records from offset `from` on that a committed reader sees.
    pub(crate) fn read_committed(&self, from: u64, most: u32) -> Slices {
        let from = from.max(self.earliest);
        let stable = self.undecided.values().filter_map(|offsets| offsets.first()).min();
        let end = stable.map_or(self.end(), |stable| self.end().min(*stable));
        let mut all = Slices { next: from, ..Slices::default() };
        if from >= end {
            return all;
        }
        // What is hidden ends a run of what is seen.
        let mut start = from;
        for hidden in self.hidden.range(from..end).copied().chain([end]) {
            let wanted = most - all.count;
            if wanted == 0 {
                break;
            }
            let run = u32::try_from(hidden - start).unwrap_or(u32::MAX).min(wanted);
            let slices = self.read(start, run);
            if slices.count > 0 {
                let first = if all.count == 0 { slices.sequences.0 } else { all.sequences.0 };
                all.sequences = (first, slices.sequences.1);
                all.count += slices.count;
                all.next = slices.next;
                all.bytes.extend(slices.bytes);
            }
            start = hidden + 1;
        }
        all
    }

    /// At most `most` records from offset `from` on, which must be kept or be the end.
    pub(crate) fn read(&self, from: u64, most: u32) -> Slices {
        let from = from.max(self.earliest);
        let to = self.end().min(from.saturating_add(u64::from(most)));
        if from >= to {
            return Slices { next: from, ..Slices::default() };
        }
        let mut slices = Slices { count: (to - from) as u32, next: to, ..Slices::default() };
        let first = self.closed.partition_point(|(index, _)| index.end() <= from);
        for (index, chunk) in self.closed[first..].iter().take_while(|(index, _)| index.base < to) {
            slices.bytes.push(chunk.slice(index.range(from.max(index.base), to.min(index.end()), chunk.len())));
        }
        if self.open.base < to {
            let range = self.open.range(from.max(self.open.base), to, self.tail.len());
            slices.bytes.push(Bytes::copy_from_slice(&self.tail[range]));
        }
        slices.sequences = (self.sequence(from), self.sequence(to - 1));
        slices
    }

    /// The sequence number of the record at `offset`: it stands behind the record's own offset.
    fn sequence(&self, offset: u64) -> u64 {
        let (index, chunk) = match self.closed.get(self.closed.partition_point(|(index, _)| index.end() <= offset)) {
            Some((index, chunk)) => (index, &chunk[..]),
            None => (&self.open, &self.tail[..]),
        };
        let at = index.range(offset, offset, chunk.len()).start + 8;
        chunk.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use cursus_wire::batch::{Head, RecordBatch, put_head};

    use super::*;

    fn filled(count: u64, size: usize) -> Log {
        let mut log = Log::default();
        let value = vec![b'v'; size];
        for i in 0..count {
            let key = i.to_string();
            let record = Record { sequence: i * 10, key: key.as_bytes(), value: &value, ..Record::default() };
            assert_eq!(log.append(&record), i);
        }
        log
    }

    fn decode(slices: &Slices) -> RecordBatch {
        let mut frame = BytesMut::new();
        let head = Head {
            topic: "t",
            partition: 0,
            acks: "1",
            idempotent: false,
            sequences: slices.sequences,
            count: slices.count,
        };
        put_head(&mut frame, &head);
        for bytes in &slices.bytes {
            frame.extend_from_slice(bytes);
        }
        RecordBatch::parse(frame.freeze()).expect("a whole batch")
    }

    #[test]
    fn every_read_gives_the_records_asked_for_across_all_chunks() {
        let log = filled(5_000, 1_000);
        assert!(log.closed.len() > 3, "the test wants several chunks");
        for (from, most) in [(0, 1), (0, 5_000), (999, 3), (1_040, 20), (4_990, 100), (4_999, 1), (3_000, 1_500)] {
            let slices = log.read(from, most);
            let batch = decode(&slices);
            let count = u64::from(most).min(5_000 - from);
            assert_eq!(batch.len() as u64, count);
            assert_eq!(batch.bounds(), Some((from, from + count - 1)));
            assert_eq!(batch.record(0).key, from.to_string().as_bytes());
            assert_eq!(slices.sequences, (from * 10, (from + count - 1) * 10));
            assert_eq!(slices.next, from + count);
        }
    }

    #[test]
    fn at_the_end_there_is_nothing() {
        let log = filled(3, 1);
        assert_eq!(log.read(3, 10), Slices { next: 3, ..Slices::default() });
        assert_eq!(log.read(99, 10).count, 0);
        assert_eq!(log.read(1, 0).count, 0);
    }

    #[test]
    fn what_is_truncated_is_gone_and_the_rest_stays_where_it_is() {
        let mut log = filled(5_000, 1_000);
        log.truncate(2_500);
        assert_eq!((log.earliest(), log.end()), (2_500, 5_000));
        assert_eq!(decode(&log.read(2_500, 10)).bounds(), Some((2_500, 2_509)));
        log.truncate(10);
        assert_eq!(log.earliest(), 2_500);
        log.truncate(9_999);
        assert_eq!((log.earliest(), log.end()), (5_000, 5_000));
        log.append(&Record::default());
        assert_eq!(decode(&log.read(5_000, 10)).bounds(), Some((5_000, 5_000)));
    }

    #[test]
    fn a_committed_reader_sees_all_but_what_is_hidden_or_undecided() {
        let mut log = filled(2, 1);
        let record = |sequence| Record { sequence, value: b"v", ..Record::default() };
        log.append_hidden(&record(0));
        let transaction = ("t".to_owned(), 0);
        (1..=3).for_each(|sequence| log.append_undecided(&transaction, &record(sequence)));
        log.append(&record(0));
        let offsets = |slices: &Slices| decode(slices).iter().map(|record| record.offset).collect::<Vec<_>>();

        assert_eq!(offsets(&log.read_committed(0, 10)), [0, 1]);
        assert_eq!(log.read_committed(2, 10), Slices { next: 2, ..Slices::default() });
        assert_eq!(log.read(0, 10).count, 7, "the other reader sees everything");

        log.decide(&transaction);
        log.append_hidden(&record(0));
        let all = log.read_committed(0, 10);
        assert_eq!((offsets(&all), all.next, all.sequences), (vec![0, 1, 3, 4, 5, 6], 7, (0, 0)));
        let some = log.read_committed(1, 3);
        assert_eq!((offsets(&some), some.next, some.sequences), (vec![1, 3, 4], 5, (10, 2)));
        assert_eq!(log.read_committed(7, 10).count, 0);
        assert_eq!((log.read_committed(0, 0).count, log.read_committed(99, 1).count), (0, 0));

        log.truncate(4);
        assert_eq!(offsets(&log.read_committed(0, 10)), [4, 5, 6]);
    }

    #[test]
    fn a_read_of_closed_chunks_copies_nothing() {
        let log = filled(5_000, 1_000);
        let (_, chunk) = &log.closed[0];
        let slices = log.read(1, 10);
        assert_eq!(slices.bytes.len(), 1);
        let within = chunk.as_ptr_range();
        assert!(within.contains(&slices.bytes[0].as_ptr()), "the slice must be of the chunk itself");
    }
}
