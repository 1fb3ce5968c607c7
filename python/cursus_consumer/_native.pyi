"""The native part of cursus_consumer. Import from `cursus_consumer` instead."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, SupportsIndex, TypeVar, final, overload

from typing_extensions import Self, Unpack, disjoint_base

from cursus_consumer._group import GroupDescription, GroupMetadata
from cursus_consumer._settings import ConsumerSettings
from cursus_consumer._state import State
from cursus_consumer._statistics import Statistics
from cursus_consumer.errors import CursusError

__version__: str
__all__ = [
    "Batch",
    "BatchIterator",
    "Batches",
    "Consumer",
    "EmbeddedCluster",
    "Hold",
    "PendingCommit",
    "Record",
    "Records",
    "TopicPartition",
    "Transaction",
    "TransactionalWriter",
    "__version__",
    "_error_table",
    "_raise_error",
    "_setting_names",
    "_statistic_names",
]

@final
class TopicPartition:
    """A partition of a topic. Hashable, ordered, and the same wherever it comes from."""

    __match_args__: tuple[Literal["topic"], Literal["partition"]]

    def __new__(cls, topic: str, partition: int) -> Self: ...
    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def partition(self) -> int:
        """The partition's number, from 0."""

    def __iter__(self) -> Iterator[str | int]: ...
    def __getnewargs__(self) -> tuple[str, int]: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __lt__(self, other: TopicPartition, /) -> bool: ...
    def __le__(self, other: TopicPartition, /) -> bool: ...
    def __gt__(self, other: TopicPartition, /) -> bool: ...
    def __ge__(self, other: TopicPartition, /) -> bool: ...

@final
class Record:
    """A record. Its key and value become `bytes` when they are first asked for, and not before.

    Equal records are of the same place and have the same bytes.
    """

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def partition(self) -> int:
        """The partition's number."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition together: what everything is keyed by."""

    @property
    def offset(self) -> int:
        """Its position in the partition."""

    @property
    def key(self) -> bytes:
        """The key; empty where there is none, which the protocol doesn't tell apart."""

    @property
    def value(self) -> bytes:
        """The payload."""

    @property
    def is_control(self) -> bool:
        """Whether it is a transaction's control record, which only `read_isolation="read_uncommitted"` shows."""

    def detach(self) -> Record:
        """Copy it, so that it doesn't keep the memory alive in which the records around it came.

        The copy can be committed like this one.
        """

    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Batch(Sequence[Record]):
    """What one poll returned: an immutable sequence of records, in order per partition, and perhaps empty.

    A slice of it is a batch too, and can be committed. It stays readable after a rebalance and after the consumer is
    gone; what ends is the right to commit it.
    """

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> Batch: ...
    def __iter__(self) -> BatchIterator: ...
    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Return the position of the first record that equals `value`."""

    def count(self, value: object) -> int:
        """Count the records that equal `value`."""

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Return what committing this batch commits: partition by partition, the offset after the last record."""

    def group_metadata(self) -> GroupMetadata | None:
        """Return who read these records: what a transaction that commits their offsets has to name.

        The broker refuses it once a rebalance has come, as it refuses a commit. None for an empty batch, and for one
        that was read without a group.
        """

    def owned(self) -> Batch:
        """Return the records that may still be committed: of partitions whose assignment hasn't ended since."""

