//! Looking around from time to time: at leaders that changed without telling, and at what would wait in silence for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cursus_wire::command::GroupStatus;

use super::Outcome;
use super::logs::{Leadership, Log};
use super::session::Session;
use crate::health::Part;
use crate::types::TopicPartition;

/// What was seen.
pub(crate) struct Seen {
    leadership: Leadership,
    /// The positions from before the question, so that what was read meanwhile isn't held against them.
    positions: BTreeMap<TopicPartition, u64>,
    logs: BTreeMap<u32, Log>,
    /// How many partitions the group shares out, where it said so.
    shared_out: Option<usize>,
}

impl Session {
    /// Takes a look, unless one is being taken.
    pub(crate) fn watch(&mut self) {
        if self.watching || !self.machine.is_reading() {
            return;
        }
        self.watching = true;
        let (logs, coordinator) = (self.logs(), Arc::clone(&self.coordinator));
        let group = (!self.machine.is_alone()).then(|| self.group.clone());
        let owned = self.common.shared.delivery.partitions();
        let positions: BTreeMap<_, _> =
            owned.into_iter().map(|(partition, owned)| (partition, owned.fetched)).collect();
        self.run(async move {
            let Ok(leadership) = logs.leadership().await else { return Outcome::Watched(None) };
            let wanted: BTreeSet<u32> = positions.keys().map(|partition| partition.partition).collect();
            let (logs, _) = logs.led_by(&leadership, &wanted).await;
            let shared_out = match group {
                Some(group) => coordinator.call(&GroupStatus { group }).await.ok().map(|status| status.partition_count),
                None => None,
            };
            Outcome::Watched(Some(Seen { leadership, positions, logs, shared_out }))
        });
    }

    pub(super) fn on_watched(&mut self, seen: Option<Seen>) {
        self.watching = false;
        // What fails here fails where it matters too, and is told of there.
        let Some(Seen { leadership, positions, logs, shared_out }) = seen else { return };
        let count = leadership.leaders.len();
        self.forgive_topic();
        self.follow_leaders(&leadership);
        let health = &self.common.shared.health;
        let before = std::mem::take(&mut self.beyond);
        for (partition, position) in positions {
            let Some(log) = logs.get(&partition.partition) else { continue };
            let part = Part::Position(partition.clone());
            if position > log.bounds.log_end {
                // Seen once it may be a broker that was asked in the moment in which it became leader, and is behind.
                self.beyond.insert(partition.clone(), position);
                if before.get(&partition) != Some(&position) {
                    continue;
                }
                let why = format!(
                    "{partition} is read from {position}, and its log ends at {}: the topic was made anew, or somebody \
                     committed beyond the end. Nothing comes before the log gets there; seek, or use another group",
                    log.bounds.log_end
                );
                health.trouble(part, &why);
            } else {
                health.recovered(&part);
            }
        }
        match shared_out {
            Some(known) if known > 0 && known < count => {
                let why = format!(
                    "topic {} has {count} partitions, and group {} shares out the {known} that it had when the group was \
                     made: nobody reads the others. Use another group to read them",
                    self.topic, self.group
                );
                health.trouble(Part::Growth, &why);
            }
            Some(_) => health.recovered(&Part::Growth),
            None => {}
        }
    }
}
