//! `EmbeddedCluster`: a cluster in this process, for tests. The package offers it as `cursus_consumer.testing`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cursus_bindings_common::{OfProcess, Timeout, runtime as process};
use cursus_consumer::{Error, ErrorKind};
use cursus_embedded::{Cluster, ControlError, NewRecord, Options};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyString, PyTuple};

use crate::arguments::{Seconds, Whole, type_name};
use crate::errors::{OrRaise, exception, invalid_argument};
use crate::runtime::{detached, enter, wait};

const MODULE: &str = "cursus_consumer.testing";

/// How long a test waits for something where nothing is said.
const PATIENCE: Seconds = Seconds(Timeout::from_duration(Duration::from_secs(10)));

/// A Cursus cluster in this process: brokers that speak the real protocol, with faults on command.
///
/// They listen on loopback sockets and hold everything in memory. The cluster runs once it is made, and ends with
/// `with` or `stop`. Brokers are named by their index. What doesn't exist is an `InvalidArgumentError` that says what
/// does.
///
/// With one broker it is a standalone one, which answers a few commands differently. `session_timeout_ms` is how long a
/// member may be silent, `expiry_check_ms` how often silent ones are looked for, `leader_election_ms` how long a leader
/// that went down is still named, `coordinator_commit_lag_ms` how long a commit may stay unseen, and `port` the first
/// broker's port, where free ones won't do. `advertised` has what single brokers name instead of where they listen, as
/// with `advertise`.
#[pyclass(frozen, weakref, module = "cursus_consumer.testing")]
pub(crate) struct EmbeddedCluster(OfProcess<Cluster>);

fn refused(py: Python<'_>, error: &ControlError) -> PyErr {
    let kind = match error {
        ControlError::Listen { source, .. } => return io::Error::new(source.kind(), error.to_string()).into(),
        ControlError::BrokerState { .. } | ControlError::Down { .. } | ControlError::Stopped => ErrorKind::InvalidState,
        _ => ErrorKind::InvalidArgument,
    };
    exception(py, &Error::new(kind, error.to_string()))
}

impl EmbeddedCluster {
    fn cluster(&self, py: Python<'_>) -> PyResult<&Cluster> {
        self.0.get().or_raise(py)
    }

