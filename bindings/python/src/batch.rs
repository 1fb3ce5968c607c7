//! `Batch`: an immutable sequence of records.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use cursus_bindings_common::Client;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice};

use crate::arguments::type_name;
use crate::errors::OrRaise;
use crate::group;
use crate::partition::numbers;
use crate::record::Record;

/// What one poll returned: an immutable sequence of records, in order per partition, and perhaps empty.
///
/// A slice of it is a batch too, and can be committed. It stays readable after a rebalance and after the consumer is
/// gone; what ends is the right to commit it.
#[pyclass(frozen, sequence, weakref, module = "cursus_consumer")]
pub(crate) struct Batch {
    pub(crate) batch: cursus_consumer::Batch,
    /// A batch doesn't keep its consumer from being collected.
    client: Weak<Client>,
}

impl Batch {
    pub(crate) fn new(batch: cursus_consumer::Batch, client: Weak<Client>) -> Self {
        Self { batch, client }
    }

    fn select(&self, indices: impl IntoIterator<Item = usize>) -> Self {
        Self::new(self.batch.select(indices), Weak::clone(&self.client))
    }

    /// What of it this consumer may still commit.
    pub(crate) fn owned_by(&self, py: Python<'_>, client: &Arc<Client>) -> PyResult<Self> {
        Ok(Self::new(client.owned(&self.batch).or_raise(py)?, Arc::downgrade(client)))
    }

    fn positions<'a>(&'a self, value: &'a Bound<'_, PyAny>) -> impl Iterator<Item = usize> + 'a {
        let wanted = value.cast::<Record>().ok();
        (0..self.batch.len()).filter(move |i| {
            let found = self.batch.get(*i).map(Record::from);
            found.zip(wanted).is_some_and(|(found, wanted)| found == *wanted.get())
        })
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.batch.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let len = self.batch.len();
        if let Ok(slice) = index.cast::<PySlice>() {
            let range = slice.indices(len.cast_signed())?;
            let indices = (0..range.slicelength).map(|i| (range.start + i.cast_signed() * range.step).cast_unsigned());
            return Ok(Bound::new(py, self.select(indices))?.into_any());
        }
        let index: isize = index.extract().map_err(|error: PyErr| {
            if error.is_instance_of::<PyTypeError>(py) {
                PyTypeError::new_err(format!("a batch's indices are ints or slices, not {}", type_name(index)))
            } else {
                PyIndexError::new_err("the index is out of range")
            }
        })?;
        let index = if index < 0 { index + len.cast_signed() } else { index };
        let record = usize::try_from(index).ok().and_then(|index| self.batch.get(index));
        let record = record.ok_or_else(|| PyIndexError::new_err(format!("the batch has {len} records")))?;
        Ok(Bound::new(py, Record::from(record))?.into_any())
    }

    fn __iter__(slf: Bound<'_, Self>) -> BatchIterator {
        BatchIterator { batch: slf.unbind(), next: AtomicUsize::new(0) }
    }

    /// Return the position of the first record that equals `value`.
    #[pyo3(signature = (value, start=0, stop=None))]
    fn index(&self, value: &Bound<'_, PyAny>, start: isize, stop: Option<isize>) -> PyResult<usize> {
        let len = self.batch.len().cast_signed();
        let from_end = |at: isize| if at < 0 { (at + len).max(0) } else { at };
        let range = from_end(start)..stop.map_or(len, from_end);
        let found = self.positions(value).find(|i| range.contains(&i.cast_signed()));
        found.ok_or_else(|| PyValueError::new_err("the record is not in the batch"))
    }

    /// Count the records that equal `value`.
    fn count(&self, value: &Bound<'_, PyAny>) -> usize {
        self.positions(value).count()
    }

    /// Return what committing this batch commits: partition by partition, the offset after the last record.
    fn next_offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        numbers(py, self.batch.next_offsets())
    }

    /// Return who read these records: what a transaction that commits their offsets has to name.
    ///
    /// The broker refuses it once a rebalance has come, as it refuses a commit. None for an empty batch, and for one
    /// that was read without a group.
    fn group_metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.batch.group_metadata().map(|metadata| group::metadata(py, metadata)).transpose()
    }

    /// Return the records that may still be committed: of partitions whose assignment hasn't ended since.
    fn owned(&self, py: Python<'_>) -> PyResult<Self> {
        match self.client.upgrade() {
            Some(client) => self.owned_by(py, &client),
            // Nobody is left who could commit anything.
            None => Ok(self.select([])),
        }
    }

    fn __repr__(&self) -> String {
        let partitions: Vec<_> = self.batch.partitions().iter().map(ToString::to_string).collect();
        match (self.batch.len(), partitions.is_empty()) {
            (_, true) => "<Batch, empty>".to_owned(),
            (1, _) => format!("<Batch of 1 record from {}>", partitions.join(", ")),
            (len, _) => format!("<Batch of {len} records from {}>", partitions.join(", ")),
        }
    }
}

/// Goes through a batch.
#[pyclass(frozen, module = "cursus_consumer._native")]
pub(crate) struct BatchIterator {
    batch: Py<Batch>,
    next: AtomicUsize,
}

#[pymethods]
impl BatchIterator {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> Option<Record> {
        let i = self.next.fetch_add(1, Ordering::Relaxed);
        self.batch.get().batch.get(i).map(Record::from)
    }

    fn __length_hint__(&self) -> usize {
        self.batch.get().batch.len().saturating_sub(self.next.load(Ordering::Relaxed))
    }
}
