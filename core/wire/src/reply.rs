//! Replies, both directions: a client parses them, a broker encodes them.
//!
//! A reply is `OK`, `OK k=v …`, a JSON object with `"status":"OK"`, a batch of records, or `ERROR: …`.

use std::fmt::Write as _;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::batch::{CorruptBatch, RecordBatch};
use crate::error::{BrokerError, quoted_excerpt};
use crate::fields::{FieldError, Fields, number};
use crate::name::{Group, Member, Topic};

/// Why a reply isn't what its command promises.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReplyError {
    /// The broker refused or failed, and said so.
    #[error("{0}")]
    Broker(#[from] BrokerError),
    /// The reply makes no sense. What else is on its connection can't be trusted either.
    #[error("the reply {text} to {expected} makes no sense: {problem}")]
    Malformed {
        /// What was expected.
        expected: &'static str,
        /// What is wrong.
        problem: String,
        /// The reply's start.
        text: String,
    },
    /// A batch of records that can't be decoded.
    #[error(transparent)]
    Corrupt(#[from] CorruptBatch),
}

/// A reply that can be parsed and written.
pub trait Reply: Sized + Send + 'static {
    /// The command it answers.
    const OF: &'static str;

    /// Reads a reply's body.
    fn parse(body: &Bytes) -> Result<Self, ReplyError> {
        let text = std::str::from_utf8(body).map_err(|error| ReplyError::Malformed {
            expected: Self::OF,
            problem: format!("it is not UTF-8 from byte {} on", error.valid_up_to()),
            text: quoted_excerpt(&String::from_utf8_lossy(&body[..body.len().min(64)])),
        })?;
        let malformed =
            |problem: String| ReplyError::Malformed { expected: Self::OF, problem, text: quoted_excerpt(text) };
        if let Some(error) = BrokerError::parse(text) {
            return Err(error.map_or_else(|problem| malformed(problem.to_string()), ReplyError::Broker));
        }
        Self::from_text(text).map_err(|problem| malformed(problem.to_string()))
    }

    /// Reads a text that is no error.
    fn from_text(text: &str) -> Result<Self, FieldError>;

    /// The reply as text.
    fn to_text(&self) -> String;
}

/// The fields behind `OK`.
fn ok(text: &str) -> Result<Fields, FieldError> {
    match text.strip_prefix("OK") {
        Some(rest) if rest.is_empty() || rest.starts_with(char::is_whitespace) => Fields::parse(rest),
        _ => Err(FieldError::Missing("OK")),
    }
}

fn invalid(name: &str, value: &str, expected: &'static str) -> FieldError {
    FieldError::Invalid { name: name.to_owned(), value: crate::fields::excerpt(value), expected }
}

fn name<T: std::str::FromStr>(fields: &Fields, key: &'static str) -> Result<T, FieldError> {
    let value = fields.require(key)?;
    value.parse().map_err(|_| invalid(key, value, "a name"))
}

fn list(value: &str) -> Vec<String> {
    value.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn json<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, FieldError> {
    serde_json::from_str(text).map_err(|error| invalid("reply", &error.to_string(), "the JSON object it should be"))
}

/// JSON of a type that has nothing which JSON can't hold.
fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Checks the `"status"` of a JSON reply.
fn status_ok(status: &str) -> Result<(), FieldError> {
    if status == "OK" { Ok(()) } else { Err(invalid("status", status, "OK")) }
}

/// A plain `OK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done;

impl Reply for Done {
    const OF: &'static str = "COMMIT_OFFSET";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        ok(text).map(|_| Self)
    }
    fn to_text(&self) -> String {
        "OK".to_owned()
    }
}

/// Credentials were accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    /// Whose.
    pub principal: String,
}

impl Reply for Authenticated {
    const OF: &'static str = "AUTH";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { principal: ok(text)?.require("principal")?.to_owned() })
    }
    fn to_text(&self) -> String {
        format!("OK principal={} authenticated=true", self.principal)
    }
}

/// What was agreed for a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// The version.
    pub version: u32,
    /// What is switched on.
    pub enabled: Vec<String>,
    /// What was asked for and isn't there.
    pub unsupported: Vec<String>,
}

