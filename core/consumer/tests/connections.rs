//! Connections break, stay silent, or can't be made where a name says: reading goes on, and nothing is lost.

mod common;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use common::*;
use cursus_consumer::{Commit, Consumer, Environment};
use cursus_embedded::{Cluster, Options};
use cursus_net::{BoxFuture, Listener, Network, Socket, Tcp};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The loopback network, where `broker.example` is the only name, of one or several addresses.
struct Several {
    addresses: Vec<SocketAddr>,
    /// Nobody refuses a connection to this one, and nobody takes it.
    silent: Option<SocketAddr>,
}

impl Network for Several {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move {
            match host {
                "broker.example" => Ok(self.addresses.clone()),
                _ => Err(io::Error::other(format!("{host}:{port} is not known here"))),
            }
        })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Socket>>> {
        if self.silent == Some(address) {
            return Box::pin(std::future::pending());
        }
        Tcp.connect(address)
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Tcp.listen(address)
    }
}

#[tokio::test]
async fn a_name_with_a_dead_address_is_reached_at_its_other_one() {
    for (refuses, dead_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let cluster = cluster_with(1, 2, 20).await;
        let alive: SocketAddr = cluster.brokers()[0].parse().unwrap();
        let dead: SocketAddr = nowhere().parse().unwrap();
        let addresses = if dead_first { vec![dead, alive] } else { vec![alive, dead] };
        let network = Several { addresses, silent: (!refuses).then_some(dead) };
        let broker = format!("broker.example:{}", alive.port());
        let settings =
            settings(&cluster, &[("brokers", broker.as_str().into()), ("connect_timeout_ms", 200u64.into())]);
        let environment = Environment { network: Arc::new(network), ..Environment::current() };
        let consumer = Consumer::new(settings, environment);
        let mut seen = Seen::default();
        read(&consumer, &mut seen, 20).await;
        consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
        assert_eq!(cluster.committed("g", "t"), cluster.end_offsets("t"));
        // Each new connection has to find the right one again.
        cluster.cut_connections(None).unwrap();
        cluster.fill("t", 20, 10).unwrap();
        read(&consumer, &mut seen, 40).await;
        seen.assert_exactly_in_order();
        closed(&consumer).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_are_made_anew_and_the_membership_resumes() {
    let cluster = cluster_with(3, 6, 6_000).await;
    let consumer = consumer_with(&cluster, &[("max_poll_records", 100u64.into())]);
    started(&consumer).await;
    let generation = consumer.statistics().generation;
    let mut seen = Seen::default();
    for part in 1..=10 {
        read(&consumer, &mut seen, part * 600).await;
        cluster.cut_connections(None).unwrap();
    }
    seen.assert_exactly_in_order();
    assert_eq!(consumer.statistics().generation, generation);
    assert_eq!(consumer.statistics().rebalances, 0);
    assert!(consumer.statistics().reconnects > 0);
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_and_damaged_replies_skip_no_record() {
    let cluster = cluster_with(1, 2, 5_000).await;
    let consumer = consumer_with(&cluster, &[("fetch_batch_size", 100u64.into())]);
    let mut seen = Seen::default();
    for part in 1..=5 {
        read(&consumer, &mut seen, part * 1000).await;
        // The connection's own cursor has moved past what these replies would have brought.
        cluster.lose_reply(reading(), 2).unwrap();
        cluster.corrupt_next(reading(), 2).unwrap();
        if mode() == "streaming" {
            // Only what opens a stream meets these, and the first records that it brings.
            cluster.cut_connections(None).unwrap();
        }
    }
    cluster.fill("t", 100, 10).unwrap();
    read(&consumer, &mut seen, 5_100).await;
    seen.assert_exactly_in_order();
    assert!(consumer.statistics().corrupt_frames > 0, "{:?}", consumer.statistics());
    assert_eq!(consumer.statistics().rebalances, 0);
    closed(&consumer).await;
}

#[tokio::test]
async fn a_broker_that_knows_no_negotiation_is_served_without() {
    let cluster = cluster_with(1, 1, 10).await;
    cluster.fail_next("NEGOTIATE", 1000, "malformed_input reason=missing_topic_or_payload").unwrap();
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn structured_errors_are_asked_for_on_every_connection() {
    let cluster = cluster_with(3, 3, 30).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 30).await;
    let requests = cluster.requests();
    let mut first = BTreeMap::new();
    for request in &requests {
        first.entry(request.connection).or_insert(request.command.as_str());
    }
    assert!(first.values().all(|command| *command == "NEGOTIATE"), "{first:?}");
    closed(&consumer).await;
}

#[tokio::test]
async fn dead_bootstrap_addresses_are_passed_over() {
    let cluster = cluster_with(1, 1, 10).await;
    let brokers = vec![nowhere(), "nowhere.invalid:9000".to_owned(), cluster.brokers()[0].clone()];
    let consumer = consumer_with(&cluster, &[("brokers", brokers.into())]);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 10).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_remote_broker_that_calls_itself_localhost_is_read_under_the_name_it_was_reached_by() {
    let cluster = cluster_with(1, 2, 20).await;
    let broker = cluster.brokers()[0].replace("127.0.0.1", "broker.example");
    let settings = settings(&cluster, &[("brokers", broker.as_str().into())]);
    let network = Several { addresses: vec![cluster.brokers()[0].parse().unwrap()], silent: None };
    let environment = Environment { network: Arc::new(network), ..Environment::current() };
    let consumer = Consumer::new(settings, environment);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn readers_that_begin_anew_do_not_pile_up_connections() {
    let cluster = cluster_with(1, 8, 80).await;
    let consumer = consumer_with(&cluster, &[("max_connections_per_broker", 2u64.into())]);
    let mut seen = Seen::default();
    for round in 1..=20 {
        cluster.fail_next(reading(), 3, "broker_error reason=\"try again\"").unwrap();
        cluster.fill("t", 80, 10).unwrap();
        read(&consumer, &mut seen, 80 * (round + 1)).await;
    }
    // Two to read, or one for each stream, and three for the rest; what makes way goes as soon as its readers have moved.
    let most = if mode() == "streaming" { 8 + 3 } else { 2 + 3 };
    soon("connections to go", cluster.wait_for("few connections", |c| c.connections(0) <= most)).await;
    closed(&consumer).await;
}

#[tokio::test]
async fn a_member_that_is_in_the_way_of_nothing_says_nothing_fails_while_its_buffer_is_full() {
    let options = Options { brokers: 1, idle_timeout: Duration::from_millis(300), ..Default::default() };
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_topic("t", 1).unwrap();
    cluster.fill("t", 2_000, 1_000).unwrap();
    let consumer =
        consumer_with(&cluster, &[("max_buffered_bytes", 100_000u64.into()), ("max_poll_records", 50u64.into())]);
    started(&consumer).await;
    // The buffer fills, nothing is asked for, and the broker closes the connection that it finds idle.
    until("a full buffer", &consumer, |c| c.statistics().buffered_bytes > 50_000).await;
    // What is left is the one with the heartbeats, and a stream.
    let rest = if mode() == "streaming" { 2 } else { 1 };
    soon("the idle connections to go", cluster.wait_for("closed", |c| c.connections(0) == rest)).await;
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 2_000).await;
    seen.assert_exactly_in_order();
    let statistics = consumer.statistics();
    assert_eq!((statistics.failing_seconds, statistics.last_error), (None, None));
    closed(&consumer).await;
}

/// The loopback network. Connections can be forgotten on the way, as by a router that restarts: they stay open, and
/// nothing comes through any more. New ones work.
#[derive(Default, Clone)]
struct Forgetful {
    age: Arc<AtomicU64>,
}

/// A connection, and at which age of the network it was made.
struct Forgettable {
    inner: Box<dyn Socket>,
    network: Forgetful,
    age: u64,
}

impl Forgettable {
    fn is_forgotten(&self) -> bool {
        self.age < self.network.age.load(Ordering::SeqCst)
    }
}

impl Network for Forgetful {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Tcp.resolve(host, port)
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Socket>>> {
        Box::pin(async move {
            let (inner, age) = (Tcp.connect(address).await?, self.age.load(Ordering::SeqCst));
            Ok(Box::new(Forgettable { inner, network: self.clone(), age }) as Box<dyn Socket>)
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Tcp.listen(address)
    }
}

impl AsyncRead for Forgettable {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_forgotten() { Poll::Pending } else { Pin::new(&mut self.inner).poll_read(cx, buffer) }
    }
}

impl AsyncWrite for Forgettable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // The kernel takes it, and it goes nowhere.
        if self.is_forgotten() { Poll::Ready(Ok(bytes.len())) } else { Pin::new(&mut self.inner).poll_write(cx, bytes) }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn connections_on_which_nothing_comes_through_any_more_are_given_up() {
    let cluster = cluster_with(3, 3, 30).await;
    let network = Forgetful::default();
    let environment = Environment { network: Arc::new(network.clone()), ..Environment::current() };
    let consumer = Consumer::new(settings(&cluster, &[("request_timeout_ms", 500u64.into())]), environment);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 30).await;
    let before = consumer.statistics();
    network.age.fetch_add(1, Ordering::SeqCst);
    cluster.fill("t", 30, 10).unwrap();
    if mode() == "streaming" {
        // The silence after which a stream is given up goes by in no time.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(16)).await;
        tokio::time::resume();
    }
    read(&consumer, &mut seen, 60).await;
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    assert_eq!(cluster.committed("g", "t"), cluster.end_offsets("t"));
    let after = consumer.statistics();
    assert_eq!((after.member, after.generation, after.rebalances), (before.member, before.generation, 0));
    seen.assert_exactly_in_order();
    closed(&consumer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_that_another_broker_has_taken_over_lead_to_the_right_one() {
    let cluster = cluster_with(3, 3, 30).await;
    let consumer = consumer(&cluster);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 30).await;
    let before = consumer.statistics();
    // As after a restart in which addresses were dealt out anew: who leads and coordinates answers where somebody else did.
    let coordinator = cluster.coordinator("g");
    for (a, b) in [(coordinator, (coordinator + 1) % 3), ((coordinator + 1) % 3, (coordinator + 2) % 3)] {
        cluster.swap_addresses(a, b).unwrap();
        cluster.fill("t", 30, 10).unwrap();
        let so_far = seen.total();
        read(&consumer, &mut seen, so_far + 30).await;
        consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    }
    seen.assert_exactly_in_order();
    assert_eq!(cluster.committed("g", "t").values().collect::<Vec<_>>(), [&30, &30, &30]);
    let after = consumer.statistics();
    assert_eq!((after.member, after.rebalances), (before.member, 0));
    closed(&consumer).await;
}

/// The loopback network, over which a coordinator says of the next two offsets that are committed together that it took one.
#[derive(Clone, Default)]
struct Understating {
    done: Arc<AtomicU64>,
}

struct Understated {
    inner: Box<dyn Socket>,
    done: Arc<AtomicU64>,
}

impl Network for Understating {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Tcp.resolve(host, port)
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Socket>>> {
        Box::pin(async move {
            let inner = Tcp.connect(address).await?;
            Ok(Box::new(Understated { inner, done: Arc::clone(&self.done) }) as Box<dyn Socket>)
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Tcp.listen(address)
    }
}

impl AsyncRead for Understated {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        const REPLY: &[u8] = b"OK batched=2";
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        let come = &mut buffer.filled_mut()[before..];
        if let Some(at) = come.windows(REPLY.len()).position(|some| some == REPLY)
            && self.done.fetch_add(1, Ordering::SeqCst) == 0
        {
            come[at + REPLY.len() - 1] = b'1';
        }
        read
    }
}

impl AsyncWrite for Understated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_coordinator_that_took_fewer_offsets_than_it_was_sent_is_sent_them_again() {
    let cluster = cluster_with(1, 2, 20).await;
    let network = Understating::default();
    let environment = Environment { network: Arc::new(network.clone()), ..Environment::current() };
    let consumer = Consumer::new(settings(&cluster, &[]), environment);
    let mut seen = Seen::default();
    read(&consumer, &mut seen, 20).await;
    cluster.clear_requests();
    consumer.commit(Commit::All, Some(PATIENCE)).await.unwrap();
    assert_eq!((received(&cluster, "BATCH_COMMIT"), network.done.load(Ordering::SeqCst)), (2, 2));
    closed(&consumer).await;
}
