//! What the broker does with each command. A command's function gives its reply's text, or the text behind `ERROR: `; the
//! order of the checks in each, and the texts, are the broker's.

mod consume;
mod describe;
mod groups;
mod offsets;
mod protocol;
mod publish;
mod topics;
mod transactions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio_util::sync::CancellationToken;

pub(crate) use consume::{StreamRequest, encode_batch, read};

use crate::arguments::{Arguments, quote};
use crate::incoming::Incoming;
use crate::log::Slices;
use crate::shared::{Endpoint, Shared, State};

/// Ok: the reply's text. Err: the text behind `ERROR: `.
pub(crate) type Said = Result<String, String>;

/// What to do once a request was carried out.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Reply with a text.
    Text(String),
    /// Reply with a text and close the connection.
    Last(String),
    /// Reply with a batch: its head, and the records behind it.
    Records(BytesMut, Slices),
    /// The connection belongs to a stream from here on.
    Stream(StreamRequest),
    /// Close the connection without a reply.
    Hangup,
}

impl From<Said> for Answer {
    fn from(said: Said) -> Self {
        Self::Text(said.unwrap_or_else(|error| format!("ERROR: {error}")))
    }
}

/// What the broker remembers of a connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Where CONSUME goes on, by `<topic>-<partition>`: group and isolation have no part in it.
    cursors: BTreeMap<String, u64>,
    /// Whether errors carry class and retryable.
    pub(crate) structured: bool,
}

/// Who carries a request out.
pub(crate) struct Context<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) broker: usize,
    /// The broker is about to stop: don't wait for anything any more.
    pub(crate) drain: &'a CancellationToken,
}

impl Context<'_> {
    /// Where a client should have gone instead with this group; nothing where it is right here.
    fn check_coordinator(&self, state: &State, group: &str) -> Result<(), String> {
        let coordinator = state.coordinator(group);
        if !self.shared.is_cluster() || coordinator == self.broker {
            return Ok(());
        }
        let Endpoint { host, port } = self.shared.endpoint(state, coordinator);
        Err(format!("NOT_COORDINATOR host={host} port={port}"))
    }

    /// Waits; not while the broker stops. Whether it did.
    async fn pause(&self, duration: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.drain.cancelled() => false,
            () = self.shared.clock.sleep(duration) => true,
        }
    }

    /// Looks every 100 ms, at most `times` times, until a topic is there, as writers do.
    async fn await_topic(&self, topic: &str, times: u32) -> Result<(), String> {
        for round in 0..=times {
            if self.shared.read(|state| state.topics.get(topic).is_some()) {
                return Ok(());
            }
            if round == times || !self.pause(Duration::from_millis(100)).await {
                break;
            }
        }
        Err(format!("topic_not_found topic={topic}"))
    }
}

/// Carries a request out.
pub(crate) async fn carry_out(context: &Context<'_>, session: &mut Session, body: &Bytes) -> Answer {
    let (name, text) = match Incoming::of(body) {
        Incoming::Batch => return publish::batch(context, body).await,
        Incoming::Unknown(text) => {
            let text = String::from_utf8_lossy(text);
            return Answer::Text(format!("ERROR: unknown_command command={}", quote(&text)));
        }
        Incoming::Malformed => {
            return Answer::Last("ERROR: malformed_input reason=missing_topic_or_payload".to_owned());
        }
        Incoming::Undecodable(reason) => {
            return Answer::Text(format!("ERROR: decode_failed reason={}", quote(reason)));
        }
        Incoming::Command(name, text) => (name, text),
    };
    let arguments = Arguments::parse(text);
    if let Err(error) = protocol::check_inline_credentials(name, &arguments) {
        return Err(error).into();
    }
    match name {
        "CONSUME" => consume::consume(context, session, &arguments).await,
        "STREAM" => consume::stream(context, &arguments),
        "PUBLISH" => publish::text(context, &arguments).await.into(),
        "JOIN_GROUP" => groups::join(context, &arguments).await.into(),
        "NEGOTIATE" => protocol::negotiate(session, &arguments).into(),
        _ => at_once(context, name, &arguments).into(),
    }
}

/// The commands that neither wait nor concern the connection.
fn at_once(context: &Context<'_>, name: &str, arguments: &Arguments) -> Said {
    let now = context.shared.clock.now();
    match name {
        "AUTH" => protocol::auth(arguments),
        "HELP" => Ok(protocol::help()),
        "PROTOCOL_INFO" => Ok(protocol::info()),
        "CREATE" => topics::create(context, arguments),
        "DELETE" => topics::delete(context, arguments),
        "LIST" => Ok(topics::list(context)),
        "METADATA" => topics::metadata(context, arguments),
        "LIST_OFFSETS" => topics::list_offsets(context, arguments),
        "DESCRIBE" => describe::topic(context, arguments),
        "ELECT_LEADER" => topics::elect_leader(context, arguments),
        "LIST_CLUSTER" => describe::brokers(context),
        "CLUSTER_STATUS" => describe::cluster(context),
        "FIND_COORDINATOR" => groups::find_coordinator(context, arguments),
        "REGISTER_GROUP" => groups::register(context, arguments),
        "SYNC_GROUP" => groups::sync(context, arguments, now),
        "HEARTBEAT" => groups::heartbeat(context, arguments, now),
        "LEAVE_GROUP" => groups::leave(context, arguments, now),
        "GROUP_STATUS" => groups::status(context, arguments),
        "LIST_GROUPS" => Ok(groups::list(context)),
        "FETCH_OFFSET" => offsets::fetch(context, arguments, now),
        "COMMIT_OFFSET" => offsets::commit(context, arguments, now),
        "BATCH_COMMIT" => offsets::commit_batch(context, arguments, now),
        "INIT_PRODUCER_ID" => transactions::init(context, arguments),
        "BEGIN_TXN" => transactions::begin(context, arguments),
        "TXN_PUBLISH" => transactions::publish(context, arguments),
        "SEND_OFFSETS_TO_TXN" => transactions::send_offsets(context, arguments),
        "END_TXN" => transactions::end(context, arguments, now),
        "TXN_STATUS" => transactions::status(context, arguments),
        _ => Err(format!("command_failed reason=\"the embedded cluster doesn't carry out {name}\"")),
    }
}
