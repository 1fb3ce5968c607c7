//! A small transactional writer, for tests and examples: records and a group's offsets, all or none.
//!
//! It works against any brokers, the embedded ones and real ones. It sends one record at a time and waits for each; for
//! throughput it is not made.

mod error;
mod link;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cursus_net::{Network, Tcp};
use cursus_wire::command::{
    BeginTxn, Commits, EndTxn, InitProducerId, Message, Metadata, Outcome, SendOffsetsToTxn, TxnPublish,
};
use cursus_wire::reply::{ProducerEpoch, TransactionEnded};
use cursus_wire::{BrokerError, Group, GroupMetadata, InvalidName, Meaning, Member, Request, Text, Topic};
use tokio::time::Instant;

pub use error::WriterError;
use link::{Address, Link, Trouble};

use crate::topics::fnv1a;

/// How long a call is tried where nothing is said.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the writer is in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There is none.
    Idle,
    /// It takes records and offsets.
    Open,
    /// Something was sent and its answer never came: what the transaction holds isn't known, so that it can't be committed.
    Doubtful,
    /// A commit was asked for. `lost` says that it may have been carried out.
    Committing { lost: bool },
    /// Another writer has taken over.
    Fenced,
}

/// Writes records, and a group's offsets with them, in transactions: all of one, or nothing.
///
/// One writer has one transaction at a time. A writer that starts with the same transactional id later fences this one.
/// Each call is tried again where that may help, for 30 s unless [`with_timeout`](Self::with_timeout) says otherwise.
///
/// Dropping a call's future leaves a transaction that can only be aborted, or asked once more for its commit. Dropping the
/// writer leaves an open transaction to the next one of its transactional id, which drops it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use cursus_embedded::{Cluster, Options, TransactionalWriter};
///
/// let cluster = Cluster::start(Options::default()).await?;
/// cluster.create_topic("invoices", 2)?;
/// let mut writer = TransactionalWriter::new(cluster.brokers(), "billing")?;
/// writer.begin().await?;
/// writer.publish("invoices", "customer-1", "two apples", None).await?;
/// writer.publish("invoices", "customer-2", "a pear", None).await?;
/// writer.commit().await?;
/// # cluster.stop().await;
/// # Ok(())
/// # }
/// ```
pub struct TransactionalWriter {
    link: Link,
    timeout: Duration,
    stage: Stage,
    /// Producer id and epoch, once there was one.
    identity: Option<ProducerEpoch>,
    /// How many requests were sent before the first INIT_PRODUCER_ID that has no answer yet: so many epochs at most may be
    /// this writer's own without its knowing.
    unanswered_from: Option<u64>,
    /// The last sequence number in each partition, in this epoch.
    sequences: BTreeMap<(Topic, u32), u64>,
    /// How many partitions each topic has.
    counts: BTreeMap<Topic, u32>,
    /// What records without a key are dealt out by.
    turn: u32,
}

impl TransactionalWriter {
    /// A writer that finds its way from these brokers (`host:port`). Nothing is opened yet.
    ///
    /// # Errors
    ///
    /// No broker, what is no address, or a transactional id that can't be a word of a command.
    pub fn new<B: AsRef<str>>(
        brokers: impl IntoIterator<Item = B>,
        transactional_id: &str,
    ) -> Result<Self, WriterError> {
        let brokers: Vec<Address> = brokers
            .into_iter()
            .map(|broker| Address::parse(broker.as_ref()))
            .collect::<Result<_, _>>()
            .map_err(WriterError::InvalidArgument)?;
        if brokers.is_empty() {
            return Err(WriterError::InvalidArgument("a writer needs at least one broker".to_owned()));
        }
        let id = Text::new(transactional_id).map_err(|problem| {
            WriterError::InvalidArgument(format!("{transactional_id:?} can't be a transactional id: {problem}"))
        })?;
        Ok(Self {
            link: Link::new(Arc::new(Tcp), brokers, id),
            timeout: PATIENCE,
            stage: Stage::Idle,
            identity: None,
            unanswered_from: None,
            sequences: BTreeMap::new(),
            counts: BTreeMap::new(),
            turn: 0,
        })
    }

    /// The same, with this long for each call.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same over another network, where the brokers are not on the operating system's.
    #[must_use]
    pub fn with_network(mut self, network: Arc<dyn Network>) -> Self {
        self.link.network = network;
        self
    }

    /// The transactional id.
    pub fn transactional_id(&self) -> &str {
        self.link.id.as_str()
    }

    fn deadline(&self) -> Instant {
        // More than a program lives through is for ever.
        Instant::now() + self.timeout.min(Duration::from_secs(50 * 365 * 86_400))
    }

