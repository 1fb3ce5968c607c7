//! The steps that are about consumers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cursus_consumer::statistics::Measure;
use cursus_consumer::{ErrorKind, TopicPartition};
use serde_json::Value;
use tokio::time::Instant;

use crate::checks::{becomes, equal, numbers};
use crate::cluster::value;
use crate::format::{Assigned, PollUntilError, Read, ReadTogether, Statistics, Step};
use crate::world::{Reader, World, locked, within};

/// How long one of several consumers that are read in turn may wait.
pub(crate) const TURN: Duration = Duration::from_millis(50);

impl World {
    /// Does a step of a consumer.
    pub(crate) async fn consumer_step(self: &Arc<Self>, step: &Step) -> Result<(), String> {
        match step {
            Step::Create(step) => match (self.make(&step.consumer)?, &step.error) {
                (Err(error), expected) => self.outcome(Err(&error), expected.as_ref()),
                (Ok(_), Some(expected)) => self.outcome(Ok(()), Some(expected)),
                (Ok(_), None) => self.reader(&step.consumer).map(drop),
            },
            Step::Start(step) => {
                let reader = self.reader(&step.consumer)?;
                let result = reader.consumer.start(Some(within(step.timeout_ms))).await;
                self.outcome(result.as_ref().copied(), step.error.as_ref())
            }
            Step::Read(step) => self.read(step).await,
            Step::ReadTogether(step) => self.read_together(step).await,
            Step::PollNothing(step) => {
                let (reader, time) = (self.reader(&step.consumer)?, Duration::from_millis(step.timeout_ms));
                let begun = Instant::now();
                let batch = reader.poll(time).await.map_err(|error| format!("poll failed: {error:?}"))?;
                if let Some(record) = batch.get(0) {
                    return Err(format!("poll returned {}@{}", record.partition(), record.offset()));
                }
                let took = begun.elapsed();
                if took < time { Err(format!("poll ended after {took:?}")) } else { Ok(()) }
            }
            Step::PollUntilError(step) => self.poll_until_error(step).await,
            Step::Commit(step) => {
                let reader = self.reader(&step.consumer)?;
                let claim = self.claim(&reader, &step.what)?;
                let result = reader.consumer.commit(claim.commit(), Some(within(step.timeout_ms))).await;
                self.outcome(result.as_ref().copied(), step.error.as_ref())
            }
            Step::Close(step) => {
                let reader = self.reader(&step.consumer)?;
                reader.consumer.close(step.timeout_ms.map(Duration::from_millis)).await;
                reader.hear();
                match reader.consumer.state() {
                    cursus_consumer::State::Closed => Ok(()),
                    other => Err(format!("it is {other}")),
                }
            }
            Step::Save(step) => {
                let batch = locked(&self.reader(&step.consumer)?.last).clone();
                if batch.is_empty() {
                    return Err(format!("{:?} has read nothing yet", step.consumer));
                }
                locked(&self.batches).insert(step.r#as.clone(), batch);
                Ok(())
            }
            Step::Remember(step) => {
                let reader = self.reader(&step.consumer)?;
                let found = statistic(&reader, &step.statistic, None)?;
                locked(&self.remembered).insert(step.r#as.clone(), found);
                Ok(())
            }
            step => match self.moving_step(step).await {
                Some(outcome) => outcome,
                None => self.expectation(step).await,
            },
        }
    }

    /// What a consumer says of itself.
    async fn expectation(self: &Arc<Self>, step: &Step) -> Result<(), String> {
        match step {
            Step::State(step) => {
                let reader = self.reader(&step.consumer)?;
                let look = || equal("the state", &reader.consumer.state().name().into(), &step.is.as_str().into());
                becomes(&reader.consumer, within(step.within_ms), look).await
            }
            Step::Statistics(step) => self.statistics(step).await,
            Step::Assignment(step) => {
                let reader = self.reader(&step.consumer)?;
                let look = || {
                    let found = numbers(&reader.consumer.assignment());
                    let right = match &step.is {
                        Assigned::Partitions(expected) => found == *expected,
                        Assigned::Count(count) => found.len() == *count,
                    };
                    if right {
                        Ok(())
                    } else {
                        Err(format!("the assignment is {found:?}, and should be {:?}", step.is))
                    }
                };
                becomes(&reader.consumer, within(step.within_ms), look).await
            }
            Step::Position(step) => {
                let reader = self.reader(&step.consumer)?;
                let partition = reader.partition(step.partition)?;
                let look = || equal("the position", &reader.consumer.position(&partition).into(), &step.is);
                becomes(&reader.consumer, within(step.within_ms), look).await
            }
            Step::Committed(step) => {
                let reader = self.reader(&step.consumer)?;
                let partition = reader.partition(step.partition)?;
                let found = reader.consumer.committed(&partition, Some(within(step.within_ms))).await;
                equal("what is committed", &found.map_err(|error| format!("{error:?}"))?.into(), &step.is)
            }
            Step::FatalError(step) => {
                let reader = self.reader(&step.consumer)?;
                let look = || {
                    let found = reader.consumer.fatal_error().map(|error| error.kind().row().name);
                    equal("the fatal error", &found.into(), &step.is)
                };
                becomes(&reader.consumer, within(step.within_ms), look).await
            }
            step => self.asking_step(step).await,
        }
    }

    /// Polls until exactly the ranges have come, in order, and nothing else.
    async fn read(&self, step: &Read) -> Result<(), String> {
        let (reader, deadline) = (self.reader(&step.consumer)?, Instant::now() + within(step.within_ms));
        locked(&reader.read).clear();
        let mut missing: BTreeMap<u32, VecDeque<u64>> =
            step.records.iter().map(|(partition, range)| (*partition, range.offsets().collect())).collect();
        while missing.values().any(|offsets| !offsets.is_empty()) {
            let next = || missing.iter().map(|(partition, offsets)| (*partition, offsets.front())).collect::<Vec<_>>();
            let left = deadline.saturating_duration_since(Instant::now());
            let batch = reader.poll(left).await;
            let batch = batch.map_err(|error| format!("poll failed before {:?}: {error:?}", next()))?;
            if batch.is_empty() {
                return Err(format!("what hasn't come begins with {:?}", next()));
            }
            for record in batch.iter() {
                let (partition, offset) = (record.partition.partition, record.offset);
                let control = step.control.get(&partition).is_some_and(|offsets| offsets.contains(&offset));
                if control != record.is_control() {
                    let is = if control { "no control record" } else { "a control record" };
                    return Err(format!("{}@{offset} is {is}", record.partition));
                }
                if !control {
                    intact(&reader, record.partition, offset, record.key, record.value)?;
                }
                match missing.get_mut(&partition).and_then(VecDeque::pop_front) {
                    Some(expected) if expected == offset => {}
                    Some(expected) => {
                        return Err(format!("{}@{offset} has come instead of {expected}", record.partition));
                    }
                    None => return Err(format!("{}@{offset} has come as well", record.partition)),
                }
            }
            locked(&reader.read).push(batch.clone());
            *locked(&reader.last) = batch;
        }
        Ok(())
    }

    /// Polls several consumers of a group in turn, through any rebalance, until each record of the ranges has come at one of
    /// them, in this step or one like it before.
    async fn read_together(&self, step: &ReadTogether) -> Result<(), String> {
        let deadline = Instant::now() + within(step.within_ms);
        let readers = step.consumers.iter().map(|name| self.reader(name)).collect::<Result<Vec<_>, _>>()?;
        let group = readers.first().map(|reader| reader.group.clone()).ok_or("it names no consumer")?;
        let mut missing: BTreeSet<(u32, u64)> = BTreeSet::new();
        for (partition, range) in &step.records {
            missing.extend(range.offsets().map(|offset| (*partition, offset)));
        }
        missing.retain(|(partition, offset)| !locked(&self.seen).contains(&(group.clone(), *partition, *offset)));
        let mut next: Vec<BTreeMap<u32, u64>> = vec![BTreeMap::new(); readers.len()];
        while !missing.is_empty() {
            if Instant::now() >= deadline {
                return Err(format!("{} records haven't come, the first is {:?}", missing.len(), missing.first()));
            }
            for (reader, next) in readers.iter().zip(&mut next) {
                let batch = match reader.poll(TURN).await {
                    Ok(batch) if batch.is_empty() => continue,
                    Ok(batch) => batch,
                    Err(error) if error.kind() == ErrorKind::Rebalancing => {
                        next.clear();
                        continue;
                    }
                    Err(error) => return Err(format!("poll failed: {error:?}")),
                };
                for record in batch.iter() {
                    intact(reader, record.partition, record.offset, record.key, record.value)?;
                    let before = next.insert(record.partition.partition, record.offset + 1);
                    if before.is_some_and(|next| next != record.offset) {
                        return Err(format!("{}@{} has come instead of {before:?}", record.partition, record.offset));
                    }
                }
                *locked(&reader.last) = batch.clone();
                if step.commit {
                    match reader.consumer.commit(&batch, Some(within(step.within_ms))).await {
                        Ok(()) => {}
                        // What couldn't be committed comes again.
                        Err(error) if error.kind() == ErrorKind::Rebalancing => continue,
                        Err(error) => return Err(format!("commit failed: {error:?}")),
                    }
                }
                for record in batch.iter() {
                    let place = (record.partition.partition, record.offset);
                    missing.remove(&place);
                    locked(&self.seen).insert((reader.group.clone(), place.0, place.1));
                }
            }
        }
        Ok(())
    }

    async fn poll_until_error(&self, step: &PollUntilError) -> Result<(), String> {
        let (reader, deadline) = (self.reader(&step.consumer)?, Instant::now() + within(step.within_ms));
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match reader.poll(left).await {
                Err(error) => return self.outcome(Err(&error), Some(&step.error)),
                Ok(_) if left.is_zero() => return Err(format!("{} hasn't come", step.error.code)),
                Ok(batch) if batch.is_empty() => {}
                Ok(batch) => *locked(&reader.last) = batch,
            }
        }
    }

    async fn statistics(&self, step: &Statistics) -> Result<(), String> {
        let reader = self.reader(&step.consumer)?;
        let look = || self.check(&step.name, &statistic(&reader, &step.name, step.partition)?, &step.is);
        becomes(&reader.consumer, within(step.within_ms), look).await
    }
}

/// A record's key and value tell where it was written.
fn intact(reader: &Reader, place: &TopicPartition, offset: u64, key: &[u8], found: &[u8]) -> Result<(), String> {
    let expected = value(&reader.topic, place.partition, offset, found.len());
    if place.topic.as_str() == reader.topic && key == offset.to_string().as_bytes() && found == expected {
        return Ok(());
    }
    let (key, found) = (String::from_utf8_lossy(key), String::from_utf8_lossy(&found[..found.len().min(100)]));
    Err(format!("{place}@{offset} came with the key {key:?} and the value {found:?}"))
}

/// A statistic's value as JSON; nothing is null.
fn statistic(reader: &Reader, name: &str, partition: Option<u32>) -> Result<Value, String> {
    let statistics = reader.consumer.statistics();
    let value = match partition {
        None => statistics.values().find(|(found, _)| *found == name).map(|(_, measure)| json(measure)),
        Some(number) => match statistics.partitions.get(&reader.partition(number)?) {
            Some(found) => found.values().find(|(found, _)| *found == name).map(|(_, measure)| json(measure)),
            None => Some(Value::Null),
        },
    };
    value.ok_or_else(|| format!("there is no statistic {name:?}"))
}

fn json(measure: Measure<'_>) -> Value {
    match measure {
        Measure::Absent => Value::Null,
        Measure::Text(text) => text.into(),
        Measure::Integer(number) => number.into(),
        Measure::Number(number) => number.into(),
        Measure::State(state) => state.name().into(),
        Measure::Texts(texts) => texts.join("\n").into(),
        Measure::Partitions(partitions) => partitions.len().into(),
    }
}
