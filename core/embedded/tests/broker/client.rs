//! A client that does what it is told, one frame at a time.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cursus_embedded::{Cluster, Options};
use cursus_net::{Network, Socket, SplitMix};
use cursus_wire::batch::RecordBatch;
use cursus_wire::frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::pipes::Pipes;

/// Options of a cluster on pipes, for tests with a paused clock.
pub(crate) fn piped(brokers: usize) -> Options {
    Options {
        brokers,
        network: Arc::new(Pipes::default()),
        randomness: Arc::new(SplitMix::seeded(7)),
        ..Options::default()
    }
}

/// A cluster on pipes.
pub(crate) async fn cluster(brokers: usize) -> Cluster {
    Cluster::start(piped(brokers)).await.unwrap()
}

/// A cluster on pipes with a topic `t`.
pub(crate) async fn with_topic(brokers: usize, partitions: u32) -> Cluster {
    let cluster = cluster(brokers).await;
    cluster.create_topic("t", partitions).unwrap();
    cluster
}

/// What must happen within two minutes, or the test fails instead of hanging. On a paused clock that is no time.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what).await.expect("this should have happened by now")
}

/// Waits for a change of the cluster.
pub(crate) async fn until(cluster: &Cluster, what: &str, condition: impl FnMut(&Cluster) -> bool) {
    let waiting = tokio::time::timeout(Duration::from_secs(600), cluster.wait_for(what, condition));
    assert!(waiting.await.is_ok(), "{cluster:?}");
}

pub(crate) struct Client {
    socket: Box<dyn Socket>,
    buffer: BytesMut,
}

impl Client {
    pub(crate) async fn connect(cluster: &Cluster, broker: usize) -> Self {
        Self::try_connect(cluster, broker).await.unwrap()
    }

    pub(crate) async fn try_connect(cluster: &Cluster, broker: usize) -> io::Result<Self> {
        let address = cluster.brokers()[broker].parse().unwrap();
        Self::to(&*cluster.options().network, address).await
    }

    pub(crate) async fn to(network: &dyn Network, address: std::net::SocketAddr) -> io::Result<Self> {
        Ok(Self { socket: network.connect(address).await?, buffer: BytesMut::new() })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    /// The next frame's body; nothing where the broker has closed the connection.
    pub(crate) async fn receive(&mut self) -> Option<Bytes> {
        soon(async {
            loop {
                if let Some(body) = frame::take(&mut self.buffer).unwrap() {
                    return Some(body);
                }
                match self.socket.read_buf(&mut self.buffer).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        })
        .await
    }

    pub(crate) async fn receive_text(&mut self) -> String {
        let body = self.receive().await.expect("a reply, and the connection was closed");
        String::from_utf8(body.to_vec()).expect("a text")
    }

    /// Sends a command without waiting for the reply.
    pub(crate) async fn tell(&mut self, command: &str) {
        self.send(&frame::encode_text(command).unwrap()).await;
    }

    /// The reply to a command, as text.
    pub(crate) async fn ask(&mut self, command: &str) -> String {
        self.tell(command).await;
        self.receive_text().await
    }

    /// The reply to a command that reads.
    pub(crate) async fn read(&mut self, command: &str) -> RecordBatch {
        self.tell(command).await;
        let body = self.receive().await.expect("a batch, and the connection was closed");
        batch(body)
    }

    /// The offsets that a CONSUME of `t` gives.
    pub(crate) async fn offsets(&mut self, arguments: &str) -> Vec<u64> {
        let batch = self.read(&format!("CONSUME topic=t member=m {arguments}")).await;
        batch.iter().map(|record| record.offset).collect()
    }

    /// The reply to a body that is no text.
    pub(crate) async fn ask_body(&mut self, body: &[u8]) -> Option<String> {
        self.send(&frame::encode(body).unwrap()).await;
        let reply = self.receive().await?;
        Some(String::from_utf8(reply.to_vec()).expect("a text"))
    }

    /// Joins a group on `t`: the member's id.
    pub(crate) async fn join(&mut self, group: &str, base: &str) -> String {
        let reply = self.ask(&format!("JOIN_GROUP topic=t group={group} member={base}")).await;
        field(&reply, "member").to_owned()
    }
}

pub(crate) fn batch(body: Bytes) -> RecordBatch {
    assert!(RecordBatch::is_batch(&body), "{}", String::from_utf8_lossy(&body));
    RecordBatch::parse(body).expect("a batch")
}

/// A field of a reply.
pub(crate) fn field<'a>(reply: &'a str, key: &str) -> &'a str {
    let found = reply.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("{reply:?} has no {key}"))
}

/// Records `0..count` with their number as value.
pub(crate) fn numbered(count: usize) -> impl Iterator<Item = (String, String)> {
    (0..count).map(|i| (format!("k{i}"), format!("v{i}")))
}
