//! The readers of a session: starting them where the leader is, and deciding where to go on when one ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cursus_wire::reply::StreamClose;
use cursus_wire::{BrokerError, Meaning};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::reader::{End, Reader, Source, reader_group};
use super::sizing::Sizing;
use super::starts::Unplaced;
use crate::batch::Fence;
use crate::brokers::{Address, CallError};
use crate::error::{Error, ErrorKind};
use crate::health::Part;
use crate::membership::Event;
use crate::types::TopicPartition;

use super::session::Session;
use super::{Outcome, ReaderEnd};

/// How many redirects in a row are followed at once. More are a cluster that doesn't know itself.
const REDIRECTS: u32 = 3;

/// How many times in a row a broker may say that the position is beyond its end before the reset policy acts: one that has
/// just become leader may be behind for a moment.
const BEYOND_THE_END: u32 = 5;

/// What is being read.
#[derive(Default)]
pub(crate) struct Readings(BTreeMap<TopicPartition, Reading>);

struct Reading {
    fence: Fence,
    task: Option<JoinHandle<()>>,
    /// Which of this partition's readers is the current one: the end of any other means nothing any more.
    run: u64,
    /// Readers that were cancelled in favour of others, and may not have ended yet.
    old: Vec<JoinHandle<()>>,
    sizing: Sizing,
    leader: Option<Address>,
    streams: bool,
    /// Another reader has taken the group's stream, and there is no point in taking turns.
    replaced: bool,
    /// How many streams ended without a word. A second one may be that, too.
    lost: u32,
    /// The next record can't be streamed: the reply to a request says why, or passes it.
    stuck: bool,
    /// Readers that ended since the last reply.
    failures: Arc<AtomicU32>,
}

impl Reading {
    fn is_contested(&self) -> bool {
        self.replaced || self.lost > 1
    }
}

impl Readings {
    pub(super) fn fence(&self, partition: &TopicPartition) -> Option<Fence> {
        self.0.get(partition).map(|reading| reading.fence)
    }

    /// What is being streamed, and from where.
    pub(super) fn streaming(&self) -> Vec<(TopicPartition, Fence, Address)> {
        let streaming = self.0.iter().filter(|(_, reading)| reading.streams && reading.task.is_some());
        streaming.filter_map(|(p, reading)| Some((p.clone(), reading.fence, reading.leader.clone()?))).collect()
    }

    fn of(&mut self, partition: &TopicPartition, fence: Fence) -> Option<&mut Reading> {
        self.0.get_mut(partition).filter(|reading| reading.fence == fence)
    }
}

impl Session {
    /// Reads every partition of the assignment that was just installed.
    pub(super) fn begin_reading(&mut self) {
        let settings = &self.common.shared.settings;
        let (most, buffer) = (settings.fetch_batch_size, settings.max_buffered_bytes);
        let owned = self.common.shared.delivery.partitions();
        for (partition, owned) in &owned {
            let reading = Reading {
                fence: owned.fence,
                task: None,
                run: 0,
                old: Vec::new(),
                sizing: Sizing::new(most, buffer, Arc::clone(&self.record_bytes)),
                leader: None,
                streams: false,
                replaced: false,
                lost: 0,
                stuck: false,
                failures: Arc::default(),
            };
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
            facts.troubles.remove(&Part::Position(partition.clone()));
        }
        let old: Vec<_> =
            readings.into_values().flat_map(|reading| reading.old.into_iter().chain(reading.task)).collect();
        old.iter().for_each(JoinHandle::abort);
        old
    }

    /// Reads a partition from where its position is now, whatever its reader is at.
    pub(super) fn read_anew(&mut self, partition: &TopicPartition, fence: Fence) {
        let Some(reading) = self.readings.of(partition, fence) else { return };
        reading.old.retain(|old| !old.is_finished());
        if let Some(task) = reading.task.take() {
            task.abort();
            reading.old.push(task);
        }
        self.read(partition, fence);
    }

