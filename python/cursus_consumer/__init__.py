"""A consumer for the Cursus message broker.

    from cursus_consumer import Consumer

    with Consumer(brokers=["127.0.0.1:9000"], topic="orders", group_id="billing") as consumer:
        for record in consumer:
            print(record.partition, record.offset, record.value)

`Consumer` is a member of a group; the members share a topic's partitions. Without a group it reads what it assigns to
itself. `errors` has the exceptions, `testing` a cluster for tests.
"""

from cursus_consumer import errors
from cursus_consumer._group import GroupDescription, GroupMember, GroupMetadata, PartitionDescription
from cursus_consumer._native import Batch, Consumer, PendingCommit, Record, TopicPartition, __version__
from cursus_consumer._settings import ConsumerSettings
from cursus_consumer._state import State
from cursus_consumer._statistics import PartitionStatistics, Statistics
from cursus_consumer.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerFailure,
    BrokerResponseError,
    ClosedError,
    CommitOutcomeUnknownError,
    CursusError,
    ForkedError,
    GroupTopicMismatchError,
    InternalError,
    InvalidArgumentError,
    InvalidSettingError,
    InvalidStateError,
    MaxPollIntervalError,
    OffsetGapError,
    OffsetRegressionError,
    ProtocolError,
    RebalancingError,
    RecordTooLargeError,
    TimedOutError,
    UnknownTopicError,
    UnreachableError,
)

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "Batch",
    "BrokerFailure",
    "BrokerResponseError",
    "ClosedError",
    "CommitOutcomeUnknownError",
    "Consumer",
    "ConsumerSettings",
    "CursusError",
    "ForkedError",
    "GroupDescription",
    "GroupMember",
    "GroupMetadata",
    "GroupTopicMismatchError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidSettingError",
    "InvalidStateError",
    "MaxPollIntervalError",
    "OffsetGapError",
    "OffsetRegressionError",
    "PartitionDescription",
    "PartitionStatistics",
    "PendingCommit",
    "ProtocolError",
    "RebalancingError",
    "Record",
    "RecordTooLargeError",
    "State",
    "Statistics",
    "TimedOutError",
    "TopicPartition",
    "UnknownTopicError",
    "UnreachableError",
    "__version__",
    "errors",
]
