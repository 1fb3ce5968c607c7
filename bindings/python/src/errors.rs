//! The engine's errors as the exceptions of `cursus_consumer.errors`: each row of the core's table has a class there.

use cursus_bindings_common::guard;
#[cfg(feature = "testing")]
use cursus_bindings_common::testing::Failed;
use cursus_consumer::error::ERRORS;
use cursus_consumer::{BrokerError, Error, ErrorKind, Result, TopicPartition};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

const MODULE: &str = "cursus_consumer.errors";

/// What may have failed, as Python sees it.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error))
    }
}

/// The exception of an error.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error, error.broker()).map_or_else(|failure| failure, PyErr::from_value)
}

/// An exception for an argument that is wrong in value, not in type.
pub(crate) fn invalid_argument(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, &Error::new(ErrorKind::InvalidArgument, message))
}

/// The exception of what a cluster for tests or its writer couldn't do.
#[cfg(feature = "testing")]
pub(crate) fn failed(py: Python<'_>, failed: Failed) -> PyErr {
    let made = match failed {
        Failed::Engine(error) => return exception(py, &error),
        Failed::System(error) => return error.into(),
        Failed::Broker(error, broker) => build(py, &error, Some(&broker)),
        Failed::Fenced(message) => {
            let class = py.import("cursus_consumer.testing").and_then(|module| module.getattr("FencedError"));
            class.and_then(|class| class.call1((message,)))
        }
    };
    made.map_or_else(|failure| failure, PyErr::from_value)
}

fn build<'py>(py: Python<'py>, error: &Error, broker: Option<&BrokerError>) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import(MODULE)?;
    let more = PyDict::new(py);
    if let Some(broker) = broker {
        more.set_item("broker", broker_failure(&module, broker)?)?;
    }
    if matches!(error.kind(), ErrorKind::Rebalancing | ErrorKind::MaxPollInterval) {
        more.set_item("stale", partitions(py, error.stale())?)?;
    }
    if error.kind() == ErrorKind::Rebalancing {
        more.set_item("owned", partitions(py, error.still_owned())?)?;
    }
    module.getattr(error.kind().row().class)?.call((error.to_string(),), Some(&more))
}

/// Partitions as the package has them. Its class refuses wrong names by errors, so they can't know it the other way round.
fn partitions<'py>(py: Python<'py>, partitions: &[TopicPartition]) -> PyResult<Bound<'py, PyList>> {
    let class = py.import("cursus_consumer._native")?.getattr("TopicPartition")?;
    let all = PyList::empty(py);
    for partition in partitions {
        all.append(class.call1((partition.topic.as_str(), partition.partition))?)?;
    }
    Ok(all)
}

fn broker_failure<'py>(module: &Bound<'py, PyModule>, broker: &BrokerError) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(module.py());
    for (key, value) in &broker.fields {
        fields.set_item(key, value)?;
    }
    let class = broker.class.map(cursus_consumer::ErrorClass::name);
    let fields = (!fields.is_empty()).then_some(fields);
    module.getattr("BrokerFailure")?.call1((&broker.code, class, broker.retryable, fields))
}

/// Return the table of errors: number, code, class, retryable, fatal. For the package's tests.
#[pyfunction]
#[pyo3(name = "_error_table")]
pub(crate) fn error_table() -> Vec<(u32, &'static str, &'static str, bool, bool)> {
    ERRORS.iter().map(|row| (row.number, row.name, row.class, row.retryable, row.fatal)).collect()
}

/// Raise the error of a number with a message; without such a number it panics. For the package's tests.
#[pyfunction]
#[pyo3(name = "_raise_error")]
pub(crate) fn raise_error(py: Python<'_>, number: u32, message: &str) -> PyResult<()> {
    guard(|| {
        let row = ERRORS.iter().find(|row| row.number == number).expect("a number of the table");
        Err(Error::new(row.kind, message))
    })
    .or_raise(py)
}
