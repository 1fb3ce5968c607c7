//! Reading one partition from its leader. A reader belongs to one fence, one turn, one leader and one connection; whatever
//! goes wrong ends it, and the engine decides where to go on.
//!
//! It either polls (`polling`) or has the broker stream (`streaming`); what it does with what comes is the same.

use std::sync::Arc;
use std::time::Duration;

use cursus_wire::command::Isolation;
use cursus_wire::reply::StreamClose;
use cursus_wire::{BrokerError, Group, Member, RecordBatch, Topic};

use super::sizing::Sizing;
use crate::batch::Fence;
use crate::brokers::{Seat, StreamAt};
use crate::delivery::{Delivery, Room, Stale};
use crate::types::TopicPartition;

/// Why a reader ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Its fence or its turn did.
    Stale,
    /// The connection is no longer for it, and nothing is wrong: go on from another.
    Moved,
    /// The connection ended, or can't be trusted any more.
    Lost(String),
    /// The broker refuses.
    Refused(BrokerError),
    /// The reply would have been over the frame limit.
    TooLarge { records: u32, reason: String },
    /// The broker ended the stream, and said why.
    Closed { close: StreamClose, records: u32 },
}

/// Where a reader gets records from.
pub(crate) enum Source {
    /// By requests, on a connection that others may share.
    Polling(Seat),
    /// By a stream, on a connection of its own.
    Streaming(StreamAt),
}

/// Everything a reader needs.
pub(crate) struct Reader {
    pub(crate) delivery: Arc<Delivery>,
    pub(crate) partition: TopicPartition,
    pub(crate) fence: Fence,
    pub(crate) turn: u64,
    pub(crate) position: u64,
    /// The group to name: the real one only where its committed offset is exactly the position.
    pub(crate) group: Group,
    pub(crate) member: Member,
    pub(crate) generation: u64,
    pub(crate) isolation: Isolation,
    pub(crate) wait: Duration,
    pub(crate) sizing: Sizing,
    /// Whether to end as [`End::Moved`] once something was read.
    pub(crate) once: bool,
    /// Called when the first reply has come.
    pub(crate) on_answer: Option<Box<dyn FnOnce() + Send>>,
}

impl Reader {
    /// Reads until something ends it. Returns what it learned about sizes, for the next reader.
    pub(crate) async fn run(mut self, source: Source) -> (End, Sizing) {
        let end = match source {
            Source::Polling(seat) => self.poll(&seat).await,
            Source::Streaming(at) => self.stream(&at).await,
        };
        (end, self.sizing)
    }

    /// The first sign that this partition can be read from there.
    pub(super) fn answered(&mut self) {
        if let Some(on_answer) = self.on_answer.take() {
            on_answer();
        }
    }

    /// What is wrong with records that weren't asked for.
    pub(super) fn foreign(&self, batch: &RecordBatch) -> Option<String> {
        let TopicPartition { topic, partition } = &self.partition;
        let asked = batch.topic() == topic.as_str() && batch.partition() == *partition;
        (!asked)
            .then(|| format!("asked for {}, got records of {:?}-{}", self.partition, batch.topic(), batch.partition()))
    }

    /// Hands on what came.
    pub(super) fn push(&mut self, batch: RecordBatch, room: Room) -> Result<(), Stale> {
        self.sizing.seen(&batch);
        self.position = self.delivery.push(&self.partition, self.fence, self.turn, batch, room)?;
        Ok(())
    }

    pub(super) fn topic(&self) -> Topic {
        self.partition.topic.clone()
    }
}

/// A group name that nobody commits to, unique to this member. Reading under it makes the requested offset law.
pub(crate) fn reader_group(group: &Group, member: &Member) -> Group {
    let tail = format!("~{member}");
    let room = cursus_wire::name::MAX_NAME.saturating_sub(tail.len());
    let end = (0..=room.min(group.as_str().len())).rev().find(|&i| group.as_str().is_char_boundary(i)).unwrap_or(0);
    // Both parts were checked, and `~` is allowed: what they make is a name. A member of 255 bytes leaves no room for `~`.
    Group::new(format!("{}{tail}", &group.as_str()[..end])).unwrap_or_else(|_| group.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_group_is_a_name_and_never_the_group() {
        let member = Member::new(format!("{}-1", "m".repeat(200))).unwrap();
        for group in ["billing".to_owned(), "g".repeat(255), "ž".repeat(127)] {
            let group = Group::new(group).unwrap();
            let reader = reader_group(&group, &member);
            assert_ne!(reader, group);
            assert!(reader.as_str().ends_with(member.as_str()));
        }
    }
}
