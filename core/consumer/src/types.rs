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