@final
class BatchIterator(Iterator[Record]):
    """Goes through a batch."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...
    def __length_hint__(self) -> int: ...

_Partitions = TopicPartition | int | Iterable[TopicPartition | int]
_Callback = TypeVar("_Callback", bound=Callable[[Consumer, list[TopicPartition]], Any])

@final
class Consumer:
    """A consumer of a topic's partitions: a member of the group that shares them, or one without a group.

    Settings are keyword arguments; `brokers` and `topic` must be given, `ConsumerSettings` lists them all. With a
    `group_id` the group hands out the partitions; without one `assign` chooses them.

    Iterating over a consumer gives records one by one until it is closed; a rebalance is a boundary, and not an error.
    Asking for the next record says that the one before is processed.

    All methods may be called from any thread. Nothing is sent before the first of `start`, `poll`, `assign`, iteration,
    `with` or a question to the brokers. With `enable_auto_commit`, poll or iterate from one thread only: each step says
    that what was given out before is processed, whoever works on it.

    Leaving `with` closes it; without either it is dropped: silently, and without committing anything.

    Time-outs are in seconds. None waits for ever and 0 doesn't wait; Ctrl-C ends every wait, and what it had taken
    comes again. A consumer that was closed by an error raises that error from then on, and one that was closed raises
    `ClosedError`; a consumer that was made before a fork raises `ForkedError` in the child.
    """

    def __new__(cls, **settings: Unpack[ConsumerSettings]) -> Self: ...
    @property
    def state(self) -> State:
        """Where the consumer is in its life. Readable at any time."""

    @property
    def fatal_error(self) -> CursusError | None:
        """The error that closed the consumer, if one did. Readable at any time."""

    def start(self, timeout: float | None = None) -> None:
        """Join the group and wait for the first assignment, an empty one included.

        Raises `UnreachableError` where no broker, or no coordinator, could be reached in the time. The consumer goes on
        trying, and so may you.
        """

    def poll(self, timeout: float | None = None, *, max_records: int | None = None) -> Batch:
        """Wait for records and take them, from any of the assigned partitions.

        At most `max_records`, and never more than the setting `max_poll_records`; what is left is the next poll's. The
        batch is empty where the time is over first. With `enable_auto_commit` this says that what the poll before
        returned is processed.

        Raises `RebalancingError` once after each rebalance, and `MaxPollIntervalError` once after
        `max_poll_interval_ms` without a poll; poll again to go on. Brokers out of reach raise nothing: the batch is
        empty, and `stats` says what is wrong and for how long. With `enable_auto_commit` a poll beside another one
        raises `InvalidStateError`, as does a poll without a group before anything was assigned.
        """

    # A mapping's keys are invariant: what `next_offsets` returns has to fit as well.
    @overload
    def commit(
        self, what: Batch | Record | Mapping[TopicPartition | int, int] = ..., timeout: float | None = None
    ) -> None:
        """Commit a batch, everything up to a record, offsets by partition, or all that poll has returned.

        It waits until the group's coordinator has taken it. Offsets are the next ones to read; a partition's bare
        number is enough while there is one topic. All partitions of one call are committed, or none.

        Raises `RebalancingError` where a partition's assignment has ended since it was read, and then nothing was
        sent; `OffsetRegressionError` for a step back; `InvalidArgumentError` for records of another consumer or an
        offset that wasn't read; `TimedOutError` where it couldn't be sent in time and was withdrawn;
        `CommitOutcomeUnknownError` where it was sent and not answered in time.
        """

    @overload
    def commit(self, what: Mapping[TopicPartition, int] | Mapping[int, int], timeout: float | None = None) -> None: ...

    # A mapping's keys are invariant: what `next_offsets` returns has to fit as well.
    @overload
    def commit_async(
        self, what: Batch | Record | Mapping[TopicPartition | int, int] = ..., timeout: float | None = None
    ) -> PendingCommit:
        """Hand a commit over and go on: what `commit` does, without waiting for it.

        What can be known at once is raised at once: a rebalance, records of another consumer, an offset that wasn't
        read. Those that are given while one is on its way go together in the next request. With a timeout, one that
        can't be sent in time is withdrawn. It is carried out whether anybody asks for the outcome or not, and `close`
        waits for it.
        """

    @overload
    def commit_async(
        self, what: Mapping[TopicPartition, int] | Mapping[int, int], timeout: float | None = None
    ) -> PendingCommit: ...
    def ack(self, record: Record) -> None:
        """Say that a record is processed, in whatever order. Never waits.

        What is acknowledged without a gap is committed every `auto_commit_interval_ms` and at close, so that several
        workers can share a batch. It is for consumers with `enable_auto_commit=False`.

        Raises `RebalancingError` where the partition's assignment has ended since the record was read;
        `InvalidStateError` with `enable_auto_commit` and without a group; `InvalidArgumentError` for a record of
        another consumer.
        """

    def seek(self, partition: TopicPartition | int, offset: int) -> None:
        """Move a partition: the next record that poll returns of it is the first one at or behind this offset.

        What was fetched and not yet returned is dropped. Below the committed offset nothing is committed by itself
        until that is passed. A rebalance forgets it.

        Raises `InvalidStateError` where the partition isn't assigned, and `RebalancingError` where a rebalance has just
        taken it.
        """

    def pause(self, partitions: _Partitions) -> None:
        """Return nothing of these partitions until they are resumed, and ask for nothing new.

        The membership goes on, and so must polling, which returns what other partitions have. All of them are paused,
        or none. A rebalance forgets it. Raises what `seek` raises.
        """

    def resume(self, partitions: _Partitions) -> None:
        """End a pause. What isn't paused stays as it is. All of them or none; raises what `seek` raises."""

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused. Readable at any time."""

    def assign(self, partitions: _Partitions | Mapping[TopicPartition | int, int | None]) -> None:
        """Read these partitions, without a group: nobody shares them, and nothing is committed. Doesn't wait.

        A mapping says where each begins; without an offset, and with None, `auto_offset_reset` does. A later call
        replaces what was read before, and no poll raises for that. `start` waits until it is in place.
        An empty one reads nothing. A partition that the topic doesn't have is waited for, and `stats` says so.

        Raises `InvalidStateError` for a consumer that has a group: leave out `group_id` to choose partitions yourself.
        """

    def begin_offsets(
        self, partitions: _Partitions | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Ask where the logs of these partitions begin: the first offset that is kept. Without any, of those assigned.

        A partition that doesn't exist is left out.
        """

    def end_offsets(
        self, partitions: _Partitions | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Ask where the logs of these partitions end: the offset behind the last. Without any, of those assigned.

        With `read_committed` that is one past the last offset whose fate is known; where it is a control record, no
        position ever equals it. A partition that doesn't exist is left out.
        """

    def lag(self, *, timeout: float | None = None) -> dict[TopicPartition, int]:
        """Ask how many offsets each assigned partition has ahead of its position: 0 where nothing is left to read."""

    def subscription(self) -> list[str]:
        """Return the topics that this consumer reads. Readable at any time."""

    def group_metadata(self) -> GroupMetadata:
        """Return who this consumer is in its group now, for a transaction that commits offsets on its behalf.

        Where a batch is at hand, its own `group_metadata` is safer: it is of the assignment that the records were read
        under, whatever has happened since.

        Raises `RebalancingError` during a rebalance, `InvalidStateError` before the first assignment and without a
        group.
        """

    def describe_group(self, *, timeout: float | None = None) -> GroupDescription:
        """Ask the coordinator and the leaders for the group's members, their partitions and how far it is.

        Raises `InvalidStateError` without a group.
        """

    def on_assigned(self, callback: _Callback) -> _Callback:
        """Have `callback(consumer, partitions)` called whenever partitions were assigned, perhaps none. Returns it.

        It is called by `poll`, by an iteration's step or by `close`, on the thread that does that, before any record of
        the new assignment is returned, and behind `on_revoked` for what it replaces. So it is the place to seek and to
        pause. Any other call may be made from inside, `close` included; only poll and iteration raise
        `InvalidStateError`. Its time counts for `max_poll_interval_ms`. Another rebalance may have begun meanwhile;
        then what it does to the partitions raises `RebalancingError`. What it raises comes out of the poll, and
        whatever else happened is told by the next.

        A callback that is set later is called for what happens from then on, and takes the place of the one before.
        """

    def on_revoked(self, callback: _Callback) -> _Callback:
        """Have `callback(consumer, partitions)` called whenever partitions were taken away, at close too. Returns it.

        It is called as `on_assigned` is, before the poll raises `RebalancingError` or `MaxPollIntervalError`. These
        partitions are no longer this consumer's, and another member may read them already: it is too late to commit
        what was read from them, and right to drop it.
        """

    def committed(self, partition: TopicPartition | int, timeout: float | None = None) -> int | None:
        """Ask the group's coordinator what is committed for a partition; None where nothing is."""

    def position(self, partition: TopicPartition | int) -> int | None:
        """Return the next offset to poll of a partition; None where it isn't assigned to this consumer."""

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are this consumer's now. Readable at any time."""

    def owned(self, batch: Batch) -> Batch:
        """Return the records of a batch that may still be committed: see `Batch.owned`."""

    def stats(self) -> Statistics:
        """Tell what the consumer is doing right now. Readable at any time."""

    def close(self, timeout: float | None = 10.0) -> None:
        """Commit what is waiting and what is proven processed, leave the group, and end everything that runs.

        Any number of calls from any threads are one; each returns once the consumer is closed. What couldn't be done in
        the time is in `stats().given_up`. A poll in progress ends with `ClosedError`, and an iteration ends. Last it
        calls `on_revoked`, and waits for callbacks of other threads. Interrupted, closing goes on in the background.
        """

    def batches(self) -> Batches:
        """Iterate batch by batch, until the consumer is closed. A rebalance is a boundary, and not an error.

        Asking for the next batch says that the one before is processed. After `max_poll_interval_ms` without that it
        raises `MaxPollIntervalError` once, and the next step joins anew.
        """

    def __iter__(self) -> Records:
        """Iterate record by record, until the consumer is closed. A rebalance is a boundary, and not an error.

        Asking for the next record says that the one before is processed. After `max_poll_interval_ms` without that it
        raises `MaxPollIntervalError` once, and the next step joins anew.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class PendingCommit:
    """A commit that was handed over. It is carried out whether anybody asks or not, also if this is dropped.

    A commit that nobody asks about fails in silence; what isn't committed is delivered again after a rebalance or a
    restart.
    """

    def done(self) -> bool:
        """Tell whether the outcome is known, a failure included. Never waits."""

    def result(self, timeout: float | None = None) -> None:
        """Wait until the group's coordinator has taken the commit, and raise what `commit` would where it hasn't.

        Raises `TimedOutError` where the outcome isn't known in the time: the commit goes on, and may be asked again.
        Any number of threads may wait, each as often as it likes.
        """

@final
class Records(Iterator[Record]):
    """Goes through a consumer's records, one by one."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Record: ...

@final
class Batches(Iterator[Batch]):
    """Goes through a consumer's records, batch by batch."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...

@disjoint_base
class EmbeddedCluster:
    """What `cursus_consumer.testing.EmbeddedCluster` is made from: all that its table of commands can't have."""

    def __new__(
        cls,
        *,
        brokers: int = 3,
        session_timeout_ms: int = 10000,
        expiry_check_ms: int = 5000,
        leader_election_ms: int = 500,
        coordinator_commit_lag_ms: int = 0,
        idle_timeout_ms: int = 60000,
        port: int | None = None,
        advertised_host: str | None = None,
        advertised: dict[int, str] | None = None,
    ) -> Self: ...
    @property
    def brokers(self) -> list[str]:
        """Where the brokers listen, as `host:port`, for a consumer's `brokers`."""

    def _call(self, command: str, /, **arguments: object) -> Any:
        """Carry out a command of the cluster's table, and return its answer. The methods generated from it do."""

    def produce(
        self,
        topic: str,
        records: Iterable[bytes | bytearray | str | tuple[bytes | bytearray | str | None, bytes | bytearray | str]],
        partition: int | None = None,
    ) -> dict[int, int]:
        """Write records, and give the offset behind the last one of each partition that was written to.

        A record is its value, or a pair of key and value. Without a partition records with a key go where their key
        always goes, and those without one are dealt out in turn.
        """

    def append_aborted(
        self,
        topic: str,
        records: Iterable[bytes | bytearray | str | tuple[bytes | bytearray | str | None, bytes | bytearray | str]],
        partition: int,
    ) -> int:
        """Write records of an aborted transaction and its control record, and give the offset behind that.

        Records are as for `produce`. Committed readers see none of it. Today's brokers write nothing when a transaction
        is aborted; their format allows it.
        """

    def is_running(self, broker: int) -> bool:
        """Tell whether a broker runs; a paused one does."""

    def is_paused(self, broker: int) -> bool:
        """Tell whether a broker is paused."""

    def connections(self, broker: int) -> int:
        """Count the connections that a broker has."""

    def hold(self, command: str) -> Hold:
        """Hold the next of a command until the hold is released."""

    def wait_for(self, condition: Callable[[], object], timeout: float | None = 10.0) -> None:
        """Wait until `condition()` is true. It is called now and after every change in the cluster.

        Raises `TimedOutError` where that takes longer than `timeout`.
        """

    def stop(self) -> None:
        """End all brokers. What is still asked of the cluster afterwards is answered from what it was."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class Hold:
    """A hold on the next request of some command. Leaving `with` releases it."""

    def is_reached(self) -> bool:
        """Tell whether a request is held."""

    def release(self) -> None:
        """Let the held request go on; without one, the hold is taken back."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

@final
class TransactionalWriter:
    """Writes records, and a group's offsets with them, in transactions: all of one, or nothing. For tests and examples.

    It works against any brokers, `host:port` each. One writer has one transaction at a time, and one thread uses it at
    a time. A writer that starts later with the same transactional id takes over: whatever this one does from then on
    raises `FencedError`. What passes by itself is tried again, for `timeout` seconds in each call.

    An exception in the middle of a call, Ctrl-C for instance, leaves a transaction that can only be aborted.
    """

    def __new__(cls, brokers: Sequence[str], transactional_id: str, *, timeout: float | None = 30.0) -> Self: ...
    def begin(self) -> None:
        """Begin a transaction. Raises `FencedError` where another writer has taken over."""

    def publish(
        self, topic: str, value: str | bytes, *, key: str | bytes | None = None, partition: int | None = None
    ) -> int:
        """Add a record to the transaction, and return the partition it will be in.

        That is the given one, else the one that its key has with every writer, else the next in turn. The value is
        text, without white space at its ends; the key is one word.
        """

    # A mapping's keys are invariant: what `next_offsets` returns has to fit as well.
    @overload
    def send_offsets(self, metadata: GroupMetadata, offsets: Mapping[TopicPartition | int, int]) -> None:
        """Add a group's offsets to the transaction: for each partition the next one to read.

        `metadata` says whose: its `group`, `topic`, `member` and `generation`. Raises `BrokerResponseError` where that
        member doesn't have the partitions, or no longer; then abort.
        """

    @overload
    def send_offsets(
        self, metadata: GroupMetadata, offsets: Mapping[TopicPartition, int] | Mapping[int, int]
    ) -> None: ...
    def commit(self) -> None:
        """Commit the transaction.

        Raises `BrokerResponseError` where the brokers refuse it: then nothing was written, and it can be aborted.
        Raises `CommitOutcomeUnknownError` where no answer came: call it again to learn more.
        """

    def abort(self) -> None:
        """Drop the transaction: nothing of it is written."""

    def transaction(self) -> Transaction:
        """Return a context in which a transaction is open: committed at the end, aborted by an exception.

        A commit that is refused aborts it too. One whose outcome is unknown doesn't: call `commit` to learn more.
        """

@final
class Transaction:
    """A transaction, as a context: committed at the end, aborted by an exception."""

    def publish(
        self, topic: str, value: str | bytes, *, key: str | bytes | None = None, partition: int | None = None
    ) -> int:
        """Add a record: see `TransactionalWriter.publish`."""

    # A mapping's keys are invariant: what `next_offsets` returns has to fit as well.
    @overload
    def send_offsets(self, metadata: GroupMetadata, offsets: Mapping[TopicPartition | int, int]) -> None:
        """Add a group's offsets: see `TransactionalWriter.send_offsets`."""

    @overload
    def send_offsets(
        self, metadata: GroupMetadata, offsets: Mapping[TopicPartition, int] | Mapping[int, int]
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...

def _error_table() -> list[tuple[int, str, str, bool, bool]]:
    """Return the table of errors: number, code, class, retryable, fatal. For the package's tests."""

def _raise_error(number: int, message: str) -> None:
    """Raise the error of a number with a message; without such a number it panics. For the package's tests."""

def _setting_names() -> list[str]:
    """Return the names of all settings. For the package's tests."""

def _statistic_names() -> tuple[list[str], list[str]]:
    """Return the names of all statistics, and of those of a partition. For the package's tests."""
