//! Telling those who wait that something has changed: futures, for who can await, and wake-ups, for who can only be called.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::sync::futures::OwnedNotified;

use super::{Delivery, Inner};
use crate::types::State;

/// Ends at the next change of what a poll could find.
#[derive(Debug)]
pub struct Changed(Pin<Box<OwnedNotified>>);

impl Future for Changed {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

type Call = Arc<dyn Fn() + Send + Sync>;

/// Who wants to be called.
#[derive(Default)]
pub(super) struct Wakes {
    last: u64,
    all: BTreeMap<u64, Wake>,
}

struct Wake {
    call: Call,
    armed: bool,
    /// The state that it was called for last: another one is news.
    told: State,
}

impl Delivery {
    /// A future that ends at the next change. Made before looking, so that no change between the two is missed.
    pub(crate) fn changed(&self) -> Changed {
        let mut changed = Box::pin(Arc::clone(&self.ready).notified_owned());
        changed.as_mut().enable();
        Changed(changed)
    }

    /// Tells everybody who waits to look again. Never under a lock: what is called may call back.
    pub(crate) fn announce(&self) {
        self.ready.notify_waiters();
        // Who arms a wake-up looks for itself, under the lock that the change was made under. So either this sees it armed, or
        // it has seen the change.
        if self.armed.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut inner = self.lock();
        let (state, is_ready) = (inner.state, inner.is_ready());
        let news = |wake: &&mut Wake| wake.armed && (is_ready || wake.told != state);
        let calls: Vec<Call> = inner.wakes.all.values_mut().filter(news).map(|wake| wake.fire(state)).collect();
        for _ in &calls {
            inner.activity.leave();
        }
        self.armed.fetch_sub(calls.len(), Ordering::Release);
        drop(inner);
        for call in calls {
            run(&call);
        }
    }

    /// Has `call` called once for each time that the wake-up is armed.
    pub(crate) fn wake_up(self: &Arc<Self>, call: impl Fn() + Send + Sync + 'static) -> WakeUp {
        let mut inner = self.lock();
        inner.wakes.last += 1;
        let key = inner.wakes.last;
        let wake = Wake { call: Arc::new(call), armed: false, told: inner.state };
        inner.wakes.all.insert(key, wake);
        WakeUp { delivery: Arc::clone(self), key }
    }
}

impl Inner {
    /// Whether a poll, or who tells of rebalances, would find something at once.
    fn is_ready(&self) -> bool {
        self.usable().is_err() || self.has_to_raise() || !self.rebalances.is_empty() || !self.queue.is_empty()
    }
}

impl Wake {
    fn fire(&mut self, state: State) -> Call {
        self.armed = false;
        self.told = state;
        Arc::clone(&self.call)
    }
}

/// Whatever thread has made the change has its own work to do, the engine's among them.
fn run(call: &Call) {
    if catch_unwind(AssertUnwindSafe(|| call())).is_err() {
        tracing::error!("what a wake-up calls has panicked");
    }
}

/// A subscription: while it is armed, its function is called at the next change that a poll would find something by, or at
/// which the consumer's state becomes another; at once where there is something already. Each arming gives one call at most, and
/// is over with it. Dropping it ends it.
///
/// While it is armed the consumer is attended, as by an open poll: `max_poll_interval_ms` doesn't run. Once it has called it
/// does: whoever was called has to poll.
///
/// The function is called on whatever thread the change was made on, the engine's among them, and outside of every lock: it
/// should note that there is something to do and return, and may do anything that doesn't block. A panic of it is logged and ends there.
pub struct WakeUp {
    delivery: Arc<Delivery>,
    key: u64,
}

impl WakeUp {
    /// Has the function called once more. Arming one that is armed changes nothing. It doesn't start the consumer.
    pub fn arm(&self) {
        let mut inner = self.delivery.lock();
        let (state, is_ready) = (inner.state, inner.is_ready());
        let Some(wake) = inner.wakes.all.get_mut(&self.key).filter(|wake| !wake.armed) else { return };
        if is_ready || wake.told != state {
            let call = wake.fire(state);
            drop(inner);
            run(&call);
            return;
        }
        wake.armed = true;
        inner.activity.waiting += 1;
        self.delivery.armed.fetch_add(1, Ordering::Release);
    }

    /// Takes the arming back, where it hasn't been called since. A call that is on its way may still come.
    pub fn disarm(&self) {
        let mut inner = self.delivery.lock();
        let Some(wake) = inner.wakes.all.get_mut(&self.key).filter(|wake| wake.armed) else { return };
        wake.armed = false;
        inner.activity.leave();
        self.delivery.armed.fetch_sub(1, Ordering::Release);
    }

    /// Whether it is armed: whether a call is still to come.
    pub fn is_armed(&self) -> bool {
        self.delivery.lock().wakes.all.get(&self.key).is_some_and(|wake| wake.armed)
    }
}

impl Drop for WakeUp {
    fn drop(&mut self) {
        self.disarm();
        let ended = self.delivery.lock().wakes.all.remove(&self.key);
        // What ends with it may be anything, and is no business of the lock's.
        drop(ended);
    }
}

impl fmt::Debug for WakeUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WakeUp({})", if self.is_armed() { "armed" } else { "not armed" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::delivery::tests::{delivery, fence, install, push};

