use std::sync::Arc;
use std::time::Duration;

use cursus_net::Randomness;

/// Pauses that double up to a limit, each between half and whole, so that many clients don't come back at once.
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    attempt: u32,
    random: Arc<dyn Randomness>,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration, random: Arc<dyn Randomness>) -> Self {
        Self { first, longest, attempt: 0, random }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.first.saturating_mul(1 << self.attempt.min(20)).min(self.longest);
        self.attempt = self.attempt.saturating_add(1);
        let half = whole / 2;
        half + Duration::from_micros(self.random.below(half.as_micros() as u64 + 1))
    }

    pub(crate) fn reset(&mut self) {
        self.attempt = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_limit_and_start_short_after_a_success() {
        let random = Arc::new(cursus_net::SplitMix::seeded(1));
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2), random);
        for attempt in 0..40 {
            let whole = Duration::from_millis(50 << attempt.min(10)).min(Duration::from_secs(2));
            let pause = backoff.next();
            assert!(pause >= whole / 2 && pause <= whole, "attempt {attempt}: {pause:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(50));
    }
}
