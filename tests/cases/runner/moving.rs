//! The steps by which an application moves a consumer, hands over what is processed, and hears of its assignment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cursus_consumer::{Batch, Commit, Error, ErrorKind, Rebalance, Record, State, TopicPartition};
use tokio::time::{Instant, timeout};

use crate::checks::numbers;
use crate::format::{Ack, Assigned, Change, Starts, Step, What};
use crate::world::{Reader, World, locked, within};

/// What a step names as `what`, with what it borrows.
pub(crate) struct Claim {
    batch: Option<Batch>,
    offsets: Option<BTreeMap<TopicPartition, u64>>,
}

impl Claim {
    pub(crate) fn commit(&self) -> Commit<'_> {
        match (&self.batch, &self.offsets) {
            (Some(batch), _) => Commit::Batch(batch),
            (None, Some(offsets)) => Commit::Offsets(offsets),
            (None, None) => Commit::All,
        }
    }
}

impl World {
    pub(crate) fn claim(&self, reader: &Reader, what: &What) -> Result<Claim, String> {
        let (batch, offsets) = match what {
            What::All => (None, None),
            What::Last => (Some(locked(&reader.last).clone()), None),
            What::Saved(name) => (Some(self.saved(name)?), None),
            What::Offsets(given) => {
                let named = given.iter().map(|(partition, offset)| Ok((reader.partition(*partition)?, *offset)));
                (None, Some(named.collect::<Result<_, String>>()?))
            }
        };
        Ok(Claim { batch, offsets })
    }

    /// Does a step of these; nothing where it is none.
    pub(crate) async fn moving_step(self: &Arc<Self>, step: &Step) -> Option<Result<(), String>> {
        Some(match step {
            Step::Seek(step) => self.tried(&step.consumer, step.error.as_ref(), |reader| {
                Ok(reader.consumer.seek(&reader.partition(step.partition)?, step.offset))
            }),
            Step::Pause(step) => self.tried(&step.consumer, step.error.as_ref(), |reader| {
                Ok(reader.consumer.pause(&reader.partitions(&step.partitions)?))
            }),
            Step::Resume(step) => self.tried(&step.consumer, step.error.as_ref(), |reader| {
                Ok(reader.consumer.resume(&reader.partitions(&step.partitions)?))
            }),
            Step::Assign(step) => self.tried(&step.consumer, step.error.as_ref(), |reader| {
                let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{text:?} is no partition"));
                let starts: Vec<_> = match &step.partitions {
                    Starts::Partitions(numbers) => numbers.iter().map(|number| Ok((*number, None))).collect(),
                    Starts::Offsets(offsets) => {
                        offsets.iter().map(|(text, start)| Ok((number(text)?, *start))).collect()
                    }
                };
                let starts = starts.into_iter().map(|start: Result<_, String>| {
                    let (number, start) = start?;
                    Ok((reader.partition(number)?, start))
                });
                Ok(reader.consumer.assign(starts.collect::<Result<Vec<_>, String>>()?))
            }),
            Step::Ack(step) => self.acknowledge(step),
            Step::CommitAsync(step) => self.tried(&step.consumer, step.error.as_ref(), |reader| {
                let claim = self.claim(reader, &step.what)?;
                let begun = reader.consumer.begin_commit(claim.commit(), step.timeout_ms.map(|ms| within(Some(ms))));
                let pending = match begun {
                    Ok(pending) => pending,
                    Err(error) => return Ok(Err(error)),
                };
                match locked(&self.commits).insert(step.r#as.clone(), Box::pin(pending)) {
                    Some(_) => Err(format!("there is a commit {:?} already", step.r#as)),
                    None => Ok(Ok(())),
                }
            }),
            Step::CommitOutcome(step) => {
                let pending = locked(&self.commits).remove(&step.commit);
                let Some(pending) = pending else { return Some(Err(format!("there is no commit {:?}", step.commit))) };
                match timeout(within(step.within_ms), pending).await {
                    Ok(result) => self.outcome(result.as_ref().copied(), step.error.as_ref()),
                    Err(_) => Err("its outcome isn't known in time".to_owned()),
                }
            }
            Step::Listen(step) => self.reader(&step.consumer).map(|reader| {
                reader.consumer.driver().listen();
                reader.listening.store(true, Ordering::Relaxed);
            }),
            Step::Told(step) => {
                let reader = match self.reader(&step.consumer) {
                    Ok(reader) => reader,
                    Err(problem) => return Some(Err(problem)),
                };
                told(&reader, &step.is, Instant::now() + within(step.within_ms)).await
            }
            _ => return None,
        })
    }

    /// Makes a call that doesn't wait, and checks how it went.
    fn tried(
        &self,
        consumer: &str,
        expected: Option<&crate::format::Failure>,
        call: impl FnOnce(&Reader) -> Result<Result<(), Error>, String>,
    ) -> Result<(), String> {
        let reader = self.reader(consumer)?;
        let result = call(&reader)?;
        self.outcome(result.as_ref().copied(), expected)
    }

    fn acknowledge(&self, step: &Ack) -> Result<(), String> {
        let of = self.reader(step.of.as_ref().unwrap_or(&step.consumer))?;
        let mut records: BTreeMap<(u32, u64), Record> = BTreeMap::new();
        for batch in &*locked(&of.read) {
            for record in (0..batch.len()).filter_map(|i| batch.get(i)) {
                records.insert((record.partition().partition, record.offset()), record);
            }
        }
        for (partition, offsets) in &step.records {
            for offset in offsets {
                let record = records.get(&(*partition, *offset));
                let record = record.ok_or_else(|| format!("{partition}@{offset} wasn't read by the step before"))?;
                self.tried(&step.consumer, step.error.as_ref(), |reader| Ok(reader.consumer.ack(record)))?;
            }
        }
        Ok(())
    }
}

/// Polls until exactly this was told, in order.
async fn told(reader: &Reader, expected: &[Change], deadline: Instant) -> Result<(), String> {
    loop {
        let found = locked(&reader.told).clone();
        if found.len() == expected.len() && found.iter().zip(expected).all(|(found, expected)| is(found, expected)) {
            return Ok(());
        }
        let wrong = || format!("what was told is {found:?}, and should be {expected:?}");
        if found.len() >= expected.len() || Instant::now() >= deadline || reader.consumer.state() == State::Closed {
            return Err(wrong());
        }
        match reader.poll(crate::consumer::TURN).await {
            Ok(batch) => {
                if let Some(record) = batch.get(0) {
                    return Err(format!("poll returned {}@{}", record.partition(), record.offset()));
                }
            }
            Err(error) if error.kind() == ErrorKind::Rebalancing => {}
            Err(error) => return Err(format!("poll failed: {error:?}")),
        }
    }
}

fn is(found: &Rebalance, expected: &Change) -> bool {
    let (found, expected) = match (found, expected) {
        (Rebalance::Assigned(found), Change::Assigned(expected))
        | (Rebalance::Revoked(found), Change::Revoked(expected)) => (numbers(found), expected),
        _ => return false,
    };
    match expected {
        Assigned::Partitions(expected) => found == *expected,
        Assigned::Count(count) => found.len() == *count,
    }
}
