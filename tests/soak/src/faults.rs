//! What goes wrong, and in which order: drawn from a seed.

use std::fmt;

use cursus_net::{Randomness as _, SplitMix};
use serde_json::{Value, json};

use crate::{BROKERS, GROUP, PARTITIONS, TOPIC};

/// A kind of fault, by the name that the book counts it under.
pub(crate) type Kind = &'static str;

/// Every kind there is.
pub(crate) const KINDS: [Kind; 16] = [
    "kill_broker",
    "stop_broker",
    "pause_broker",
    "move_coordinator",
    "move_leader",
    "cut_connections",
    "freeze_connections",
    "delay",
    "fail_next",
    "lose_reply",
    "corrupt_next",
    "expire_member",
    "close_streams",
    "kill_member",
    "replace_member",
    "suspend_member",
];

/// Answers that pass, as real brokers give them.
const ERRORS: [(&str, &str); 14] = [
    ("CONSUME", "leader_not_found"),
    ("STREAM", "leader_not_found"),
    ("LIST_OFFSETS", "leader_not_found"),
    ("HEARTBEAT", "coordinator_not_available"),
    ("HEARTBEAT", "NOT_COORDINATOR"),
    ("HEARTBEAT", "member_not_found"),
    ("BATCH_COMMIT", "offset_sync_failed"),
    ("BATCH_COMMIT", "NOT_COORDINATOR"),
    ("FETCH_OFFSET", "offset_manager_not_available"),
    ("JOIN_GROUP", "raft_apply_failed reason=\"node is not the leader\""),
    ("SYNC_GROUP", "group_not_found group=soak"),
    ("METADATA", "cluster_metadata_unavailable"),
    ("METADATA", "topic_not_found topic=soak"),
    ("FIND_COORDINATOR", "find_coordinator_failed"),
];

/// The commands whose replies are lost and damaged.
const COMMANDS: [&str; 10] = [
    "NEGOTIATE",
    "METADATA",
    "FIND_COORDINATOR",
    "JOIN_GROUP",
    "SYNC_GROUP",
    "HEARTBEAT",
    "FETCH_OFFSET",
    "BATCH_COMMIT",
    "CONSUME",
    "STREAM",
];

/// Why a broker ends a stream. The last one nobody has heard of.
const REASONS: [&str; 5] = ["timeout", "stopped", "removed", "error", "whim"];

/// What is done to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// Something that the control port does, and what undoes it after so many seconds.
    Cluster { does: Value, undone: Option<(u64, Value)> },
    /// One of the members expires: the n-th, modulo how many there are.
    ExpireMember(u64),
    /// SIGKILL, and another one starts.
    KillMember,
    /// It is asked to close, and another one starts.
    ReplaceMember,
    /// SIGSTOP, and SIGCONT after so many seconds.
    SuspendMember { slot: u64, seconds: u64 },
}

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) act: Act,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)?;
        match &self.act {
            Act::Cluster { does, undone } => {
                for (name, value) in does.as_object().into_iter().flatten().filter(|(name, _)| *name != "do") {
                    write!(f, " {name}={value}")?;
                }
                undone.as_ref().map_or(Ok(()), |(seconds, _)| write!(f, " for {seconds} s"))
            }
            Act::ExpireMember(number) => write!(f, " {number}"),
            Act::SuspendMember { slot, seconds } => write!(f, " {slot} for {seconds} s"),
            Act::KillMember | Act::ReplaceMember => Ok(()),
        }
    }
}

/// The order of the faults: round by round, each kind once in a round.
pub(crate) struct Order {
    random: SplitMix,
    kinds: Vec<Kind>,
    /// How long a fault may last, in seconds.
    longest: u64,
    round: Vec<Kind>,
}

impl Order {
    /// Of these kinds, of all where none is named; one comes every so many seconds.
    pub(crate) fn new(seed: u64, only: &[String], every: f64) -> Self {
        let kinds = KINDS.into_iter().filter(|kind| only.is_empty() || only.iter().any(|name| name == kind)).collect();
        // Below the time between two faults, so that two brokers are never away at once.
        let longest = (every * 0.75).clamp(1.0, 15.0) as u64;
        Self { random: SplitMix::seeded(seed), kinds, longest, round: Vec::new() }
    }

    /// The next fault.
    pub(crate) fn draw(&mut self) -> Fault {
        if self.round.is_empty() {
            self.round.clone_from(&self.kinds);
        }
        let at = self.random.below(self.round.len() as u64) as usize;
        let kind = self.round.swap_remove(at);
        Fault { kind, act: self.act(kind) }
    }

