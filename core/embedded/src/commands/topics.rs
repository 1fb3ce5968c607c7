//! CREATE, DELETE, LIST, METADATA, LIST_OFFSETS, ELECT_LEADER.

use cursus_wire::TextReply;
use cursus_wire::reply::Topics;

use super::{Context, Said};
use crate::arguments::{Arguments, quote, signed};
use crate::shared::{DEFAULT_GROUP, INTERNAL_TOPIC};
use crate::topics::{MAX_PARTITIONS, Policy, check_name};

pub(super) fn create(context: &Context<'_>, arguments: &Arguments) -> Said {
    let Some(name) = arguments.get("topic") else {
        return Err("missing_topic expected=\"CREATE topic=<name> [partitions=<N>]\"".to_owned());
    };
    check_name(name).map_err(|reason| format!("invalid_topic_name topic={} reason={}", quote(name), quote(&reason)))?;
    let positive = |text: &str| signed(text).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    let partitions = positive(arguments.get("partitions").unwrap_or("4"))
        .ok_or("invalid_partitions reason=\"must be a positive integer\"")?;
    let policy = policy(arguments)?;
    if context.shared.is_cluster() && policy.cleanup.contains("compact") {
        let reason = "compaction is not supported in distributed mode";
        return Err(format!("unsupported_topic_policy field=cleanup_policy reason={}", quote(reason)));
    }
    positive(arguments.get("replication_factor").unwrap_or("3"))
        .ok_or("invalid_replication_factor reason=\"must be a positive integer\"")?;
    if partitions > MAX_PARTITIONS {
        let reason = format!("the embedded cluster makes at most {MAX_PARTITIONS} partitions");
        return Err(format!("create_topic_failed topic={name} reason={}", quote(&reason)));
    }
    let flag = |key| arguments.get(key).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    context.shared.change(|state| {
        let existed = state.topics.get(name).map(crate::topics::Topic::count);
        if let Some(count) = existed.filter(|count| *count > partitions) {
            let (quoted, topic) = if context.shared.is_cluster() {
                (quote(name), String::new())
            } else {
                (format!("'{name}'"), format!("topic={name} "))
            };
            let reason = format!("cannot decrease partition count for topic {quoted}: {count} -> {partitions}");
            return Err(format!("create_topic_failed {topic}reason={}", quote(&reason)));
        }
        let topic = state.topics.create(name, partitions, context.shared.options.brokers);
        if existed.is_none() {
            topic.idempotent = flag("idempotent");
            topic.event_sourcing = flag("event_sourcing");
        }
        // An option that is left out goes back to its default, on an existing topic too.
        topic.policy = policy;
        let reply = format!("OK topic={name} partitions={partitions} {}", topic.policy);
        if !state.default_group_made {
            state.default_group_made = true;
            // The group may exist for another topic already; the broker doesn't care either.
            let _ = state.groups.register(DEFAULT_GROUP, name, partitions);
        }
        Ok(reply)
    })
}

fn policy(arguments: &Arguments) -> Result<Policy, String> {
    let number = |key: &str| match arguments.get(key) {
        Some(value) => signed(value).ok_or_else(|| format!("invalid_{key} value={value}")),
        None => Ok(0),
    };
    let (retention_hours, retention_bytes) = (number("retention_hours")?, number("retention_bytes")?);
    let invalid = |reason: String| Err(format!("invalid_topic_policy reason={}", quote(&reason)));
    let choice = |key: &str, what: &str, allowed: &[&str]| {
        let value = arguments.get(key).unwrap_or(allowed[0]).to_ascii_lowercase();
        if allowed.contains(&value.as_str()) {
            return Ok(value);
        }
        let reason = format!("invalid {what} {}", quote(&value));
        Err(format!("invalid_topic_policy reason={}", quote(&reason)))
    };
    let policy = Policy {
        cleanup: choice(
            "cleanup_policy",
            "cleanup policy",
            &["delete", "compact", "delete,compact", "compact,delete"],
        )?,
        partitioner: choice("partitioner", "partitioner", &["hash_key", "round_robin"])?,
        auth: choice("auth_policy", "auth policy", &["open", "acl", "deny_read", "deny_write"])?,
        read_acl: arguments.get("read_acl").unwrap_or_default().to_owned(),
        write_acl: arguments.get("write_acl").unwrap_or_default().to_owned(),
        retention_hours,
        retention_bytes,
    };
    for (key, value) in [("retention_hours", retention_hours), ("retention_bytes", retention_bytes)] {
        if value < 0 {
            return invalid(format!("{key} must be >= 0"));
        }
    }
    Ok(policy)
}

