//! The control port: a cluster controlled from another process, or in another language, by lines of JSON.
//!
//! A line is a request, such as `{"id": 1, "do": "kill_broker", "broker": 0}`, and gets a line back: `{"id":1,"ok":true}`,
//! or `{"id":1,"error":{"kind":"no_broker","message":"…"}}`. What can be asked for is [`Cluster`]'s methods by their names,
//! with their arguments by name; `commands` lists them. `docs/embedded.md` describes all of it.
//!
//! Who is in the cluster's own process asks for the same by a [`Session`], without any lines.

mod given;
mod session;
mod table;

use std::fmt::Display;
use std::io;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use cursus_net::{Listener, Socket};
use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use self::given::{Argument, Kind};
pub use self::session::Session;
pub use self::table::{Answer, Command, TABLE};
use crate::{Cluster, ControlError};

/// The longest line that is taken, in bytes: the largest record fits in, in base64.
const LONGEST_LINE: usize = 24 << 20;

/// How long a connection that ends has to bring its last reply to the other side.
const GRACE: Duration = Duration::from_secs(5);

/// How much is read at once at least.
const READ: usize = 16 << 10;

/// Serves a cluster's control to whoever connects, until the cluster is stopped. Dropping the future ends it with all of
/// its connections. It holds a handle of the cluster, which lives that long. There is no authentication: let nobody
/// reach the listener who mayn't control the cluster.
pub async fn serve(cluster: Cluster, listener: Box<dyn Listener>) {
    let stopped = cluster.shared().root.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stopped.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => drop(connections.spawn(talk(cluster.clone(), socket))),
                // Out of file descriptors, most likely: others must close first.
                Err(_) => sleep(Duration::from_millis(20)).await,
            },
        }
    }
    drop(listener);
    let _ = timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
}

/// Why a request wasn't carried out.
#[derive(Debug, Error)]
pub enum Failure {
    /// The cluster couldn't do what it was asked for.
    #[error(transparent)]
    Refused(#[from] ControlError),
    /// The request is wrong in itself, or waited in vain.
    #[error("{message}")]
    Failed {
        /// What it is, in one word.
        kind: &'static str,
        /// What was wrong, and what would be right.
        message: String,
    },
}

impl Failure {
    fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self::Failed { kind, message: message.into() }
    }

    /// The kind of failure in one word, as the control port names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused(error) => error.kind(),
            Self::Failed { kind, .. } => kind,
        }
    }
}

type Outcome = Result<Value, Failure>;

/// Answers the requests of one connection, one after the other. When it ends its holds are released.
async fn talk(cluster: Cluster, socket: Box<dyn Socket>) -> io::Result<()> {
    let stopped = cluster.shared().root.clone();
    let (half, mut out) = tokio::io::split(socket);
    let mut lines = Lines { half, buffer: BytesMut::new(), scanned: 0, ended: false };
    let session = Session::new(cluster);
    loop {
        let line = tokio::select! {
            biased;
            line = lines.next() => line?,
            () = stopped.cancelled() => return Ok(()),
        };
        let reply = match line {
            Line::End => return Ok(()),
            Line::TooLong => {
                let message = format!("a line may have {LONGEST_LINE} bytes; the connection is closed");
                let reply = reply(&Value::Null, Err(Failure::new("line_too_long", message)));
                out.write_all(reply.as_bytes()).await?;
                out.shutdown().await?;
                // To close on what wasn't read would take the reply back.
                let _ = timeout(GRACE, lines.skip()).await;
                return Ok(());
            }
            Line::Whole(line) if line.trim_ascii().is_empty() => continue,
            Line::Whole(line) => {
                let (id, asked) = read(&line);
                let outcome = match asked {
                    Ok((command, arguments)) => session.ask(&command, arguments, lines.closed()).await,
                    Err(failure) => Err(failure),
                };
                reply(&id, outcome)
            }
        };
        out.write_all(reply.as_bytes()).await?;
        out.flush().await?;
    }
}

fn reply(id: &Value, outcome: Outcome) -> String {
    let mut line = match outcome {
        Ok(ok) => json!({ "id": id, "ok": ok }),
        Err(failure) => json!({ "id": id, "error": { "kind": failure.kind(), "message": failure.to_string() } }),
    }
    .to_string();
    line.push('\n');
    line
}

/// A command's name and its arguments.
type Asked = Result<(String, Map<String, Value>), Failure>;

/// A request's id, and what it asks for.
fn read(line: &[u8]) -> (Value, Asked) {
    let bad = |message: &dyn Display| {
        let message =
            format!("{message}; expected a line such as {{\"id\": 1, \"do\": \"kill_broker\", \"broker\": 0}}");
        Err(Failure::new("bad_request", message))
    };
    let mut fields = match serde_json::from_slice(line) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return (Value::Null, bad(&"the line is no JSON object")),
        Err(error) => return (Value::Null, bad(&format_args!("the line is no JSON: {error}"))),
    };
    let id = fields.remove("id").unwrap_or_default();
    match fields.remove("do") {
        Some(Value::String(name)) => (id, Ok((name, fields))),
        _ => (id, bad(&"\"do\" must be the name of a command")),
    }
}

enum Line {
    Whole(Vec<u8>),
    /// Longer than is taken. Nothing more can be read.
    TooLong,
    End,
}

struct Lines {
    half: ReadHalf<Box<dyn Socket>>,
    buffer: BytesMut,
    /// So far there is no end of a line in the buffer.
    scanned: usize,
    ended: bool,
}

impl Lines {
    /// The next line without its end. What isn't ended when the other side closes is a line too.
    async fn next(&mut self) -> io::Result<Line> {
        loop {
            if let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.scanned + at).to_vec();
                self.buffer.advance(1);
                self.scanned = 0;
                return Ok(Line::Whole(line));
            }
            self.scanned = self.buffer.len();
            if self.scanned > LONGEST_LINE {
                return Ok(Line::TooLong);
            }
            if self.ended && self.buffer.is_empty() {
                return Ok(Line::End);
            }
            if self.ended {
                self.scanned = 0;
                return Ok(Line::Whole(self.buffer.split().to_vec()));
            }
            self.read_on().await?;
        }
    }

    async fn read_on(&mut self) -> io::Result<()> {
        self.buffer.reserve(READ);
        self.ended = self.half.read_buf(&mut self.buffer).await? == 0;
        Ok(())
    }

    /// Reads on to the end without keeping anything.
    async fn skip(&mut self) {
        self.buffer.clear();
        while !self.ended && self.read_on().await.is_ok() {
            self.buffer.clear();
        }
    }

    /// Waits until the other side has closed, and keeps what it sends meanwhile, up to the length of a line.
    async fn closed(&mut self) {
        while !self.ended {
            if self.buffer.len() > LONGEST_LINE {
                return std::future::pending().await;
            }
            self.ended |= self.read_on().await.is_err();
        }
    }
}
