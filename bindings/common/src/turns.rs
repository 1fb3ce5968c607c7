//! Callbacks about rebalances: whose turn it is to call them, and that nobody takes records meanwhile.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use cursus_consumer::{Consumer, Rebalance};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// Every rebalance is told once, by one thread at a time and in order, and what was read under an assignment is taken by
/// nobody before that assignment was told. The thread that tells holds no lock meanwhile.
#[derive(Debug, Default)]
pub struct Turns {
    /// Most consumers have no callbacks, and pay for a look at this alone.
    listening: AtomicBool,
    /// The thread that is in a callback.
    telling: Mutex<Option<ThreadId>>,
    told: Arc<Notify>,
}

/// What a thread that wants to take something has to do.
#[derive(Debug)]
pub enum Turn<'a, T> {
    /// Nothing: this is what it took.
    Free(T),
    /// To tell this first, and to ask again. Others wait until [`Telling`] is dropped.
    Tell(Rebalance, Telling<'a>),
    /// To wait for this, because another thread tells something, and to ask again.
    Wait(Pin<Box<OwnedNotified>>),
    /// To give up: it is inside of a callback itself.
    Inside,
}

/// A rebalance is being told while this lives.
#[derive(Debug)]
pub struct Telling<'a>(&'a Turns);

impl Turns {
    /// From now on every rebalance is told.
    pub fn listen(&self, consumer: &Consumer) {
        // In this order: who finds a rebalance in its way has to know that it may tell it.
        self.listening.store(true, Ordering::Release);
        consumer.listen();
    }

    /// Takes what is there, which must not wait, unless something has to be told first.
    pub fn next<T>(&self, consumer: &Consumer, take: impl FnOnce() -> T) -> Turn<'_, T> {
        if !self.listening.load(Ordering::Acquire) {
            return Turn::Free(take());
        }
        // One lock around looking and taking: otherwise another thread could begin to tell between the two.
        let mut telling = self.lock();
        match *telling {
            Some(thread) if thread == thread::current().id() => Turn::Inside,
            Some(_) => {
                let mut told = Box::pin(Arc::clone(&self.told).notified_owned());
                told.as_mut().enable();
                Turn::Wait(told)
            }
            None => match consumer.next_rebalance() {
                Some(rebalance) => {
                    *telling = Some(thread::current().id());
                    Turn::Tell(rebalance, Telling(self))
                }
                None => Turn::Free(take()),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
        self.0.told.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use cursus_consumer::Settings;
    use cursus_embedded::{Cluster, Options};

    use super::*;
    use crate::runtime;
    use crate::wait::for_at_most;

    const SOON: Duration = Duration::from_secs(20);

    /// A consumer that has just been assigned something, which waits to be told.
    fn assigned() -> (Cluster, Consumer, Turns) {
        let cluster = for_at_most(pin!(Cluster::start(Options::default())), SOON).unwrap().unwrap();
        cluster.create_topic("t", 2).unwrap();
        let settings =
            [("brokers", cluster.brokers().join(",").into()), ("topic", "t".into()), ("group_id", "g".into())];
        let consumer = Consumer::new(Settings::from_values(settings).unwrap(), runtime::environment().unwrap());
        let turns = Turns::default();
        assert!(matches!(turns.next(&consumer, || 7), Turn::Free(7)), "nobody listens");
        turns.listen(&consumer);
        for_at_most(pin!(consumer.start(None)), SOON).unwrap().unwrap();
        (cluster, consumer, turns)
    }

    #[test]
    fn nobody_takes_anything_before_the_rebalance_is_told_and_others_wait_for_that() {
        let (_cluster, consumer, turns) = assigned();
        let never = || panic!("this is not to be taken yet");
        let Turn::Tell(rebalance, telling) = turns.next(&consumer, never) else { panic!("there is something to tell") };
        assert!(matches!(rebalance, Rebalance::Assigned(partitions) if partitions.len() == 2));
        assert!(matches!(turns.next(&consumer, never), Turn::Inside), "this thread is at it");
        thread::scope(|scope| {
            let (begun, waits) = std::sync::mpsc::channel();
            let (consumer, turns) = (&consumer, &turns);
            let other = scope.spawn(move || {
                let Turn::Wait(mut told) = turns.next(consumer, never) else { panic!("another thread is at it") };
                assert!(for_at_most(told.as_mut(), Duration::ZERO).is_none());
                begun.send(()).unwrap();
                assert!(for_at_most(told.as_mut(), SOON).is_some());
                matches!(turns.next(consumer, || 7), Turn::Free(7))
            });
            waits.recv_timeout(SOON).unwrap();
            drop(telling);
            assert!(other.join().unwrap());
        });
        for_at_most(pin!(consumer.close(None)), SOON).unwrap();
        let Turn::Tell(rebalance, telling) = turns.next(&consumer, never) else { panic!("close revokes") };
        assert!(matches!(rebalance, Rebalance::Revoked(partitions) if partitions.len() == 2));
        drop(telling);
        assert!(matches!(turns.next(&consumer, || 7), Turn::Free(7)));
    }
}
