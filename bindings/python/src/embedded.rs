//! `EmbeddedCluster`: a cluster in this process, for tests. The package offers it as `cursus_consumer.testing`, with methods
//! that are generated from its table of commands. Here is what that table can't have: a constructor, records as bytes, a
//! condition in Python, holds that end with their object, and questions about a broker that there isn't.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cursus_bindings_common::testing::{Failed, TestCluster};
use cursus_bindings_common::{OfProcess, Timeout, runtime as process};
use cursus_consumer::{Error, ErrorKind};
use cursus_embedded::control_port::{Kind, TABLE};
use cursus_embedded::{Cluster, NewRecord, Options};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyList, PyString, PyTuple};
use serde_json::{Map, Value};

use crate::arguments::{Seconds, Whole, type_name};
use crate::errors::{OrRaise, exception, failed};
use crate::runtime::{detached, enter, wait};

/// How long a test waits for something where nothing is said.
const PATIENCE: Seconds = Seconds(Timeout::from_duration(Duration::from_secs(10)));

/// What `cursus_consumer.testing.EmbeddedCluster` is made from: all that its table of commands can't have.
#[pyclass(frozen, weakref, subclass, module = "cursus_consumer._native")]
pub(crate) struct EmbeddedCluster(TestCluster);

impl EmbeddedCluster {
    fn cluster(&self, py: Python<'_>) -> PyResult<&Cluster> {
        self.0.cluster().or_raise(py)
    }

    /// Something that a cluster can be told, with the interpreter released: much of it takes a while.
    fn control<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&TestCluster) -> Result<T, Failed> + Send,
    ) -> PyResult<T> {
        self.cluster(py)?;
        detached(py, || {
            let runtime = process::handle()?;
            let _entered = runtime.enter();
            Ok(ask(&self.0))
        })?
        .map_err(|error| failed(py, error))
    }
}

fn forever<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let output = wait(py, future, Timeout::NEVER.deadline())?;
    Ok(output.expect("a wait without an end ends with an output"))
}

