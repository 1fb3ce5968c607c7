//! What poll returns: records that still lie in the frames they came in.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cursus_wire::{GroupMetadata, RecordBatch};

use crate::types::TopicPartition;

/// A partition's fence: a number that only grows, renewed whenever the partition is handed out. Work carries the fence it
/// was born under, and is refused once that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Fence(pub(crate) u64);

/// A decoded frame, and the count of bytes that the application holds.
pub(crate) struct Frame {
    pub(crate) batch: RecordBatch,
    held: Arc<AtomicU64>,
    counted: AtomicU64,
}

impl Frame {
    pub(crate) fn new(batch: RecordBatch, held: Arc<AtomicU64>) -> Self {
        Self { batch, held, counted: AtomicU64::new(0) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.batch.frame().len() as u64
    }

    /// The frame passes into the application's hands; it counts as held until its last record is gone.
    fn hand_out(&self) {
        if self.counted.swap(self.bytes(), Ordering::Relaxed) == 0 {
            self.held.fetch_add(self.bytes(), Ordering::Relaxed);
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.held.fetch_sub(*self.counted.get_mut(), Ordering::Relaxed);
    }
}

/// Neighbouring records of one frame.
#[derive(Clone)]
pub(crate) struct Slice {
    pub(crate) partition: TopicPartition,
    pub(crate) fence: Fence,
    /// How often the partition had been moved when this was fetched: given back after another move, it is void.
    pub(crate) placed: u64,
    pub(crate) frame: Arc<Frame>,
    pub(crate) records: Range<usize>,
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} {:?} of a frame)", self.partition, self.records)
    }
}

impl Slice {
    /// The offset after the last record: what a commit of this slice commits.
    pub(crate) fn next_offset(&self) -> u64 {
        self.frame.batch.offset(self.records.end - 1) + 1
    }
}

/// Records that one poll returned: an immutable sequence, in order per partition, and perhaps empty.
///
/// It stays valid after a rebalance and after the consumer is gone; what ends is the right to commit it.
#[derive(Clone, Default)]
pub struct Batch {
    pub(crate) consumer: u64,
    member: Option<Arc<GroupMetadata>>,
    slices: Vec<Slice>,
    /// Where each slice begins, as an index of the batch.
    starts: Vec<usize>,
    len: usize,
}

impl Batch {
    pub(crate) fn new(consumer: u64, member: Option<Arc<GroupMetadata>>, slices: Vec<Slice>) -> Self {
        let mut starts = Vec::with_capacity(slices.len());
        let mut len = 0;
        for slice in &slices {
            slice.frame.hand_out();
            starts.push(len);
            len += slice.records.len();
        }
        Self { consumer, member, slices, starts, len }
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the poll's time was over before a record came.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Record `i`, if there is one.
    pub fn get(&self, i: usize) -> Option<Record> {
        let (slice, index) = self.locate(i)?;
        Some(Record { consumer: self.consumer, slice: slice.clone(), index })
    }

    fn locate(&self, i: usize) -> Option<(&Slice, usize)> {
        if i >= self.len {
            return None;
        }
        let at = self.starts.partition_point(|start| *start <= i) - 1;
        let slice = &self.slices[at];
        Some((slice, slice.records.start + i - self.starts[at]))
    }

    /// The records at these indices, in this order. One beyond the end is left out.
    #[must_use]
    pub fn select(&self, indices: impl IntoIterator<Item = usize>) -> Self {
        let mut slices: Vec<Slice> = Vec::new();
        for (slice, index) in indices.into_iter().filter_map(|i| self.locate(i)) {
            match slices.last_mut() {
                Some(last) if Arc::ptr_eq(&last.frame, &slice.frame) && last.records.end == index => {
                    last.records.end += 1;
                }
                _ => slices.push(Slice { records: index..index + 1, ..slice.clone() }),
            }
        }
        Self::new(self.consumer, self.member.clone(), slices)
    }

    /// All records, borrowed; nothing is copied or counted.
    pub fn iter(&self) -> impl Iterator<Item = RecordRef<'_>> {
        self.slices.iter().flat_map(|slice| {
            slice
                .records
                .clone()
                .map(|i| RecordRef { partition: &slice.partition, record: slice.frame.batch.record(i) })
        })
    }

