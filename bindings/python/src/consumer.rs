//! `Consumer`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cursus_bindings_common::{Caller, Client, Step, Taking, Timeout};
use cursus_consumer::{Error, ErrorKind, Result};
use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::{MaxRecords, Seconds, Whole};
use crate::batch::Batch;
use crate::callbacks::Callback;
use crate::commits::{Committed, PendingCommit};
use crate::errors::{OrRaise, exception};
use crate::group;
use crate::partition::{Assigned, Named, Several, TopicPartition, numbers};
use crate::reading::{Batches, Reader, Records};
use crate::record::Record;
use crate::runtime::{enter, wait};
use crate::settings::settings;
use crate::statistics;

/// How long closing may take where nothing is said.
const CLOSE: Seconds = Seconds(Timeout::CLOSE);

/// A consumer of a topic's partitions: a member of the group that shares them, or one without a group.
///
/// Settings are keyword arguments; `brokers` and `topic` must be given, `ConsumerSettings` lists them all. With a
/// `group_id` the group hands out the partitions; without one `assign` chooses them.
///
/// Iterating over a consumer gives records one by one until it is closed; a rebalance is a boundary, and not an error.
/// Asking for the next record says that the one before is processed.
///
/// All methods may be called from any thread. Nothing is sent before the first of `start`, `poll`, `assign`, iteration,
/// `with` or a question to the brokers. With `enable_auto_commit`, poll or iterate from one thread only: each step says
/// that what was given out before is processed, whoever works on it.
///
/// Leaving `with` closes it; without either it is dropped: silently, and without committing anything.
///
/// Time-outs are in seconds. None waits for ever and 0 doesn't wait; Ctrl-C ends every wait, and what it had taken
/// comes again. A consumer that was closed by an error raises that error from then on, and one that was closed raises
/// `ClosedError`; a consumer that was made before a fork raises `ForkedError` in the child.
#[pyclass(frozen, weakref, module = "cursus_consumer")]
pub(crate) struct Consumer {
    reader: Arc<Reader>,
    entered: AtomicBool,
}

impl Consumer {
    fn client(&self) -> &Client {
        &self.reader.client
    }

    fn set_callback<'py>(&self, slot: &Callback, callback: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = callback.py();
        self.client().open().or_raise(py)?;
        slot.set(&callback)?;
        self.client().listen().or_raise(py)?;
        Ok(callback)
    }
}

/// Waits for an answer. The engine keeps the time, and says what was late.
fn answer<T: Send>(py: Python<'_>, asked: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let never = || Err(Error::new(ErrorKind::Internal, "a wait without a limit ended without an answer"));
    wait(py, asked, Timeout::NEVER.deadline())?.unwrap_or_else(never).or_raise(py)
}

