//! Where to read on: decided for a whole assignment before anything of it is read. What the group has committed comes first;
//! where it has committed nothing, the reset policy decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cursus_wire::command::{CommitOffset, FetchOffset};
use cursus_wire::{BrokerError, Group, Meaning, Member, Topic};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::brokers::CallError;
use crate::brokers::{Coordinator, is_passing};
use crate::delivery::Start;
use crate::error::{Error, ErrorKind};
use crate::settings::Reset;
use crate::types::TopicPartition;

use super::logs::{Log, Logs, Probe};

/// Partition by partition, where to read on.
pub(crate) type Starts = BTreeMap<TopicPartition, Start>;

/// How many questions are on their way at once.
const AT_ONCE: usize = 256;

/// For how long, and a little more, a commit that was taken may not be seen yet.
const FOLLOWER_LAG: Duration = Duration::from_millis(200);

/// How many looks at where a read would start are on their way at once.
pub(super) const PROBES: usize = 8;

/// How long the earliest offset is waited for. Without it reading begins at 0, and the leader says where the log begins.
const EARLIEST_PATIENCE: Duration = Duration::from_secs(1);

/// Why there is no start.
#[derive(Debug)]
pub(crate) enum Unplaced {
    /// Somebody didn't answer, or not with what was needed: it can be tried again.
    Call(CallError),
    /// The application wants to know instead.
    Fatal(Error),
}

impl From<CallError> for Unplaced {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// A membership, as requests about offsets have to name it.
#[derive(Clone)]
pub(crate) struct Membership {
    pub(super) coordinator: Arc<Coordinator>,
    pub(super) topic: Topic,
    pub(super) group: Group,
    pub(super) member: Member,
    pub(super) generation: u64,
    /// Cancelled once the session knows that it is over: nothing is committed under it from then on.
    pub(super) over: CancellationToken,
}

impl Membership {
    pub(super) async fn fetch(&self, partition: u32) -> Result<u64, CallError> {
        fetch(&self.coordinator, &self.topic, &self.group, partition).await
    }

    pub(super) async fn commit(&self, partition: u32, offset: u64) -> Result<(), CallError> {
        let request = CommitOffset {
            topic: self.topic.clone(),
            partition,
            group: self.group.clone(),
            offset,
            member: self.member.clone(),
            generation: Some(self.generation),
        };
        let over = self.over.clone();
        self.coordinator.call_while(&request, Arc::new(move || !over.is_cancelled())).await.map(drop)
    }
}

/// What came of steps that were taken at once, or why not all of them succeeded. That the membership is over ends all of them
/// at once, and counts more than anything that may pass: whoever has heard it commits nothing more.
async fn all_of<T>(steps: impl Iterator<Item = impl Future<Output = Result<T, Unplaced>>>) -> Result<Vec<T>, Unplaced> {
    let mut steps: FuturesUnordered<_> = steps.collect();
    let (mut all, mut failed) = (Vec::new(), None);
    while let Some(result) = steps.next().await {
        match result {
            Ok(one) => all.push(one),
            Err(Unplaced::Call(CallError::Refused(error))) if is_fencing(&error) => {
                return Err(CallError::Refused(error).into());
            }
            Err(other) => failed = failed.or(Some(other)),
        }
    }
    failed.map_or(Ok(all), Err)
}

/// Whether a refusal says that the membership, or its group, is over.
fn is_fencing(error: &BrokerError) -> bool {
    matches!(error.meaning(), Meaning::GenerationMismatch { .. } | Meaning::MemberNotFound | Meaning::GroupNotFound)
}

pub(super) async fn fetch(
    coordinator: &Coordinator,
    topic: &Topic,
    group: &Group,
    partition: u32,
) -> Result<u64, CallError> {
    let request = FetchOffset { topic: topic.clone(), partition, group: group.clone() };
    coordinator.call(&request).await.map(|reply| reply.offset)
}

/// What has to be known before an assignment is installed.
pub(crate) struct Preparation {
    pub(super) policy: Policy,
    pub(super) partitions: Vec<u32>,
    /// Proven processed under the assignment before, and not committed there.
    pub(super) carried: BTreeMap<TopicPartition, u64>,
    /// Committed as far as this consumer knows.
    pub(super) known: BTreeMap<TopicPartition, u64>,
    /// Where the application wants to begin, of partitions that it assigned itself.
    pub(super) chosen: BTreeMap<u32, u64>,
}

impl Preparation {
    pub(super) async fn run(self) -> Result<Starts, Unplaced> {
        let mut starts = Starts::new();
        let mut open = BTreeSet::new();
        let topic = &self.policy.logs.topic;
        let mut place = |partition: u32, position: Option<u64>, committed| match position {
            Some(position) => {
                starts.insert(TopicPartition::new(topic.clone(), partition), Start { position, committed });
            }
            None => drop(open.insert(partition)),
        };
        match &self.policy.membership {
            Some(membership) => {
                let carried = self.commit_carried(membership).await?;
                for some in self.partitions.chunks(AT_ONCE) {
                    let asked = some.iter().map(|partition| self.committed(membership, *partition, &carried));
                    for (partition, offset) in some.iter().zip(try_join_all(asked).await?) {
                        // 0 says "never committed" as well as "committed 0".
                        let committed = (offset > 0).then_some(offset);
                        place(*partition, committed, committed);
                    }
                }
            }
            None => self.partitions.iter().for_each(|partition| {
                place(*partition, self.chosen.get(partition).copied(), None);
            }),
        }
        starts.extend(self.policy.begin(&open).await?);
        Ok(starts)
    }