    /// The partitions that have records here.
    pub fn partitions(&self) -> Vec<TopicPartition> {
        self.next_offsets().into_keys().collect()
    }

    /// Partition by partition, the offset after the furthest record: what [`Consumer::commit`](crate::Consumer::commit) commits.
    pub fn next_offsets(&self) -> BTreeMap<TopicPartition, u64> {
        self.claims().into_iter().map(|(partition, (_, next))| (partition, next)).collect()
    }

    /// Who read these records: the group, its generation and the member, as a transaction that commits their offsets has to
    /// name them. The broker refuses it once a rebalance has come, as it refuses a commit. Nothing for an empty batch, and
    /// for one that was read without a group.
    pub fn group_metadata(&self) -> Option<&GroupMetadata> {
        self.member.as_deref()
    }

    pub(crate) fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Partition by partition, the fence the records were born under and the next offset.
    pub(crate) fn claims(&self) -> BTreeMap<TopicPartition, (Fence, u64)> {
        let mut claims = BTreeMap::new();
        for slice in &self.slices {
            let claim = claims.entry(slice.partition.clone()).or_insert((slice.fence, 0));
            claim.1 = slice.next_offset().max(claim.1);
        }
        claims
    }

    /// The records of partitions that pass `keep`.
    pub(crate) fn filtered(&self, keep: impl Fn(&TopicPartition, Fence) -> bool) -> Self {
        let slices = self.slices.iter().filter(|slice| keep(&slice.partition, slice.fence)).cloned();
        Self::new(self.consumer, self.member.clone(), slices.collect())
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} records of {})", self.len, crate::types::listed(&self.partitions()))
    }
}

/// A record borrowed from its batch.
#[derive(Debug, Clone, Copy)]
pub struct RecordRef<'a> {
    /// Where it was read from.
    pub partition: &'a TopicPartition,
    record: cursus_wire::Record<'a>,
}

impl<'a> std::ops::Deref for RecordRef<'a> {
    type Target = cursus_wire::Record<'a>;
    fn deref(&self) -> &Self::Target {
        &self.record
    }
}

/// A record by itself. It keeps its whole frame alive; [`Record::detach`] copies it out.
#[derive(Clone)]
pub struct Record {
    pub(crate) consumer: u64,
    pub(crate) slice: Slice,
    pub(crate) index: usize,
}

impl Record {
    /// The first record of a slice.
    pub(crate) fn new(consumer: u64, slice: Slice) -> Self {
        slice.frame.hand_out();
        let index = slice.records.start;
        Self { consumer, slice, index }
    }

    /// Where it was read from.
    pub fn partition(&self) -> &TopicPartition {
        &self.slice.partition
    }

    /// Its position in the partition.
    pub fn offset(&self) -> u64 {
        self.slice.frame.batch.offset(self.index)
    }

