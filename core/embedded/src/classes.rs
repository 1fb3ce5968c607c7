//! What `structured_errors_v1` adds to an error: ` class=… retryable=…` right behind its code.

/// Codes of readers that never carry either, negotiated or not.
const BARE: [&str; 2] = ["NOT_LEADER", "OFFSET_OUT_OF_RANGE"];

const AVAILABILITY: [&str; 13] = [
    "cluster_metadata_unavailable",
    "cluster_not_available",
    "coordinator_not_available",
    "fsm_not_available",
    "leader_election_result_unavailable",
    "leader_not_found",
    "no_raft_leader",
    "offset_manager_not_available",
    "request_cancelled",
    "router_not_available",
    "transaction_abort_marker_failed",
    "transaction_commit_failed",
    "transaction_sync_failed",
];

const FENCING: [&str; 6] =
    ["GEN_MISMATCH", "NOT_OWNER", "STALE_LEADER_EPOCH", "member_not_found", "producer_fenced", "stale_producer_epoch"];

const CONFLICT: [&str; 8] = [
    "leader_election_rejected",
    "offset_regression",
    "producer_reinitialization_required",
    "topic_not_assigned_to_group",
    "transaction_aborted",
    "transaction_already_committed",
    "transaction_not_abortable",
    "version_conflict",
];

const AUTHORIZATION: [&str; 7] = [
    "NOT_AUTHORIZED_FOR_OPERATION",
    "NOT_AUTHORIZED_FOR_PARTITION",
    "NOT_AUTHORIZED_FOR_TOPIC",
    "authentication_failed",
    "authentication_required",
    "internal_topic_write_forbidden",
    "transaction_metadata_forbidden",
];

const VALIDATION: [&str; 9] = [
    "UNSUPPORTED_FEATURE",
    "UNSUPPORTED_PROTOCOL_VERSION",
    "batch_decode_failed",
    "decode_failed",
    "distribution_not_enabled",
    "distribution_required",
    "duplicate_partition",
    "unknown_command",
    "unsupported_topic_policy",
];

/// The class that the broker gives a code, and whether it says that retrying helps.
fn class(code: &str) -> (&'static str, bool) {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| code.starts_with(prefix));
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| code.ends_with(suffix));
    if matches!(code, "NOT_COORDINATOR" | "NOT_PARTITION_LEADER") {
        ("routing", true)
    } else if AVAILABILITY.contains(&code) {
        ("availability", true)
    } else if FENCING.contains(&code) {
        ("fencing", false)
    } else if CONFLICT.contains(&code) {
        ("conflict", false)
    } else if AUTHORIZATION.contains(&code) || begins(&["not_authorized", "authorization_"]) {
        ("authorization", false)
    } else if VALIDATION.contains(&code) || begins(&["invalid_", "missing_", "empty_", "malformed_"]) {
        ("validation", false)
    } else if code != "topic_create_missing" && ends(&["_not_found", "_missing"]) {
        ("not_found", false)
    } else {
        ("internal", false)
    }
}

/// An error's text with class and retryable behind its code. What is there already is kept.
pub(crate) fn structured(text: &str) -> String {
    let Some(rest) = text.strip_prefix("ERROR: ") else { return text.to_owned() };
    let (code, fields) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
    if BARE.contains(&code) {
        return text.to_owned();
    }
    let (class, retryable) = class(code);
    let mut out = format!("ERROR: {code}");
    if !fields.contains(" class=") {
        out.push_str(" class=");
        out.push_str(class);
    }
    if !fields.contains(" retryable=") {
        out.push_str(if retryable { " retryable=true" } else { " retryable=false" });
    }
    out.push_str(fields);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_come_right_behind_the_code_and_only_once() {
        for (text, expected) in [
            (
                "ERROR: member_not_found member=z group=g",
                "ERROR: member_not_found class=fencing retryable=false member=z group=g",
            ),
            (
                "ERROR: NOT_COORDINATOR host=h port=1",
                "ERROR: NOT_COORDINATOR class=routing retryable=true host=h port=1",
            ),
            ("ERROR: NOT_LEADER LEADER_IS h:1", "ERROR: NOT_LEADER LEADER_IS h:1"),
            ("ERROR: OFFSET_OUT_OF_RANGE requested=1", "ERROR: OFFSET_OUT_OF_RANGE requested=1"),
            ("ERROR: x class=conflict", "ERROR: x retryable=false class=conflict"),
            ("ERROR: topic_not_found topic=t", "ERROR: topic_not_found class=not_found retryable=false topic=t"),
            ("ERROR: invalid_offset", "ERROR: invalid_offset class=validation retryable=false"),
            ("ERROR: raft_apply_failed", "ERROR: raft_apply_failed class=internal retryable=false"),
            ("OK", "OK"),
        ] {
            assert_eq!(structured(text), expected);
        }
    }
}
