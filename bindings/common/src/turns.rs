//! Callbacks about rebalances: whose turn it is to call them, and that nobody takes records meanwhile.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cursus_consumer::Rebalance;
use cursus_consumer::driver::Driver;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// Who calls. It tells a call that is made inside of a callback from one that is made beside it.
///
/// Where a callback runs on the thread that waits for it, that is the [thread](Self::this_thread). Where all of a program
/// runs on one, it is [a new one](Self::new) for each call, and a callback's for the calls that are made inside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller(u64);

impl Caller {
    /// One that is no other.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// The thread that this is called on.
    pub fn this_thread() -> Self {
        thread_local!(static THREAD: Caller = Caller::new());
        THREAD.with(|thread| *thread)
    }
}

/// Every rebalance is told once, by one caller at a time and in order, and what was read under an assignment is taken by
/// nobody before that assignment was told. Who tells holds no lock meanwhile.
#[derive(Debug, Default, Clone)]
pub struct Turns(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Most consumers have no callbacks, and pay for a look at this alone.
    listening: AtomicBool,
    /// Who is in a callback.
    telling: Mutex<Option<Caller>>,
    told: Arc<Notify>,
}

/// What who wants to take something has to do.
#[derive(Debug)]
pub enum Turn<T> {
    /// Nothing: this is what it took.
    Free(T),
    /// To tell this first, and to ask again. Others wait until [`Telling`] is dropped.
    Tell(Rebalance, Telling),
    /// To wait for this, because another caller tells something, and to ask again.
    Wait(Pin<Box<OwnedNotified>>),
    /// To give up: it is inside of a callback itself.
    Inside,
}

/// A rebalance is being told while this lives.
#[derive(Debug)]
pub struct Telling {
    turns: Turns,
    driver: Driver,
}

impl Turns {
    /// From now on every rebalance is told.
    pub fn listen(&self, driver: &Driver) {
        // In this order: who finds a rebalance in its way has to know that it may tell it.
        self.0.listening.store(true, Ordering::Release);
        driver.listen();
    }

    /// Takes what is there, which must not wait, unless something has to be told first.
    pub fn next<T>(&self, driver: &Driver, caller: Caller, take: impl FnOnce() -> T) -> Turn<T> {
        if !self.0.listening.load(Ordering::Acquire) {
            return Turn::Free(take());
        }
        // One lock around looking and taking: otherwise another caller could begin to tell between the two.
        let mut telling = self.lock();
        match *telling {
            Some(at_it) if at_it == caller => Turn::Inside,
            Some(_) => {
                let mut told = Box::pin(Arc::clone(&self.0.told).notified_owned());
                told.as_mut().enable();
                Turn::Wait(told)
            }
            None => match driver.next_rebalance() {
                Some(rebalance) => {
                    *telling = Some(caller);
                    Turn::Tell(rebalance, Telling { turns: self.clone(), driver: driver.clone() })
                }
                None => Turn::Free(take()),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Caller>> {
        self.0.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        *self.turns.lock() = None;
        self.turns.0.told.notify_waiters();
        self.driver.told();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::thread;
    use std::time::Duration;

    use cursus_consumer::{Consumer, Settings};
    use cursus_embedded::{Cluster, Options};

    use super::*;
    use crate::runtime;
    use crate::wait::for_at_most;

    const SOON: Duration = Duration::from_secs(20);

    /// A consumer that has just been assigned something, which waits to be told.
    fn assigned() -> (Cluster, Consumer, Driver, Turns) {
        let cluster = for_at_most(pin!(Cluster::start(Options::default())), SOON).unwrap().unwrap();
        cluster.create_topic("t", 2).unwrap();
        let settings =
            [("brokers", cluster.brokers().join(",").into()), ("topic", "t".into()), ("group_id", "g".into())];
        let consumer = Consumer::new(Settings::from_values(settings).unwrap(), runtime::environment().unwrap());
        let turns = Turns::default();
        let driver = consumer.driver();
        assert!(matches!(turns.next(&driver, Caller::this_thread(), || 7), Turn::Free(7)), "nobody listens");
        turns.listen(&driver);
        for_at_most(pin!(consumer.start(None)), SOON).unwrap().unwrap();
        (cluster, consumer, driver, turns)
    }

    #[test]
    fn nobody_takes_anything_before_the_rebalance_is_told_and_others_wait_for_that() {
        let (_cluster, consumer, driver, turns) = assigned();
        let (here, never) = (Caller::this_thread(), || panic!("this is not to be taken yet"));
        let Turn::Tell(rebalance, telling) = turns.next(&driver, here, never) else {
            panic!("there is something to tell")
        };
        assert!(matches!(rebalance, Rebalance::Assigned(partitions) if partitions.len() == 2));
        assert!(matches!(turns.next(&driver, here, never), Turn::Inside), "this caller is at it");
        assert!(
            matches!(turns.next(&driver, Caller::new(), never), Turn::Wait(_)),
            "another one of the same thread waits"
        );
        thread::scope(|scope| {
            let (begun, waits) = std::sync::mpsc::channel();
            let (driver, turns) = (&driver, &turns);
            let other = scope.spawn(move || {
                let there = Caller::this_thread();
                let Turn::Wait(mut told) = turns.next(driver, there, never) else { panic!("another one is at it") };
                assert!(for_at_most(told.as_mut(), Duration::ZERO).is_none());
                begun.send(()).unwrap();
                assert!(for_at_most(told.as_mut(), SOON).is_some());
                matches!(turns.next(driver, there, || 7), Turn::Free(7))
            });
            waits.recv_timeout(SOON).unwrap();
            drop(telling);
            assert!(other.join().unwrap());
        });
        for_at_most(pin!(consumer.close(None)), SOON).unwrap();
        let Turn::Tell(rebalance, telling) = turns.next(&driver, here, never) else { panic!("close revokes") };
        assert!(matches!(rebalance, Rebalance::Revoked(partitions) if partitions.len() == 2));
        drop(telling);
        assert!(matches!(turns.next(&driver, here, || 7), Turn::Free(7)));
    }
}