pub(super) fn delete(context: &Context<'_>, arguments: &Arguments) -> Said {
    let Some(name) = arguments.get("topic") else {
        return Err("missing_topic expected=\"DELETE topic=<name>\"".to_owned());
    };
    if name == INTERNAL_TOPIC {
        let reason = "cannot delete broker-owned internal consumer metadata topic";
        return Err(format!("delete_topic_failed topic={name} reason={}", quote(reason)));
    }
    // Groups that read the topic stay as they are, offsets included.
    match context.shared.change(|state| state.topics.remove(name)) {
        true => Ok(format!("OK topic={name} deleted=true")),
        false => Err(format!("topic_not_found topic={name}")),
    }
}

pub(super) fn list(context: &Context<'_>) -> String {
    Topics { topics: context.shared.read(|state| state.topics.names()) }.to_text()
}

pub(super) fn metadata(context: &Context<'_>, arguments: &Arguments) -> Said {
    let name = arguments.require("topic", "METADATA")?;
    context.shared.read(|state| {
        let topic = state.topics.get(name).ok_or_else(|| format!("topic_not_found topic={name}"))?;
        let leaders: Vec<String> =
            topic.partitions.iter().map(|partition| context.shared.advertised(state, partition.leader)).collect();
        let epochs: Vec<String> = topic.partitions.iter().map(|partition| partition.epoch.to_string()).collect();
        let (partitions, leaders, epochs, policy) = (topic.count(), leaders.join(","), epochs.join(","), &topic.policy);
        Ok(format!("OK topic={name} partitions={partitions} leaders={leaders} epochs={epochs} {policy}"))
    })
}

pub(super) fn list_offsets(context: &Context<'_>, arguments: &Arguments) -> Said {
    let name = arguments.require("topic", "LIST_OFFSETS")?;
    context.shared.read(|state| {
        let topic = state.topics.get(name).ok_or_else(|| format!("topic_not_found topic={name}"))?;
        let wanted = match arguments.get("partition") {
            None => 0..topic.count(),
            Some(text) => {
                let number = signed(text).filter(|n| *n >= 0).ok_or("invalid_partition command=LIST_OFFSETS")?;
                let found = u32::try_from(number).ok().filter(|n| *n < topic.count());
                let partition = found.ok_or_else(|| format!("partition_not_found partition={number}"))?;
                partition..partition + 1
            }
        };
        let entries: Vec<String> = wanted
            .filter_map(|number| {
                let (earliest, end) = topic.partition(number)?.shelf.read(|log| (log.earliest(), log.end()));
                Some(format!("P{number}:earliest={earliest}:latest={end}:leo={end}:hwm={end}"))
            })
            .collect();
        Ok(format!("OK topic={name} partitions={} offsets={}", entries.len(), entries.join(",")))
    })
}

/// Every broker has a copy of everything here, so that any of them can lead; one that is down, too, as with the broker.
pub(super) fn elect_leader(context: &Context<'_>, arguments: &Arguments) -> Said {
    if !context.shared.is_cluster() {
        return Err("distribution_required command=ELECT_LEADER".to_owned());
    }
    let name = arguments.require("topic", "ELECT_LEADER")?;
    let partition = arguments.get("partition").and_then(signed).filter(|number| *number >= 0);
    let partition = partition.ok_or("invalid_partition command=ELECT_LEADER")?;
    let id = arguments.require("broker", "ELECT_LEADER")?;
    context.shared.change(|state| {
        let ids: Vec<String> = (0..state.brokers.len()).map(|broker| context.shared.broker_id(state, broker)).collect();
        let found = usize::try_from(partition).ok();
        let found = state.topics.get_mut(name).and_then(|topic| topic.partitions.get_mut(found?));
        let target = found.ok_or_else(|| format!("partition_not_found topic={name} partition={partition}"))?;
        let Some(broker) = ids.iter().position(|known| known == id) else {
            let reason = quote(&format!("broker {id} not found"));
            return Err(format!(
                "leader_election_rejected topic={name} partition={partition} broker={id} reason={reason}"
            ));
        };
        let previous = std::mem::replace(&mut target.leader, broker);
        let changed = previous != broker;
        target.epoch += u64::from(changed);
        let (previous, epoch) = (&ids[previous], target.epoch);
        Ok(format!(
            "OK topic={name} partition={partition} previous_leader={previous} leader={id} leader_epoch={epoch} changed={changed}"
        ))
    })
}
