//! Handlers: a layer over poll and acknowledgements that gives each partition a worker of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Consumer;
use crate::batch::{Fence, Record, Slice};
use crate::delivery::Proof;
use crate::engine::Message;
use crate::error::{Error, ErrorKind, Result};
use crate::shared::Shared;
use crate::types::{State, TopicPartition};

/// Why [`Consumer::run`] ended while the consumer wasn't closed.
#[derive(Debug)]
pub enum RunError<E> {
    /// A handler failed. Its partition stands at this record, which comes again, unless a seek has gone elsewhere meanwhile.
    Handler {
        /// Where the record is from.
        partition: TopicPartition,
        /// The record's offset.
        offset: u64,
        /// What the handler returned.
        error: E,
    },
    /// The consumer can't go on.
    Consumer(Error),
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler { partition, offset, error } => {
                write!(f, "the handler failed at offset {offset} of {partition}: {error}")
            }
            Self::Consumer(error) => write!(f, "{error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for RunError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Handler { error, .. } => Some(error),
            Self::Consumer(error) => Some(error),
        }
    }
}

impl Consumer {
    /// Calls `handler` with every record until the consumer is closed. Records of one partition come one after the other, in
    /// order, each after the handler has returned for the one before; partitions don't wait for each other. A record counts
    /// as processed once its handler has returned `Ok`, and is committed every `auto_commit_interval_ms` and at close,
    /// whatever `enable_auto_commit` says.
    ///
    /// A rebalance ends the handlers of the old assignment at their next `await`, and waits for that, before the first
    /// record of the new one is handled; so does close. What a handler had not finished comes again, here or elsewhere. Where
    /// handlers are at work and none returns for `max_poll_interval_ms`, the membership ends as if nobody polled.
    ///
    /// What polls returned before counts as processed once a handler has finished a record behind it, whatever
    /// `enable_auto_commit` says: run handlers when you are through with it.
    ///
    /// Only handlers take records meanwhile: polls, iterators and a second run are refused. Dropping the future ends the
    /// handlers, and what they had not finished is the next to be read. A seek leaves behind what waits for a handler, and what a
    /// handler is at, should it fail; a commit of all commits what handlers have finished. Close it from elsewhere, through an `Arc`; close
    /// waits for the handlers to end, within its time.
    ///
    /// Errors: [`RunError::Handler`] with what a handler returned: the other handlers have finished the record that they were
    /// at, nothing further was handled, and another `run` or `poll` goes on with the failed record, or where a seek went meanwhile. [`RunError::Consumer`]
    /// with the fatal error, or with [`ErrorKind::InvalidState`] without a group and beside another run or a poll. A panic of a handler goes
    /// on in the caller.
    pub async fn run<H, F, E>(&self, handler: H) -> Result<(), RunError<E>>
    where
        H: Fn(Record) -> F + Send + Sync + 'static,
        F: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Send + 'static,
    {
        self.check_group("a handler").map_err(RunError::Consumer)?;
        self.begin().map_err(RunError::Consumer)?;
        // Dropped after the workers, wherever this future ends: what they left is gone back to.
        let _handling = Handling::begin(self).map_err(RunError::Consumer)?;
        let mut workers = Workers::new(Arc::clone(self.shared()), Arc::new(handler));
        loop {
            match self.turn(&mut workers).await {
                Ok(None) => {}
                Ok(Some(failed)) => {
                    workers.finish(self).await;
                    return Err(failed);
                }
                Err(error) => {
                    workers.cancel().await;
                    match error.kind() {
                        ErrorKind::Rebalancing | ErrorKind::MaxPollInterval => {}
                        ErrorKind::Closed => return Ok(()),
                        _ => return Err(RunError::Consumer(error)),
                    }
                }
            }
        }
    }

    /// One turn: hands out what is ready, or waits for something to happen.
    async fn turn<H, F, E>(&self, workers: &mut Workers<H, E>) -> Result<Option<RunError<E>>>
    where
        H: Fn(Record) -> F + Send + Sync + 'static,
        F: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Send + 'static,
    {
        let delivery = &self.shared().delivery;
        let _attending = delivery.attend();
        let changed = delivery.changed();
        if let Some(batch) = self.rejoining(delivery.take(self.max_poll_records()))? {
            for slice in batch.slices() {
                if workers.hand(batch.consumer, slice) {
                    delivery.throttle(&slice.partition, slice.fence, true);
                }
            }
            return Ok(None);
        }
        tokio::select! {
            biased;
            () = changed => {}
            Some(news) = workers.news.recv() => match news {
                News::Handled(partition, fence) => {
                    if workers.handled(&partition, fence) {
                        delivery.throttle(&partition, fence, false);
                    }
                }
                News::Failed { partition, offset, error } => {
                    return Ok(Some(RunError::Handler { partition, offset, error }));
                }
            },
            Some(ended) = workers.tasks.join_next(), if !workers.tasks.is_empty() => note(ended),
        }
        Ok(None)
    }
}

/// Handlers take this consumer's records while this lives. Afterwards its positions are at the first records that were not
/// handled.
struct Handling<'a>(&'a Consumer, Proof);

impl<'a> Handling<'a> {
    fn begin(consumer: &'a Consumer) -> Result<Self> {
        Ok(Self(consumer, consumer.shared().delivery.begin_handling()?))
    }
}

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        let delivery = &self.0.shared().delivery;
        for (partition, fence) in delivery.rewind() {
            // An engine that is gone reads nothing on.
            let _ = self.0.send(Message::Moved { partition, fence });
        }
        delivery.end_handling(self.1);
    }
}

