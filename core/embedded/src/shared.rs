//! What the tasks of a cluster share.
//!
//! All but the records is behind one lock, which is never held across an await. Whoever changes anything under it wakes
//! those who wait for a change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::Door;
use crate::clock::Clock;
use crate::error::ControlError;
use crate::faults::Faults;
use crate::groups::Groups;
use crate::journal::Journal;
use crate::options::Options;
use crate::topics::Topics;
use crate::transactions::Transactions;
use crate::watch;

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
    pub(crate) clock: Clock,
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
    /// Stops it without ending it.
    pub(crate) paused: watch::Sender<bool>,
    /// One for each connection that it serves.
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) tasks: TaskTracker,
}

/// A connection of a broker.
#[derive(Debug)]
pub(crate) struct Link {
    /// Ends it at once.
    pub(crate) cut: CancellationToken,
    /// Silences it for ever.
    pub(crate) freeze: watch::Sender<bool>,
}

/// A broker that is stopped without having ended.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    /// It should have looked for members to expire meanwhile.
    pub(crate) missed_check: bool,
}

/// A host and a port that a broker names to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Endpoint {
    /// Reads `host:port`; an IPv6 address stands in brackets.
    pub(crate) fn parse(text: &str) -> Result<Self, ControlError> {
        let invalid =
            |problem: &str| ControlError::InvalidAddress { address: text.to_owned(), problem: problem.to_owned() };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| invalid("expected HOST:PORT"))?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| invalid("the port must be 1 to 65535"))?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        if bare.is_none() && host.contains(':') {
            return Err(invalid("an IPv6 address must stand in brackets"));
        }
        if !is_host(host) {
            return Err(invalid("the host must be one word without commas and equals signs"));
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        // An IPv6 address needs its brackets.
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Whether this can stand for a host in the brokers' replies.
pub(crate) fn is_host(host: &str) -> bool {
    !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == ',' || c == '=')
}

/// A broker, running or not.
#[derive(Debug)]
pub(crate) struct Broker {
    /// Its name in the cluster, which it keeps whatever address it has.
    pub(crate) id: String,
    pub(crate) address: SocketAddr,
    /// What it names to clients instead of where it listens.
    pub(crate) advertised: Option<Endpoint>,
    pub(crate) running: Option<Running>,
    /// Where its connections come from while it runs.
    pub(crate) door: Option<watch::Sender<Door>>,
    pub(crate) paused: Option<Pause>,
    /// Since when it has been down or paused.
    pub(crate) away_since: Instant,
    /// How much later than it could it writes its replies.
    pub(crate) delay: watch::Sender<Duration>,
    pub(crate) connections: BTreeMap<u64, Link>,
}

impl Broker {
    /// Whether the others miss it: it is down, or paused.
    pub(crate) fn is_away(&self) -> bool {
        self.running.is_none() || self.paused.is_some()
    }
}

/// A stream: its connection, and what tells it that it ends and why, as where another takes its place.
pub(crate) type OpenStream = (u64, watch::Sender<Option<String>>);

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
    /// The open streams of each broker by `topic:partition:group`.
    pub(crate) streams: BTreeMap<(usize, String), OpenStream>,
    pub(crate) next_connection: u64,
    pub(crate) default_group_made: bool,
    /// When members to expire are looked for next.
    pub(crate) next_check: Instant,
    /// What `wait_for` waited for until its future was dropped.
    pub(crate) waited_in_vain: Vec<String>,
}

