//! The cluster's handle: start, stop, and the brokers' lives.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cursus_net::Listener;
use tokio::time::{sleep, timeout};

use crate::broker;
use crate::error::ControlError;
use crate::options::Options;
use crate::shared::{Endpoint, INTERNAL_TOPIC, Pause, Shared, State, is_host};

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
            && !is_host(host)
        {
            return invalid(format!("the advertised host {host:?} is not a host"));
        }
        let mut advertised = BTreeMap::new();
        for (broker, address) in &options.advertised {
            if *broker >= options.brokers {
                return invalid(format!("there is no broker {broker} to advertise as {address:?}"));
            }
            match Endpoint::parse(address) {
                Ok(endpoint) => drop(advertised.insert(*broker, endpoint)),
                Err(error) => return invalid(format!("broker {broker}: {error}")),
            }
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
        let shared = Arc::new(Shared::new(options.bounded(), addresses, &advertised));
        for (index, listener) in listeners.into_iter().enumerate() {
            broker::launch(&shared, index, listener);
        }
        shared.tasks.spawn(keep(shared.clone()));
        Ok(Self { handle: Arc::new(Handle { shared }) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Where the brokers listen, by their index: `127.0.0.1:port`. The same for as long as the cluster lives, but for
    /// [`Cluster::swap_addresses`].
    pub fn brokers(&self) -> Vec<String> {
        self.shared().read(|state| state.brokers.iter().map(|broker| broker.address.to_string()).collect())
    }

    /// How the cluster was set up.
    pub fn options(&self) -> &Options {
        &self.shared().options
    }

    /// Whether a broker runs; one that is paused does.
    pub fn is_running(&self, broker: usize) -> bool {
        self.shared().read(|state| state.brokers.get(broker).is_some_and(|broker| broker.running.is_some()))
    }

    /// Whether a broker is paused.
    pub fn is_paused(&self, broker: usize) -> bool {
        self.shared().read(|state| state.brokers.get(broker).is_some_and(|broker| broker.paused.is_some()))
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

    /// Pauses a broker as SIGSTOP does: it reads, answers and closes nothing any more, and accepts nothing, though it can
    /// still be connected to. What it leads goes to another broker after
    /// [`leader_election`](Options::leader_election); what it coordinates waits, and nobody expires meanwhile. Once this
    /// has returned nothing moves in that broker.
    ///
    /// # Errors
    ///
    /// No such broker, it is down, or it is paused already.
    pub fn pause_broker(&self, broker: usize) -> Result<(), ControlError> {
        let shared = self.shared();
        let switch = shared.change(|state| {
            check_broker(state, broker)?;
            let found = state.brokers.get_mut(broker).filter(|found| found.running.is_some());
            let found = found.ok_or(ControlError::Down { broker })?;
            if found.paused.is_some() {
                return Err(ControlError::BrokerState { broker, state: "paused" });
            }
            found.paused = Some(Pause::default());
            found.away_since = shared.clock.now();
            Ok(found.running.as_ref().map(|running| running.paused.clone()))
        })?;
        // Not under the lock: this waits for what a connection is just doing, which may take the lock.
        if let Some(switch) = switch {
            switch.send_replace(true);
        }
        shared.elections.notify_one();
        Ok(())
    }

    /// Lets a paused broker go on where it was: it reads what was sent to it meanwhile and answers. If it should have
    /// looked for members to expire while it was paused, it does so before anything else, so that whoever was silent for
    /// longer than the session timeout is gone, though its heartbeat may be what is read next.
    ///
    /// # Errors
    ///
    /// No such broker, it is down, or it isn't paused.
    pub fn resume_broker(&self, broker: usize) -> Result<(), ControlError> {
        let shared = self.shared();
        let switch = shared.change(|state| {
            check_broker(state, broker)?;
            let found = state.brokers.get_mut(broker).filter(|found| found.running.is_some());
            let found = found.ok_or(ControlError::Down { broker })?;
            let pause = found.paused.take().ok_or(ControlError::BrokerState { broker, state: "running" })?;
            let switch = found.running.as_ref().map(|running| running.paused.clone());
            if pause.missed_check {
                let (now, timeout) = (shared.clock.now(), shared.options.session_timeout);
                state.expire(now, timeout, |_, coordinator| coordinator == broker);
            }
            Ok(switch)
        })?;
        if let Some(switch) = switch {
            switch.send_replace(false);
        }
        shared.elections.notify_one();
        Ok(())
    }

    /// Puts the clock of the brokers forward. All that they do by time goes by this clock: session expiry and its checks,
    /// leader election, idle connections, a stream's signs of life, the waits of CONSUME and JOIN_GROUP, commit lag and
    /// delayed replies. Members have expired and leaders are elected once this returns; what concerns a connection is
    /// about to happen, and [`Cluster::wait_for`] waits for it. It can be put forward by a hundred years in all.
    pub fn advance(&self, by: Duration) {
        let shared = self.shared();
        // Under one lock, so that no heartbeat comes between the new time and what is due by then.
        shared.change(|state| {
            shared.clock.advance(by);
            state.keep(shared.clock.now(), &shared.options);
        });
        shared.elections.notify_one();
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
            if state.brokers.get(broker).is_some_and(|found| found.running.is_some()) {
                return Err(ControlError::BrokerState { broker, state: "running" });
            }
            Ok(SocketAddr::new(shared.options.host, state.port(broker)))
        })?;
        if shared.root.is_cancelled() {
            return Err(ControlError::Stopped);
        }
        let listening = async {
            loop {
                match shared.options.network.listen(address).await {
                    // Somebody's outgoing connection may hold the port for a moment.
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => sleep(Duration::from_millis(20)).await,
                    other => break other,
                }
            }
        };
        let listener = timeout(REBIND, listening).await.unwrap_or_else(|_| Err(io::ErrorKind::AddrInUse.into()));
        let refused = |source| ControlError::Listen { broker, address: address.to_string(), source };
        let listener = listener.map_err(refused)?;
        let now = shared.clock.now();
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
    loop {
        let due = shared.read(|state| state.next_due(&shared.options));
        tokio::select! {
            biased;
            () = shared.root.cancelled() => return,
            () = shared.elections.notified() => {}
            () = shared.clock.sleep_until(due) => {
                if shared.read_mut(|state| state.keep(shared.clock.now(), &shared.options)) {
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
                    let is = match &broker.running {
                        None => "down",
                        Some(_) if broker.paused.is_some() => "paused",
                        Some(_) => "running",
                    };
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
