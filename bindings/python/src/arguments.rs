//! Numbers that Python's own conversions are too generous with: `True` is not a number here, and a time is not negative.

use cursus_bindings_common::Timeout;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use crate::errors::{OrRaise, invalid_argument};

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

/// How many records at most; a number beyond all counts is no limit.
pub(crate) struct MaxRecords(pub(crate) usize);

impl<'py> FromPyObject<'_, 'py> for MaxRecords {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if !value.is_instance_of::<PyInt>() || value.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err(format!("it must be an int, not {}", type_name(&value))));
        }
        if value.lt(1)? {
            let message = format!(
                "max_records={} is not accepted: it is 1 or more, or None for as many as max_poll_records says",
                value.repr()?
            );
            return Err(invalid_argument(value.py(), message));
        }
        Ok(Self(value.extract().unwrap_or(usize::MAX)))
    }
}
