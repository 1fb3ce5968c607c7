//! AUTH, NEGOTIATE, PROTOCOL_INFO, HELP.

use std::collections::BTreeSet;

use cursus_wire::TextReply;
use cursus_wire::reply::{Negotiated, ProtocolInfo};

use super::{Said, Session};
use crate::arguments::{Arguments, quote, signed};
use crate::incoming::{WORDS, command_named};

const FEATURES: [&str; 6] = [
    "event_sourcing_v1",
    "idempotent_producer_v1",
    "offset_resume_v1",
    "stream_control_v1",
    STRUCTURED,
    "topic_compaction_v1",
];

const STRUCTURED: &str = "structured_errors_v1";

const ERROR_CLASSES: [&str; 8] =
    ["authorization", "availability", "conflict", "fencing", "internal", "not_found", "routing", "validation"];

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub(super) fn info() -> String {
    let info = ProtocolInfo {
        min_version: 1,
        max_version: 1,
        default_version: 1,
        features: owned(&FEATURES),
        error_classes: owned(&ERROR_CLASSES),
    };
    info.to_text()
}

pub(super) fn help() -> String {
    let names: Vec<&str> = WORDS.into_iter().filter(|word| command_named(word).is_some()).collect();
    format!("OK commands={}", names.join(","))
}

/// Authentication is off, so every attempt fails.
pub(super) fn auth(arguments: &Arguments) -> Said {
    let token = arguments.get("token").or_else(|| arguments.get("auth_token"));
    if arguments.get("principal").is_none() || token.is_none() {
        return Err("invalid_auth command=AUTH".to_owned());
    }
    Err("authentication_failed mechanism=PLAIN".to_owned())
}

/// Every command may carry credentials; with authentication off none are good.
pub(super) fn check_inline_credentials(name: &str, arguments: &Arguments) -> Result<(), String> {
    if name == "AUTH" {
        return Ok(());
    }
    match (arguments.get("principal"), arguments.get("auth_token")) {
        (None, None) => Ok(()),
        (Some(_), Some(_)) => Err("authentication_failed mechanism=PLAIN".to_owned()),
        _ => Err("invalid_auth reason=principal_and_auth_token_required".to_owned()),
    }
}

pub(super) fn negotiate(session: &mut Session, arguments: &Arguments) -> Said {
    // These errors carry class and retryable on every connection.
    let refuse = |code: &str, fields: String| Err(format!("{code} class=validation retryable=false {fields}"));
    let Some(version) = arguments.get("version") else {
        return refuse("missing_protocol_version", "command=NEGOTIATE".to_owned());
    };
    match signed(version) {
        Some(1) => {}
        Some(other) => return refuse("UNSUPPORTED_PROTOCOL_VERSION", format!("requested={other} min=1 max=1")),
        None => return refuse("invalid_protocol_version", format!("requested={}", quote(version))),
    }
    let required = match arguments.get("require_features").unwrap_or("false") {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => true,
        "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
        other => return refuse("invalid_require_features", format!("value={}", quote(other))),
    };
    let asked: BTreeSet<&str> =
        arguments.get("features").unwrap_or_default().split(',').filter(|name| !name.is_empty()).collect();
    let (enabled, unsupported): (Vec<&str>, Vec<&str>) = if asked.contains("*") {
        (FEATURES.to_vec(), asked.into_iter().filter(|name| *name != "*" && !FEATURES.contains(name)).collect())
    } else {
        if let Some(bad) = asked.iter().find(|name| !is_feature_name(name)) {
            let reason = format!("invalid feature name {}", quote(bad));
            return refuse("invalid_protocol_features", format!("reason={}", quote(&reason)));
        }
        asked.into_iter().partition(|name| FEATURES.contains(name))
    };
    if required && !unsupported.is_empty() {
        return refuse("UNSUPPORTED_FEATURE", format!("features={}", unsupported.join(",")));
    }
    // Each success replaces what was agreed before.
    session.structured = enabled.contains(&STRUCTURED);
    Ok(Negotiated { version: 1, enabled: owned(&enabled), unsupported: owned(&unsupported) }.to_text())
}

fn is_feature_name(name: &str) -> bool {
    name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}
