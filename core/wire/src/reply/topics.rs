//! Topics: what there is, where it is led and how far it reaches.

use std::fmt::Write as _;

use super::{TextReply, list, name, ok};
use crate::fields::{FieldError, invalid, number};
use crate::name::Topic;

/// What a topic is kept and written by, as CREATE and METADATA end their replies.
const POLICY: &str = "cleanup_policy=delete partitioner=hash_key auth_policy=open read_acl= write_acl= retention_hours=0 retention_bytes=0";

/// A topic was made, or was there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Its name.
    pub topic: Topic,
    /// Its partitions.
    pub partitions: u32,
}

impl TextReply for Created {
    const OF: &'static str = "CREATE";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self { topic: name(&fields, "topic")?, partitions: fields.number("partitions")? })
    }
    fn to_text(&self) -> String {
        format!("OK topic={} partitions={} {POLICY}", self.topic, self.partitions)
    }
}

/// A topic was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    /// Its name.
    pub topic: Topic,
}

impl TextReply for Deleted {
    const OF: &'static str = "DELETE";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { topic: name(&ok(text)?, "topic")? })
    }
    fn to_text(&self) -> String {
        format!("OK topic={} deleted=true", self.topic)
    }
}

/// The topics of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topics {
    /// Their names.
    pub topics: Vec<String>,
}

impl TextReply for Topics {
    const OF: &'static str = "LIST";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { topics: list(&ok(text)?.get("topics").unwrap_or_default()) })
    }
    fn to_text(&self) -> String {
        format!("OK count={} topics={}", self.topics.len(), self.topics.join(","))
    }
}

/// Where a topic's partitions are led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// The topic.
    pub topic: Topic,
    /// The leader's client address by partition; empty where there is none.
    pub leaders: Vec<String>,
    /// The leader's epoch by partition.
    pub epochs: Vec<u64>,
}

impl TextReply for Metadata {
    const OF: &'static str = "METADATA";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        let partitions: usize = fields.number("partitions")?;
        let leaders = fields.require("leaders")?;
        let epochs = fields.get("epochs").unwrap_or_default();
        // An empty entry is a partition without a leader, and keeps its place. All entries are counted before any is kept.
        let count = if partitions == 0 && leaders.is_empty() { 0 } else { leaders.split(',').count() };
        if count != partitions {
            return Err(invalid("leaders", &leaders, "one address per partition"));
        }
        if !epochs.is_empty() && epochs.split(',').count() != partitions {
            return Err(invalid("epochs", &epochs, "one epoch per partition"));
        }
        let mut addresses = Vec::with_capacity(partitions);
        addresses.extend(leaders.split(',').take(partitions).map(str::to_owned));
        Ok(Self {
            topic: name(&fields, "topic")?,
            leaders: addresses,
            epochs: list(&epochs).iter().map(|epoch| number("epochs", epoch)).collect::<Result<_, _>>()?,
        })
    }
    fn to_text(&self) -> String {
        let epochs: Vec<String> = self.epochs.iter().map(u64::to_string).collect();
        let (partitions, leaders) = (self.leaders.len(), self.leaders.join(","));
        format!(
            "OK topic={} partitions={partitions} leaders={leaders} epochs={} {POLICY}",
            self.topic,
            epochs.join(",")
        )
    }
}

/// The bounds of one partition's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The partition.
    pub partition: u32,
    /// The first offset that is kept.
    pub earliest: u64,
    /// One past the last record that a committed reader may see.
    pub latest: u64,
    /// One past the last record that was written.
    pub log_end: u64,
    /// One past the last record that is replicated.
    pub high_watermark: u64,
}

/// The bounds of a topic's partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offsets {
    /// The topic.
    pub topic: Topic,
    /// Partition by partition.
    pub partitions: Vec<Bounds>,
}

impl Bounds {
    /// `P<partition>:earliest=…:latest=…:leo=…:hwm=…`, in any order behind the partition.
    fn parse(entry: &str) -> Option<Self> {
        let mut parts = entry.split(':');
        let partition = number("partition", parts.next()?.strip_prefix('P')?).ok()?;
        let [mut earliest, mut latest, mut log_end, mut high_watermark] = [None; 4];
        for part in parts {
            let (key, value) = part.split_once('=')?;
            let bound = match key {
                "earliest" => &mut earliest,
                "latest" => &mut latest,
                "leo" => &mut log_end,
                "hwm" => &mut high_watermark,
                _ => continue,
            };
            *bound = Some(number(key, value).ok()?);
        }
        Some(Self {
            partition,
            earliest: earliest?,
            latest: latest?,
            log_end: log_end?,
            high_watermark: high_watermark?,
        })
    }
}

impl TextReply for Offsets {
    const OF: &'static str = "LIST_OFFSETS";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        let bounds = |entry: &str| {
            Bounds::parse(entry).ok_or_else(|| invalid("offsets", entry, "P<n>:earliest=…:latest=…:leo=…:hwm=…"))
        };
        let offsets = fields.get("offsets").unwrap_or_default();
        let entries = offsets.split(',').filter(|entry| !entry.is_empty());
        let partitions = entries.map(bounds).collect::<Result<Vec<_>, _>>()?;
        if fields.number::<usize>("partitions")? != partitions.len() {
            return Err(invalid("offsets", &offsets, "one entry per partition"));
        }
        Ok(Self { topic: name(&fields, "topic")?, partitions })
    }
    fn to_text(&self) -> String {
        let mut out = format!("OK topic={} partitions={} offsets=", self.topic, self.partitions.len());
        for (i, b) in self.partitions.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(
                out,
                "{comma}P{}:earliest={}:latest={}:leo={}:hwm={}",
                b.partition, b.earliest, b.latest, b.log_end, b.high_watermark
            );
        }
        out
    }
}
