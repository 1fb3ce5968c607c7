//! `TopicPartition`: what everything is keyed by; and partitions as calls name them.

use cursus_bindings_common::Named as Common;
use cursus_consumer::{Topic, TopicPartition as Partition};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyInt, PyList, PyMapping, PyString, PyTuple};

use crate::arguments::{Whole, type_name};
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

/// A dictionary from partitions to numbers.
pub(crate) fn numbers(py: Python<'_>, of: impl IntoIterator<Item = (Partition, u64)>) -> PyResult<Bound<'_, PyDict>> {
    let numbers = PyDict::new(py);
    for (partition, number) in of {
        numbers.set_item(TopicPartition(partition), number)?;
    }
    Ok(numbers)
}

/// A partition as a call names it: in full, or by its number alone.
pub(crate) struct Named(pub(crate) Common);

impl<'py> FromPyObject<'_, 'py> for Named {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(partition) = value.cast::<TopicPartition>() {
            return Ok(Self(Common::Full(partition.get().0.clone())));
        }
        if !value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
            let name = type_name(&value);
            return Err(PyTypeError::new_err(format!("a partition is a TopicPartition or its number, not {name}")));
        }
        Ok(Self(Common::Number(value.extract::<Whole<u32>>()?.0)))
    }
}

/// Partitions as a call names them: one, or several.
pub(crate) struct Several(pub(crate) Vec<Common>);

impl<'py> FromPyObject<'_, 'py> for Several {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // A partition can be iterated over itself: into its topic and its number.
        if value.is_instance_of::<TopicPartition>() || value.is_instance_of::<PyInt>() {
            return Ok(Self(vec![value.extract::<Named>()?.0]));
        }
        let refused = || {
            PyTypeError::new_err(format!(
                "partitions are a TopicPartition or its number, or an iterable of those, not {}",
                type_name(&value)
            ))
        };
        // Bytes are numbers for Python, and a text is an iterable of texts.
        if value.is_instance_of::<PyBytes>()
            || value.is_instance_of::<PyByteArray>()
            || value.is_instance_of::<PyString>()
        {
            return Err(refused());
        }
        let entries = match value.try_iter() {
            Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => return Err(refused()),
            other => other?,
        };
        entries.map(|entry| Ok(entry?.extract::<Named>()?.0)).collect::<PyResult<_>>().map(Self)
    }
}

/// What is assigned to a consumer without a group: partitions, each with where to begin, if that is said.
pub(crate) struct Assigned(pub(crate) Vec<(Common, Option<u64>)>);

impl<'py> FromPyObject<'_, 'py> for Assigned {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(offsets) = value.cast::<PyMapping>() {
            let start = |(partition, offset): (Bound<'py, PyAny>, Bound<'py, PyAny>)| {
                let offset = offset.extract::<Option<Whole<u64>>>()?.map(|offset| offset.0);
                Ok((partition.extract::<Named>()?.0, offset))
            };
            return entries(&offsets, start).map(Self);
        }
        let several = value.extract::<Several>()?;
        Ok(Self(several.0.into_iter().map(|named| (named, None)).collect()))
    }
}

/// Offsets by partition, in any mapping; nothing where it is none.
pub(crate) fn offsets(value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<(Common, u64)>>> {
    let Ok(offsets) = value.cast::<PyMapping>() else { return Ok(None) };
    entries(offsets, |(partition, offset)| Ok((partition.extract::<Named>()?.0, offset.extract::<Whole<u64>>()?.0)))
        .map(Some)
}

fn entries<'py, T>(
    mapping: &Bound<'py, PyMapping>,
    entry: impl Fn((Bound<'py, PyAny>, Bound<'py, PyAny>)) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    mapping.items()?.iter().map(|item| entry(item.extract()?)).collect()
}