    /// What is committed for a partition, as far as the coordinator can be believed.
    async fn committed(
        &self,
        membership: &Membership,
        partition: u32,
        carried: &BTreeMap<TopicPartition, u64>,
    ) -> Result<u64, CallError> {
        let name = TopicPartition::new(membership.topic.clone(), partition);
        let known = [carried, &self.known].into_iter().filter_map(|known| known.get(&name).copied()).max();
        let offset = membership.fetch(partition).await?;
        if known.is_none_or(|known| offset >= known) {
            return Ok(offset);
        }
        // A follower may answer with what was before our last commit, for a moment. What it still says after that moment
        // is the truth, even where we remember better: the broker may have come back without its data.
        sleep(FOLLOWER_LAG).await;
        membership.fetch(partition).await
    }

    /// Commits what was processed before the rebalance and is still ours, so that it isn't read twice. One by one: another
    /// member may have committed beyond it in between, and a batch would fail as a whole.
    async fn commit_carried(&self, membership: &Membership) -> Result<BTreeMap<TopicPartition, u64>, Unplaced> {
        let ours = self.carried.iter().filter(|(partition, _)| self.partitions.contains(&partition.partition));
        let commits = ours.map(|(partition, offset)| async move {
            match membership.commit(partition.partition, *offset).await {
                Ok(()) => Ok(Some((partition.clone(), *offset))),
                Err(CallError::Refused(error)) if !is_fencing(&error) && !is_passing(&error.meaning()) => {
                    // Somebody was further, or the broker won't have it: it costs a record read twice at most.
                    tracing::debug!(%partition, offset, %error, "not committed over the rebalance");
                    Ok(None)
                }
                Err(error) => Err(error.into()),
            }
        });
        Ok(all_of(commits).await?.into_iter().flatten().collect())
    }
}

/// The reset policy, and whom to ask.
#[derive(Clone)]
pub(crate) struct Policy {
    pub(super) reset: Reset,
    pub(super) logs: Logs,
    /// Nothing where there is no group.
    pub(super) membership: Option<Membership>,
}

impl Policy {
    /// Where to begin on partitions of which FETCH_OFFSET says 0, and on those that nobody said anything of.
    async fn begin(&self, partitions: &BTreeSet<u32>) -> Result<Starts, Unplaced> {
        if partitions.is_empty() {
            return Ok(Starts::new());
        }
        if self.reset == Reset::Earliest {
            let logs = timeout(EARLIEST_PATIENCE, self.logs.of(partitions)).await;
            let logs = logs.ok().and_then(Result::ok).unwrap_or_default();
            let earliest = |partition: &u32| logs.get(partition).map_or(0, |log| log.bounds.earliest);
            return Ok(partitions.iter().map(|partition| self.start(*partition, earliest(partition), None)).collect());
        }
        let logs = self.logs.of(partitions).await?;
        if let Some(missing) = partitions.iter().find(|partition| !logs.contains_key(partition)) {
            let why = format!("no broker knows {}-{missing}", self.logs.topic);
            return Err(CallError::Unsent(why).into());
        }
        if self.membership.is_some() {
            // A commit of 0 may have been taken a moment ago, and not be seen yet.
            sleep(FOLLOWER_LAG).await;
        }
        let (mut starts, all) = (Starts::new(), logs.into_iter().collect::<Vec<_>>());
        // Each may open a connection of its own, of which a broker has few.
        for some in all.chunks(PROBES) {
            let begun = some.iter().map(|(partition, log)| self.begin_one(*partition, log));
            starts.extend(all_of(begun).await?);
        }
        Ok(starts)
    }

