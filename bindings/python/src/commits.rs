//! What a commit is given, and `PendingCommit`: one that nobody waits for, until somebody does.

use cursus_bindings_common::client::{Committed as Common, Named};
use cursus_bindings_common::{Client, OfProcess, Pending};
use cursus_consumer::{Error, ErrorKind, Result};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::arguments::{Seconds, type_name};
use crate::batch::Batch;
use crate::errors::OrRaise;
use crate::partition::offsets;
use crate::record::Record;
use crate::runtime::{enter, wait};

/// What a commit is given.
pub(crate) enum Committed<'py> {
    All,
    Batch(Bound<'py, Batch>),
    Record(Bound<'py, Record>),
    Offsets(Vec<(Named, u64)>),
}

impl Committed<'_> {
    /// Hands it over, and gives what comes of it.
    pub(crate) fn begin(
        self,
        py: Python<'_>,
        client: &Client,
        timeout: Seconds,
    ) -> PyResult<impl Future<Output = Result<()>> + Send + 'static + use<>> {
        match self {
            Self::All => client.commit(Common::All, timeout.0),
            Self::Batch(batch) => client.commit(Common::Batch(&batch.get().batch), timeout.0),
            Self::Record(record) => client.commit(Common::Record(&record.get().record), timeout.0),
            Self::Offsets(offsets) => client.commit(Common::Offsets(offsets), timeout.0),
        }
        .or_raise(py)
    }
}

impl<'py> FromPyObject<'_, 'py> for Committed<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(batch) = value.cast::<Batch>() {
            return Ok(Self::Batch(batch.to_owned()));
        }
        if let Ok(record) = value.cast::<Record>() {
            return Ok(Self::Record(record.to_owned()));
        }
        if let Some(offsets) = offsets(&value)? {
            return Ok(Self::Offsets(offsets));
        }
        let hint = if value.is_none() { ". To commit all that poll has returned, give nothing" } else { "" };
        Err(PyTypeError::new_err(format!(
            "a commit is of a Batch, a Record or a mapping from partitions to offsets, not {}{hint}",
            type_name(&value)
        )))
    }
}

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
