//! `PendingCommit`: a commit that nobody waits for, until somebody does.

use cursus_bindings_common::{OfProcess, Pending};
use cursus_consumer::{Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::arguments::Seconds;
use crate::errors::OrRaise;
use crate::runtime::{enter, wait};

/// A commit that was handed over. It is carried out whether anybody asks or not, also if this is dropped.
///
/// A commit that nobody asks about fails in silence; what isn't committed is delivered again after a rebalance or a
/// restart.
#[pyclass(frozen, weakref, module = "cursus_consumer")]
pub(crate) struct PendingCommit(OfProcess<Pending<()>>);

impl PendingCommit {
    pub(crate) fn of(py: Python<'_>, commit: impl Future<Output = Result<()>> + Send + 'static) -> PyResult<Self> {
        enter(py, || Pending::of(commit)).map(|pending| Self(OfProcess::new(pending)))
    }
}

#[pymethods]
impl PendingCommit {
    /// Tell whether the outcome is known, a failure included. Never waits.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.get().or_raise(py)?.outcome().is_some())
    }

    /// Wait until the group's coordinator has taken the commit, and raise what `commit` would where it hasn't.
    ///
    /// Raises `TimedOutError` where the outcome isn't known in the time: the commit goes on, and may be asked again.
    /// Any number of threads may wait, each as often as it likes.
    #[pyo3(signature = (timeout=Seconds::NEVER), text_signature = "($self, timeout=None)")]
    fn result(&self, py: Python<'_>, timeout: Seconds) -> PyResult<()> {
        let pending = self.0.get().or_raise(py)?;
        match wait(py, pending.done(), timeout.0.deadline())? {
            Some(outcome) => outcome.or_raise(py),
            None => {
                let message = "the commit's outcome isn't known yet. It goes on: ask again";
                Err(Error::new(ErrorKind::TimedOut, message)).or_raise(py)
            }
        }
    }

    fn __repr__(&self) -> String {
        let outcome = self.0.get().map(Pending::outcome);
        match outcome {
            Err(_) => "<PendingCommit of another process>".to_owned(),
            Ok(None) => "<PendingCommit, under way>".to_owned(),
            Ok(Some(Ok(()))) => "<PendingCommit, done>".to_owned(),
            Ok(Some(Err(error))) => format!("<PendingCommit, failed with {}>", error.kind().row().name),
        }
    }
}
