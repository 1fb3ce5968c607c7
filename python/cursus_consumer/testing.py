"""A Cursus cluster inside your tests.

    from cursus_consumer import Consumer
    from cursus_consumer.testing import EmbeddedCluster

    with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", 6)
        cluster.produce("orders", [("customer-1", b"two apples")])
        with Consumer(brokers=cluster.brokers, topic="orders", group_id="billing") as consumer:
            assert consumer.poll(timeout=10.0)[0].value == b"two apples"

It speaks the real protocol on loopback sockets and holds everything in memory. What a client can see is what real
brokers do; beside that a test can kill and pause brokers, move coordinators and leaders, fail, lose, damage, delay or
hold any command, freeze connections, swap addresses, and put the brokers' clock forward.
"""

from dataclasses import dataclass
from typing import final

from cursus_consumer._cluster import ClusterCommands
from cursus_consumer._native import Hold, Transaction, TransactionalWriter
from cursus_consumer.errors import CursusError

__all__ = [
    "EmbeddedCluster",
    "FencedError",
    "Group",
    "Hold",
    "Request",
    "Transaction",
    "TransactionalWriter",
]


class FencedError(CursusError):
    """Another writer has taken over this one's transactional id: this one is done."""


@dataclass(frozen=True)
class Group:
    """A consumer group as its coordinator sees it."""

    topic: str
    """The topic that the group reads."""
    generation: int
    """The generation; 0 while nobody has joined."""
    state: str
    """`Stable` with members, `Dead` without."""
    members: dict[str, list[int]]
    """The members' partitions by member id."""


@dataclass(frozen=True)
class Request:
    """A request that a broker received."""

    broker: int
    """The broker that received it."""
    connection: int
    """The connection it came by; each has a number of its own in the whole cluster."""
    command: str
    """The command's name; `BATCH` for a batch of records."""
    text: str
    """The command's text, cut off after 2,000 bytes; empty for a batch."""


@final
class EmbeddedCluster(ClusterCommands):
    """A Cursus cluster in this process: brokers that speak the real protocol, with faults on command.

    They listen on loopback sockets and hold everything in memory. The cluster runs once it is made, and ends with
    `with` or `stop`. Brokers are named by their index. What doesn't exist is an `InvalidArgumentError` that says what
    does.

    With one broker it is a standalone one, which answers a few commands differently. `session_timeout_ms` is how long a
    member may be silent, `expiry_check_ms` how often silent ones are looked for, `leader_election_ms` how long a leader
    that went down is still named, `coordinator_commit_lag_ms` how long a commit may stay unseen, and `port` the first
    broker's port, where free ones won't do. `advertised` has what single brokers name instead of where they listen, as
    with `advertise`.
    """

    __slots__ = ()

    def group(self, group: str) -> Group | None:
        """Return a group as its coordinator sees it; None where there is none of that name."""
        found = self._call("group", group=group)
        return None if found is None else Group(**found)

    def requests(self) -> list[Request]:
        """Return the last 10,000 requests that the brokers received, oldest first."""
        return [Request(**request) for request in self._call("requests")]
