//! What a test tells the cluster to do and asks of it, beside starting and stopping brokers.

use std::collections::BTreeMap;

use bytes::Bytes;
use cursus_wire::batch::{self, Record};
use serde::Serialize;

use crate::cluster::{Cluster, check_broker};
use crate::error::ControlError;
use crate::faults::Hold;
use crate::incoming::WORDS;
use crate::journal::Request;
use crate::shared::{INTERNAL_TOPIC, State};
use crate::topics::{MAX_PARTITIONS, Topic, check_name, marker};

/// Who wrote what [`Cluster::produce`] and [`Cluster::fill`] write.
const PRODUCER: &[u8] = b"embedded";

/// A record to write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewRecord {
    /// The key; empty for none. At most 65,535 bytes.
    pub key: Bytes,
    /// The payload. At most 16 MiB, and then it can't be read any more: a reply has room for a little less.
    pub value: Bytes,
}

impl NewRecord {
    fn as_written(&self) -> Record<'_> {
        Record { producer_id: PRODUCER, key: &self.key, value: &self.value, ..Record::default() }
    }
}

fn check_sizes(records: &[NewRecord]) -> Result<(), ControlError> {
    for (index, record) in records.iter().enumerate() {
        let problem = if record.key.len() > usize::from(u16::MAX) {
            format!("a key of {} bytes, over 65,535", record.key.len())
        } else if record.value.len() > cursus_wire::MAX_BODY {
            format!("a value of {} bytes, over 16 MiB", record.value.len())
        } else {
            continue;
        };
        return Err(ControlError::RecordTooLarge { index, problem });
    }
    Ok(())
}

impl<K: Into<Bytes>, V: Into<Bytes>> From<(K, V)> for NewRecord {
    fn from((key, value): (K, V)) -> Self {
        Self { key: key.into(), value: value.into() }
    }
}

/// A consumer group as its coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupView {
    /// The topic that the group reads.
    pub topic: String,
    /// The generation; 0 while nobody has joined.
    pub generation: u64,
    /// `Stable` with members, `Dead` without.
    pub state: String,
    /// The members' partitions by member id.
    pub members: BTreeMap<String, Vec<u32>>,
}

impl Cluster {
    /// Makes a topic, or gives an existing one more partitions. Partition p is led by broker p modulo their number.
    ///
    /// # Errors
    ///
    /// A name that no topic can have, no partitions or too many, or fewer than the topic has already.
    pub fn create_topic(&self, name: &str, partitions: u32) -> Result<(), ControlError> {
        check_name(name).map_err(|problem| ControlError::InvalidTopic { topic: name.to_owned(), problem })?;
        let invalid =
            |problem: String| Err(ControlError::InvalidPartitions { topic: name.to_owned(), partitions, problem });
        if partitions == 0 || partitions > MAX_PARTITIONS {
            return invalid(format!("there can be 1 to {MAX_PARTITIONS}"));
        }
        let brokers = self.options().brokers;
        self.shared().change(|state| match state.topics.get(name).map(Topic::count) {
            Some(count) if count > partitions => invalid(format!("it has {count} and can't lose any")),
            _ => {
                state.topics.create(name, partitions, brokers);
                Ok(())
            }
        })
    }

    /// Deletes a topic with its records. Groups that read it keep their members and offsets, as with real brokers.
    ///
    /// # Errors
    ///
    /// No such topic.
    pub fn delete_topic(&self, name: &str) -> Result<(), ControlError> {
        self.shared().change(|state| {
            topic(state, name)?;
            state.topics.remove(name);
            Ok(())
        })
    }

    /// Writes records to the end of a partition, and gives the offset behind the last one.
    ///
    /// # Errors
    ///
    /// No such topic or partition, or a record that doesn't fit the protocol; then none of them is written.
    pub fn produce<R: Into<NewRecord>>(
        &self,
        topic: &str,
        partition: u32,
        records: impl IntoIterator<Item = R>,
    ) -> Result<u64, ControlError> {
        let shelf = self.shared().read(|state| Ok(found(state, topic, partition)?.shelf.clone()))?;
        let records: Vec<NewRecord> = records.into_iter().map(Into::into).collect();
        check_sizes(&records)?;
        let end = shelf.write(|log, _| {
            for record in &records {
                log.append(&record.as_written());
            }
            log.end()
        });
        self.shared().changed();
        Ok(end)
    }

