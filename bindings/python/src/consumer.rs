//! `Consumer`, and iterating over one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cursus_bindings_common::{OfProcess, Timeout, ensure_open, runtime as process};
use cursus_consumer::{Commit, Consumer as Core, Error, ErrorKind, Iteration, Poll, Result, Topic};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::{Committed, Named, Seconds, by_partition};
use crate::batch::Batch;
use crate::errors::{OrRaise, exception};
use crate::partition::TopicPartition;
use crate::record::Record;
use crate::runtime::{enter, wait};
use crate::settings::settings;
use crate::statistics;

/// The engine's consumer, which belongs to the process that made it.
pub(crate) type Engine = OfProcess<Core>;

/// How long closing may take where nothing is said.
const CLOSE: Seconds = Seconds(Timeout::from_duration(Duration::from_secs(10)));

/// A member of a consumer group that reads a topic's partitions.
///
/// Settings are keyword arguments; `brokers`, `topic` and `group_id` must be given, `ConsumerSettings` lists them all.
///
/// Iterating over a consumer gives records one by one until it is closed; a rebalance is a boundary, and not an error.
/// Asking for the next record says that the one before is processed.
///
/// All methods may be called from any thread. Nothing is sent before the first of `start`, `poll`, `committed`,
/// iteration or `with`. With `enable_auto_commit`, poll or iterate from one thread only: each step says that what was
/// given out before is processed, whoever works on it.
///
/// Leaving `with` closes it; without either it is dropped: silently, and without committing anything.
///
/// Time-outs are in seconds. None waits for ever and 0 doesn't wait; Ctrl-C ends every wait, and what it had taken
/// comes again. A consumer that was closed by an error raises that error from then on, and one that was closed raises
/// `ClosedError`; a consumer that was made before a fork raises `ForkedError` in the child.
#[pyclass(frozen, weakref, module = "cursus_consumer")]
pub(crate) struct Consumer {
    engine: Arc<Engine>,
    topic: Topic,
    group: Option<String>,
    entered: AtomicBool,
}

impl Consumer {
    fn core(&self, py: Python<'_>) -> PyResult<&Core> {
        self.engine.get().or_raise(py)
    }

    /// The engine's consumer, for calls that make no sense once it is closed.
    fn open(&self, py: Python<'_>) -> PyResult<&Core> {
        let core = self.core(py)?;
        enter(py, || ensure_open(core))?;
        Ok(core)
    }

    fn batch(&self, batch: cursus_consumer::Batch) -> Batch {
        Batch::new(batch, Arc::downgrade(&self.engine))
    }

    /// Takes what is ready. An interrupt that came meanwhile would be raised as soon as poll returns, and the batch would
    /// reach nobody: it is raised here, and the batch goes back.
    fn take(&self, py: Python<'_>, poll: &Poll<'_>) -> PyResult<Option<Batch>> {
        let Some(batch) = enter(py, || poll.take())? else { return Ok(None) };
        if let Err(interrupt) = py.check_signals() {
            self.core(py)?.give_back(&batch);
            return Err(interrupt);
        }
        Ok(Some(self.batch(batch)))
    }

    /// The next of an iteration; nothing once the consumer is closed. As with poll, what an interrupt would lose goes back.
    fn next<T>(
        &self,
        py: Python<'_>,
        step: impl Fn(&Core) -> Result<Iteration<T>>,
        give_back: impl Fn(&Core, &T),
    ) -> PyResult<Option<T>> {
        let core = self.core(py)?;
        let keep = |item| match py.check_signals() {
            Ok(()) => Ok(Some(item)),
            Err(interrupt) => {
                give_back(core, &item);
                Err(interrupt)
            }
        };
        // Most of the time there is something, and then no wait has to be prepared.
        if let Iteration::Item(item) = enter(py, || step(core))? {
            return keep(item);
        }
        loop {
            let changed = core.changed();
            match enter(py, || step(core))? {
                Iteration::Item(item) => return keep(item),
                Iteration::End => return Ok(None),
                Iteration::Wait => drop(wait(py, changed, Timeout::NEVER.deadline())?),
            }
        }
    }
}

/// What of a batch may still be committed.
pub(crate) fn owned(py: Python<'_>, engine: &Arc<Engine>, batch: &Batch) -> PyResult<Batch> {
    let core = engine.get().or_raise(py)?;
    let owned = enter(py, || {
        ensure_open(core)?;
        Ok(core.owned(&batch.batch))
    })?;
    Ok(Batch::new(owned, Arc::downgrade(engine)))
}

