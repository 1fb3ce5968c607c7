//! One connection to one broker. Requests are written as they come and answered in order; whoever waits gets a reply, or
//! the reason why there will be none. A link that failed once is dead: what else its connection holds can't be trusted.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use cursus_net::{Network, Socket};
use cursus_wire::command::Negotiate;
use cursus_wire::{BrokerError, MAX_BODY, Reply, ReplyError, Request, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::address::Address;
use super::buffers::Buffers;
use crate::health::Health;

/// Why a request got no reply that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The connection couldn't be made, or was lost before the request was written: nothing was carried out.
    Unsent(String),
    /// What it asks was no longer right when it could have been written: nothing was carried out, and nothing is wrong.
    Withdrawn(String),
    /// The connection was lost. Whether the request was carried out is unknown.
    Lost(String),
    /// The broker answered, with an error.
    Refused(BrokerError),
    /// The broker answered with something that makes no sense. The link is dead.
    Corrupt(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsent(why) | Self::Withdrawn(why) | Self::Lost(why) | Self::Corrupt(why) => f.write_str(why),
            Self::Refused(error) => write!(f, "{error}"),
        }
    }
}

/// What every link of a consumer needs.
pub(crate) struct LinkContext {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) health: Arc<Health>,
    pub(crate) buffers: Arc<Buffers>,
}

struct Call {
    frame: Bytes,
    deadline: Instant,
    still: Option<Still>,
    answer: oneshot::Sender<Result<Bytes, CallError>>,
}

/// Whether a request is still right: looked at in the moment in which it is written, which may be long after it was made,
/// as where the connection is opened first.
pub(crate) type Still = Arc<dyn Fn() -> bool + Send + Sync>;

/// A handle to a connection; cheap to clone. The connection closes when the last handle is gone.
#[derive(Clone)]
pub(crate) struct Link {
    address: Address,
    calls: mpsc::UnboundedSender<Call>,
    dead: Arc<AtomicBool>,
    context: Arc<LinkContext>,
}

