//! What the cases have in common: waiting with an end, and keeping count of what was read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cursus_consumer::{Batch, Commit, Consumer, ErrorKind, Record, State};
use tokio::time::timeout;

use crate::place::Place;

/// How long a test waits for what should happen. Machines are slow and disks are noisy; only failures take this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Waits for something that should happen soon, and says what it was where it doesn't.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("still waiting after {PATIENCE:?}: {what}"),
    }
}

/// Waits until a consumer's own picture fulfils a condition.
pub(crate) async fn until(what: &str, consumer: &Consumer, condition: impl Fn(&Consumer) -> bool) {
    let waiting = async {
        while !condition(consumer) {
            // Not every statistic wakes pollers: the time limit only bounds how late it is seen.
            let _ = timeout(Duration::from_millis(10), consumer.driver().changed()).await;
        }
    };
    if timeout(PATIENCE, waiting).await.is_err() {
        panic!("still waiting after {PATIENCE:?}: {what}; {:#?}", consumer.statistics());
    }
}

pub(crate) async fn started(consumer: &Consumer) {
    let result = soon("the first assignment", consumer.start(Some(PATIENCE))).await;
    result.unwrap_or_else(|error| panic!("start failed: {error:?}"));
    assert_eq!(consumer.state(), State::Running);
}

pub(crate) async fn closed(consumer: &Consumer) {
    soon("close", consumer.close(None)).await;
    assert_eq!(consumer.state(), State::Closed);
    assert_eq!(consumer.statistics().given_up, Vec::<String>::new());
}

/// Waits until a consumer has told that its fences ended, then until it runs again.
pub(crate) async fn told(consumer: &Consumer) -> usize {
    let stale = soon("the rebalancing error", async {
        loop {
            if let Err(error) = consumer.poll(Some(PATIENCE)).await {
                assert_eq!(error.kind(), ErrorKind::Rebalancing, "{error:?}");
                return error.stale().len();
            }
        }
    });
    let stale = stale.await;
    until("it to run again", consumer, |consumer| consumer.state() == State::Running).await;
    stale
}

/// What was read: per partition, the offsets in the order in which they came.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    offsets: BTreeMap<u32, Vec<u64>>,
    distinct: BTreeMap<u32, BTreeSet<u64>>,
    rebalances: u64,
    last: Option<Instant>,
    silence: Duration,
}

impl Seen {
    /// Takes a batch. Each value says where it was written to: that must be where it was read from.
    pub(crate) fn add(&mut self, batch: &Batch) {
        let before = self.distinct();
        for record in batch.iter() {
            self.note(record.partition.partition, &record);
        }
        if self.distinct() > before {
            self.heard();
        }
    }

    /// Takes a record, as a handler gets it.
    pub(crate) fn add_record(&mut self, record: &Record) {
        let before = self.distinct();
        self.note(record.partition().partition, &record.fields());
        if self.distinct() > before {
            self.heard();
        }
    }

    fn note(&mut self, partition: u32, record: &cursus_wire::Record<'_>) {
        let offset = record.offset;
        let expected = format!("{partition}:{offset}:");
        assert!(record.value.starts_with(expected.as_bytes()), "{partition}@{offset} has another record's value");
        assert_eq!(record.key, offset.to_string().as_bytes(), "{partition}@{offset} has another record's key");
        self.offsets.entry(partition).or_default().push(offset);
        self.distinct.entry(partition).or_default().insert(offset);
    }

    fn heard(&mut self) {
        self.silence = self.silence.max(self.silent());
        self.last = Some(Instant::now());
    }

    /// For how long nothing new has come.
    pub(crate) fn silent(&self) -> Duration {
        self.last.map_or(Duration::ZERO, |last| last.elapsed())
    }

    /// The longest time without a new record since this was asked last.
    pub(crate) fn longest_silence(&mut self) -> Duration {
        self.last = None;
        std::mem::take(&mut self.silence)
    }

    pub(crate) fn distinct(&self) -> u64 {
        self.distinct.values().map(|offsets| offsets.len() as u64).sum()
    }