    async fn begin_one(&self, partition: u32, log: &Log) -> Result<(TopicPartition, Start), Unplaced> {
        let end = self.logs.end(&log.bounds);
        if let Some(membership) = &self.membership {
            // The group's committed offset beats the one that is asked for: a start below the end was committed. Where
            // the log is empty, "never" and "0" are the same place.
            let committed = match end {
                0 => true,
                _ => match self.logs.probe(partition, &log.leader, &membership.group, end).await? {
                    Probe::At(first) => first < end,
                    // What is too large to be shown lies before the end: nothing lies behind it.
                    Probe::BelowRetention | Probe::TooLarge => true,
                    Probe::Nothing => false,
                },
            };
            if committed {
                // With latest a 0 says so to everybody who asks later, when the log isn't empty any more. And where the first
                // answer was from before a commit, this one is not.
                let offset = match self.reset {
                    Reset::Latest => self.pin(membership, partition, 0).await?,
                    _ => membership.fetch(partition).await?,
                };
                let committed = (offset > 0).then_some(offset);
                return Ok(self.start(partition, committed.unwrap_or(log.bounds.earliest), committed));
            }
        }
        match self.reset {
            Reset::Error => Err(Unplaced::Fatal(Error::new(
                ErrorKind::OffsetGap,
                format!(
                    "nothing is committed for {}-{partition}, and auto_offset_reset is error. Commit where to begin, or set it to earliest or latest",
                    self.logs.topic
                ),
            ))),
            _ => {
                let committed = match &self.membership {
                    Some(membership) => Some(self.pin(membership, partition, end).await?),
                    None => None,
                };
                Ok(self.start(partition, committed.unwrap_or(end), committed.filter(|offset| *offset > 0)))
            }
        }
    }

    /// Commits a start that was resolved to the end of the log, before anything is read: what is written from now on is
    /// nobody's to miss, whoever reads it. Returns what is committed then.
    async fn pin(&self, membership: &Membership, partition: u32, offset: u64) -> Result<u64, CallError> {
        match membership.commit(partition, offset).await {
            Ok(()) => Ok(offset),
            // Somebody was there before: theirs counts.
            Err(CallError::Refused(error)) if error.meaning() == Meaning::OffsetRegression => {
                membership.fetch(partition).await
            }
            Err(error) => Err(error),
        }
    }

    /// Where to go on when the leader can't serve a position: below what it keeps, or beyond its end.
    pub(super) async fn replace(&self, partition: u32, position: u64) -> Result<u64, Unplaced> {
        let logs = self.logs.of(&BTreeSet::from([partition])).await?;
        let name = TopicPartition::new(self.logs.topic.clone(), partition);
        let log = logs.get(&partition).ok_or_else(|| CallError::Unsent(format!("no broker knows {name}")))?;
        let (earliest, end) = (log.bounds.earliest, self.logs.end(&log.bounds));
        if (earliest..=end).contains(&position) {
            return Ok(position);
        }
        match (self.reset, &self.membership) {
            (Reset::Error, _) => Err(Unplaced::Fatal(Error::new(
                ErrorKind::OffsetGap,
                format!(
                    "{name} can't be read from {position}: the broker keeps {earliest} to {end}, and auto_offset_reset is error"
                ),
            ))),
            (Reset::Earliest, _) => Ok(earliest),
            (Reset::Latest, None) => Ok(end),
            (Reset::Latest, Some(membership)) => Ok(self.pin(membership, partition, end).await?.max(earliest)),
        }
    }

    fn start(&self, partition: u32, position: u64, committed: Option<u64>) -> (TopicPartition, Start) {
        (TopicPartition::new(self.logs.topic.clone(), partition), Start { position, committed })
    }
}