impl Link {
    /// A link and the task that drives it. It connects at once; requests made before that wait.
    pub(crate) fn open(
        address: Address,
        context: Arc<LinkContext>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (calls, incoming) = mpsc::unbounded_channel();
        let link = Self { address: address.clone(), calls, dead: Arc::default(), context: Arc::clone(&context) };
        let dead = Arc::clone(&link.dead);
        (link, drive(address, context, incoming, dead))
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Sends a request and waits for its reply, for as long as any request may take, and as long more as the broker itself
    /// was asked to wait.
    pub(crate) async fn call<R: Request>(&self, request: &R, extra: Duration) -> Result<R::Reply, CallError> {
        self.call_within(request, self.context.request_timeout + extra).await
    }

    /// The same, where it is still right once it can be written.
    pub(crate) async fn call_while<R: Request>(&self, request: &R, still: Still) -> Result<R::Reply, CallError> {
        self.send_and_wait(request, self.context.request_timeout, Some(still)).await
    }

    /// Sends a request and waits for its reply at most this long. Where it doesn't come, the link is dead: its reply could be
    /// taken for another's.
    pub(crate) async fn call_within<R: Request>(&self, request: &R, time: Duration) -> Result<R::Reply, CallError> {
        self.send_and_wait(request, time, None).await
    }

    async fn send_and_wait<R: Request>(
        &self,
        request: &R,
        time: Duration,
        still: Option<Still>,
    ) -> Result<R::Reply, CallError> {
        let frame = request.frame().map_err(|error| CallError::Corrupt(error.to_string()))?;
        let (answer, answered) = oneshot::channel();
        let deadline = Instant::now() + time;
        let closed = || format!("the connection to {} is closed", self.address);
        self.calls.send(Call { frame, deadline, still, answer }).map_err(|_| CallError::Unsent(closed()))?;
        let body = answered.await.unwrap_or_else(|_| Err(CallError::Lost(closed())))?;
        R::Reply::parse(&body).map_err(|error| match error {
            ReplyError::Broker(error) => CallError::Refused(error),
            nonsense => {
                let problem = format!("{}: {nonsense}", self.address);
                self.condemn();
                CallError::Corrupt(problem)
            }
        })
    }

    /// Counts a reply that makes no sense, and gives the link up: what else it holds can't be trusted.
    pub(crate) fn condemn(&self) {
        if !self.dead.swap(true, Ordering::AcqRel) {
            self.context.health.corrupt_frame();
        }
    }

    /// Sends a request without waiting for anything. For the LEAVE of a consumer that is dropped.
    pub(crate) fn send<R: Request>(&self, request: &R) {
        if let Ok(frame) = request.frame() {
            let (answer, _) = oneshot::channel();
            let deadline = Instant::now() + Duration::from_millis(500);
            let _ = self.calls.send(Call { frame, deadline, still: None, answer });
        }
    }
}

async fn drive(
    address: Address,
    context: Arc<LinkContext>,
    mut calls: mpsc::UnboundedReceiver<Call>,
    dead: Arc<AtomicBool>,
) {
    let mut pending = VecDeque::new();
    let end = match connect(&address, &context).await {
        Ok(mut connection) => exchange(&mut connection, &mut calls, &mut pending, &dead).await,
        Err(why) => End::Failed(why),
    };
    let condemned = dead.swap(true, Ordering::AcqRel);
    calls.close();
    let End::Failed(why) = end else { return };
    let why = format!("{address}: {why}");
    // Every reply that is missing now may have been carried out; an idle connection that the broker closed lost nothing.
    let waiting: Vec<_> = std::iter::from_fn(|| calls.try_recv().ok()).collect();
    let unanswered = pending.len() + waiting.len();
    if unanswered > 0 && !condemned {
        context.health.reconnect();
    }
    for call in pending {
        let _ = call.answer.send(Err(CallError::Lost(why.clone())));
    }
    for call in waiting {
        let _ = call.answer.send(Err(CallError::Unsent(why.clone())));
    }
}

struct Pending {
    deadline: Instant,
    answer: oneshot::Sender<Result<Bytes, CallError>>,
}

enum End {
    /// Nobody holds the link any more.
    Unused,
    Failed(String),
}

async fn exchange(
    connection: &mut Connection,
    calls: &mut mpsc::UnboundedReceiver<Call>,
    pending: &mut VecDeque<Pending>,
    dead: &AtomicBool,
) -> End {
    let mut open = true;
    loop {
        if dead.load(Ordering::Acquire) {
            return End::Failed("closed after a reply that made no sense".to_owned());
        }
        if !open && pending.is_empty() {
            return End::Unused;
        }
        let oldest = pending.front().map(|call: &Pending| call.deadline);
        tokio::select! {
            biased;
            body = connection.read_frame() => match body {
                Ok(body) => match pending.pop_front() {
                    // A caller that was cancelled no longer listens; its reply is read all the same, to keep the order.
                    Some(call) => { let _ = call.answer.send(Ok(body)); }
                    None => return End::Failed("the broker sent a reply to no request".to_owned()),
                },
                Err(error) => return End::Failed(describe(&error)),
            },
            call = calls.recv(), if open => match call {
                Some(call) if call.still.as_ref().is_some_and(|still| !still()) => {
                    let why = "it was no longer right when it could be sent".to_owned();
                    let _ = call.answer.send(Err(CallError::Withdrawn(why)));
                }
                Some(call) => {
                    pending.push_back(Pending { deadline: call.deadline, answer: call.answer });
                    let written = timeout_at(call.deadline, connection.socket.write_all(&call.frame)).await;
                    match written {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => return End::Failed(describe(&error)),
                        Err(_) => return End::Failed("the broker takes no more requests".to_owned()),
                    }
                }
                None => {
                    // The last handle is gone. Whoever still waits was cancelled; a dropped consumer's LEAVE is written.
                    open = false;
                    if pending.iter().all(|call| call.answer.is_closed()) {
                        let _ = connection.socket.shutdown().await;
                        return End::Unused;
                    }
                }
            },
            () = sleep_until(oldest.unwrap_or_else(Instant::now)), if oldest.is_some() => {
                return End::Failed("no answer in time".to_owned());
            }
        }
    }
}

pub(super) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the broker closed the connection".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}

/// Connects to the first address of the host that answers, and negotiates.
pub(super) async fn connect(address: &Address, context: &LinkContext) -> Result<Connection, String> {
    let deadline = Instant::now() + context.connect_timeout;
    let resolved = timeout_at(deadline, context.network.resolve(&address.host, address.port));
    let addresses = match resolved.await {
        Err(_) => return Err("the host name was not resolved in time".to_owned()),
        Ok(Err(error)) => return Err(format!("the host name can't be resolved: {error}")),
        Ok(Ok(addresses)) if addresses.is_empty() => return Err("the host name has no address".to_owned()),
        Ok(Ok(addresses)) => addresses,
    };
    let mut problem = String::new();
    for (i, candidate) in addresses.iter().enumerate() {
        // A dead address among several gets its share of the time, not all of it.
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / (addresses.len() - i) as u32;
        match timeout_at(now + share, open(*candidate, context)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(why)) => problem = why,
            Err(_) => problem = "no connection in time".to_owned(),
        }
    }
    Err(problem)
}

