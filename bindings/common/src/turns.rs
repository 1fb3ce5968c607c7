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
