"""The exceptions of cursus_consumer: one class for each error of the core's table, all of them a `CursusError`.

Each class has its stable `code` and `number`, and says whether the same call may work later (`retryable`) and whether
the consumer is closed by it (`fatal`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from cursus_consumer._native import TopicPartition

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BrokerFailure",
    "BrokerResponseError",
    "ClosedError",
    "CommitOutcomeUnknownError",
    "CursusError",
    "ForkedError",
    "GroupTopicMismatchError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidSettingError",
    "InvalidStateError",
    "MaxPollIntervalError",
    "OffsetGapError",
    "OffsetRegressionError",
    "ProtocolError",
    "RebalancingError",
    "RecordTooLargeError",
    "TimedOutError",
    "UnknownTopicError",
    "UnreachableError",
]


@dataclass(frozen=True)
class BrokerFailure:
    """What a broker answered, where that caused an error."""

    code: str
    """The broker's own code: `GEN_MISMATCH`, `topic_not_found`, …"""
    class_: str | None
    """Its broad kind, where the broker said one: `authorization`, `fencing`, `not_found`, …"""
    retryable: bool | None
    """The broker's opinion, where it said one. The exception's own `retryable` is the better one."""
    fields: dict[str, str] | None
    """What else it said, by name."""


class CursusError(Exception):
    """Whatever this package raises, wrong types of arguments aside: those are a `TypeError`."""

    code: ClassVar[str] = "ERR_CURSUS"
    """The error's stable name, the same in every language."""
    number: ClassVar[int] = 0
    """The error's stable number, the same in every language."""
    retryable: ClassVar[bool] = False
    """Whether the same call may work later."""
    fatal: ClassVar[bool] = False
    """Whether the consumer is closed by it."""

    broker: BrokerFailure | None
    """The broker's answer, where one caused this."""

    def __init__(self, message: str = "", *, broker: BrokerFailure | None = None) -> None:
        super().__init__(message)
        self.broker = broker


class InvalidSettingError(CursusError, ValueError):
    """A setting's name or value is wrong. The message lists the right ones."""

    code = "ERR_INVALID_SETTING"
    number = 1


class InvalidArgumentError(CursusError, ValueError):
    """An argument is wrong: a negative time-out, a batch of another consumer, an offset beyond the position."""

    code = "ERR_INVALID_ARGUMENT"
    number = 2


class InvalidStateError(CursusError):
    """The call isn't possible in the consumer's present state."""

    code = "ERR_INVALID_STATE"
    number = 3


class ClosedError(CursusError):
    """The consumer is closed, or was closed while the call waited."""

    code = "ERR_CLOSED"
    number = 4


class RebalancingError(CursusError):
    """The partitions of what was asked are no longer this consumer's, or are being handed out anew. Poll again.

    `poll` raises it once after each rebalance, `commit` for whatever was read before it; then nothing was committed.
    """

    code = "ERR_REBALANCING"
    number = 5
    retryable = True

    stale: list["TopicPartition"]
    """The partitions whose assignment has ended, those that came back too: what was read there isn't committed."""
    owned: list["TopicPartition"]
    """The partitions of what was asked that may still be committed: see `Consumer.owned`."""

    def __init__(
        self,
        message: str = "",
        *,
        broker: BrokerFailure | None = None,
        stale: Iterable["TopicPartition"] = (),
        owned: Iterable["TopicPartition"] = (),
    ) -> None:
        super().__init__(message, broker=broker)
        self.stale = list(stale)
        self.owned = list(owned)


class TimedOutError(CursusError, TimeoutError):
    """The time given to a call was over before it was done; it had no effect."""

    code = "ERR_TIMED_OUT"
    number = 6
    retryable = True


class CommitOutcomeUnknownError(CursusError):
    """A commit was sent, and its answer didn't come in time: it may or may not have been carried out."""

    code = "ERR_COMMIT_OUTCOME_UNKNOWN"
    number = 7
    retryable = True


class OffsetRegressionError(CursusError):
    """A commit is below what is committed. Nothing was changed, here or there."""

    code = "ERR_OFFSET_REGRESSION"
    number = 8


class UnreachableError(CursusError, ConnectionError):
    """No broker could be reached."""

    code = "ERR_UNREACHABLE"
    number = 9
    retryable = True


class UnknownTopicError(CursusError):
    """Every reachable broker says that there is no such topic."""

    code = "ERR_UNKNOWN_TOPIC"
    number = 10
    fatal = True


class GroupTopicMismatchError(CursusError):
    """The group reads another topic: one group, one topic."""

    code = "ERR_GROUP_TOPIC_MISMATCH"
    number = 11
    fatal = True


class AuthenticationError(CursusError):
    """The broker asks for credentials, or refuses these."""

    code = "ERR_AUTHENTICATION"
    number = 12
    fatal = True


class AuthorizationError(CursusError):
    """These credentials may not do this."""

    code = "ERR_AUTHORIZATION"
    number = 13
    fatal = True


class RecordTooLargeError(CursusError):
    """A record is too large for any reply: at the protocol's frame limit it can't be read at all."""

    code = "ERR_RECORD_TOO_LARGE"
    number = 14
    fatal = True


class BrokerResponseError(CursusError):
    """The broker answered with an error that has no class of its own here."""

    code = "ERR_BROKER"
    number = 15


class ProtocolError(CursusError):
    """The broker sent what the protocol doesn't allow."""

    code = "ERR_PROTOCOL"
    number = 16
    retryable = True


class ForkedError(CursusError):
    """An object was made before a fork and belongs to the parent process. Make a new one in the child."""

    code = "ERR_FORKED"
    number = 17


class InternalError(CursusError):
    """A defect of this library. Please report it."""

    code = "ERR_INTERNAL"
    number = 18


class MaxPollIntervalError(CursusError):
    """Nobody polled for `max_poll_interval_ms`, so the member left its group.

    Raised once, by `poll` and by an iteration; poll again to join anew.
    """

    code = "ERR_MAX_POLL_INTERVAL"
    number = 19
    retryable = True

    stale: list["TopicPartition"]
    """The partitions that this consumer lost by it: what was read there and isn't committed comes again."""

    def __init__(
        self,
        message: str = "",
        *,
        broker: BrokerFailure | None = None,
        stale: Iterable["TopicPartition"] = (),
    ) -> None:
        super().__init__(message, broker=broker)
        self.stale = list(stale)


class OffsetGapError(CursusError):
    """With `auto_offset_reset=error`: nothing is committed for a partition, or its next record is no longer kept."""

    code = "ERR_OFFSET_GAP"
    number = 20
    fatal = True