async fn open(address: std::net::SocketAddr, context: &LinkContext) -> Result<Connection, String> {
    let connected = || async {
        let socket = context.network.connect(address).await.map_err(|error| describe(&error))?;
        Ok::<_, String>(Connection::new(socket, Arc::clone(&context.buffers)))
    };
    let mut connection = connected().await?;
    match connection.negotiate().await {
        Ok(true) => Ok(connection),
        // An older broker answers that it knows no such command, and closes. It is served without.
        Ok(false) => connected().await,
        Err(error) => Err(describe(&error)),
    }
}

/// A socket, and the frames that come out of it.
pub(super) struct Connection {
    pub(super) socket: Box<dyn Socket>,
    /// Read and not looked at yet: small frames come many to a read.
    staged: BytesMut,
    /// A large frame's body, read straight to where it stays, and its length.
    body: Option<(Vec<u8>, usize)>,
    buffers: Arc<Buffers>,
}

/// How much is read ahead. What doesn't fit is a large frame, which gets a buffer of its own size.
const STAGE: usize = 16 << 10;

impl Connection {
    fn new(socket: Box<dyn Socket>, buffers: Arc<Buffers>) -> Self {
        Self { socket, staged: BytesMut::with_capacity(STAGE), body: None, buffers }
    }

    /// Asks for structured errors. False where the broker refuses to talk about it.
    async fn negotiate(&mut self) -> io::Result<bool> {
        let request = Negotiate::structured_errors();
        let frame = request.frame().map_err(io::Error::other)?;
        self.socket.write_all(&frame).await?;
        let body = self.read_frame().await?;
        Ok(<Negotiate as Request>::Reply::parse(&body).is_ok())
    }

    /// Waits until the next frame has begun, and says how long its body is. Cancelled, it loses nothing.
    pub(super) async fn next_length(&mut self) -> io::Result<usize> {
        loop {
            if let Some((_, length)) = &self.body {
                return Ok(*length);
            }
            if let Some(header) = self.staged.first_chunk::<{ frame::HEADER }>() {
                return frame::body_length(*header).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
            }
            self.stage().await?;
        }
    }

    async fn stage(&mut self) -> io::Result<()> {
        self.staged.reserve(STAGE);
        if self.socket.read_buf(&mut self.staged).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// The next frame's body. Cancelled, it loses nothing: what was read stays here.
    pub(super) async fn read_frame(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some((body, length)) = &mut self.body {
                let missing = *length - body.len();
                if missing == 0 {
                    let (body, _) = self.body.take().unwrap_or_default();
                    return Ok(self.buffers.lend(body));
                }
                if self.socket.read_buf(&mut body.limit(missing)).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            }
            if let Some(header) = self.staged.first_chunk::<{ frame::HEADER }>() {
                let length =
                    frame::body_length(*header).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                debug_assert!(length <= MAX_BODY);
                self.staged.advance(frame::HEADER);
                let mut body = self.buffers.take(length);
                let there = self.staged.len().min(length);
                body.put_slice(&self.staged[..there]);
                self.staged.advance(there);
                self.body = Some((body, length));
                continue;
            }
            self.stage().await?;
        }
    }
}
