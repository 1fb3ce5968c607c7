//! Reading one partition from its leader: ask, push, ask again. A reader belongs to one fence, one leader and one
//! connection; whatever goes wrong ends it, and the engine decides where to go on.

use std::sync::Arc;
use std::time::Duration;

use cursus_wire::command::{Consume, Isolation};
use cursus_wire::{BrokerError, Group, MAX_BODY, Meaning, Member, RecordBatch};

use crate::batch::Fence;
use crate::brokers::CallError;
use crate::brokers::Seat;
use crate::delivery::Delivery;
use crate::types::TopicPartition;

/// Why a reader ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Its fence did.
    Stale,
    /// The connection did, or can't be trusted any more.
    Lost(String),
    /// The broker refuses.
    Refused(BrokerError),
    /// The reply would have been over the frame limit.
    TooLarge { records: u32, reason: String },
}

/// Everything a reader needs.
pub(crate) struct Reader {
    pub(crate) delivery: Arc<Delivery>,
    pub(crate) seat: Seat,
    pub(crate) partition: TopicPartition,
    pub(crate) fence: Fence,
    pub(crate) position: u64,
    /// The group to name: the real one only where its committed offset is exactly the position.
    pub(crate) group: Group,
    pub(crate) member: Member,
    pub(crate) generation: u64,
    pub(crate) isolation: Isolation,
    pub(crate) wait: Duration,
    pub(crate) sizing: Sizing,
    /// Called when the first reply has come.
    pub(crate) on_answer: Box<dyn FnOnce() + Send>,
}

/// The first pause of a reader that shares its connection and found nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

impl Reader {
    /// Reads until something ends it. Returns what it learned about sizes, for the next reader.
    pub(crate) async fn run(mut self) -> (End, Sizing) {
        let end = self.read().await;
        (end, self.sizing)
    }

    async fn read(&mut self) -> End {
        let mut pause = FIRST_PAUSE;
        let mut on_answer = Some(std::mem::replace(&mut self.on_answer, Box::new(|| {})));
        loop {
            let room = self.delivery.reserve(self.sizing.estimate()).await;
            let records = self.sizing.records();
            let alone = self.seat.is_alone();
            let wait = if alone { self.wait } else { Duration::ZERO };
            let request = Consume {
                topic: self.partition.topic.clone(),
                partition: self.partition.partition,
                offset: self.position,
                member: self.member.clone(),
                group: Some(self.group.clone()),
                generation: Some(self.generation),
                isolation: Some(self.isolation),
                batch: Some(records),
                wait_ms: (!wait.is_zero()).then_some(wait.as_millis() as u64),
            };
            let batch = match self.seat.link.call(&request, wait).await {
                Ok(reply) => reply.0,
                Err(CallError::Refused(error)) => {
                    return match error.meaning() {
                        Meaning::ReplyTooLarge => {
                            self.sizing.too_large(records);
                            End::TooLarge { records, reason: error.to_string() }
                        }
                        _ => End::Refused(error),
                    };
                }
                Err(CallError::Lost(why) | CallError::Corrupt(why)) => return End::Lost(why),
            };
            if batch.topic() != self.partition.topic.as_str() || batch.partition() != self.partition.partition {
                let (topic, partition) = (batch.topic(), batch.partition());
                return End::Lost(format!(
                    "{}: asked for {}, got records of {topic:?}-{partition}",
                    self.seat.link.address(),
                    self.partition
                ));
            }
            if let Some(on_answer) = on_answer.take() {
                on_answer();
            }
            let empty = batch.is_empty();
            self.sizing.seen(&batch);
            match self.delivery.push(&self.partition, self.fence, batch, room) {
                Ok(next) => self.position = next,
                Err(_) => return End::Stale,
            }
            if !empty {
                pause = FIRST_PAUSE;
            } else if !alone {
                // Waiting at the broker would hold up every partition behind us on this connection.
                tokio::time::sleep(pause.min(self.wait)).await;
                pause = (pause * 2).min(self.wait.max(FIRST_PAUSE));
            }
        }
    }
}

/// How many records to ask for: as many as make a reply of a good size, from what was seen of this partition so far.
#[derive(Debug, Clone)]
pub(crate) struct Sizing {
    /// The setting's limit.
    most: u32,
    next: u32,
    /// The size of the largest record lately: it falls slowly where records get smaller.
    record_bytes: u64,
}

/// A reply of this size costs little per record, and is far enough from the limit for a surprise.
const GOOD_REPLY: u64 = 2 << 20;

impl Sizing {
    /// Nothing is known yet: begin with few records.
    pub(crate) fn new(most: u64) -> Self {
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
        Self { most, next: most.min(256), record_bytes: 1024 }
    }

    pub(crate) fn records(&self) -> u32 {
        self.next
    }

    /// What the reply may take.
    pub(crate) fn estimate(&self) -> u64 {
        (u64::from(self.next) * self.record_bytes).min(MAX_BODY as u64)
    }

    fn seen(&mut self, batch: &RecordBatch) {
        if batch.is_empty() {
            return;
        }
        self.record_bytes = (batch.largest() as u64).max(self.record_bytes - self.record_bytes / 8).max(1);
        self.aim(self.next.saturating_mul(4));
    }

    /// The broker couldn't send this many: the records are larger than anything seen.
    fn too_large(&mut self, records: u32) {
        self.record_bytes = self.record_bytes.max(MAX_BODY as u64 / u64::from(records.max(1)));
        self.aim((records / 2).max(1));
    }

    fn aim(&mut self, at_most: u32) {
        let good = u32::try_from(GOOD_REPLY / self.record_bytes).unwrap_or(u32::MAX);
        self.next = good.min(at_most).clamp(1, self.most);
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

    fn frame_of(record_size: usize, count: u64) -> RecordBatch {
        let value = vec![0; record_size];
        let records: Vec<_> =
            (0..count).map(|offset| cursus_wire::Record { offset, value: &value, ..Default::default() }).collect();
        RecordBatch::parse(cursus_wire::batch::encode("t", 0, "1", false, &records)).unwrap()
    }

    #[test]
    fn small_records_are_soon_asked_for_by_the_thousand_and_large_ones_by_the_few() {
        let mut sizing = Sizing::new(8192);
        for _ in 0..20 {
            sizing.seen(&frame_of(100, 200));
        }
        assert_eq!(sizing.records(), 8192);
        sizing.seen(&frame_of(1 << 20, 2));
        assert!(sizing.records() <= 2, "{sizing:?}");
        assert!(sizing.estimate() <= MAX_BODY as u64);
    }

    #[test]
    fn too_large_a_reply_leads_down_to_a_single_record() {
        let mut sizing = Sizing::new(8192);
        let mut asked = vec![sizing.records()];
        while *asked.last().unwrap() > 1 {
            sizing.too_large(*asked.last().unwrap());
            assert!(sizing.records() < *asked.last().unwrap());
            asked.push(sizing.records());
        }
        assert!(asked.len() < 12, "{asked:?}");
    }

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
