//! INIT_PRODUCER_ID, BEGIN_TXN, TXN_PUBLISH, SEND_OFFSETS_TO_TXN, END_TXN, TXN_STATUS.

use std::collections::{BTreeMap, BTreeSet};

use cursus_wire::batch::Record;
use cursus_wire::reply::TransactionState;
use tokio::time::Instant;

use super::publish::{check_size, no_number, number, unreachable_leader};
use super::{Context, Said};
use crate::arguments::{Arguments, quote, signed, unsigned};
use crate::groups::{Caller, Regression};
use crate::log::TransactionKey;
use crate::patterns;
use crate::shared::State;
use crate::topics::{Partition, marker};
use crate::transactions::{NotBegun, Owner, Scope, StagedRecord, Transaction, coordinator_key};

/// The transactional id, once this broker is found to coordinate it.
fn transactional_id<'a>(
    context: &Context<'_>,
    state: &State,
    arguments: &'a Arguments,
    command: &str,
) -> Result<&'a str, String> {
    let id = ["transactional_id", "txn", "transaction"].into_iter().find_map(|key| arguments.get(key));
    let id = id.ok_or_else(|| format!("missing_transactional_id command={command}"))?;
    context.check_coordinator(state, &coordinator_key(id))?;
    Ok(id)
}

fn owner<'a>(id: &'a str, arguments: &'a Arguments, command: &str) -> Result<Owner<'a>, String> {
    let producer = ["producerId", "producer_id"].into_iter().find_map(|key| arguments.get(key));
    let producer = producer.ok_or_else(|| format!("missing_producer_id command={command}"))?;
    let epoch = number(arguments, "epoch", "invalid_epoch", "ParseInt", signed)?.unwrap_or(0);
    Ok(Owner { id, producer, epoch })
}

/// An error that carries its reason.
fn because(code: &str, reason: &str) -> String {
    format!("{code} reason={}", quote(reason))
}

pub(super) fn init(context: &Context<'_>, arguments: &Arguments) -> Said {
    context.shared.change(|state| {
        let id = transactional_id(context, state, arguments, "INIT_PRODUCER_ID")?;
        let Transaction { producer, epoch, .. } =
            state.transactions.init(id).map_err(|reason| because("init_producer_failed", &reason))?;
        Ok(format!("OK transactional_id={id} producerId={producer} epoch={epoch}"))
    })
}

pub(super) fn begin(context: &Context<'_>, arguments: &Arguments) -> Said {
    context.shared.change(|state| {
        let id = transactional_id(context, state, arguments, "BEGIN_TXN")?;
        let owner = owner(id, arguments, "BEGIN_TXN")?;
        let Owner { producer, epoch, .. } = owner;
        state.transactions.begin(owner).map_err(|refusal| match refusal {
            NotBegun::Used => format!("producer_reinitialization_required transactional_id={id} epoch={epoch}"),
            NotBegun::Refused(reason) => because("transaction_begin_failed", &reason),
        })?;
        Ok(format!("OK transactional_id={id} state=open producerId={producer} epoch={epoch}"))
    })
}

fn sequence(arguments: &Arguments) -> Result<u64, String> {
    let read = match arguments.get("seqNum") {
        None => Err("missing seqNum".to_owned()),
        Some(text) => unsigned(text).ok_or_else(|| no_number("ParseUint", text)),
    };
    read.and_then(|n| if n == 0 { Err("seqNum must be greater than zero".to_owned()) } else { Ok(n) })
        .map_err(|reason| because("invalid_seq_num command=TXN_PUBLISH", &reason))
}

pub(super) fn publish(context: &Context<'_>, arguments: &Arguments) -> Said {
    const NAME: &str = "TXN_PUBLISH";
    context.shared.change(|state| {
        let id = transactional_id(context, state, arguments, NAME)?;
        let topic = arguments.require("topic", NAME)?;
        let value = arguments.message().ok_or("missing_message command=TXN_PUBLISH")?;
        let owner = owner(id, arguments, NAME)?;
        let asked = number(arguments, "partition", "invalid_partition", "Atoi", signed)?.filter(|n| *n >= 0);
        let sequence = sequence(arguments)?;
        let key = arguments.get("key").unwrap_or_default().as_bytes();
        let found = state.topics.get_mut(topic).ok_or_else(|| format!("topic_not_found topic={topic}"))?;
        let partition = match asked {
            Some(number) => u32::try_from(number).ok().filter(|number| *number < found.count()),
            None => Some(found.choose(key)),
        };
        let missing = || format!("partition_not_found partition={}", asked.unwrap_or_default());
        let partition = partition.ok_or_else(missing)?;
        let (key, value) = (key.to_vec(), value.to_vec());
        let record = StagedRecord { topic: topic.to_owned(), partition, sequence, key, value };
        state
            .transactions
            .stage_record(owner, record)
            .map_err(|reason| because("transaction_publish_failed", &reason))?;
        Ok(format!("OK transactional_id={id} staged_messages=1 topic={topic} partition={partition}"))
    })
}

