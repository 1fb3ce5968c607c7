"""Callbacks about rebalances: on the thread that polls, in order, and before anything that a new assignment brings."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import MakeConsumer
from cursus_consumer import (
    ClosedError,
    Consumer,
    InvalidStateError,
    MaxPollIntervalError,
    RebalancingError,
    State,
    TopicPartition,
)
from cursus_consumer.testing import EmbeddedCluster
from support import PATIENCE, Background, fetched, partitions, places, rebalanced, take, took, until

ALL = partitions(0, 1, 2, 3)
Told = list[tuple[str, list[TopicPartition]]]


def telling(consumer: Consumer) -> Told:
    """Keep what the consumer tells."""
    told: Told = []
    consumer.on_assigned(lambda _, partitions: told.append(("assigned", partitions)))
    consumer.on_revoked(lambda _, partitions: told.append(("revoked", partitions)))
    return told


def test_they_get_the_consumer_and_a_list_and_are_given_back(consumer: Consumer) -> None:
    calls: list[tuple[Any, ...]] = []

    @consumer.on_assigned
    def assigned(*arguments: Any) -> None:
        calls.append(arguments)

    assert callable(assigned) and assigned.__name__ == "assigned"
    consumer.start(timeout=10.0)
    assert calls == [], "a start calls nobody back"
    consumer.poll(timeout=0)
    assert calls == [(consumer, ALL)]
    consumer.poll(timeout=0)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "step",
    [
        lambda consumer: consumer.poll(timeout=10.0),
        lambda consumer: next(iter(consumer)),
        lambda consumer: next(consumer.batches()),
    ],
    ids=["poll", "records", "batches"],
)
def test_the_assignment_is_told_before_its_first_record_on_the_same_thread(
    cluster: EmbeddedCluster, consumer: Consumer, step: Callable[[Consumer], Any]
) -> None:
    cluster.fill("orders", 40, 10)
    told: list[tuple[int, list[int | None]]] = []
    consumer.on_assigned(
        lambda consumer, given: told.append(
            (threading.get_ident(), [consumer.position(partition) for partition in given])
        )
    )
    fetched(cluster, consumer, "orders")
    step(consumer)
    assert told == [(threading.get_ident(), [0, 0, 0, 0])]


def test_revoked_is_told_before_the_poll_raises_and_before_what_is_assigned_next(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, consumer: Consumer
) -> None:
    told = telling(consumer)
    consumer.start(timeout=10.0)
    consumer.poll(timeout=0)
    other = make_consumer(enable_auto_commit=False)
    other.start(timeout=10.0)
    rebalanced(consumer)
    assert told[:2] == [("assigned", ALL), ("revoked", ALL)]
    until(lambda: consumer.poll(timeout=0.1) is not None and len(told) == 3, "the new assignment is told")
    assert told[2] == ("assigned", consumer.assignment())
    assert len(told[2][1]) == 2
    other.close()
    rebalanced(consumer)
    assert told[3] == ("revoked", told[2][1])


def test_an_iteration_tells_all_of_it_and_goes_on(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, consumer: Consumer
) -> None:
    told = telling(consumer)
    cluster.produce("orders", ["x"], partition=0)
    records = iter(consumer)
    next(records)
    with make_consumer() as other:
        other.start(timeout=10.0)
        until(lambda: len(consumer.assignment()) == 2, "the partitions are shared")
        shared = consumer.assignment()
    until(lambda: len(consumer.assignment()) == 4, "they are its own again")
    next(records)
    assert told == [("assigned", ALL), ("revoked", ALL), ("assigned", shared), ("revoked", shared), ("assigned", ALL)]


def test_inside_of_one_the_consumer_can_be_used(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    cluster.fill("orders", 40, 10)
    seen: list[Any] = []

    @consumer.on_assigned
    def assigned(consumer: Consumer, given: list[TopicPartition]) -> None:
        consumer.seek(0, 7)
        consumer.pause(given[1:])
        consumer.commit({0: 5}, timeout=10.0)
        consumer.commit_async({0: 6}).result(timeout=10.0)
        seen.extend(
            [consumer.position(0), consumer.committed(0, timeout=10.0), consumer.paused(), consumer.lag(timeout=10.0)]
        )

    fetched(cluster, consumer, "orders")
    assert places(take(consumer, 3)) == [(0, 7), (0, 8), (0, 9)]
    assert seen == [7, 6, ALL[1:], dict(zip(ALL, [3, 10, 10, 10], strict=True))]
    assert cluster.committed(group, "orders") == {0: 6}


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.poll(timeout=0),
        lambda consumer: next(iter(consumer)),
        lambda consumer: next(consumer.batches()),
    ],
    ids=["poll", "records", "batches"],
)
def test_inside_of_one_nothing_is_polled(consumer: Consumer, call: Callable[[Consumer], object]) -> None:
    @consumer.on_assigned
    def assigned(consumer: Consumer, _: object) -> None:
        call(consumer)

    consumer.start(timeout=10.0)
    with pytest.raises(InvalidStateError, match="inside of a callback"):
        consumer.poll(timeout=0)
    assert len(consumer.poll(timeout=0)) == 0, "it goes on"


def test_closing_inside_of_one_waits_for_everything_else(
    cluster: EmbeddedCluster, consumer: Consumer, group: str
) -> None:
    told: list[object] = []

    @consumer.on_assigned
    def assigned(consumer: Consumer, _: object) -> None:
        consumer.close()
        found = cluster.group(group)
        told.append((consumer.state, found is not None and found.members))

    consumer.on_revoked(lambda _, partitions: told.append(partitions))
    consumer.start(timeout=10.0)
    with pytest.raises(ClosedError):
        consumer.poll(timeout=10.0)
    assert told == [(State.CLOSED, {}), ALL], "what is revoked by it is told by the poll, once the callback returned"
    consumer.close()
    assert len(told) == 2


def test_close_tells_what_is_revoked_and_it_is_too_late_to_commit(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.produce("orders", ["x"], partition=0)
    told: list[object] = []

    @consumer.on_revoked
    def revoked(consumer: Consumer, given: list[TopicPartition]) -> None:
        told.append((consumer.state, given))
        consumer.commit()

    batch = take(consumer, 1)
    with pytest.raises(ClosedError):
        consumer.close()
    assert told == [(State.CLOSED, ALL)]
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.commit(batch[0])
    assert len(told) == 1


def test_with_tells_it_too(consumer: Consumer) -> None:
    told = telling(consumer)
    with consumer:
        consumer.start(timeout=10.0)
    assert told == [("assigned", ALL), ("revoked", ALL)]


def test_what_one_raises_comes_out_of_the_poll_and_nothing_else_is_lost(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, consumer: Consumer
) -> None:
    told: Told = []

    def failing(name: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        def callback(_: Consumer, given: list[TopicPartition]) -> None:
            told.append((name, given))
            raise ZeroDivisionError(name)

        return callback

    consumer.on_assigned(failing("assigned"))
    consumer.on_revoked(failing("revoked"))
    cluster.produce("orders", ["x"], partition=0)
    fetched(cluster, consumer, "orders")
    with pytest.raises(ZeroDivisionError, match="assigned"):
        consumer.poll(timeout=10.0)
    assert places(consumer.poll(timeout=10.0)) == [(0, 0)]
    with make_consumer() as other:
        other.start(timeout=10.0)
        until(lambda: len(consumer.assignment()) == 2, "the partitions are shared")
        shared = consumer.assignment()
        with pytest.raises(ZeroDivisionError, match="revoked"):
            consumer.poll(timeout=10.0)
        with pytest.raises(RebalancingError) as caught:
            consumer.poll(timeout=10.0)
        assert caught.value.stale == ALL
        with pytest.raises(ZeroDivisionError, match="assigned"):
            consumer.poll(timeout=10.0)
    assert told == [("assigned", ALL), ("revoked", ALL), ("assigned", shared)]
    with pytest.raises(ZeroDivisionError, match="revoked"):
        consumer.close()
    assert consumer.state is State.CLOSED


def test_a_poll_of_another_thread_gets_nothing_while_one_runs(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.fill("orders", 40, 10)
    inside, leave = threading.Event(), threading.Event()

    @consumer.on_assigned
    def assigned(consumer: Consumer, _: object) -> None:
        inside.set()
        assert leave.wait(PATIENCE)
        consumer.seek(0, 10)

    fetched(cluster, consumer, "orders")
    telling = Background(lambda: consumer.poll(timeout=10.0))
    assert inside.wait(PATIENCE)
    with took(0.1, 0.3):
        assert len(consumer.poll(timeout=0.1)) == 0
    waiting = Background(lambda: consumer.poll(timeout=10.0))
    leave.set()
    seen = places([*telling.result(), *waiting.result()])
    assert seen and all(partition != 0 for partition, _ in seen)


def test_close_of_another_thread_waits_for_one_that_runs(consumer: Consumer) -> None:
    inside, leave = threading.Event(), threading.Event()
    told: list[str] = []

    @consumer.on_assigned
    def assigned(*_: object) -> None:
        inside.set()
        assert leave.wait(PATIENCE)
        told.append("assigned")

    consumer.on_revoked(lambda *_: told.append("revoked"))
    consumer.start(timeout=10.0)
    poll = Background(lambda: consumer.poll(timeout=10.0))
    assert inside.wait(PATIENCE)
    with took(0.2, 0.5):
        consumer.close(timeout=0.2)
    assert consumer.state is State.CLOSED and told == [], "it has a deadline"
    close = Background(lambda: consumer.close(timeout=None))
    leave.set()
    close.result()
    assert told == ["assigned", "revoked"]
    with pytest.raises(ClosedError):
        poll.result()


def test_one_that_is_set_later_hears_of_what_comes(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, consumer: Consumer
) -> None:
    consumer.start(timeout=10.0)
    told = telling(consumer)
    consumer.poll(timeout=0)
    assert told == []
    with make_consumer() as other:
        other.start(timeout=10.0)
        rebalanced(consumer)
    assert told[0] == ("revoked", ALL)


def test_a_new_one_takes_the_place_of_the_one_before(consumer: Consumer) -> None:
    told: list[str] = []
    consumer.on_assigned(lambda *_: told.append("first"))
    consumer.on_assigned(lambda *_: told.append("second"))
    consumer.start(timeout=10.0)
    consumer.poll(timeout=0)
    assert told == ["second"]


def test_who_took_too_long_hears_that_it_lost_its_partitions_before_the_poll_raises(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    consumer = make_consumer(enable_auto_commit=False, max_poll_interval_ms=200)
    told: list[object] = []

    @consumer.on_assigned
    def assigned(*_: object) -> None:
        if not told:
            # The time that a callback takes is the application's.
            cluster.wait_for(lambda: (found := cluster.group(group)) is not None and not found.members)
        told.append("assigned")

    consumer.on_revoked(lambda _, given: told.append(given))
    consumer.start(timeout=10.0)
    with pytest.raises(MaxPollIntervalError):
        consumer.poll(timeout=10.0)
    assert told == ["assigned", ALL]
    until(lambda: consumer.poll(timeout=0.1) is not None and len(told) == 3, "it joins anew")


def test_a_consumer_without_a_group_tells_what_it_assigned_to_itself(alone: Consumer) -> None:
    told = telling(alone)
    alone.assign([0, 1])
    until(lambda: alone.poll(timeout=0.1) is not None and told, "it is told")
    alone.assign([2])
    until(lambda: alone.poll(timeout=0.1) is not None and len(told) == 3, "the next one is told")
    assert told == [("assigned", ALL[:2]), ("revoked", ALL[:2]), ("assigned", ALL[2:3])]


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
def test_what_can_not_be_called_is_refused(consumer: Consumer, name: str) -> None:
    for wrong in (None, 1, "print"):
        with pytest.raises(TypeError, match="a callback is called with the consumer and a list of partitions"):
            getattr(consumer, name)(wrong)
    consumer.close()
    with pytest.raises(ClosedError):
        getattr(consumer, name)(print)


def test_a_consumer_that_its_own_callback_refers_to_is_collected(
    cluster: EmbeddedCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    def made() -> "weakref.ref[Consumer]":
        consumer = Consumer(brokers=cluster.brokers, topic="orders", group_id="forgotten")
        consumer.on_assigned(lambda *_: consumer.pause([]))
        consumer.on_revoked(lambda *_: consumer.pause([]))
        consumer.start(timeout=10.0)
        return weakref.ref(consumer)

    gone = made()
    gc.collect()
    assert gone() is None
    cluster.wait_for(lambda: (found := cluster.group("forgotten")) is None or not found.members)
    assert capfd.readouterr() == ("", "")


@pytest.fixture(autouse=True)
def no_thread_stays_in_a_callback() -> Iterator[None]:
    """A thread that is left in a callback would hold up the consumer's end for ever."""
    before = set(threading.enumerate())
    yield
    until(lambda: set(threading.enumerate()) <= before, "the test's threads end")
