//! PUBLISH and the batch of records that a producer sends.
//!
//! Any broker of a cluster takes them and forwards them to the partition's leader.

use bytes::Bytes;
use cursus_wire::TextReply;
use cursus_wire::batch::{self, Record, RecordBatch};
use cursus_wire::reply::Published;

use super::{Answer, Context, Said};
use crate::arguments::{Arguments, quote, signed, unsigned};
use crate::shared::INTERNAL_TOPIC;
use crate::topics::Shelf;

/// What a record takes on the broker's disk beside its value, as its refusal of a full frame shows.
const DISK_OVERHEAD: usize = 27;

fn is_acks(text: &str) -> bool {
    matches!(text, "0" | "1" | "-1") || text.eq_ignore_ascii_case("all")
}

/// What Go says about a text that is no number.
pub(super) fn no_number(parser: &str, text: &str) -> String {
    format!("strconv.{parser}: parsing {}: invalid syntax", quote(text))
}

/// A number of the arguments, or Go's complaint about it.
pub(super) fn number<T>(
    arguments: &Arguments,
    key: &str,
    code: &str,
    parser: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(text) = arguments.get(key) else { return Ok(None) };
    read(text).map(Some).ok_or_else(|| format!("{code} reason={}", quote(&no_number(parser, text))))
}

pub(super) async fn text(context: &Context<'_>, arguments: &Arguments) -> Said {
    const NAME: &str = "PUBLISH";
    let topic = arguments.require("topic", NAME)?;
    let message = arguments.message().ok_or("missing_message command=PUBLISH")?;
    let producer = arguments.require("producerId", NAME)?;
    if topic == INTERNAL_TOPIC {
        return Err(format!("internal_topic_write_forbidden topic={topic}"));
    }
    if let Some(value) = arguments.get("isIdempotent").filter(|value| !matches!(*value, "true" | "false")) {
        return Err(format!("invalid_is_idempotent value={value}"));
    }
    let acks = arguments.get("acks").unwrap_or("1");
    if !is_acks(acks) {
        return Err(format!("invalid_acks value={acks}"));
    }
    let sequence = number(arguments, "seqNum", "invalid_seq_num", "ParseUint", unsigned)?.unwrap_or(0);
    let epoch = number(arguments, "epoch", "invalid_epoch", "ParseInt", signed)?.unwrap_or(0);
    let partition = number(arguments, "partition", "invalid_partition", "Atoi", signed)?.filter(|n| *n >= 0);
    context.await_topic(topic, 5).await?;
    let mut key = arguments.get("key").unwrap_or_default();
    let cluster = context.shared.is_cluster();
    let (shelf, idempotent, leader) = context.shared.change(|state| {
        let found = state.topics.get_mut(topic).ok_or_else(|| format!("topic_not_found topic={topic}"))?;
        let chosen = match partition {
            Some(number) => u32::try_from(number).ok().filter(|number| *number < found.count()),
            None => Some(found.choose(key.as_bytes())),
        };
        let missing = || format!("partition_not_found partition={}", partition.unwrap_or_default());
        let target = chosen.and_then(|chosen| found.partition(chosen)).ok_or_else(missing)?;
        if ["transactional_id", "transaction_state", "transaction_marker"].iter().any(|key| arguments.has(key)) {
            return Err("transaction_metadata_forbidden command=PUBLISH".to_owned());
        }
        // A forwarded command names the partition that was chosen, and has lost the key it was chosen by.
        if cluster && partition.is_none() && target.leader != context.broker {
            key = "";
        }
        let (shelf, idempotent, leader) = (target.shelf.clone(), found.idempotent, target.leader);
        if cluster && !state.is_running(leader) {
            return Err(unreachable_leader("PUBLISH"));
        }
        Ok((shelf, idempotent, context.shared.raft_leader(state)))
    })?;
    let record = Record {
        sequence,
        producer_id: producer.as_bytes(),
        key: key.as_bytes(),
        epoch,
        value: message,
        ..Record::default()
    };
    let end = append(&shelf, idempotent, [record]).map_err(|problem| {
        let reason = format!("acks=1 publish failed: sync publish failed: {problem}");
        format!("broker_error reason={}", quote(&reason))
    })?;
    context.shared.changed();
    if acks == "0" && !cluster {
        return Ok("OK".to_owned());
    }
    // A standalone broker's last offset is one too high here, though not for a batch.
    let last = if cluster { end - 1 } else { end };
    Ok(Published::new(last, producer, epoch, (sequence, sequence), leader).to_text())
}

