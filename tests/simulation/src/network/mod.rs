//! The simulated network: connections between members and brokers with delays drawn from the seed, that are held up, cut
//! or silenced on command.
//!
//! Bytes of a connection arrive in order or not at all, as with TCP. While a way is *blocked* nothing of it arrives and
//! nothing is lost: what was written comes once the way is open again, as by retransmission.

mod socket;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use cursus_net::{BoxFuture, Listener, Network, Socket};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep};

use crate::draw::Draw;
use crate::network::socket::SimulatedSocket;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    ToBroker,
    ToMember,
}

/// What is seen of the bytes, at the moment in which a member's process writes or reads them.
pub(crate) trait Tap: Send + Sync {
    fn written(&self, host: usize, connection: u64, bytes: &[u8]);
    fn read(&self, host: usize, connection: u64, bytes: &[u8]);
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    queue: VecDeque<(Instant, Bytes)>,
    queued: usize,
    /// The writer is done; the reader learns of it then.
    ended: Option<Instant>,
    /// The reader is gone.
    deaf: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

struct Connection {
    host: usize,
    port: u16,
    to_broker: Pipe,
    to_member: Pipe,
    reset: bool,
    /// How many of its two ends are left.
    ends: u32,
}

impl Connection {
    fn pipe(&mut self, way: Way) -> &mut Pipe {
        match way {
            Way::ToBroker => &mut self.to_broker,
            Way::ToMember => &mut self.to_member,
        }
    }
}

pub(crate) struct Wires {
    draw: Draw,
    listeners: BTreeMap<SocketAddr, UnboundedSender<SimulatedSocket>>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    blocked: BTreeSet<(usize, u16, Way)>,
    dead: BTreeSet<usize>,
    /// Added to every delay.
    slower: Duration,
    tap: Option<Arc<dyn Tap>>,
}

impl Wires {
    fn delay(&mut self) -> Duration {
        let most = if self.draw.one_in(20) { 40_000 } else { 3_000 };
        self.slower + Duration::from_micros(self.draw.below(most))
    }

    fn wake(&mut self) {
        for connection in self.connections.values_mut() {
            connection.to_broker.wake();
            connection.to_member.wake();
        }
    }
}

/// The network of one run. A cheap handle.
#[derive(Clone)]
pub(crate) struct SimulatedNetwork {
    wires: Arc<Mutex<Wires>>,
    /// A way was opened, or a host died.
    changed: Arc<Notify>,
}

impl SimulatedNetwork {
    pub(crate) fn new(draw: Draw) -> Self {
        let wires = Wires {
            draw,
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: 0,
            blocked: BTreeSet::new(),
            dead: BTreeSet::new(),
            slower: Duration::ZERO,
            tap: None,
        };
        Self { wires: Arc::new(Mutex::new(wires)), changed: Arc::new(Notify::new()) }
    }

    pub(crate) fn tap(&self, tap: Arc<dyn Tap>) {
        self.lock().tap = Some(tap);
    }

    /// The network as the brokers see it.
    pub(crate) fn brokers(&self) -> Arc<dyn Network> {
        Arc::new(Host { network: self.clone(), host: usize::MAX })
    }

    /// The network as the process of a member sees it.
    pub(crate) fn host(&self, host: usize) -> Arc<dyn Network> {
        Arc::new(Host { network: self.clone(), host })
    }

    fn lock(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().expect("nothing panics under this lock")
    }

    pub(crate) fn block(&self, host: usize, port: u16, way: Way) {
        self.lock().blocked.insert((host, port, way));
    }

    pub(crate) fn unblock(&self, host: usize, port: u16, way: Way) {
        let mut wires = self.lock();
        wires.blocked.remove(&(host, port, way));
        wires.wake();
        drop(wires);
        self.changed.notify_waiters();
    }

    pub(crate) fn unblock_all(&self) {
        let mut wires = self.lock();
        wires.blocked.clear();
        wires.slower = Duration::ZERO;
        wires.wake();
        drop(wires);
        self.changed.notify_waiters();
    }

