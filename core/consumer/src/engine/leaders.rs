//! Who leads which partition, and finding out again when that was wrong.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::brokers::Address;
use crate::types::TopicPartition;

use super::Outcome;
use super::logs::Leadership;
use super::session::Session;

/// How many times in a row an answer with an older epoch is taken for one of a broker that hasn't heard yet. After that it is
/// believed: a topic that was made anew counts its leaders from the start.
const DOUBTED: u32 = 3;

pub(crate) struct Leaders {
    by_partition: Vec<Leader>,
    /// METADATA was asked for, or is about to be.
    asking: bool,
    /// Readers that go on when it is answered.
    waiting: BTreeSet<TopicPartition>,
    pub(super) backoff: Backoff,
}

#[derive(Default)]
struct Leader {
    address: Option<Address>,
    epoch: u64,
    doubted: u32,
}

impl Leaders {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self { by_partition: Vec::new(), asking: false, waiting: BTreeSet::new(), backoff }
    }

    pub(super) fn of(&self, partition: u32) -> Option<&Address> {
        self.by_partition.get(partition as usize)?.address.as_ref()
    }

    /// How many partitions the topic has, as far as is known.
    pub(super) fn count(&self) -> usize {
        self.by_partition.len()
    }

    pub(super) fn set(&mut self, partition: u32, address: Address) {
        if let Some(leader) = self.by_partition.get_mut(partition as usize) {
            leader.address = Some(address);
        }
    }

    /// Takes what a broker says, where it isn't older than what is known.
    fn learn(&mut self, leadership: &Leadership) {
        self.by_partition.resize_with(leadership.leaders.len(), Leader::default);
        for ((known, address), epoch) in self.by_partition.iter_mut().zip(&leadership.leaders).zip(&leadership.epochs) {
            if *epoch < known.epoch && known.doubted < DOUBTED {
                known.doubted += 1;
                continue;
            }
            *known = Leader { address: address.clone(), epoch: *epoch, doubted: 0 };
        }
    }
}

impl Session {
    /// Takes what a broker says of the leaders, and goes on with the readers that waited for it.
    pub(super) fn take_leaders(&mut self, leadership: &Leadership) {
        self.learn_leaders(leadership);
        self.leaders.asking = false;
        for partition in std::mem::take(&mut self.leaders.waiting) {
            if let Some(fence) = self.readings.fence(&partition) {
                self.read(&partition, fence);
            }
        }
    }

    /// The same where nobody waits: a stream goes on flowing from a broker that no longer leads, and has to be told.
    pub(super) fn follow_leaders(&mut self, leadership: &Leadership) {
        self.learn_leaders(leadership);
        for (partition, fence, leader) in self.readings.streaming() {
            let now = self.leaders.of(partition.partition);
            if now.is_some_and(|now| *now != leader) {
                tracing::info!(%partition, from = %leader, "the leader has changed under a stream");
                self.read_anew(&partition, fence);
            }
        }
    }

    fn learn_leaders(&mut self, leadership: &Leadership) {
        self.leaders.learn(leadership);
        self.common.links.learn(leadership.leaders.iter().flatten());
    }

    /// METADATA failed: readers that wait for it have to wait longer.
    pub(super) fn leaders_failed(&mut self) {
        self.leaders.asking = false;
        if self.leaders.waiting.is_empty() {
            // Nobody needs to know any more.
            self.forgive_topic();
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
        let (links, logs, pause) = (Arc::clone(&self.common.links), self.logs(), self.leaders.backoff.next());
        self.run(async move {
            sleep(pause).await;
            // Whoever was asked last may be the one that hasn't heard yet.
            links.ask_another_first();
            Outcome::Leaders { ticket: None, result: logs.leadership().await }
        });
    }

    pub(super) fn forget_waiting_readers(&mut self) {
        self.leaders.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cursus_net::SplitMix;
    use std::time::Duration;

    fn named(port: u16, epoch: u64) -> Leadership {
        Leadership { leaders: vec![Some(Address::new("h", port))], epochs: vec![epoch] }
    }

    #[test]
    fn an_older_leader_is_believed_only_from_who_insists() {
        let pause = Duration::from_millis(1);
        let mut leaders = Leaders::new(Backoff::new(pause, pause, Arc::new(SplitMix::seeded(1))));
        let port = |leaders: &Leaders| leaders.of(0).map(|address| address.port);
        leaders.learn(&named(1, 4));
        leaders.learn(&named(2, 5));
        for _ in 0..DOUBTED {
            leaders.learn(&named(1, 4));
            assert_eq!(port(&leaders), Some(2), "a broker that hasn't heard yet");
        }
        leaders.learn(&named(1, 4));
        assert_eq!(port(&leaders), Some(1));
        leaders.learn(&named(3, 4));
        assert_eq!(port(&leaders), Some(3), "standalone brokers don't count");
    }
}
