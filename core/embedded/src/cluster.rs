//! The cluster's handle: start, stop, and the brokers' lives.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cursus_net::Listener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::broker;
use crate::error::ControlError;
use crate::options::Options;
use crate::shared::{INTERNAL_TOPIC, Shared, State};

/// How long a broker that restarts tries to get its port back.
const REBIND: Duration = Duration::from_secs(5);

/// A cluster in this process. A cheap handle: clones control the same cluster, and when the last one is dropped, or
/// [`Cluster::stop`] is called, all of its tasks end.
#[derive(Clone)]
pub struct Cluster {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.root.cancel();
    }
}

/// More brokers than any test needs.
const MOST_BROKERS: usize = 1000;

impl Cluster {
    /// Starts the brokers; they accept connections once this returns. Runs on the runtime it is called on.
    ///
    /// # Errors
    ///
    /// No broker, an advertised host that isn't one word, or an address that can't be listened on.
    pub async fn start(options: Options) -> io::Result<Self> {
        let invalid = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if options.brokers == 0 {
            return invalid("a cluster needs at least one broker".to_owned());
        }
        if options.brokers > MOST_BROKERS {
            return invalid(format!("a cluster of {} brokers is over the limit of {MOST_BROKERS}", options.brokers));
        }
        if let Some(host) = &options.advertised_host
            && (host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == ',' || c == '='))
        {
            return invalid(format!("the advertised host {host:?} is not a host"));
        }
        let mut listeners: Vec<Box<dyn Listener>> = Vec::with_capacity(options.brokers);
        let mut addresses = Vec::with_capacity(options.brokers);
        for index in 0..options.brokers {
            let port = match options.port {
                None => 0,
                Some(first) => match u16::try_from(usize::from(first) + index) {
                    Ok(port) => port,
                    Err(_) => return invalid(format!("there is no port for broker {index} above {first}")),
                },
            };
            let address = SocketAddr::new(options.host, port);
            let listener = options
                .network
                .listen(address)
                .await
                .map_err(|error| io::Error::new(error.kind(), format!("broker {index} on {address}: {error}")))?;
            addresses.push(listener.local_address()?);
            listeners.push(listener);
        }
        let shared = Arc::new(Shared::new(options.bounded(), addresses));
        for (index, listener) in listeners.into_iter().enumerate() {
            broker::launch(&shared, index, listener);
        }
        shared.tasks.spawn(keep(shared.clone()));
        Ok(Self { handle: Arc::new(Handle { shared }) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Where the brokers listen, by their index: `127.0.0.1:port`. The same for as long as the cluster lives.
    pub fn brokers(&self) -> Vec<String> {
        self.shared().read(|state| state.brokers.iter().map(|broker| broker.address.to_string()).collect())
    }

    /// How the cluster was set up.
    pub fn options(&self) -> &Options {
        &self.shared().options
    }

    /// Whether a broker runs.
    pub fn is_running(&self, broker: usize) -> bool {
        self.shared().read(|state| state.is_running(broker))
    }

    /// How many connections a broker has.
    pub fn connections(&self, broker: usize) -> usize {
        self.shared().read(|state| state.brokers.get(broker).map_or(0, |broker| broker.connections.len()))
    }

    /// Stops a broker as SIGTERM does: its connections finish what they are at, within a second, and are closed; its
    /// streams end without a word. What it leads goes to another broker after
    /// [`leader_election`](Options::leader_election); what it coordinates waits for its return.
    ///
    /// # Errors
    ///
    /// No such broker, or it is down already.
    pub async fn stop_broker(&self, broker: usize) -> Result<(), ControlError> {
        self.take_down(broker, true).await
    }

    /// Kills a broker: its connections are cut at once, requests in flight may or may not have been carried out, and
    /// their replies are lost. Otherwise like [`Cluster::stop_broker`].
    ///
    /// # Errors
    ///
    /// No such broker, or it is down already.
    pub async fn kill_broker(&self, broker: usize) -> Result<(), ControlError> {
        self.take_down(broker, false).await
    }

    async fn take_down(&self, broker: usize, gracefully: bool) -> Result<(), ControlError> {
        self.shared().read(|state| check_broker(state, broker))?;
        let running = broker::take_down(self.shared(), broker);
        let running = running.ok_or(ControlError::BrokerState { broker, state: "down" })?;
        broker::end(running, gracefully).await;
        self.shared().changed();
        Ok(())
    }

    /// Starts a broker again, on the port it had. In a cluster groups, members and offsets are all there, and members
    /// have one session timeout to be heard again; a standalone broker remembers offsets and nothing of members and
    /// generations.
    ///
    /// # Errors
    ///
    /// No such broker, it runs already, the cluster was stopped, or the port is taken, which is tried for 5 s.
    pub async fn restart_broker(&self, broker: usize) -> Result<(), ControlError> {
        let shared = self.shared();
        let address = shared.read(|state| {
            check_broker(state, broker)?;
            if state.is_running(broker) {
                return Err(ControlError::BrokerState { broker, state: "running" });
            }
            Ok(SocketAddr::new(shared.options.host, state.port(broker)))
        })?;
        if shared.root.is_cancelled() {
            return Err(ControlError::Stopped);
        }
        let give_up = Instant::now() + REBIND;
        let listener = loop {
            match shared.options.network.listen(address).await {
                Ok(listener) => break listener,
                // Somebody's outgoing connection may hold the port for a moment.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < give_up => {
                    sleep(Duration::from_millis(20)).await;
                }
                Err(source) => return Err(ControlError::Listen { broker, address: address.to_string(), source }),
            }
        };
        let now = Instant::now();
        shared.change(|state| {
            if shared.is_cluster() {
                let timeout = shared.options.session_timeout;
                let of_this = groups_of(state, broker);
                state.groups.taken_over(now, timeout, |name| of_this.iter().any(|group| group == name));
            } else {
                state.groups.forget_members();
            }
        });
        broker::launch(shared, broker, listener);
        shared.elections.notify_one();
        Ok(())
    }

    /// Ends all brokers at once and waits until every task is gone.
    pub async fn stop(&self) {
        let shared = self.shared();
        shared.root.cancel();
        shared.tasks.close();
        let count = shared.read(|state| state.brokers.len());
        for index in 0..count {
            if let Some(running) = broker::take_down(shared, index) {
                broker::end(running, false).await;
            }
        }
        shared.tasks.wait().await;
        shared.changed();
    }
}

pub(crate) fn check_broker(state: &State, broker: usize) -> Result<(), ControlError> {
    let count = state.brokers.len();
    if broker < count { Ok(()) } else { Err(ControlError::NoBroker { broker, count }) }
}

fn groups_of(state: &State, broker: usize) -> Vec<String> {
    state.groups.names().filter(|name| state.coordinator(name) == broker).cloned().collect()
}

/// What happens by itself as time passes: members expire, leaders are replaced.
async fn keep(shared: Arc<Shared>) {
    let mut expiry = interval(shared.options.expiry_check.max(Duration::from_millis(1)));
    expiry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let election = shared.options.leader_election;
    loop {
        let due = shared.read(|state| state.next_election(election));
        let elect = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.root.cancelled() => return,
            () = shared.elections.notified() => {}
            () = elect => shared.change(|state| state.elect(Instant::now(), election)),
            _ = expiry.tick() => {
                let timeout = shared.options.session_timeout;
                let expired = shared.read_mut(|state| {
                    let down: Vec<String> = (0..state.brokers.len())
                        .filter(|broker| !state.is_running(*broker))
                        .flat_map(|broker| groups_of(state, broker))
                        .collect();
                    state.groups.expire(Instant::now(), timeout, |name| !down.iter().any(|group| group == name))
                });
                if expired {
                    shared.changed();
                }
            }
        }
    }
}

