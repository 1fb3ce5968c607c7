//! FETCH_OFFSET, COMMIT_OFFSET, BATCH_COMMIT.

use cursus_wire::TextReply;
use cursus_wire::reply::{BatchCommitted, Done, Offset};
use tokio::time::Instant;

use super::groups::{Named, generation};
use super::{Context, Said};
use crate::arguments::{Arguments, quote, signed, unsigned};
use crate::groups::Regression;

/// A partition's number. What is beyond 32 bits no group has, whatever the number says.
fn partition(text: &str) -> Option<u32> {
    signed(text).filter(|number| *number >= 0).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

pub(super) fn fetch(context: &Context<'_>, arguments: &Arguments, now: Instant) -> Said {
    const NAME: &str = "FETCH_OFFSET";
    let topic = arguments.require("topic", NAME)?;
    let number = signed(arguments.require("partition", NAME)?).ok_or("invalid_partition")?;
    let group = arguments.require("group", NAME)?;
    context.shared.read(|state| {
        context.check_coordinator(state, group)?;
        let found = state.groups.get(group).ok_or_else(|| format!("group_not_found group={group}"))?;
        state.groups.check_topic(group, topic).map_err(|refusal| refusal.to_string())?;
        // Never committed and no such partition are both 0.
        let offset = u32::try_from(number).ok().and_then(|number| found.seen(number, now)).unwrap_or(0);
        Ok(Offset { offset }.to_text())
    })
}

pub(super) fn commit(context: &Context<'_>, arguments: &Arguments, now: Instant) -> Said {
    const NAME: &str = "COMMIT_OFFSET";
    let topic = arguments.require("topic", NAME)?;
    let number = partition(arguments.require("partition", NAME)?).ok_or("invalid_partition")?;
    let group = arguments.require("group", NAME)?;
    let offset = unsigned(arguments.require("offset", NAME)?).ok_or("invalid_offset")?;
    context.shared.change(|state| {
        context.check_coordinator(state, group)?;
        state.groups.check_topic(group, topic).map_err(|refusal| refusal.to_string())?;
        let named = Named::read(arguments, NAME)?;
        let caller = named.caller(generation(arguments, NAME)?);
        state.groups.check_owner(caller, number).map_err(|refusal| refusal.to_string())?;
        if arguments.get("validate_only") == Some("true") {
            return Ok("OK validated=true".to_owned());
        }
        let done = state
            .groups
            .commit(group, &[(number, offset)], now, context.shared.lag())
            .map_err(|refusal| refusal.to_string())?;
        match done {
            Ok(()) => Ok(Done.to_text()),
            Err(Regression { partition, current, attempted }) => Err(format!(
                "offset_regression reason=\"offset regression group={group} topic={topic} partition={partition} \
                 current={current} got={attempted}\""
            )),
        }
    })
}

pub(super) fn commit_batch(context: &Context<'_>, arguments: &Arguments, now: Instant) -> Said {
    const NAME: &str = "BATCH_COMMIT";
    let named = Named::read(arguments, NAME)?;
    let Named { topic, group, .. } = named;
    let caller = named.caller(generation(arguments, NAME)?);
    context.shared.change(|state| {
        state.groups.check_topic(group, topic).map_err(|refusal| refusal.to_string())?;
        context.check_coordinator(state, group)?;
        let mut offsets = Vec::new();
        for entry in arguments.last_word().split(',') {
            let (number, offset) = read_entry(entry)?;
            state.groups.check_owner(caller, number).map_err(|refusal| refusal.to_string())?;
            offsets.push((number, offset));
        }
        let done =
            state.groups.commit(group, &offsets, now, context.shared.lag()).map_err(|refusal| refusal.to_string())?;
        match done {
            Ok(()) => Ok(BatchCommitted { count: offsets.len() }.to_text()),
            Err(Regression { partition, current, attempted }) => {
                // A cluster finds out only when Raft applies it.
                let code = if context.shared.is_cluster() { "raft_apply_failed" } else { "offset_regression" };
                Err(format!(
                    "{code} reason=\"offset regression for group={group} topic={topic} partition={partition}: \
                     current={current} attempted={attempted}\""
                ))
            }
        }
    })
}

/// A pair `P<partition>:<offset>`.
fn read_entry(entry: &str) -> Result<(u32, u64), String> {
    let invalid = |code: &str| format!("{code} entry={}", quote(entry));
    let (number, offset) = match entry.split(':').collect::<Vec<_>>()[..] {
        [number, offset] => (number, offset),
        _ => return Err(invalid("invalid_batch_commit_entry")),
    };
    let number = number.strip_prefix('P').and_then(partition).ok_or_else(|| invalid("invalid_partition"))?;
    let offset = unsigned(offset).ok_or_else(|| invalid("invalid_offset"))?;
    Ok((number, offset))
}