    fn act(&mut self, kind: Kind) -> Act {
        let broker = self.random.below(BROKERS as u64);
        let seconds = self.between(1, self.longest);
        let times = self.between(1, 4);
        // One broker, or all of them.
        let some = if self.random.below(3) == 0 { json!(null) } else { json!(broker) };
        let does = match kind {
            "expire_member" => return Act::ExpireMember(self.random.next_u64()),
            "kill_member" => return Act::KillMember,
            "replace_member" => return Act::ReplaceMember,
            // Half of them for longer than a session lasts.
            "suspend_member" => {
                let seconds = if self.random.below(2) == 0 { self.between(2, 8) } else { self.between(16, 26) };
                return Act::SuspendMember { slot: self.random.below(3), seconds };
            }
            "move_coordinator" => json!({ "group": GROUP, "broker": broker }),
            "move_leader" => {
                json!({ "topic": TOPIC, "partition": self.random.below(u64::from(PARTITIONS)), "broker": broker })
            }
            "cut_connections" | "freeze_connections" => of_some(some, json!({})),
            "delay" => {
                let undo = of_some(some.clone(), json!({ "do": "delay", "delay_ms": 0 }));
                let mut does = of_some(some, json!({ "delay_ms": self.between(50, 1500) }));
                does["do"] = json!(kind);
                return Act::Cluster { does, undone: Some((seconds, undo)) };
            }
            "fail_next" => {
                let (command, error) = ERRORS[self.random.below(ERRORS.len() as u64) as usize];
                json!({ "command": command, "times": times, "error": error })
            }
            "lose_reply" | "corrupt_next" => {
                let command = COMMANDS[self.random.below(COMMANDS.len() as u64) as usize];
                json!({ "command": command, "times": times })
            }
            "close_streams" => json!({ "reason": REASONS[self.random.below(REASONS.len() as u64) as usize] }),
            // Those that take a broker away.
            _ => json!({ "broker": broker }),
        };
        let back = match kind {
            "kill_broker" | "stop_broker" => Some("restart_broker"),
            "pause_broker" => Some("resume_broker"),
            _ => None,
        };
        let undone = back.map(|back| (seconds, json!({ "do": back, "broker": broker })));
        let mut does = does;
        does["do"] = json!(kind);
        Act::Cluster { does, undone }
    }

    fn between(&self, from: u64, to: u64) -> u64 {
        from + self.random.below(to - from + 1)
    }
}

/// The request, of one broker where there is one.
fn of_some(broker: Value, mut request: Value) -> Value {
    if !broker.is_null() {
        request["broker"] = broker;
    }
    request
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_faults_and_another_one_others() {
        let draw = |seed| {
            let mut order = Order::new(seed, &[], 20.0);
            (0..50).map(|_| order.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn a_round_has_each_kind_once() {
        let mut order = Order::new(1, &[], 20.0);
        for _ in 0..20 {
            let round: BTreeSet<Kind> = KINDS.iter().map(|_| order.draw().kind).collect();
            assert_eq!(round.len(), KINDS.len());
        }
    }

    #[test]
    fn only_the_kinds_that_are_named_are_drawn_and_none_lasts_until_the_next() {
        let only = ["kill_broker".to_owned(), "delay".to_owned()];
        for (every, longest) in [(20.0, 15), (8.0, 6), (2.0, 1), (0.5, 1)] {
            let mut order = Order::new(5, &only, every);
            let drawn: Vec<Fault> = (0..200).map(|_| order.draw()).collect();
            let kinds: BTreeSet<Kind> = drawn.iter().map(|fault| fault.kind).collect();
            assert_eq!(kinds, BTreeSet::from(["kill_broker", "delay"]));
            let lasting = drawn.iter().map(|fault| match &fault.act {
                Act::Cluster { undone: Some((seconds, _)), .. } => *seconds,
                other => panic!("{other:?} isn't undone"),
            });
            assert_eq!(lasting.max(), Some(longest));
        }
    }

    #[tokio::test]
    async fn a_cluster_takes_all_that_is_drawn() {
        let options = cursus_embedded::Options { brokers: BROKERS, ..Default::default() };
        let cluster = cursus_embedded::Cluster::start(options).await.unwrap();
        cluster.create_topic(TOPIC, PARTITIONS).unwrap();
        let listener = cluster.options().network.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().unwrap().to_string();
        let _served = tokio::spawn(cursus_embedded::control_port::serve(cluster.clone(), listener));
        let mut control = crate::control::Control::connect(&address).await.unwrap();
        let mut order = Order::new(3, &[], 20.0);
        for _ in 0..30 * KINDS.len() {
            let Act::Cluster { does, undone } = order.draw().act else { continue };
            control.tell(does).await.unwrap();
            if let Some((_, undo)) = undone {
                control.tell(undo).await.unwrap();
            }
        }
        cluster.stop().await;
    }
}
