"""A consumer's settings as types. Generated from the core's tables by `make generate`: change those instead."""

from collections.abc import Sequence
from typing import Literal, TypedDict


class _Needed(TypedDict):
    brokers: Sequence[str] | str
    """Where to find the cluster first: `host:port` of one or more brokers. The others are learned from them."""
    topic: str
    """The topic to read."""


class ConsumerSettings(_Needed, total=False):
    """The keyword arguments of `Consumer`, for those who put them together first."""

    group_id: str
    """The consumer group. A group reads one topic; its members share the partitions. Without one the consumer reads
    what it assigns to itself, and commits nothing.
    Not given by default.
    """
    consumer_id: str
    """The base of this member's id. A random suffix is always added, since the broker's own four digits can collide.
    `consumer` by default.
    """
    mode: Literal["polling", "streaming"]
    """How to read: `polling` asks for records, `streaming` has the broker send them, on a connection per partition.
    What is promised is the same.
    `polling` by default.
    """
    auto_offset_reset: Literal["earliest", "latest", "error"]
    """Where to start on a partition for which the group has committed nothing, or whose next record is no longer kept:
    `earliest` is the earliest record kept, `latest` what is written from now on (committed at once, so that nothing
    written later is missed), and `error` closes the consumer with an error (an empty log excepted, where there is
    nothing to miss).
    `earliest` by default.
    """
    read_isolation: Literal["read_committed", "read_uncommitted"]
    """What to see: `read_committed` hides open and aborted transactions, `read_uncommitted` shows the raw log.
    `read_committed` by default.
    """
    enable_auto_commit: bool
    """Whether to commit what is proven processed by itself: every interval, and at close. True by default."""
    auto_commit_interval_ms: int
    """How often to commit automatically, in milliseconds. 5000 by default; from 10 to 3600000."""
    heartbeat_interval_ms: int
    """How often to tell the coordinator that this member is alive, in milliseconds.
    3000 by default; from 10 to 300000.
    """
    expected_session_timeout_ms: int
    """After how long without a heartbeat the broker expires a member, in milliseconds. The broker owns the real value;
    this one only checks that heartbeats come at least three times as often.
    10000 by default; from 100 to 3600000.
    """
    max_poll_interval_ms: int
    """The longest time between two polls, in milliseconds. Where it passes, the member leaves its group, so that others
    read what it doesn't; the next poll raises an error once and joins again. A poll that waits may wait for ever.
    300000 by default; from 100 to 604800000.
    """
    max_poll_records: int
    """The most records that one poll returns. 500 by default; from 1 to 1000000."""
    fetch_batch_size: int
    """The most records asked for in one request. Large records are asked for in smaller batches by themselves.
    8192 by default; from 1 to 100000.
    """
    fetch_wait_ms: int
    """How long a read of an empty partition may wait for a record before it asks again, in milliseconds.
    500 by default; from 0 to 30000.
    """
    max_buffered_bytes: int
    """The most bytes fetched and not yet returned by poll, over all partitions. One frame may always exceed it.
    67108864 by default; from 1 to 1099511627776.
    """
    max_connections_per_broker: int
    """The most connections for reading to one broker. Partitions beyond it share connections.
    4 by default; from 1 to 256.
    """
    connect_timeout_ms: int
    """How long to wait for a connection, in milliseconds. 5000 by default; from 10 to 600000."""
    request_timeout_ms: int
    """How long to wait for the answer to a request, in milliseconds. 10000 by default; from 10 to 600000."""
    retry_backoff_ms: int
    """The first pause before something that failed is tried again, in milliseconds. It doubles, with jitter.
    50 by default; from 1 to 60000.
    """
    retry_backoff_max_ms: int
    """The longest pause between two tries, in milliseconds. 2000 by default; from 1 to 600000."""
    metadata_refresh_ms: int
    """How often to look for leaders that changed, logs that end before the position, and partitions that nobody reads,
    in milliseconds.
    10000 by default; from 100 to 3600000.
    """
    topic_missing_timeout_ms: int
    """For how long every reachable broker must deny the topic before it counts as missing, in milliseconds.
    5000 by default; from 0 to 3600000.
    """