    /// Begins a transaction. What a doubtful one before it had staged is dropped.
    ///
    /// # Errors
    ///
    /// [`Fenced`](WriterError::Fenced) where another writer has taken over, without doing that one any harm;
    /// [`InvalidState`](WriterError::InvalidState) inside a transaction.
    pub async fn begin(&mut self) -> Result<(), WriterError> {
        match self.stage {
            Stage::Idle | Stage::Doubtful => {}
            Stage::Fenced => return Err(self.fenced()),
            Stage::Open => return Err(invalid("there is a transaction already: commit or abort it first")),
            Stage::Committing { .. } => return Err(invalid(HALF_COMMITTED)),
        }
        let deadline = self.deadline();
        // INIT_PRODUCER_ID would fence whoever came after this writer; so whether anybody came is asked first.
        self.check_epoch(deadline).await?;
        loop {
            let request = InitProducerId { transactional_id: self.link.id.clone() };
            self.unanswered_from.get_or_insert(self.link.sent);
            let init = self.call(&request, deadline).await?;
            if !self.may_be_own(init.epoch) {
                return Err(self.fence());
            }
            self.unanswered_from = None;
            let request = BeginTxn {
                transactional_id: self.link.id.clone(),
                producer_id: init.producer_id.clone(),
                epoch: init.epoch,
            };
            self.identity = Some(init);
            match self.call(&request, deadline).await {
                Ok(_) => break,
                // It was begun, and the answer was lost. In another epoch it can be begun again.
                Err(WriterError::Refused { error, .. })
                    if error.code == "producer_reinitialization_required" && Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        }
        self.sequences.clear();
        self.stage = Stage::Open;
        Ok(())
    }

    /// Adds a record to the transaction, and gives the partition it will be in: the given one, else the one that its key has
    /// with every writer, else the next in turn. An empty key is none.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](WriterError::InvalidArgument) for a value that is empty, begins or ends with white space, ends
    /// with a NUL or is too long, since brokers would change or refuse it; for a key that is not one word.
    /// [`InvalidState`](WriterError::InvalidState) outside of a transaction.
    pub async fn publish(
        &mut self,
        topic: &str,
        key: &str,
        value: &str,
        partition: Option<u32>,
    ) -> Result<u32, WriterError> {
        let topic = Topic::new(topic).map_err(invalid_name)?;
        let key = if key.is_empty() { None } else { Some(Text::new(key).map_err(invalid_name)?) };
        if value.is_empty() {
            return Err(WriterError::InvalidArgument("brokers take no empty value in a transaction".to_owned()));
        }
        if value.trim() != value || value.ends_with('\0') {
            let message =
                "brokers would cut off what stands at this value's ends: no white space there, and no NUL at the end";
            return Err(WriterError::InvalidArgument(message.to_owned()));
        }
        self.check_open()?;
        let deadline = self.deadline();
        let partition = match partition {
            Some(partition) => partition,
            None => self.choose(&topic, key.as_ref(), deadline).await?,
        };
        let place = (topic.clone(), partition);
        let sequence = self.sequences.get(&place).copied().unwrap_or(0) + 1;
        let ProducerEpoch { transactional_id, producer_id, epoch } = self.identity()?;
        let message = Message(value.to_owned());
        let request = TxnPublish {
            transactional_id,
            topic,
            partition: Some(partition),
            producer_id,
            sequence,
            epoch,
            key,
            message,
        };
        if let Err(error) = request.frame() {
            return Err(WriterError::InvalidArgument(format!("the record is too long: {error}")));
        }
        // The same number again is one record, however often it is sent.
        self.stage(&request, deadline).await?;
        self.sequences.insert(place, sequence);
        Ok(partition)
    }

    /// Adds a group's offsets to the transaction: for each partition the next one to read. The broker checks at once that
    /// the member has the partitions, and at the commit again. All offsets of one transaction are of one member at one
    /// generation.
    ///
    /// # Errors
    ///
    /// [`Refused`](WriterError::Refused) where the member hasn't, or its generation is over; then abort.
    pub async fn send_offsets(
        &mut self,
        metadata: &GroupMetadata,
        offsets: impl IntoIterator<Item = (u32, u64)>,
    ) -> Result<(), WriterError> {
        let offsets: Vec<(u32, u64)> = offsets.into_iter().collect();
        let (topic, group) =
            (Topic::new(&metadata.topic).map_err(invalid_name)?, Group::new(&metadata.group).map_err(invalid_name)?);
        let member = Member::new(&metadata.member).map_err(invalid_name)?;
        self.check_open()?;
        if offsets.is_empty() {
            return Ok(());
        }
        let ProducerEpoch { transactional_id, producer_id, epoch } = self.identity()?;
        let (generation, offsets) = (metadata.generation, Commits(offsets));
        let request =
            SendOffsetsToTxn { transactional_id, producer_id, epoch, topic, group, member, generation, offsets };
        self.stage(&request, self.deadline()).await
    }

    /// Commits the transaction. Where the answer is lost it is asked again, which is harmless.
    ///
    /// # Errors
    ///
    /// [`Refused`](WriterError::Refused): nothing was written, and the transaction can be aborted.
    /// [`OutcomeUnknown`](WriterError::OutcomeUnknown): call it again to learn more.
    pub async fn commit(&mut self) -> Result<(), WriterError> {
        let mut lost = match self.stage {
            Stage::Open => false,
            Stage::Committing { lost } => lost,
            _ => {
                self.check_open()?;
                false
            }
        };
        self.stage = Stage::Committing { lost: true };
        let ended = self.end(Outcome::Commit, self.deadline()).await;
        let (error, last) = match ended {
            Ok(TransactionEnded::Committed { .. }) => {
                self.stage = Stage::Idle;
                return Ok(());
            }
            Ok(TransactionEnded::Aborted { .. }) => (None, "the broker answered that it is aborted".to_owned()),
            Err(Trouble::Refused { error, lost: on_the_way }) => {
                lost |= on_the_way;
                let last = error.to_string();
                (Some(error), last)
            }
            Err(Trouble::GaveUp { last, lost: on_the_way }) => {
                lost |= on_the_way;
                if !lost {
                    self.stage = Stage::Open;
                    return Err(WriterError::Unavailable { command: EndTxn::NAME, within: self.timeout, last });
                }
                (None, last)
            }
        };
        let Some(error) = error else { return Err(self.unknown(last)) };
        if error.meaning() == Meaning::ProducerFenced {
            let fenced = self.fence();
            // It may have been committed before the other one came.
            return Err(if lost { self.unknown(last) } else { fenced });
        }
        self.stage = match error.code.as_str() {
            "transaction_commit_failed" if error.field("state") == Some("committing") => {
                Stage::Committing { lost: true }
            }
            "transaction_aborted" | "transaction_not_found" if lost => return Err(self.unknown(last)),
            "transaction_aborted" | "transaction_not_found" => Stage::Idle,
            _ => Stage::Open,
        };
        Err(WriterError::Refused { command: EndTxn::NAME, error })
    }

    /// Drops the transaction: nothing of it was, or will be, written.
    ///
    /// # Errors
    ///
    /// [`InvalidState`](WriterError::InvalidState) without a transaction, and after a commit was asked for.
    pub async fn abort(&mut self) -> Result<(), WriterError> {
        match self.stage {
            Stage::Open | Stage::Doubtful => {}
            Stage::Committing { .. } => return Err(invalid(HALF_COMMITTED)),
            Stage::Fenced => return Err(self.fenced()),
            Stage::Idle => return Err(invalid(NONE)),
        }
        self.stage = Stage::Doubtful;
        match self.end(Outcome::Abort, self.deadline()).await {
            Ok(_) => {}
            // The broker knows nothing of it any more.
            Err(Trouble::Refused { error, .. })
                if error.code == "transaction_not_found" && error.meaning() != Meaning::ProducerFenced => {}
            Err(trouble) => return Err(self.failed(EndTxn::NAME, trouble)),
        }
        self.stage = Stage::Idle;
        Ok(())
    }

    /// Sends what belongs into the transaction. Until there is an answer, what it holds isn't known.
    async fn stage<R: Request>(&mut self, request: &R, deadline: Instant) -> Result<(), WriterError> {
        self.stage = Stage::Doubtful;
        let trouble = match self.link.call(request, deadline).await {
            Ok(_) => {
                self.stage = Stage::Open;
                return Ok(());
            }
            Err(trouble) => trouble,
        };
        let gone = |error: &BrokerError| {
            let reason = error.field("reason").unwrap_or_default();
            reason.starts_with("transaction ") && !reason.starts_with("transaction offset")
        };
        match &trouble {
            // A broker looks first at whether the transaction is open, and only then at whose it is.
            Trouble::Refused { error, .. } if gone(error) => self.check_epoch(deadline).await?,
            Trouble::Refused { lost: false, .. } | Trouble::GaveUp { lost: false, .. } => self.stage = Stage::Open,
            _ => {}
        }
        Err(self.failed(R::NAME, trouble))
    }

    /// Fails where another writer has taken over. The broker tells it from a transaction that is dropped once more.
    async fn check_epoch(&mut self, deadline: Instant) -> Result<(), WriterError> {
        if self.identity.is_none() {
            return Ok(());
        }
        match self.end(Outcome::Abort, deadline).await {
            Err(Trouble::Refused { error, .. }) if error.meaning() == Meaning::ProducerFenced => {
                let reason = error.field("reason").unwrap_or_default();
                let current = reason.split(' ').find_map(|word| word.strip_prefix("current_epoch=")?.parse().ok());
                // Without an answer to its own INIT_PRODUCER_ID a writer fences itself.
                let own = self.unanswered_from.is_some() && current.is_some_and(|epoch| self.may_be_own(epoch));
                if own { Ok(()) } else { Err(self.fence()) }
            }
            Err(trouble @ Trouble::GaveUp { .. }) => Err(self.failed(EndTxn::NAME, trouble)),
            _ => Ok(()),
        }
    }

    /// Whether an epoch can be one that this writer started itself. A broker that has lost its memory begins at 0 again.
    fn may_be_own(&self, epoch: i64) -> bool {
        let own = self.unanswered_from.map_or(0, |from| self.link.sent - from);
        let before = self.identity.as_ref().map(|identity| identity.epoch);
        before.is_none_or(|before| epoch <= before.saturating_add_unsigned(own))
    }

    async fn end(&mut self, outcome: Outcome, deadline: Instant) -> Result<TransactionEnded, Trouble> {
        let Some(ProducerEpoch { transactional_id, producer_id, epoch }) = self.identity.clone() else {
            return Err(Trouble::GaveUp { last: NONE.to_owned(), lost: false });
        };
        let request = EndTxn { transactional_id, producer_id, epoch, result: Some(outcome) };
        self.link.call(&request, deadline).await
    }

    async fn call<R: Request>(&mut self, request: &R, deadline: Instant) -> Result<R::Reply, WriterError> {
        let answer = self.link.call(request, deadline).await;
        answer.map_err(|trouble| self.failed(R::NAME, trouble))
    }

    async fn choose(&mut self, topic: &Topic, key: Option<&Text>, deadline: Instant) -> Result<u32, WriterError> {
        let count = match self.counts.get(topic) {
            Some(count) => *count,
            None => {
                let found = self.call(&Metadata { topic: topic.clone() }, deadline).await?;
                let count = u32::try_from(found.leaders.len()).unwrap_or(u32::MAX).max(1);
                self.counts.insert(topic.clone(), count);
                count
            }
        };
        Ok(match key {
            Some(key) => (fnv1a(key.as_str().as_bytes()) % u64::from(count)) as u32,
            None => {
                let turn = self.turn;
                self.turn = turn.wrapping_add(1);
                turn % count
            }
        })
    }

    fn identity(&self) -> Result<ProducerEpoch, WriterError> {
        self.identity.clone().ok_or_else(|| invalid(NONE))
    }

    fn check_open(&self) -> Result<(), WriterError> {
        match self.stage {
            Stage::Open => Ok(()),
            Stage::Idle => Err(invalid(NONE)),
            Stage::Doubtful => {
                Err(invalid("what this transaction holds is not known since an answer was lost: abort it"))
            }
            Stage::Committing { .. } => Err(invalid(HALF_COMMITTED)),
            Stage::Fenced => Err(self.fenced()),
        }
    }

    fn fence(&mut self) -> WriterError {
        self.stage = Stage::Fenced;
        self.fenced()
    }

    fn fenced(&self) -> WriterError {
        WriterError::Fenced { transactional_id: self.transactional_id().to_owned() }
    }

    fn unknown(&self, last: String) -> WriterError {
        WriterError::OutcomeUnknown { transactional_id: self.transactional_id().to_owned(), last }
    }

    fn failed(&mut self, command: &'static str, trouble: Trouble) -> WriterError {
        match trouble {
            Trouble::Refused { error, .. } if error.meaning() == Meaning::ProducerFenced => self.fence(),
            Trouble::Refused { error, .. } => WriterError::Refused { command, error },
            Trouble::GaveUp { last, .. } => WriterError::Unavailable { command, within: self.timeout, last },
        }
    }
}

const NONE: &str = "there is no transaction: begin one first";
const HALF_COMMITTED: &str = "a commit was asked for, and its outcome is not known yet: call commit again";

fn invalid(message: &str) -> WriterError {
    WriterError::InvalidState(message.to_owned())
}

// As `map_err` wants it.
#[allow(clippy::needless_pass_by_value)]
fn invalid_name(problem: InvalidName) -> WriterError {
    WriterError::InvalidArgument(problem.to_string())
}

impl fmt::Debug for TransactionalWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionalWriter")
            .field("transactional_id", &self.link.id)
            .field("epoch", &self.identity.as_ref().map(|identity| identity.epoch))
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}
