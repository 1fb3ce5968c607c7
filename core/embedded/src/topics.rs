//! Topics: their partitions, who leads them, and how they are kept and written.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::watch;
use cursus_wire::batch::Record;

use crate::log::Log;
use crate::producers::Producers;

/// The most partitions that a topic gets here. A measurement needs few, and a slip of the keyboard shouldn't take all memory.
pub(crate) const MAX_PARTITIONS: u32 = 10_000;

/// What a partition's records live in. Reads and writes of different partitions don't wait for each other.
#[derive(Debug)]
pub(crate) struct Shelf {
    log: Mutex<(Log, Producers)>,
    /// The log's end, for streams that wait for more.
    end: watch::Sender<u64>,
}

impl Shelf {
    fn new() -> Self {
        Self { log: Mutex::default(), end: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, (Log, Producers)> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        look(&self.lock().0)
    }

    /// Changes the log and tells those who wait for more.
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut Log, &mut Producers) -> T) -> T {
        let mut inner = self.lock();
        let (log, producers) = &mut *inner;
        let done = change(log, producers);
        let end = log.end();
        drop(inner);
        self.end.send_replace(end);
        done
    }

    pub(crate) fn end(&self) -> u64 {
        self.read(Log::end)
    }

    pub(crate) fn watch_end(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }
}

/// A partition of a topic.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) shelf: Arc<Shelf>,
    /// The broker that leads it.
    pub(crate) leader: usize,
    /// Counts the leaders; always 0 on a standalone broker.
    pub(crate) epoch: u64,
}

/// How a topic is kept and written. Only echoed, but for the partitioner and idempotence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) cleanup: String,
    pub(crate) partitioner: String,
    pub(crate) auth: String,
    pub(crate) read_acl: String,
    pub(crate) write_acl: String,
    pub(crate) retention_hours: i64,
    pub(crate) retention_bytes: i64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            cleanup: "delete".to_owned(),
            partitioner: "hash_key".to_owned(),
            auth: "open".to_owned(),
            read_acl: String::new(),
            write_acl: String::new(),
            retention_hours: 0,
            retention_bytes: 0,
        }
    }
}

/// The end of CREATE's and METADATA's replies.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cleanup, partitioner, auth, read_acl, write_acl, retention_hours, retention_bytes } = self;
        write!(f, "cleanup_policy={cleanup} partitioner={partitioner} auth_policy={auth} read_acl={read_acl} ")?;
        write!(f, "write_acl={write_acl} retention_hours={retention_hours} retention_bytes={retention_bytes}")
    }
}

/// A topic.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) partitions: Vec<Partition>,
    pub(crate) policy: Policy,
    /// Whether the sequence numbers of producers are checked.
    pub(crate) idempotent: bool,
    /// Only echoed.
    pub(crate) event_sourcing: bool,
    /// What the next record without key and partition is dealt out by.
    turn: u64,
}

impl Topic {
    /// How many partitions.
    pub(crate) fn count(&self) -> u32 {
        self.partitions.len() as u32
    }

    pub(crate) fn partition(&self, partition: u32) -> Option<&Partition> {
        self.partitions.get(partition as usize)
    }

    /// The partition of a record that names none: by its key, else in turn.
    pub(crate) fn choose(&mut self, key: &[u8]) -> u32 {
        let count = u64::from(self.count()).max(1);
        if self.policy.partitioner == "hash_key" && !key.is_empty() {
            return (fnv1a(key) % count) as u32;
        }
        let turn = self.turn;
        self.turn += 1;
        (turn % count) as u32
    }
}

/// FNV-1a, 64 bits.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// All topics.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    topics: BTreeMap<String, Topic>,
}

impl Topics {
    pub(crate) fn get(&self, topic: &str) -> Option<&Topic> {
        self.topics.get(topic)
    }

    pub(crate) fn get_mut(&mut self, topic: &str) -> Option<&mut Topic> {
        self.topics.get_mut(topic)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Topic)> {
        self.topics.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&String, &mut Topic)> {
        self.topics.iter_mut()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.topics.keys().cloned().collect()
    }

    pub(crate) fn remove(&mut self, topic: &str) -> bool {
        self.topics.remove(topic).is_some()
    }

    /// Makes a topic, or gives an existing one more partitions. Partition p is led by broker p modulo their number, so
    /// that every broker leads some and a test can tell which without asking. (Real brokers place them by a hash of
    /// their addresses.)
    pub(crate) fn create(&mut self, name: &str, partitions: u32, brokers: usize) -> &mut Topic {
        let topic = self.topics.entry(name.to_owned()).or_insert_with(|| Topic {
            partitions: Vec::new(),
            policy: Policy::default(),
            idempotent: false,
            event_sourcing: false,
            turn: 0,
        });
        while topic.count() < partitions {
            let leader = topic.partitions.len() % brokers.max(1);
            topic.partitions.push(Partition { shelf: Arc::new(Shelf::new()), leader, epoch: u64::from(brokers > 1) });
        }
        topic
    }
}

/// The control record that ends a transaction in a partition.
pub(crate) fn marker(producer: &str, epoch: i64) -> Record<'_> {
    let producer_id = producer.as_bytes();
    Record { sequence: 1, producer_id, epoch, value: b"__cursus_txn_control_marker__", ..Record::default() }
}

/// What is wrong with a topic's name, in the broker's words.
pub(crate) fn check_name(topic: &str) -> Result<(), String> {
    if topic.len() > 249 {
        return Err("topic name exceeds 249 bytes".to_owned());
    }
    if topic == "." || topic == ".." {
        return Err(format!("invalid topic name {topic:?}"));
    }
    if topic.is_empty() {
        return Err("topic name is empty".to_owned());
    }
    if !topic.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-=".contains(&byte)) {
        return Err(format!("topic name {} contains unsupported characters", crate::arguments::quote(topic)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hashed_and_the_rest_is_dealt_out_in_turn() {
        let mut topics = Topics::default();
        let topic = topics.create("t", 3, 1);
        assert_eq!([(); 4].map(|()| topic.choose(b"")), [0, 1, 2, 0]);
        // FNV-1a of "a" is af63dc4c8601ec8c.
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(u64::from(topic.choose(b"a")), 0xaf63_dc4c_8601_ec8c % 3);
        topic.policy.partitioner = "round_robin".to_owned();
        assert_eq!(topic.choose(b"a"), 1);
    }

    #[test]
    fn every_broker_leads_some_partitions() {
        let mut topics = Topics::default();
        let topic = topics.create("t", 5, 3);
        assert_eq!(
            topic.partitions.iter().map(|p| (p.leader, p.epoch)).collect::<Vec<_>>(),
            [(0, 1), (1, 1), (2, 1), (0, 1), (1, 1)]
        );
        assert_eq!(topics.create("t", 6, 3).count(), 6);
    }

    #[test]
    fn a_name_is_checked_in_the_brokers_words() {
        assert_eq!(check_name("a.b_c-1"), Ok(()));
        assert_eq!(check_name("b/2").unwrap_err(), "topic name \"b/2\" contains unsupported characters");
        assert_eq!(check_name("..").unwrap_err(), "invalid topic name \"..\"");
        assert_eq!(check_name(&"x".repeat(250)).unwrap_err(), "topic name exceeds 249 bytes");
    }
}
