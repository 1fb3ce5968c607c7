//! Records acknowledged one by one, in any order: how far everything before is acknowledged too.

use std::collections::BTreeMap;

/// What of a partition was delivered and acknowledged, since a position.
///
/// Only the contiguous prefix counts: what lies behind a record that nobody has acknowledged waits for it. Offsets that no
/// record has (control records, aborted transactions) count as acknowledged.
#[derive(Debug, Clone, Default)]
pub(super) struct Acks {
    /// Everything below is acknowledged.
    done: u64,
    /// Everything below was delivered.
    delivered: u64,
    /// What is acknowledged beyond `done`: where each run starts and where it ends.
    ahead: BTreeMap<u64, u64>,
    /// There were too many of these to keep, so that nobody can tell how far the prefix reaches.
    overgrown: bool,
}

/// How many runs are kept while nobody acknowledges anything. Those who commit offsets elsewhere never do, and each control
/// record makes a run.
const MOST_RUNS: usize = 65_536;

impl Acks {
    pub(super) fn at(position: u64) -> Self {
        Self { done: position, delivered: position, ..Self::default() }
    }

    /// Records with these offsets are handed out, in order.
    pub(super) fn deliver(&mut self, first: u64, last: u64, offsets: impl IntoIterator<Item = u64>) {
        self.add(self.delivered, first);
        let mut next = first;
        for offset in offsets {
            self.add(next, offset);
            next = offset + 1;
        }
        self.delivered = self.delivered.max(last + 1);
        if self.ahead.len() > MOST_RUNS {
            self.ahead.clear();
            self.overgrown = true;
        }
    }

    /// Whether it can't tell any more, until everything that was delivered is committed.
    pub(super) fn is_overgrown(&self) -> bool {
        self.overgrown
    }

    /// Reading goes on elsewhere. What was handed out and lies before is still owed; what lies behind will be handed out anew.
    pub(super) fn go_to(&mut self, offset: u64) {
        if offset >= self.delivered {
            return;
        }
        self.delivered = offset;
        self.done = self.done.min(offset);
        drop(self.ahead.split_off(&offset));
        if let Some(mut last) = self.ahead.last_entry() {
            let end = last.get_mut();
            *end = (*end).min(offset);
        }
    }

    /// The first offset that isn't acknowledged, of what was delivered.
    pub(super) fn first_open(&self) -> u64 {
        self.done
    }

    /// A record is processed. Returns the end of the contiguous prefix where that has moved.
    pub(super) fn acknowledge(&mut self, offset: u64) -> Option<u64> {
        if offset < self.done || offset >= self.delivered {
            return None;
        }
        let before = self.done;
        self.add(offset, offset + 1);
        (self.done > before).then_some(self.done)
    }

    /// Everything below is committed, however that came about.
    pub(super) fn advance(&mut self, to: u64) {
        self.add(self.done, to.min(self.delivered));
        self.overgrown &= self.done < self.delivered;
    }