    /// Writes the control record of a transaction that had no records, and gives the offset behind it. Committed readers
    /// don't see it: their offsets have a gap there.
    ///
    /// # Errors
    ///
    /// No such topic or partition.
    pub fn append_marker(&self, topic: &str, partition: u32) -> Result<u64, ControlError> {
        self.append_hidden(topic, partition, &[marker("txn-marker:embedded:commit", 0)])
    }

    /// Writes records of an aborted transaction and its control record, and gives the offset behind that. Committed readers
    /// see none of it. Today's brokers write nothing when a transaction is aborted; their format allows it.
    ///
    /// # Errors
    ///
    /// No such topic or partition, or a record that doesn't fit the protocol; then none of them is written.
    pub fn append_aborted<R: Into<NewRecord>>(
        &self,
        topic: &str,
        partition: u32,
        records: impl IntoIterator<Item = R>,
    ) -> Result<u64, ControlError> {
        let records: Vec<NewRecord> = records.into_iter().map(Into::into).collect();
        check_sizes(&records)?;
        let end = marker("txn-marker:embedded:abort", 0);
        let records = records.iter().map(NewRecord::as_written).chain([end]);
        self.append_hidden(topic, partition, &records.collect::<Vec<_>>())
    }

    fn append_hidden(&self, topic: &str, partition: u32, records: &[Record<'_>]) -> Result<u64, ControlError> {
        let shelf = self.shared().read(|state| Ok(found(state, topic, partition)?.shelf.clone()))?;
        let end = shelf.write(|log, _| {
            records.iter().for_each(|record| log.append_hidden(record));
            log.end()
        });
        self.shared().changed();
        Ok(end)
    }

    /// Writes `count` records of `value_size` bytes, dealt out over all partitions in turn. Record i (from 0) has the
    /// key `i` and a value that begins with i, in 20 digits, filled up with dots; of a shorter value only the last digits
    /// are there.
    ///
    /// # Errors
    ///
    /// No such topic, or a value over 16 MiB.
    pub fn fill(&self, topic_name: &str, count: u64, value_size: usize) -> Result<(), ControlError> {
        let shelves: Vec<_> = self.shared().read(|state| {
            Ok(topic(state, topic_name)?.partitions.iter().map(|partition| partition.shelf.clone()).collect())
        })?;
        if value_size > cursus_wire::MAX_BODY {
            let problem = format!("a value of {value_size} bytes, over 16 MiB");
            return Err(ControlError::RecordTooLarge { index: 0, problem });
        }
        let mut value = Vec::with_capacity(value_size.max(20));
        for (first, shelf) in (0..count).zip(&shelves) {
            shelf.write(|log, _| {
                for i in (first..count).step_by(shelves.len()) {
                    let (key, digits) = (i.to_string(), format!("{i:020}"));
                    value.clear();
                    value.extend_from_slice(&digits.as_bytes()[digits.len().saturating_sub(value_size)..]);
                    value.resize(value_size, b'.');
                    let (key, value) = (key.as_bytes(), &value[..]);
                    debug_assert!(batch::fits(&Record { key, value, ..Record::default() }));
                    log.append(&Record { producer_id: PRODUCER, key, value, ..Record::default() });
                }
            });
        }
        self.shared().changed();
        Ok(())
    }

    /// Forgets the records of a partition below `earliest`, as retention does on a real broker.
    ///
    /// # Errors
    ///
    /// No such topic or partition.
    pub fn delete_records(&self, topic: &str, partition: u32, earliest: u64) -> Result<(), ControlError> {
        let shelf = self.shared().read(|state| Ok(found(state, topic, partition)?.shelf.clone()))?;
        shelf.write(|log, _| log.truncate(earliest));
        self.shared().changed();
        Ok(())
    }

    /// Makes another broker a group's coordinator. It accepts members and generation as they are, and waits one session
    /// timeout before it expires anybody.
    ///
    /// # Errors
    ///
    /// No such broker. The group need not exist yet.
    pub fn move_coordinator(&self, group: &str, broker: usize) -> Result<(), ControlError> {
        let timeout = self.options().session_timeout;
        self.shared().change(|state| {
            check_broker(state, broker)?;
            state.moved.insert(group.to_owned(), broker);
            state.groups.taken_over(self.shared().clock.now(), timeout, |name| name == group);
            Ok(())
        })
    }

    /// The broker that coordinates a group, whether there is such a group or not; a dead one stays coordinator.
    pub fn coordinator(&self, group: &str) -> usize {
        self.shared().read(|state| state.coordinator(group))
    }

    /// Makes another broker a partition's leader, under the next epoch. Streams that are open keep flowing from the old
    /// one.
    ///
    /// # Errors
    ///
    /// No such topic, partition or broker.
    pub fn move_leader(&self, topic: &str, partition: u32, broker: usize) -> Result<(), ControlError> {
        self.shared().change(|state| {
            check_broker(state, broker)?;
            found(state, topic, partition)?;
            let target = state.topics.get_mut(topic).and_then(|topic| topic.partitions.get_mut(partition as usize));
            if let Some(target) = target {
                target.leader = broker;
                target.epoch += 1;
            }
            Ok(())
        })
    }

    /// The broker that leads a partition, running or not.
    ///
    /// # Errors
    ///
    /// No such topic or partition.
    pub fn leader(&self, topic: &str, partition: u32) -> Result<usize, ControlError> {
        self.shared().read(|state| Ok(found(state, topic, partition)?.leader))
    }

    /// Answers the next `times` of a command, on whatever broker they come in, with `ERROR: ` and this text, and doesn't
    /// carry them out. On connections that negotiated it the text gets its class, as any error does. A batch of records
    /// goes by the name `BATCH`.
    ///
    /// # Errors
    ///
    /// No such command.
    pub fn fail_next(&self, command: &str, times: usize, error: &str) -> Result<(), ControlError> {
        let command = named(command)?;
        self.shared().change(|state| state.faults.fail(command, times, error));
        Ok(())
    }

    /// Carries out the next `times` of a command and cuts the connection instead of replying.
    ///
    /// # Errors
    ///
    /// No such command.
    pub fn lose_reply(&self, command: &str, times: usize) -> Result<(), ControlError> {
        let command = named(command)?;
        self.shared().change(|state| state.faults.lose(command, times));
        Ok(())
    }

    /// Carries out the next `times` of a command and damages the replies so that they can't be decoded. Of a stream the
    /// first batch is damaged.
    ///
    /// # Errors
    ///
    /// No such command.
    pub fn corrupt_next(&self, command: &str, times: usize) -> Result<(), ControlError> {
        let command = named(command)?;
        self.shared().change(|state| state.faults.corrupt(command, times));
        Ok(())
    }

    /// Carries out the next `times` of a command and sends each reply twice, which no broker should: what follows on that
    /// connection answers the request before. Of a stream the first batch comes twice.
    ///
    /// # Errors
    ///
    /// No such command.
    pub fn repeat_reply(&self, command: &str, times: usize) -> Result<(), ControlError> {
        let command = named(command)?;
        self.shared().change(|state| state.faults.repeat(command, times));
        Ok(())
    }

    /// Holds the next of a command, on whatever broker it comes in: it is carried out only once the hold is released or
    /// dropped. Several holds of one command hold one request each. What is no command's name is never reached.
    pub fn hold(&self, command: &str) -> Hold {
        let (hold, gate) = Hold::new();
        if let Ok(command) = named(command) {
            self.shared().change(|state| state.faults.hold(command, gate));
        }
        hold
    }

    /// Ends all open streams with a control frame of this reason, as a broker does: `timeout`, `stopped`, `removed`, `error`
    /// or one that nobody has heard of. Their connections close behind it.
    ///
    /// # Errors
    ///
    /// A reason that isn't one word.
    pub fn close_streams(&self, reason: &str) -> Result<(), ControlError> {
        if reason.is_empty() || reason.contains(|c: char| c.is_whitespace() || c == '=') {
            return Err(ControlError::InvalidReason { reason: reason.to_owned() });
        }
        self.shared().change(|state| {
            for (_, told) in state.streams.values() {
                told.send_replace(Some(reason.to_owned()));
            }
        });
        Ok(())
    }

    /// Expires a member now, as if its session had ended: the generation advances, the others learn of it as usual.
    ///
    /// # Errors
    ///
    /// No such group or member.
    pub fn expire_member(&self, group: &str, member: &str) -> Result<(), ControlError> {
        self.shared().change(|state| {
            let Some(found) = state.groups.get(group) else {
                let existing = state.groups.names().cloned().collect();
                return Err(ControlError::NoGroup { group: group.to_owned(), existing });
            };
            let existing = found.members.keys().cloned().collect();
            if state.groups.expire_member(group, member, self.shared().clock.now()) {
                return Ok(());
            }
            Err(ControlError::NoMember { group: group.to_owned(), member: member.to_owned(), existing })
        })
    }

    /// What a group has committed in a topic: the next offset to read by partition. Without any lag, and empty where
    /// there is no such group or it reads another topic.
    pub fn committed(&self, group: &str, topic: &str) -> BTreeMap<u32, u64> {
        self.shared().read(|state| {
            let found = state.groups.get(group).filter(|found| found.topic == topic);
            found.map(crate::groups::Group::committed).unwrap_or_default()
        })
    }

    /// The offset behind the last record by partition; empty where there is no such topic.
    pub fn end_offsets(&self, topic: &str) -> BTreeMap<u32, u64> {
        self.shared().read(|state| {
            let partitions = state.topics.get(topic).map(|topic| topic.partitions.iter());
            (0..).zip(partitions.into_iter().flatten()).map(|(number, found)| (number, found.shelf.end())).collect()
        })
    }

    /// A group as its coordinator sees it; nothing where there is none of that name.
    pub fn group(&self, group: &str) -> Option<GroupView> {
        self.shared().read(|state| {
            let found = state.groups.get(group)?;
            let members = found.members.iter().map(|(id, member)| (id.clone(), member.partitions.clone()));
            Some(GroupView {
                topic: found.topic.clone(),
                generation: u64::try_from(found.generation).unwrap_or(0),
                state: found.state().to_owned(),
                members: members.collect(),
            })
        })
    }

    /// The last 10,000 requests that the brokers received, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.shared().read(|state| state.journal.requests())
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.shared().change(|state| state.journal.clear());
    }

