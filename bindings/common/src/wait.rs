//! Blocking waits of a language's own threads.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::runtime;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread, at most this long; nothing where it isn't ready by then. The future can be waited
/// for again: it is polled here and nowhere else, so that nothing happens between two waits.
pub fn for_at_most<F: Future>(mut future: Pin<&mut F>, time: Duration) -> Option<F::Output> {
    // The future may spawn tasks and set timers; whatever made it has made the runtime.
    let handle = runtime::handle().ok();
    let _entered = handle.as_ref().map(|handle| handle.enter());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let begun = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())?;
        // It may end for no reason: then the future is looked at once more.
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[test]
    fn a_wait_that_ends_without_an_answer_goes_on_where_it_was() {
        let mut sleep = pin!(async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            7
        });
        let begun = Instant::now();
        assert_eq!(for_at_most(sleep.as_mut(), Duration::ZERO), None);
        assert_eq!(for_at_most(sleep.as_mut(), Duration::from_millis(5)), None);
        assert_eq!(for_at_most(sleep.as_mut(), Duration::from_secs(10)), Some(7));
        assert!(begun.elapsed() >= Duration::from_millis(60));
    }
}
