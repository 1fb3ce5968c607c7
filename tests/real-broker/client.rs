//! A client that asks one thing at a time, and publishes.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cursus_wire::command::{Delete, FindCoordinator};
use cursus_wire::{Group, Record, Reply, ReplyError, Request, Topic, batch, frame, reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a broker may take to answer a question. Another one may know the answer, too.
const ANSWER: Duration = Duration::from_secs(5);

/// How long it may take to acknowledge what is written. Large writes wait for disks.
const WRITTEN: Duration = Duration::from_secs(60);

/// How many records go into one batch, and how many bytes: below what the broker takes at once.
const BATCH: (usize, usize) = (1000, 12 << 20);

/// Why there was no answer that can be used.
#[derive(Debug)]
pub(crate) enum Failure {
    Io(std::io::Error),
    Reply(ReplyError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Reply(error) => error.fmt(f),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Asks one broker one thing, on a connection of its own.
pub(crate) async fn ask<R: Request>(broker: &str, request: &R) -> Result<R::Reply, Failure> {
    let mut client = Client::connect(broker).await?;
    let body = client.exchange(&request.frame().expect("a command fits a frame"), ANSWER).await?;
    R::Reply::parse(&body).map_err(Failure::Reply)
}

/// Whether a broker answers what any client asks first.
pub(crate) async fn answers(broker: &str) -> bool {
    let question = FindCoordinator { group: Group::new("is-anybody-there").unwrap() };
    matches!(timeout(Duration::from_secs(2), ask(broker, &question)).await, Ok(Ok(_)))
}

/// Deletes a topic, as well as that can be done at the end of a test: without a runtime, and by any broker that will.
pub(crate) fn delete(brokers: &[String], topic: &Topic) {
    let frame = Delete { topic: topic.clone() }.frame().expect("a command fits a frame");
    let ask = |broker: &String| -> std::io::Result<bool> {
        let mut socket = std::net::TcpStream::connect(broker)?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.write_all(&frame)?;
        let mut start = [0; 4 + 2];
        socket.read_exact(&mut start)?;
        Ok(start.ends_with(b"OK"))
    };
    let _done = brokers.iter().any(|broker| ask(broker).unwrap_or(false));
}

pub(crate) struct Client {
    socket: TcpStream,
    buffer: BytesMut,
}

impl Client {
    pub(crate) async fn connect(broker: &str) -> std::io::Result<Self> {
        let socket = timeout(Duration::from_secs(5), TcpStream::connect(broker)).await??;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: BytesMut::new() })
    }

    /// Sends a frame and waits for the body of the next one.
    async fn exchange(&mut self, frame: &[u8], time: Duration) -> std::io::Result<Bytes> {
        timeout(time, async {
            self.socket.write_all(frame).await?;
            loop {
                if let Some(body) = frame::take(&mut self.buffer).map_err(std::io::Error::other)? {
                    return Ok(body);
                }
                if self.socket.read_buf(&mut self.buffer).await? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
        })
        .await?
    }

    /// Sends a command as it is written here, and gives its reply, which must be no error.
    pub(crate) async fn tell(&mut self, command: &str) -> String {
        let body = self.exchange(&frame::encode_text(command).unwrap(), WRITTEN).await.expect("an answer");
        let text = String::from_utf8(body.to_vec()).expect("a text");
        assert!(!text.starts_with("ERROR"), "{command}: {text}");
        text
    }

    /// Publishes keys and values in batches, each acknowledged before the next is sent.
    pub(crate) async fn publish(&mut self, topic: &Topic, partition: u32, records: &[(Vec<u8>, Vec<u8>)]) {
        let mut rest = records;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(key, value): &&(Vec<u8>, Vec<u8>)| {
                bytes += key.len() + value.len() + 64;
                bytes <= BATCH.1
            };
            let count = rest.iter().take(BATCH.0).take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            rest = later;
            let borrowed: Vec<_> = now
                .iter()
                .map(|(key, value)| Record { producer_id: b"real-broker-tests", key, value, ..Default::default() })
                .collect();
            let body = batch::encode(topic.as_str(), partition, "1", false, &borrowed);
            let answer = self.exchange(&frame::encode(&body).expect("a batch below the limit"), WRITTEN).await;
            let answer = answer.unwrap_or_else(|error| panic!("publishing to {topic}-{partition}: {error}"));
            reply::Published::parse(&answer)
                .unwrap_or_else(|error| panic!("publishing to {topic}-{partition}: {error}"));
        }
    }
}
