//! `Record`: a view into the frame that it came in, until its bytes are asked for.

use std::hash::{Hash, Hasher};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::partition::TopicPartition;

/// A record. Its key and value become `bytes` when they are first asked for, and not before.
///
/// Equal records are of the same place and have the same bytes.
#[pyclass(frozen, eq, hash, module = "cursus_consumer")]
pub(crate) struct Record {
    pub(crate) record: cursus_consumer::Record,
    key: PyOnceLock<Py<PyBytes>>,
    value: PyOnceLock<Py<PyBytes>>,
}

impl From<cursus_consumer::Record> for Record {
    fn from(record: cursus_consumer::Record) -> Self {
        Self { record, key: PyOnceLock::new(), value: PyOnceLock::new() }
    }
}

/// Equal records are of the same place and have the same bytes.
impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        let (this, other) = (&self.record, &other.record);
        let payload = |record: &cursus_consumer::Record| (record.key(), record.value());
        this.offset() == other.offset() && this.partition() == other.partition() && payload(this) == payload(other)
    }
}

impl Hash for Record {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.record.partition(), self.record.offset()).hash(hasher);
    }
}

#[pymethods]
impl Record {
    /// The topic's name.
    #[getter]
    fn topic(&self) -> &str {
        self.record.partition().topic.as_str()
    }

    /// The partition's number.
    #[getter]
    fn partition(&self) -> u32 {
        self.record.partition().partition
    }

    /// Topic and partition together: what everything is keyed by.
    #[getter]
    fn topic_partition(&self) -> TopicPartition {
        TopicPartition(self.record.partition().clone())
    }

    /// Its position in the partition.
    #[getter]
    fn offset(&self) -> u64 {
        self.record.offset()
    }

    /// The key; empty where there is none, which the protocol doesn't tell apart.
    #[getter]
    fn key(&self, py: Python<'_>) -> Py<PyBytes> {
        self.key.get_or_init(py, || PyBytes::new(py, self.record.fields().key).unbind()).clone_ref(py)
    }

    /// The payload.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyBytes> {
        self.value.get_or_init(py, || PyBytes::new(py, self.record.fields().value).unbind()).clone_ref(py)
    }

    /// Whether it is a transaction's control record, which only `read_isolation="read_uncommitted"` shows.
    #[getter]
    fn is_control(&self) -> bool {
        self.record.is_control()
    }

    /// Copy it, so that it doesn't keep the memory alive in which the records around it came.
    ///
    /// The copy can be committed like this one.
    fn detach(&self) -> Self {
        self.record.detach().into()
    }

    fn __repr__(&self) -> String {
        let fields = self.record.fields();
        format!(
            "<Record {}@{}, key of {} bytes, value of {} bytes>",
            self.record.partition(),
            fields.offset,
            fields.key.len(),
            fields.value.len()
        )
    }
}
