//! Sets of offsets as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of offsets: ranges that don't touch each other, by where they begin.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds offsets, and gives how many of them are new.
    pub(crate) fn add(&mut self, added: Range<u64>) -> u64 {
        if added.is_empty() {
            return 0;
        }
        let (mut start, mut end) = (added.start, added.end);
        let mut known = 0;
        // All that overlap or touch are taken out, the last first, and put back as one.
        while let Some((&from, &to)) = self.0.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            known += to.min(added.end).saturating_sub(from.max(added.start));
            start = start.min(from);
            end = end.max(to);
            self.0.remove(&from);
        }
        self.0.insert(start, end);
        (added.end - added.start) - known
    }

    /// What is missing below `end`.
    pub(crate) fn missing(&self, end: u64) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut next = 0;
        for (&from, &to) in &self.0 {
            if next < from.min(end) {
                missing.push(next..from.min(end));
            }
            next = to;
        }
        if next < end {
            missing.push(next..end);
        }
        missing
    }

    /// The offset behind the last.
    pub(crate) fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(_, to)| *to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_counted() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.add(10..20), 10);
        assert_eq!(ranges.add(10..20), 0);
        assert_eq!(ranges.add(15..25), 5);
        assert_eq!(ranges.add(30..40), 10);
        assert_eq!(ranges.add(5..45), 5 + 5 + 5);
        assert_eq!(ranges.add(45..45), 0);
        assert_eq!((ranges.missing(50), ranges.end()), (vec![0..5, 45..50], 45));
    }

    #[test]
    fn neighbours_become_one_range() {
        let mut ranges = Ranges::default();
        for from in [0, 20, 10] {
            assert_eq!(ranges.add(from..from + 10), 10);
        }
        assert_eq!(ranges.0.len(), 1);
        assert_eq!(ranges.missing(30), []);
    }

    #[test]
    fn what_is_missing_is_found_at_the_start_between_and_at_the_end() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.missing(0), []);
        assert_eq!(ranges.missing(3), [0..3]);
        ranges.add(2..4);
        ranges.add(6..9);
        assert_eq!(ranges.missing(12), [0..2, 4..6, 9..12]);
        assert_eq!(ranges.missing(5), [0..2, 4..5]);
        assert_eq!(ranges.missing(1), [0..1]);
    }

    #[test]
    fn any_order_of_adding_gives_what_a_plain_set_gives() {
        let random = cursus_net::SplitMix::seeded(5);
        let below = |bound| cursus_net::Randomness::below(&random, bound);
        for _ in 0..200 {
            let (mut ranges, mut plain) = (Ranges::default(), std::collections::BTreeSet::new());
            for _ in 0..20 {
                let from = below(60);
                let added = from..from + below(12);
                let fresh = added.clone().filter(|offset| plain.insert(*offset)).count() as u64;
                assert_eq!(ranges.add(added), fresh);
            }
            let missing: Vec<u64> = ranges.missing(80).into_iter().flatten().collect();
            assert_eq!(missing, (0..80).filter(|offset| !plain.contains(offset)).collect::<Vec<_>>());
        }
    }
}
