//! Connections break, stay silent, or can't be made where a name says: reading goes on, and nothing is lost.

mod common;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use common::*;
use cursus_consumer::{Commit, Consumer, Environment};
use cursus_net::{BoxFuture, Listener, Network, Socket, Tcp};

/// The loopback network, where `broker.example` has several addresses.
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
