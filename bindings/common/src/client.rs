//! A consumer as a binding holds it: of this process, with whose turn it is to tell of rebalances, with partitions as a
//! call names them, and with what makes no sense any more once it is closed. Taking records is in [`taking`](crate::taking).

use std::collections::BTreeMap;

use cursus_consumer::driver::Driver;
use cursus_consumer::{
    Batch, Commit, Consumer, Error, ErrorKind, GroupDescription, GroupMetadata, Record, Result, Settings, State, Topic,
    TopicPartition,
};

use crate::panics::guard;
use crate::process::OfProcess;
use crate::runtime;
use crate::timeout::Timeout;
use crate::turns::Turns;

/// A partition as a call names it: in full, or by its number alone while there is one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// With its topic.
    Full(TopicPartition),
    /// By its number.
    Number(u32),
}

impl Named {
    /// The partition that is meant where this is the topic.
    pub fn of(self, topic: &Topic) -> TopicPartition {
        match self {
            Self::Full(partition) => partition,
            Self::Number(number) => TopicPartition::new(topic.clone(), number),
        }
    }
}

/// What is given partition by partition, each partition once.
pub fn by_partition<T>(given: Vec<(Named, T)>, topic: &Topic) -> Result<BTreeMap<TopicPartition, T>> {
    let mut all = BTreeMap::new();
    for (partition, value) in given {
        let partition = partition.of(topic);
        if all.contains_key(&partition) {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("{partition} is given twice")));
        }
        all.insert(partition, value);
    }
    Ok(all)
}

