//! The readers of a session: starting them where the leader is, and deciding where to go on when one ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cursus_wire::Meaning;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::reader::{End, Reader, Sizing, reader_group};
use crate::batch::Fence;
use crate::brokers::Address;
use crate::error::{Error, ErrorKind};
use crate::health::Part;
use crate::types::TopicPartition;

use super::session::Session;
use super::{Outcome, ReaderEnd};

/// How many redirects in a row are followed at once. More are a cluster that doesn't know itself.
const REDIRECTS: u32 = 3;

/// What is being read.
#[derive(Default)]
pub(crate) struct Readings(BTreeMap<TopicPartition, Reading>);

struct Reading {
    fence: Fence,
    task: Option<JoinHandle<()>>,
    sizing: Sizing,
    leader: Option<Address>,
    /// Readers that ended since the last reply.
    failures: Arc<AtomicU32>,
}

impl Readings {
    pub(super) fn fence(&self, partition: &TopicPartition) -> Option<Fence> {
        self.0.get(partition).map(|reading| reading.fence)
    }
}

impl Session {
    /// Reads every partition of the assignment that was just installed.
    pub(super) fn begin_reading(&mut self) {
        let settings = &self.common.shared.settings;
        let (most, buffer) = (settings.fetch_batch_size, settings.max_buffered_bytes);
        let owned = self.common.shared.delivery.partitions();
        for (partition, owned) in &owned {
            let sizing = Sizing::new(most, buffer, Arc::clone(&self.record_bytes));
            let reading = Reading { fence: owned.fence, task: None, sizing, leader: None, failures: Arc::default() };
            self.readings.0.insert(partition.clone(), reading);
        }
        for (partition, owned) in owned {
            self.read(&partition, owned.fence);
        }
    }

    /// Cancels all readers; what is returned ends when they have.
    pub(super) fn stop_reading(&mut self) -> Vec<JoinHandle<()>> {
        self.forget_waiting_readers();
        self.common.links.retire_reading();
        let readings = std::mem::take(&mut self.readings.0);
        let mut facts = self.common.shared.health.facts();
        for partition in readings.keys() {
            facts.leaders.remove(partition);
            facts.troubles.remove(&Part::Partition(partition.clone()));
        }
        let old: Vec<_> = readings.into_values().filter_map(|reading| reading.task).collect();
        old.iter().for_each(JoinHandle::abort);
        old
    }

    /// Starts the reader of a partition, if the fence is still its own.
    pub(super) fn read(&mut self, partition: &TopicPartition, fence: Fence) {
        let Some((member, generation)) =
            self.machine.identity().map(|(member, generation)| (member.clone(), generation))
        else {
            return;
        };
        let Some(owned) = self.common.shared.delivery.partition(partition).filter(|owned| owned.fence == fence) else {
            return;
        };
        let Some(leader) = self.leaders.of(partition.partition).cloned() else {
            self.common
                .shared
                .health
                .trouble(Part::Partition(partition.clone()), &format!("no broker leads {partition}"));
            return self.read_after_metadata(partition.clone());
        };
        let Some(reading) = self.readings.0.get_mut(partition).filter(|reading| reading.fence == fence) else { return };
        let seat = self.common.links.seat(&leader, partition);
        // Where the position is what is committed, the broker starts there by itself. Everywhere else the committed offset
        // would win over the one we ask for, so the request names a group that has none.
        let at_committed = owned.fetched == owned.committed.unwrap_or(0);
        let group = if at_committed { self.group.clone() } else { reader_group(&self.group, &member) };
        let health = Arc::clone(&self.common.shared.health);
        let (part, failures) = (Part::Partition(partition.clone()), Arc::clone(&reading.failures));
        let reader = Reader {
            delivery: Arc::clone(&self.common.shared.delivery),
            seat,
            partition: partition.clone(),
            fence,
            position: owned.fetched,
            group,
            member,
            generation,
            isolation: self.common.shared.settings.isolation(),
            wait: Duration::from_millis(self.common.shared.settings.fetch_wait_ms),
            sizing: reading.sizing.clone(),
            on_answer: Box::new(move || {
                failures.store(0, Ordering::Relaxed);
                health.recovered(&part);
            }),
        };
        self.common.shared.health.facts().leaders.insert(partition.clone(), leader.to_string());
        reading.leader = Some(leader);
        let (ends, session, partition) = (self.common.ends.clone(), self.id, partition.clone());
        let task = async move {
            let (end, sizing) = reader.run().await;
            let _ = ends.send(ReaderEnd { session, partition, fence, end, sizing });
        };
        reading.task = Some(self.common.tasks.spawn_on(task, &self.common.shared.environment.runtime));
    }

