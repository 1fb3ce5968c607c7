//! Who leads which partition, and finding out again when that was wrong.

use std::collections::BTreeSet;
use std::sync::Arc;

use cursus_wire::command::Metadata;
use cursus_wire::reply;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::brokers::Address;
use crate::health::Part;
use crate::types::TopicPartition;

use super::Outcome;
use super::session::Session;

pub(crate) struct Leaders {
    by_partition: Vec<Option<Address>>,
    /// METADATA was asked for, or is about to be.
    asking: bool,
    /// Readers that go on when it is answered.
    waiting: BTreeSet<TopicPartition>,
    pub(super) backoff: Backoff,
}

impl Leaders {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { by_partition: Vec::new(), asking: false, waiting: BTreeSet::new(), backoff }
    }

    pub(super) fn of(&self, partition: u32) -> Option<&Address> {
        self.by_partition.get(partition as usize)?.as_ref()
    }

    pub(super) fn set(&mut self, partition: u32, leader: Address) {
        if let Some(entry) = self.by_partition.get_mut(partition as usize) {
            *entry = Some(leader);
        }
    }
}

impl Session {
    /// Takes what a broker says of the leaders.
    pub(super) fn take_leaders(&mut self, metadata: &reply::Metadata, speaker: &Address) {
        let address = |leader: &String| Some(leader.parse::<Address>().ok()?.seen_from(speaker));
        self.leaders.by_partition = metadata.leaders.iter().map(address).collect();
        self.common.links.learn(self.leaders.by_partition.iter().flatten());
        self.leaders.asking = false;
        for partition in std::mem::take(&mut self.leaders.waiting) {
            if let Some(fence) = self.readings.fence(&partition) {
                self.read(&partition, fence);
            }
        }
    }

    /// METADATA failed: readers that wait for it have to wait longer.
    pub(super) fn leaders_failed(&mut self) {
        self.leaders.asking = false;
        if self.leaders.waiting.is_empty() {
            // Nobody needs to know any more.
            self.common.shared.health.recovered(&Part::Topic);
        } else {
            self.ask_leaders();
        }
    }

    /// Reads a partition on once METADATA has been asked, after a pause that grows while nothing works.
    pub(super) fn read_after_metadata(&mut self, partition: TopicPartition) {
        self.leaders.waiting.insert(partition);
        self.ask_leaders();
    }

    fn ask_leaders(&mut self) {
        if std::mem::replace(&mut self.leaders.asking, true) {
            return;
        }
        let (links, topic, pause) = (Arc::clone(&self.common.links), self.topic.clone(), self.leaders.backoff.next());
        self.run(async move {
            sleep(pause).await;
            // Whoever was asked last may be the one that hasn't heard yet.
            links.ask_another_first();
            let result = links.ask_any(&Metadata { topic }).await;
            Outcome::Leaders { ticket: None, result }
        });
    }

    pub(super) fn forget_waiting_readers(&mut self) {
        self.leaders.waiting.clear();
    }
}
