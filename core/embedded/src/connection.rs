//! One connection: frames in, one after the other, replies out in the same order.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cursus_net::Socket;
use cursus_wire::frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::classes;
use crate::commands::{self, Answer, Context, Session};
use crate::faults::{Fault, damage};
use crate::incoming::{self, Incoming};
use crate::shared::{Running, Shared};
use crate::stream;

/// After a pause this long inside a frame the broker forgets what it has read of it, and takes what comes next for the
/// start of another.
const SPLIT_FRAME: Duration = Duration::from_secs(5);

/// How much is read at once at least.
const READ: usize = 64 << 10;

pub(crate) struct Connection {
    pub(crate) shared: Arc<Shared>,
    pub(crate) broker: usize,
    pub(crate) id: u64,
    pub(crate) running: Running,
    pub(crate) socket: Box<dyn Socket>,
}

impl Connection {
    /// Serves the connection until either side ends it. The caller drops this future to cut it.
    pub(crate) async fn serve(mut self) -> io::Result<()> {
        let mut session = Session::default();
        let mut buffer = BytesMut::new();
        let mut heard = Instant::now();
        loop {
            // The time runs from the last whole request, also while a long one is carried out: what was sent behind it
            // is then lost unanswered.
            let idle = heard + self.shared.options.idle_timeout;
            if Instant::now() >= idle {
                return Ok(());
            }
            let drain = self.running.drain.clone();
            let body = tokio::select! {
                () = drain.cancelled() => return Ok(()),
                body = next_frame(&mut self.socket, &mut buffer, idle) => body?,
            };
            let Some(body) = body else { return Ok(()) };
            heard = Instant::now();
            if !self.handle(&mut session, &body).await? {
                return Ok(());
            }
        }
    }

    /// Carries a request out and replies. Whether the connection goes on.
    async fn handle(&mut self, session: &mut Session, body: &Bytes) -> io::Result<bool> {
        let incoming = Incoming::of(body);
        let name = incoming.name();
        let text = if incoming == Incoming::Batch { &[][..] } else { incoming::text(body) };
        let Fault { hold, error, lose, corrupt } = self.shared.change(|state| {
            state.journal.note(self.broker, self.id, name, text);
            state.faults.next(name)
        });
        if let Some(gate) = hold {
            // Somebody may wait for just that.
            self.shared.change(|_| gate.reach());
            tokio::select! {
                () = self.running.drain.cancelled() => return Ok(false),
                () = gate.pass() => {}
            }
        }
        let answer = match error {
            Some(error) => Answer::Text(format!("ERROR: {error}")),
            None => {
                let (shared, broker) = (&self.shared, self.broker);
                let context = Context { shared, broker, drain: &self.running.drain };
                commands::carry_out(&context, session, body).await
            }
        };
        if lose {
            return Ok(false);
        }
        let (text, goes_on) = match answer {
            Answer::Hangup => return Ok(false),
            Answer::Stream(request) => {
                stream::run(self, request, corrupt).await?;
                return Ok(false);
            }
            Answer::Records(mut head, slices) => {
                if corrupt {
                    damage(&mut head, true);
                }
                write_frame(&mut self.socket, &head, &slices.bytes).await?;
                return Ok(true);
            }
            Answer::Text(text) => (text, true),
            Answer::Last(text) => (text, false),
        };
        let text = if session.structured { classes::structured(&text) } else { text };
        let mut text = text.into_bytes();
        if corrupt {
            damage(&mut text, false);
        }
        write_frame(&mut self.socket, &text, &[]).await?;
        Ok(goes_on)
    }
}

/// The next frame's body; nothing where the other side is done, was silent for too long or sent too long a frame.
async fn next_frame(socket: &mut Box<dyn Socket>, buffer: &mut BytesMut, idle: Instant) -> io::Result<Option<Bytes>> {
    let mut begun: Option<Instant> = None;
    loop {
        match frame::take(buffer) {
            Ok(Some(body)) => return Ok(Some(body)),
            Ok(None) => {}
            Err(_) => return Ok(None),
        }
        if buffer.is_empty() {
            begun = None;
        } else {
            begun.get_or_insert_with(Instant::now);
        }
        let split = begun.map(|begun| begun + SPLIT_FRAME);
        let until = split.map_or(idle, |split| split.min(idle));
        buffer.reserve(READ);
        match timeout_at(until, socket.read_buf(buffer)).await {
            Ok(read) => {
                if read? == 0 {
                    return Ok(None);
                }
            }
            Err(_) if until >= idle => return Ok(None),
            Err(_) => buffer.clear(),
        }
    }
}

/// Writes a frame whose body is `head` and then `rest`, without putting them together first.
pub(crate) async fn write_frame(socket: &mut Box<dyn Socket>, head: &[u8], rest: &[Bytes]) -> io::Result<()> {
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
        let written = socket.write_vectored(parts).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut parts, written);
    }
    socket.flush().await
}

/// Waits until the time or until the other side has closed, whatever it sends meanwhile. Whether it has closed.
pub(crate) async fn closed_before(socket: &mut Box<dyn Socket>, until: Instant) -> bool {
    let mut ignored = [0; 1024];
    let closed = async { while matches!(socket.read(&mut ignored).await, Ok(read) if read > 0) {} };
    tokio::select! {
        () = closed => true,
        () = sleep_until(until) => false,
    }
}
