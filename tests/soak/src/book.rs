//! The book: what was written, what was processed, by whom and in which order.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::lines::Run;
use crate::ranges::Ranges;

/// A record that came where it can't: out of order, left out, or under an assignment that had ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disorder {
    member: u64,
    partition: u32,
    assignment: u64,
    /// What the member had reached, and under which assignment.
    before: (u64, u64),
    /// What it processed then.
    then: u64,
}

impl fmt::Display for Disorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, partition, assignment, before: (old, next), then } = self;
        write!(
            f,
            "member {member} processed offset {then} of partition {partition} under assignment {assignment}, where {next} \
             was next under assignment {old}"
        )
    }
}

/// The longest time in which nothing new of a partition was processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Silence {
    pub(crate) lasted: Duration,
    /// When it ended, since the start.
    pub(crate) until: Duration,
}

#[derive(Debug, Default)]
struct Partition {
    produced: u64,
    processed: Ranges,
    last_new: Duration,
    silence: Silence,
}

/// What was written and what was processed.
#[derive(Debug)]
pub(crate) struct Book {
    partitions: Vec<Partition>,
    /// By member and partition: the assignment, and what is next under it.
    reading: BTreeMap<(u64, u32), (u64, u64)>,
    duplicates: BTreeMap<&'static str, u64>,
}

impl Book {
    pub(crate) fn new(partitions: u32) -> Self {
        let partitions = (0..partitions).map(|_| Partition::default()).collect();
        Self { partitions, reading: BTreeMap::new(), duplicates: BTreeMap::new() }
    }

    /// A partition's log now ends here.
    pub(crate) fn produced(&mut self, partition: u32, end: u64) {
        if let Some(found) = self.partitions.get_mut(partition as usize) {
            found.produced = end;
        }
    }

    /// A member has processed records. What was processed before counts as a duplicate of this cause.
    pub(crate) fn processed(
        &mut self,
        member: u64,
        assignment: u64,
        run: Run,
        now: Duration,
        cause: &'static str,
    ) -> Result<(), Disorder> {
        let Some(found) = self.partitions.get_mut(run.partition as usize) else { return Ok(()) };
        let new = found.processed.add(run.from..run.to);
        let again = (run.to - run.from) - new;
        if again > 0 {
            *self.duplicates.entry(cause).or_default() += again;
        }
        if new > 0 {
            found.note_silence(now);
            found.last_new = now;
        }
        match self.reading.insert((member, run.partition), (assignment, run.to)) {
            // Nothing is left out of these logs, so that what is next is exactly next.
            Some((old, next)) if assignment < old || (assignment == old && run.from != next) => {
                Err(Disorder { member, partition: run.partition, assignment, before: (old, next), then: run.from })
            }
            _ => Ok(()),
        }
    }

    /// How many records were written.
    pub(crate) fn records(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.produced).sum()
    }

    /// How many times a record was processed again, by cause.
    pub(crate) fn duplicates(&self) -> &BTreeMap<&'static str, u64> {
        &self.duplicates
    }

    /// What was written and not processed, by partition.
    pub(crate) fn missing(&self) -> BTreeMap<u32, Vec<Range<u64>>> {
        let missing =
            (0..).zip(&self.partitions).map(|(number, found)| (number, found.processed.missing(found.produced)));
        missing.filter(|(_, missing)| !missing.is_empty()).collect()
    }

    /// What was processed and never written, by partition: the offset behind it.
    pub(crate) fn invented(&self) -> BTreeMap<u32, u64> {
        let ends = (0..).zip(&self.partitions).map(|(number, found)| (number, found.processed.end(), found.produced));
        ends.filter(|(_, end, produced)| end > produced).map(|(number, end, _)| (number, end)).collect()
    }

    /// The ends of the logs, by partition.
    pub(crate) fn ends(&self) -> BTreeMap<u32, u64> {
        (0..).zip(self.partitions.iter().map(|partition| partition.produced)).collect()
    }

    /// The longest silence of each partition, one that lasts still included.
    pub(crate) fn silences(&self, now: Duration) -> Vec<Silence> {
        self.partitions.iter().map(|partition| partition.silence(now)).collect()
    }

    /// For how long nothing new of a partition was processed though there is some.
    pub(crate) fn silent_for(&self, now: Duration) -> BTreeMap<u32, Duration> {
        let waiting = (0..).zip(&self.partitions).filter(|(_, found)| found.is_behind());
        waiting.map(|(number, found)| (number, now.saturating_sub(found.last_new))).collect()
    }
}

