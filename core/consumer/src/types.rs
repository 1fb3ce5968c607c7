use std::collections::BTreeMap;
use std::fmt;

use cursus_wire::Topic;

/// A partition of a topic: what everything is keyed by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: Topic,
    /// The partition's number, from 0.
    pub partition: u32,
}

impl TopicPartition {
    /// A partition of a topic.
    pub fn new(topic: Topic, partition: u32) -> Self {
        Self { topic, partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

/// What happened to an assignment, in the order in which it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rebalance {
    /// These are no longer this consumer's: what was read of them can't be committed any more.
    Revoked(Vec<TopicPartition>),
    /// These are this consumer's from now on; perhaps none.
    Assigned(Vec<TopicPartition>),
}

/// What one step of an iteration gives.
#[derive(Debug)]
pub enum Iteration<T> {
    /// The next one.
    Item(T),
    /// Nothing yet: wait with [`Driver::changed`](crate::driver::Driver::changed) and ask again.
    Wait,
    /// The consumer is closed.
    End,
}

/// Partitions as a message names them.
pub(crate) fn listed<'a>(partitions: impl IntoIterator<Item = &'a TopicPartition>) -> String {
    let all: Vec<String> = partitions.into_iter().map(ToString::to_string).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// Where a consumer is in its life: `new -> running <-> rebalancing -> closing -> closed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Made, and not started: nothing was sent yet.
    New,
    /// It has an assignment, an empty one included.
    Running,
    /// It joins, or its assignment is being replaced.
    Rebalancing,
    /// Close was called: commits are flushed and the group is left.
    Closing,
    /// Nothing of it runs any more.
    Closed,
}

impl State {
    /// All states, in the order of a life.
    pub const ALL: [Self; 5] = [Self::New, Self::Running, Self::Rebalancing, Self::Closing, Self::Closed];

    /// Its name in every language: `running`.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Running => "running",
            Self::Rebalancing => "rebalancing",
            Self::Closing => "closing",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a partition's log begins, and ends for a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogBounds {
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

/// A group, as its coordinator and the leaders of its topic describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupDescription {
    /// The group.
    pub group: String,
    /// The topic that it reads.
    pub topic: String,
    /// `Stable` with members, `Dead` without.
    pub state: String,
    /// Its generation.
    pub generation: u64,
    /// Its members.
    pub members: Vec<GroupMember>,
    /// Every partition of the topic, those that nobody reads included.
    pub partitions: BTreeMap<TopicPartition, PartitionDescription>,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupMember {
    /// Its id, as the broker gave it.
    pub member: String,
    /// What it reads; nothing where there are more members than partitions.
    pub partitions: Vec<TopicPartition>,
}

/// How far a group is in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionDescription {
    /// The member that reads it; nothing where nobody does.
    pub member: Option<String>,
    /// The committed offset; nothing where none is, and the broker doesn't tell that from 0.
    pub committed: Option<u64>,
    /// How many offsets are behind the committed one; nothing where the partition's leader doesn't know the partition.
    pub lag: Option<u64>,
}