impl Reply for Negotiated {
    const OF: &'static str = "NEGOTIATE";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self {
            version: fields.number("protocol_version")?,
            enabled: list(fields.get("enabled").unwrap_or_default()),
            unsupported: list(fields.get("unsupported").unwrap_or_default()),
        })
    }
    fn to_text(&self) -> String {
        let (enabled, unsupported) = (self.enabled.join(","), self.unsupported.join(","));
        format!("OK protocol_version={} enabled={enabled} unsupported={unsupported}", self.version)
    }
}

/// A broker's versions and features.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtocolInfo {
    /// The oldest version it speaks.
    pub min_version: u32,
    /// The newest.
    pub max_version: u32,
    /// The one without NEGOTIATE.
    pub default_version: u32,
    /// Features that NEGOTIATE can switch on.
    pub features: Vec<String>,
    /// The classes its errors can have.
    pub error_classes: Vec<String>,
}

impl Reply for ProtocolInfo {
    const OF: &'static str = "PROTOCOL_INFO";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self {
            min_version: fields.number("min_version")?,
            max_version: fields.number("max_version")?,
            default_version: fields.number("default_version")?,
            features: list(fields.get("features").unwrap_or_default()),
            error_classes: list(fields.get("error_classes").unwrap_or_default()),
        })
    }
    fn to_text(&self) -> String {
        format!(
            "OK protocol=cursus min_version={} max_version={} default_version={} features={} error_classes={}",
            self.min_version,
            self.max_version,
            self.default_version,
            self.features.join(","),
            self.error_classes.join(",")
        )
    }
}

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

impl Reply for Created {
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

impl Reply for Deleted {
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

impl Reply for Topics {
    const OF: &'static str = "LIST";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { topics: list(ok(text)?.get("topics").unwrap_or_default()) })
    }
    fn to_text(&self) -> String {
        format!("OK count={} topics={}", self.topics.len(), self.topics.join(","))
    }
}

/// The groups of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    /// Their names.
    pub groups: Vec<String>,
}

impl Reply for Groups {
    const OF: &'static str = "LIST_GROUPS";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { groups: list(ok(text)?.get("groups").unwrap_or_default()) })
    }
    fn to_text(&self) -> String {
        format!("OK count={} groups={}", self.groups.len(), self.groups.join(","))
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

impl Reply for Metadata {
    const OF: &'static str = "METADATA";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        let partitions: u32 = fields.number("partitions")?;
        let leaders = fields.require("leaders")?;
        // An empty entry is a partition without a leader, and keeps its place.
        let split: Vec<String> =
            if leaders.is_empty() { Vec::new() } else { leaders.split(',').map(str::to_owned).collect() };
        if split.len() as u64 != u64::from(partitions) && !split.is_empty() {
            return Err(invalid("leaders", leaders, "one address per partition"));
        }
        let epochs = list(fields.get("epochs").unwrap_or_default());
        Ok(Self {
            topic: name(&fields, "topic")?,
            leaders: split,
            epochs: epochs.iter().map(|epoch| number("epochs", epoch)).collect::<Result<_, _>>()?,
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

impl Reply for Offsets {
    const OF: &'static str = "LIST_OFFSETS";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        fn bounds(entry: &str) -> Option<Bounds> {
            let mut parts = entry.split(':');
            let partition = number("partition", parts.next()?.strip_prefix('P')?).ok()?;
            let mut bounds = Bounds { partition, earliest: 0, latest: 0, log_end: 0, high_watermark: 0 };
            for part in parts {
                let (key, value) = part.split_once('=')?;
                let value = number("offset", value).ok()?;
                match key {
                    "earliest" => bounds.earliest = value,
                    "latest" => bounds.latest = value,
                    "leo" => bounds.log_end = value,
                    "hwm" => bounds.high_watermark = value,
                    _ => {}
                }
            }
            Some(bounds)
        }
        let fields = ok(text)?;
        let entries = list(fields.get("offsets").unwrap_or_default());
        Ok(Self {
            topic: name(&fields, "topic")?,
            partitions: entries
                .iter()
                .map(|entry| {
                    bounds(entry).ok_or_else(|| invalid("offsets", entry, "P<n>:earliest=…:latest=…:leo=…:hwm=…"))
                })
                .collect::<Result<_, _>>()?,
        })
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

/// Which broker coordinates a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coordinator {
    /// The broker's id; `standalone` where there is one broker.
    pub id: String,
    /// Its advertised host.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Reply for Coordinator {
    const OF: &'static str = "FIND_COORDINATOR";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        let host = fields.require("host")?;
        if host.is_empty() {
            return Err(invalid("host", host, "a host"));
        }
        Ok(Self {
            id: fields.get("coordinator_id").unwrap_or_default().to_owned(),
            host: host.to_owned(),
            port: fields.number("port")?,
        })
    }
    fn to_text(&self) -> String {
        format!("OK coordinator_id={} coordinator_type=group host={} port={}", self.id, self.host, self.port)
    }
}

/// A member's place in a group: the reply to JOIN_GROUP and SYNC_GROUP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The group's generation.
    pub generation: u64,
    /// The member's actual id.
    pub member: Member,
    /// Its partitions.
    pub partitions: Vec<u32>,
    /// Whether a membership went on at its old generation.
    pub resumed: bool,
}

impl Reply for Assignment {
    const OF: &'static str = "JOIN_GROUP or SYNC_GROUP";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        let assignments = fields.require("assignments")?;
        let inner = assignments
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .ok_or_else(|| invalid("assignments", assignments, "partitions in brackets"))?;
        // The broker writes spaces; its documentation says commas.
        let partitions = inner
            .split([' ', ','])
            .filter(|word| !word.is_empty())
            .map(|word| number("assignments", word))
            .collect::<Result<Vec<u32>, _>>()?;
        let distinct: std::collections::BTreeSet<u32> = partitions.iter().copied().collect();
        if distinct.len() != partitions.len() {
            return Err(invalid("assignments", assignments, "a list that has each partition once"));
        }
        Ok(Self {
            generation: fields.number("generation")?,
            member: name(&fields, "member")?,
            partitions,
            resumed: fields.get("resumed") == Some("true"),
        })
    }
    fn to_text(&self) -> String {
        let partitions: Vec<String> = self.partitions.iter().map(u32::to_string).collect();
        let resumed = if self.resumed { " resumed=true" } else { "" };
        format!(
            "OK generation={} member={} assignments=[{}]{resumed}",
            self.generation,
            self.member,
            partitions.join(" ")
        )
    }
}