enum News<E> {
    Handled(TopicPartition, Fence),
    Failed { partition: TopicPartition, offset: u64, error: E },
}

struct Workers<H, E> {
    shared: Arc<Shared>,
    handler: Arc<H>,
    by_partition: BTreeMap<TopicPartition, Worker>,
    /// Aborted when this is dropped.
    tasks: JoinSet<()>,
    /// Workers finish the record that they are at, and go.
    stop: CancellationToken,
    tell: mpsc::UnboundedSender<News<E>>,
    news: mpsc::UnboundedReceiver<News<E>>,
}

struct Worker {
    fence: Fence,
    records: mpsc::UnboundedSender<(u64, Slice)>,
    /// How many records were handed over and are not handled.
    open: usize,
    paused: bool,
}

impl<H, F, E> Workers<H, E>
where
    H: Fn(Record) -> F + Send + Sync + 'static,
    F: Future<Output = std::result::Result<(), E>> + Send + 'static,
    E: Send + 'static,
{
    fn new(shared: Arc<Shared>, handler: Arc<H>) -> Self {
        let (tell, news) = mpsc::unbounded_channel();
        let (by_partition, tasks, stop) = (BTreeMap::new(), JoinSet::new(), CancellationToken::new());
        Self { shared, handler, by_partition, tasks, stop, tell, news }
    }

    /// Gives records to their partition's worker. True where it has more than enough now.
    fn hand(&mut self, consumer: u64, slice: &Slice) -> bool {
        let fresh = |worker: &Worker| worker.fence == slice.fence;
        if !self.by_partition.get(&slice.partition).is_some_and(fresh) {
            let worker = self.hire(slice.fence);
            self.by_partition.insert(slice.partition.clone(), worker);
        }
        let Some(worker) = self.by_partition.get_mut(&slice.partition) else { return false };
        worker.open += slice.records.len();
        // A worker that is gone has said why.
        let _ = worker.records.send((consumer, slice.clone()));
        let enough = !worker.paused && worker.open >= self.shared.settings.max_poll_records as usize;
        worker.paused |= enough;
        enough
    }

    fn hire(&mut self, fence: Fence) -> Worker {
        let (records, incoming) = mpsc::unbounded_channel();
        let (shared, handler) = (Arc::clone(&self.shared), Arc::clone(&self.handler));
        let work = work(shared, handler, incoming, self.stop.clone(), self.tell.clone());
        self.tasks.spawn_on(work, &self.shared.environment.runtime);
        Worker { fence, records, open: 0, paused: false }
    }

    /// A record is handled. True where its worker can do with more again.
    fn handled(&mut self, partition: &TopicPartition, fence: Fence) -> bool {
        let Some(worker) = self.by_partition.get_mut(partition).filter(|worker| worker.fence == fence) else {
            return false;
        };
        worker.open -= 1;
        let wants = worker.paused && worker.open < self.shared.settings.max_poll_records.div_ceil(2) as usize;
        worker.paused &= !wants;
        wants
    }

    /// Lets every worker finish the record that it is at, unless close or a rebalance comes in between.
    async fn finish(&mut self, consumer: &Consumer) {
        self.stop.cancel();
        self.by_partition.clear();
        let generation = self.shared.delivery.local_generation();
        while !self.tasks.is_empty() {
            let changed = self.shared.delivery.changed();
            if consumer.state() != State::Running || self.shared.delivery.local_generation() != generation {
                return self.cancel().await;
            }
            tokio::select! {
                biased;
                Some(ended) = self.tasks.join_next() => note(ended),
                () = changed => {}
            }
        }
    }

    /// Ends all workers at their next await, and waits until they have.
    async fn cancel(&mut self) {
        self.by_partition.clear();
        self.tasks.abort_all();
        self.join().await;
        while self.news.try_recv().is_ok() {}
    }

    async fn join(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            note(ended);
        }
    }
}

/// A worker has ended. A panic of its handler goes on here.
fn note(ended: std::result::Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Handles the records of one partition under one fence.
async fn work<H, F, E>(
    shared: Arc<Shared>,
    handler: Arc<H>,
    mut incoming: mpsc::UnboundedReceiver<(u64, Slice)>,
    stop: CancellationToken,
    tell: mpsc::UnboundedSender<News<E>>,
) where
    H: Fn(Record) -> F,
    F: Future<Output = std::result::Result<(), E>>,
{
    while let Some((consumer, slice)) = incoming.recv().await {
        for index in slice.records.clone() {
            let record = Record { consumer, slice: slice.clone(), index };
            let (partition, offset) = (record.partition().clone(), record.offset());
            if stop.is_cancelled() {
                return;
            }
            if !shared.delivery.is_wanted(&slice) {
                // A seek has left it behind.
                let _ = tell.send(News::Handled(partition, slice.fence));
                continue;
            }
            let handling = AtWork::begin(&shared);
            let handled = handler(record.clone()).await;
            drop(handling);
            if let Err(error) = handled {
                let _ = tell.send(News::Failed { partition, offset, error });
                return;
            }
            if !shared.delivery.finish(&record) {
                // Its assignment has ended; the next take says so to the others.
                return;
            }
            let _ = tell.send(News::Handled(partition, slice.fence));
        }
    }
}

/// A handler at work, for `max_poll_interval_ms`.
struct AtWork<'a>(&'a Shared);

impl<'a> AtWork<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.delivery.handle();
        Self(shared)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.delivery.handled();
    }
}