impl Shared {
    pub(crate) fn new(options: Options, addresses: Vec<SocketAddr>, advertised: &BTreeMap<usize, Endpoint>) -> Self {
        let clock = Clock::new();
        let started = clock.now();
        let host = advertised_host(&options);
        let down = |(index, address): (usize, SocketAddr)| Broker {
            id: if options.brokers > 1 { format!("{host}-{}", address.port()) } else { "standalone".to_owned() },
            address,
            advertised: advertised.get(&index).cloned(),
            running: None,
            door: None,
            paused: None,
            away_since: started,
            delay: watch::Sender::new(Duration::ZERO),
            connections: BTreeMap::new(),
        };
        let mut topics = Topics::default();
        topics.create(INTERNAL_TOPIC, 4, addresses.len());
        let state = State {
            brokers: addresses.into_iter().enumerate().map(down).collect(),
            topics,
            groups: Groups::default(),
            transactions: Transactions::default(),
            moved: BTreeMap::new(),
            faults: Faults::default(),
            journal: Journal::default(),
            streams: BTreeMap::new(),
            next_connection: 0,
            default_group_made: false,
            next_check: started,
            waited_in_vain: Vec::new(),
        };
        Self {
            options,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            elections: Notify::new(),
            clock,
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
        advertised_host(&self.options)
    }

    /// Where brokers send clients that look for this one.
    pub(crate) fn endpoint(&self, state: &State, broker: usize) -> Endpoint {
        let own = || Endpoint { host: self.advertised_host(), port: state.port(broker) };
        state.brokers.get(broker).and_then(|broker| broker.advertised.clone()).unwrap_or_else(own)
    }

    /// The address that brokers name to clients.
    pub(crate) fn advertised(&self, state: &State, broker: usize) -> String {
        self.endpoint(state, broker).to_string()
    }

    /// The broker's name in the cluster.
    pub(crate) fn broker_id(&self, state: &State, broker: usize) -> String {
        state.brokers.get(broker).map_or_else(String::new, |broker| broker.id.clone())
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

/// The host that brokers name to clients where nothing else is said of one of them.
fn advertised_host(options: &Options) -> String {
    match &options.advertised_host {
        Some(host) => host.clone(),
        None if options.brokers > 1 => options.host.to_string(),
        None => "localhost".to_owned(),
    }
}

impl State {
    pub(crate) fn port(&self, broker: usize) -> u16 {
        self.brokers.get(broker).map_or(0, |broker| broker.address.port())
    }

    /// Whether a broker runs, and isn't paused either.
    pub(crate) fn is_running(&self, broker: usize) -> bool {
        self.brokers.get(broker).is_some_and(|broker| !broker.is_away())
    }

    pub(crate) fn first_running(&self) -> Option<usize> {
        self.brokers.iter().position(|broker| !broker.is_away())
    }

    /// The broker that coordinates a group: a hash of its name, or where it was moved. A coordinator that is down stays
    /// the coordinator, as with real brokers.
    pub(crate) fn coordinator(&self, group: &str) -> usize {
        let hashed = crc32(group.as_bytes()) as usize % self.brokers.len().max(1);
        self.moved.get(group).copied().unwrap_or(hashed)
    }

    /// When there is something to do by itself again.
    pub(crate) fn next_due(&self, options: &Options) -> Instant {
        self.next_election(options.leader_election).map_or(self.next_check, |due| due.min(self.next_check))
    }

    /// Does what is due by itself: members expire, leaders are replaced. Whether anything changed.
    pub(crate) fn keep(&mut self, now: Instant, options: &Options) -> bool {
        let elected = self.elect(now, options.leader_election);
        if now < self.next_check {
            return elected;
        }
        self.next_check = now + options.expiry_check.max(Duration::from_millis(1));
        for pause in self.brokers.iter_mut().filter_map(|broker| broker.paused.as_mut()) {
            pause.missed_check = true;
        }
        self.expire(now, options.session_timeout, |state, broker| state.is_running(broker)) || elected
    }

    /// Expires the overdue members of the groups whose coordinator is one of those that look. A coordinator that is away
    /// expires nobody.
    pub(crate) fn expire(&mut self, now: Instant, timeout: Duration, looks: impl Fn(&Self, usize) -> bool) -> bool {
        let of = |name: &&String| looks(self, self.coordinator(name));
        let looked_after: BTreeSet<String> = self.groups.names().filter(of).cloned().collect();
        self.groups.expire(now, timeout, |name| looked_after.contains(name))
    }

    /// When the next leader that went away must be replaced; nothing while there is nobody to replace it.
    fn next_election(&self, after: Duration) -> Option<Instant> {
        self.first_running()?;
        let leads = |index: usize| self.topics.iter().any(|(_, t)| t.partitions.iter().any(|p| p.leader == index));
        let away = self.brokers.iter().enumerate().filter(|(index, broker)| broker.is_away() && leads(*index));
        away.map(|(_, broker)| broker.away_since + after).min()
    }

    /// Gives the partitions of brokers that were away for this long to the first broker that runs. Whether there were any.
    ///
    /// Real brokers never take a replica back that was away, so that three kills in turn leave a partition without a
    /// leader for ever. Here all brokers share one log and any that runs may lead.
    fn elect(&mut self, now: Instant, after: Duration) -> bool {
        let Some(next) = self.first_running() else { return false };
        let gone: Vec<bool> =
            self.brokers.iter().map(|broker| broker.is_away() && broker.away_since + after <= now).collect();
        let mut elected = false;
        for (_, topic) in self.topics.iter_mut() {
            for partition in &mut topic.partitions {
                if gone.get(partition.leader) == Some(&true) {
                    partition.leader = next;
                    partition.epoch += 1;
                    elected = true;
                }
            }
        }
        elected
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
