//! Where to read on: the committed offsets of an assignment, asked of the coordinator before anything is read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cursus_wire::command::{CommitOffset, FetchOffset};
use cursus_wire::{Group, Meaning, Member, Topic};
use futures_util::future::{join_all, try_join_all};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::batch::Fence;
use crate::brokers::CallError;
use crate::brokers::{Coordinator, is_passing};
use crate::error::{Error, ErrorKind, Result};
use crate::types::TopicPartition;

use super::Outcome;
use super::session::Session;

/// Partition by partition: where to read on, and what is committed, if anything is.
pub(crate) type Positions = BTreeMap<TopicPartition, (u64, Option<u64>)>;

/// How many questions are on their way at once.
const AT_ONCE: usize = 256;

/// For how long, and a little more, a commit that was taken may not be seen yet.
const FOLLOWER_LAG: Duration = Duration::from_millis(200);

/// What has to be known before an assignment is installed.
pub(crate) struct Preparation {
    pub(super) coordinator: Arc<Coordinator>,
    pub(super) topic: Topic,
    pub(super) group: Group,
    pub(super) member: Member,
    pub(super) generation: u64,
    pub(super) partitions: Vec<u32>,
    /// Proven processed under the assignment before, and not committed there.
    pub(super) carried: BTreeMap<TopicPartition, u64>,
    /// Committed as far as this consumer knows.
    pub(super) known: BTreeMap<TopicPartition, u64>,
}

impl Preparation {
    pub(super) async fn run(self) -> Result<Positions, CallError> {
        let carried = self.commit_carried().await?;
        let mut fetched = Vec::new();
        for some in self.partitions.chunks(AT_ONCE) {
            fetched.extend(try_join_all(some.iter().map(|partition| self.committed(*partition, &carried))).await?);
        }
        let position = |(partition, committed): (TopicPartition, u64)| {
            // 0 says "never committed" as well as "committed 0". Either way the earliest record kept is next: where 0 is no
            // longer kept, the leader says so and what the earliest is.
            (partition, (committed, (committed > 0).then_some(committed)))
        };
        Ok(fetched.into_iter().map(position).collect())
    }

    /// What is committed for a partition, as far as the coordinator can be believed.
    async fn committed(
        &self,
        partition: u32,
        carried: &BTreeMap<TopicPartition, u64>,
    ) -> Result<(TopicPartition, u64), CallError> {
        let partition = TopicPartition::new(self.topic.clone(), partition);
        let known = [carried, &self.known].into_iter().filter_map(|known| known.get(&partition).copied()).max();
        let mut offset = fetch(&self.coordinator, &self.topic, &self.group, partition.partition).await?;
        if known.is_some_and(|known| offset < known) {
            // A follower may answer with what was before our last commit, for a moment. What it still says after that moment
            // is the truth, even where we remember better: the broker may have come back without its data.
            sleep(FOLLOWER_LAG).await;
            offset = fetch(&self.coordinator, &self.topic, &self.group, partition.partition).await?;
        }
        Ok((partition, offset))
    }

    /// Commits what was processed before the rebalance and is still ours, so that it isn't read twice. One by one: another
    /// member may have committed beyond it in between, and a batch would fail as a whole.
    async fn commit_carried(&self) -> Result<BTreeMap<TopicPartition, u64>, CallError> {
        let ours = self.carried.iter().filter(|(partition, _)| self.partitions.contains(&partition.partition));
        let results = join_all(ours.map(|(partition, offset)| async move {
            let request = CommitOffset {
                topic: self.topic.clone(),
                partition: partition.partition,
                group: self.group.clone(),
                offset: *offset,
                member: self.member.clone(),
                generation: Some(self.generation),
            };
            (partition, *offset, self.coordinator.call(&request).await)
        }))
        .await;
        let mut committed = BTreeMap::new();
        for (partition, offset, result) in results {
            match result {
                Ok(_) => {
                    committed.insert(partition.clone(), offset);
                }
                Err(CallError::Refused(error)) => match error.meaning() {
                    Meaning::GenerationMismatch { .. } | Meaning::MemberNotFound | Meaning::GroupNotFound => {
                        return Err(CallError::Refused(error));
                    }
                    meaning if is_passing(&meaning) => return Err(CallError::Refused(error)),
                    // Somebody was further, or the broker won't have it: it costs a record read twice at most.
                    _ => tracing::debug!(%partition, offset, %error, "not committed over the rebalance"),
                },
                Err(lost) => return Err(lost),
            }
        }
        Ok(committed)
    }
}

async fn fetch(coordinator: &Coordinator, topic: &Topic, group: &Group, partition: u32) -> Result<u64, CallError> {
    let request = FetchOffset { topic: topic.clone(), partition, group: group.clone() };
    coordinator.call(&request).await.map(|reply| reply.offset)
}

impl Session {
    /// Looks up again what is committed, after a membership was resumed. Positions stay where they are.
    pub(super) fn refresh_committed(&mut self) {
        let owned: Vec<(TopicPartition, Fence)> = self
            .common
            .shared
            .delivery
            .partitions()
            .into_iter()
            .map(|(partition, owned)| (partition, owned.fence))
            .collect();
        let (coordinator, topic, group) = (Arc::clone(&self.coordinator), self.topic.clone(), self.group.clone());
        self.run(async move {
            let fetched =
                join_all(owned.into_iter().map(|(partition, fence)| {
                    let (coordinator, topic, group) = (&coordinator, &topic, &group);
                    async move {
                        Some((fetch(coordinator, topic, group, partition.partition).await.ok()?, partition, fence))
                    }
                }))
                .await;
            // One that failed stays as it was known; the membership notices a lost coordinator by itself.
            let known = fetched.into_iter().flatten().filter(|(offset, _, _)| *offset > 0);
            Outcome::Refreshed(known.map(|(offset, partition, fence)| (partition, (fence, offset))).collect())
        });
    }

    /// Asks the coordinator what is committed for any partition, on the application's behalf.
    pub(super) fn look_up_committed(
        &mut self,
        partition: TopicPartition,
        answer: oneshot::Sender<Result<Option<u64>>>,
    ) {
        let (coordinator, topic, group) = (Arc::clone(&self.coordinator), self.topic.clone(), self.group.clone());
        let mut backoff = self.common.shared.backoff();
        // A group that nobody has joined yet has committed nothing. A member knows better than a coordinator that denies it.
        let may_be_missing = self.machine.identity().is_none();
        self.run(async move {
            while !answer.is_closed() {
                let result = match fetch(&coordinator, &topic, &group, partition.partition).await {
                    Ok(offset) => Ok((offset > 0).then_some(offset)),
                    Err(CallError::Refused(error)) => match error.meaning() {
                        Meaning::GroupNotFound if may_be_missing => Ok(None),
                        meaning if is_passing(&meaning) || meaning == Meaning::GroupNotFound => {
                            sleep(backoff.next()).await;
                            continue;
                        }
                        _ => Err(Error::from_broker(
                            ErrorKind::Broker,
                            format!("the committed offset of {partition} can't be read: {error}"),
                            error,
                        )),
                    },
                    Err(CallError::Lost(_)) => {
                        sleep(backoff.next()).await;
                        continue;
                    }
                    Err(CallError::Corrupt(why)) => Err(Error::new(
                        ErrorKind::Protocol,
                        format!("the committed offset of {partition} can't be read: {why}"),
                    )),
                };
                let _ = answer.send(result);
                break;
            }
            Outcome::Nothing
        });
    }
}
