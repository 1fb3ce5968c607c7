//! A writer's connection to the broker that coordinates its transactions.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cursus_net::{Network, Socket};
use cursus_wire::command::FindTransactionCoordinator;
use cursus_wire::{BrokerError, Meaning, Reply, ReplyError, Request, Text, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout_at};

/// How long one attempt waits for a reply.
const ATTEMPT: Duration = Duration::from_secs(10);

/// How long a broker may deny a topic that was just made.
const NEW_TOPIC: Duration = Duration::from_secs(1);

/// How long a broker that has just started may deny what its cluster knows.
const CATCHING_UP: Duration = Duration::from_secs(5);

/// The pause before the next attempt, doubled each time up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A broker's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    host: String,
    port: u16,
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a broker's address: it is host:port, an IPv6 address in brackets");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        if host.is_empty() || (host.contains(':') && bracketed.is_none()) {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port })
    }

    fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// A broker without an advertised host calls itself `localhost`, wherever it is.
    fn seen_from(self, speaker: &Self) -> Self {
        if self.is_loopback() && !speaker.is_loopback() { Self { host: speaker.host.clone(), ..self } } else { self }
    }
}

/// Why one attempt failed.
enum Failure {
    /// Nobody received it.
    Unsent(String),
    /// It was sent, and there was no answer that can be read.
    Lost(String),
    Refused(BrokerError),
}

/// Why a request failed for good.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The broker refuses it. `lost` says whether an attempt before may have been carried out nevertheless.
    Refused { error: BrokerError, lost: bool },
    /// The time was over.
    GaveUp { last: String, lost: bool },
}

struct Connection {
    address: Address,
    socket: Box<dyn Socket>,
    buffer: BytesMut,
}

impl Connection {
    async fn open(network: &dyn Network, address: &Address) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name stands for no address");
        for candidate in network.resolve(&address.host, address.port).await? {
            match network.connect(candidate).await {
                Ok(socket) => return Ok(Self { address: address.clone(), socket, buffer: BytesMut::new() }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn exchange(&mut self, request: &[u8]) -> io::Result<Bytes> {
        self.socket.write_all(request).await?;
        self.socket.flush().await?;
        loop {
            if let Some(body) = frame::take(&mut self.buffer).map_err(io::Error::other)? {
                return Ok(body);
            }
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the broker closed the connection"));
            }
        }
    }

    /// One request and its reply. A connection that failed, or whose future was dropped, is gone: what would come over it
    /// next can't be told.
    async fn ask<R: Request>(
        mut self,
        request: &R,
        deadline: Instant,
    ) -> Result<(Self, R::Reply), (Option<Self>, Failure)> {
        let frame = request.frame().map_err(|error| (None, Failure::Unsent(error.to_string())))?;
        let until = deadline.min(Instant::now() + ATTEMPT);
        let body = match timeout_at(until, self.exchange(&frame)).await {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => return Err((None, Failure::Lost(error.to_string()))),
            Err(_) => return Err((None, Failure::Lost("the broker didn't answer in time".to_owned()))),
        };
        match R::Reply::parse(&body) {
            Ok(reply) => Ok((self, reply)),
            Err(ReplyError::Broker(error)) => Err((Some(self), Failure::Refused(error))),
            Err(nonsense) => Err((None, Failure::Lost(nonsense.to_string()))),
        }
    }
}

/// The way to the coordinator of one transactional id.
pub(super) struct Link {
    pub(super) network: Arc<dyn Network>,
    pub(super) brokers: Vec<Address>,
    pub(super) id: Text,
    /// How many requests were sent, so far and with or without an answer.
    pub(super) sent: u64,
    /// Where the coordinator is thought to be.
    coordinator: Option<Address>,
    connection: Option<Connection>,
}

impl Link {
    pub(super) fn new(network: Arc<dyn Network>, brokers: Vec<Address>, id: Text) -> Self {
        Self { network, brokers, id, sent: 0, coordinator: None, connection: None }
    }

    async fn open(&mut self, address: &Address, deadline: Instant) -> Result<Connection, Failure> {
        let until = deadline.min(Instant::now() + ATTEMPT);
        let Address { host, port } = address;
        match timeout_at(until, Connection::open(&*self.network, address)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(Failure::Unsent(format!("{host}:{port}: {error}"))),
            Err(_) => Err(Failure::Unsent(format!("{host}:{port}: no connection in time"))),
        }
    }

    /// Asks the brokers in turn where the coordinator is.
    async fn find(&mut self, deadline: Instant) -> Result<Address, Failure> {
        let request = FindTransactionCoordinator { transactional_id: self.id.clone() };
        let mut last = Failure::Unsent("there are no brokers".to_owned());
        for broker in self.brokers.clone() {
            let asked = match self.open(&broker, deadline).await {
                Ok(connection) => connection.ask(&request, deadline).await,
                Err(failure) => Err((None, failure)),
            };
            match asked {
                Ok((_, found)) => return Ok(Address { host: found.host, port: found.port }.seen_from(&broker)),
                // Where the coordinator is may be asked any number of times.
                Err((_, Failure::Lost(why))) => last = Failure::Unsent(why),
                Err((_, failure)) => last = failure,
            }
        }
        Err(last)
    }

    async fn attempt<R: Request>(&mut self, request: &R, deadline: Instant) -> Result<R::Reply, Failure> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                // Whoever can't be reached may be the coordinator no longer.
                let coordinator = match self.coordinator.take() {
                    Some(coordinator) => coordinator,
                    None => self.find(deadline).await?,
                };
                self.open(&coordinator, deadline).await?
            }
        };
        let speaker = connection.address.clone();
        self.sent += 1;
        let (connection, answer) = match connection.ask(request, deadline).await {
            Ok((connection, reply)) => (Some(connection), Ok(reply)),
            Err((connection, failure)) => (connection, Err(failure)),
        };
        match &answer {
            Err(Failure::Refused(error)) if matches!(error.meaning(), Meaning::NotCoordinator(_)) => {
                if let Meaning::NotCoordinator(Some((host, port))) = error.meaning() {
                    self.coordinator = Some(Address { host, port }.seen_from(&speaker));
                }
            }
            _ => self.connection = connection,
        }
        answer
    }

    /// Asks the coordinator until it answers, or until the time is over.
    pub(super) async fn call<R: Request>(&mut self, request: &R, deadline: Instant) -> Result<R::Reply, Trouble> {
        let (begun, mut pause, mut lost) = (Instant::now(), FIRST_PAUSE, false);
        loop {
            let last = match self.attempt(request, deadline).await {
                Ok(reply) => return Ok(reply),
                Err(Failure::Refused(error)) if passes(&error, begun, lost) => {
                    // The coordinator has begun to do it.
                    lost |= error.code.starts_with("transaction_");
                    error.to_string()
                }
                Err(Failure::Refused(error)) => return Err(Trouble::Refused { error, lost }),
                Err(Failure::Unsent(why)) => why,
                Err(Failure::Lost(why)) => {
                    lost = true;
                    why
                }
            };
            if Instant::now() + pause >= deadline {
                return Err(Trouble::GaveUp { last, lost });
            }
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(2 * pause);
        }
    }
}

