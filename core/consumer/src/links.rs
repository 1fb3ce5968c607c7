//! The links of a consumer: one per broker for everything that isn't reading, and a bounded number per broker for reading.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cursus_wire::{Meaning, Request};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::address::Address;
use crate::link::{CallError, Link, LinkContext};
use crate::types::TopicPartition;

/// How long one broker may take to answer a question that any broker can answer before the next is asked too.
const HEDGE: Duration = Duration::from_millis(500);

pub(crate) struct Links {
    context: Arc<LinkContext>,
    runtime: Handle,
    tasks: TaskTracker,
    cancelled: CancellationToken,
    max_reading: usize,
    pool: Mutex<Pool>,
}

struct Pool {
    /// Brokers to ask, the one that answered last in front.
    known: Vec<Address>,
    control: BTreeMap<Address, Link>,
    /// The links for reading, by broker and place, with the partitions that each has served.
    reading: BTreeMap<(Address, usize), (Link, BTreeSet<TopicPartition>)>,
}

impl Links {
    pub(crate) fn new(
        context: Arc<LinkContext>,
        runtime: Handle,
        tasks: TaskTracker,
        cancelled: CancellationToken,
        bootstrap: Vec<Address>,
        max_reading: usize,
    ) -> Self {
        let pool = Pool { known: bootstrap, control: BTreeMap::new(), reading: BTreeMap::new() };
        Self { context, runtime, tasks, cancelled, max_reading, pool: Mutex::new(pool) }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, address: Address) -> Link {
        let (link, drive) = Link::open(address, Arc::clone(&self.context));
        let cancelled = self.cancelled.clone();
        self.tasks.spawn_on(async move { cancelled.run_until_cancelled_owned(drive).await }, &self.runtime);
        link
    }

    /// The link for everything that isn't reading.
    pub(crate) fn control(&self, address: &Address) -> Link {
        let mut pool = self.pool();
        match pool.control.get(address) {
            Some(link) if !link.is_dead() => link.clone(),
            _ => {
                let link = self.open(address.clone());
                pool.control.insert(address.clone(), link.clone());
                link
            }
        }
    }

    /// A link to read a partition on, and whether no other partition reads there.
    ///
    /// A connection remembers where it stands in a partition and believes that over what it is asked. So a link serves a
    /// partition once only: whoever begins anew gets a link that has never seen the partition.
    pub(crate) fn reading(&self, address: &Address, partition: &TopicPartition, sharing: usize) -> (Link, bool) {
        let mut pool = self.pool();
        let places = self.max_reading.max(1);
        let place = partition.partition as usize % places;
        let key = (address.clone(), place);
        let reusable =
            pool.reading.get(&key).is_some_and(|(link, served)| !link.is_dead() && !served.contains(partition));
        if !reusable {
            let link = self.open(address.clone());
            pool.reading.insert(key.clone(), (link, BTreeSet::new()));
        }
        let (link, served) = pool.reading.get_mut(&key).expect("it was just put there");
        served.insert(partition.clone());
        (link.clone(), sharing <= places && served.len() == 1)
    }

    /// Gives up all links for reading: the next assignment begins on fresh ones.
    pub(crate) fn retire_reading(&self) {
        self.pool().reading.clear();
    }

    /// Gives up everything.
    pub(crate) fn clear(&self) {
        let mut pool = self.pool();
        pool.reading.clear();
        pool.control.clear();
    }

    /// Remembers brokers that were named by others.
    pub(crate) fn learn<'a>(&self, addresses: impl IntoIterator<Item = &'a Address>) {
        /// A cluster has few brokers. What names more is lying.
        const MOST: usize = 1000;
        let mut pool = self.pool();
        for address in addresses {
            if !pool.known.contains(address) && pool.known.len() < MOST {
                pool.known.push(address.clone());
            }
        }
    }

    fn answered(&self, address: &Address) {
        let mut pool = self.pool();
        if let Some(at) = pool.known.iter().position(|known| known == address) {
            pool.known[..=at].rotate_right(1);
        }
    }

    /// Asks a question that any broker can answer. Brokers are asked one after the other, the next one when the one before
    /// has failed or has been silent for a while; the first real answer counts. Where all fail, an answer that is an error
    /// says more than silence.
    pub(crate) async fn ask_any<R: Request>(&self, request: &R) -> Result<(R::Reply, Address), CallError> {
        let candidates = self.pool().known.clone();
        let mut waiting = candidates.into_iter();
        let mut open = FuturesUnordered::new();
        let mut worst: Option<CallError> = None;
        let mut launch = true;
        loop {
            if launch && let Some(address) = waiting.next() {
                let link = self.control(&address);
                open.push(async move { (link.call(request, Duration::ZERO).await, address) });
            }
            if open.is_empty() {
                return Err(worst.unwrap_or_else(|| CallError::Lost("no broker is known".to_owned())));
            }
            launch = true;
            let more = waiting.len() > 0;
            tokio::select! {
                Some((result, address)) = open.next() => match result {
                    Ok(reply) => {
                        self.answered(&address);
                        return Ok((reply, address));
                    }
                    Err(CallError::Refused(error)) => match error.meaning() {
                        // A broker that is just starting, or hasn't heard yet, isn't the last word.
                        Meaning::Transient | Meaning::TopicNotFound | Meaning::Permanent => worst = Some(CallError::Refused(error)),
                        _ => return Err(CallError::Refused(error)),
                    },
                    Err(lost) => { worst.get_or_insert(lost); }
                },
                () = tokio::time::sleep(HEDGE), if more => {}
            }
        }
    }
}
