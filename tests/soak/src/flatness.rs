//! Whether a figure stays flat: what it was once everything had settled, beside what it is at the end.

use std::fmt;

/// A figure over time: seconds since the start, and the value.
pub(crate) type Series = Vec<(f64, u64)>;

/// What the values of a window were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) least: u64,
    pub(crate) median: u64,
    pub(crate) most: u64,
}

impl Window {
    /// The values between two times; nothing where there are none.
    fn of(series: &[(f64, u64)], from: f64, to: f64) -> Option<Self> {
        let within = series.iter().filter(|(at, _)| (from..=to).contains(at));
        let mut values: Vec<u64> = within.map(|(_, value)| *value).collect();
        values.sort_unstable();
        Some(Self { least: *values.first()?, median: values[values.len() / 2], most: *values.last()? })
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.least, self.median, self.most)
    }
}

/// How much a figure may grow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    /// In percent of what it was.
    pub(crate) percent: u64,
    /// And this much more.
    pub(crate) plus: u64,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.percent {
            0 => write!(f, "+{}", self.plus),
            percent => write!(f, "+{percent} % +{}", self.plus),
        }
    }
}

/// The second fifth of the time beside the last. The first fifth is for what is opened, cached and grown once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth {
    pub(crate) early: Window,
    pub(crate) late: Window,
}

impl Growth {
    /// Of a series that lasted so many seconds; nothing where a window has no value.
    pub(crate) fn of(series: &[(f64, u64)], seconds: f64) -> Option<Self> {
        let fifth = seconds / 5.0;
        let early = Window::of(series, fifth, 2.0 * fifth)?;
        let late = Window::of(series, 4.0 * fifth, seconds)?;
        Some(Self { early, late })
    }

    /// The medians decide: a fault is short and moves a maximum, and what isn't given back moves everything.
    pub(crate) fn is_within(&self, bound: Bound) -> bool {
        self.late.median <= self.early.median + self.early.median * bound.percent / 100 + bound.plus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound { percent: 10, plus: 2 };

    fn growth(value: impl Fn(u64) -> u64) -> Growth {
        let series: Series = (0..=100).map(|second| (second as f64, value(second))).collect();
        Growth::of(&series, 100.0).unwrap()
    }

    #[test]
    fn what_grows_a_little_all_the_time_is_not_flat() {
        assert!(!growth(|second| 100 + second).is_within(BOUND));
        assert!(growth(|second| 100 + second / 10).is_within(BOUND));
    }

    #[test]
    fn what_grows_at_first_and_what_rises_for_a_moment_is_flat() {
        assert!(growth(|second| second.min(20) * 50).is_within(BOUND));
        let rising = growth(|second| if second % 20 < 5 { 400 } else { 100 });
        assert!(rising.is_within(BOUND));
        assert_eq!((rising.late.median, rising.late.most), (100, 400));
    }

    #[test]
    fn a_bound_is_what_may_still_be_reached() {
        let late = |late| growth(|second| if second < 50 { 100 } else { late });
        assert!(late(112).is_within(BOUND));
        assert!(!late(113).is_within(BOUND));
        assert!(!growth(|second| second / 50 * 3).is_within(BOUND), "from nothing, too");
    }

    #[test]
    fn without_values_there_is_nothing_to_say() {
        assert!(Growth::of(&[(1.0, 5), (99.0, 5)], 100.0).is_none());
        assert!(Growth::of(&[], 100.0).is_none());
    }
}
