//! The links of a consumer: one per broker for everything that isn't reading, and a bounded number per broker for reading.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cursus_wire::{Meaning, Request};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::address::Address;
use super::link::{CallError, Link, LinkContext};
use super::stream::StreamAt;
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

/// What a link that isn't for reading is for. Answers come in order, so what may be slow must not stand in front of what
/// must be quick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// Joining, heartbeats, leaving: late is as good as lost.
    Membership,
    /// Commits, offsets, metadata.
    Questions,
}

struct Pool {
    /// Brokers to ask, the one that answered last in front.
    known: Vec<Address>,
    control: BTreeMap<(Address, Purpose), Link>,
    reading: BTreeMap<Address, Vec<Place>>,
}

/// A link for reading: who reads on it, and what it has ever served.
struct Place {
    link: Link,
    readers: Arc<AtomicUsize>,
    retired: Arc<AtomicBool>,
    served: BTreeSet<TopicPartition>,
}

impl Place {
    fn seat(&mut self, partition: &TopicPartition) -> Seat {
        self.served.insert(partition.clone());
        self.readers.fetch_add(1, Ordering::Relaxed);
        Seat { link: self.link.clone(), readers: Arc::clone(&self.readers), retired: Arc::clone(&self.retired) }
    }
}

/// A reader's place on a link. It is given up when the reader ends.
pub(crate) struct Seat {
    pub(crate) link: Link,
    readers: Arc<AtomicUsize>,
    retired: Arc<AtomicBool>,
}

impl Seat {
    /// Whether nobody else reads on this link, so that the broker may hold it up while there is nothing to read.
    pub(crate) fn is_alone(&self) -> bool {
        self.readers.load(Ordering::Relaxed) == 1
    }

    /// Whether the link has to make way for a fresh one: who reads on it moves.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.readers.fetch_sub(1, Ordering::Relaxed);
    }
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

    /// Where to open a stream. It has a connection of its own and counts for nothing here.
    pub(crate) fn stream_at(&self, address: &Address) -> StreamAt {
        StreamAt { address: address.clone(), context: Arc::clone(&self.context) }
    }

    /// A link that nobody else uses, for a question whose answer depends on what the connection was asked before.
    pub(crate) fn fresh(&self, address: &Address) -> Link {
        self.open(address.clone())
    }

    /// The link for a purpose other than reading.
    pub(crate) fn control(&self, address: &Address, purpose: Purpose) -> Link {
        let mut pool = self.pool();
        let key = (address.clone(), purpose);
        match pool.control.get(&key) {
            Some(link) if !link.is_dead() => link.clone(),
            _ => {
                // What is dead, and what leads to where nobody sends us any more, goes.
                let Pool { known, control, .. } = &mut *pool;
                control.retain(|(other, _), link| !link.is_dead() && (other == address || known.contains(other)));
                let link = self.open(address.clone());
                control.insert(key, link.clone());
                link
            }
        }
    }

    /// A seat to read a partition from a broker.
    ///
    /// A connection remembers where it stands in a partition and believes that over what it is asked. So a link serves a
    /// partition once only: whoever begins anew gets a link that has never seen the partition.
    pub(crate) fn seat(&self, address: &Address, partition: &TopicPartition) -> Seat {
        let mut pool = self.pool();
        let places = pool.reading.entry(address.clone()).or_default();
        places.retain(|place| !place.link.is_dead() && place.readers.load(Ordering::Relaxed) > 0);
        let full = places.len() >= self.max_reading;
        let least = |place: &&mut Place| place.readers.load(Ordering::Relaxed);
        let fresh = |place: &&mut Place| !place.served.contains(partition);
        if full && let Some(place) = places.iter_mut().filter(fresh).min_by_key(least) {
            return place.seat(partition);
        }
        if full {
            // Every link has served the partition. The one with the fewest readers makes way.
            let fewest = (0..places.len()).min_by_key(|i| places[*i].readers.load(Ordering::Relaxed)).unwrap_or(0);
            places.swap_remove(fewest).retired.store(true, Ordering::Relaxed);
        }
        let mut place = Place {
            link: self.open(address.clone()),
            readers: Arc::default(),
            retired: Arc::default(),
            served: BTreeSet::new(),
        };
        let seat = place.seat(partition);
        places.push(place);
        seat
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

    /// The next question goes to another broker than the last one.
    pub(crate) fn ask_another_first(&self) {
        let mut pool = self.pool();
        if pool.known.len() > 1 {
            pool.known.rotate_left(1);
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
    /// says more than silence, and "there is no such topic" counts only where every broker in reach says it.
    pub(crate) async fn ask_any<R: Request>(&self, request: &R) -> Result<(R::Reply, Address), CallError> {
        let candidates = self.pool().known.clone();
        let mut waiting = candidates.into_iter();
        let mut open = FuturesUnordered::new();
        let mut telling: Option<CallError> = None;
        let mut launch = true;
        loop {
            if launch && let Some(address) = waiting.next() {
                let link = self.control(&address, Purpose::Questions);
                open.push(async move { (link.call(request, Duration::ZERO).await, address) });
            }
            if open.is_empty() {
                return Err(telling.unwrap_or_else(|| CallError::Unsent("no broker is known".to_owned())));
            }
            launch = true;
            let more = waiting.len() > 0;
            tokio::select! {
                biased;
                Some((result, address)) = open.next() => match result {
                    Ok(reply) => {
                        self.answered(&address);
                        return Ok((reply, address));
                    }
                    Err(error) => {
                        if telling.as_ref().is_none_or(|other| weight(other) < weight(&error)) {
                            telling = Some(error);
                        }
                    }
                },
                () = tokio::time::sleep(HEDGE), if more => {}
            }
        }
    }
}

/// How much a failed answer says about the cluster.
fn weight(error: &CallError) -> u32 {
    match error {
        CallError::Unsent(_) | CallError::Withdrawn(_) | CallError::Lost(_) => 0,
        CallError::Corrupt(_) => 1,
        CallError::Refused(error) if error.meaning() == Meaning::TopicNotFound => 2,
        CallError::Refused(_) => 3,
    }
}
