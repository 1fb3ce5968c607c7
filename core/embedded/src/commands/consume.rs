//! CONSUME and the start of STREAM.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use cursus_wire::batch::{Head, put_head};
use cursus_wire::command::Isolation;

use super::{Answer, Context, Session};
use crate::arguments::{Arguments, quote, signed, unsigned};
use crate::log::Slices;
use crate::patterns;
use crate::shared::{DEFAULT_GROUP, State};
use crate::topics::Shelf;

/// How many records a reply has at most where the client says nothing.
const DEFAULT_BATCH: u32 = 8_192;

/// How often a waiting CONSUME looks again.
const STEP: Duration = Duration::from_millis(100);

/// What a CONSUME or a STREAM reads.
#[derive(Debug)]
struct Wanted<'a> {
    topic: &'a str,
    partition: i64,
    group: &'a str,
    offset: Option<u64>,
    batch: u32,
    isolation: Isolation,
}

fn failed(reason: &str) -> String {
    format!("command_failed reason={}", quote(reason))
}

fn batch_size(arguments: &Arguments) -> u32 {
    let given = arguments.get("batch").and_then(signed).filter(|n| *n > 0);
    given.map_or(DEFAULT_BATCH, |n| u32::try_from(n).unwrap_or(u32::MAX))
}

fn isolation(arguments: &Arguments) -> Result<Isolation, String> {
    let Some(name) = arguments.get("isolation") else { return Ok(Isolation::ReadCommitted) };
    [Isolation::ReadCommitted, Isolation::ReadUncommitted]
        .into_iter()
        .find(|isolation| isolation.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| format!("invalid_isolation isolation={name}"))
}

impl<'a> Wanted<'a> {
    fn read(arguments: &'a Arguments, topic: &'a str, partition: &str) -> Result<Self, String> {
        let isolation = isolation(arguments)?;
        let partition = signed(partition).ok_or_else(|| failed(&format!("invalid partition value: {partition}")))?;
        if let Some(text) = arguments.get("generation") {
            signed(text).ok_or_else(|| failed(&format!("invalid generation value: {text}")))?;
        }
        let offset = match arguments.get("offset") {
            Some(text) => Some(unsigned(text).ok_or_else(|| failed(&format!("invalid offset value: {text}")))?),
            None => None,
        };
        let group = arguments.get("group").filter(|group| *group != "-").unwrap_or(DEFAULT_GROUP);
        Ok(Self { topic, partition, group, offset, batch: batch_size(arguments), isolation })
    }

    /// The partitions to read with their topics' real names, or why there are none here.
    fn find(&self, context: &Context<'_>) -> Result<Vec<(String, u32, Arc<Shelf>)>, String> {
        context.shared.read(|state| {
            let number = u32::try_from(self.partition).ok();
            if context.shared.is_cluster() {
                // An unknown topic, a bad partition and a pattern all point at the answering broker itself.
                let found = state.topics.get(self.topic).zip(number);
                let partition = found.and_then(|(topic, number)| topic.partition(number));
                let leader = partition.map_or(context.broker, |partition| partition.leader);
                return match partition {
                    Some(found) if leader == context.broker => {
                        Ok(vec![(self.topic.to_owned(), number.unwrap_or_default(), found.shelf.clone())])
                    }
                    _ => Err(format!("NOT_LEADER LEADER_IS {}", context.shared.advertised(state, leader))),
                };
            }
            let names: Vec<String> = if patterns::is_pattern(self.topic) {
                state.topics.names().into_iter().filter(|name| patterns::matches(self.topic, name)).collect()
            } else {
                vec![self.topic.to_owned()]
            };
            if names.is_empty() {
                return Err(failed(&format!("no topics match pattern '{}'", self.topic)));
            }
            names.into_iter().map(|name| self.find_in(state, name)).collect()
        })
    }

    fn find_in(&self, state: &State, name: String) -> Result<(String, u32, Arc<Shelf>), String> {
        let Some(topic) = state.topics.get(&name) else {
            return Err(failed(&format!("topic '{name}' does not exist")));
        };
        let number = u32::try_from(self.partition).ok();
        match number.and_then(|number| Some((number, topic.partition(number)?))) {
            Some((number, partition)) => Ok((name, number, partition.shelf.clone())),
            None => {
                let (partition, last) = (self.partition, i64::from(topic.count()) - 1);
                Err(failed(&format!("partition {partition} out of range for topic '{name}' (0-{last})")))
            }
        }
    }

    /// Finds the same again: a topic may be gone meanwhile, or be another one of its name. Who leads isn't asked again.
    fn find_again(
        &self,
        context: &Context<'_>,
        found: Vec<(String, u32, Arc<Shelf>)>,
    ) -> Result<Vec<(String, u32, Arc<Shelf>)>, String> {
        context.shared.read(|state| found.into_iter().map(|(name, ..)| self.find_in(state, name)).collect())
    }

    fn read_from(&self, shelf: &Shelf, start: u64, batch: u32) -> Result<Slices, String> {
        read(shelf, start, batch, self.isolation).map_err(|(earliest, latest)| {
            format!("OFFSET_OUT_OF_RANGE requested={start} earliest={earliest} latest={latest}")
        })
    }
}

/// Reads from a log, or gives its bounds where `start` is outside of them: beyond the end a committed reader finds
/// nothing, for ever, and only the other one is told.
pub(crate) fn read(shelf: &Shelf, start: u64, batch: u32, isolation: Isolation) -> Result<Slices, (u64, u64)> {
    shelf.read(|log| {
        let (earliest, latest) = (log.earliest(), log.end());
        let beyond = start > latest && isolation == Isolation::ReadUncommitted;
        if start < earliest || beyond {
            return Err((earliest, latest));
        }
        Ok(match isolation {
            Isolation::ReadCommitted => log.read_committed(start, batch),
            Isolation::ReadUncommitted => log.read(start, batch),
        })
    })
}

