//! What stops a broker's tasks without ending them.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use crate::watch;

/// Runs a future except while one of the switches is on: it isn't polled then, so nothing of it moves, as nothing moves
/// in a process that is stopped. The switches stay locked while it is polled: once one was turned on, the future does
/// nothing more. So whoever turns one on must hold no lock that the future takes.
pub(crate) async fn unless<T, const N: usize>(
    mut switches: [watch::Receiver<bool>; N],
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    loop {
        let polled = poll_fn(|context| {
            let switches = switches.each_ref().map(watch::Receiver::borrow);
            if switches.iter().any(|on| **on) {
                return Poll::Ready(None);
            }
            future.as_mut().poll(context).map(Some)
        });
        if let Some(done) = polled.await {
            return done;
        }
        for switch in &mut switches {
            if switch.wait_for(|on| !*on).await.is_err() {
                // It is on, and nobody is left to turn it off.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn while_either_switch_is_on_nothing_moves() {
        let (first, second) = (watch::Sender::new(false), watch::Sender::new(false));
        let steps = Arc::new(AtomicUsize::new(0));
        let counted = steps.clone();
        let counting = async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        };
        let task = tokio::spawn(unless::<(), 2>([first.subscribe(), second.subscribe()], counting));
        let moves = async || {
            let before = steps.load(Ordering::Relaxed);
            for _ in 0..10 {
                yield_now().await;
            }
            steps.load(Ordering::Relaxed) > before
        };
        assert!(moves().await);
        first.send_replace(true);
        assert!(!moves().await);
        second.send_replace(true);
        first.send_replace(false);
        assert!(!moves().await);
        second.send_replace(false);
        assert!(moves().await);
        first.send_replace(true);
        drop(first);
        assert!(!moves().await);
        task.abort();
    }

    #[tokio::test]
    async fn what_ends_gives_its_output() {
        let off = watch::Sender::new(false);
        assert_eq!(unless([off.subscribe()], async { 7 }).await, 7);
    }
}