    /// Something that a cluster can be told or asked, with the interpreter released: much of it takes a while.
    fn control<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&Cluster) -> Result<T, ControlError> + Send,
    ) -> PyResult<T> {
        let cluster = self.cluster(py)?;
        detached(py, || {
            let runtime = process::handle()?;
            let _entered = runtime.enter();
            Ok(ask(cluster))
        })?
        .map_err(|error| refused(py, &error))
    }

    /// The same where it waits.
    fn wait_for_control<T: Send>(
        py: Python<'_>,
        asked: impl Future<Output = Result<T, ControlError>> + Send,
    ) -> PyResult<Option<T>> {
        wait(py, asked, Timeout::NEVER.deadline())?.transpose().map_err(|error| refused(py, &error))
    }
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
        match wait(py, Cluster::start(options), Timeout::NEVER.deadline())? {
            Some(Ok(cluster)) => Ok(Self(OfProcess::new(cluster))),
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(invalid_argument(py, error.to_string()))
            }
            Some(Err(error)) => Err(error.into()),
            None => unreachable!("a wait without an end ends with an output"),
        }
    }

    /// Where the brokers listen, as `host:port`, for a consumer's `brokers`.
    #[getter]
    fn brokers(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.cluster(py)?.brokers())
    }

    /// Make a topic, or give an existing one more partitions. Partition p is led by broker p modulo their number.
    fn create_topic(&self, py: Python<'_>, name: &str, partitions: Whole<u32>) -> PyResult<()> {
        self.control(py, |cluster| cluster.create_topic(name, partitions.0))
    }

    /// Delete a topic with its records. Groups that read it keep their members and offsets.
    fn delete_topic(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.control(py, |cluster| cluster.delete_topic(name))
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
        self.control(py, |cluster| {
            // A topic that doesn't exist is reported by producing to it.
            let count = cluster.end_offsets(topic).len().max(1) as u64;
            let mut shares: BTreeMap<u32, (Vec<usize>, Vec<NewRecord>)> = BTreeMap::new();
            for (i, record) in records.into_iter().enumerate() {
                let dealt = || if record.key.is_empty() { i as u64 } else { hash(&record.key) } % count;
                let target = partition.map_or_else(|| dealt() as u32, |partition| partition.0);
                let share = shares.entry(target).or_default();
                share.0.push(i);
                share.1.push(record);
            }
            let mut ends = BTreeMap::new();
            for (target, (places, share)) in shares {
                let end = cluster.produce(topic, target, share).map_err(|error| in_place(error, &places))?;
                ends.insert(target, end);
            }
            Ok(ends)
        })
    }

    /// Write `count` records of `value_size` bytes, dealt out over all partitions in turn.
    ///
    /// Record i (from 0) has the key `i` and a value that begins with i in 20 digits.
    fn fill(&self, py: Python<'_>, topic: &str, count: Whole<u64>, value_size: Whole<usize>) -> PyResult<()> {
        self.control(py, |cluster| cluster.fill(topic, count.0, value_size.0))
    }

    /// Write the control record of a transaction without records, and give the offset behind it.
    ///
    /// Committed readers don't see it: their offsets have a gap there.
    fn append_marker(&self, py: Python<'_>, topic: &str, partition: Whole<u32>) -> PyResult<u64> {
        self.control(py, |cluster| cluster.append_marker(topic, partition.0))
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
        self.control(py, |cluster| cluster.append_aborted(topic, partition.0, records))
    }

    /// Forget the records of a partition below `earliest`, as retention does.
    fn delete_records(&self, py: Python<'_>, topic: &str, partition: Whole<u32>, earliest: Whole<u64>) -> PyResult<()> {
        self.control(py, |cluster| cluster.delete_records(topic, partition.0, earliest.0))
    }

    /// Stop a broker as SIGTERM does: what its connections are at is finished.
    fn stop_broker(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<()> {
        Self::wait_for_control(py, self.cluster(py)?.stop_broker(broker.0)).map(drop)
    }

    /// Kill a broker: its connections are cut at once, and replies in flight are lost.
    fn kill_broker(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<()> {
        Self::wait_for_control(py, self.cluster(py)?.kill_broker(broker.0)).map(drop)
    }

    /// Start a broker again, on the port it had.
    fn restart_broker(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<()> {
        Self::wait_for_control(py, self.cluster(py)?.restart_broker(broker.0)).map(drop)
    }

    /// Pause a broker as SIGSTOP does: nothing in it moves, and clients can still connect to it.
    ///
    /// What it leads goes to another broker after `leader_election_ms`; what it coordinates waits, and nobody expires.
    fn pause_broker(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<()> {
        self.control(py, |cluster| cluster.pause_broker(broker.0))
    }

    /// Let a paused broker go on where it was.
    fn resume_broker(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<()> {
        self.control(py, |cluster| cluster.resume_broker(broker.0))
    }

    /// Tell whether a broker runs; a paused one does.
    fn is_running(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<bool> {
        Ok(self.cluster(py)?.is_running(broker.0))
    }

    /// Tell whether a broker is paused.
    fn is_paused(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<bool> {
        Ok(self.cluster(py)?.is_paused(broker.0))
    }

    /// Put the clock of the brokers forward, by which they do all that they do by time.
    ///
    /// Members have expired and leaders are elected once this returns; what concerns a connection is about to happen.
    fn advance(&self, py: Python<'_>, by_ms: Whole<u64>) -> PyResult<()> {
        self.control(py, |cluster| {
            cluster.advance(Duration::from_millis(by_ms.0));
            Ok(())
        })
    }

    /// Count the connections that a broker has.
    fn connections(&self, py: Python<'_>, broker: Whole<usize>) -> PyResult<usize> {
        Ok(self.cluster(py)?.connections(broker.0))
    }

    /// Make another broker a group's coordinator.
    fn move_coordinator(&self, py: Python<'_>, group: &str, broker: Whole<usize>) -> PyResult<()> {
        self.control(py, |cluster| cluster.move_coordinator(group, broker.0))
    }

    /// Return the broker that coordinates a group, running or not.
    fn coordinator(&self, py: Python<'_>, group: &str) -> PyResult<usize> {
        Ok(self.cluster(py)?.coordinator(group))
    }

    /// Make another broker a partition's leader.
    fn move_leader(&self, py: Python<'_>, topic: &str, partition: Whole<u32>, broker: Whole<usize>) -> PyResult<()> {
        self.control(py, |cluster| cluster.move_leader(topic, partition.0, broker.0))
    }

    /// Return the broker that leads a partition, running or not.
    fn leader(&self, py: Python<'_>, topic: &str, partition: Whole<u32>) -> PyResult<usize> {
        self.control(py, |cluster| cluster.leader(topic, partition.0))
    }

    /// Answer the next `times` of a command with `ERROR: ` and this text, and don't carry them out.
    fn fail_next(&self, py: Python<'_>, command: &str, times: Whole<usize>, error: &str) -> PyResult<()> {
        self.control(py, |cluster| cluster.fail_next(command, times.0, error))
    }

    /// Carry out the next `times` of a command, and cut the connection instead of replying.
    #[pyo3(signature = (command, times=Whole(1)), text_signature = "($self, command, times=1)")]
    fn lose_reply(&self, py: Python<'_>, command: &str, times: Whole<usize>) -> PyResult<()> {
        self.control(py, |cluster| cluster.lose_reply(command, times.0))
    }

    /// Carry out the next `times` of a command, and damage the replies so that they can't be decoded.
    #[pyo3(signature = (command, times=Whole(1)), text_signature = "($self, command, times=1)")]
    fn corrupt_next(&self, py: Python<'_>, command: &str, times: Whole<usize>) -> PyResult<()> {
        self.control(py, |cluster| cluster.corrupt_next(command, times.0))
    }

    /// Carry out the next `times` of a command, and send each reply twice, which no broker should.
    #[pyo3(signature = (command, times=Whole(1)), text_signature = "($self, command, times=1)")]
    fn repeat_reply(&self, py: Python<'_>, command: &str, times: Whole<usize>) -> PyResult<()> {
        self.control(py, |cluster| cluster.repeat_reply(command, times.0))
    }

    /// Hold the next of a command until the hold is released.
    fn hold(&self, py: Python<'_>, command: &str) -> PyResult<Hold> {
        self.control(py, |cluster| {
            // Failing it no times changes nothing, and tells whether there is such a command.
            cluster.fail_next(command, 0, "")?;
            Ok(Hold(OfProcess::new(Mutex::new(Some(cluster.hold(command))))))
        })
    }

    /// Cut all connections of one broker, or of all. New ones are accepted.
    #[pyo3(signature = (broker=None))]
    fn cut_connections(&self, py: Python<'_>, broker: Option<Whole<usize>>) -> PyResult<()> {
        self.control(py, |cluster| cluster.cut_connections(broker.map(|broker| broker.0)))
    }

    /// End all open streams with a control frame of this reason, as `timeout`, `stopped` or `error`.
    fn close_streams(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        self.control(py, |cluster| cluster.close_streams(reason))
    }

    /// Silence all connections of one broker, or of all, for ever, without closing them. New ones work.
    #[pyo3(signature = (broker=None))]
    fn freeze_connections(&self, py: Python<'_>, broker: Option<Whole<usize>>) -> PyResult<()> {
        self.control(py, |cluster| cluster.freeze_connections(broker.map(|broker| broker.0)))
    }

    /// Write every reply of one broker, or of all, this much later, in order, until set to 0.
    #[pyo3(signature = (delay_ms, broker=None))]
    fn delay(&self, py: Python<'_>, delay_ms: Whole<u64>, broker: Option<Whole<usize>>) -> PyResult<()> {
        let delay = Duration::from_millis(delay_ms.0);
        self.control(py, |cluster| cluster.delay(broker.map(|broker| broker.0), delay))
    }

    /// Let brokers name this `host:port` for a broker; without one, where it listens again.
    #[pyo3(signature = (broker, address=None))]
    fn advertise(&self, py: Python<'_>, broker: Whole<usize>, address: Option<&str>) -> PyResult<()> {
        self.control(py, |cluster| cluster.advertise(broker.0, address))
    }

    /// Let two brokers listen where the other did, each as itself. Their connections are cut.
    fn swap_addresses(&self, py: Python<'_>, a: Whole<usize>, b: Whole<usize>) -> PyResult<()> {
        self.control(py, |cluster| cluster.swap_addresses(a.0, b.0))
    }

    /// Expire a member now, as if its session had ended.
    fn expire_member(&self, py: Python<'_>, group: &str, member: &str) -> PyResult<()> {
        self.control(py, |cluster| cluster.expire_member(group, member))
    }

    /// Return what a group has committed in a topic: the next offset to read by partition.
    fn committed(&self, py: Python<'_>, group: &str, topic: &str) -> PyResult<BTreeMap<u32, u64>> {
        self.control(py, |cluster| Ok(cluster.committed(group, topic)))
    }

    /// Return the offset behind the last record by partition; empty where there is no such topic.
    fn end_offsets(&self, py: Python<'_>, topic: &str) -> PyResult<BTreeMap<u32, u64>> {
        self.control(py, |cluster| Ok(cluster.end_offsets(topic)))
    }

    /// Return a group as its coordinator sees it; None where there is none of that name.
    fn group<'py>(&self, py: Python<'py>, group: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(found) = self.control(py, |cluster| Ok(cluster.group(group)))? else { return Ok(None) };
        let class = py.import(MODULE)?.getattr("Group")?;
        class.call1((found.topic, found.generation, found.state, found.members)).map(Some)
    }

    /// Return the last 10,000 requests that the brokers received, oldest first.
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let class = py.import(MODULE)?.getattr("Request")?;
        let list = PyList::empty(py);
        for request in self.control(py, |cluster| Ok(cluster.requests()))? {
            list.append(class.call1((request.broker, request.connection, request.command, request.text))?)?;
        }
        Ok(list)
    }

    /// Forget the requests so far.
    fn clear_requests(&self, py: Python<'_>) -> PyResult<()> {
        self.control(py, |cluster| {
            cluster.clear_requests();
            Ok(())
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
        wait(py, self.cluster(py)?.stop(), Timeout::NEVER.deadline()).map(drop)
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
        match self.0.get() {
            Ok(cluster) => format!("<EmbeddedCluster of {}>", cluster.brokers().join(", ")),
            Err(_) => "<EmbeddedCluster of another process>".to_owned(),
        }
    }
}

/// Where a record without a partition goes by its key: always the same in one process, and in no way that matters.
fn hash(key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// The cluster counts the records of one partition; who gave them counts all.
fn in_place(error: ControlError, places: &[usize]) -> ControlError {
    match error {
        ControlError::RecordTooLarge { index, problem } => {
            ControlError::RecordTooLarge { index: places.get(index).copied().unwrap_or(index), problem }
        }
        other => other,
    }
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
