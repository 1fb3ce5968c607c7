//! One connection: frames in, one after the other, replies out in the same order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::watch;
use bytes::{Bytes, BytesMut};
use cursus_net::Socket;
use cursus_wire::frame;
use tokio::io::{AsyncReadExt, ReadHalf};
use tokio::time::Instant;

use crate::classes;
use crate::clock::Clock;
use crate::commands::{self, Answer, Context, Session};
use crate::faults::{Fault, damage};
use crate::incoming::{self, Incoming};
use crate::outbox::Outbox;
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
    pub(crate) incoming: ReadHalf<Box<dyn Socket>>,
    pub(crate) outgoing: Arc<Outbox>,
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<Shared>,
        broker: usize,
        id: u64,
        running: Running,
        delay: watch::Receiver<Duration>,
        socket: Box<dyn Socket>,
    ) -> Self {
        let (incoming, half) = tokio::io::split(socket);
        let outgoing = Arc::new(Outbox::new(shared.clone(), delay, half));
        Self { shared, broker, id, running, incoming, outgoing }
    }

    /// Serves the connection until either side ends it. The caller drops this future to cut it.
    pub(crate) async fn serve(self) -> io::Result<()> {
        let outgoing = self.outgoing.clone();
        let served = async {
            self.answer().await?;
            outgoing.delivered().await;
            Ok(())
        };
        tokio::select! {
            biased;
            ended = served => ended,
            Err(error) = outgoing.deliver() => Err(error),
        }
    }

    /// Answers requests until either side is done.
    async fn answer(mut self) -> io::Result<()> {
        let mut session = Session::default();
        let mut buffer = BytesMut::new();
        let mut heard = self.shared.clock.now();
        loop {
            // The time runs from the last whole request, also while a long one is carried out: what was sent behind it
            // is then lost unanswered.
            let idle = heard + self.shared.options.idle_timeout;
            if self.shared.clock.now() >= idle {
                return Ok(());
            }
            let drain = self.running.drain.clone();
            let body = tokio::select! {
                biased;
                () = drain.cancelled() => return Ok(()),
                body = next_frame(&self.shared.clock, &mut self.incoming, &mut buffer, idle) => body?,
            };
            let Some(body) = body else { return Ok(()) };
            heard = self.shared.clock.now();
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
        let Fault { hold, error, lose, reply } = self.shared.change(|state| {
            state.journal.note(self.broker, self.id, name, text);
            state.faults.next(name)
        });
        if let Some(gate) = hold {
            // Somebody may wait for just that.
            self.shared.change(|_| gate.reach());
            tokio::select! {
                biased;
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
                stream::run(self, request, reply).await?;
                return Ok(false);
            }
            Answer::Records(mut head, slices) => {
                if reply.corrupt {
                    damage(&mut head, true);
                }
                for _ in 0..=usize::from(reply.repeat) {
                    self.outgoing.write(&head, &slices.bytes).await?;
                }
                return Ok(true);
            }
            Answer::Text(text) => (text, true),
            Answer::Last(text) => (text, false),
        };
        let text = if session.structured { classes::structured(&text) } else { text };
        let mut text = text.into_bytes();
        if reply.corrupt {
            damage(&mut text, false);
        }
        for _ in 0..=usize::from(reply.repeat) {
            self.outgoing.write(&text, &[]).await?;
        }
        Ok(goes_on)
    }
}

/// The next frame's body; nothing where the other side is done, was silent for too long or sent too long a frame.
async fn next_frame(
    clock: &Clock,
    socket: &mut ReadHalf<Box<dyn Socket>>,
    buffer: &mut BytesMut,
    idle: Instant,
) -> io::Result<Option<Bytes>> {
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
            begun.get_or_insert_with(|| clock.now());
        }
        let split = begun.map(|begun| begun + SPLIT_FRAME);
        let until = split.map_or(idle, |split| split.min(idle));
        buffer.reserve(READ);
        tokio::select! {
            biased;
            read = socket.read_buf(buffer) => {
                if read? == 0 {
                    return Ok(None);
                }
            }
            () = clock.sleep_until(until) => {
                if until >= idle {
                    return Ok(None);
                }
                buffer.clear();
            }
        }
    }
}

/// Waits until the time or until the other side has closed, whatever it sends meanwhile. Whether it has closed.
pub(crate) async fn closed_before(clock: &Clock, socket: &mut ReadHalf<Box<dyn Socket>>, until: Instant) -> bool {
    let mut ignored = [0; 1024];
    let closed = async { while matches!(socket.read(&mut ignored).await, Ok(read) if read > 0) {} };
    tokio::select! {
        biased;
        () = closed => true,
        () = clock.sleep_until(until) => false,
    }
}