/// The brokers, topics and groups in short, and what [`Cluster::wait_for`] waited for in vain: for a test's message.
impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.shared();
        shared.read(|state| {
            let brokers: Vec<String> = state
                .brokers
                .iter()
                .map(|broker| {
                    let is = if broker.running.is_some() { "running" } else { "down" };
                    format!("{} {is}, {} connections", broker.address, broker.connections.len())
                })
                .collect();
            let topics: Vec<String> = state
                .topics
                .iter()
                .filter(|(name, _)| *name != INTERNAL_TOPIC)
                .map(|(name, topic)| {
                    let ends: Vec<u64> = topic.partitions.iter().map(|partition| partition.shelf.end()).collect();
                    format!("{name} up to {ends:?}")
                })
                .collect();
            let groups: Vec<String> = state
                .groups
                .names()
                .filter_map(|name| Some((name, state.groups.get(name)?)))
                .map(|(name, group)| {
                    let members: Vec<_> = group.members.iter().map(|(id, member)| (id, &member.partitions)).collect();
                    format!("{name} generation {} {members:?} committed {:?}", group.generation, group.committed())
                })
                .collect();
            f.debug_struct("Cluster")
                .field("brokers", &brokers)
                .field("topics", &topics)
                .field("groups", &groups)
                .field("waited_in_vain_for", &state.waited_in_vain)
                .finish()
        })
    }
}
