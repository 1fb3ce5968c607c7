//! `TransactionalWriter`: records and a group's offsets, all or none. The package offers it as `cursus_consumer.testing`.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cursus_bindings_common::client::by_partition;
use cursus_bindings_common::{OfProcess, Timeout, runtime as process};
use cursus_consumer::{Error, ErrorKind, Topic};
use cursus_embedded::{GroupMetadata, TransactionalWriter as Core, WriterError};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::arguments::{Seconds, Whole, type_name};
use crate::errors::{OrRaise, exception, failed, invalid_argument};
use crate::partition;
use crate::runtime::{enter, wait};

/// How long a call is tried where nothing is said.
const PATIENCE: Seconds = Seconds(Timeout::from_duration(Duration::from_secs(30)));

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, WriterError>> + Send + 'a>>;

/// Writes records, and a group's offsets with them, in transactions: all of one, or nothing. For tests and examples.
///
/// It works against any brokers, `host:port` each. One writer has one transaction at a time, and one thread uses it at
/// a time. A writer that starts later with the same transactional id takes over: whatever this one does from then on
/// raises `FencedError`. What passes by itself is tried again, for `timeout` seconds in each call.
///
/// An exception in the middle of a call, Ctrl-C for instance, leaves a transaction that can only be aborted.
#[pyclass(frozen, weakref, module = "cursus_consumer.testing")]
pub(crate) struct TransactionalWriter(OfProcess<Mutex<Option<Core>>>);

/// The writer while a call has it.
struct Lent<'a> {
    place: &'a Mutex<Option<Core>>,
    core: Option<Core>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *lock(self.place) = self.core.take();
    }
}

fn lock(place: &Mutex<Option<Core>>) -> MutexGuard<'_, Option<Core>> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TransactionalWriter {
    fn call<T: Send>(&self, py: Python<'_>, run: impl FnOnce(&mut Core) -> Answer<'_, T>) -> PyResult<T> {
        let place = self.0.get().or_raise(py)?;
        let mut lent = Lent { place, core: lock(place).take() };
        let Some(core) = &mut lent.core else {
            // It is in use, and must not be put back from here.
            std::mem::forget(lent);
            let message = "another thread is in a call of this writer: one at a time, or a writer for each";
            return Err(exception(py, &Error::new(ErrorKind::InvalidState, message)));
        };
        match wait(py, run(core), Timeout::NEVER.deadline())? {
            Some(answer) => answer.map_err(|error| failed(py, error.into())),
            None => unreachable!("a wait without an end ends with an output"),
        }
    }
}

