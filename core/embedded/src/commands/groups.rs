//! The group protocol: FIND_COORDINATOR, REGISTER_GROUP, JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP, GROUP_STATUS,
//! LIST_GROUPS.
//!
//! Replies are written here rather than by `cursus_wire`'s types where they repeat what the client sent: the broker
//! takes any word for a name, and a negative generation, which those types rightly refuse.

use std::time::Duration;

use cursus_wire::TextReply;
use cursus_wire::reply::{Coordinator, CoordinatorKind, Groups};
use serde::Serialize;
use tokio::time::Instant;

use super::{Context, Said};
use crate::arguments::{Arguments, quote, signed};
use crate::calendar::rfc3339;
use crate::groups::Caller;
use crate::shared::{DEFAULT_GROUP, Endpoint};
use crate::transactions::coordinator_key;

/// The arguments that all commands of a member have.
pub(super) struct Named<'a> {
    pub(super) topic: &'a str,
    pub(super) group: &'a str,
    pub(super) member: &'a str,
}

impl<'a> Named<'a> {
    pub(super) fn read(arguments: &'a Arguments, command: &str) -> Result<Self, String> {
        Ok(Self {
            topic: arguments.require("topic", command)?,
            group: arguments.require("group", command)?,
            member: arguments.require("member", command)?,
        })
    }

    pub(super) fn caller(&self, generation: i64) -> Caller<'a> {
        Caller { group: self.group, member: self.member, generation }
    }
}

pub(super) fn generation(arguments: &Arguments, command: &str) -> Result<i64, String> {
    let text = arguments.require("generation", command)?;
    signed(text).ok_or_else(|| format!("invalid_generation command={command}"))
}

pub(super) fn find_coordinator(context: &Context<'_>, arguments: &Arguments) -> Said {
    let group = arguments.get("group");
    let transactional = ["transactional_id", "txn", "transaction"].into_iter().find_map(|key| arguments.get(key));
    context.shared.read(|state| {
        let (key, kind) = match (group, transactional) {
            (Some(group), _) => (group.to_owned(), CoordinatorKind::Group),
            (None, Some(id)) => (coordinator_key(id), CoordinatorKind::Transaction),
            (None, None) => return Err("missing_coordinator_key command=FIND_COORDINATOR".to_owned()),
        };
        let broker = state.coordinator(&key);
        let Endpoint { host, port } = context.shared.endpoint(state, broker);
        Ok(Coordinator { kind, id: context.shared.broker_id(state, broker), host, port }.to_text())
    })
}

pub(super) fn register(context: &Context<'_>, arguments: &Arguments) -> Said {
    let topic = arguments.require("topic", "REGISTER_GROUP")?;
    let group = arguments.require("group", "REGISTER_GROUP")?;
    context.shared.change(|state| {
        let found = state.topics.get(topic).ok_or_else(|| format!("topic_not_found topic={topic}"))?;
        let partitions = found.count();
        state.groups.register(group, topic, partitions).map_err(|refusal| refusal.to_string())?;
        Ok(format!("OK group={group} topic={topic} registered=true"))
    })
}

/// The reply of JOIN_GROUP and SYNC_GROUP, with spaces between the partitions.
fn membership(generation: i64, member: &str, partitions: &[u32]) -> String {
    let partitions: Vec<String> = partitions.iter().map(u32::to_string).collect();
    format!("OK generation={generation} member={member} assignments=[{}]", partitions.join(" "))
}

pub(super) async fn join(context: &Context<'_>, arguments: &Arguments) -> Said {
    const NAME: &str = "JOIN_GROUP";
    let named = Named::read(arguments, NAME)?;
    let Named { topic, group, member } = named;
    if arguments.get("generation").is_some() {
        return context.shared.change(|state| {
            context.check_coordinator(state, group)?;
            state.groups.check_topic(group, topic).map_err(|refusal| refusal.to_string())?;
            let generation = generation(arguments, NAME)?;
            let now = context.shared.clock.now();
            let partitions = state.groups.sync(named.caller(generation), now).map_err(|refusal| refusal.to_string())?;
            Ok(format!("{} resumed=true", membership(generation, member, &partitions)))
        });
    }
    let cluster = context.shared.is_cluster();
    let (generation, member, partitions) = context.shared.change(|state| {
        context.check_coordinator(state, group)?;
        state.groups.check_topic(group, topic).map_err(|refusal| refusal.to_string())?;
        if state.groups.get(group).is_none() {
            let Some(found) = state.topics.get(topic) else {
                return Err(if cluster { missing_in_cluster(topic) } else { format!("topic_not_found topic={topic}") });
            };
            let partitions = found.count();
            state.groups.register(group, topic, partitions).map_err(|refusal| refusal.to_string())?;
        }
        let member = format!("{member}-{:04}", context.shared.options.randomness.below(10_000));
        let joined = state.groups.join(group, &member, context.shared.clock.now());
        let (generation, partitions) = joined.map_err(|refusal| refusal.to_string())?;
        Ok((generation, member, partitions))
    })?;
    if !cluster || !partitions.is_empty() {
        return Ok(membership(generation, &member, &partitions));
    }
    // In a cluster the broker looks ten times, every 50 ms, for an assignment that isn't empty. One that has come
    // meanwhile is of the generation it came with.
    for _ in 0..10 {
        if !context.pause(Duration::from_millis(50)).await {
            break;
        }
        let found = context.shared.read(|state| {
            let group = state.groups.get(group)?;
            let partitions = group.members.get(&member)?.partitions.clone();
            (!partitions.is_empty()).then_some((group.generation, partitions))
        });
        if let Some((generation, partitions)) = found {
            return Ok(membership(generation, &member, &partitions));
        }
    }
    let now = context.shared.read(|state| state.groups.get(group).map_or(generation, |group| group.generation));
    Ok(membership(now, &member, &[]))
}

