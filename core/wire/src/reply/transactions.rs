//! Transactions: who may write, what is staged, and how it ended.

use super::{TextReply, name, ok};
use crate::fields::{FieldError, Fields, invalid};
use crate::name::{Text, Topic};

/// A new epoch of a transactional producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerEpoch {
    /// The transactional id.
    pub transactional_id: Text,
    /// The producer id, the same in every epoch.
    pub producer_id: Text,
    /// The epoch: 0, and one more at each INIT_PRODUCER_ID.
    pub epoch: i64,
}

impl TextReply for ProducerEpoch {
    const OF: &'static str = "INIT_PRODUCER_ID";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self {
            transactional_id: name(&fields, "transactional_id")?,
            producer_id: name(&fields, "producerId")?,
            epoch: fields.number("epoch")?,
        })
    }
    fn to_text(&self) -> String {
        let Self { transactional_id, producer_id, epoch } = self;
        format!("OK transactional_id={transactional_id} producerId={producer_id} epoch={epoch}")
    }
}

/// A transaction is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionBegun {
    /// The transactional id.
    pub transactional_id: Text,
    /// The producer id.
    pub producer_id: Text,
    /// The epoch.
    pub epoch: i64,
}

impl TextReply for TransactionBegun {
    const OF: &'static str = "BEGIN_TXN";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        expect_state(&fields, TransactionState::Open)?;
        Ok(Self {
            transactional_id: name(&fields, "transactional_id")?,
            producer_id: name(&fields, "producerId")?,
            epoch: fields.number("epoch")?,
        })
    }
    fn to_text(&self) -> String {
        let Self { transactional_id, producer_id, epoch } = self;
        format!("OK transactional_id={transactional_id} state=open producerId={producer_id} epoch={epoch}")
    }
}

/// A record is part of the open transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordStaged {
    /// The transactional id.
    pub transactional_id: Text,
    /// The topic.
    pub topic: Topic,
    /// The partition that the record will be in.
    pub partition: u32,
}

impl TextReply for RecordStaged {
    const OF: &'static str = "TXN_PUBLISH";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self {
            transactional_id: name(&fields, "transactional_id")?,
            topic: name(&fields, "topic")?,
            partition: fields.number("partition")?,
        })
    }
    fn to_text(&self) -> String {
        let Self { transactional_id, topic, partition } = self;
        format!("OK transactional_id={transactional_id} staged_messages=1 topic={topic} partition={partition}")
    }
}

/// Offsets are part of the open transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetsStaged {
    /// The transactional id.
    pub transactional_id: Text,
    /// How many partitions this command named.
    pub count: usize,
}

impl TextReply for OffsetsStaged {
    const OF: &'static str = "SEND_OFFSETS_TO_TXN";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self { transactional_id: name(&fields, "transactional_id")?, count: fields.number("staged_offsets")? })
    }
    fn to_text(&self) -> String {
        format!("OK transactional_id={} staged_offsets={}", self.transactional_id, self.count)
    }
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransactionEnded {
    /// It is written, and its offsets are committed.
    Committed {
        /// The transactional id.
        transactional_id: Text,
        /// How many records it had, repetitions included.
        messages: usize,
        /// How many offsets.
        offsets: usize,
    },
    /// It was dropped.
    Aborted {
        /// The transactional id.
        transactional_id: Text,
    },
}

impl TextReply for TransactionEnded {
    const OF: &'static str = "END_TXN";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        let transactional_id = name(&fields, "transactional_id")?;
        match state(&fields)? {
            TransactionState::Committed => Ok(Self::Committed {
                transactional_id,
                messages: fields.number("messages")?,
                offsets: fields.number("offsets")?,
            }),
            TransactionState::Aborted => Ok(Self::Aborted { transactional_id }),
            other => Err(invalid("state", other.name(), "committed or aborted")),
        }
    }
    fn to_text(&self) -> String {
        match self {
            Self::Committed { transactional_id, messages, offsets } => {
                format!("OK transactional_id={transactional_id} state=committed messages={messages} offsets={offsets}")
            }
            Self::Aborted { transactional_id } => format!("OK transactional_id={transactional_id} state=aborted"),
        }
    }
}

/// Where a transaction is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionState {
    /// It takes records and offsets.
    Open,
    /// It is decided, and not all of it is written yet. Nothing else can happen any more.
    Committing,
    /// It is written.
    Committed,
    /// It was dropped, or none was begun since the last INIT_PRODUCER_ID.
    Aborted,
}

impl TransactionState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Open, Self::Committing, Self::Committed, Self::Aborted];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Committing => "committing",
            Self::Committed => "committed",
            Self::Aborted => "aborted",
        }
    }
}

fn state(fields: &Fields<'_>) -> Result<TransactionState, FieldError> {
    let value = fields.require("state")?;
    TransactionState::ALL
        .into_iter()
        .find(|state| state.name() == value)
        .ok_or_else(|| invalid("state", &value, "open, committing, committed or aborted"))
}

fn expect_state(fields: &Fields<'_>, expected: TransactionState) -> Result<(), FieldError> {
    let found = state(fields)?;
    if found == expected { Ok(()) } else { Err(invalid("state", found.name(), expected.name())) }
}

/// How far a transaction is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionStatus {
    /// The transactional id.
    pub transactional_id: Text,
    /// Where it is.
    pub state: TransactionState,
    /// How many records it has or had.
    pub messages: usize,
    /// How many offsets.
    pub offsets: usize,
}

impl TextReply for TransactionStatus {
    const OF: &'static str = "TXN_STATUS";
    fn from_text(text: &str) -> Result<Self, FieldError> {
        let fields = ok(text)?;
        Ok(Self {
            transactional_id: name(&fields, "transactional_id")?,
            state: state(&fields)?,
            messages: fields.number("messages")?,
            offsets: fields.number("offsets")?,
        })
    }
    fn to_text(&self) -> String {
        let Self { transactional_id, state, messages, offsets } = self;
        format!("OK transactional_id={transactional_id} state={} messages={messages} offsets={offsets}", state.name())
    }
}
