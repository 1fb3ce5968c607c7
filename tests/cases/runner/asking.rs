//! The steps that ask a consumer about its partitions and its group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cursus_consumer::{Error, GroupDescription, TopicPartition};
use serde_json::{Value, json};

use crate::checks::{becomes, equal, numbers};
use crate::format::{Described, Failure, GroupMetadata, MetadataField, Step};
use crate::world::{Reader, World, within};

type ByPartition = BTreeMap<TopicPartition, u64>;

impl World {
    /// Does a step of these.
    pub(crate) async fn asking_step(self: &Arc<Self>, step: &Step) -> Result<(), String> {
        match step {
            Step::Paused(step) => {
                let reader = self.reader(&step.consumer)?;
                let look =
                    || equal("what is paused", &numbers(&reader.consumer.paused()).into(), &step.is.clone().into());
                becomes(&reader.consumer, within(step.within_ms), look).await
            }
            Step::BeginOffsets(step) => {
                let (reader, partitions) = self.asked(&step.consumer, step.partitions.as_ref())?;
                let found = reader.consumer.begin_offsets(&partitions, Some(within(step.timeout_ms))).await;
                self.offsets(found, step.is.as_ref(), step.error.as_ref())
            }
            Step::EndOffsets(step) => {
                let (reader, partitions) = self.asked(&step.consumer, step.partitions.as_ref())?;
                let found = reader.consumer.end_offsets(&partitions, Some(within(step.timeout_ms))).await;
                self.offsets(found, step.is.as_ref(), step.error.as_ref())
            }
            Step::Lag(step) => {
                let found = self.reader(&step.consumer)?.consumer.lag(Some(within(step.timeout_ms))).await;
                self.offsets(found, step.is.as_ref(), step.error.as_ref())
            }
            Step::DescribeGroup(step) => {
                let reader = self.reader(&step.consumer)?;
                let found = reader.consumer.describe_group(Some(within(step.timeout_ms))).await;
                self.outcome(found.as_ref().map(drop), step.error.as_ref())?;
                match (found, &step.is) {
                    (Ok(found), Some(expected)) => described(&found, expected),
                    (Ok(_), None) => Err("it says neither what is to come nor an error".to_owned()),
                    (Err(_), _) => Ok(()),
                }
            }
            Step::GroupMetadata(step) => self.metadata(step),
            other => Err(format!("nobody does {other:?}")),
        }
    }

    /// A consumer, and the partitions that a step names, or those that it has.
    fn asked(
        &self,
        consumer: &str,
        partitions: Option<&Vec<u32>>,
    ) -> Result<(Arc<Reader>, Vec<TopicPartition>), String> {
        let reader = self.reader(consumer)?;
        let partitions = match partitions {
            Some(numbers) => reader.partitions(numbers)?,
            None => reader.consumer.assignment(),
        };
        Ok((reader, partitions))
    }

    fn offsets(
        &self,
        found: Result<ByPartition, Error>,
        expected: Option<&BTreeMap<u32, u64>>,
        error: Option<&Failure>,
    ) -> Result<(), String> {
        self.outcome(found.as_ref().map(drop), error)?;
        let Ok(found) = found else { return Ok(()) };
        let expected = expected.ok_or("it says neither what is to come nor an error")?;
        let found: BTreeMap<u32, u64> =
            found.into_iter().map(|(partition, offset)| (partition.partition, offset)).collect();
        if found == *expected { Ok(()) } else { Err(format!("it is {found:?}, and should be {expected:?}")) }
    }

    fn metadata(&self, step: &GroupMetadata) -> Result<(), String> {
        let found = match &step.saved {
            Some(name) => Ok(self.saved(name)?.group_metadata().ok_or("the batch is of no member")?.clone()),
            None => self.reader(&step.consumer)?.consumer.group_metadata(),
        };
        self.outcome(found.as_ref().map(drop), step.error.as_ref())?;
        let Ok(found) = found else { return Ok(()) };
        for (field, check) in &step.is {
            let (name, found): (&str, Value) = match field {
                MetadataField::Group => ("the group", found.group.as_str().into()),
                MetadataField::Topic => ("the topic", found.topic.as_str().into()),
                MetadataField::Member => ("the member", found.member.as_str().into()),
                MetadataField::Generation => ("the generation", found.generation.into()),
            };
            self.check(name, &found, check)?;
        }
        Ok(())
    }
}

fn described(found: &GroupDescription, expected: &Described) -> Result<(), String> {
    if let Some(state) = &expected.state {
        equal("the group's state", &found.state.as_str().into(), &state.as_str().into())?;
    }
    if let Some(members) = expected.members {
        equal("the count of members", &found.members.len().into(), &members.into())?;
    }
    if let Some(read) = &expected.read {
        let members: BTreeSet<u32> =
            found.members.iter().flat_map(|member| &member.partitions).map(|partition| partition.partition).collect();
        equal("what members read", &json!(members), &json!(read))?;
        let owned = found.partitions.iter().filter(|(_, told)| told.member.is_some());
        let owned: Vec<u32> = owned.map(|(partition, _)| partition.partition).collect();
        equal("what has a reader", &json!(owned), &json!(read))?;
    }
    if let Some(committed) = &expected.committed {
        let found: BTreeMap<u32, Option<u64>> =
            found.partitions.iter().map(|(partition, told)| (partition.partition, told.committed)).collect();
        equal("what is committed", &json!(found), &json!(committed))?;
    }
    if let Some(lag) = &expected.lag {
        let found: BTreeMap<u32, Option<u64>> =
            found.partitions.iter().map(|(partition, told)| (partition.partition, told.lag)).collect();
        equal("the lag", &json!(found), &json!(lag))?;
    }
    Ok(())
}