    /// Starts the reader of a partition, if the fence is still its own and it has none.
    pub(super) fn read(&mut self, partition: &TopicPartition, fence: Fence) {
        let Some((member, generation)) =
            self.machine.identity().map(|(member, generation)| (member.clone(), generation))
        else {
            return;
        };
        let shared = Arc::clone(&self.common.shared);
        let Some(owned) = shared.delivery.partition(partition).filter(|owned| owned.fence == fence) else {
            return;
        };
        if self.readings.of(partition, fence).is_none_or(|reading| reading.task.is_some()) {
            return;
        }
        let Some(leader) = self.leaders.of(partition.partition).cloned() else {
            let why = match self.leaders.count() {
                count if (partition.partition as usize) < count => format!("no broker leads {partition}"),
                count => format!("there is no {partition} yet: topic {} has {count} partitions", partition.topic),
            };
            shared.health.trouble(Part::Partition(partition.clone()), &why);
            return self.read_after_metadata(partition.clone());
        };
        let links = Arc::clone(&self.common.links);
        let Some(reading) = self.readings.of(partition, fence) else { return };
        reading.streams = shared.settings.is_streaming() && !reading.stuck;
        let source = match reading.streams {
            true => Source::Streaming(links.stream_at(&leader)),
            false => Source::Polling(links.seat(&leader, partition)),
        };
        // Where the position is what is committed, the broker starts there by itself. Everywhere else the committed offset
        // would win over the one we ask for, so the request names a group that has none. What was moved by hand is not
        // trusted to be at the committed offset: a transaction may have committed further, or an answer may be lost.
        let at_committed = owned.placed == 0 && owned.fetched == owned.committed.unwrap_or(0);
        let by_group = at_committed && !(reading.streams && reading.is_contested());
        let group = if by_group { self.group.clone() } else { reader_group(&self.group, &member) };
        let health = Arc::clone(&shared.health);
        let (part, failures) = (Part::Partition(partition.clone()), Arc::clone(&reading.failures));
        let reader = Reader {
            delivery: Arc::clone(&shared.delivery),
            partition: partition.clone(),
            fence,
            turn: owned.turn,
            position: owned.fetched,
            group,
            member,
            generation,
            isolation: shared.settings.isolation(),
            wait: Duration::from_millis(shared.settings.fetch_wait_ms),
            sizing: reading.sizing.clone(),
            once: std::mem::take(&mut reading.stuck),
            on_answer: Some(Box::new(move || {
                failures.store(0, Ordering::Relaxed);
                health.recovered(&part);
            })),
        };
        shared.health.facts().leaders.insert(partition.clone(), leader.to_string());
        reading.leader = Some(leader);
        reading.run += 1;
        let (ends, session, run, partition) = (self.common.ends.clone(), self.id, reading.run, partition.clone());
        let task = async move {
            let (end, sizing) = reader.run(source).await;
            let _ = ends.send(ReaderEnd { session, partition, fence, run, end, sizing });
        };
        reading.task = Some(self.common.tasks.spawn_on(task, &shared.environment.runtime));
    }

    /// A reader has ended: decide where to go on, and when.
    pub(crate) fn on_reader_end(&mut self, ended: ReaderEnd) {
        let ReaderEnd { partition, fence, run, end, sizing, .. } = ended;
        let Some(reading) = self.readings.of(&partition, fence).filter(|reading| reading.run == run) else { return };
        reading.task = None;
        reading.sizing = sizing;
        let failures = match end {
            // Nothing has failed.
            End::Stale | End::Moved => 0,
            _ => reading.failures.fetch_add(1, Ordering::Relaxed),
        };
        if failures == 0 && !matches!(end, End::Stale | End::Moved) {
            // The reader before this one had got somewhere: pauses start short again.
            self.leaders.backoff.reset();
        }
        match end {
            // Where its fence still holds it was its turn that ended, and the next one has come.
            End::Stale | End::Moved => self.read(&partition, fence),
            End::Lost(why) => {
                let streams = reading.streams;
                reading.lost += u32::from(streams);
                self.trouble_reading(&partition, &why);
                if streams { self.resume_stream(partition, fence) } else { self.read_after_metadata(partition) }
            }
            End::TooLarge { records: 1, reason } => self.fail(Error::new(
                ErrorKind::RecordTooLarge,
                format!("{partition} can't be read on: its next record is too large for a reply by itself ({reason})"),
            )),
            // The records of that reply are lost to its connection, and only to it: a fresh one asks for fewer.
            End::TooLarge { .. } => self.read(&partition, fence),
            End::Refused(error) => self.refused(partition, fence, error, failures),
            End::Closed { close, records } => self.stream_closed(partition, fence, &close, records, failures),
        }
    }

    fn trouble_reading(&self, partition: &TopicPartition, why: &str) {
        self.common.shared.health.trouble(Part::Partition(partition.clone()), why);
    }

    fn refused(&mut self, partition: TopicPartition, fence: Fence, error: BrokerError, failures: u32) {
        match error.meaning() {
            Meaning::NotLeader(hint) => {
                self.trouble_reading(&partition, &error.to_string());
                let leader = self.readings.of(&partition, fence).and_then(|reading| reading.leader.clone());
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
                self.out_of_range(partition, fence, Some(earliest), &error.to_string(), failures);
            }
            Meaning::Unauthenticated => {
                let message = format!("{partition} can't be read: {error}");
                self.fail(Error::from_broker(ErrorKind::Authentication, message, error));
            }
            Meaning::Unauthorized => {
                let message = format!("{partition} can't be read: {error}");
                self.fail(Error::from_broker(ErrorKind::Authorization, message, error));
            }
            _ => {
                self.trouble_reading(&partition, &error.to_string());
                self.read_after_metadata(partition);
            }
        }
    }

