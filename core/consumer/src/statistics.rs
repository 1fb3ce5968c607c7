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

/// A statistic's value, for those who walk the table instead of naming fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure<'a> {
    /// Nothing, at the moment.
    Absent,
    /// Text.
    Text(&'a str),
    /// A whole number.
    Integer(u64),
    /// A number.
    Number(f64),
    /// Where the consumer is in its life.
    State(State),
    /// A list of texts.
    Texts(&'a [String]),
    /// Partition by partition.
    Partitions(&'a BTreeMap<TopicPartition, PartitionStatistics>),
}

trait Measured {
    fn measure(&self) -> Measure<'_>;
}

macro_rules! measured {
    ($($type:ty: |$value:ident| $measure:expr;)*) => {
        $(impl Measured for $type {
            fn measure(&self) -> Measure<'_> {
                let $value = self;
                $measure
            }
        })*
    };
}

measured! {
    String: |text| Measure::Text(text);
    u64: |number| Measure::Integer(*number);
    f64: |number| Measure::Number(*number);
    State: |state| Measure::State(*state);
    Vec<String>: |texts| Measure::Texts(texts);
    BTreeMap<TopicPartition, PartitionStatistics>: |partitions| Measure::Partitions(partitions);
}

impl<T: Measured> Measured for Option<T> {
    fn measure(&self) -> Measure<'_> {
        self.as_ref().map_or(Measure::Absent, Measured::measure)
    }
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

        impl $struct {
            /// Every statistic's name and value, in the table's order.
            pub fn values(&self) -> impl Iterator<Item = (&'static str, Measure<'_>)> {
                [$((stringify!($name), self.$name.measure()),)*].into_iter()
            }
        }
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
    /// The next offset that is asked of the broker: what lies between the position and this is buffered.
    fetched: u64 = "integer";
    /// The committed offset, as far as this consumer knows; absent where nothing is committed.
    committed: Option<u64> = "integer?";
    /// Bytes fetched and not yet returned by poll.
    buffered_bytes: u64 = "integer";
    /// The broker it is read from; absent while the leader is unknown.
    leader: Option<String> = "text?";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_of_the_kind_that_its_row_names() {
        let partition = TopicPartition::new(cursus_wire::Topic::new("t").unwrap(), 0);
        let of_partition = PartitionStatistics {
            position: 7,
            fetched: 9,
            committed: None,
            buffered_bytes: 0,
            leader: Some("h:1".to_owned()),
        };
        let statistics = Statistics {
            state: State::Running,
            member: Some("m".to_owned()),
            generation: Some(1),
            local_generation: 1,
            coordinator: None,
            coordinator_unreachable_seconds: Some(0.5),
            partitions: BTreeMap::from([(partition, of_partition.clone())]),
            rebalances: 0,
            reconnects: 0,
            corrupt_frames: 0,
            records: 0,
            dropped_records: 0,
            skipped_offsets: 0,
            commits: 0,
            buffered_bytes: 0,
            held_bytes: 0,
            last_error: None,
            failing_seconds: None,
            given_up: Vec::new(),
        };
        let rows = STATISTICS.iter().zip(statistics.values());
        for (row, (name, value)) in rows.chain(PARTITION_STATISTICS.iter().zip(of_partition.values())) {
            let kind = match value {
                Measure::Absent => {
                    assert!(row.kind.ends_with('?'), "{name} is absent and its kind is {}", row.kind);
                    continue;
                }
                Measure::Text(_) => "text",
                Measure::Integer(_) => "integer",
                Measure::Number(_) => "number",
                Measure::State(_) => "state",
                Measure::Texts(_) => "texts",
                Measure::Partitions(_) => "partitions",
            };
            assert_eq!((row.name, row.kind.trim_end_matches('?')), (name, kind));
        }
    }
}
