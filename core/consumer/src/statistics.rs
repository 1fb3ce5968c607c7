//! Every statistic there is: one table, from which the struct and the bindings' objects come.

use std::collections::BTreeMap;

use crate::types::{State, TopicPartition};

/// A row of the table of statistics.
#[derive(Debug, Clone, Copy)]
pub struct Statistic {
    /// Its name; a unit is part of it (`_seconds`, `_bytes`).
    pub name: &'static str,
    /// The kind of value: `text`, `integer`, `number`, `state`, `partitions`, `texts`; `?` behind it means that it may be
    /// absent.
    pub kind: &'static str,
    /// What it says.
    pub doc: &'static str,
}

macro_rules! statistics {
    ($table:ident, $struct:ident, $about:literal: $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $kind:literal;)*) => {
        #[doc = concat!("The table behind [`", stringify!($struct), "`].")]
        pub const $table: &[Statistic] = &[$(Statistic {
            name: stringify!($name),
            kind: $kind,
            doc: concat!($($doc, "\n"),+),
        },)*];

        #[doc = $about]
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub struct $struct { $($(#[doc = $doc])+ pub $name: $type,)* }
    };
}

statistics! {
    STATISTICS, Statistics, "What a consumer is doing, at one moment.":
    /// Where the consumer is in its life.
    state: State = "state";
    /// This member's id, once the group has given one.
    member: Option<String> = "text?";
    /// The group's generation, once joined.
    generation: Option<u64> = "integer?";
    /// The local assignment generation: grows with every assignment that is installed.
    local_generation: u64 = "integer";
    /// The coordinator's address, once found.
    coordinator: Option<String> = "text?";
    /// For how long the coordinator has been out of reach, in seconds; absent while it answers.
    coordinator_unreachable_seconds: Option<f64> = "number?";
    /// Partition by partition, those that are owned.
    partitions: BTreeMap<TopicPartition, PartitionStatistics> = "partitions";
    /// How often the assignment was replaced; the first one doesn't count.
    rebalances: u64 = "integer";
    /// How often a connection was lost or given up.
    reconnects: u64 = "integer";
    /// How many replies could not be decoded. Each closed its connection.
    corrupt_frames: u64 = "integer";
    /// How many records poll has returned.
    records: u64 = "integer";
    /// How many records came in again below the position and were dropped.
    dropped_records: u64 = "integer";
    /// How many offsets were skipped between records: control records, aborted transactions, compaction.
    skipped_offsets: u64 = "integer";
    /// How many commits the broker has taken.
    commits: u64 = "integer";
    /// Bytes fetched and not yet returned by poll.
    buffered_bytes: u64 = "integer";
    /// Bytes of frames that the application still holds through batches and records.
    held_bytes: u64 = "integer";
    /// What is failing now, or failed last.
    last_error: Option<String> = "text?";
    /// For how long it has been failing, in seconds; absent once it works again.
    failing_seconds: Option<f64> = "number?";
    /// What close gave up at its deadline.
    given_up: Vec<String> = "texts";
}

statistics! {
    PARTITION_STATISTICS, PartitionStatistics, "What a consumer is doing with one partition.":
    /// The next offset that poll will return.
    position: u64 = "integer";
    /// The committed offset, as far as this consumer knows; absent where nothing is committed.
    committed: Option<u64> = "integer?";
    /// Bytes fetched and not yet returned by poll.
    buffered_bytes: u64 = "integer";
    /// The broker it is read from; absent while the leader is unknown.
    leader: Option<String> = "text?";
}
