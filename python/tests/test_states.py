"""The table of docs/consuming.md: what a call does before an assignment, during a rebalance and after it."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
from conftest import MakeConsumer
from cursus_consumer import Batch, Consumer, InvalidStateError, RebalancingError
from cursus_consumer.testing import EmbeddedCluster
from support import held_in_a_rebalance, partitions, rebalanced, take

Call = Callable[[Consumer, Batch], object]

CALLS: dict[str, Call] = {
    "commit": lambda consumer, _: consumer.commit(timeout=10.0),
    "commit_async": lambda consumer, _: consumer.commit_async().result(timeout=10.0),
    "commit of a batch": lambda consumer, batch: consumer.commit(batch),
    "commit of a record": lambda consumer, batch: consumer.commit(batch[0]),
    "commit of offsets": lambda consumer, _: consumer.commit({0: 0}),
    "ack": lambda consumer, batch: consumer.ack(batch[0]),
    "seek": lambda consumer, _: consumer.seek(0, 0),
    "pause": lambda consumer, _: consumer.pause(0),
    "resume": lambda consumer, _: consumer.resume(0),
    "position": lambda consumer, _: consumer.position(0),
    "assignment": lambda consumer, _: consumer.assignment(),
    "paused": lambda consumer, _: consumer.paused(),
    "end_offsets": lambda consumer, _: consumer.end_offsets(timeout=10.0),
    "lag": lambda consumer, _: consumer.lag(timeout=10.0),
    "group_metadata": lambda consumer, _: consumer.group_metadata(),
}
EMPTY: dict[str, object] = {"position": None, "assignment": [], "paused": [], "end_offsets": {}, "lag": {}}


@pytest.fixture
def batch(cluster: EmbeddedCluster, consumer: Consumer) -> Batch:
    """What the consumer has read of an assignment that it still has."""
    cluster.produce("orders", ["x", "y"], partition=0)
    take(consumer, 2)
    consumer.seek(0, 0)
    return consumer.poll(timeout=10.0)


def answer(call: Call, consumer: Consumer, batch: Batch) -> object:
    """What a call gives, or the class of what it raises."""
    try:
        return call(consumer, batch)
    except (InvalidStateError, RebalancingError) as error:
        return type(error)


@pytest.mark.parametrize("joining", [False, True], ids=["new", "joining"])
def test_before_the_first_assignment(cluster: EmbeddedCluster, consumer: Consumer, joining: bool) -> None:
    said: dict[str, object] = {}
    with cluster.hold("JOIN_GROUP") if joining else nullcontext() as hold:
        if hold is not None:
            consumer.poll(timeout=0)
            cluster.wait_for(hold.is_reached)
        for name, call in CALLS.items():
            # There is no record yet to commit or acknowledge, and a question starts a consumer that is new.
            if name not in {"ack", "commit of a batch", "commit of a record"} and (
                joining or name not in {"lag", "end_offsets"}
            ):
                said[name] = answer(call, consumer, None)  # type: ignore[arg-type]
    moves = dict.fromkeys(["seek", "pause", "resume", "group_metadata"], InvalidStateError)
    commits = {"commit": None, "commit_async": None, "commit of offsets": RebalancingError}
    assert said == {name: {**EMPTY, **moves, **commits}[name] for name in said}


def test_while_rebalancing(cluster: EmbeddedCluster, consumer: Consumer, group: str, batch: Batch) -> None:
    with held_in_a_rebalance(cluster, consumer, group):
        said = {name: answer(call, consumer, batch) for name, call in CALLS.items()}
    assert said == {name: EMPTY.get(name, RebalancingError) for name in CALLS}


def test_of_what_was_revoked(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    cluster.produce("orders", ["x", "y"], partition=0)
    # Partitions go to members in the order of their ids.
    consumer = make_consumer(consumer_id="b", enable_auto_commit=False)
    batch = consumer.poll(timeout=10.0)
    make_consumer(consumer_id="a", enable_auto_commit=False).start(timeout=10.0)
    rebalanced(consumer)
    consumer.start(timeout=10.0)
    mine = partitions(2, 3)
    assert consumer.assignment() == mine
    said = {name: answer(call, consumer, batch) for name, call in CALLS.items()}
    me = consumer.group_metadata()
    assert batch.group_metadata() != me
    told: dict[str, object] = {
        "commit": None,
        "commit_async": None,
        "seek": InvalidStateError,
        "pause": InvalidStateError,
        "resume": InvalidStateError,
        "position": None,
        "assignment": mine,
        "paused": [],
        "end_offsets": dict.fromkeys(mine, 0),
        "lag": dict.fromkeys(mine, 0),
        "group_metadata": me,
    }
    assert said == {name: told.get(name, RebalancingError) for name in CALLS}