/// A membership is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The member.
    pub member: Member,
    /// The group's generation.
    pub generation: u64,
}

impl Reply for Heartbeat {
    const OF: &'static str = "HEARTBEAT";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self { member: name(&fields, "member")?, generation: fields.number("generation")? })
    }
    fn to_text(&self) -> String {
        format!("OK member={} generation={}", self.member, self.generation)
    }
}

/// A membership ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The group.
    pub group: Group,
    /// Who left.
    pub member: Member,
}

impl Reply for Left {
    const OF: &'static str = "LEAVE_GROUP";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self { group: name(&fields, "group")?, member: name(&fields, "member")? })
    }
    fn to_text(&self) -> String {
        format!("OK group={} member={} left=true", self.group, self.member)
    }
}

/// A committed offset. 0 also means "never committed", and "no such partition".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    /// The next offset to read.
    pub offset: u64,
}

impl Reply for Offset {
    const OF: &'static str = "FETCH_OFFSET";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { offset: ok(text)?.number("offset")? })
    }
    fn to_text(&self) -> String {
        format!("OK offset={}", self.offset)
    }
}

/// A batch of commits was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchCommitted {
    /// How many partitions: fewer than were sent means that some were lost on the way.
    pub count: usize,
}

impl Reply for BatchCommitted {
    const OF: &'static str = "BATCH_COMMIT";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { count: ok(text)?.number("batched")? })
    }
    fn to_text(&self) -> String {
        format!("OK batched={}", self.count)
    }
}

/// A group's state, a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    status: String,
    /// The group.
    pub group_name: String,
    /// The topic it is bound to.
    pub topic_name: String,
    /// `Stable`, `Empty`, ….
    pub state: String,
    /// Its generation.
    pub generation: u64,
    /// How many members.
    pub member_count: usize,
    /// How many partitions the topic had when the group was made.
    pub partition_count: usize,
    /// The members.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub members: Vec<MemberStatus>,
    /// When the group last changed, RFC 3339.
    #[serde(default)]
    pub last_rebalance: String,
}

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its actual id.
    pub member_id: String,
    /// When it was last heard of, RFC 3339.
    #[serde(default)]
    pub last_heartbeat: String,
    /// Its partitions.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub assignments: Vec<u32>,
}

