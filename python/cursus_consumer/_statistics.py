"""What `Consumer.stats` returns. Generated from the core's tables by `make generate`: change those instead."""

from dataclasses import dataclass

from cursus_consumer._native import TopicPartition
from cursus_consumer._state import State


@dataclass(frozen=True, kw_only=True)
class PartitionStatistics:
    """What a consumer is doing with one partition."""

    position: int
    """The next offset that poll will return."""
    fetched: int
    """The next offset that is asked of the broker: what lies between the position and this is buffered."""
    committed: int | None
    """The committed offset, as far as this consumer knows; absent where nothing is committed."""
    buffered_bytes: int
    """Bytes fetched and not yet returned by poll."""
    leader: str | None
    """The broker it is read from; absent while the leader is unknown."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What a consumer is doing, at one moment."""

    state: State
    """Where the consumer is in its life."""
    member: str | None
    """This member's id, once the group has given one."""
    generation: int | None
    """The group's generation, once joined."""
    local_generation: int
    """The local assignment generation: grows with every assignment that is installed."""
    coordinator: str | None
    """The coordinator's address, once found."""
    coordinator_unreachable_seconds: float | None
    """For how long the coordinator has been out of reach, in seconds; absent while it answers."""
    partitions: dict[TopicPartition, PartitionStatistics]
    """Partition by partition, those that are owned."""
    rebalances: int
    """How often the assignment was replaced; the first one doesn't count."""
    reconnects: int
    """How often a connection was lost or given up."""
    corrupt_frames: int
    """How many replies could not be decoded. Each closed its connection."""
    records: int
    """How many records poll has returned."""
    dropped_records: int
    """How many records came in again below the position and were dropped."""
    skipped_offsets: int
    """How many offsets were skipped between records: control records, aborted transactions, compaction."""
    commits: int
    """How many commits the broker has taken."""
    buffered_bytes: int
    """Bytes fetched and not yet returned by poll."""
    held_bytes: int
    """Bytes of frames that the application still holds through batches and records."""
    last_error: str | None
    """What is failing now, or failed last."""
    failing_seconds: float | None
    """For how long it has been failing, in seconds; absent once it works again."""
    given_up: list[str]
    """What close gave up at its deadline."""