impl Partition {
    fn is_behind(&self) -> bool {
        !self.processed.missing(self.produced).is_empty()
    }

    fn note_silence(&mut self, now: Duration) {
        let lasted = now.saturating_sub(self.last_new);
        if lasted > self.silence.lasted {
            self.silence = Silence { lasted, until: now };
        }
    }

    fn silence(&self, now: Duration) -> Silence {
        let lasting = now.saturating_sub(self.last_new);
        if self.is_behind() && lasting > self.silence.lasted {
            return Silence { lasted: lasting, until: now };
        }
        self.silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn run(from: u64, to: u64) -> Run {
        Run { partition: 0, from, to }
    }

    #[test]
    fn a_record_that_nobody_processed_is_missing_and_one_that_two_did_is_a_duplicate() {
        let mut book = Book::new(2);
        book.produced(0, 10);
        book.produced(1, 5);
        book.processed(1, 1, run(0, 4), second(1), "none").unwrap();
        book.processed(2, 2, run(2, 8), second(2), "kill_broker").unwrap();
        assert_eq!(book.missing(), BTreeMap::from([(0, vec![8..10]), (1, vec![0..5])]));
        assert_eq!(book.duplicates(), &BTreeMap::from([("kill_broker", 2)]));
        assert_eq!(book.records(), 15);
        book.processed(2, 2, run(8, 10), second(2), "none").unwrap();
        book.processed(2, 2, Run { partition: 1, from: 0, to: 5 }, second(2), "none").unwrap();
        assert!(book.missing().is_empty() && book.invented().is_empty());
    }

    #[test]
    fn what_was_never_written_is_found() {
        let mut book = Book::new(1);
        book.produced(0, 3);
        book.processed(1, 1, run(0, 4), second(1), "none").unwrap();
        assert_eq!(book.invented(), BTreeMap::from([(0, 4)]));
    }

    #[test]
    fn within_an_assignment_each_record_follows_the_one_before() {
        for (from, to) in [(3, 6), (4, 6), (6, 8)] {
            let mut book = Book::new(1);
            book.processed(1, 7, run(0, 5), second(1), "none").unwrap();
            let disorder = book.processed(1, 7, run(from, to), second(1), "none").unwrap_err();
            assert_eq!((disorder.before, disorder.then), ((7, 5), from));
        }
        let mut book = Book::new(1);
        book.processed(1, 7, run(0, 5), second(1), "none").unwrap();
        book.processed(1, 7, run(5, 6), second(1), "none").unwrap();
    }

    #[test]
    fn a_new_assignment_may_begin_anywhere_and_an_older_one_never_comes_back() {
        let mut book = Book::new(1);
        book.processed(1, 7, run(0, 5), second(1), "none").unwrap();
        book.processed(2, 3, run(2, 9), second(1), "none").unwrap();
        book.processed(1, 8, run(3, 5), second(1), "none").unwrap();
        let disorder = book.processed(1, 7, run(5, 6), second(1), "none").unwrap_err();
        assert_eq!((disorder.before, disorder.assignment), ((8, 5), 7));
    }

    #[test]
    fn the_longest_silence_is_the_one_in_which_nothing_new_came() {
        let mut book = Book::new(1);
        book.produced(0, 10);
        book.processed(1, 1, run(0, 2), second(3), "none").unwrap();
        book.processed(2, 2, run(0, 2), second(9), "none").unwrap();
        book.processed(2, 2, run(2, 4), second(10), "none").unwrap();
        assert_eq!(book.silences(second(11)), [Silence { lasted: second(7), until: second(10) }]);
        assert_eq!(book.silent_for(second(30)), BTreeMap::from([(0, second(20))]));
        assert_eq!(book.silences(second(30)), [Silence { lasted: second(20), until: second(30) }]);
        book.processed(2, 2, run(4, 10), second(31), "none").unwrap();
        assert!(book.silent_for(second(90)).is_empty(), "where everything is processed nothing is awaited");
        assert_eq!(book.silences(second(90)), [Silence { lasted: second(21), until: second(31) }]);
    }
}
