//! Asking: what this consumer knows itself, and what brokers have to be asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use cursus_wire::GroupMetadata;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Consumer, deadline};
use crate::delivery::Owned;
use crate::engine::{Answer, Message, Position, Question};
use crate::error::{Error, ErrorKind, Result};
use crate::health::Part;
use crate::statistics::{PartitionStatistics, Statistics};
use crate::types::{GroupDescription, LogBounds, State, TopicPartition};

impl Consumer {
    /// The partitions that are this consumer's now.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.0.shared.delivery.partitions().into_keys().collect()
    }

    /// The partitions that are paused.
    pub fn paused(&self) -> Vec<TopicPartition> {
        self.0.shared.delivery.paused()
    }

    /// The topics that this consumer reads.
    pub fn subscription(&self) -> Vec<String> {
        vec![self.0.shared.settings.topic.clone()]
    }

    /// Who this consumer is in its group now, for a transaction that commits offsets on its behalf. Where a batch is at hand,
    /// [its own](Batch::group_metadata) is safer: it is of the assignment that the records were read under, whatever has
    /// happened since.
    ///
    /// Errors: [`ErrorKind::Rebalancing`] during a rebalance; [`ErrorKind::InvalidState`] before the first assignment and
    /// without a group; [`ErrorKind::Closed`].
    pub fn group_metadata(&self) -> Result<GroupMetadata> {
        self.check_group("group metadata")?;
        if let Some(member) = self.0.shared.delivery.member() {
            return Ok((*member).clone());
        }
        Err(match self.state() {
            State::Closing | State::Closed => self.ended(),
            State::Rebalancing if self.0.shared.delivery.local_generation() > 0 => Error::rebalancing(
                "a rebalance is under way: there is no generation to name. Poll to go on",
                vec![],
                vec![],
            ),
            _ => Error::new(ErrorKind::InvalidState, "there is no assignment yet: start, or poll, first"),
        })
    }

    /// The next offset that poll will return of a partition; nothing where it isn't assigned.
    pub fn position(&self, partition: &TopicPartition) -> Option<u64> {
        self.0.shared.delivery.partition(partition).map(|owned| owned.position)
    }

    /// The offset that the group has committed for a partition, asked of the coordinator; `None` where nothing is, and the
    /// broker doesn't tell that from 0.
    pub async fn committed(&self, partition: &TopicPartition, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.check_group("a committed offset")?;
        self.check_topic([partition])?;
        let ask = |answer| Question::Committed { partition: partition.clone(), answer };
        self.find_out(ask, timeout, &format!("the coordinator did not say what is committed for {partition}")).await
    }

    /// The first offset that is kept of each partition, asked of its leader. A partition that doesn't exist is left out.
    /// `None` waits for ever.
    ///
    /// Errors: [`ErrorKind::InvalidArgument`] for one of another topic; [`ErrorKind::TimedOut`]; [`ErrorKind::Broker`] where
    /// the topic doesn't exist; [`ErrorKind::Closed`].
    pub async fn begin_offsets(
        &self,
        partitions: &[TopicPartition],
        timeout: Option<Duration>,
    ) -> Result<BTreeMap<TopicPartition, u64>> {
        self.bounds(partitions, timeout, |bounds| bounds.begin).await
    }

    /// One past the last offset of each partition that a reader of this isolation can come to, asked of its leader. Where that
    /// is a control record, no position ever equals it. Otherwise as [`begin_offsets`](Self::begin_offsets).
    pub async fn end_offsets(
        &self,
        partitions: &[TopicPartition],
        timeout: Option<Duration>,
    ) -> Result<BTreeMap<TopicPartition, u64>> {
        self.bounds(partitions, timeout, |bounds| bounds.end).await
    }

    async fn bounds(
        &self,
        partitions: &[TopicPartition],
        timeout: Option<Duration>,
        bound: impl Fn(LogBounds) -> u64,
    ) -> Result<BTreeMap<TopicPartition, u64>> {
        self.check_topic(partitions)?;
        let partitions = partitions.iter().cloned().collect();
        let ask = |answer| Question::Bounds { partitions, answer };
        let found = self.find_out(ask, timeout, "the leaders did not say where their logs begin and end").await?;
        Ok(found.into_iter().map(|(partition, bounds)| (partition, bound(bounds))).collect())
    }

    /// How many offsets each partition that is assigned has ahead of its position: 0 where there is nothing left to read,
    /// even if the log ends with a control record, which no committed reader ever comes to. `None` waits for ever.
    ///
    /// Errors: [`ErrorKind::TimedOut`]; [`ErrorKind::Closed`].
    pub async fn lag(&self, timeout: Option<Duration>) -> Result<BTreeMap<TopicPartition, u64>> {
        let owned = self.0.shared.delivery.partitions();
        let position = |owned: Owned| Position { offset: owned.position, more: owned.buffered > 0 };
        let positions = owned.into_iter().map(|(partition, owned)| (partition, position(owned))).collect();
        let ask = |answer| Question::Lag { positions, answer };
        self.find_out(ask, timeout, "the leaders did not say how far their logs reach").await
    }

    /// The group's members, their partitions and how far it is, asked of the coordinator and the leaders. `None` waits for
    /// ever.
    ///
    /// Errors: [`ErrorKind::InvalidState`] without a group; [`ErrorKind::TimedOut`]; [`ErrorKind::Closed`].
    pub async fn describe_group(&self, timeout: Option<Duration>) -> Result<GroupDescription> {
        self.check_group("a group description")?;
        let ask = |answer| Question::Group { answer };
        self.find_out(ask, timeout, "the coordinator did not describe the group").await
    }

    fn not_answered(&self, late: &str) -> Error {
        let why =
            self.0.shared.health.facts().troubles.get(&Part::Question).map(|trouble| format!(": {}", trouble.why));
        Error::new(ErrorKind::TimedOut, format!("{late} in time{}", why.unwrap_or_default()))
    }

    /// Has the engine ask, and waits.
    async fn find_out<T>(
        &self,
        ask: impl FnOnce(Answer<T>) -> Question,
        timeout: Option<Duration>,
        late: &str,
    ) -> Result<T> {
        if matches!(self.state(), State::Closing | State::Closed) {
            return Err(self.ended());
        }
        self.wake();
        let (answer, answered) = oneshot::channel();
        self.send(Message::Ask(ask(answer)))?;
        let answer = match deadline(timeout) {
            Some(deadline) => timeout_at(deadline, answered).await.map_err(|_| self.not_answered(late))?,
            None => answered.await,
        };
        answer.unwrap_or_else(|_| Err(self.ended()))
    }

    /// What the consumer is doing right now.
    pub fn statistics(&self) -> Statistics {
        let delivery = &self.0.shared.delivery;
        let (counts, facts) = (delivery.counts(), self.0.shared.health.facts().clone());
        let partition = |(partition, owned): (TopicPartition, Owned)| {
            let leader = facts.leaders.get(&partition).cloned();
            (
                partition,
                PartitionStatistics {
                    position: owned.position,
                    fetched: owned.fetched,
                    committed: owned.committed,
                    buffered_bytes: owned.buffered,
                    leader,
                },
            )
        };
        let age = |since: Instant| since.elapsed().as_secs_f64();
        let unreachable = facts.troubles.get(&Part::Coordinator).map(|trouble| age(trouble.since));
        let failing = facts.troubles.values().map(|trouble| age(trouble.since)).reduce(f64::max);
        Statistics {
            state: self.state(),
            member: facts.member.clone(),
            generation: facts.generation,
            local_generation: delivery.local_generation(),
            coordinator: facts.coordinator.clone(),
            coordinator_unreachable_seconds: unreachable,
            partitions: delivery.partitions().into_iter().map(partition).collect(),
            rebalances: facts.rebalances,
            reconnects: facts.reconnects,
            corrupt_frames: facts.corrupt_frames,
            records: counts.records,
            dropped_records: counts.dropped,
            skipped_offsets: counts.skipped,
            commits: facts.commits,
            buffered_bytes: delivery.buffered(),
            held_bytes: delivery.held(),
            last_error: self.fatal_error().map(|error| error.to_string()).or_else(|| facts.last_error.clone()),
            failing_seconds: failing,
            given_up: facts.given_up,
        }
    }
}