    fn add(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from.max(self.done), to);
        if from >= to {
            return;
        }
        if let Some((&start, &end)) = self.ahead.range(..=from).next_back()
            && end >= from
        {
            self.ahead.remove(&start);
            (from, to) = (start, to.max(end));
        }
        while let Some((&start, &end)) = self.ahead.range(from..=to).next() {
            self.ahead.remove(&start);
            to = to.max(end);
        }
        if from <= self.done {
            self.done = to;
        } else {
            self.ahead.insert(from, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_grows_when_the_oldest_missing_record_is_acknowledged() {
        let mut acks = Acks::at(10);
        acks.deliver(10, 14, 10..15);
        assert_eq!(acks.acknowledge(12), None);
        assert_eq!(acks.acknowledge(14), None);
        assert_eq!(acks.acknowledge(10), Some(11));
        assert_eq!(acks.acknowledge(10), None, "twice is once");
        assert_eq!(acks.acknowledge(11), Some(13));
        assert_eq!(acks.acknowledge(13), Some(15));
        assert_eq!(acks.acknowledge(15), None, "it was never delivered");
        assert!(acks.ahead.is_empty(), "{acks:?}");
    }

    #[test]
    fn offsets_without_a_record_hold_nothing_up() {
        let mut acks = Acks::at(0);
        acks.deliver(2, 7, [2, 3, 6, 7]);
        assert_eq!(acks.acknowledge(2), Some(3));
        assert_eq!(acks.acknowledge(6), None);
        assert_eq!(acks.acknowledge(3), Some(7), "4 and 5 are no records");
        acks.deliver(9, 9, [9]);
        assert_eq!(acks.acknowledge(7), Some(9), "nor is 8");
    }

    #[test]
    fn what_was_handed_out_before_a_seek_is_still_owed() {
        let mut acks = Acks::at(0);
        acks.deliver(0, 9, 0..10);
        acks.acknowledge(7);
        acks.go_to(5);
        assert_eq!(acks.acknowledge(8), None, "it will be handed out anew");
        acks.deliver(5, 9, 5..10);
        for offset in 5..10 {
            assert_eq!(acks.acknowledge(offset), None, "0 to 4 are with somebody");
        }
        for offset in (0..4).rev() {
            acks.acknowledge(offset);
        }
        assert_eq!(acks.acknowledge(4), Some(10));
        acks.go_to(50);
        acks.deliver(50, 50, [50]);
        assert_eq!(acks.acknowledge(50), Some(51), "what was skipped is owed by nobody");
        acks.deliver(51, 52, 51..53);
        acks.go_to(60);
        acks.deliver(60, 60, [60]);
        assert_eq!(acks.acknowledge(60), None, "51 and 52 are");
    }

    #[test]
    fn what_lies_behind_a_seek_has_to_be_acknowledged_anew_and_what_lies_before_does_not() {
        let mut acks = Acks::at(0);
        acks.deliver(0, 9, 0..10);
        for offset in [2, 4, 5, 8, 9] {
            acks.acknowledge(offset);
        }
        acks.go_to(5);
        acks.deliver(5, 9, 5..10);
        let done: Vec<_> = [0, 1, 3, 5, 6, 7, 8, 9].map(|offset| acks.acknowledge(offset)).into();
        assert_eq!(done, [Some(1), Some(3), Some(5), Some(6), Some(7), Some(8), Some(9), Some(10)]);
        acks.go_to(5);
        acks.deliver(5, 9, 5..10);
        assert_eq!(acks.acknowledge(5), Some(6), "also where all of it was");
    }

    #[test]
    fn who_acknowledges_nothing_costs_no_more_than_so_much() {
        let mut acks = Acks::at(0);
        // A control record behind each record.
        for offset in (0..400_000).step_by(2) {
            acks.deliver(offset, offset, [offset]);
        }
        assert!(acks.ahead.len() <= MOST_RUNS && acks.is_overgrown());
        acks.advance(200_001);
        assert!(acks.is_overgrown(), "of what lies behind that it can't tell");
        acks.advance(399_999);
        assert!(!acks.is_overgrown(), "everything is committed: it begins anew");
        acks.deliver(400_000, 400_000, [400_000]);
        assert_eq!(acks.acknowledge(400_000), Some(400_001));
        // The same at once.
        acks.deliver(400_001, 800_000, (400_001..800_000).step_by(2));
        assert!(acks.is_overgrown());
    }

    #[test]
    fn who_seeks_back_before_anything_was_handed_out_owes_what_lies_there() {
        let mut acks = Acks::at(3);
        acks.go_to(1);
        acks.deliver(1, 4, 1..5);
        assert_eq!(acks.acknowledge(3), None, "1 and 2 are with somebody");
        assert_eq!(acks.acknowledge(1), Some(2));
        assert_eq!(acks.acknowledge(2), Some(4));
    }

    #[test]
    fn the_prefix_is_what_a_plain_count_says_in_any_order() {
        use cursus_net::{Randomness, SplitMix};
        let random = SplitMix::seeded(7);
        for _ in 0..200 {
            let count = 1 + random.below(40);
            let offsets: Vec<u64> = (0..count).filter(|_| random.below(4) > 0).collect();
            let Some((&first, &last)) = offsets.first().zip(offsets.last()) else { continue };
            let mut acks = Acks::at(0);
            acks.deliver(first, last, offsets.iter().copied());
            let mut open = offsets.clone();
            while !open.is_empty() {
                let offset = open.swap_remove(random.below(open.len() as u64) as usize);
                acks.acknowledge(offset);
                let expected = open.iter().min().copied().unwrap_or(last + 1);
                assert!(
                    acks.done <= expected && !(acks.done..expected).any(|offset| offsets.contains(&offset)),
                    "{acks:?}, expected {expected} of {offsets:?}"
                );
            }
        }
    }
}
