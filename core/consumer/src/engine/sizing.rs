//! How many records to ask for at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cursus_wire::{MAX_BODY, RecordBatch};

/// How many records to ask for: as many as make a reply of a good size, from what was seen so far.
#[derive(Debug, Clone)]
pub(crate) struct Sizing {
    /// The setting's limit.
    most: u32,
    /// The size of a reply to aim at, in bytes, and the most that it may become.
    good: u64,
    most_good: u64,
    next: u32,
    /// The size of the largest record lately: it falls slowly where records get smaller.
    record_bytes: u64,
    /// The same as any reader of the topic saw it last, for those who begin; 0 while nobody knows.
    topic: Arc<AtomicU64>,
}

/// A reply of this size costs little per record, and is far enough from the limit for a surprise.
const GOOD_REPLY: u64 = 2 << 20;

/// The size that lost replies lead down to.
const SMALL_REPLY: u64 = 64 << 10;

/// How many records are asked for while nothing is known of the topic.
const FIRST_RECORDS: u32 = 8;

/// How large a record is taken for while nothing is known of the topic.
const UNKNOWN_RECORD: u64 = 64 << 10;

impl Sizing {
    /// For a reader that begins. Where nothing is known of the topic's records, few are asked for first: many partitions begin
    /// at once, and what they ask for together must fit the buffer.
    pub(crate) fn new(most: u64, max_buffered: u64, topic: Arc<AtomicU64>) -> Self {
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
        let good = GOOD_REPLY.min(max_buffered / 4).max(1);
        let known = topic.load(Ordering::Relaxed);
        let record_bytes = if known == 0 { UNKNOWN_RECORD } else { known };
        let mut sizing = Self { most, good, most_good: good, next: most.min(FIRST_RECORDS), record_bytes, topic };
        if known != 0 {
            sizing.aim(most);
        }
        sizing
    }

    pub(crate) fn records(&self) -> u32 {
        self.next
    }

    /// What the reply may take.
    pub(crate) fn estimate(&self) -> u64 {
        (u64::from(self.next) * self.record_bytes).min(MAX_BODY as u64)
    }

    pub(super) fn seen(&mut self, batch: &RecordBatch) {
        if batch.is_empty() {
            return;
        }
        let largest = batch.largest() as u64;
        let before =
            if self.topic.load(Ordering::Relaxed) == 0 { 0 } else { self.record_bytes - self.record_bytes / 8 };
        self.record_bytes = largest.max(before).max(1);
        self.topic.store(self.record_bytes, Ordering::Relaxed);
        self.good = (self.good + self.good / 8 + 1).min(self.most_good);
        self.aim(self.next.saturating_mul(8));
    }

    /// What other readers learned since counts here too: records that have grown, grow everywhere at once.
    pub(super) fn heed_topic(&mut self) {
        let known = self.topic.load(Ordering::Relaxed);
        if known > self.record_bytes {
            self.record_bytes = known;
            self.aim(self.next);
        }
    }

    /// No reply came: perhaps it was too much for the time there is. The next one is half as large, and they grow again.
    pub(super) fn lost(&mut self) {
        self.good = (self.good / 2).max(SMALL_REPLY.min(self.most_good));
        self.aim((self.next / 2).max(1));
    }

    /// The broker couldn't send this many: the records are larger than anything seen.
    pub(super) fn too_large(&mut self, records: u32) {
        self.record_bytes = self.record_bytes.max(MAX_BODY as u64 / u64::from(records.max(1)));
        self.topic.store(self.record_bytes, Ordering::Relaxed);
        self.aim((records / 2).max(1));
    }

    /// Whether a stream that was asked for this many records per frame is better begun anew, for more: it was opened before
    /// anything was known of the topic.
    pub(super) fn outgrew(&mut self, records: u32) -> bool {
        self.aim(self.most);
        self.next / 8 > records
    }

    fn aim(&mut self, at_most: u32) {
        let good = u32::try_from(self.good / self.record_bytes).unwrap_or(u32::MAX);
        self.next = good.min(at_most).clamp(1, self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame_of(record_size: usize, count: u64) -> RecordBatch {
        let value = vec![0; record_size];
        let records: Vec<_> =
            (0..count).map(|offset| cursus_wire::Record { offset, value: &value, ..Default::default() }).collect();
        RecordBatch::parse(cursus_wire::batch::encode("t", 0, "1", false, &records)).unwrap()
    }

    #[test]
    fn small_records_are_soon_asked_for_by_the_thousand_and_large_ones_by_the_few() {
        let mut sizing = Sizing::new(8192, 64 << 20, Arc::default());
        assert_eq!(sizing.records(), FIRST_RECORDS, "nothing is known");
        for _ in 0..5 {
            sizing.seen(&frame_of(100, 1));
        }
        assert_eq!(sizing.records(), 8192);
        let next = Sizing::new(8192, 64 << 20, Arc::clone(&sizing.topic));
        assert_eq!(next.records(), 8192, "another reader of the topic begins with what is known");
        assert!(
            Sizing::new(8192, 1000, Arc::clone(&sizing.topic)).estimate() <= 1000,
            "a small buffer wants small replies"
        );
        sizing.seen(&frame_of(1 << 20, 2));
        assert!(sizing.records() <= 2, "{sizing:?}");
        assert!(sizing.estimate() <= MAX_BODY as u64);
    }

    #[test]
    fn too_large_a_reply_leads_down_to_a_single_record() {
        let mut sizing = Sizing::new(8192, 64 << 20, Arc::default());
        sizing.next = 8192;
        let mut asked = vec![sizing.records()];
        while *asked.last().unwrap() > 1 {
            sizing.too_large(*asked.last().unwrap());
            assert!(sizing.records() < *asked.last().unwrap());
            asked.push(sizing.records());
        }
        assert!(asked.len() < 15, "{asked:?}");
    }

    #[test]
    fn replies_that_never_come_get_smaller_and_grow_again() {
        let mut sizing = Sizing::new(8192, 64 << 20, Arc::default());
        for _ in 0..6 {
            sizing.seen(&frame_of(10_000, 2));
        }
        let before = sizing.records();
        for _ in 0..20 {
            sizing.lost();
        }
        assert!(sizing.records() <= 7 && before > 100, "{before}, then {sizing:?}");
        for _ in 0..60 {
            sizing.seen(&frame_of(10_000, 2));
        }
        assert_eq!(sizing.records(), before);
    }

    #[test]
    fn what_one_reader_learns_of_large_records_the_others_heed() {
        let topic = Arc::new(AtomicU64::new(100));
        let (mut one, mut other) =
            (Sizing::new(8192, 64 << 20, Arc::clone(&topic)), Sizing::new(8192, 64 << 20, topic));
        one.seen(&frame_of(1 << 20, 1));
        assert_eq!(other.records(), 8192);
        other.heed_topic();
        assert!(other.records() <= 2, "{other:?}");
    }
}
