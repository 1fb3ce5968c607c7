//! Timeouts as applications give them.

use std::time::{Duration, Instant};

use cursus_consumer::{Error, ErrorKind, Result};

/// Longer than any process lives, and short enough to add to any clock.
const FOR_EVER: Duration = Duration::from_secs(50 * 365 * 24 * 3600);

/// How long a call may take. It means what it says: for ever waits for ever, zero doesn't wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeout(Option<Duration>);

impl Timeout {
    /// No limit.
    pub const NEVER: Self = Self(None);

    /// How long closing may take where nothing is said.
    pub const CLOSE: Self = Self(Some(Duration::from_secs(10)));

    /// This long.
    pub const fn from_duration(time: Duration) -> Self {
        Self(Some(time))
    }

    /// So many seconds. Negative ones and NaN are refused; more than a process can live through is for ever.
    pub fn from_seconds(seconds: f64) -> Result<Self> {
        if seconds.is_nan() || seconds < 0.0 {
            let message =
                format!("a timeout of {seconds} seconds is not accepted: it is 0 or more, or nothing to wait for ever");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(Self(Duration::try_from_secs_f64(seconds).ok().filter(|time| *time < FOR_EVER)))
    }

    /// As the engine takes it.
    pub fn limit(self) -> Option<Duration> {
        self.0
    }

    /// As a time that can be added to any clock, for calls that always have a limit.
    pub fn or_for_ever(self) -> Duration {
        self.0.unwrap_or(FOR_EVER)
    }

    /// The moment at which it is over, counted from now.
    pub fn deadline(self) -> Deadline {
        Deadline(self.0.and_then(|time| Instant::now().checked_add(time)))
    }
}

/// When a call has to end, if ever.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// How much time is left, at most `slice`.
    pub fn slice(self, slice: Duration) -> Duration {
        self.0.map_or(slice, |deadline| deadline.saturating_duration_since(Instant::now()).min(slice))
    }

    /// Whether it has passed.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|deadline| deadline <= Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_clock_can_tell_is_refused_or_for_ever() {
        for wrong in [f64::NAN, -0.001, f64::NEG_INFINITY] {
            let error = Timeout::from_seconds(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("0 or more"), "{error}");
        }
        for ever in [f64::INFINITY, f64::MAX, 1e12] {
            assert_eq!(Timeout::from_seconds(ever).unwrap(), Timeout::NEVER);
        }
        assert_eq!(Timeout::from_seconds(-0.0).unwrap().limit(), Some(Duration::ZERO));
        assert_eq!(Timeout::from_seconds(0.25).unwrap().limit(), Some(Duration::from_millis(250)));
        assert!(Instant::now().checked_add(Timeout::NEVER.or_for_ever()).is_some());
    }

    #[test]
    fn a_slice_is_never_longer_than_what_is_left() {
        let slice = Duration::from_millis(50);
        assert_eq!(Timeout::NEVER.deadline().slice(slice), slice);
        assert!(!Timeout::NEVER.deadline().is_over());
        let over = Timeout::from_seconds(0.0).unwrap().deadline();
        assert!(over.is_over() && over.slice(slice).is_zero());
        let soon = Timeout::from_seconds(0.01).unwrap().deadline();
        assert!(soon.slice(slice) <= Duration::from_millis(10));
    }
}