    /// The leader can't serve the position. Below what it keeps, the policy acts at once; beyond its end it may only be
    /// behind, and is asked again some times before.
    fn out_of_range(
        &mut self,
        partition: TopicPartition,
        fence: Fence,
        earliest: Option<u64>,
        why: &str,
        failures: u32,
    ) {
        self.trouble_reading(&partition, why);
        let Some(owned) = self.common.shared.delivery.partition(&partition) else { return };
        let below = earliest.is_some_and(|earliest| owned.fetched < earliest);
        if !below && failures < BEYOND_THE_END {
            return self.read_later(partition, fence);
        }
        // Retention that outruns us again and again isn't chased without a pause.
        let pause = if failures > REDIRECTS { self.leaders.backoff.next() } else { Duration::ZERO };
        let Some(policy) = self.policy() else { return };
        self.run(async move {
            sleep(pause).await;
            let result = policy.replace(partition.partition, owned.fetched).await;
            Outcome::Replaced { partition, fence, turn: owned.turn, result }
        });
    }

    /// The policy has decided where to go on.
    pub(super) fn on_replaced(
        &mut self,
        partition: TopicPartition,
        fence: Fence,
        turn: u64,
        result: Result<u64, Unplaced>,
    ) {
        let delivery = Arc::clone(&self.common.shared.delivery);
        let Some(owned) = delivery.partition(&partition).filter(|owned| owned.fence == fence) else { return };
        match result {
            // The application has moved it meanwhile.
            Ok(_) if owned.turn != turn => self.read(&partition, fence),
            Ok(offset) if offset == owned.fetched => self.read_later(partition, fence),
            Ok(offset) => {
                let from = owned.fetched;
                tracing::warn!(%partition, from, to = offset, "the broker can't serve the position: the reset policy goes on elsewhere");
                delivery.reset_position(&partition, fence, turn, offset);
                self.read(&partition, fence);
            }
            Err(Unplaced::Fatal(error)) => self.fail(error),
            Err(Unplaced::Call(error)) => {
                self.trouble_reading(&partition, &error.to_string());
                self.read_later(partition, fence);
            }
        }
    }

    /// The broker ended a stream. That is no fault; its reason says how to go on.
    fn stream_closed(
        &mut self,
        partition: TopicPartition,
        fence: Fence,
        close: &StreamClose,
        records: u32,
        failures: u32,
    ) {
        let why = format!("the broker closed the stream of {partition}: {}", close.reason);
        let Some(reading) = self.readings.of(&partition, fence) else { return };
        match close.reason.as_str() {
            "replaced" => {
                // Another reader streams under the group's name. If it is the new owner, a heartbeat tells us; if it is
                // somebody else, both can have what they want under different names.
                reading.replaced = true;
                tracing::info!(%partition, "another reader has taken the group's stream: going on under a name of our own");
                self.feed(Event::HeartbeatDue);
                self.read_later(partition, fence);
            }
            "offset_out_of_range" => self.out_of_range(partition, fence, close.earliest, &why, failures),
            "error" => {
                // Perhaps the frame would have been too large, perhaps the broker couldn't read. Fewer records, and in the end
                // one request, whose answer is precise.
                if records == 1 {
                    reading.stuck = true;
                } else {
                    reading.sizing.too_large(records);
                }
                self.trouble_reading(&partition, &why);
                if failures < REDIRECTS { self.read(&partition, fence) } else { self.read_later(partition, fence) }
            }
            // Nothing came for half an hour, and nobody is to blame.
            "timeout" => self.read(&partition, fence),
            _ => {
                self.trouble_reading(&partition, &why);
                self.read_after_metadata(partition);
            }
        }
    }

    /// A stream ended without a word. What is committed is asked anew before it goes on: that decides under which name to
    /// ask for the position. The position itself never falls.
    fn resume_stream(&mut self, partition: TopicPartition, fence: Fence) {
        let Some(membership) = self.policy().and_then(|policy| policy.membership) else {
            return self.read_after_metadata(partition);
        };
        let pause = self.leaders.backoff.next();
        self.run(async move {
            sleep(pause).await;
            let committed = match tokio::time::timeout(COMMITTED_PATIENCE, membership.fetch(partition.partition)).await
            {
                Ok(result) => result,
                Err(_) => Err(CallError::Lost("no answer in time".to_owned())),
            };
            Outcome::Recommitted { partition, fence, committed: committed.ok() }
        });
    }

    pub(super) fn on_recommitted(&mut self, partition: TopicPartition, fence: Fence, committed: Option<u64>) {
        if self.readings.of(&partition, fence).is_none() {
            return;
        }
        if let Some(committed) = committed.filter(|committed| *committed > 0) {
            self.note_committed(&partition, fence, committed);
        }
        self.read_after_metadata(partition);
    }

    fn read_later(&mut self, partition: TopicPartition, fence: Fence) {
        let pause = self.leaders.backoff.next();
        self.run(async move {
            sleep(pause).await;
            Outcome::ReaderDue { partition, fence }
        });
    }
}

/// How long reading waits to hear what is committed. Without that it goes on all the same.
const COMMITTED_PATIENCE: Duration = Duration::from_secs(1);
