//! How a cluster is set up.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use cursus_net::{Network, Randomness, SystemRandomness, Tcp};

/// How a cluster is set up. The defaults are the real broker's where it has any, three brokers on 127.0.0.1 and the
/// operating system's network.
#[derive(Clone)]
pub struct Options {
    /// How many brokers: 1 is a standalone broker, which answers a few commands differently; more are a cluster.
    pub brokers: usize,
    /// How long a member may be silent before it expires. 10 s; HEARTBEAT, SYNC_GROUP and a resume count, commits don't.
    pub session_timeout: Duration,
    /// How often the coordinators look for members to expire. 5 s.
    pub expiry_check: Duration,
    /// How long METADATA and redirects still name a leader that went down, before another broker leads. 500 ms, where
    /// real brokers take 5 to 6 s.
    pub leader_election: Duration,
    /// In a cluster: how long after a commit's OK FETCH_OFFSET and CONSUME may still see the value of before. 0; real
    /// brokers take up to 100 ms.
    pub coordinator_commit_lag: Duration,
    /// After how long without a complete request a connection is closed, without a word. 60 s.
    pub idle_timeout: Duration,
    /// The address that the brokers listen on. 127.0.0.1.
    pub host: IpAddr,
    /// The port of broker 0; broker n listens on the one n further. Without it every broker takes a free port.
    pub port: Option<u16>,
    /// The host that brokers name in METADATA, FIND_COORDINATOR and redirects. Without it, as real brokers do: the
    /// address in a cluster, and `localhost` where a broker stands alone.
    pub advertised_host: Option<String>,
    /// Brokers that name another address than that to clients from the start, by their index, as `host:port`: see
    /// [`Cluster::advertise`](crate::Cluster::advertise). None.
    pub advertised: BTreeMap<usize, String>,
    /// Where the brokers listen.
    pub network: Arc<dyn Network>,
    /// Where the suffixes of member ids come from.
    pub randomness: Arc<dyn Randomness>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            brokers: 3,
            session_timeout: Duration::from_secs(10),
            expiry_check: Duration::from_secs(5),
            leader_election: Duration::from_millis(500),
            coordinator_commit_lag: Duration::ZERO,
            idle_timeout: Duration::from_secs(60),
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: None,
            advertised_host: None,
            advertised: BTreeMap::new(),
            network: Arc::new(Tcp),
            randomness: Arc::new(SystemRandomness),
        }
    }
}

/// As good as never, and a time that can still be added to any other.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

impl Options {
    /// The same with times that can be reckoned with: [`Duration::MAX`] is a fine way to say "never".
    pub(crate) fn bounded(mut self) -> Self {
        let times = [
            &mut self.session_timeout,
            &mut self.expiry_check,
            &mut self.leader_election,
            &mut self.coordinator_commit_lag,
            &mut self.idle_timeout,
        ];
        for time in times {
            *time = LONGEST.min(*time);
        }
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("brokers", &self.brokers)
            .field("session_timeout", &self.session_timeout)
            .field("expiry_check", &self.expiry_check)
            .field("leader_election", &self.leader_election)
            .field("coordinator_commit_lag", &self.coordinator_commit_lag)
            .field("idle_timeout", &self.idle_timeout)
            .field("host", &self.host)
            .field("port", &self.port)
            .field("advertised_host", &self.advertised_host)
            .field("advertised", &self.advertised)
            .finish_non_exhaustive()
    }
}