    /// Its fields, borrowed.
    pub fn fields(&self) -> cursus_wire::Record<'_> {
        self.slice.frame.batch.record(self.index)
    }

    /// Its key, sharing the frame's memory; empty where there is none.
    pub fn key(&self) -> Bytes {
        self.slice.frame.batch.frame().slice_ref(self.fields().key)
    }

    /// Its value, sharing the frame's memory.
    pub fn value(&self) -> Bytes {
        self.slice.frame.batch.frame().slice_ref(self.fields().value)
    }

    /// Whether it is a transaction's control record, which only `read_uncommitted` shows.
    pub fn is_control(&self) -> bool {
        self.fields().is_control()
    }

    /// A copy that no longer keeps the frame alive. It can be committed as before.
    #[must_use]
    pub fn detach(&self) -> Self {
        let topic = self.slice.partition.topic.as_str();
        let frame = cursus_wire::batch::encode(topic, self.slice.partition.partition, "1", false, &[self.fields()]);
        // What was decoded from a frame and encoded again decodes again.
        let batch = RecordBatch::parse(frame).expect("a record encodes to a batch of one");
        let frame = Arc::new(Frame::new(batch, Arc::clone(&self.slice.frame.held)));
        frame.hand_out();
        Self { consumer: self.consumer, slice: Slice { frame, records: 0..1, ..self.slice.clone() }, index: 0 }
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields();
        write!(
            f,
            "Record({}@{}, key of {} bytes, value of {} bytes)",
            self.partition(),
            fields.offset,
            fields.key.len(),
            fields.value.len()
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use cursus_wire::Topic;

    /// A frame of records with these offsets, each with a value of its offset's digits.
    pub(crate) fn frame(topic: &str, partition: u32, offsets: impl IntoIterator<Item = u64>) -> RecordBatch {
        let values: Vec<(u64, String)> = offsets.into_iter().map(|offset| (offset, offset.to_string())).collect();
        let records: Vec<_> = values
            .iter()
            .map(|(offset, value)| cursus_wire::Record {
                offset: *offset,
                value: value.as_bytes(),
                ..Default::default()
            })
            .collect();
        RecordBatch::parse(cursus_wire::batch::encode(topic, partition, "1", false, &records)).unwrap()
    }

    fn batch(held: &Arc<AtomicU64>) -> Batch {
        let slice = |partition, offsets: Range<u64>| {
            let batch = frame("t", partition, offsets);
            let records = 0..batch.len();
            let partition = TopicPartition::new(Topic::new("t").unwrap(), partition);
            Slice {
                partition,
                fence: Fence(1),
                placed: 0,
                frame: Arc::new(Frame::new(batch, Arc::clone(held))),
                records,
            }
        };
        Batch::new(7, None, vec![slice(0, 10..13), slice(1, 0..2), slice(0, 13..14)])
    }

    #[test]
    fn indexing_goes_over_slices_and_a_commit_takes_the_last_of_each_partition() {
        let batch = batch(&Arc::default());
        let offsets: Vec<u64> = (0..batch.len()).map(|i| batch.get(i).unwrap().offset()).collect();
        assert_eq!(offsets, [10, 11, 12, 0, 1, 13]);
        assert!(batch.get(6).is_none());
        assert_eq!(batch.iter().map(|r| r.offset).collect::<Vec<_>>(), offsets);
        assert_eq!(batch.next_offsets().into_values().collect::<Vec<_>>(), [14, 2]);
    }

    #[test]
    fn a_selection_has_the_chosen_records_in_the_chosen_order_and_commits_the_furthest() {
        let batch = batch(&Arc::default());
        let offsets = |batch: &Batch| batch.iter().map(|record| record.offset).collect::<Vec<_>>();
        assert_eq!(offsets(&batch.select(1..5)), [11, 12, 0, 1]);
        assert_eq!(batch.select(1..5).slices.len(), 2);
        let backward = batch.select((0..6).rev());
        assert_eq!(offsets(&backward), [13, 1, 0, 12, 11, 10]);
        assert_eq!(backward.next_offsets(), batch.next_offsets());
        assert_eq!(batch.select([0, 1]).next_offsets().into_values().collect::<Vec<_>>(), [12]);
        assert!(batch.select([6, usize::MAX]).is_empty());
    }

    #[test]
    fn held_bytes_are_those_of_frames_somebody_still_refers_to() {
        let held = Arc::new(AtomicU64::new(0));
        let batch = batch(&held);
        let all = held.load(Ordering::Relaxed);
        assert!(all > 0);
        let record = batch.get(3).unwrap();
        drop(batch);
        let one = held.load(Ordering::Relaxed);
        assert!(one > 0 && one < all);
        let copy = record.detach();
        assert_eq!((copy.offset(), copy.value()), (record.offset(), record.value()));
        drop(record);
        assert!(held.load(Ordering::Relaxed) < one);
        drop(copy);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