#[pymethods]
impl EmbeddedCluster {
    #[new]
    #[pyo3(
        signature = (
            *, brokers=Whole(3), session_timeout_ms=Whole(10_000), expiry_check_ms=Whole(5_000),
            leader_election_ms=Whole(500), coordinator_commit_lag_ms=Whole(0), idle_timeout_ms=Whole(60_000),
            port=None, advertised_host=None, advertised=None
        ),
        text_signature = "(*, brokers=3, session_timeout_ms=10000, expiry_check_ms=5000, leader_election_ms=500, \
                          coordinator_commit_lag_ms=0, idle_timeout_ms=60000, port=None, advertised_host=None, \
                          advertised=None)"
    )]
    // As many as there are options, each by its name.
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        brokers: Whole<usize>,
        session_timeout_ms: Whole<u64>,
        expiry_check_ms: Whole<u64>,
        leader_election_ms: Whole<u64>,
        coordinator_commit_lag_ms: Whole<u64>,
        idle_timeout_ms: Whole<u64>,
        port: Option<Whole<u16>>,
        advertised_host: Option<String>,
        advertised: Option<BTreeMap<Whole<usize>, String>>,
    ) -> PyResult<Self> {
        let options = Options {
            brokers: brokers.0,
            session_timeout: Duration::from_millis(session_timeout_ms.0),
            expiry_check: Duration::from_millis(expiry_check_ms.0),
            leader_election: Duration::from_millis(leader_election_ms.0),
            coordinator_commit_lag: Duration::from_millis(coordinator_commit_lag_ms.0),
            idle_timeout: Duration::from_millis(idle_timeout_ms.0),
            port: port.map(|port| port.0),
            advertised_host,
            advertised: advertised.unwrap_or_default().into_iter().map(|(broker, it)| (broker.0, it)).collect(),
            ..Options::default()
        };
        enter(py, process::handle)?;
        forever(py, TestCluster::start(options))?.map(Self).map_err(|error| failed(py, error))
    }

    /// Where the brokers listen, as `host:port`, for a consumer's `brokers`.
    #[getter]
    fn brokers(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.cluster(py)?.brokers())
    }

    /// Carry out a command of the cluster's table, and return its answer. The methods generated from it do.
    #[pyo3(name = "_call", signature = (command, /, **arguments))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        command: &str,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.cluster(py)?;
        let arguments = given(command, arguments)?;
        python(py, &forever(py, self.0.call(command, arguments))?.map_err(|error| failed(py, error))?)
    }

    /// Write records, and give the offset behind the last one of each partition that was written to.
    ///
    /// A record is its value, or a pair of key and value. Without a partition records with a key go where their key
    /// always goes, and those without one are dealt out in turn.
    #[pyo3(signature = (topic, records, partition=None))]
    fn produce(
        &self,
        py: Python<'_>,
        topic: &str,
        records: &Bound<'_, PyAny>,
        partition: Option<Whole<u32>>,
    ) -> PyResult<BTreeMap<u32, u64>> {
        let records = new_records(records)?;
        self.control(py, |test| test.produce(topic, records, partition.map(|partition| partition.0)))
    }

    /// Write records of an aborted transaction and its control record, and give the offset behind that.
    ///
    /// Records are as for `produce`. Committed readers see none of it. Today's brokers write nothing when a transaction
    /// is aborted; their format allows it.
    fn append_aborted(
        &self,
        py: Python<'_>,
        topic: &str,
        records: &Bound<'_, PyAny>,
        partition: Whole<u32>,
    ) -> PyResult<u64> {
        let records = new_records(records)?;
        self.control(py, |test| Ok(test.cluster()?.append_aborted(topic, partition.0, records)?))
    }

    /// Tell whether a broker runs; a paused one does.
    fn is_running(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<bool> {
        Ok(self.cluster(py)?.is_running(broker.0))
    }

    /// Tell whether a broker is paused.
    fn is_paused(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<bool> {
        Ok(self.cluster(py)?.is_paused(broker.0))
    }

    /// Count the connections that a broker has.
    fn connections(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<usize> {
        Ok(self.cluster(py)?.connections(broker.0))
    }

    /// Hold the next of a command until the hold is released.
    fn hold(&self, py: Python<'_>, command: &str) -> PyResult<Hold> {
        self.control(py, |test| {
            let cluster = test.cluster()?;
            // Failing it no times changes nothing, and tells whether there is such a command.
            cluster.fail_next(command, 0, "")?;
            Ok(Hold(OfProcess::new(Mutex::new(Some(cluster.hold(command))))))
        })
    }

    /// Wait until `condition()` is true. It is called now and after every change in the cluster.
    ///
    /// Raises `TimedOutError` where that takes longer than `timeout`.
    #[pyo3(signature = (condition, timeout=PATIENCE), text_signature = "($self, condition, timeout=10.0)")]
    fn wait_for(&self, py: Python<'_>, condition: &Bound<'_, PyAny>, timeout: Seconds) -> PyResult<()> {
        let cluster = self.cluster(py)?;
        let condition = condition.clone().unbind();
        let failure = Mutex::new(None);
        let holds = |_: &Cluster| {
            Python::attach(|py| {
                let answer = condition.bind(py).call0().and_then(|answer| answer.is_truthy());
                answer.unwrap_or_else(|error| {
                    // It ends the wait; what it was is raised behind it.
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    true
                })
            })
        };
        let held = wait(py, cluster.wait_for("a condition in Python", holds), timeout.0.deadline())?;
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None if held.is_some() => Ok(()),
            None => {
                let message = format!("the condition did not come true in time; there is {cluster:?}");
                Err(exception(py, &Error::new(ErrorKind::TimedOut, message)))
            }
        }
    }

    /// End all brokers. What is still asked of the cluster afterwards is answered from what it was.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        forever(py, self.cluster(py)?.stop())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().cluster(slf.py())?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception), text_signature = "($self, *exception)")]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.stop(py)
    }

    fn __repr__(&self) -> String {
        match self.0.cluster() {
            Ok(cluster) => format!("<EmbeddedCluster of {}>", cluster.brokers().join(", ")),
            Err(_) => "<EmbeddedCluster of another process>".to_owned(),
        }
    }
}