    pub(crate) fn duplicates(&self) -> u64 {
        self.offsets.values().map(|offsets| offsets.len() as u64).sum::<u64>() - self.distinct()
    }

    pub(crate) fn rebalances(&self) -> u64 {
        self.rebalances
    }

    /// The offsets of a partition, each once.
    pub(crate) fn of(&self, partition: u32) -> BTreeSet<u64> {
        self.distinct.get(&partition).cloned().unwrap_or_default()
    }

    /// Every partition's records came in their order, each once, from the start up to the given end.
    pub(crate) fn assert_each_once_in_order(&self, ends: &BTreeMap<u32, u64>) {
        ends.iter().for_each(|(partition, end)| self.assert_exactly(*partition, 0..*end));
    }

    /// A partition's records came in their order, each once: these and no others.
    pub(crate) fn assert_exactly(&self, partition: u32, expected: std::ops::Range<u64>) {
        let offsets = self.offsets.get(&partition).cloned().unwrap_or_default();
        assert!(
            offsets.iter().copied().eq(expected.clone()),
            "partition {partition}, {expected:?} was expected: {}",
            runs(&offsets)
        );
    }

    /// Nothing is missing, whoever of these read it.
    pub(crate) fn assert_nothing_lost(all: &[&Self], ends: &BTreeMap<u32, u64>) {
        for (partition, end) in ends {
            let offsets: BTreeSet<u64> = all.iter().flat_map(|seen| seen.of(*partition)).collect();
            let read: Vec<u64> = offsets.into_iter().collect();
            assert!(read.iter().copied().eq(0..*end), "partition {partition} up to {end}: {}", runs(&read));
        }
    }
}

/// Offsets as runs of consecutive ones: `0-99 200-299`.
fn runs(offsets: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for offset in offsets {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *offset => *last = *offset,
            _ => runs.push((*offset, *offset)),
        }
    }
    runs.iter().map(|(first, last)| format!("{first}-{last}")).collect::<Vec<_>>().join(" ")
}

/// Polls once, going through a rebalance.
pub(crate) async fn poll(consumer: &Consumer, seen: &mut Seen) -> Batch {
    match consumer.poll(Some(Duration::from_secs(1))).await {
        Ok(batch) => {
            seen.add(&batch);
            batch
        }
        Err(error) if error.kind() == ErrorKind::Rebalancing => {
            seen.rebalances += 1;
            Batch::default()
        }
        Err(error) => panic!("poll failed: {error:?}; {:#?}", consumer.statistics()),
    }
}

/// Polls until so many distinct records were seen.
pub(crate) async fn read(consumer: &Consumer, seen: &mut Seen, count: u64) {
    let reading = async {
        while seen.distinct() < count {
            poll(consumer, seen).await;
        }
    };
    if timeout(PATIENCE, reading).await.is_err() {
        panic!("{} of {count} records after {PATIENCE:?}; {:#?}", seen.distinct(), consumer.statistics());
    }
}

/// Reads to the end of every partition and commits it, and waits until the group has it. Also what was read before may have
/// to be read again for that, after a rebalance.
pub(crate) async fn read_and_commit_all(place: &Place, consumer: &Consumer, seen: &mut Seen) {
    let ends = place.ends().await;
    let positions = || consumer.statistics().partitions.into_iter().map(|(tp, owned)| (tp.partition, owned.position));
    let reading = async {
        loop {
            while !positions().eq(ends.clone()) {
                poll(consumer, seen).await;
            }
            match consumer.commit(Commit::All, Some(PATIENCE)).await {
                // Until a poll has told of it, every commit of all is refused for the same rebalance.
                Err(error) if error.kind() == ErrorKind::Rebalancing => drop(poll(consumer, seen).await),
                other => return other.unwrap(),
            }
        }
    };
    if timeout(PATIENCE, reading).await.is_err() {
        panic!("not at the ends {ends:?} after {PATIENCE:?}; {:#?}", consumer.statistics());
    }
    place.wait_committed(&ends).await;
}
