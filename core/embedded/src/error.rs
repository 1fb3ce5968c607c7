//! What the control of a cluster can be asked for in vain.

use std::io;

use thiserror::Error;

/// Why the cluster couldn't do what its control was asked for. Each names the thing that was asked for and what there is.
#[derive(Debug, Error)]
pub enum ControlError {
    /// There is no such broker.
    #[error("no broker {broker}; there are {count}, counted from 0")]
    NoBroker {
        /// The broker that was named.
        broker: usize,
        /// How many the cluster has.
        count: usize,
    },
    /// There is no such topic.
    #[error("no topic {topic:?}; there are: {}", listed(.existing))]
    NoTopic {
        /// The topic that was named.
        topic: String,
        /// The topics that there are.
        existing: Vec<String>,
    },
    /// The topic has no such partition.
    #[error("no partition {partition} in topic {topic:?}; it has {count}, counted from 0")]
    NoPartition {
        /// The topic.
        topic: String,
        /// The partition that was named.
        partition: u32,
        /// How many the topic has.
        count: u32,
    },
    /// There is no such group.
    #[error("no group {group:?}; there are: {}", listed(.existing))]
    NoGroup {
        /// The group that was named.
        group: String,
        /// The groups that there are.
        existing: Vec<String>,
    },
    /// The group has no such member.
    #[error("no member {member:?} in group {group:?}; its members are: {}", listed(.existing))]
    NoMember {
        /// The group.
        group: String,
        /// The member that was named.
        member: String,
        /// The members that there are.
        existing: Vec<String>,
    },
    /// A topic can't have this name.
    #[error("a topic can't be named {topic:?}: {problem}")]
    InvalidTopic {
        /// The name.
        topic: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A topic can't have this many partitions.
    #[error("topic {topic:?} can't have {partitions} partitions: {problem}")]
    InvalidPartitions {
        /// The topic.
        topic: String,
        /// How many were asked for.
        partitions: u32,
        /// What is wrong with that.
        problem: String,
    },
    /// No command has this name.
    #[error("no command {command:?}; there are: {}", listed(.existing))]
    NoCommand {
        /// The name that was given.
        command: String,
        /// The names that there are.
        existing: Vec<String>,
    },
    /// A record doesn't fit into the protocol's fields.
    #[error("record {index} has {problem}")]
    RecordTooLarge {
        /// Which of the records that were given, counted from 0.
        index: usize,
        /// What is too large, and how large it may be.
        problem: String,
    },
    /// The broker is in the wrong state for this: running, or down.
    #[error("broker {broker} is {state} already")]
    BrokerState {
        /// The broker.
        broker: usize,
        /// `running`, `paused` or `down`.
        state: &'static str,
    },
    /// The broker is down, and this needs one that runs.
    #[error("broker {broker} is down; restart it first")]
    Down {
        /// The broker.
        broker: usize,
    },
    /// No broker can be advertised under this address.
    #[error("{address:?} is no address to advertise: {problem}")]
    InvalidAddress {
        /// The address.
        address: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No stream can end with this reason.
    #[error("{reason:?} is no reason to end a stream: it is one word, as timeout, stopped, removed or error")]
    InvalidReason {
        /// The reason.
        reason: String,
    },
    /// The broker's address couldn't be listened on again.
    #[error("broker {broker} can't listen on {address} again: {source}")]
    Listen {
        /// The broker.
        broker: usize,
        /// Its address.
        address: String,
        /// What the network said.
        source: io::Error,
    },
    /// The cluster was stopped.
    #[error("the cluster was stopped")]
    Stopped,
}

impl ControlError {
    /// The kind of error in one word, as the control port names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoBroker { .. } => "no_broker",
            Self::NoTopic { .. } => "no_topic",
            Self::NoPartition { .. } => "no_partition",
            Self::NoGroup { .. } => "no_group",
            Self::NoMember { .. } => "no_member",
            Self::InvalidTopic { .. } => "invalid_topic",
            Self::InvalidPartitions { .. } => "invalid_partitions",
            Self::NoCommand { .. } => "no_command",
            Self::RecordTooLarge { .. } => "record_too_large",
            Self::BrokerState { .. } => "broker_state",
            Self::Down { .. } => "down",
            Self::InvalidAddress { .. } => "invalid_address",
            Self::InvalidReason { .. } => "invalid_reason",
            Self::Listen { .. } => "listen",
            Self::Stopped => "stopped",
        }
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_thing_and_what_exists() {
        let error = ControlError::NoTopic { topic: "x".into(), existing: vec!["orders".into(), "returns".into()] };
        assert_eq!(error.to_string(), "no topic \"x\"; there are: orders, returns");
        let error = ControlError::NoGroup { group: "g".into(), existing: Vec::new() };
        assert_eq!(error.to_string(), "no group \"g\"; there are: none");
    }
}