/// Go writes an empty list as `null` at times.
fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl GroupStatus {
    /// The status of a group with these members.
    pub fn new(
        group: &Group,
        topic: &Topic,
        state: &str,
        generation: u64,
        partitions: usize,
        members: Vec<MemberStatus>,
    ) -> Self {
        Self {
            status: "OK".to_owned(),
            group_name: group.to_string(),
            topic_name: topic.to_string(),
            state: state.to_owned(),
            generation,
            member_count: members.len(),
            partition_count: partitions,
            members,
            last_rebalance: "0001-01-01T00:00:00Z".to_owned(),
        }
    }
}

impl Reply for GroupStatus {
    const OF: &'static str = "GROUP_STATUS";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let status: Self = json(text)?;
        status_ok(&status.status)?;
        Ok(status)
    }
    fn to_text(&self) -> String {
        to_json(self)
    }
}

/// A write was acknowledged, a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    status: String,
    /// The last record's offset in a cluster; one more than that from a standalone broker.
    pub last_offset: u64,
    /// The producer's epoch.
    pub producer_epoch: i64,
    /// The producer.
    pub producer_id: String,
    /// The first sequence number.
    pub seq_start: u64,
    /// The last sequence number.
    pub seq_end: u64,
    /// The leader's Raft address, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
}

impl Published {
    /// An acknowledgement.
    pub fn new(
        last_offset: u64,
        producer_id: &str,
        producer_epoch: i64,
        sequences: (u64, u64),
        leader: Option<String>,
    ) -> Self {
        let (seq_start, seq_end) = sequences;
        Self {
            status: "OK".to_owned(),
            last_offset,
            producer_epoch,
            producer_id: producer_id.to_owned(),
            seq_start,
            seq_end,
            leader,
        }
    }
}

impl Reply for Published {
    const OF: &'static str = "PUBLISH";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let published: Self = json(text)?;
        status_ok(&published.status)?;
        Ok(published)
    }
    fn to_text(&self) -> String {
        to_json(self)
    }
}

/// A batch of records: the reply to CONSUME and each frame of a STREAM.
#[derive(Debug, Clone)]
pub struct Records(pub RecordBatch);

impl Reply for Records {
    const OF: &'static str = "CONSUME";
    fn parse(body: &Bytes) -> Result<Self, ReplyError> {
        if RecordBatch::is_batch(body) {
            return Ok(Self(RecordBatch::parse(body.clone())?));
        }
        match std::str::from_utf8(body).ok().and_then(BrokerError::parse) {
            Some(Ok(error)) => Err(ReplyError::Broker(error)),
            _ => Err(ReplyError::Malformed {
                expected: Self::OF,
                problem: "it is neither a batch of records nor an error".to_owned(),
                text: quoted_excerpt(&String::from_utf8_lossy(&body[..body.len().min(64)])),
            }),
        }
    }
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Err(invalid("reply", text, "a batch of records"))
    }
    fn to_text(&self) -> String {
        // A batch is bytes; the embedded cluster writes it as such.
        String::new()
    }
}

/// How a stream ends when the broker says why: `STREAM_CONTROL type=CLOSE reason=… offset=…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamClose {
    /// `offset_out_of_range`, `replaced`, `error`, ….
    pub reason: String,
    /// Where the stream stood.
    pub offset: Option<u64>,
    /// With `offset_out_of_range`: the first offset that is kept.
    pub earliest: Option<u64>,
    /// With `offset_out_of_range`: one past the last.
    pub latest: Option<u64>,
}

impl StreamClose {
    /// The control frame's contents; nothing where the text isn't one.
    pub fn parse(text: &str) -> Option<Result<Self, FieldError>> {
        let rest = text.strip_prefix("STREAM_CONTROL")?;
        Some(Fields::parse(rest).and_then(|fields| {
            let kind = fields.require("type")?;
            if kind != "CLOSE" {
                return Err(invalid("type", kind, "CLOSE"));
            }
            let offset = |key| fields.get(key).map(|value| number(key, value)).transpose();
            Ok(Self {
                reason: fields.require("reason")?.to_owned(),
                offset: offset("offset")?,
                earliest: offset("earliest")?,
                latest: offset("latest")?,
            })
        }))
    }
}
