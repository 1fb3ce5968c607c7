//! What can be asked for at the control port: all of it stands in this table, and nowhere else. The packages' methods are
//! generated from it.

use cursus_net::BoxFuture;
use serde::Serialize;
use serde_json::{Value, json};

use super::given::{Argument, Given, Kind};
use super::session::Session;
use super::{Failure, Outcome};
use crate::control::named;

/// What can be asked for.
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// Its arguments. One that may be left out and stands before one that mayn't is given in any case where arguments go
    /// by their order.
    pub arguments: &'static [Argument],
    /// What it does, and what comes back where that isn't `true`.
    pub about: &'static str,
    /// What it answers.
    pub answer: Answer,
    pub(super) run: Run,
}

impl Command {
    /// Whether it waits for something, for as long as its `timeout_ms` says.
    pub fn waits(&self) -> bool {
        matches!(self.run, Run::Wait(_))
    }
}

/// What a command answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing, which is `true`.
    Nothing,
    /// `true` or `false`.
    Truth,
    /// A whole number from 0.
    Number,
    /// An object of offsets by partition.
    Offsets,
    /// What `about` describes.
    Other,
}

impl Answer {
    pub(super) fn fits(self, value: &Value) -> bool {
        match self {
            Self::Nothing => *value == Value::Bool(true),
            Self::Truth => value.is_boolean(),
            Self::Number => value.is_u64(),
            Self::Offsets => value.as_object().is_some_and(|offsets| offsets.values().all(Value::is_u64)),
            Self::Other => true,
        }
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

type Asked<'a> = BoxFuture<'a, Outcome>;

/// How a command is carried out.
#[derive(Clone, Copy)]
pub(super) enum Run {
    /// At once.
    Now(fn(&Session, &Given) -> Outcome),
    /// It takes a while, and is finished in any case.
    Later(for<'a> fn(&'a Session, &'a Given) -> Asked<'a>),
    /// It waits for something, for as long as `timeout_ms` says.
    Wait(for<'a> fn(&'a Session, &'a Given) -> Asked<'a>),
}

pub(super) fn find(name: &str) -> Result<&'static Command, Failure> {
    TABLE.iter().find(|command| command.name == name).ok_or_else(|| {
        let names: Vec<&str> = TABLE.iter().map(|command| command.name).collect();
        Failure::new("unknown_command", format!("no command {name:?}; there are: {}", names.join(", ")))
    })
}

fn ok(answer: impl Serialize) -> Outcome {
    serde_json::to_value(answer).map_err(|error| Failure::new("internal", error.to_string()))
}

/// What has nothing to answer.
fn done<E: Into<Failure>>(result: Result<(), E>) -> Outcome {
    result.map(|()| Value::Bool(true)).map_err(Into::into)
}

const fn must(name: &'static str, kind: Kind) -> Argument {
    Argument { name, kind, otherwise: "" }
}

const fn may(name: &'static str, kind: Kind, otherwise: &'static str) -> Argument {
    Argument { name, kind, otherwise }
}

const BROKER: Argument = must("broker", Kind::Number);
const ANY_BROKER: Argument = may("broker", Kind::Number, "all brokers");
const TOPIC: Argument = must("topic", Kind::Text);
const PARTITION: Argument = must("partition", Kind::Number);
const OFFSET: Argument = must("offset", Kind::Large);
const GROUP: Argument = must("group", Kind::Text);
const COMMAND: Argument = must("command", Kind::Text);
const TIMES: Argument = may("times", Kind::Number, "1");
const COUNT: Argument = must("count", Kind::Number);
const HOLD: Argument = must("hold", Kind::Large);
const TIMEOUT: Argument = may("timeout_ms", Kind::Millis, "10000");

fn times(given: &Given) -> Result<usize, Failure> {
    Ok(given.optional("times")?.unwrap_or(1))
}

fn topic_and_partition(given: &Given) -> Result<(String, u32), Failure> {
    Ok((given.text("topic")?, given.get("partition")?))
}

/// A command that waits fails at once where an argument is wrong after all.
fn failed<'a>(failure: Failure) -> Asked<'a> {
    Box::pin(async move { Err(failure) })
}

macro_rules! waiting {
    ($given:ident, $arguments:expr) => {
        match (|| -> Result<_, Failure> { Ok($arguments) })() {
            Ok(arguments) => arguments,
            Err(failure) => return failed(failure),
        }
    };
}

/// What can be asked for, in the order of `docs/embedded.md`.
pub const TABLE: &[Command] = &[
    Command {
        name: "commands",
        arguments: &[],
        about: "This table: a list of objects with `name`, `arguments` and `about`.",
        answer: Answer::Other,
        run: Run::Now(|_, _| {
            let arguments = |command: &Command| -> Vec<Value> {
                let list = command.arguments.iter();
                list.map(|it| json!({ "name": it.name, "kind": it.kind.words(), "optional": it.is_optional() }))
                    .collect()
            };
            let one = |it: &Command| json!({ "name": it.name, "arguments": arguments(it), "about": it.about });
            Ok(TABLE.iter().map(one).collect())
        }),
    },
    Command {
        name: "options",
        arguments: &[],
        about: "How the cluster was set up: `brokers` and the times, in milliseconds.",
        answer: Answer::Other,
        run: Run::Now(|session, _| {
            let options = session.cluster.options();
            let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            Ok(json!({
                "brokers": options.brokers,
                "session_timeout_ms": ms(options.session_timeout),
                "expiry_check_ms": ms(options.expiry_check),
                "leader_election_ms": ms(options.leader_election),
                "coordinator_commit_lag_ms": ms(options.coordinator_commit_lag),
                "idle_timeout_ms": ms(options.idle_timeout),
            }))
        }),
    },
    Command {
        name: "brokers",
        arguments: &[],
        about: "Where the brokers listen, by their index: a list of `host:port`.",
        answer: Answer::Other,
        run: Run::Now(|session, _| ok(session.cluster.brokers())),
    },
    Command {
        name: "is_running",
        arguments: &[BROKER],
        about: "Whether a broker runs, paused or not.",
        answer: Answer::Truth,
        run: Run::Now(|session, given| ok(session.cluster.is_running(session.broker(given)?))),
    },
    Command {
        name: "is_paused",
        arguments: &[BROKER],
        about: "Whether a broker is paused.",
        answer: Answer::Truth,
        run: Run::Now(|session, given| ok(session.cluster.is_paused(session.broker(given)?))),
    },
    Command {
        name: "connections",
        arguments: &[BROKER],
        about: "How many connections a broker has.",
        answer: Answer::Number,
        run: Run::Now(|session, given| ok(session.cluster.connections(session.broker(given)?))),
    },
    Command {
        name: "stop_broker",
        arguments: &[BROKER],
        about: "Stops a broker as SIGTERM does: what its connections are at is finished.",
        answer: Answer::Nothing,
        run: Run::Later(|session, given| {
            Box::pin(async { done(session.cluster.stop_broker(given.get("broker")?).await) })
        }),
    },
    Command {
        name: "kill_broker",
        arguments: &[BROKER],
        about: "Kills a broker: connections are cut, replies in flight are lost.",
        answer: Answer::Nothing,
        run: Run::Later(|session, given| {
            Box::pin(async { done(session.cluster.kill_broker(given.get("broker")?).await) })
        }),
    },
    Command {
        name: "restart_broker",
        arguments: &[BROKER],
        about: "Starts a broker again, on the port it had.",
        answer: Answer::Nothing,
        run: Run::Later(|session, given| {
            Box::pin(async { done(session.cluster.restart_broker(given.get("broker")?).await) })
        }),
    },
    Command {
        name: "pause_broker",
        arguments: &[BROKER],
        about: "Pauses a broker as SIGSTOP does: nothing in it moves, and it can still be connected to.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.pause_broker(given.get("broker")?))),
    },
    Command {
        name: "resume_broker",
        arguments: &[BROKER],
        about: "Lets a paused broker go on where it was.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.resume_broker(given.get("broker")?))),
    },
    Command {
        name: "advance",
        arguments: &[must("by_ms", Kind::Millis)],
        about: "Puts the clock of the brokers forward; members have expired and leaders are elected once it returns.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            session.cluster.advance(given.millis("by_ms")?);
            Ok(Value::Bool(true))
        }),
    },
    Command {
        name: "delay",
        arguments: &[must("delay_ms", Kind::Millis), ANY_BROKER],
        about: "Writes every reply of one broker, or of all, this much later, in order, until set to 0.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            done(session.cluster.delay(given.optional("broker")?, given.millis("delay_ms")?))
        }),
    },
    Command {
        name: "cut_connections",
        arguments: &[ANY_BROKER],
        about: "Cuts all connections of one broker, or of all, at once; new ones are accepted.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.cut_connections(given.optional("broker")?))),
    },
    Command {
        name: "close_streams",
        arguments: &[must("reason", Kind::Text)],
        about: "Ends all open streams with a control frame of this reason, as `timeout`, `stopped` or `error`.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.close_streams(&given.text("reason")?))),
    },
    Command {
        name: "freeze_connections",
        arguments: &[ANY_BROKER],
        about: "Silences all connections of one broker, or of all, for ever, without closing them; new ones work.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.freeze_connections(given.optional("broker")?))),
    },
    Command {
        name: "advertise",
        arguments: &[BROKER, may("address", Kind::Text, "where it listens")],
        about: "Lets brokers name this `host:port` for a broker; without one, where it listens again.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            let address: Option<String> = given.optional("address")?;
            done(session.cluster.advertise(given.get("broker")?, address.as_deref()))
        }),
    },
    Command {
        name: "swap_addresses",
        arguments: &[must("a", Kind::Number), must("b", Kind::Number)],
        about: "Lets two brokers listen where the other did; their connections are cut.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.swap_addresses(given.get("a")?, given.get("b")?))),
    },
    Command {
        name: "create_topic",
        arguments: &[must("name", Kind::Text), must("partitions", Kind::Number)],
        about: "Makes a topic, or gives an existing one more partitions.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            done(session.cluster.create_topic(&given.text("name")?, given.get("partitions")?))
        }),
    },
    Command {
        name: "delete_topic",
        arguments: &[must("name", Kind::Text)],
        about: "Deletes a topic with its records; groups keep their members and offsets.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.delete_topic(&given.text("name")?))),
    },
    Command {
        name: "produce",
        arguments: &[TOPIC, PARTITION, must("records", Kind::Records)],
        about: "Writes records to a partition; the offset behind the last one.",
        answer: Answer::Number,
        run: Run::Now(|session, given| {
            let (topic, partition) = topic_and_partition(given)?;
            ok(session.cluster.produce(&topic, partition, given.records("records")?)?)
        }),
    },
    Command {
        name: "append_marker",
        arguments: &[TOPIC, PARTITION],
        about: "Writes a transaction's control record, which committed readers don't see; the offset behind it.",
        answer: Answer::Number,
        run: Run::Now(|session, given| {
            let (topic, partition) = topic_and_partition(given)?;
            ok(session.cluster.append_marker(&topic, partition)?)
        }),
    },
    Command {
        name: "append_aborted",
        arguments: &[TOPIC, PARTITION, must("records", Kind::Records)],
        about: "Writes records of an aborted transaction and its control record; the offset behind that.",
        answer: Answer::Number,
        run: Run::Now(|session, given| {
            let (topic, partition) = topic_and_partition(given)?;
            ok(session.cluster.append_aborted(&topic, partition, given.records("records")?)?)
        }),
    },
    Command {
        name: "fill",
        arguments: &[TOPIC, must("count", Kind::Large), must("value_size", Kind::Number)],
        about: "Writes `count` records of `value_size` bytes, dealt out over all partitions in turn; keys from `0` on.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            done(session.cluster.fill(&given.text("topic")?, given.get("count")?, given.get("value_size")?))
        }),
    },
    Command {
        name: "delete_records",
        arguments: &[TOPIC, PARTITION, must("earliest", Kind::Large)],
        about: "Forgets the records of a partition below `earliest`, as retention does.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            let (topic, partition) = topic_and_partition(given)?;
            done(session.cluster.delete_records(&topic, partition, given.get("earliest")?))
        }),
    },
    Command {
        name: "end_offsets",
        arguments: &[TOPIC],
        about: "The offset behind the last record by partition; empty where there is no such topic.",
        answer: Answer::Offsets,
        run: Run::Now(|session, given| ok(session.cluster.end_offsets(&given.text("topic")?))),
    },
    Command {
        name: "move_leader",
        arguments: &[TOPIC, PARTITION, BROKER],
        about: "Makes another broker a partition's leader, under the next epoch.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            let (topic, partition) = topic_and_partition(given)?;
            done(session.cluster.move_leader(&topic, partition, given.get("broker")?))
        }),
    },
    Command {
        name: "leader",
        arguments: &[TOPIC, PARTITION],
        about: "The broker that leads a partition, running or not.",
        answer: Answer::Number,
        run: Run::Now(|session, given| {
            let (topic, partition) = topic_and_partition(given)?;
            ok(session.cluster.leader(&topic, partition)?)
        }),
    },
    Command {
        name: "move_coordinator",
        arguments: &[GROUP, BROKER],
        about: "Makes another broker a group's coordinator.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            done(session.cluster.move_coordinator(&given.text("group")?, given.get("broker")?))
        }),
    },
    Command {
        name: "coordinator",
        arguments: &[GROUP],
        about: "The broker that coordinates a group, running or not.",
        answer: Answer::Number,
        run: Run::Now(|session, given| ok(session.cluster.coordinator(&given.text("group")?))),
    },
    Command {
        name: "expire_member",
        arguments: &[GROUP, must("member", Kind::Text)],
        about: "Expires a member now, as if its session had ended.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            done(session.cluster.expire_member(&given.text("group")?, &given.text("member")?))
        }),
    },
    Command {
        name: "committed",
        arguments: &[GROUP, TOPIC],
        about: "What a group has committed in a topic: the next offset to read by partition.",
        answer: Answer::Offsets,
        run: Run::Now(|session, given| ok(session.cluster.committed(&given.text("group")?, &given.text("topic")?))),
    },
    Command {
        name: "group",
        arguments: &[GROUP],
        about: "A group: `topic`, `generation`, `state` and `members`, partitions by member id; null where there is none.",
        answer: Answer::Other,
        run: Run::Now(|session, given| ok(session.cluster.group(&given.text("group")?))),
    },
    Command {
        name: "fail_next",
        arguments: &[COMMAND, TIMES, must("error", Kind::Text)],
        about: "Answers the next `times` of a command with `ERROR: ` and this text instead of carrying them out.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| {
            done(session.cluster.fail_next(&given.text("command")?, times(given)?, &given.text("error")?))
        }),
    },
    Command {
        name: "lose_reply",
        arguments: &[COMMAND, TIMES],
        about: "Carries out the next `times` of a command and cuts the connection instead of replying.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.lose_reply(&given.text("command")?, times(given)?))),
    },
    Command {
        name: "corrupt_next",
        arguments: &[COMMAND, TIMES],
        about: "Carries out the next `times` of a command and damages the replies.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.corrupt_next(&given.text("command")?, times(given)?))),
    },
    Command {
        name: "repeat_reply",
        arguments: &[COMMAND, TIMES],
        about: "Carries out the next `times` of a command and sends each reply twice.",
        answer: Answer::Nothing,
        run: Run::Now(|session, given| done(session.cluster.repeat_reply(&given.text("command")?, times(given)?))),
    },
    Command {
        name: "hold",
        arguments: &[COMMAND],
        about: "Holds the next of a command until `release`; the hold's number on this connection.",
        answer: Answer::Number,
        run: Run::Now(Session::hold),
    },
    Command {
        name: "release",
        arguments: &[HOLD],
        about: "Lets a held request go on; without one, the hold is taken back.",
        answer: Answer::Nothing,
        run: Run::Now(Session::release),
    },
    Command {
        name: "is_held",
        arguments: &[HOLD],
        about: "Whether a request is held.",
        answer: Answer::Truth,
        run: Run::Now(|session, given| ok(session.held(given)?.is_reached())),
    },
    Command {
        name: "wait_held",
        arguments: &[HOLD, TIMEOUT],
        about: "Waits until a request is held.",
        answer: Answer::Nothing,
        run: Run::Wait(|session, given| {
            Box::pin(async {
                session.held(given)?.reached().await;
                Ok(Value::Bool(true))
            })
        }),
    },
    Command {
        name: "requests",
        arguments: &[],
        about: "The last 10,000 requests, oldest first: objects with `broker`, `connection`, `command` and `text`.",
        answer: Answer::Other,
        run: Run::Now(|session, _| ok(session.cluster.requests())),
    },
    Command {
        name: "clear_requests",
        arguments: &[],
        about: "Forgets the requests so far.",
        answer: Answer::Nothing,
        run: Run::Now(|session, _| {
            session.cluster.clear_requests();
            Ok(Value::Bool(true))
        }),
    },
    Command {
        name: "wait_for_requests",
        arguments: &[COMMAND, COUNT, TIMEOUT],
        about: "Waits until at least `count` requests of a command are among those that `requests` gives.",
        answer: Answer::Nothing,
        run: Run::Wait(|session, given| {
            let (command, count) = waiting!(given, (named(&given.text("command")?)?, given.get::<usize>("count")?));
            session.wait_for("requests of a command", move |cluster| {
                cluster.shared().read(|state| state.journal.count(command)) >= count
            })
        }),
    },
    Command {
        name: "wait_for_committed",
        arguments: &[GROUP, TOPIC, PARTITION, OFFSET, TIMEOUT],
        about: "Waits until a group has committed at least this offset.",
        answer: Answer::Nothing,
        run: Run::Wait(|session, given| {
            let group = waiting!(given, given.text("group")?);
            let ((topic, partition), offset) =
                waiting!(given, (topic_and_partition(given)?, given.get::<u64>("offset")?));
            session.wait_for("a commit", move |cluster| {
                cluster.committed(&group, &topic).get(&partition).is_some_and(|committed| *committed >= offset)
            })
        }),
    },
    Command {
        name: "wait_for_end_offset",
        arguments: &[TOPIC, PARTITION, OFFSET, TIMEOUT],
        about: "Waits until a partition's end is at least at this offset.",
        answer: Answer::Nothing,
        run: Run::Wait(|session, given| {
            let ((topic, partition), offset) =
                waiting!(given, (topic_and_partition(given)?, given.get::<u64>("offset")?));
            session.wait_for("records", move |cluster| {
                cluster.end_offsets(&topic).get(&partition).is_some_and(|end| *end >= offset)
            })
        }),
    },
    Command {
        name: "wait_for_members",
        arguments: &[GROUP, COUNT, TIMEOUT],
        about: "Waits until a group has exactly this many members.",
        answer: Answer::Nothing,
        run: Run::Wait(|session, given| {
            let (group, count) = waiting!(given, (given.text("group")?, given.get::<usize>("count")?));
            session.wait_for("members of a group", move |cluster| {
                cluster.group(&group).map_or(0, |found| found.members.len()) == count
            })
        }),
    },
    Command {
        name: "wait_for_generation",
        arguments: &[GROUP, must("generation", Kind::Large), TIMEOUT],
        about: "Waits until a group is at least at this generation.",
        answer: Answer::Nothing,
        run: Run::Wait(|session, given| {
            let (group, generation) = waiting!(given, (given.text("group")?, given.get::<u64>("generation")?));
            session.wait_for("a generation", move |cluster| {
                cluster.group(&group).is_some_and(|found| found.generation >= generation)
            })
        }),
    },
    Command {
        name: "wait_for_leader",
        arguments: &[TOPIC, PARTITION, BROKER, TIMEOUT],
        about: "Waits until this broker leads a partition.",
        answer: Answer::Nothing,
        run: Run::Wait(|session, given| {
            let ((topic, partition), broker) = waiting!(given, (topic_and_partition(given)?, session.broker(given)?));
            session.wait_for("a leader", move |cluster| cluster.leader(&topic, partition).is_ok_and(|it| it == broker))
        }),
    },
    Command {
        name: "wait_for_connections",
        arguments: &[BROKER, COUNT, TIMEOUT],
        about: "Waits until a broker has exactly this many connections.",
        answer: Answer::Nothing,
        run: Run::Wait(|session, given| {
            let (broker, count) = waiting!(given, (session.broker(given)?, given.get::<usize>("count")?));
            session.wait_for("connections", move |cluster| cluster.connections(broker) == count)
        }),
    },
    Command {
        name: "stop",
        arguments: &[],
        about: "Ends all brokers, and the control port with them; the binary ends too.",
        answer: Answer::Nothing,
        run: Run::Later(|session, _| {
            Box::pin(async {
                session.cluster.stop().await;
                Ok(Value::Bool(true))
            })
        }),
    },
];
