//! Arguments that Python's own conversions are too generous with: `True` is not a number here, and a time is not negative.

use std::collections::BTreeMap;

use cursus_bindings_common::Timeout;
use cursus_consumer::{Topic, TopicPartition as Partition};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyMapping, PyString};

use crate::batch::Batch;
use crate::errors::{OrRaise, invalid_argument};
use crate::partition::TopicPartition;
use crate::record::Record;

/// The name of a value's type.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

/// A time-out in seconds; `None` is for ever.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(pub(crate) Timeout);

impl Seconds {
    pub(crate) const NEVER: Self = Self(Timeout::NEVER);
}

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if value.is_none() {
            return Ok(Self::NEVER);
        }
        let is_number = value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>();
        if !is_number || value.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err(format!(
                "a timeout is a number of seconds or None, not {}",
                type_name(&value)
            )));
        }
        let py = value.py();
        let seconds = match value.extract::<f64>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
                if value.lt(0)? {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                }
            }
            other => other?,
        };
        Timeout::from_seconds(seconds).map(Self).or_raise(py)
    }
}

/// A whole number from 0 to the largest of `T`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Whole<T>(pub(crate) T);

impl<'py, T: TryFrom<u64>> FromPyObject<'_, 'py> for Whole<T> {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        if value.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("it must be an int, not bool"));
        }
        let number = match value.extract::<u64>() {
            Err(error) if !error.is_instance_of::<PyOverflowError>(py) => {
                return Err(PyTypeError::new_err(format!("it must be an int, not {}", type_name(&value))));
            }
            other => other.ok().and_then(|number| T::try_from(number).ok()),
        };
        let bits = 8 * size_of::<T>();
        number.map(Self).ok_or_else(|| {
            let shown = value.repr().map_or_else(|_| "the number".to_owned(), |shown| shown.to_string());
            invalid_argument(py, format!("{shown} is not accepted: it is a whole number from 0 to 2**{bits} - 1"))
        })
    }
}

/// A partition as a call names it: in full, or by its number alone while there is one topic.
pub(crate) enum Named {
    Full(Partition),
    Number(u32),
}

impl Named {
    pub(crate) fn of(self, topic: &Topic) -> Partition {
        match self {
            Self::Full(partition) => partition,
            Self::Number(number) => Partition::new(topic.clone(), number),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Named {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(partition) = value.cast::<TopicPartition>() {
            return Ok(Self::Full(partition.get().0.clone()));
        }
        if !value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
            let name = type_name(&value);
            return Err(PyTypeError::new_err(format!("a partition is a TopicPartition or its number, not {name}")));
        }
        Ok(Self::Number(value.extract::<Whole<u32>>()?.0))
    }
}

/// Partitions as a call names them: one, or several.
pub(crate) struct Several(Vec<Named>);

impl Several {
    pub(crate) fn of(self, topic: &Topic) -> Vec<Partition> {
        self.0.into_iter().map(|named| named.of(topic)).collect()
    }
}

impl<'py> FromPyObject<'_, 'py> for Several {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // A partition can be iterated over itself: into its topic and its number.
        if value.is_instance_of::<TopicPartition>() || value.is_instance_of::<PyInt>() {
            return Ok(Self(vec![value.extract()?]));
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
        entries.map(|entry| entry?.extract()).collect::<PyResult<_>>().map(Self)
    }
}

/// What is assigned to a consumer without a group: partitions, each with where to begin, if that is said.
pub(crate) struct Assigned(Vec<(Named, Option<u64>)>);

impl Assigned {
    pub(crate) fn of(self, py: Python<'_>, topic: &Topic) -> PyResult<BTreeMap<Partition, Option<u64>>> {
        by_partition(py, self.0, topic)
    }
}

impl<'py> FromPyObject<'_, 'py> for Assigned {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(offsets) = value.cast::<PyMapping>() {
            let start = |item: Bound<'py, PyAny>| {
                let (partition, offset): (Bound<'py, PyAny>, Bound<'py, PyAny>) = item.extract()?;
                let offset = offset.extract::<Option<Whole<u64>>>()?.map(|offset| offset.0);
                Ok((partition.extract()?, offset))
            };
            return offsets.items()?.iter().map(start).collect::<PyResult<_>>().map(Self);
        }
        let several = value.extract::<Several>()?;
        Ok(Self(several.0.into_iter().map(|named| (named, None)).collect()))
    }
}

/// What a commit is given.
pub(crate) enum Committed<'py> {
    All,
    Batch(Bound<'py, Batch>),
    Record(Bound<'py, Record>),
    Offsets(Vec<(Named, u64)>),
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
        if let Ok(offsets) = value.cast::<PyDict>() {
            return offsets.iter().map(pair).collect::<PyResult<_>>().map(Self::Offsets);
        }
        if let Ok(offsets) = value.cast::<PyMapping>() {
            let items = offsets.items()?;
            return items.iter().map(|item| pair(item.extract()?)).collect::<PyResult<_>>().map(Self::Offsets);
        }
        let hint = if value.is_none() { ". To commit all that poll has returned, give nothing" } else { "" };
        Err(PyTypeError::new_err(format!(
            "a commit is of a Batch, a Record or a mapping from partitions to offsets, not {}{hint}",
            type_name(&value)
        )))
    }
}

fn pair<'py>((partition, offset): (Bound<'py, PyAny>, Bound<'py, PyAny>)) -> PyResult<(Named, u64)> {
    Ok((partition.extract()?, offset.extract::<Whole<u64>>()?.0))
}

/// Offsets by partition, each partition once.
pub(crate) fn by_partition<T>(
    py: Python<'_>,
    offsets: Vec<(Named, T)>,
    topic: &Topic,
) -> PyResult<BTreeMap<Partition, T>> {
    let mut all = BTreeMap::new();
    for (partition, offset) in offsets {
        let partition = partition.of(topic);
        if all.insert(partition.clone(), offset).is_some() {
            return Err(invalid_argument(py, format!("{partition} is given twice")));
        }
    }
    Ok(all)
}
