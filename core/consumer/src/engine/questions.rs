//! What an application asks, and brokers answer: offsets, bounds of logs, the group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cursus_wire::command::GroupStatus;
use cursus_wire::{Group, Meaning, Topic, reply as wire};
use futures_util::future::try_join_all;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::brokers::{CallError, Coordinator, is_passing};
use crate::error::{Error, ErrorKind, Result};
use crate::health::Part;
use crate::types::{GroupDescription, GroupMember, LogBounds, PartitionDescription, TopicPartition};

use super::Outcome;
use super::logs::{Log, Logs, Probe};
use super::session::Session;
use super::starts::{PROBES, fetch};

/// Where an answer goes.
pub(crate) type Answer<T> = oneshot::Sender<Result<T>>;

/// A question of the application.
pub(crate) enum Question {
    /// What is committed for a partition.
    Committed { partition: TopicPartition, answer: Answer<Option<u64>> },
    /// Where the logs of these partitions begin and end.
    Bounds { partitions: BTreeSet<TopicPartition>, answer: Answer<BTreeMap<TopicPartition, LogBounds>> },
    /// How far these positions are behind the ends of their logs.
    Lag { positions: BTreeMap<TopicPartition, Position>, answer: Answer<BTreeMap<TopicPartition, u64>> },
    /// Who is in the group, and how far it is.
    Group { answer: Answer<GroupDescription> },
}

/// A position, and whether it is known already that there is something to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    pub(crate) offset: u64,
    pub(crate) more: bool,
}

impl Question {
    /// What to say where nobody can be asked any more.
    pub(super) fn refuse(self, error: Error) {
        match self {
            Self::Committed { answer, .. } => drop(answer.send(Err(error))),
            Self::Bounds { answer, .. } => drop(answer.send(Err(error))),
            Self::Lag { answer, .. } => drop(answer.send(Err(error))),
            Self::Group { answer } => drop(answer.send(Err(error))),
        }
    }
}

/// Whom to ask.
#[derive(Clone)]
struct Asked {
    coordinator: Arc<Coordinator>,
    topic: Topic,
    group: Group,
    logs: Logs,
    /// A group that nobody has joined yet has committed nothing. A member knows better than a coordinator that denies it.
    may_be_missing: bool,
}

impl Session {
    pub(super) fn ask_for_application(&mut self, question: Question) {
        let asked = Asked {
            coordinator: Arc::clone(&self.coordinator),
            topic: self.topic.clone(),
            group: self.group.clone(),
            logs: self.logs(),
            may_be_missing: self.machine.identity().is_none(),
        };
        match question {
            Question::Committed { partition, answer } => {
                let what = format!("the committed offset of {partition}");
                self.find_out(what, answer, move || {
                    let (asked, partition) = (asked.clone(), partition.partition);
                    async move { asked.committed(partition).await }
                });
            }
            Question::Bounds { partitions, answer } => {
                let what = format!("where {} begins and ends", self.topic);
                self.find_out(what, answer, move || {
                    let (asked, partitions) = (asked.clone(), partitions.clone());
                    async move { asked.bounds(&partitions).await }
                });
            }
            Question::Lag { positions, answer } => {
                let what = format!("how far {} is ahead", self.topic);
                self.find_out(what, answer, move || {
                    let (asked, positions) = (asked.clone(), positions.clone());
                    async move { asked.lag(&positions).await }
                });
            }
            Question::Group { answer } => {
                let what = format!("what group {:?} does", self.group.as_str());
                self.find_out(what, answer, move || {
                    let asked = asked.clone();
                    async move { asked.describe().await }
                });
            }
        }
    }

    /// Asks until there is an answer, or nobody waits for one any more.
    fn find_out<T: Send + 'static, F: Future<Output = Result<T, CallError>> + Send>(
        &mut self,
        what: String,
        answer: Answer<T>,
        ask: impl Fn() -> F + Send + 'static,
    ) {
        let mut backoff = self.common.shared.backoff();
        let health = Arc::clone(&self.common.shared.health);
        self.run(async move {
            while !answer.is_closed() {
                let result = match ask().await {
                    Ok(found) => Ok(found),
                    Err(CallError::Unsent(why) | CallError::Withdrawn(why) | CallError::Lost(why)) => {
                        health.unreachable(Part::Question, &why);
                        sleep(backoff.next()).await;
                        continue;
                    }
                    Err(CallError::Refused(error)) => match error.meaning() {
                        meaning if is_passing(&meaning) || meaning == Meaning::GroupNotFound => {
                            health.trouble(Part::Question, &error.to_string());
                            sleep(backoff.next()).await;
                            continue;
                        }
                        _ => {
                            let message = format!("the broker doesn't say {what}: {error}");
                            Err(Error::from_broker(ErrorKind::Broker, message, error))
                        }
                    },
                    Err(CallError::Corrupt(why)) => {
                        Err(Error::new(ErrorKind::Protocol, format!("the broker doesn't say {what}: {why}")))
                    }
                };
                let _ = answer.send(result);
                break;
            }
            // It is answered, or nobody waits for it any more.
            health.recovered(&Part::Question);
            Outcome::Nothing
        });
    }
}