/// The pairs `P<partition>:<offset>` at a command's end; the last of several for one partition counts.
fn pairs(text: &str) -> Result<BTreeMap<u32, u64>, String> {
    if !text.contains(':') {
        return Err("missing offset pairs".to_owned());
    }
    let pair = |pair: &str| {
        let (number, offset) = match pair.split(':').collect::<Vec<_>>()[..] {
            [number, offset] if number.starts_with('P') => (&number[1..], offset),
            _ => return Err(format!("invalid pair {pair}")),
        };
        // No group has a negative partition, nor one beyond 32 bits.
        let number = signed(number).ok_or_else(|| no_number("Atoi", number))?;
        let offset = unsigned(offset).ok_or_else(|| no_number("ParseUint", offset))?;
        Ok((u32::try_from(number).unwrap_or(u32::MAX), offset))
    };
    text.split(',').map(pair).collect()
}

pub(super) fn send_offsets(context: &Context<'_>, arguments: &Arguments) -> Said {
    const NAME: &str = "SEND_OFFSETS_TO_TXN";
    context.shared.change(|state| {
        let id = transactional_id(context, state, arguments, NAME)?;
        let topic = arguments.require("topic", NAME)?;
        let group = arguments.require("group", NAME)?;
        let owner = owner(id, arguments, NAME)?;
        let member = arguments.require("member", NAME)?;
        let generation = arguments.get("generation").and_then(signed);
        let generation = generation.ok_or("invalid_generation command=SEND_OFFSETS_TO_TXN")?;
        state.groups.check_topic(group, topic).map_err(|refusal| refusal.to_string())?;
        let offsets = pairs(arguments.last_word()).map_err(|reason| because("invalid_txn_offsets", &reason))?;
        let caller = Caller { group, member, generation };
        for partition in offsets.keys() {
            state.groups.check_owner(caller, *partition).map_err(|refusal| refusal.to_string())?;
        }
        // A pattern stands for the topic that the group reads.
        let of_group = state.groups.get(group).map(|found| &found.topic).filter(|_| patterns::is_pattern(topic));
        let topic = of_group.map_or(topic, String::as_str).to_owned();
        let scope = Scope { topic, group: group.to_owned(), member: member.to_owned(), generation };
        state
            .transactions
            .stage_offsets(owner, scope, &offsets)
            .map_err(|reason| because("transaction_offsets_failed", &reason))?;
        Ok(format!("OK transactional_id={id} staged_offsets={}", offsets.len()))
    })
}

pub(super) fn status(context: &Context<'_>, arguments: &Arguments) -> Said {
    context.shared.read(|state| {
        let id = transactional_id(context, state, arguments, "TXN_STATUS")?;
        let found = state.transactions.get(id).map_err(|reason| because("transaction_not_found", &reason))?;
        let (messages, offsets) = (found.records.len(), found.offsets.len());
        Ok(format!("OK transactional_id={id} state={} messages={messages} offsets={offsets}", found.state.name()))
    })
}

pub(super) fn end(context: &Context<'_>, arguments: &Arguments, now: Instant) -> Said {
    const NAME: &str = "END_TXN";
    context.shared.change(|state| {
        let id = transactional_id(context, state, arguments, NAME)?;
        let owner = owner(id, arguments, NAME)?;
        let result = ["result", "action", "state"].into_iter().find_map(|key| arguments.get(key));
        let result = result.unwrap_or("commit").to_lowercase();
        let found = state.transactions.owned(owner).map_err(|reason| because("transaction_not_found", &reason))?;
        match result.as_str() {
            "abort" => abort(state, id, found.state),
            "commit" => {
                let found = found.clone();
                commit(context, state, id, &found, now)
            }
            other => Err(format!("invalid_transaction_result value={other}")),
        }
    })
}

fn abort(state: &mut State, id: &str, now_at: TransactionState) -> Said {
    match now_at {
        TransactionState::Committed => return Err(format!("transaction_already_committed transactional_id={id}")),
        TransactionState::Committing => {
            return Err(format!("transaction_not_abortable transactional_id={id} state=committing"));
        }
        // Nothing is written: what was staged is simply never taken.
        TransactionState::Open | TransactionState::Aborted => {
            state.transactions.set_state(id, TransactionState::Aborted);
        }
    }
    Ok(format!("OK transactional_id={id} state=aborted"))
}