/// Appends records, but for repetitions; gives the log's end. Those before one that can't be appended stay.
fn append<'a>(shelf: &Shelf, idempotent: bool, records: impl IntoIterator<Item = Record<'a>>) -> Result<u64, String> {
    shelf.write(|log, producers| {
        for record in records {
            check_size(&record)?;
            if !idempotent || producers.accept(record.producer_id, record.epoch, record.sequence)? {
                log.append(&record);
            }
        }
        Ok(log.end())
    })
}

/// Whether the broker's disk takes a record.
pub(super) fn check_size(record: &Record<'_>) -> Result<(), String> {
    let size = record.value.len() + record.key.len() + record.producer_id.len() + DISK_OVERHEAD;
    let most = cursus_wire::MAX_BODY;
    if size <= most && batch::fits(record) {
        return Ok(());
    }
    let problem = format!("serialized disk message size {size} exceeds maximum {most}");
    Err(format!("disk write failed: WriteDirect failed: {problem}"))
}

pub(super) fn unreachable_leader(what: &str) -> String {
    let reason = format!("failed to forward {what} to partition leader after 3 attempts: the leader is unreachable");
    format!("broker_error reason={}", quote(&reason))
}

pub(super) async fn batch(context: &Context<'_>, body: &Bytes) -> Answer {
    match append_batch(context, body).await {
        Ok(reply) => Answer::Text(reply),
        Err(Some(error)) => Answer::Text(format!("ERROR: {error}")),
        // A record that can't follow what is there ends the connection without a word; those before it stay.
        Err(None) => Answer::Hangup,
    }
}

async fn append_batch(context: &Context<'_>, body: &Bytes) -> Result<String, Option<String>> {
    let records = RecordBatch::parse_published(body.clone())
        .map_err(|error| Some(format!("batch_decode_failed reason={}", quote(&error.problem))))?;
    let acks = String::from_utf8_lossy(records.acks()).into_owned();
    let acks = if acks.is_empty() { "1" } else { acks.as_str() };
    if !is_acks(acks) {
        return Err(Some(format!("invalid_acks value={acks}")));
    }
    let topic = records.topic().to_owned();
    if topic == INTERNAL_TOPIC {
        return Err(Some(format!("internal_topic_write_forbidden topic={topic}")));
    }
    let cluster = context.shared.is_cluster();
    let routed = "failed to forward BATCH to partition leader after 3 attempts: internal routing error: cannot forward \
                  batch data to self";
    let routing_error = || Some(format!("broker_error reason={}", quote(routed)));
    context.await_topic(&topic, 5).await.map_err(|error| if cluster { routing_error() } else { Some(error) })?;
    let (shelf, idempotent, leader) = context.shared.read(|state| {
        let found = state.topics.get(&topic).ok_or_else(|| Some(format!("topic_not_found topic={topic}")))?;
        let missing = || match cluster {
            true => routing_error(),
            false => Some(format!("partition_not_found partition={}", records.partition())),
        };
        let target = found.partition(records.partition()).ok_or_else(missing)?;
        if cluster && !state.is_running(target.leader) {
            return Err(Some(unreachable_leader("BATCH")));
        }
        Ok((target.shelf.clone(), found.idempotent, context.shared.raft_leader(state)))
    })?;
    let Some(last) = records.len().checked_sub(1) else {
        return Err(Some("broker_error reason=\"empty batch messages\"".to_owned()));
    };
    let end = append(&shelf, idempotent, records.iter()).map_err(|_| None)?;
    context.shared.changed();
    if acks == "0" && !cluster {
        return Ok("OK".to_owned());
    }
    let (first, last) = (records.record(0), records.record(last));
    let producer = String::from_utf8_lossy(last.producer_id);
    let sequences = (first.sequence, last.sequence);
    Ok(Published::new(end.saturating_sub(1), &producer, last.epoch, sequences, leader).to_text())
}
