//! `TopicPartition`: what everything is keyed by.

use cursus_consumer::{Topic, TopicPartition as Partition};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::arguments::Whole;
use crate::errors::invalid_argument;

/// A partition of a topic. Hashable, ordered, and the same wherever it comes from.
#[pyclass(frozen, eq, ord, hash, module = "cursus_consumer")]
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TopicPartition(pub(crate) Partition);

impl TopicPartition {
    pub(crate) fn list<'py>(py: Python<'py>, partitions: &[Partition]) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, partitions.iter().cloned().map(Self))
    }
}

#[pymethods]
impl TopicPartition {
    #[classattr]
    fn __match_args__() -> (&'static str, &'static str) {
        ("topic", "partition")
    }

    #[new]
    #[pyo3(text_signature = "(topic, partition)")]
    fn new(py: Python<'_>, topic: &str, partition: Whole<u32>) -> PyResult<Self> {
        let topic = Topic::new(topic).map_err(|problem| invalid_argument(py, problem.to_string()))?;
        Ok(Self(Partition::new(topic, partition.0)))
    }

    /// The topic's name.
    #[getter]
    fn topic(&self) -> &str {
        self.0.topic.as_str()
    }

    /// The partition's number, from 0.
    #[getter]
    fn partition(&self) -> u32 {
        self.0.partition
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.__getnewargs__(py)?.into_any().try_iter().map(Bound::into_any)
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (self.topic(), self.partition()).into_pyobject(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let topic = self.topic().into_pyobject(py)?;
        Ok(format!("TopicPartition({}, {})", topic.repr()?, self.partition()))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }
}