fn commit(context: &Context<'_>, state: &mut State, id: &str, found: &Transaction, now: Instant) -> Said {
    let failed =
        |at: TransactionState, reason: &str| because(&format!("transaction_commit_failed state={}", at.name()), reason);
    match found.state {
        TransactionState::Aborted => return Err(format!("transaction_aborted transactional_id={id}")),
        TransactionState::Open | TransactionState::Committing => {
            if found.state == TransactionState::Open {
                check(context, state, found).map_err(|reason| failed(TransactionState::Open, &reason))?;
            }
            // Decided: from here on there is no way back, only forward.
            state.transactions.set_state(id, TransactionState::Committing);
            write(context, state, id, found, now).map_err(|reason| failed(TransactionState::Committing, &reason))?;
            state.transactions.set_state(id, TransactionState::Committed);
        }
        TransactionState::Committed => {}
    }
    let (messages, offsets) = (found.records.len(), found.offsets.len());
    Ok(format!("OK transactional_id={id} state=committed messages={messages} offsets={offsets}"))
}

/// Whether all of a transaction could be written now.
fn check(context: &Context<'_>, state: &State, transaction: &Transaction) -> Result<(), String> {
    for record in &transaction.records {
        partition(state, &record.topic, record.partition)?;
    }
    let Some(Scope { topic, group, member, generation }) = &transaction.scope else { return Ok(()) };
    let committed = state.groups.get(group).map(|found| found.committed()).unwrap_or_default();
    for (partition, offset) in &transaction.offsets {
        state
            .groups
            .check_owner(Caller { group, member, generation: *generation }, *partition)
            .map_err(|refusal| format!("ERROR: {refusal}"))?;
        if let Some(current) = committed.get(partition).filter(|current| offset < current) {
            let reason = format!(
                "offset regression group={group} topic={topic} partition={partition} current={current} got={offset}"
            );
            let in_cluster = context.shared.is_cluster();
            return Err(if in_cluster { format!("ERROR: {}", because("offset_regression", &reason)) } else { reason });
        }
    }
    Ok(())
}

fn partition<'a>(state: &'a State, topic: &str, number: u32) -> Result<&'a Partition, String> {
    let found = state.topics.get(topic).ok_or_else(|| format!("topic {topic} not found"))?;
    let last = i64::from(found.count()) - 1;
    let missing = || format!("partition {number} out of range for topic '{topic}' (0-{last})");
    found.partition(number).ok_or_else(missing)
}

/// Writes the records, then a marker into each partition that has some, then the offsets. Where it fails half-way, what
/// is written stays, undecided; doing it again goes on where it failed.
fn write(
    context: &Context<'_>,
    state: &mut State,
    id: &str,
    transaction: &Transaction,
    now: Instant,
) -> Result<(), String> {
    check(context, state, transaction)?;
    let key = transaction.key(id);
    for staged in &transaction.records {
        let record = Record {
            sequence: staged.sequence,
            producer_id: transaction.producer.as_bytes(),
            key: &staged.key,
            epoch: transaction.epoch,
            value: &staged.value,
            ..Record::default()
        };
        append(context, state, (&staged.topic, staged.partition), &key, &record, false)?;
    }
    let touched: BTreeSet<(&str, u32)> =
        transaction.records.iter().map(|staged| (staged.topic.as_str(), staged.partition)).collect();
    let producer = format!("txn-marker:{id}:commit");
    for target in &touched {
        append(context, state, *target, &key, &marker(&producer, transaction.epoch), true)?;
    }
    if let Some(scope) = &transaction.scope {
        let offsets: Vec<(u32, u64)> = transaction.offsets.iter().map(|(number, offset)| (*number, *offset)).collect();
        let done = state.groups.commit(&scope.group, &offsets, now, context.shared.lag());
        done.map_err(|refusal| format!("ERROR: {refusal}"))?.map_err(|Regression { partition, .. }| {
            format!("offset regression for group={} partition={partition}", scope.group)
        })?;
    }
    for (topic, number) in touched {
        partition(state, topic, number)?.shelf.write(|log, _| log.decide(&key));
    }
    Ok(())
}

/// Appends a transaction's record or marker, unless it was appended before.
fn append(
    context: &Context<'_>,
    state: &State,
    (topic, number): (&str, u32),
    key: &TransactionKey,
    record: &Record<'_>,
    is_marker: bool,
) -> Result<(), String> {
    let target = partition(state, topic, number)?;
    if context.shared.is_cluster() && !state.is_running(target.leader) {
        return Err(format!("ERROR: {}", unreachable_leader("PUBLISH")));
    }
    let appended = target.shelf.write(|log, producers| {
        check_size(record)?;
        // The sequence numbers count here whether the topic checks those of others or not.
        if producers.accept(record.producer_id, record.epoch, record.sequence)? {
            if is_marker {
                log.append_hidden(record);
            } else {
                log.append_undecided(key, record);
            }
        }
        Ok::<(), String>(())
    });
    appended.map_err(|problem| {
        if context.shared.is_cluster() {
            let reason = format!("failed to append locally: {problem}");
            return format!("ERROR: {}", because("broker_error", &reason));
        }
        format!("sync idempotent publish failed: {problem}")
    })
}
