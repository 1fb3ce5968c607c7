//! A stream: a connection that belongs to one partition, on which the broker speaks and nobody answers.

use std::sync::Arc;
use std::time::Duration;

use cursus_wire::command::Stream as Open;
use cursus_wire::reply::StreamFrame;
use cursus_wire::{Reply, ReplyError, Request};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::address::Address;
use super::link::{CallError, Connection, LinkContext, connect, describe};

/// How long a stream may be silent. The broker gives a sign of life every 5 seconds, so this is three of them lost.
const SILENCE: Duration = Duration::from_secs(15);

/// Where a stream is opened.
pub(crate) struct StreamAt {
    pub(super) address: Address,
    pub(super) context: Arc<LinkContext>,
}

impl StreamAt {
    /// Connects and asks for the stream. Whether the broker agrees is told by the first frame.
    pub(crate) async fn open(&self, request: &Open) -> Result<Stream, CallError> {
        let lost = |why: String| CallError::Lost(format!("{}: {why}", self.address));
        let mut connection = connect(&self.address, &self.context).await.map_err(lost)?;
        let frame = request.frame().map_err(|error| CallError::Corrupt(error.to_string()))?;
        match timeout(self.context.request_timeout, connection.socket.write_all(&frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(lost(describe(&error))),
            Err(_) => return Err(lost("the broker takes no requests".to_owned())),
        }
        Ok(Stream { address: self.address.clone(), context: Arc::clone(&self.context), connection })
    }
}

/// An open stream. It ends when this is dropped.
pub(crate) struct Stream {
    address: Address,
    context: Arc<LinkContext>,
    connection: Connection,
}

impl Stream {
    /// Waits for the next frame to begin, and says how long it is.
    pub(crate) async fn next_length(&mut self) -> Result<usize, CallError> {
        match timeout(SILENCE, self.connection.next_length()).await {
            Ok(Ok(length)) => Ok(length),
            Ok(Err(error)) => Err(self.lost(&describe(&error))),
            Err(_) => Err(self.lost(&format!("no sign of life for {SILENCE:?}"))),
        }
    }

    /// The frame whose beginning was waited for.
    pub(crate) async fn next(&mut self) -> Result<StreamFrame, CallError> {
        let body = match timeout(self.context.request_timeout, self.connection.read_frame()).await {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => return Err(self.lost(&describe(&error))),
            Err(_) => return Err(self.lost("a frame never ended")),
        };
        StreamFrame::parse(&body).map_err(|error| match error {
            ReplyError::Broker(error) => CallError::Refused(error),
            nonsense => CallError::Corrupt(format!("{}: {nonsense}", self.condemn())),
        })
    }

    /// Counts a frame that makes no sense. Returns who sent it.
    pub(crate) fn condemn(&self) -> &Address {
        self.context.health.corrupt_frame();
        &self.address
    }

    fn lost(&self, why: &str) -> CallError {
        self.context.health.reconnect();
        CallError::Lost(format!("{}: {why}", self.address))
    }
}
