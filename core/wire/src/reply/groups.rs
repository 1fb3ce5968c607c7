//! Groups: where they are coordinated, who is in them, and what each member has.

use serde::{Deserialize, Serialize};

use super::{TextReply, json, list, name, ok, status_ok, to_json};
use crate::fields::{FieldError, invalid, number};
use crate::name::{Group, Member, Topic};

/// What a broker coordinates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoordinatorKind {
    /// A group.
    Group,
    /// A transactional producer's transactions.
    Transaction,
}

impl CoordinatorKind {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Transaction => "transaction",
        }
    }
}

/// Which broker coordinates a group, or somebody's transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coordinator {
    /// What it was asked for.
    pub kind: CoordinatorKind,
    /// The broker's id; `standalone` where there is one broker.
    pub id: String,
    /// Its advertised host.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl TextReply for Coordinator {
    const OF: &'static str = "FIND_COORDINATOR";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        let host = fields.require("host")?;
        if host.is_empty() {
            return Err(invalid("host", &host, "a host"));
        }
        let kind = match fields.get("coordinator_type").as_deref() {
            Some("transaction") => CoordinatorKind::Transaction,
            _ => CoordinatorKind::Group,
        };
        Ok(Self {
            kind,
            id: fields.get("coordinator_id").unwrap_or_default().into_owned(),
            host: host.into_owned(),
            port: fields.number("port")?,
        })
    }
    fn to_text(&self) -> String {
        let Self { kind, id, host, port } = self;
        format!("OK coordinator_id={id} coordinator_type={} host={host} port={port}", kind.name())
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

impl TextReply for Assignment {
    const OF: &'static str = "JOIN_GROUP or SYNC_GROUP";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        let assignments = fields.require("assignments")?;
        let bad = |expected| invalid("assignments", &assignments, expected);
        let inner = assignments.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        // The broker writes spaces; its documentation says commas.
        let partitions = inner
            .ok_or_else(|| bad("partitions in brackets"))?
            .split([' ', ','])
            .filter(|word| !word.is_empty())
            .map(|word| number("assignments", word))
            .collect::<Result<Vec<u32>, _>>()?;
        let mut sorted = partitions.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(bad("a list that has each partition once"));
        }
        Ok(Self {
            generation: fields.number("generation")?,
            member: name(&fields, "member")?,
            partitions,
            resumed: fields.get("resumed").as_deref() == Some("true"),
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

impl TextReply for Heartbeat {
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

impl TextReply for Left {
    const OF: &'static str = "LEAVE_GROUP";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self { group: name(&fields, "group")?, member: name(&fields, "member")? })
    }
    fn to_text(&self) -> String {
        format!("OK group={} member={} left=true", self.group, self.member)
    }
}

/// The groups of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    /// Their names.
    pub groups: Vec<String>,
}

impl TextReply for Groups {
    const OF: &'static str = "LIST_GROUPS";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        Ok(Self { groups: list(&ok(text)?.get("groups").unwrap_or_default()) })
    }
    fn to_text(&self) -> String {
        format!("OK count={} groups={}", self.groups.len(), self.groups.join(","))
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

impl TextReply for GroupStatus {
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