/// Whether an error passes by itself. `lost` says that an earlier attempt may have been carried out.
fn passes(error: &BrokerError, begun: Instant, lost: bool) -> bool {
    let reason = error.field("reason").unwrap_or_default();
    match (error.meaning(), error.code.as_str()) {
        (Meaning::Transient | Meaning::NotCoordinator(_), _) => true,
        (Meaning::TopicNotFound, _) => begun.elapsed() < NEW_TOPIC,
        (Meaning::ProducerFenced, _) => false,
        // Nobody asks for a transaction that never was. One that was sent a commit is not simply dropped either.
        (_, "transaction_not_found") => begun.elapsed() < CATCHING_UP,
        (_, "transaction_aborted") => lost && begun.elapsed() < CATCHING_UP,
        // Somebody's commit is on its way, perhaps that of this program's last run.
        (_, "init_producer_failed") => reason.contains("is committing"),
        _ => {
            let denied = reason.ends_with(" not found") || reason.contains("is not initialized");
            reason.starts_with("transaction ") && denied && begun.elapsed() < CATCHING_UP
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let address = |host: &str, port| Ok(Address { host: host.to_owned(), port });
        assert_eq!(Address::parse("broker-1:9000"), address("broker-1", 9000));
        assert_eq!(Address::parse("[::1]:9000"), address("::1", 9000));
        for wrong in ["", "broker", ":9000", "broker:", "broker:0", "broker:70000", "::1:9000"] {
            assert!(Address::parse(wrong).unwrap_err().contains("host:port"), "{wrong}");
        }
    }

    #[test]
    fn localhost_from_afar_is_the_speaker() {
        let at = |text| Address::parse(text).unwrap();
        assert_eq!(at("localhost:9001").seen_from(&at("broker:9000")), at("broker:9001"));
        assert_eq!(at("localhost:9001").seen_from(&at("127.0.0.1:9000")), at("localhost:9001"));
        assert_eq!(at("other:9001").seen_from(&at("broker:9000")), at("other:9001"));
    }
}