    fn counting(delivery: &Arc<Delivery>) -> (WakeUp, impl Fn() -> usize) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&calls);
        let wake_up = delivery.wake_up(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        (wake_up, move || calls.load(Ordering::Relaxed))
    }

    #[test]
    fn each_arming_calls_once_for_records_and_at_once_where_there_are_some() {
        let delivery = delivery(1 << 20, false);
        install(&delivery, &[(0, 0)]);
        let (wake_up, calls) = counting(&delivery);
        let fence = fence(&delivery, 0);
        push(&delivery, 0, fence, 0..1).unwrap();
        assert_eq!(calls(), 0, "it is not armed");
        wake_up.arm();
        assert_eq!(calls(), 1, "there is something already");
        assert!(!wake_up.is_armed());
        delivery.take(10).unwrap().unwrap();
        wake_up.arm();
        wake_up.arm();
        delivery.announce();
        assert_eq!(calls(), 1, "nothing a poll would find");
        push(&delivery, 0, fence, 1..2).unwrap();
        push(&delivery, 0, fence, 2..3).unwrap();
        assert_eq!(calls(), 2);
        delivery.take(1).unwrap().unwrap();
        wake_up.arm();
        assert_eq!(calls(), 3, "what the poll left is there still");
    }

    #[test]
    fn a_state_a_rebalance_and_an_end_call_too() {
        let delivery = delivery(1 << 20, false);
        let (wake_up, calls) = counting(&delivery);
        wake_up.arm();
        install(&delivery, &[(0, 0)]);
        assert_eq!(calls(), 1, "running");
        wake_up.arm();
        assert_eq!(calls(), 1);
        delivery.end_fences();
        assert_eq!(calls(), 2, "rebalancing");
        wake_up.arm();
        assert_eq!(calls(), 3, "which no poll has raised yet");
        delivery.take(1).unwrap_err();
        wake_up.arm();
        assert_eq!(calls(), 3);
        delivery.enter(State::Closing);
        assert_eq!(calls(), 4);
        wake_up.arm();
        assert_eq!(calls(), 5, "a poll would say that it is closed");
    }

    #[test]
    fn what_is_called_may_call_back_and_may_panic() {
        let delivery = delivery(1 << 20, false);
        install(&delivery, &[(0, 0)]);
        let taken = Arc::new(AtomicUsize::new(0));
        let (again, counter) = (Arc::downgrade(&delivery), Arc::clone(&taken));
        let takes = delivery.wake_up(move || {
            let batch = again.upgrade().unwrap().take(10).unwrap();
            counter.fetch_add(batch.map_or(0, |batch| batch.len()), Ordering::Relaxed);
        });
        let panics = delivery.wake_up(|| panic!("a wake-up that panics, as the test wants"));
        panics.arm();
        takes.arm();
        push(&delivery, 0, fence(&delivery, 0), 0..3).unwrap();
        assert_eq!(taken.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn while_one_is_armed_the_consumer_is_attended_and_once_it_has_called_the_time_runs() {
        let delivery = delivery(1 << 20, false);
        install(&delivery, &[(0, 0)]);
        let (wake_up, _calls) = counting(&delivery);
        let second = std::time::Duration::from_secs(1);
        let (other, _) = counting(&delivery);
        other.arm();
        wake_up.arm();
        tokio::time::advance(second).await;
        assert_eq!(delivery.silent_for(), None);
        wake_up.disarm();
        drop(other);
        tokio::time::advance(second).await;
        assert_eq!(delivery.silent_for(), Some(second), "nobody waits any more");
        wake_up.arm();
        tokio::time::advance(second).await;
        push(&delivery, 0, fence(&delivery, 0), 0..1).unwrap();
        tokio::time::advance(2 * second).await;
        assert_eq!(delivery.silent_for(), Some(2 * second), "who was called has not polled");
    }

    #[test]
    fn beside_threads_no_wake_up_is_lost_and_none_comes_twice() {
        const ROUNDS: u64 = 2000;
        let delivery = delivery(1 << 30, false);
        install(&delivery, &[(0, 0)]);
        let fence = fence(&delivery, 0);
        let (called, calls) = std::sync::mpsc::channel();
        let wake_up = delivery.wake_up(move || called.send(()).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| (0..ROUNDS).for_each(|offset| _ = push(&delivery, 0, fence, offset..offset + 1)));
            let (mut taken, mut armed) = (0, 0u64);
            while taken < ROUNDS {
                wake_up.arm();
                armed += 1;
                calls.recv_timeout(std::time::Duration::from_secs(30)).expect("a wake-up was lost");
                assert!(calls.try_recv().is_err(), "a wake-up came twice");
                taken += delivery.take(100).unwrap().map_or(0, |batch| batch.len() as u64);
            }
            assert!(armed <= ROUNDS, "each call found something");
        });
    }
}
