//! The bare loop: plain blocking sockets, one connection per partition, the next requests on their way while a reply is
//! read. Replies are read into one buffer, over and over; of each only its length and its count of records are looked at.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use cursus_wire::batch::MAGIC;
use cursus_wire::command::{Consume, Metadata};
use cursus_wire::frame::{HEADER, body_length};
use cursus_wire::{Group, Member, Reply as _, Request, Topic};

use crate::meter::{Measured, Meter};
use crate::{Result, Source};

/// How much is read at once at most. It stays in the processor's cache, which is why a larger one isn't faster.
const READ: usize = 256 << 10;

pub(crate) fn run(source: &Source, depth: u32) -> Result<Measured> {
    let topic = Topic::new(&source.topic)?;
    let mut connections = Vec::new();
    for (partition, leader) in (0..).zip(leaders(source, &topic)?) {
        let mut connection = Connection::open(source, &topic, partition, &leader)?;
        for _ in 0..depth {
            connection.ask()?;
        }
        connections.push(connection);
    }
    let mut buffer = vec![0; READ];
    let start = connections.first_mut().ok_or("the topic has no partitions")?.next(&mut buffer)?;
    let meter = Meter::start()?;
    let mut read = start;
    while read < source.records {
        let before = read;
        for connection in &mut connections {
            read += connection.next(&mut buffer)?;
        }
        if read == before {
            return Err(format!("the topic ends after {read} records").into());
        }
    }
    meter.stop(read - start)
}

/// The brokers that lead the partitions, in the partitions' order.
fn leaders(source: &Source, topic: &Topic) -> Result<Vec<String>> {
    let mut socket = TcpStream::connect(source.brokers.first().ok_or("no broker is given")?)?;
    socket.write_all(&Metadata { topic: topic.clone() }.frame()?)?;
    let mut header = [0; HEADER];
    socket.read_exact(&mut header)?;
    let mut body = vec![0; body_length(header)?];
    socket.read_exact(&mut body)?;
    Ok(<Metadata as Request>::Reply::parse(&body.into())?.leaders)
}

struct Connection {
    socket: TcpStream,
    /// The broker remembers where the connection stands, so that every request is the same.
    request: Vec<u8>,
    /// How long a batch's head is: everything up to its count of records.
    head: usize,
}

impl Connection {
    fn open(source: &Source, topic: &Topic, partition: u32, leader: &str) -> Result<Self> {
        let socket = TcpStream::connect(leader)?;
        socket.set_nodelay(true)?;
        let consume = Consume {
            topic: topic.clone(),
            partition,
            offset: 0,
            member: Member::new("bare")?,
            // Nobody commits under this name, so that reading begins at the offset.
            group: Some(Group::new("bare")?),
            generation: None,
            isolation: None,
            batch: Some(source.batch),
            wait_ms: None,
        };
        let head = MAGIC.len() + (2 + topic.as_str().len()) + 4 + (1 + "1".len()) + 1 + 16 + 4;
        Ok(Self { socket, request: consume.frame()?.to_vec(), head })
    }

    fn ask(&mut self) -> Result<()> {
        Ok(self.socket.write_all(&self.request)?)
    }

    /// Reads a reply, asks for one more, and tells how many records there were.
    fn next(&mut self, buffer: &mut [u8]) -> Result<u64> {
        let mut header = [0; HEADER];
        self.socket.read_exact(&mut header)?;
        let length = body_length(header)?;
        let head = &mut buffer[..self.head.min(length)];
        self.socket.read_exact(head)?;
        if !head.starts_with(&MAGIC) {
            return Err(format!("the broker says {}…", String::from_utf8_lossy(head)).into());
        }
        let count = head.last_chunk().map_or(0, |count| u32::from_be_bytes(*count));
        let mut left = length - head.len();
        while left > 0 {
            let most = left.min(buffer.len());
            match self.socket.read(&mut buffer[..most])? {
                0 => return Err("the broker closed the connection".into()),
                read => left -= read,
            }
        }
        self.ask()?;
        Ok(u64::from(count))
    }
}
