//! Taking records: what poll and the iterators do alike, with the callbacks that this calls.

use cursus_bindings_common::taking::{Batches as BatchSteps, Records as RecordSteps, Take};
use cursus_bindings_common::{Caller, Client, Step, Taking};
use cursus_consumer::Rebalance;
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::callbacks::Callback;
use crate::errors::OrRaise;
use crate::partition::TopicPartition;
use crate::record::Record;
use crate::runtime::wait;
use std::sync::Arc;

/// A consumer for those who take records from it.
pub(crate) struct Reader {
    pub(crate) client: Arc<Client>,
    pub(crate) on_assigned: Callback,
    pub(crate) on_revoked: Callback,
}

impl Reader {
    /// Waits for something and takes it. `consumer` is what callbacks are called with.
    pub(crate) fn take<S: Take>(&self, consumer: &Bound<'_, PyAny>, mut taking: Taking<S>) -> PyResult<S::Item> {
        let py = consumer.py();
        loop {
            match self.client.step(&mut taking).or_raise(py)? {
                Step::Done(item) => {
                    // An interrupt that came meanwhile would be raised as soon as this returns, and what was taken would
                    // reach nobody: it is raised here, and that goes back.
                    if let Err(interrupt) = py.check_signals() {
                        self.client.give_back(&taking, &item).or_raise(py)?;
                        return Err(interrupt);
                    }
                    return Ok(item);
                }
                Step::Tell(rebalance, telling) => {
                    self.tell(consumer, &rebalance)?;
                    drop(telling);
                }
                Step::Wait(change) => drop(wait(py, change, taking.deadline())?),
            }
        }
    }

    /// Tells of a rebalance, with nothing locked. What the callback raises is raised here, and that rebalance is told.
    pub(crate) fn tell(&self, consumer: &Bound<'_, PyAny>, rebalance: &Rebalance) -> PyResult<()> {
        let py = consumer.py();
        let (callback, partitions) = match rebalance {
            Rebalance::Revoked(partitions) => (&self.on_revoked, partitions),
            Rebalance::Assigned(partitions) => (&self.on_assigned, partitions),
        };
        if let Some(callback) = callback.get(py) {
            callback.call1(py, (consumer, TopicPartition::list(py, partitions)?))?;
        }
        Ok(())
    }

    pub(crate) fn batch(&self, batch: cursus_consumer::Batch) -> Batch {
        Batch::new(batch, Arc::downgrade(&self.client))
    }
}

/// Goes through a consumer's records, one by one.
#[pyclass(frozen, module = "cursus_consumer._native")]
pub(crate) struct Records {
    pub(crate) consumer: Py<PyAny>,
    pub(crate) reader: Arc<Reader>,
}

#[pymethods]
impl Records {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        let next = Taking::<RecordSteps>::record(Caller::this_thread());
        Ok(self.reader.take(self.consumer.bind(py), next)?.map(Record::from))
    }
}

/// Goes through a consumer's records, batch by batch.
#[pyclass(frozen, module = "cursus_consumer._native")]
pub(crate) struct Batches {
    pub(crate) consumer: Py<PyAny>,
    pub(crate) reader: Arc<Reader>,
}

#[pymethods]
impl Batches {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let next = Taking::<BatchSteps>::batch(Caller::this_thread());
        Ok(self.reader.take(self.consumer.bind(py), next)?.map(|batch| self.reader.batch(batch)))
    }
}