    /// Waits until `condition` is true. It is looked at now and after every change: a request, a connection, a record, a
    /// member, a commit, a broker. Nothing here ends the wait; put it into a timeout. `what` says what is waited for: the
    /// cluster's `Debug` lists what was waited for in vain.
    pub async fn wait_for(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let mut wait = Wait { cluster: self, what, over: false };
        let mut changes = self.shared().watch();
        loop {
            // First the mark, then the look: a change in between is seen at the next turn.
            drop(changes.borrow_and_update());
            if condition(self) {
                wait.over = true;
                return;
            }
            // The sender lives in the cluster that `self` holds.
            let _ = changes.changed().await;
            // A condition that changes the cluster would never let anybody else run, not even the timeout around this.
            tokio::task::yield_now().await;
        }
    }
}

/// Notes what was waited for where the wait is given up.
struct Wait<'a> {
    cluster: &'a Cluster,
    what: &'a str,
    over: bool,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.cluster.shared().change(|state| state.waited_in_vain.push(self.what.to_owned()));
        }
    }
}

fn topic<'a>(state: &'a State, name: &str) -> Result<&'a Topic, ControlError> {
    state.topics.get(name).ok_or_else(|| {
        let mut existing = state.topics.names();
        existing.retain(|name| name != INTERNAL_TOPIC);
        ControlError::NoTopic { topic: name.to_owned(), existing }
    })
}

fn found<'a>(state: &'a State, name: &str, partition: u32) -> Result<&'a crate::topics::Partition, ControlError> {
    let topic = topic(state, name)?;
    let count = topic.count();
    topic.partition(partition).ok_or_else(|| ControlError::NoPartition { topic: name.to_owned(), partition, count })
}

pub(crate) fn named(command: &str) -> Result<&'static str, ControlError> {
    WORDS.into_iter().find(|word| word.eq_ignore_ascii_case(command)).ok_or_else(|| {
        let existing = WORDS.iter().map(|word| (*word).to_owned()).collect();
        ControlError::NoCommand { command: command.to_owned(), existing }
    })
}