/// What a command is given, by the kinds of its arguments.
fn given(command: &str, arguments: Option<&Bound<'_, PyDict>>) -> PyResult<Map<String, Value>> {
    let (Some(arguments), Some(row)) = (arguments, TABLE.iter().find(|row| row.name == command)) else {
        return Ok(Map::new());
    };
    let mut given = Map::new();
    for argument in row.arguments {
        let Some(value) = arguments.get_item(argument.name)? else { continue };
        if value.is_none() && argument.is_optional() && argument.default().is_none() {
            continue;
        }
        let read = match argument.kind {
            Kind::Number => value.extract::<Whole<u32>>().map(|number| number.0.into()),
            Kind::Large | Kind::Millis => value.extract::<Whole<u64>>().map(|number| number.0.into()),
            Kind::Text => value.extract::<String>().map(Value::String),
            Kind::Records => Err(PyTypeError::new_err("records are given to methods of their own")),
        };
        let read = read.map_err(|error| of_argument(&value, argument.name, error))?;
        given.insert(argument.name.to_owned(), read);
    }
    Ok(given)
}

/// Names the argument of a wrong type, as methods in Rust do.
fn of_argument(value: &Bound<'_, PyAny>, name: &str, error: PyErr) -> PyErr {
    let py = value.py();
    if error.get_type(py).is(py.get_type::<PyTypeError>()) {
        return PyTypeError::new_err(format!("argument '{name}': {}", error.value(py)));
    }
    error
}

fn python<'py>(py: Python<'py>, answer: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match answer {
        Value::Null => py.None().into_bound(py),
        Value::Bool(truth) => PyBool::new(py, *truth).to_owned().into_any(),
        Value::Number(number) => match number.as_u64() {
            Some(number) => number.into_pyobject(py)?.into_any(),
            None => number.as_f64().into_pyobject(py)?.into_any(),
        },
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Array(entries) => {
            let entries: Vec<_> = entries.iter().map(|entry| python(py, entry)).collect::<PyResult<_>>()?;
            PyList::new(py, entries)?.into_any()
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            for (name, value) in fields {
                dict.set_item(name, python(py, value)?)?;
            }
            dict.into_any()
        }
    })
}

fn new_records(records: &Bound<'_, PyAny>) -> PyResult<Vec<NewRecord>> {
    if records.is_instance_of::<PyString>() || records.is_instance_of::<PyBytes>() {
        let message = "records is a list of records, not a single one: put it into a list";
        return Err(PyTypeError::new_err(message));
    }
    records.try_iter()?.enumerate().map(|(i, record)| new_record(i, &record?)).collect()
}

fn new_record(i: usize, record: &Bound<'_, PyAny>) -> PyResult<NewRecord> {
    if let Some(value) = payload(record) {
        return Ok(NewRecord { key: Bytes::new(), value });
    }
    if let Ok((key, value)) = record.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() {
        let key_of = |key: &Bound<'_, PyAny>| if key.is_none() { Some(Bytes::new()) } else { payload(key) };
        if let (Some(key), Some(value)) = (key_of(&key), payload(&value)) {
            return Ok(NewRecord { key, value });
        }
    }
    let name = type_name(record);
    Err(PyTypeError::new_err(format!("record {i} is bytes, str or a (key, value) pair of these, not {name}")))
}

fn payload(value: &Bound<'_, PyAny>) -> Option<Bytes> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Some(Bytes::copy_from_slice(bytes.as_bytes()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return text.to_cow().ok().map(|text| Bytes::copy_from_slice(text.as_bytes()));
    }
    value.cast::<PyByteArray>().ok().map(|bytes| bytes.to_vec().into())
}

/// A hold on the next request of some command. Leaving `with` releases it.
#[pyclass(frozen, module = "cursus_consumer.testing")]
pub(crate) struct Hold(OfProcess<Mutex<Option<cursus_embedded::Hold>>>);

#[pymethods]
impl Hold {
    /// Tell whether a request is held.
    fn is_reached(&self, py: Python<'_>) -> PyResult<bool> {
        let hold = self.0.get().or_raise(py)?.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(hold.as_ref().is_some_and(cursus_embedded::Hold::is_reached))
    }

    /// Let the held request go on; without one, the hold is taken back.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        drop(self.0.get().or_raise(py)?.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception), text_signature = "($self, *exception)")]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release(py)
    }
}
