//! Records read and written.

use std::fmt::Write as _;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Reply, ReplyError, TextReply, json, status_ok, text, to_json};
use crate::batch::RecordBatch;
use crate::fields::{FieldError, Fields, invalid, number, word};

/// A batch of records: the reply to CONSUME.
#[derive(Debug, Clone)]
pub struct Records(pub RecordBatch);

impl Reply for Records {
    fn parse(body: &Bytes) -> Result<Self, ReplyError> {
        if RecordBatch::is_batch(body) {
            return Ok(Self(RecordBatch::parse(body.clone())?));
        }
        text("CONSUME", body)?;
        Err(ReplyError::malformed("CONSUME", &"it is neither a batch of records nor an error", body))
    }
}

/// A frame of a stream.
#[derive(Debug, Clone)]
pub enum StreamFrame {
    /// Records.
    Records(RecordBatch),
    /// Nothing new: an empty frame, every few seconds.
    KeepAlive,
    /// The stream ends here, and says why.
    Close(StreamClose),
}

impl Reply for StreamFrame {
    fn parse(body: &Bytes) -> Result<Self, ReplyError> {
        if body.is_empty() {
            return Ok(Self::KeepAlive);
        }
        if RecordBatch::is_batch(body) {
            return Ok(Self::Records(RecordBatch::parse(body.clone())?));
        }
        StreamClose::parse(body).map(Self::Close)
    }
}

/// How a stream ends when the broker says why: `STREAM_CONTROL type=CLOSE reason=… offset=…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamClose {
    /// `offset_out_of_range`, `replaced`, `error`, ….
    pub reason: String,
    /// Where the stream stood.
    pub offset: Option<u64>,
    /// With `offset_out_of_range`: what was asked for.
    pub requested: Option<u64>,
    /// With `offset_out_of_range`: the first offset that is kept.
    pub earliest: Option<u64>,
    /// With `offset_out_of_range`: one past the last.
    pub latest: Option<u64>,
}

const STREAM_CONTROL: &str = "STREAM_CONTROL";

impl TextReply for StreamClose {
    const OF: &'static str = "STREAM";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        if !text.starts_with(STREAM_CONTROL) {
            return Err(FieldError::Start(STREAM_CONTROL));
        }
        let fields = Fields::parse(text, STREAM_CONTROL.len())?;
        let kind = fields.require("type")?;
        if kind != "CLOSE" {
            return Err(invalid("type", &kind, "CLOSE"));
        }
        let offset = |key| fields.get(key).map(|value| number(key, &value)).transpose();
        Ok(Self {
            reason: fields.require("reason")?.into_owned(),
            offset: offset("offset")?,
            requested: offset("requested")?,
            earliest: offset("earliest")?,
            latest: offset("latest")?,
        })
    }
    fn to_text(&self) -> String {
        let mut out = format!("{STREAM_CONTROL} type=CLOSE reason={}", word(&self.reason));
        let offsets = [
            ("offset", self.offset),
            ("requested", self.requested),
            ("earliest", self.earliest),
            ("latest", self.latest),
        ];
        for (key, offset) in offsets {
            if let Some(offset) = offset {
                let _ = write!(out, " {key}={offset}");
            }
        }
        out
    }
}

/// A write was acknowledged, a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    status: String,
    /// The last record's offset in a cluster; one more than that from a standalone broker.
    pub last_offset: u64,
    /// The producer's epoch.
    pub producer_epoch: i64,
    /// The producer.
    pub producer_id: String,
    /// The first sequence number.
    pub seq_start: u64,
    /// The last sequence number.
    pub seq_end: u64,
    /// The leader's Raft address, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
}

impl Published {
    /// An acknowledgement.
    pub fn new(
        last_offset: u64,
        producer_id: &str,
        producer_epoch: i64,
        sequences: (u64, u64),
        leader: Option<String>,
    ) -> Self {
        let (seq_start, seq_end) = sequences;
        Self {
            status: "OK".to_owned(),
            last_offset,
            producer_epoch,
            producer_id: producer_id.to_owned(),
            seq_start,
            seq_end,
            leader,
        }
    }
}

impl TextReply for Published {
    const OF: &'static str = "PUBLISH";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let published: Self = json(text)?;
        status_ok(&published.status)?;
        Ok(published)
    }
    fn to_text(&self) -> String {
        to_json(self)
    }
}
