//! How what is there is compared with what should be, and waited for.

use std::time::Duration;

use cursus_consumer::{Consumer, Error, TopicPartition};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::format::{Check, Failure};
use crate::world::{World, locked};

/// The numbers of partitions, in order.
pub(crate) fn numbers(partitions: &[TopicPartition]) -> Vec<u32> {
    let mut numbers: Vec<u32> = partitions.iter().map(|partition| partition.partition).collect();
    numbers.sort_unstable();
    numbers
}

/// Looks at a consumer until what is found is right.
pub(crate) async fn becomes(
    consumer: &Consumer,
    within: Duration,
    mut look: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let deadline = Instant::now() + within;
    loop {
        let changed = consumer.driver().changed();
        match look() {
            Err(problem) if Instant::now() >= deadline => return Err(problem),
            // Not every statistic wakes pollers: the time limit only bounds how late it is seen.
            Err(_) => drop(timeout(Duration::from_millis(10), changed).await),
            Ok(()) => return Ok(()),
        }
    }
}

impl World {
    /// The same of the cluster.
    pub(crate) async fn cluster_becomes(
        &self,
        within: Duration,
        mut look: impl FnMut(&Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut last = Ok(());
        let right = self.cluster.wait_for("what a step expects", |_| {
            last = look(self);
            last.is_ok()
        });
        let _ = timeout(within, right).await;
        last
    }

    /// Whether an error is the one that was to come, or none.
    pub(crate) fn outcome(&self, result: Result<(), &Error>, expected: Option<&Failure>) -> Result<(), String> {
        let (error, expected) = match (result, expected) {
            (Ok(()), None) => return Ok(()),
            (Err(error), None) => return Err(format!("it failed with {error:?}")),
            (Ok(()), Some(expected)) => return Err(format!("it went well, and {} was to come", expected.code)),
            (Err(error), Some(expected)) => (error, expected),
        };
        if error.kind().row().name != expected.code {
            return Err(format!("{} was to come, and it was {error:?}", expected.code));
        }
        let lists = [("stale", &expected.stale, error.stale()), ("owned", &expected.owned, error.still_owned())];
        for (what, expected, found) in lists {
            let found = numbers(found);
            if expected.as_ref().is_some_and(|expected| *expected != found) {
                return Err(format!("the {what} partitions are {found:?}: {error:?}"));
            }
        }
        let mut words = expected.says.iter().map(|word| self.filled_in(word));
        match words.find(|word| !error.message().contains(word)) {
            Some(word) => Err(format!("the error doesn't say {word:?}: {error:?}")),
            None => Ok(()),
        }
    }

    /// Whether a value is right.
    pub(crate) fn check(&self, what: &str, found: &Value, check: &Check) -> Result<(), String> {
        let remembered = |name: &str| {
            let value = locked(&self.remembered).get(name).cloned();
            value.ok_or_else(|| format!("nothing was remembered as {name:?}"))
        };
        let number = found.as_f64();
        #[expect(clippy::cast_precision_loss, reason = "no case counts that far")]
        let right = match check {
            Check::Equal(value) => found == value,
            Check::AtLeast(least) => number.is_some_and(|number| number >= *least as f64),
            Check::AtMost(most) => number.is_some_and(|number| number <= *most as f64),
            Check::Present(present) => found.is_null() != *present,
            Check::Says(word) => found.as_str().is_some_and(|text| text.contains(word)),
            Check::SameAs(name) => *found == remembered(name)?,
            Check::DiffersFrom(name) => *found != remembered(name)?,
        };
        if right { Ok(()) } else { Err(format!("{what} is {found}, and should be {check:?}")) }
    }
}

/// The same for a plain value.
pub(crate) fn equal(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what} is {found}, and should be {expected}")) }
}
