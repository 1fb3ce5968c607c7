//! Where logs begin and end: asked of the partitions' leaders, since followers lag.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cursus_wire::command::{Consume, Isolation, ListOffsets, Metadata};
use cursus_wire::reply::Bounds;
use cursus_wire::{Group, Meaning, Member, Topic};
use futures_util::future::join_all;

use crate::brokers::{Address, CallError, Links, Purpose};

/// The logs of a topic, for questions. Holds no state: who leads what is asked each time.
#[derive(Clone)]
pub(crate) struct Logs {
    pub(super) links: Arc<Links>,
    pub(super) topic: Topic,
    pub(super) isolation: Isolation,
    /// A member name for requests that want one. The broker doesn't look it up.
    pub(super) member: Member,
    /// A group that has committed nothing, so that a probe starts where it is told to.
    pub(super) stranger: Group,
}

/// One partition's log, and who leads it.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    pub(crate) leader: Address,
    pub(crate) bounds: Bounds,
}

/// What a look at one record tells of where reading starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The first record that is visible from there.
    At(u64),
    /// There is none.
    Nothing,
    /// The start is below what is kept.
    BelowRetention,
    /// There is one, and it is too large for a reply.
    TooLarge,
}

/// What METADATA says of a topic, in addresses that can be used.
#[derive(Debug, Clone)]
pub(crate) struct Leadership {
    pub(crate) leaders: Vec<Option<Address>>,
    /// Counts each partition's leaders; all 0 where the broker doesn't say.
    pub(crate) epochs: Vec<u64>,
}

impl Leadership {
    pub(super) fn new(metadata: &cursus_wire::reply::Metadata, speaker: &Address) -> Self {
        let address = |leader: &String| Some(leader.parse::<Address>().ok()?.seen_from(speaker));
        let mut epochs = metadata.epochs.clone();
        epochs.resize(metadata.leaders.len(), 0);
        Self { leaders: metadata.leaders.iter().map(address).collect(), epochs }
    }
}

impl Logs {
    /// Who leads what.
    pub(super) async fn leadership(&self) -> Result<Leadership, CallError> {
        let (metadata, speaker) = self.links.ask_any(&Metadata { topic: self.topic.clone() }).await?;
        Ok(Leadership::new(&metadata, &speaker))
    }

    /// The logs of these partitions. One that the topic doesn't have is left out.
    pub(super) async fn of(&self, partitions: &BTreeSet<u32>) -> Result<BTreeMap<u32, Log>, CallError> {
        let leadership = self.leadership().await?;
        let (logs, problem) = self.led_by(&leadership, partitions).await;
        match problem {
            Some(problem) => Err(problem),
            None => Ok(logs),
        }
    }

    /// Those of them whose leader answers, and why the others are missing, if any are.
    pub(super) async fn led_by(
        &self,
        leadership: &Leadership,
        partitions: &BTreeSet<u32>,
    ) -> (BTreeMap<u32, Log>, Option<CallError>) {
        let mut problem = None;
        let mut by_leader: BTreeMap<&Address, BTreeSet<u32>> = BTreeMap::new();
        for partition in partitions {
            match leadership.leaders.get(*partition as usize) {
                Some(Some(leader)) => drop(by_leader.entry(leader).or_default().insert(*partition)),
                Some(None) => problem = Some(CallError::Unsent(format!("no broker leads {}-{partition}", self.topic))),
                None => {}
            }
        }
        let answers = join_all(by_leader.into_iter().map(|(leader, wanted)| async move {
            let partition = if wanted.len() == 1 { wanted.first().copied() } else { None };
            let request = ListOffsets { topic: self.topic.clone(), partition };
            let link = self.links.control(leader, Purpose::Questions);
            (leader, wanted, link.call(&request, Duration::ZERO).await)
        }))
        .await;
        let mut logs = BTreeMap::new();
        for (leader, wanted, answer) in answers {
            match answer {
                Ok(offsets) => {
                    let asked = offsets.partitions.into_iter().filter(|bounds| wanted.contains(&bounds.partition));
                    logs.extend(asked.map(|bounds| (bounds.partition, Log { leader: leader.clone(), bounds })));
                }
                Err(error) => problem = Some(error),
            }
        }
        (logs, problem)
    }

    /// One past the last offset that a reader of this isolation can come to.
    pub(super) fn end(&self, bounds: &Bounds) -> u64 {
        match self.isolation {
            Isolation::ReadCommitted => bounds.latest,
            Isolation::ReadUncommitted => bounds.log_end,
        }
    }

    /// Where a reader of this group that asks for an offset would start. A group's committed offset beats what is asked for.
    pub(super) async fn probe(
        &self,
        partition: u32,
        leader: &Address,
        group: &Group,
        offset: u64,
    ) -> Result<Probe, CallError> {
        let request = Consume {
            topic: self.topic.clone(),
            partition,
            offset,
            member: self.member.clone(),
            group: Some(group.clone()),
            generation: None,
            isolation: Some(self.isolation),
            batch: Some(1),
            wait_ms: None,
        };
        // The connection's own cursor would beat both.
        match self.links.fresh(leader).call(&request, Duration::ZERO).await {
            Ok(records) if records.0.is_empty() => Ok(Probe::Nothing),
            Ok(records) => Ok(Probe::At(records.0.offset(0))),
            Err(CallError::Refused(error)) => match error.meaning() {
                Meaning::OutOfRange { .. } => Ok(Probe::BelowRetention),
                Meaning::ReplyTooLarge => Ok(Probe::TooLarge),
                _ => Err(CallError::Refused(error)),
            },
            Err(error) => Err(error),
        }
    }
}