#[pymethods]
impl Consumer {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let settings = self::settings(py, settings)?;
        let client = Arc::new(Client::new(settings).or_raise(py)?);
        let (on_assigned, on_revoked) = (Callback::default(), Callback::default());
        let reader = Arc::new(Reader { client, on_assigned, on_revoked });
        Ok(Self { reader, entered: AtomicBool::new(false) })
    }

    /// Where the consumer is in its life. Readable at any time.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        statistics::state(py, self.client().consumer().or_raise(py)?.state())
    }

    /// The error that closed the consumer, if one did. Readable at any time.
    #[getter]
    fn fatal_error<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let error = self.client().consumer().or_raise(py)?.fatal_error();
        Ok(error.map(|error| exception(py, &error).into_value(py).into_bound(py).into_any()))
    }

    /// Join the group and wait for the first assignment, an empty one included.
    ///
    /// Raises `UnreachableError` where no broker, or no coordinator, could be reached in the time. The consumer goes on
    /// trying, and so may you.
    #[pyo3(signature = (timeout=Seconds::NEVER), text_signature = "($self, timeout=None)")]
    fn start(&self, py: Python<'_>, timeout: Seconds) -> PyResult<()> {
        answer(py, self.client().consumer().or_raise(py)?.start(timeout.0.limit()))
    }

    /// Wait for records and take them, from any of the assigned partitions.
    ///
    /// At most `max_records`, and never more than the setting `max_poll_records`; what is left is the next poll's. The
    /// batch is empty where the time is over first. With `enable_auto_commit` this says that what the poll before
    /// returned is processed.
    ///
    /// Raises `RebalancingError` once after each rebalance, and `MaxPollIntervalError` once after
    /// `max_poll_interval_ms` without a poll; poll again to go on. Brokers out of reach raise nothing: the batch is
    /// empty, and `stats` says what is wrong and for how long. With `enable_auto_commit` a poll beside another one
    /// raises `InvalidStateError`, as does a poll without a group before anything was assigned.
    #[pyo3(
        signature = (timeout=Seconds::NEVER, *, max_records=None),
        text_signature = "($self, timeout=None, *, max_records=None)"
    )]
    fn poll(slf: &Bound<'_, Self>, timeout: Seconds, max_records: Option<MaxRecords>) -> PyResult<Batch> {
        let reader = &slf.get().reader;
        let poll = Taking::poll(Caller::this_thread(), max_records.map(|most| most.0), timeout.0);
        Ok(reader.batch(reader.take(slf, poll)?))
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
        answer(py, what.begin(py, self.client(), timeout)?)
    }

    /// Hand a commit over and go on: what `commit` does, without waiting for it.
    ///
    /// What can be known at once is raised at once: a rebalance, records of another consumer, an offset that wasn't
    /// read. Those that are given while one is on its way go together in the next request. With a timeout, one that
    /// can't be sent in time is withdrawn. It is carried out whether anybody asks for the outcome or not, and `close`
    /// waits for it.
    #[pyo3(
        signature = (what=Committed::All, timeout=Seconds::NEVER),
        text_signature = "($self, what=..., timeout=None)"
    )]
    fn commit_async(&self, py: Python<'_>, what: Committed<'_>, timeout: Seconds) -> PyResult<PendingCommit> {
        PendingCommit::of(py, what.begin(py, self.client(), timeout)?)
    }

    /// Say that a record is processed, in whatever order. Never waits.
    ///
    /// What is acknowledged without a gap is committed every `auto_commit_interval_ms` and at close, so that several
    /// workers can share a batch. It is for consumers with `enable_auto_commit=False`.
    ///
    /// Raises `RebalancingError` where the partition's assignment has ended since the record was read;
    /// `InvalidStateError` with `enable_auto_commit` and without a group; `InvalidArgumentError` for a record of
    /// another consumer.
    fn ack(&self, py: Python<'_>, record: &Bound<'_, Record>) -> PyResult<()> {
        self.client().ack(&record.get().record).or_raise(py)
    }

    /// Move a partition: the next record that poll returns of it is the first one at or behind this offset.
    ///
    /// What was fetched and not yet returned is dropped. Below the committed offset nothing is committed by itself
    /// until that is passed. A rebalance forgets it.
    ///
    /// Raises `InvalidStateError` where the partition isn't assigned, and `RebalancingError` where a rebalance has just
    /// taken it.
    fn seek(&self, py: Python<'_>, partition: Named, offset: Whole<u64>) -> PyResult<()> {
        self.client().seek(partition.0, offset.0).or_raise(py)
    }

    /// Return nothing of these partitions until they are resumed, and ask for nothing new.
    ///
    /// The membership goes on, and so must polling, which returns what other partitions have. All of them are paused,
    /// or none. A rebalance forgets it. Raises what `seek` raises.
    fn pause(&self, py: Python<'_>, partitions: Several) -> PyResult<()> {
        self.client().pause(partitions.0).or_raise(py)
    }

    /// End a pause. What isn't paused stays as it is. All of them or none; raises what `seek` raises.
    fn resume(&self, py: Python<'_>, partitions: Several) -> PyResult<()> {
        self.client().resume(partitions.0).or_raise(py)
    }

    /// Return the partitions that are paused. Readable at any time.
    fn paused(&self, py: Python<'_>) -> PyResult<Vec<TopicPartition>> {
        Ok(self.client().consumer().or_raise(py)?.paused().into_iter().map(TopicPartition).collect())
    }

    /// Read these partitions, without a group: nobody shares them, and nothing is committed. Doesn't wait.
    ///
    /// A mapping says where each begins; without an offset, and with None, `auto_offset_reset` does. A later call
    /// replaces what was read before, and no poll raises for that. `start` waits until it is in place.
    /// An empty one reads nothing. A partition that the topic doesn't have is waited for, and `stats` says so.
    ///
    /// Raises `InvalidStateError` for a consumer that has a group: leave out `group_id` to choose partitions yourself.
    fn assign(&self, py: Python<'_>, partitions: Assigned) -> PyResult<()> {
        self.client().assign(partitions.0).or_raise(py)
    }

    /// Ask where the logs of these partitions begin: the first offset that is kept. Without any, of those assigned.
    ///
    /// A partition that doesn't exist is left out.
    #[pyo3(
        signature = (partitions=None, *, timeout=Seconds::NEVER),
        text_signature = "($self, partitions=None, *, timeout=None)"
    )]
    fn begin_offsets<'py>(
        &self,
        py: Python<'py>,
        partitions: Option<Several>,
        timeout: Seconds,
    ) -> PyResult<Bound<'py, PyDict>> {
        let partitions = partitions.map(|partitions| partitions.0);
        numbers(py, answer(py, self.client().begin_offsets(partitions, timeout.0).or_raise(py)?)?)
    }

    /// Ask where the logs of these partitions end: the offset behind the last. Without any, of those assigned.
    ///
    /// With `read_committed` that is one past the last offset whose fate is known; where it is a control record, no
    /// position ever equals it. A partition that doesn't exist is left out.
    #[pyo3(
        signature = (partitions=None, *, timeout=Seconds::NEVER),
        text_signature = "($self, partitions=None, *, timeout=None)"
    )]
    fn end_offsets<'py>(
        &self,
        py: Python<'py>,
        partitions: Option<Several>,
        timeout: Seconds,
    ) -> PyResult<Bound<'py, PyDict>> {
        let partitions = partitions.map(|partitions| partitions.0);
        numbers(py, answer(py, self.client().end_offsets(partitions, timeout.0).or_raise(py)?)?)
    }

    /// Ask how many offsets each assigned partition has ahead of its position: 0 where nothing is left to read.
    #[pyo3(signature = (*, timeout=Seconds::NEVER), text_signature = "($self, *, timeout=None)")]
    fn lag<'py>(&self, py: Python<'py>, timeout: Seconds) -> PyResult<Bound<'py, PyDict>> {
        numbers(py, answer(py, self.client().lag(timeout.0).or_raise(py)?)?)
    }

    /// Return the topics that this consumer reads. Readable at any time.
    fn subscription(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.client().consumer().or_raise(py)?.subscription())
    }

    /// Return who this consumer is in its group now, for a transaction that commits offsets on its behalf.
    ///
    /// Where a batch is at hand, its own `group_metadata` is safer: it is of the assignment that the records were read
    /// under, whatever has happened since.
    ///
    /// Raises `RebalancingError` during a rebalance, `InvalidStateError` before the first assignment and without a
    /// group.
    fn group_metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        group::metadata(py, &self.client().group_metadata().or_raise(py)?)
    }

    /// Ask the coordinator and the leaders for the group's members, their partitions and how far it is.
    ///
    /// Raises `InvalidStateError` without a group.
    #[pyo3(signature = (*, timeout=Seconds::NEVER), text_signature = "($self, *, timeout=None)")]
    fn describe_group<'py>(&self, py: Python<'py>, timeout: Seconds) -> PyResult<Bound<'py, PyAny>> {
        group::description(py, &answer(py, self.client().describe_group(timeout.0).or_raise(py)?)?)
    }

    /// Have `callback(consumer, partitions)` called whenever partitions were assigned, perhaps none. Returns it.
    ///
    /// It is called by `poll`, by an iteration's step or by `close`, on the thread that does that, before any record of
    /// the new assignment is returned, and behind `on_revoked` for what it replaces. So it is the place to seek and to
    /// pause. Any other call may be made from inside, `close` included; only poll and iteration raise
    /// `InvalidStateError`. Its time counts for `max_poll_interval_ms`. Another rebalance may have begun meanwhile;
    /// then what it does to the partitions raises `RebalancingError`. What it raises comes out of the poll, and
    /// whatever else happened is told by the next.
    ///
    /// A callback that is set later is called for what happens from then on, and takes the place of the one before.
    fn on_assigned<'py>(&self, callback: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.set_callback(&self.reader.on_assigned, callback)
    }

    /// Have `callback(consumer, partitions)` called whenever partitions were taken away, at close too. Returns it.
    ///
    /// It is called as `on_assigned` is, before the poll raises `RebalancingError` or `MaxPollIntervalError`. These
    /// partitions are no longer this consumer's, and another member may read them already: it is too late to commit
    /// what was read from them, and right to drop it.
    fn on_revoked<'py>(&self, callback: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.set_callback(&self.reader.on_revoked, callback)
    }

    /// Ask the group's coordinator what is committed for a partition; None where nothing is.
    #[pyo3(signature = (partition, timeout=Seconds::NEVER), text_signature = "($self, partition, timeout=None)")]
    fn committed(&self, py: Python<'_>, partition: Named, timeout: Seconds) -> PyResult<Option<u64>> {
        answer(py, self.client().committed(partition.0, timeout.0).or_raise(py)?)
    }

    /// Return the next offset to poll of a partition; None where it isn't assigned to this consumer.
    fn position(&self, py: Python<'_>, partition: Named) -> PyResult<Option<u64>> {
        self.client().position(partition.0).or_raise(py)
    }

    /// Return the partitions that are this consumer's now. Readable at any time.
    fn assignment(&self, py: Python<'_>) -> PyResult<Vec<TopicPartition>> {
        Ok(self.client().consumer().or_raise(py)?.assignment().into_iter().map(TopicPartition).collect())
    }

    /// Return the records of a batch that may still be committed: see `Batch.owned`.
    fn owned(&self, py: Python<'_>, batch: &Bound<'_, Batch>) -> PyResult<Batch> {
        batch.get().owned_by(py, &self.reader.client)
    }

    /// Tell what the consumer is doing right now. Readable at any time.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let consumer = self.client().consumer().or_raise(py)?;
        statistics::statistics(py, &enter(py, || Ok(consumer.statistics()))?)
    }

    /// Commit what is waiting and what is proven processed, leave the group, and end everything that runs.
    ///
    /// Any number of calls from any threads are one; each returns once the consumer is closed. What couldn't be done in
    /// the time is in `stats().given_up`. A poll in progress ends with `ClosedError`, and an iteration ends. Last it
    /// calls `on_revoked`, and waits for callbacks of other threads. Interrupted, closing goes on in the background.
    #[pyo3(signature = (timeout=CLOSE), text_signature = "($self, timeout=10.0)")]
    fn close(slf: &Bound<'_, Self>, timeout: Seconds) -> PyResult<()> {
        let (py, reader) = (slf.py(), &slf.get().reader);
        let deadline = timeout.0.deadline();
        // It always has a limit of its own; an interrupt leaves it going on by itself.
        let close = reader.client.consumer().or_raise(py)?.close(Some(timeout.0.or_for_ever()));
        wait(py, close, Timeout::NEVER.deadline())?;
        loop {
            match reader.client.step_closed(Caller::this_thread(), deadline).or_raise(py)? {
                Step::Tell(rebalance, telling) => {
                    reader.tell(slf, &rebalance)?;
                    drop(telling);
                }
                Step::Wait(change) => drop(wait(py, change, deadline)?),
                Step::Done(()) => return Ok(()),
            }
        }
    }

    /// Iterate batch by batch, until the consumer is closed. A rebalance is a boundary, and not an error.
    ///
    /// Asking for the next batch says that the one before is processed. After `max_poll_interval_ms` without that it
    /// raises `MaxPollIntervalError` once, and the next step joins anew.
    fn batches(slf: Bound<'_, Self>) -> PyResult<Batches> {
        let reader = Arc::clone(&slf.get().reader);
        reader.client.open().or_raise(slf.py())?;
        Ok(Batches { consumer: slf.into_any().unbind(), reader })
    }

    /// Iterate record by record, until the consumer is closed. A rebalance is a boundary, and not an error.
    ///
    /// Asking for the next record says that the one before is processed. After `max_poll_interval_ms` without that it
    /// raises `MaxPollIntervalError` once, and the next step joins anew.
    fn __iter__(slf: Bound<'_, Self>) -> PyResult<Records> {
        let reader = Arc::clone(&slf.get().reader);
        reader.client.open().or_raise(slf.py())?;
        Ok(Records { consumer: slf.into_any().unbind(), reader })
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let (py, this) = (slf.py(), slf.get());
        let consumer = this.client().open().or_raise(py)?;
        enter(py, || {
            if this.entered.swap(true, Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::InvalidState, "the consumer is inside of `with` already"));
            }
            // Without a group there is nothing to begin with yet: what to read is assigned inside.
            if this.client().group().is_some() { consumer.begin() } else { Ok(()) }
        })?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception), text_signature = "($self, *exception)")]
    fn __exit__(slf: &Bound<'_, Self>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        Self::close(slf, CLOSE)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        self.reader.on_assigned.traverse(&visit)?;
        self.reader.on_revoked.traverse(&visit)
    }

    fn __clear__(&self) {
        self.reader.on_assigned.clear();
        self.reader.on_revoked.clear();
    }

    fn __repr__(&self) -> String {
        let client = self.client();
        let state = client.consumer().map_or("of another process", |consumer| consumer.state().name());
        match client.group() {
            Some(group) => format!("<Consumer of {} in group {group}, {state}>", client.topic()),
            None => format!("<Consumer of {} without a group, {state}>", client.topic()),
        }
    }
}
