//! The cluster's clock: tokio's, and what a test has advanced it by.

use std::time::Duration;

use crate::watch;
use tokio::time::{Instant, sleep_until};

/// As far as the clock can be advanced in all: a hundred years. Any time in the cluster can still be added to that.
const FARTHEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What the brokers take for the time. It differs from tokio's only by what a test has advanced it by.
#[derive(Debug)]
pub(crate) struct Clock {
    ahead: watch::Sender<Duration>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { ahead: watch::Sender::new(Duration::ZERO) }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::now() + *self.ahead.borrow()
    }

    /// Puts the clock forward and wakes those for whom it is time.
    pub(crate) fn advance(&self, by: Duration) {
        self.ahead.send_modify(|ahead| *ahead = ahead.saturating_add(by).min(FARTHEST));
    }

    /// Waits until this clock shows `when`, by itself or because it was advanced.
    pub(crate) async fn sleep_until(&self, when: Instant) {
        let mut advanced = self.ahead.subscribe();
        loop {
            let ahead = *advanced.borrow_and_update();
            // What tokio's clock shows by then. Before its beginning is long over.
            let Some(then) = when.checked_sub(ahead) else { return };
            tokio::select! {
                biased;
                () = sleep_until(then) => return,
                // The sender lives in `self`.
                _ = advanced.changed() => {}
            }
        }
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sleeper_wakes_by_time_or_when_the_clock_is_advanced_far_enough() {
        let (clock, start) = (Clock::new(), Instant::now());
        clock.sleep(Duration::from_secs(3)).await;
        assert_eq!(start.elapsed().as_secs(), 3);
        let sleep = clock.sleep(Duration::from_secs(1_000));
        tokio::pin!(sleep);
        for _ in 0..2 {
            assert!(tokio::time::timeout(Duration::from_secs(1), &mut sleep).await.is_err());
            clock.advance(Duration::from_secs(499));
        }
        sleep.await;
        assert_eq!(start.elapsed().as_secs(), 5, "two of the thousand seconds were waited for");
        assert_eq!(clock.now().duration_since(start).as_secs(), 5 + 998);
    }

    /// The time of anything else would stand still where a test advances this one. A writer is a client, and has a
    /// client's time.
    #[test]
    fn nobody_else_in_the_crate_asks_tokio_for_the_time() {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.extend((!path.ends_with("src/writer")).then_some(path));
                } else if !path.ends_with("src/clock.rs") && !path.ends_with("tests.rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    for asking in ["Instant::now", "sleep_until, ", "timeout_at", "interval("] {
                        assert!(!text.contains(asking), "{} has {asking}; it needs the clock", path.display());
                    }
                    seen += 1;
                }
            }
        }
        assert!(seen > 20, "{seen} files aren't the whole crate");
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_stops_at_its_farthest() {
        let (clock, start) = (Clock::new(), Instant::now());
        clock.advance(Duration::MAX);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now().duration_since(start), FARTHEST);
    }
}