    /// A reader has ended: decide where to go on, and when.
    pub(crate) fn on_reader_end(&mut self, ended: ReaderEnd) {
        let ReaderEnd { partition, fence, end, sizing, .. } = ended;
        let Some(reading) = self.readings.0.get_mut(&partition).filter(|reading| reading.fence == fence) else {
            return;
        };
        reading.task = None;
        let failures = reading.failures.fetch_add(1, Ordering::Relaxed);
        if failures == 0 {
            // The reader before this one had got somewhere: pauses start short again.
            self.leaders.backoff.reset();
        }
        let single = matches!(end, End::TooLarge { records: 1, .. });
        reading.sizing = sizing;
        let leader = reading.leader.clone();
        let trouble = |why: &str| self.common.shared.health.trouble(Part::Partition(partition.clone()), why);
        match end {
            End::Stale => {}
            End::Moved => self.read(&partition, fence),
            End::Lost(why) => {
                trouble(&why);
                self.read_after_metadata(partition);
            }
            End::TooLarge { reason, .. } if single => self.fail(Error::new(
                ErrorKind::RecordTooLarge,
                format!("{partition} can't be read on: its next record is too large for a reply by itself ({reason})"),
            )),
            // The records of that reply are lost to its connection, and only to it: a fresh one asks for fewer.
            End::TooLarge { .. } => self.read(&partition, fence),
            End::Refused(error) => match error.meaning() {
                Meaning::NotLeader(hint) => {
                    trouble(&error.to_string());
                    let speaker = leader.clone().unwrap_or_else(|| Address::new("", 0));
                    let hint = hint.and_then(|hint| hint.parse::<Address>().ok()).map(|hint| hint.seen_from(&speaker));
                    match hint {
                        // To be sent to where we already are, or around in circles, is not progress.
                        Some(hint) if Some(&hint) != leader.as_ref() && failures < REDIRECTS => {
                            self.leaders.set(partition.partition, hint);
                            self.read(&partition, fence);
                        }
                        _ => self.read_after_metadata(partition),
                    }
                }
                Meaning::OutOfRange { earliest, .. } => {
                    let position = self.common.shared.delivery.partition(&partition).map_or(0, |owned| owned.fetched);
                    if position < earliest {
                        tracing::warn!(%partition, position, earliest, "records were deleted before they were read: going on at the earliest");
                        self.common.shared.delivery.reset_position(&partition, fence, earliest);
                        self.read(&partition, fence);
                    } else {
                        trouble(&error.to_string());
                        self.read_later(partition, fence);
                    }
                }
                Meaning::Unauthenticated => {
                    self.fail(Error::from_broker(
                        ErrorKind::Authentication,
                        format!("{partition} can't be read: {error}"),
                        error,
                    ));
                }
                Meaning::Unauthorized => {
                    self.fail(Error::from_broker(
                        ErrorKind::Authorization,
                        format!("{partition} can't be read: {error}"),
                        error,
                    ));
                }
                _ => {
                    trouble(&error.to_string());
                    self.read_after_metadata(partition);
                }
            },
        }
    }

    fn read_later(&mut self, partition: TopicPartition, fence: Fence) {
        let pause = self.leaders.backoff.next();
        self.run(async move {
            sleep(pause).await;
            Outcome::ReaderDue { partition, fence }
        });
    }
}