#[pymethods]
impl Consumer {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let settings = self::settings(py, settings)?;
        enter(py, || {
            let topic = Topic::new(&settings.topic)
                .map_err(|problem| Error::new(ErrorKind::InvalidSetting, format!("topic: {problem}")))?;
            let group = settings.group_id.clone();
            let engine = Arc::new(OfProcess::new(Core::new(settings, process::environment()?)));
            Ok(Self { engine, topic, group, entered: AtomicBool::new(false) })
        })
    }

    /// Where the consumer is in its life. Readable at any time.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        statistics::state(py, self.core(py)?.state())
    }

    /// The error that closed the consumer, if one did. Readable at any time.
    #[getter]
    fn fatal_error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let error = self.core(py)?.fatal_error();
        Ok(error.map(|error| exception(py, &error).into_value(py).into_bound(py).into_any()))
    }

    /// Join the group and wait for the first assignment, an empty one included.
    ///
    /// Raises `UnreachableError` where no broker, or no coordinator, could be reached in the time. The consumer goes on
    /// trying, and so may you.
    #[pyo3(signature = (timeout=Seconds::NEVER), text_signature = "($self, timeout=None)")]
    fn start(&self, py: Python<'_>, timeout: Seconds) -> PyResult<()> {
        let core = self.core(py)?;
        // The engine keeps the time, and says what was wrong where it wasn't enough.
        let started = wait(py, core.start(timeout.0.limit()), Timeout::NEVER.deadline())?;
        started.unwrap_or(Ok(())).or_raise(py)
    }

    /// Wait for records and take them: at most `max_poll_records`, from any of the assigned partitions.
    ///
    /// The batch is empty where the time is over first. With `enable_auto_commit` this says that what the poll before
    /// returned is processed.
    ///
    /// Raises `RebalancingError` once after each rebalance; poll again to go on. Brokers out of reach raise nothing:
    /// the batch is empty, and `stats` says what is wrong and for how long. With `enable_auto_commit` a poll beside
    /// another one raises `InvalidStateError`.
    #[pyo3(signature = (timeout=Seconds::NEVER), text_signature = "($self, timeout=None)")]
    fn poll(&self, py: Python<'_>, timeout: Seconds) -> PyResult<Batch> {
        let core = self.core(py)?;
        let deadline = timeout.0.deadline();
        let poll = enter(py, || core.begin_poll())?;
        // Most of the time there is something, and then no wait has to be prepared.
        if let Some(batch) = self.take(py, &poll)? {
            return Ok(batch);
        }
        loop {
            let changed = core.changed();
            if let Some(batch) = self.take(py, &poll)? {
                return Ok(batch);
            }
            if deadline.is_over() {
                return Ok(self.batch(cursus_consumer::Batch::default()));
            }
            wait(py, changed, deadline)?;
        }
    }

    /// Commit a batch, everything up to a record, offsets by partition, or all that poll has returned.
    ///
    /// It waits until the group's coordinator has taken it. Offsets are the next ones to read; a partition's bare
    /// number is enough while there is one topic. All partitions of one call are committed, or none.
    ///
    /// Raises `RebalancingError` where a partition's assignment has ended since it was read, and then nothing was sent;
    /// `OffsetRegressionError` for a step back; `InvalidArgumentError` for records of another consumer or an offset
    /// that wasn't read; `TimedOutError` where it couldn't be sent in time and was withdrawn;
    /// `CommitOutcomeUnknownError` where it was sent and not answered in time.
    #[pyo3(
        signature = (what=Committed::All, timeout=Seconds::NEVER),
        text_signature = "($self, what=..., timeout=None)"
    )]
    fn commit(&self, py: Python<'_>, what: Committed<'_>, timeout: Seconds) -> PyResult<()> {
        let core = self.open(py)?;
        let offsets;
        let what = match what {
            Committed::All => Commit::All,
            Committed::Batch(ref batch) => Commit::Batch(&batch.get().batch),
            Committed::Record(ref record) => Commit::Record(&record.get().record),
            Committed::Offsets(given) => {
                offsets = by_partition(py, given, &self.topic)?;
                Commit::Offsets(&offsets)
            }
        };
        let outcome = enter(py, || core.begin_commit(what, timeout.0.limit()))?;
        wait(py, outcome, Timeout::NEVER.deadline())?.unwrap_or(Ok(())).or_raise(py)
    }

    /// Ask the group's coordinator what is committed for a partition; None where nothing is.
    #[pyo3(signature = (partition, timeout=Seconds::NEVER), text_signature = "($self, partition, timeout=None)")]
    fn committed(&self, py: Python<'_>, partition: Named, timeout: Seconds) -> PyResult<Option<u64>> {
        let core = self.open(py)?;
        let partition = partition.of(&self.topic);
        let answer = wait(py, core.committed(&partition, timeout.0.limit()), Timeout::NEVER.deadline())?;
        answer.unwrap_or(Ok(None)).or_raise(py)
    }

    /// Return the next offset to poll of a partition; None where it isn't assigned to this consumer.
    fn position(&self, py: Python<'_>, partition: Named) -> PyResult<Option<u64>> {
        Ok(self.open(py)?.position(&partition.of(&self.topic)))
    }

    /// Return the partitions that are this consumer's now. Readable at any time.
    fn assignment(&self, py: Python<'_>) -> PyResult<Vec<TopicPartition>> {
        Ok(self.core(py)?.assignment().into_iter().map(TopicPartition).collect())
    }

    /// Return the records of a batch that may still be committed: see `Batch.owned`.
    fn owned(&self, py: Python<'_>, batch: &Bound<'_, Batch>) -> PyResult<Batch> {
        owned(py, &self.engine, batch.get())
    }

    /// Tell what the consumer is doing right now. Readable at any time.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let core = self.core(py)?;
        statistics::statistics(py, &enter(py, || Ok(core.statistics()))?)
    }

    /// Commit what is waiting and what is proven processed, leave the group, and end everything that runs.
    ///
    /// Any number of calls from any threads are one; each returns once the consumer is closed. What couldn't be done in
    /// the time is in `stats().given_up`. A poll in progress ends with `ClosedError`, and an iteration ends.
    /// Interrupted, closing goes on in the background.
    #[pyo3(signature = (timeout=CLOSE), text_signature = "($self, timeout=10.0)")]
    fn close(&self, py: Python<'_>, timeout: Seconds) -> PyResult<()> {
        let core = self.core(py)?;
        // It always has a limit of its own; an interrupt leaves it going on by itself.
        wait(py, core.close(Some(timeout.0.or_for_ever())), Timeout::NEVER.deadline())?;
        Ok(())
    }

    /// Iterate batch by batch, until the consumer is closed. A rebalance is a boundary, and not an error.
    ///
    /// Asking for the next batch says that the one before is processed.
    fn batches(slf: Bound<'_, Self>) -> PyResult<Batches> {
        slf.get().open(slf.py())?;
        Ok(Batches(slf.unbind()))
    }

    /// Iterate record by record, until the consumer is closed. A rebalance is a boundary, and not an error.
    ///
    /// Asking for the next record says that the one before is processed.
    fn __iter__(slf: Bound<'_, Self>) -> PyResult<Records> {
        slf.get().open(slf.py())?;
        Ok(Records(slf.unbind()))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let (py, this) = (slf.py(), slf.get());
        let core = this.open(py)?;
        enter(py, || {
            if this.entered.swap(true, Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::InvalidState, "the consumer is inside of `with` already"));
            }
            core.begin()
        })?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception), text_signature = "($self, *exception)")]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py, CLOSE)
    }

    fn __repr__(&self) -> String {
        let state = self.engine.get().map_or("of another process", |core| core.state().name());
        match &self.group {
            Some(group) => format!("<Consumer of {} in group {group}, {state}>", self.topic.as_str()),
            None => format!("<Consumer of {} without a group, {state}>", self.topic.as_str()),
        }
    }
}

/// Goes through a consumer's records, one by one.
#[pyclass(frozen, module = "cursus_consumer._native")]
pub(crate) struct Records(Py<Consumer>);

#[pymethods]
impl Records {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        Ok(self.0.get().next(py, Core::try_next_record, Core::give_back_record)?.map(Record::from))
    }
}

/// Goes through a consumer's records, batch by batch.
#[pyclass(frozen, module = "cursus_consumer._native")]
pub(crate) struct Batches(Py<Consumer>);

#[pymethods]
impl Batches {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let consumer = self.0.get();
        Ok(consumer.next(py, Core::try_next_batch, Core::give_back)?.map(|batch| consumer.batch(batch)))
    }
}