#[pymethods]
impl TransactionalWriter {
    #[new]
    #[pyo3(
        signature = (brokers, transactional_id, *, timeout=PATIENCE),
        text_signature = "(brokers, transactional_id, *, timeout=30.0)"
    )]
    // As Python hands them over.
    #[allow(clippy::needless_pass_by_value)]
    fn new(py: Python<'_>, brokers: Vec<String>, transactional_id: &str, timeout: Seconds) -> PyResult<Self> {
        enter(py, process::handle)?;
        let core = Core::new(&brokers, transactional_id).map_err(|error| failed(py, error.into()))?;
        Ok(Self(OfProcess::new(Mutex::new(Some(core.with_timeout(timeout.0.or_for_ever()))))))
    }

    /// Begin a transaction. Raises `FencedError` where another writer has taken over.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |core| Box::pin(core.begin()))
    }

    /// Add a record to the transaction, and return the partition it will be in.
    ///
    /// That is the given one, else the one that its key has with every writer, else the next in turn. The value is
    /// text, without white space at its ends; the key is one word.
    #[pyo3(signature = (topic, value, *, key=None, partition=None))]
    fn publish(
        &self,
        py: Python<'_>,
        topic: &str,
        value: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        partition: Option<Whole<u32>>,
    ) -> PyResult<u32> {
        let (value, key) = (text("value", value)?, key.map(|key| text("key", key)).transpose()?.unwrap_or_default());
        let topic = topic.to_owned();
        self.call(py, |core| {
            Box::pin(async move { core.publish(&topic, &key, &value, partition.map(|partition| partition.0)).await })
        })
    }

    /// Add a group's offsets to the transaction: for each partition the next one to read.
    ///
    /// `metadata` says whose: its `group`, `topic`, `member` and `generation`. Raises `BrokerResponseError` where that
    /// member doesn't have the partitions, or no longer; then abort.
    fn send_offsets(&self, py: Python<'_>, metadata: &Bound<'_, PyAny>, offsets: &Bound<'_, PyAny>) -> PyResult<()> {
        let metadata = GroupMetadata {
            group: metadata.getattr("group")?.extract()?,
            topic: metadata.getattr("topic")?.extract()?,
            member: metadata.getattr("member")?.extract()?,
            generation: metadata.getattr("generation")?.extract::<Whole<u64>>()?.0,
        };
        let Ok(Some(offsets)) = partition::offsets(offsets) else {
            let name = type_name(offsets);
            return Err(PyTypeError::new_err(format!("offsets are a mapping from partitions to numbers, not {name}")));
        };
        let topic = Topic::new(&metadata.topic).map_err(|problem| invalid_argument(py, problem.to_string()))?;
        let mut numbers = BTreeMap::new();
        for (partition, offset) in by_partition(offsets, &topic).or_raise(py)? {
            if partition.topic != topic {
                let message = format!("{partition} is not of {topic}, the topic that the group reads");
                return Err(invalid_argument(py, message));
            }
            numbers.insert(partition.partition, offset);
        }
        self.call(py, |core| Box::pin(async move { core.send_offsets(&metadata, numbers).await }))
    }

    /// Commit the transaction.
    ///
    /// Raises `BrokerResponseError` where the brokers refuse it: then nothing was written, and it can be aborted.
    /// Raises `CommitOutcomeUnknownError` where no answer came: call it again to learn more.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |core| Box::pin(core.commit()))
    }

    /// Drop the transaction: nothing of it is written.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |core| Box::pin(core.abort()))
    }

    /// Return a context in which a transaction is open: committed at the end, aborted by an exception.
    ///
    /// A commit that is refused aborts it too. One whose outcome is unknown doesn't: call `commit` to learn more.
    fn transaction(slf: Py<Self>) -> Transaction {
        Transaction(slf)
    }

    fn __repr__(&self) -> String {
        match self.0.get() {
            Ok(place) => match &*lock(place) {
                Some(core) => format!("<TransactionalWriter {}>", core.transactional_id()),
                None => "<TransactionalWriter in a call>".to_owned(),
            },
            Err(_) => "<TransactionalWriter of another process>".to_owned(),
        }
    }
}

/// What the protocol takes: text.
fn text(what: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = value.cast::<PyString>() {
        return text.extract();
    }
    let Ok(bytes) = value.cast::<PyBytes>() else {
        return Err(PyTypeError::new_err(format!("the {what} is str or bytes, not {}", type_name(value))));
    };
    String::from_utf8(bytes.as_bytes().to_vec()).map_err(|error| {
        invalid_argument(value.py(), format!("a transaction takes text, and the {what} is none: {error}"))
    })
}

/// A transaction, as a context: committed at the end, aborted by an exception.
#[pyclass(frozen, module = "cursus_consumer.testing")]
pub(crate) struct Transaction(Py<TransactionalWriter>);

#[pymethods]
impl Transaction {
    /// Add a record: see `TransactionalWriter.publish`.
    #[pyo3(signature = (topic, value, *, key=None, partition=None))]
    fn publish(
        &self,
        py: Python<'_>,
        topic: &str,
        value: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        partition: Option<Whole<u32>>,
    ) -> PyResult<u32> {
        self.0.get().publish(py, topic, value, key, partition)
    }

    /// Add a group's offsets: see `TransactionalWriter.send_offsets`.
    fn send_offsets(&self, py: Python<'_>, metadata: &Bound<'_, PyAny>, offsets: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.get().send_offsets(py, metadata, offsets)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().0.get().begin(slf.py())?;
        Ok(slf)
    }

    #[pyo3(signature = (*exception), text_signature = "($self, *exception)")]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let writer = self.0.get();
        let ended = exception.get_item(0).is_ok_and(|class| class.is_none());
        let committed = if ended { writer.commit(py) } else { Ok(()) };
        if ended && committed.is_ok() {
            return Ok(());
        }
        match writer.abort(py) {
            // What ended the transaction is what matters; the next one drops what this one left.
            Err(error) if error.is_instance_of::<PyException>(py) => committed,
            Ok(()) => committed,
            Err(interrupt) => Err(interrupt),
        }
    }
}
