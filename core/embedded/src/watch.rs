//! A value that others wait for changes of: what of [`tokio::sync::watch`] is used here, waking those who wait in the order
//! in which they came. Tokio's draws lots among them, from a generator that nobody can seed, and a simulation has to replay.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::Notify;

/// Nobody is left who could change the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

struct Shared<T> {
    value: RwLock<T>,
    version: AtomicU64,
    changed: Notify,
    senders: AtomicUsize,
}

impl<T> Shared<T> {
    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.value.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    fn is_closed(&self) -> bool {
        self.senders.load(Ordering::SeqCst) == 0
    }
}

/// Who changes the value.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// Who waits for changes.
pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The version that was looked at last.
    seen: u64,
}

/// A value, and somebody who has seen it.
pub(crate) fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    pub(crate) fn new(value: T) -> Self {
        let (value, changed) = (RwLock::new(value), Notify::new());
        Self(Arc::new(Shared { value, version: AtomicU64::new(0), changed, senders: AtomicUsize::new(1) }))
    }

    /// Somebody who has seen the present value.
    pub(crate) fn subscribe(&self) -> Receiver<T> {
        Receiver { shared: Arc::clone(&self.0), seen: self.0.version() }
    }

    /// The value, which nobody changes while the guard lives.
    pub(crate) fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    /// Changes the value, once nobody looks at it.
    pub(crate) fn send_modify(&self, change: impl FnOnce(&mut T)) {
        {
            let mut value = self.0.write();
            change(&mut value);
            self.0.version.fetch_add(1, Ordering::SeqCst);
        }
        self.0.changed.notify_waiters();
    }

    /// Replaces the value, once nobody looks at it, and gives the old one.
    pub(crate) fn send_replace(&self, mut value: T) -> T {
        self.send_modify(|old| std::mem::swap(old, &mut value));
        value
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender({:?})", self.0.read())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

impl<T> Receiver<T> {
    /// The value, which nobody changes while the guard lives.
    pub(crate) fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.shared.read()
    }

    /// The same, and it counts as seen.
    pub(crate) fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        let value = self.shared.read();
        self.seen = self.shared.version();
        value
    }

    /// Waits for a value that wasn't seen yet.
    pub(crate) async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            let version = self.shared.version();
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if self.shared.is_closed() {
                return Err(Closed);
            }
            changed.await;
        }
    }

    /// Waits for a value that fulfils the condition, which the present one may already. Where others change it meanwhile, what
    /// is given may be a later one.
    pub(crate) async fn wait_for(
        &mut self,
        mut condition: impl FnMut(&T) -> bool,
    ) -> Result<RwLockReadGuard<'_, T>, Closed> {
        loop {
            if condition(&self.borrow_and_update()) {
                return Ok(self.shared.read());
            }
            self.changed().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn those_who_wait_are_woken_in_the_order_in_which_they_came() {
        let (sender, receiver) = channel(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for i in 0..50 {
            let (mut receiver, order) = (receiver.clone(), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                receiver.changed().await.unwrap();
                order.lock().unwrap().push(i);
            }));
            tokio::task::yield_now().await;
        }
        sender.send_replace(1);
        for task in waiting {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_change_is_seen_once_and_none_after_the_last_sender() {
        let (sender, mut receiver) = channel(0);
        sender.send_replace(1);
        sender.clone().send_modify(|value| *value += 1);
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!(*receiver.wait_for(|value| *value == 2).await.unwrap(), 2);
        drop(sender);
        assert_eq!(receiver.changed().await, Err(Closed));
        assert!(receiver.wait_for(|value| *value == 3).await.is_err());
    }
}
