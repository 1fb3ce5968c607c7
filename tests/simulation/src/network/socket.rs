//! One end of a simulated connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{SimulatedNetwork, Way, Wires};

/// How many bytes are on their way before a writer waits.
const ROOM: usize = 64 << 10;

pub(super) struct SimulatedSocket {
    network: SimulatedNetwork,
    id: u64,
    /// Which way this end writes.
    way: Way,
    arrival: Option<Pin<Box<Sleep>>>,
    yielded: bool,
}

impl Way {
    fn back(self) -> Self {
        match self {
            Self::ToBroker => Self::ToMember,
            Self::ToMember => Self::ToBroker,
        }
    }
}

impl SimulatedSocket {
    pub(super) fn new(network: &SimulatedNetwork, id: u64, way: Way) -> Self {
        Self { network: network.clone(), id, way, arrival: None, yielded: false }
    }

    /// What can be read now, or when something can.
    fn take(
        &self,
        wires: &mut Wires,
        room: usize,
        context: &Context<'_>,
    ) -> Result<io::Result<Bytes>, Option<Instant>> {
        let most = if wires.draw.one_in(4) { 1 + wires.draw.below(64) as usize } else { usize::MAX };
        let Some(connection) = wires.connections.get_mut(&self.id) else { return Ok(Ok(Bytes::new())) };
        if connection.reset {
            return Ok(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let way = self.way.back();
        let blocked = wires.blocked.contains(&(connection.host, connection.port, way));
        let host = connection.host;
        let pipe = connection.pipe(way);
        pipe.reader = Some(context.waker().clone());
        if blocked {
            return Err(None);
        }
        let now = Instant::now();
        let next = pipe.queue.front().map(|(at, _)| *at).or(pipe.ended);
        if next.is_none_or(|at| at > now) {
            return Err(next);
        }
        let Some((_, front)) = pipe.queue.front_mut() else { return Ok(Ok(Bytes::new())) };
        let taken = front.split_to(front.len().min(room).min(most));
        if front.is_empty() {
            pipe.queue.pop_front();
        }
        pipe.queued -= taken.len();
        if let Some(writer) = pipe.writer.take() {
            writer.wake();
        }
        if let (Way::ToMember, Some(tap)) = (way, &wires.tap) {
            tap.read(host, self.id, &taken);
        }
        Ok(Ok(taken))
    }
}

impl AsyncRead for SimulatedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let network = this.network.clone();
        let mut wires = network.lock();
        // Others get their turn first now and then, which puts tasks into other orders.
        if !std::mem::replace(&mut this.yielded, true) && wires.draw.one_in(8) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        this.yielded = false;
        match this.take(&mut wires, buffer.remaining(), context) {
            Ok(Ok(taken)) => {
                this.arrival = None;
                buffer.put_slice(&taken);
                Poll::Ready(Ok(()))
            }
            Ok(Err(error)) => Poll::Ready(Err(error)),
            Err(None) => {
                this.arrival = None;
                Poll::Pending
            }
            Err(Some(at)) => {
                drop(wires);
                let sleep = this.arrival.get_or_insert_with(|| Box::pin(sleep_until(at)));
                sleep.as_mut().reset(at);
                if sleep.as_mut().poll(context).is_ready() {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for SimulatedSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wires = self.network.lock();
        let wires = &mut *wires;
        let delay = wires.delay();
        let Some(connection) = wires.connections.get_mut(&self.id) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let host = connection.host;
        if connection.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let pipe = connection.pipe(self.way);
        if pipe.deaf || pipe.ended.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if pipe.queued >= ROOM {
            pipe.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = bytes.len().min(ROOM - pipe.queued);
        let last = pipe.queue.back().map_or_else(Instant::now, |(at, _)| *at);
        pipe.queue.push_back((last.max(Instant::now() + delay), Bytes::copy_from_slice(&bytes[..count])));
        pipe.queued += count;
        if let Some(reader) = pipe.reader.take() {
            reader.wake();
        }
        if let (Way::ToBroker, Some(tap)) = (self.way, &wires.tap) {
            tap.written(host, self.id, &bytes[..count]);
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl SimulatedSocket {
    /// Nothing more is written from this end.
    fn end(&self) {
        let mut wires = self.network.lock();
        let delay = wires.delay();
        if let Some(connection) = wires.connections.get_mut(&self.id) {
            let pipe = connection.pipe(self.way);
            let last = pipe.queue.back().map_or_else(Instant::now, |(at, _)| *at);
            pipe.ended.get_or_insert(last.max(Instant::now() + delay));
            pipe.wake();
        }
    }
}

impl Drop for SimulatedSocket {
    fn drop(&mut self) {
        self.end();
        let mut wires = self.network.lock();
        let Some(connection) = wires.connections.get_mut(&self.id) else { return };
        connection.ends -= 1;
        if connection.ends == 0 {
            wires.connections.remove(&self.id);
            return;
        }
        let pipe = connection.pipe(self.way.back());
        pipe.deaf = true;
        pipe.queue.clear();
        pipe.queued = 0;
        pipe.wake();
    }
}
