//! What goes out on a connection: at once, or as much later as the broker is told to delay its replies.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cursus_net::Socket;
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio::sync::Mutex;

use crate::watch;
use tokio::time::Instant;

use crate::shared::Shared;

/// So many replies are on their way at most before the connection waits with the next.
const MOST_LATE: usize = 10_000;

/// A reply that is on its way.
struct Late {
    due: Instant,
    head: Bytes,
    rest: Vec<Bytes>,
}

/// The writing half of a connection. [`Outbox::deliver`] must run beside whoever writes.
pub(crate) struct Outbox {
    shared: Arc<Shared>,
    delay: watch::Receiver<Duration>,
    half: Mutex<WriteHalf<Box<dyn Socket>>>,
    /// In the order in which they are to be written; each stays until it is.
    late: watch::Sender<VecDeque<Late>>,
}

impl Outbox {
    pub(crate) fn new(shared: Arc<Shared>, delay: watch::Receiver<Duration>, half: WriteHalf<Box<dyn Socket>>) -> Self {
        Self { shared, delay, half: Mutex::new(half), late: watch::Sender::default() }
    }

    /// Writes a frame whose body is `head` and then `rest`, without putting them together first.
    pub(crate) async fn write(&self, head: &[u8], rest: &[Bytes]) -> io::Result<()> {
        let delay = *self.delay.borrow();
        if delay.is_zero() && self.late.borrow().is_empty() {
            return self.write_now(head, rest).await;
        }
        // The sender lives in `self`.
        drop(self.late.subscribe().wait_for(|late| late.len() < MOST_LATE).await);
        let due = self.shared.clock.now() + delay;
        self.late.send_modify(|late| {
            let due = late.back().map_or(due, |before| due.max(before.due));
            late.push_back(Late { due, head: Bytes::copy_from_slice(head), rest: rest.to_vec() });
        });
        Ok(())
    }

    /// Writes what is late when it is due, for ever.
    pub(crate) async fn deliver(&self) -> io::Result<Infallible> {
        let mut late = self.late.subscribe();
        loop {
            let next = |late: &VecDeque<Late>| late.front().map(|it| (it.due, it.head.clone(), it.rest.clone()));
            let next = late.wait_for(|late| !late.is_empty()).await.ok().and_then(|late| next(&late));
            let Some((due, head, rest)) = next else { continue };
            self.shared.clock.sleep_until(due).await;
            self.write_now(&head, &rest).await?;
            self.late.send_modify(|late| drop(late.pop_front()));
        }
    }

    /// Waits until nothing is on its way any more.
    pub(crate) async fn delivered(&self) {
        drop(self.late.subscribe().wait_for(VecDeque::is_empty).await);
    }

    async fn write_now(&self, head: &[u8], rest: &[Bytes]) -> io::Result<()> {
        let mut half = self.half.lock().await;
        let length = head.len() + rest.iter().map(Bytes::len).sum::<usize>();
        let length = u32::try_from(length).map_err(|_| io::Error::other("a reply over 4 GiB"))?.to_be_bytes();
        let mut parts = Vec::with_capacity(2 + rest.len());
        parts.push(IoSlice::new(&length));
        parts.push(IoSlice::new(head));
        parts.extend(rest.iter().map(|bytes| IoSlice::new(bytes)));
        let mut parts = &mut parts[..];
        // Also drops the empty parts: a write of nothing would look like a closed connection.
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let written = half.write_vectored(parts).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut parts, written);
        }
        half.flush().await
    }
}
