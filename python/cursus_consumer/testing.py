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

from cursus_consumer._native import EmbeddedCluster, Hold, Transaction, TransactionalWriter
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
