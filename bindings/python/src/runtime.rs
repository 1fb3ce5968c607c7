//! How Python threads enter the engine and wait for it: panics become exceptions, the interpreter is released for others
//! while nothing happens, and signals are answered.

use std::pin::pin;
use std::time::Duration;

use cursus_bindings_common::timeout::Deadline;
use cursus_bindings_common::{OfProcess, guard, wait};
use cursus_consumer::Result;
use pyo3::prelude::*;

use crate::errors::OrRaise;

/// How long a wait may go without a look at signals. The interpreter notes a signal but doesn't wake a thread that waits
/// outside of it.
const SLICE: Duration = Duration::from_millis(50);

/// Calls what doesn't wait.
#[inline]
pub(crate) fn enter<T>(py: Python<'_>, run: impl FnOnce() -> Result<T>) -> PyResult<T> {
    guard(run).or_raise(py)
}

/// Calls what may take a while without waiting for anybody, with the interpreter released.
pub(crate) fn detached<T: Send>(py: Python<'_>, run: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(|| guard(run)).or_raise(py)
}

/// Waits for a future, with the interpreter released; nothing where the deadline comes first. Signals are answered in
/// between, and after the wait: who takes something does it behind this, so that an interrupt loses nothing.
pub(crate) fn wait<F>(py: Python<'_>, future: F, deadline: Deadline) -> PyResult<Option<F::Output>>
where
    F: Future<Output: Send> + Send,
{
    let mut future = pin!(future);
    let process = OfProcess::new(());
    loop {
        let slice = deadline.slice(SLICE);
        let output = detached(py, || Ok(wait::for_at_most(future.as_mut(), slice)))?;
        py.check_signals()?;
        // A signal handler may have forked, and this be the child: nothing would ever end the wait here.
        process.get().or_raise(py)?;
        if output.is_some() || deadline.is_over() {
            return Ok(output);
        }
    }
}