impl Asked {
    async fn committed(&self, partition: u32) -> Result<Option<u64>, CallError> {
        match fetch(&self.coordinator, &self.topic, &self.group, partition).await {
            Ok(offset) => Ok((offset > 0).then_some(offset)),
            Err(CallError::Refused(error)) if self.may_be_missing && error.meaning() == Meaning::GroupNotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn bounds(
        &self,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<BTreeMap<TopicPartition, LogBounds>, CallError> {
        let numbers = partitions.iter().map(|partition| partition.partition).collect();
        let mut logs = self.logs.of(&numbers).await?;
        let bounds = |partition: &TopicPartition| {
            let log = logs.remove(&partition.partition)?;
            let (begin, end) = (log.bounds.earliest, self.logs.end(&log.bounds));
            Some((partition.clone(), LogBounds { begin, end }))
        };
        Ok(partitions.iter().filter_map(bounds).collect())
    }

    /// A committed reader never comes to an end that is a control record, or what an aborted transaction left: where nothing
    /// visible is left, nothing is behind.
    async fn lag(
        &self,
        positions: &BTreeMap<TopicPartition, Position>,
    ) -> Result<BTreeMap<TopicPartition, u64>, CallError> {
        let logs = self.logs.of(&positions.keys().map(|partition| partition.partition).collect()).await?;
        let mut lags = BTreeMap::new();
        let all: Vec<_> = positions.iter().collect();
        for some in all.chunks(PROBES) {
            let asked = some.iter().filter_map(|(name, position)| {
                let log = logs.get(&name.partition)?;
                Some(async move { Ok::<_, CallError>(((*name).clone(), self.behind(name, **position, log).await?)) })
            });
            lags.extend(try_join_all(asked).await?);
        }
        Ok(lags)
    }

    async fn behind(&self, name: &TopicPartition, position: Position, log: &Log) -> Result<u64, CallError> {
        let end = self.logs.end(&log.bounds);
        // Below what is kept, reading goes on where the log begins.
        let from = position.offset.max(log.bounds.earliest);
        let behind = end.saturating_sub(from);
        if behind == 0 || position.more {
            return Ok(behind);
        }
        let nothing = match self.logs.probe(name.partition, &log.leader, &self.logs.stranger, from).await? {
            Probe::At(first) => first >= end,
            Probe::Nothing => true,
            Probe::BelowRetention | Probe::TooLarge => false,
        };
        Ok(if nothing { 0 } else { behind })
    }

    async fn describe(&self) -> Result<GroupDescription, CallError> {
        let status = match self.coordinator.call(&GroupStatus { group: self.group.clone() }).await {
            // A group that nobody has joined yet is one without members and offsets.
            Err(CallError::Refused(error)) if self.may_be_missing && error.meaning() == Meaning::GroupNotFound => {
                wire::GroupStatus::new(&self.group, &self.topic, "Dead", 0, 0, Vec::new())
            }
            answer => answer?,
        };
        let leadership = self.logs.leadership().await?;
        let numbers: BTreeSet<u32> = (0..leadership.leaders.len() as u32).collect();
        let committed = try_join_all(numbers.iter().map(|partition| self.committed(*partition))).await?;
        let positions: BTreeMap<TopicPartition, Position> = numbers
            .iter()
            .zip(&committed)
            .map(|(partition, committed)| {
                (self.partition(*partition), Position { offset: committed.unwrap_or(0), more: false })
            })
            .collect();
        let lags = self.lag(&positions).await?;
        let owner = |partition: u32| {
            let owns = status.members.iter().find(|member| member.assignments.contains(&partition))?;
            Some(owns.member_id.clone())
        };
        let partitions = numbers.iter().zip(committed).map(|(partition, committed)| {
            let name = self.partition(*partition);
            let lag = lags.get(&name).copied();
            (name, PartitionDescription { member: owner(*partition), committed, lag })
        });
        let member = |member: &cursus_wire::reply::MemberStatus| GroupMember {
            member: member.member_id.clone(),
            partitions: member.assignments.iter().map(|partition| self.partition(*partition)).collect(),
        };
        Ok(GroupDescription {
            group: self.group.to_string(),
            topic: status.topic_name.clone(),
            state: status.state.clone(),
            generation: status.generation,
            members: status.members.iter().map(member).collect(),
            partitions: partitions.collect(),
        })
    }

    fn partition(&self, partition: u32) -> TopicPartition {
        TopicPartition::new(self.topic.clone(), partition)
    }
}
