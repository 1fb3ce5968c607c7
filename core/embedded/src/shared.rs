//! What the tasks of a cluster share.
//!
//! All but the records is behind one lock, which is never held across an await. Whoever changes anything under it wakes
//! those who wait for a change.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::faults::Faults;
use crate::groups::Groups;
use crate::journal::Journal;
use crate::options::Options;
use crate::topics::Topics;
use crate::transactions::Transactions;

/// The topic that every broker has for itself.
pub(crate) const INTERNAL_TOPIC: &str = "__consumer_offsets";

/// The group that the first CREATE makes.
pub(crate) const DEFAULT_GROUP: &str = "default-group";

pub(crate) struct Shared {
    pub(crate) options: Options,
    state: Mutex<State>,
    changes: watch::Sender<u64>,
    /// Wakes the keeper, which looks when the next leader must be elected.
    pub(crate) elections: Notify,
    pub(crate) started: Instant,
    /// Ends everything.
    pub(crate) root: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

/// A broker that runs.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    /// Ends it at once.
    pub(crate) cut: CancellationToken,
    /// Lets it finish what it is at.
    pub(crate) drain: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

/// A broker, running or not.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) address: SocketAddr,
    pub(crate) running: Option<Running>,
    pub(crate) down_since: Instant,
    pub(crate) connections: BTreeMap<u64, CancellationToken>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) brokers: Vec<Broker>,
    pub(crate) topics: Topics,
    pub(crate) groups: Groups,
    pub(crate) transactions: Transactions,
    /// The groups whose coordinator was moved.
    pub(crate) moved: BTreeMap<String, usize>,
    pub(crate) faults: Faults,
    pub(crate) journal: Journal,
    /// The open streams of each broker by `topic:partition:group`: their connection, and what tells them that another
    /// took their place.
    pub(crate) streams: BTreeMap<(usize, String), (u64, CancellationToken)>,
    pub(crate) next_connection: u64,
    pub(crate) default_group_made: bool,
    /// What `wait_for` waited for until its future was dropped.
    pub(crate) waited_in_vain: Vec<String>,
}

impl Shared {
    pub(crate) fn new(options: Options, addresses: Vec<SocketAddr>) -> Self {
        let started = Instant::now();
        let down = |address| Broker { address, running: None, down_since: started, connections: BTreeMap::new() };
        let mut topics = Topics::default();
        topics.create(INTERNAL_TOPIC, 4, addresses.len());
        let state = State {
            brokers: addresses.into_iter().map(down).collect(),
            topics,
            groups: Groups::default(),
            transactions: Transactions::default(),
            moved: BTreeMap::new(),
            faults: Faults::default(),
            journal: Journal::default(),
            streams: BTreeMap::new(),
            next_connection: 0,
            default_group_made: false,
            waited_in_vain: Vec::new(),
        };
        Self {
            options,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            elections: Notify::new(),
            started,
            root: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let done = change(&mut self.lock());
        self.changed();
        done
    }

    /// Changes what nobody waits for, or what the caller tells of itself.
    pub(crate) fn read_mut<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.lock())
    }

    /// Tells those who wait that something changed.
    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether this is a cluster rather than a standalone broker, which answers some commands differently.
    pub(crate) fn is_cluster(&self) -> bool {
        self.options.brokers > 1
    }

    /// The host that brokers name to clients.
    pub(crate) fn advertised_host(&self) -> String {
        match &self.options.advertised_host {
            Some(host) => host.clone(),
            None if self.is_cluster() => self.options.host.to_string(),
            None => "localhost".to_owned(),
        }
    }

    /// The address that brokers name to clients.
    pub(crate) fn advertised(&self, state: &State, broker: usize) -> String {
        let host = self.advertised_host();
        let port = state.port(broker);
        // An IPv6 address needs its brackets.
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// The broker's name in the cluster.
    pub(crate) fn broker_id(&self, state: &State, broker: usize) -> String {
        if self.is_cluster() {
            format!("{}-{}", self.advertised_host(), state.port(broker))
        } else {
            "standalone".to_owned()
        }
    }

    /// The leader's Raft address, which a cluster's acknowledgements name.
    pub(crate) fn raft_leader(&self, state: &State) -> Option<String> {
        let leader = state.first_running().unwrap_or(0);
        self.is_cluster().then(|| format!("{}:{}", self.advertised_host(), u32::from(state.port(leader)) + 1))
    }

    /// What the cluster lags behind by, which a standalone broker doesn't.
    pub(crate) fn lag(&self) -> Duration {
        if self.is_cluster() { self.options.coordinator_commit_lag } else { Duration::ZERO }
    }
}

impl State {
    pub(crate) fn port(&self, broker: usize) -> u16 {
        self.brokers.get(broker).map_or(0, |broker| broker.address.port())
    }

    pub(crate) fn is_running(&self, broker: usize) -> bool {
        self.brokers.get(broker).is_some_and(|broker| broker.running.is_some())
    }

    pub(crate) fn first_running(&self) -> Option<usize> {
        self.brokers.iter().position(|broker| broker.running.is_some())
    }

    /// The broker that coordinates a group: a hash of its name, or where it was moved. A coordinator that is down stays
    /// the coordinator, as with real brokers.
    pub(crate) fn coordinator(&self, group: &str) -> usize {
        let hashed = crc32(group.as_bytes()) as usize % self.brokers.len().max(1);
        self.moved.get(group).copied().unwrap_or(hashed)
    }

    /// When the next leader that went down must be replaced; nothing while there is nobody to replace it.
    pub(crate) fn next_election(&self, after: Duration) -> Option<Instant> {
        self.first_running()?;
        let leads = |index: usize| self.topics.iter().any(|(_, t)| t.partitions.iter().any(|p| p.leader == index));
        let down = self.brokers.iter().enumerate().filter(|(index, broker)| broker.running.is_none() && leads(*index));
        down.map(|(_, broker)| broker.down_since + after).min()
    }

    /// Gives the partitions of brokers that were down for this long to the first broker that runs.
    ///
    /// Real brokers never take a replica back that was away, so that three kills in turn leave a partition without a
    /// leader for ever. Here all brokers share one log and any that runs may lead.
    pub(crate) fn elect(&mut self, now: Instant, after: Duration) {
        let Some(next) = self.first_running() else { return };
        let gone: Vec<bool> =
            self.brokers.iter().map(|broker| broker.running.is_none() && broker.down_since + after <= now).collect();
        for (_, topic) in self.topics.iter_mut() {
            for partition in &mut topic.partitions {
                if gone.get(partition.leader) == Some(&true) {
                    partition.leader = next;
                    partition.epoch += 1;
                }
            }
        }
    }
}

/// CRC-32 (IEEE), which the broker's own placement uses too.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