/// The head of a batch around what was read, or the broker's complaint that it is over the limit of a frame.
pub(crate) fn encode_batch(topic: &str, partition: u32, slices: &Slices) -> Result<BytesMut, String> {
    let mut head = BytesMut::with_capacity(64 + topic.len());
    let (sequences, count) = (slices.sequences, slices.count);
    // A pattern may be longer than the field for a topic; only text could come back anyhow.
    let topic = topic.get(..topic.len().min(usize::from(u16::MAX))).unwrap_or_default();
    put_head(&mut head, &Head { topic, partition, acks: "1", idempotent: false, sequences, count });
    let (size, most) = (head.len() + slices.len(), cursus_wire::MAX_BODY);
    if size > most { Err(format!("data size {size} exceeds maximum {most}")) } else { Ok(head) }
}

pub(super) async fn consume(context: &Context<'_>, session: &mut Session, arguments: &Arguments) -> Answer {
    match try_consume(context, session, arguments).await {
        Ok(answer) => answer,
        Err(error) => Answer::Text(format!("ERROR: {error}")),
    }
}

async fn try_consume(context: &Context<'_>, session: &mut Session, arguments: &Arguments) -> Result<Answer, String> {
    let mandatory = ["topic", "partition", "offset", "member"].map(|key| arguments.get(key));
    let [Some(topic), Some(partition), Some(_), Some(_)] = mandatory else {
        return Err("invalid_consume_syntax".to_owned());
    };
    let wanted = Wanted::read(arguments, topic, partition)?;
    let wait = arguments.get("wait_ms").and_then(signed).and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0);
    let until = context.shared.clock.now() + Duration::from_millis(wait.min(u64::from(u32::MAX)));
    let mut found = wanted.find(context)?;
    loop {
        let slices = read_all(context, session, &wanted, &found)?;
        let now = context.shared.clock.now();
        let again = slices.count == 0 && now < until && context.pause(STEP.min(until - now)).await;
        if !again {
            let number = u32::try_from(wanted.partition).unwrap_or_default();
            let head =
                encode_batch(topic, number, &slices).map_err(|e| failed(&format!("failed to stream batch: {e}")))?;
            return Ok(Answer::Records(head, slices));
        }
        found = wanted.find_again(context, found)?;
    }
}

/// Reads on in every partition that was found, up to a batch in all. The cursors move here, before anybody knows whether
/// the reply can be written.
fn read_all(
    context: &Context<'_>,
    session: &mut Session,
    wanted: &Wanted<'_>,
    found: &[(String, u32, Arc<Shelf>)],
) -> Result<Slices, String> {
    let mut all = Slices::default();
    for (topic, number, shelf) in found {
        let cursor = format!("{topic}-{number}");
        // The connection's own cursor, else what the group has committed, else what the client says.
        let start = session.cursors.get(&cursor).copied();
        let now = context.shared.clock.now();
        let committed = || context.shared.read(|s| s.groups.start(wanted.group, topic, *number, now));
        let start = start.or_else(committed).or(wanted.offset).unwrap_or(0);
        let slices = wanted.read_from(shelf, start, wanted.batch - all.count)?;
        if slices.count == 0 {
            continue;
        }
        session.cursors.insert(cursor, slices.next);
        let first = if all.count == 0 { slices.sequences.0 } else { all.sequences.0 };
        all.sequences = (first, slices.sequences.1);
        all.count += slices.count;
        all.bytes.extend(slices.bytes);
        all.next = slices.next;
    }
    Ok(all)
}

/// A stream that was accepted.
#[derive(Debug)]
pub(crate) struct StreamRequest {
    pub(crate) topic: String,
    pub(crate) partition: u32,
    pub(crate) group: String,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) start: u64,
    pub(crate) batch: u32,
    pub(crate) isolation: Isolation,
}

pub(super) fn stream(context: &Context<'_>, arguments: &Arguments) -> Answer {
    match try_stream(context, arguments) {
        Ok(request) => Answer::Stream(request),
        Err(error) => Answer::Text(format!("ERROR: {error}")),
    }
}

fn try_stream(context: &Context<'_>, arguments: &Arguments) -> Result<StreamRequest, String> {
    let [Some(topic), Some(partition), Some(_)] = ["topic", "partition", "group"].map(|key| arguments.get(key)) else {
        return Err("invalid_stream_syntax".to_owned());
    };
    let wanted = Wanted::read(arguments, topic, partition)?;
    let found = wanted.find(context)?;
    // A pattern streams its first match; the broker's clients never stream patterns.
    let Some((topic, partition, shelf)) = found.into_iter().next() else {
        return Err("invalid_stream_syntax".to_owned());
    };
    let now = context.shared.clock.now();
    let committed = context.shared.read(|s| s.groups.start(wanted.group, &topic, partition, now));
    let latest = arguments.get("autoOffsetReset").is_some_and(|reset| reset.eq_ignore_ascii_case("latest"));
    let start = committed.or(wanted.offset).unwrap_or_else(|| if latest { shelf.end() } else { 0 });
    let (group, batch, isolation) = (wanted.group.to_owned(), wanted.batch, wanted.isolation);
    Ok(StreamRequest { topic, partition, group, shelf, start, batch, isolation })
}
