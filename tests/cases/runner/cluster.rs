//! The steps that are about the cluster.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cursus_embedded::ControlError;
use serde_json::Value;

use crate::format::{GroupCommitted, Produce, Requests, Step};
use crate::world::{World, locked, within};

/// The value of a record: its place, so that it can be told whether it is the right one, and dots up to a size.
pub(crate) fn value(topic: &str, partition: u32, offset: u64, size: usize) -> Vec<u8> {
    let mut value = format!("{topic}-{partition}@{offset}").into_bytes();
    value.resize(value.len().max(size), b'.');
    value
}

/// Keys and values of records.
pub(crate) fn records(
    topic: &str,
    partition: u32,
    offsets: Range<u64>,
    size: usize,
) -> impl Iterator<Item = (String, Vec<u8>)> {
    offsets.map(move |offset| (offset.to_string(), value(topic, partition, offset, size)))
}

impl World {
    /// Does a step of the cluster; nothing where it is none.
    pub(crate) async fn cluster_step(self: &Arc<Self>, step: &Step) -> Option<Result<(), String>> {
        let cluster = &self.cluster;
        let done = |result: Result<(), ControlError>| result.map_err(|error| error.to_string());
        Some(match step {
            Step::CreateTopic(step) => done(cluster.create_topic(&step.topic, step.partitions)),
            Step::DeleteTopic(step) => done(cluster.delete_topic(&step.topic)),
            Step::Produce(step) => self.produce(step),
            Step::DeleteRecords(step) => done(cluster.delete_records(&step.topic, step.partition, step.earliest)),
            Step::StopBroker(step) => done(cluster.stop_broker(step.broker).await),
            Step::KillBroker(step) => done(cluster.kill_broker(step.broker).await),
            Step::RestartBroker(step) => done(cluster.restart_broker(step.broker).await),
            Step::PauseBroker(step) => done(cluster.pause_broker(step.broker)),
            Step::ResumeBroker(step) => done(cluster.resume_broker(step.broker)),
            Step::Advance(step) => {
                cluster.advance(Duration::from_millis(step.by_ms));
                Ok(())
            }
            Step::SwapAddresses(step) => done(cluster.swap_addresses(step.a, step.b)),
            Step::FreezeConnections(step) => done(cluster.freeze_connections(step.broker)),
            Step::CloseStreams(step) => done(cluster.close_streams(&step.reason)),
            Step::MoveCoordinator(step) => done(cluster.move_coordinator(&step.group, step.broker)),
            Step::MoveLeader(step) => done(cluster.move_leader(&step.topic, step.partition, step.broker)),
            Step::FailNext(step) => done(cluster.fail_next(&step.command, step.times, &self.filled_in(&step.error))),
            Step::LoseReply(step) => done(cluster.lose_reply(&step.command, step.times)),
            Step::CorruptNext(step) => done(cluster.corrupt_next(&step.command, step.times)),
            Step::CutConnections(step) => done(cluster.cut_connections(step.broker)),
            Step::ExpireMember(step) => self.expire(&step.consumer),
            Step::ClearRequests(_) => {
                cluster.clear_requests();
                Ok(())
            }
            Step::Hold(step) => {
                // Failing it no times changes nothing, and tells whether there is such a command.
                if let Err(error) = cluster.fail_next(&step.command, 0, "") {
                    return Some(Err(error.to_string()));
                }
                let hold = Arc::new(cluster.hold(&step.command));
                match locked(&self.holds).insert(step.r#as.clone(), hold) {
                    Some(_) => Err(format!("there is a hold {:?} already", step.r#as)),
                    None => Ok(()),
                }
            }
            Step::Held(step) => {
                let hold = locked(&self.holds).get(&step.hold).cloned();
                let Some(hold) = hold else { return Some(Err(format!("there is no hold {:?}", step.hold))) };
                let reached = tokio::time::timeout(within(step.within_ms), hold.reached()).await;
                reached.map_err(|_| "no request has come to be held".to_owned())
            }
            Step::Release(step) => match locked(&self.holds).remove(&step.hold) {
                Some(_) => Ok(()),
                None => Err(format!("there is no hold {:?}", step.hold)),
            },
            Step::GroupCommitted(step) => self.group_committed(step).await,
            Step::GroupMembers(step) => {
                let count = |world: &Self| match world.cluster.group(&step.group).map_or(0, |found| found.members.len())
                {
                    found if found == step.count => Ok(()),
                    found => Err(format!("group {:?} has {found} members, and should have {}", step.group, step.count)),
                };
                self.cluster_becomes(within(step.within_ms), count).await
            }
            Step::Requests(step) => self.requests(step).await,
            _ => return None,
        })
    }

    fn produce(&self, step: &Produce) -> Result<(), String> {
        let ends = self.cluster.end_offsets(&step.topic);
        // A topic or partition that doesn't exist is reported by producing to it.
        let partitions = match step.partition {
            Some(partition) => vec![partition],
            None if ends.is_empty() => vec![0],
            None => ends.keys().copied().collect(),
        };
        for partition in partitions {
            let first = ends.get(&partition).copied().unwrap_or(0);
            let records = records(&step.topic, partition, first..first + step.count, step.value_size);
            self.cluster.produce(&step.topic, partition, records).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn expire(&self, consumer: &str) -> Result<(), String> {
        let reader = self.reader(consumer)?;
        let member = reader.consumer.statistics().member.ok_or_else(|| format!("{consumer:?} is no member yet"))?;
        self.cluster.expire_member(&reader.group, &member).map_err(|error| error.to_string())
    }

    async fn group_committed(&self, step: &GroupCommitted) -> Result<(), String> {
        self.cluster_becomes(within(step.within_ms), |world| {
            let all = world.cluster.committed(&step.group, &step.topic);
            let found: BTreeMap<u32, Option<u64>> =
                step.offsets.keys().map(|partition| (*partition, all.get(partition).copied())).collect();
            if found == step.offsets {
                return Ok(());
            }
            Err(format!("group {:?} has committed {found:?}, and should have {:?}", step.group, step.offsets))
        })
        .await
    }

    async fn requests(&self, step: &Requests) -> Result<(), String> {
        // A word that is no command's name would never be counted.
        self.cluster.fail_next(&step.command, 0, "").map_err(|error| error.to_string())?;
        self.cluster_becomes(within(step.within_ms), |world| {
            let requests = world.cluster.requests();
            let count = requests
                .iter()
                .filter(|request| request.command == step.command)
                .filter(|request| step.broker.is_none_or(|broker| broker == request.broker))
                .filter(|request| step.says.as_ref().is_none_or(|word| request.text.contains(word)))
                .count();
            world.check(&format!("the count of {}", step.command), &Value::from(count), &step.is)
        })
        .await
    }
}