    pub(crate) fn slow_down(&self, by: Duration) {
        self.lock().slower = by;
    }

    /// Resets the connections that are chosen: what is on its way is lost, both ends get an error.
    pub(crate) fn reset(&self, mut chosen: impl FnMut(usize, u16) -> bool) {
        let mut wires = self.lock();
        for connection in wires.connections.values_mut().filter(|found| chosen(found.host, found.port)) {
            connection.reset = true;
            connection.to_broker.wake();
            connection.to_member.wake();
        }
    }

    /// The process of a member is gone: its connections are reset, and whatever is left of it here reaches nobody.
    pub(crate) fn kill(&self, host: usize) {
        self.lock().dead.insert(host);
        self.reset(|other, _| other == host);
        self.changed.notify_waiters();
    }

    /// How many connections a member's process has.
    pub(crate) fn open(&self, host: usize) -> usize {
        // One end is the broker's, which may learn late that the other is gone.
        self.lock().connections.values().filter(|found| found.host == host && !found.to_member.deaf).count()
    }

    /// How many connections there are at all.
    pub(crate) fn open_at_all(&self) -> usize {
        self.lock().connections.len()
    }
}

struct Host {
    network: SimulatedNetwork,
    host: usize,
}

impl Network for Host {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        // A broker that stands alone calls itself localhost.
        let host = if host == "localhost" { "127.0.0.1" } else { host };
        Box::pin(async move { Ok(vec![SocketAddr::new(host.parse().map_err(io::Error::other)?, port)]) })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Socket>>> {
        Box::pin(async move {
            let delay = loop {
                let changed = self.network.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                {
                    let mut wires = self.network.lock();
                    if wires.dead.contains(&self.host) {
                        return Err(io::ErrorKind::NetworkUnreachable.into());
                    }
                    let closed = |way| wires.blocked.contains(&(self.host, address.port(), way));
                    if !closed(Way::ToBroker) && !closed(Way::ToMember) {
                        break wires.delay();
                    }
                }
                changed.await;
            };
            sleep(delay).await;
            let mut wires = self.network.lock();
            let listener = wires.listeners.get(&address).ok_or(io::ErrorKind::ConnectionRefused)?.clone();
            let id = wires.next;
            wires.next += 1;
            let connection = Connection {
                host: self.host,
                port: address.port(),
                to_broker: Pipe::default(),
                to_member: Pipe::default(),
                reset: wires.dead.contains(&self.host),
                ends: 2,
            };
            wires.connections.insert(id, connection);
            drop(wires);
            let here = SimulatedSocket::new(&self.network, id, Way::ToBroker);
            let there = SimulatedSocket::new(&self.network, id, Way::ToMember);
            listener.send(there).map_err(|_| io::ErrorKind::ConnectionRefused)?;
            Ok(Box::new(here) as Box<dyn Socket>)
        })
    }

    fn listen(&self, mut address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let mut wires = self.network.lock();
            if address.port() == 0 {
                address.set_port(9000 + u16::try_from(wires.listeners.len()).map_err(io::Error::other)?);
            }
            if wires.listeners.contains_key(&address) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            let (sender, accepted) = unbounded_channel();
            wires.listeners.insert(address, sender);
            let network = self.network.clone();
            Ok(Box::new(Door { network, address, accepted: accepted.into() }) as Box<dyn Listener>)
        })
    }
}

struct Door {
    network: SimulatedNetwork,
    address: SocketAddr,
    accepted: tokio::sync::Mutex<UnboundedReceiver<SimulatedSocket>>,
}

impl Listener for Door {
    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<(Box<dyn Socket>, SocketAddr)>> {
        Box::pin(async move {
            let socket = self.accepted.lock().await.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
            Ok((Box::new(socket) as Box<dyn Socket>, self.address))
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.network.lock().listeners.remove(&self.address);
    }
}