/// The coordinator of a cluster wraps what its Raft leader said.
fn missing_in_cluster(topic: &str) -> String {
    let inner = format!("topic '{topic}' not found during group join");
    let outer = format!("leader raft apply: ERROR: raft_apply_failed reason={}", quote(&inner));
    format!("register_group_failed reason={}", quote(&outer))
}

pub(super) fn sync(context: &Context<'_>, arguments: &Arguments, now: Instant) -> Said {
    const NAME: &str = "SYNC_GROUP";
    let named = Named::read(arguments, NAME)?;
    context.shared.change(|state| {
        context.check_coordinator(state, named.group)?;
        state.groups.check_topic(named.group, named.topic).map_err(|refusal| refusal.to_string())?;
        let generation = generation(arguments, NAME)?;
        let partitions = state.groups.sync(named.caller(generation), now).map_err(|refusal| refusal.to_string())?;
        Ok(membership(generation, named.member, &partitions))
    })
}

pub(super) fn heartbeat(context: &Context<'_>, arguments: &Arguments, now: Instant) -> Said {
    const NAME: &str = "HEARTBEAT";
    let named = Named::read(arguments, NAME)?;
    context.shared.change(|state| {
        context.check_coordinator(state, named.group)?;
        state.groups.check_topic(named.group, named.topic).map_err(|refusal| refusal.to_string())?;
        let generation = generation(arguments, NAME)?;
        state.groups.heartbeat(named.caller(generation), now).map_err(|refusal| refusal.to_string())?;
        Ok(format!("OK member={} generation={generation}", named.member))
    })
}

pub(super) fn leave(context: &Context<'_>, arguments: &Arguments, now: Instant) -> Said {
    const NAME: &str = "LEAVE_GROUP";
    let named = Named::read(arguments, NAME)?;
    // Unlike the others, this one looks at the generation before anything else.
    let generation = generation(arguments, NAME)?;
    context.shared.change(|state| {
        context.check_coordinator(state, named.group)?;
        state.groups.check_topic(named.group, named.topic).map_err(|refusal| refusal.to_string())?;
        state.groups.leave(named.caller(generation), now).map_err(|refusal| refusal.to_string())?;
        Ok(format!("OK group={} member={} left=true", named.group, named.member))
    })
}

/// The JSON of GROUP_STATUS, its fields in the broker's order.
#[derive(Serialize)]
struct Status<'a> {
    status: &'static str,
    group_name: &'a str,
    topic_name: &'a str,
    state: &'static str,
    generation: i64,
    member_count: usize,
    partition_count: u32,
    members: Vec<MemberStatus<'a>>,
    last_rebalance: String,
}

#[derive(Serialize)]
struct MemberStatus<'a> {
    member_id: &'a str,
    last_heartbeat: String,
    assignments: &'a [u32],
}

pub(super) fn status(context: &Context<'_>, arguments: &Arguments) -> Said {
    let name = arguments.require("group", "GROUP_STATUS")?;
    let at = |when: Instant| rfc3339(Some(when.duration_since(context.shared.started)));
    context.shared.read(|state| {
        context.check_coordinator(state, name)?;
        let group = state.groups.get(name).ok_or_else(|| {
            let reason = format!("group '{name}' not found");
            format!("group_status_failed reason={}", quote(&reason))
        })?;
        let members = group.members.iter().map(|(id, member)| MemberStatus {
            member_id: id,
            last_heartbeat: at(member.heard),
            assignments: &member.partitions,
        });
        let status = Status {
            status: "OK",
            group_name: name,
            topic_name: &group.topic,
            state: group.state(),
            generation: group.generation,
            member_count: group.members.len(),
            partition_count: group.partitions,
            members: members.collect(),
            last_rebalance: group.rebalanced.map_or_else(|| rfc3339(None), at),
        };
        serde_json::to_string(&status).map_err(|error| format!("group_status_failed reason=\"{error}\""))
    })
}

pub(super) fn list(context: &Context<'_>) -> String {
    context.shared.read(|state| {
        // Only the broker that carried out the first CREATE knows of the default group, in a cluster the Raft leader.
        let knows = !context.shared.is_cluster() || state.first_running() == Some(context.broker);
        let groups = state.groups.names().filter(|name| knows || *name != DEFAULT_GROUP).cloned().collect();
        Groups { groups }.to_text()
    })
}
