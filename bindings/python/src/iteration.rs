//! Iterating over a consumer.

use cursus_bindings_common::{Timeout, Turn, guard};
use cursus_consumer::{Consumer as Core, Iteration, Result};
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::consumer::Consumer;
use crate::errors::OrRaise;
use crate::record::Record;
use crate::runtime::wait;

/// Goes through a consumer's records, one by one.
#[pyclass(frozen, module = "cursus_consumer._native")]
pub(crate) struct Records(pub(crate) Py<Consumer>);

#[pymethods]
impl Records {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        Ok(next(self.0.bind(py), Core::try_next_record, Core::give_back_record)?.map(Record::from))
    }
}

/// Goes through a consumer's records, batch by batch.
#[pyclass(frozen, module = "cursus_consumer._native")]
pub(crate) struct Batches(pub(crate) Py<Consumer>);

#[pymethods]
impl Batches {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let consumer = self.0.bind(py);
        Ok(next(consumer, Core::try_next_batch, Core::give_back)?.map(|batch| consumer.get().batch(batch)))
    }
}

/// The next of an iteration; nothing once the consumer is closed. As with poll, what an interrupt would lose goes back.
fn next<T>(
    consumer: &Bound<'_, Consumer>,
    step: impl Fn(&Core) -> Result<Iteration<T>>,
    give_back: impl Fn(&Core, &T),
) -> PyResult<Option<T>> {
    let (py, this) = (consumer.py(), consumer.get());
    let core = this.core(py)?;
    // Most of the time there is something, and then no wait has to be prepared.
    let mut changed = None;
    loop {
        let found = match this.turns.next(core, || guard(|| step(core))) {
            Turn::Free(found) => found.or_raise(py)?,
            Turn::Tell(rebalance, telling) => {
                Consumer::tell(consumer, &rebalance, telling)?;
                continue;
            }
            Turn::Wait(told) => {
                wait(py, told, Timeout::NEVER.deadline())?;
                continue;
            }
            Turn::Inside => return Err(Consumer::inside(py, "iteration")),
        };
        match found {
            Iteration::Item(item) => {
                return match py.check_signals() {
                    Ok(()) => Ok(Some(item)),
                    Err(interrupt) => {
                        give_back(core, &item);
                        Err(interrupt)
                    }
                };
            }
            Iteration::End => return Ok(None),
            Iteration::Wait => match changed.take() {
                // Made before the second look, it misses nothing that happens behind that.
                None => changed = Some(core.changed()),
                Some(changed) => {
                    let _attending = core.attend();
                    wait(py, changed, Timeout::NEVER.deadline())?;
                }
            },
        }
    }
}