/// What a commit is given.
#[derive(Debug)]
pub enum Committed<'a> {
    /// All that poll has returned.
    All,
    /// A batch.
    Batch(&'a Batch),
    /// Everything up to a record.
    Record(&'a Record),
    /// The next offsets to read.
    Offsets(Vec<(Named, u64)>),
}

/// A consumer and what its language needs beside it. Where it may be asked in a fork, everything is
/// [`ErrorKind::Forked`] there; where it makes no sense once it is closed, the error is the one that closed it.
#[derive(Debug)]
pub struct Client {
    driver: OfProcess<Driver>,
    turns: Turns,
    topic: Topic,
    group: Option<String>,
}

impl Client {
    /// A consumer on this process's runtime. Nothing is sent yet.
    pub fn new(settings: Settings) -> Result<Self> {
        guard(|| {
            let topic = Topic::new(&settings.topic)?;
            let group = settings.group_id.clone();
            let consumer = Consumer::new(settings, runtime::environment()?);
            Ok(Self { driver: OfProcess::new(consumer.driver()), turns: Turns::default(), topic, group })
        })
    }

    /// The topic that it reads.
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// Its group, if it has one.
    pub fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// Whose turn it is to tell of rebalances.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The consumer step by step.
    pub fn driver(&self) -> Result<&Driver> {
        self.driver.get()
    }

    /// The consumer, for what can be asked at any time: its state, statistics, assignment, what is paused; and to start and to
    /// close it.
    pub fn consumer(&self) -> Result<&Consumer> {
        Ok(self.driver()?.consumer())
    }

    /// The consumer, for what makes no sense once it is closed or about to be.
    pub fn open(&self) -> Result<&Consumer> {
        let consumer = self.consumer()?;
        if !matches!(consumer.state(), State::Closing | State::Closed) {
            return Ok(consumer);
        }
        let closed = || Error::new(ErrorKind::Closed, "the consumer is closed: make a new one");
        Err(consumer.fatal_error().unwrap_or_else(closed))
    }

    /// From now on every rebalance is told: [`Step::Tell`](crate::taking::Step::Tell).
    pub fn listen(&self) -> Result<()> {
        self.open()?;
        self.turns.listen(self.driver()?);
        Ok(())
    }

    /// Hands a commit over, and gives what comes of it. It is carried out even if that is dropped.
    pub fn commit(
        &self,
        what: Committed<'_>,
        timeout: Timeout,
    ) -> Result<impl Future<Output = Result<()>> + Send + 'static + use<>> {
        guard(|| {
            let consumer = self.open()?;
            let offsets;
            let what = match what {
                Committed::All => Commit::All,
                Committed::Batch(batch) => Commit::Batch(batch),
                Committed::Record(record) => Commit::Record(record),
                Committed::Offsets(given) => {
                    offsets = by_partition(given, &self.topic)?;
                    Commit::Offsets(&offsets)
                }
            };
            consumer.begin_commit(what, timeout.limit())
        })
    }

    /// Says that a record is processed.
    pub fn ack(&self, record: &Record) -> Result<()> {
        guard(|| self.open()?.ack(record))
    }

    /// What of a batch may still be committed.
    pub fn owned(&self, batch: &Batch) -> Result<Batch> {
        guard(|| Ok(self.open()?.owned(batch)))
    }

    /// Moves a partition.
    pub fn seek(&self, partition: Named, offset: u64) -> Result<()> {
        guard(|| self.open()?.seek(&partition.of(&self.topic), offset))
    }

    /// Returns nothing of these until they are resumed.
    pub fn pause(&self, partitions: Vec<Named>) -> Result<()> {
        guard(|| self.open()?.pause(&self.all(partitions)))
    }

    /// Ends a pause.
    pub fn resume(&self, partitions: Vec<Named>) -> Result<()> {
        guard(|| self.open()?.resume(&self.all(partitions)))
    }

    /// Reads these, without a group.
    pub fn assign(&self, partitions: Vec<(Named, Option<u64>)>) -> Result<()> {
        guard(|| self.open()?.assign(by_partition(partitions, &self.topic)?))
    }

    /// The next offset that poll will return.
    pub fn position(&self, partition: Named) -> Result<Option<u64>> {
        guard(|| Ok(self.open()?.position(&partition.of(&self.topic))))
    }

    /// Who this consumer is in its group now.
    pub fn group_metadata(&self) -> Result<GroupMetadata> {
        guard(|| self.open()?.group_metadata())
    }

    /// Asks what the group has committed.
    pub fn committed(
        &self,
        partition: Named,
        timeout: Timeout,
    ) -> Result<impl Future<Output = Result<Option<u64>>> + Send + 'static + use<>> {
        let consumer = self.open()?.clone();
        let partition = partition.of(&self.topic);
        Ok(async move { consumer.committed(&partition, timeout.limit()).await })
    }

    /// Asks where logs begin: those of these partitions, or of all that are assigned.
    pub fn begin_offsets(
        &self,
        partitions: Option<Vec<Named>>,
        timeout: Timeout,
    ) -> Result<impl Future<Output = Result<Offsets>> + Send + 'static + use<>> {
        let consumer = self.open()?.clone();
        let partitions = self.these_or_assigned(&consumer, partitions);
        Ok(async move { consumer.begin_offsets(&partitions, timeout.limit()).await })
    }

    /// Asks where logs end: those of these partitions, or of all that are assigned.
    pub fn end_offsets(
        &self,
        partitions: Option<Vec<Named>>,
        timeout: Timeout,
    ) -> Result<impl Future<Output = Result<Offsets>> + Send + 'static + use<>> {
        let consumer = self.open()?.clone();
        let partitions = self.these_or_assigned(&consumer, partitions);
        Ok(async move { consumer.end_offsets(&partitions, timeout.limit()).await })
    }

    /// Asks how far the positions are from the logs' ends.
    pub fn lag(&self, timeout: Timeout) -> Result<impl Future<Output = Result<Offsets>> + Send + 'static + use<>> {
        let consumer = self.open()?.clone();
        Ok(async move { consumer.lag(timeout.limit()).await })
    }

    /// Asks for the group's members, their partitions and how far it is.
    pub fn describe_group(
        &self,
        timeout: Timeout,
    ) -> Result<impl Future<Output = Result<GroupDescription>> + Send + 'static + use<>> {
        let consumer = self.open()?.clone();
        Ok(async move { consumer.describe_group(timeout.limit()).await })
    }

    fn all(&self, partitions: Vec<Named>) -> Vec<TopicPartition> {
        partitions.into_iter().map(|partition| partition.of(&self.topic)).collect()
    }

    fn these_or_assigned(&self, consumer: &Consumer, partitions: Option<Vec<Named>>) -> Vec<TopicPartition> {
        partitions.map_or_else(|| consumer.assignment(), |partitions| self.all(partitions))
    }
}

/// Numbers by partition.
pub type Offsets = BTreeMap<TopicPartition, u64>;
