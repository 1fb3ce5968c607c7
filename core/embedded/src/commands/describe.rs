//! DESCRIBE, LIST_CLUSTER and CLUSTER_STATUS: what administrators look at.

use serde_json::{Value, json};

use super::{Context, Said};
use crate::arguments::Arguments;
use crate::shared::State;

pub(super) fn topic(context: &Context<'_>, arguments: &Arguments) -> Said {
    let Some(name) = arguments.get("topic") else {
        return Err("missing_topic command=DESCRIBE".to_owned());
    };
    context.shared.read(|state| {
        let topic = state.topics.get(name).ok_or_else(|| format!("topic_not_found topic={name}"))?;
        let replicas = replicas(context, state);
        let mut out = format!("{{\n  \"status\": \"OK\",\n  \"topic\": {},\n  \"partitions\": [\n", json!(name));
        for (number, partition) in topic.partitions.iter().enumerate() {
            let end = partition.shelf.end();
            let leader = match context.shared.is_cluster() {
                true => format!("{}:{}", context.shared.advertised_host(), u32::from(state.port(partition.leader)) + 1),
                false => String::new(),
            };
            let comma = if number + 1 == topic.partitions.len() { "" } else { "," };
            let list = nested(&replicas);
            out.push_str(&format!(
                "    {{\n      \"id\": {number},\n      \"leader\": {},\n      \"replicas\": {list},\n      \"isr\": {list},\n      \"leo\": {end},\n      \"hwm\": {end}\n    }}{comma}\n",
                json!(leader)
            ));
        }
        let policy = &topic.policy;
        out.push_str(&format!(
            "  ],\n  \"policy\": {{\n    \"cleanup_policy\": {},\n    \"partitioner\": {},\n    \"auth_policy\": {}\n  }}\n}}",
            json!(policy.cleanup),
            json!(policy.partitioner),
            json!(policy.auth)
        ));
        Ok(out)
    })
}

/// The ids of all brokers; nothing where there is only one.
fn replicas(context: &Context<'_>, state: &State) -> Option<Vec<String>> {
    let ids = (0..state.brokers.len()).map(|broker| context.shared.broker_id(state, broker));
    context.shared.is_cluster().then(|| ids.collect())
}

/// A list as it stands in DESCRIBE's indented JSON.
fn nested(ids: &Option<Vec<String>>) -> String {
    let Some(ids) = ids else { return "null".to_owned() };
    let lines: Vec<String> = ids.iter().map(|id| format!("        {}", json!(id))).collect();
    format!("[\n{}\n      ]", lines.join(",\n"))
}

/// A broker as LIST_CLUSTER and CLUSTER_STATUS show it; a broker that is down is still called active.
fn broker(context: &Context<'_>, state: &State, broker: usize) -> [(&'static str, String); 3] {
    let raft = format!("{}:{}", context.shared.advertised_host(), u32::from(state.port(broker)) + 1);
    [
        ("id", context.shared.broker_id(state, broker)),
        ("addr", raft),
        ("client_addr", context.shared.advertised(state, broker)),
    ]
}

pub(super) fn brokers(context: &Context<'_>) -> Said {
    if !context.shared.is_cluster() {
        return Err("distribution_not_enabled".to_owned());
    }
    context.shared.read(|state| {
        let each = (0..state.brokers.len()).map(|index| {
            let [(_, id), (_, addr), (_, client)] = broker(context, state, index);
            let (id, addr, client) = (json!(id), json!(addr), json!(client));
            let seen = json!(crate::calendar::rfc3339(None));
            format!(
                "{{\"id\":{id},\"addr\":{addr},\"client_addr\":{client},\"status\":\"active\",\"last_seen\":{seen}}}"
            )
        });
        Ok(format!("OK brokers=[{}]", each.collect::<Vec<_>>().join(",")))
    })
}

pub(super) fn cluster(context: &Context<'_>) -> Said {
    if !context.shared.is_cluster() {
        return Err("distribution_required command=CLUSTER_STATUS".to_owned());
    }
    context.shared.read(|state| {
        let brokers: Vec<Value> = (0..state.brokers.len())
            .map(|index| {
                let [(_, id), (_, addr), (_, client)] = broker(context, state, index);
                json!({"id": id, "status": "active", "addr": addr, "client_addr": client})
            })
            .collect();
        let replicas = replicas(context, state);
        let partitions: Vec<Value> = state
            .topics
            .iter()
            .flat_map(|(name, topic)| topic.partitions.iter().enumerate().map(move |found| (name, found)))
            .map(|(name, (number, partition))| {
                json!({
                    "key": format!("{name}-{number}"), "topic": name, "partition": number,
                    "leader": context.shared.broker_id(state, partition.leader), "leader_epoch": partition.epoch,
                    "replicas": replicas, "isr": replicas, "committed_hwm": partition.shelf.end(),
                    "leader_available": state.is_running(partition.leader), "under_replicated": false,
                })
            })
            .collect();
        let leaderless = partitions.iter().filter(|found| found["leader_available"] == false).count();
        let status = json!({
            "raft_leader": context.shared.raft_leader(state), "raft_state": "Leader",
            "broker_count": brokers.len(), "active_brokers": brokers.len(), "inactive_brokers": 0,
            "partition_count": partitions.len(), "leaderless_partitions": leaderless,
            "under_replicated_partitions": 0, "brokers": brokers, "partitions": partitions,
        });
        Ok(format!("OK cluster={status}"))
    })
}
