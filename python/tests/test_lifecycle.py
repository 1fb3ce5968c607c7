"""From new to closed: what may be called when, from where, and what it leaves behind."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from conftest import MakeConsumer
from cursus_consumer import ClosedError, Consumer, InvalidStateError, State
from cursus_consumer.testing import EmbeddedCluster
from support import Background, take, took, until


def test_making_a_consumer_sends_nothing(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    assert consumer.state is State.NEW
    assert consumer.stats().member is None
    assert [cluster.connections(broker) for broker in range(3)] == [0, 0, 0]
    assert repr(consumer).startswith("<Consumer of orders in group group-") and repr(consumer).endswith(", new>")


def test_start_waits_for_the_assignment(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    consumer.start(timeout=10.0)
    assert consumer.state is State.RUNNING
    consumer.start(timeout=0)
    stats = consumer.stats()
    found = cluster.group(group)
    assert found is not None
    assert list(found.members) == [stats.member] and found.generation == stats.generation == stats.local_generation == 1
    assert stats.coordinator == cluster.brokers[cluster.coordinator(group)]


def test_close_leaves_the_group_before_it_returns(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    consumer.start(timeout=10.0)
    consumer.close()
    found = cluster.group(group)
    assert found is not None and found.members == {}
    assert consumer.state is State.CLOSED
    assert consumer.stats().given_up == [] and consumer.stats().member is None
    cluster.wait_for(lambda: [cluster.connections(broker) for broker in range(3)] == [0, 0, 0])


def test_with_starts_and_closes(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    with consumer as entered:
        assert entered is consumer
        cluster.wait_for(lambda: (found := cluster.group(group)) is not None and found.members)
    assert consumer.state is State.CLOSED


def test_with_closes_behind_an_exception(consumer: Consumer) -> None:
    with pytest.raises(ZeroDivisionError), consumer:
        raise ZeroDivisionError
    assert consumer.state is State.CLOSED


def test_with_is_entered_once(consumer: Consumer) -> None:
    with consumer, pytest.raises(InvalidStateError, match="inside of `with` already"):
        consumer.__enter__()
    with pytest.raises(ClosedError):
        consumer.__enter__()


CALLS: dict[str, Callable[[Consumer], object]] = {
    "start": lambda consumer: consumer.start(),
    "poll": lambda consumer: consumer.poll(),
    "commit": lambda consumer: consumer.commit(),
    "commit of offsets": lambda consumer: consumer.commit({0: 0}),
    "committed": lambda consumer: consumer.committed(0),
    "position": lambda consumer: consumer.position(0),
    "commit_async": lambda consumer: consumer.commit_async(),
    "assign": lambda consumer: consumer.assign([0]),
    "seek": lambda consumer: consumer.seek(0, 0),
    "pause": lambda consumer: consumer.pause(0),
    "resume": lambda consumer: consumer.resume(0),
    "begin_offsets": lambda consumer: consumer.begin_offsets(),
    "end_offsets": lambda consumer: consumer.end_offsets([0]),
    "lag": lambda consumer: consumer.lag(),
    "group_metadata": lambda consumer: consumer.group_metadata(),
    "describe_group": lambda consumer: consumer.describe_group(),
    "batches": lambda consumer: consumer.batches(),
    "iter": iter,
    "enter": lambda consumer: consumer.__enter__(),
}


@pytest.mark.parametrize("started", [True, False], ids=["started", "never started"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_after_close_every_call_says_so(consumer: Consumer, call: Callable[[Consumer], object], started: bool) -> None:
    if started:
        consumer.start(timeout=10.0)
    consumer.close()
    with pytest.raises(ClosedError, match="the consumer is closed: make a new one"):
        call(consumer)
    consumer.close()
    consumer.close(timeout=0)
    assert consumer.state is State.CLOSED
    assert consumer.assignment() == consumer.paused() == []
    assert consumer.stats().state is State.CLOSED
    assert consumer.fatal_error is None
    assert repr(consumer).endswith("closed>")


def test_after_close_a_batch_is_readable_and_not_committed(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.produce("orders", ["x"])
    batch = consumer.poll(timeout=10.0)
    consumer.close()
    assert batch[0].value == b"x"
    for call in (consumer.commit, consumer.owned):
        with pytest.raises(ClosedError):
            call(batch)
    with pytest.raises(ClosedError):
        batch.owned()


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_close_ends_a_poll_of_another_thread(consumer: Consumer, timeout: float | None) -> None:
    consumer.start(timeout=10.0)
    poll = Background(lambda: consumer.poll(timeout=timeout))
    time.sleep(0.05)
    with took(0.0, 1.0):
        consumer.close()
        with pytest.raises(ClosedError):
            poll.result()


@pytest.mark.parametrize("iterate", [iter, Consumer.batches], ids=["records", "batches"])
def test_close_ends_an_iteration_of_another_thread(consumer: Consumer, iterate: Callable[[Consumer], Any]) -> None:
    consumer.start(timeout=10.0)
    iteration = iterate(consumer)
    reading = Background(lambda: list(iteration))
    time.sleep(0.05)
    consumer.close()
    assert reading.result() == []
    with pytest.raises(StopIteration):
        next(iteration)


@pytest.mark.parametrize("iterate", [iter, Consumer.batches], ids=["records", "batches"])
def test_close_inside_of_an_iteration_ends_it(
    cluster: EmbeddedCluster, consumer: Consumer, iterate: Callable[[Consumer], Any]
) -> None:
    cluster.fill("orders", 100, 10)
    turns = 0
    for _ in iterate(consumer):
        turns += 1
        consumer.close()
    assert turns == 1


def test_close_from_many_threads_is_one(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    consumer.start(timeout=10.0)
    barrier = threading.Barrier(8)

    def close() -> State:
        barrier.wait()
        consumer.close()
        return consumer.state

    assert [closing.result() for closing in [Background(close) for _ in range(8)]] == [State.CLOSED] * 8
    leaves = [request for request in cluster.requests() if request.command == "LEAVE_GROUP"]
    assert len(leaves) == 1


def test_close_while_it_joins(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    with cluster.hold("JOIN_GROUP") as hold:
        start = Background(lambda: consumer.start(timeout=None))
        cluster.wait_for(hold.is_reached)
        with took(0.0, 1.0):
            consumer.close(timeout=0.5)
        with pytest.raises(ClosedError):
            start.result()
    assert consumer.state is State.CLOSED


def test_close_keeps_its_deadline_where_nobody_answers(
    cluster: EmbeddedCluster, consumer: Consumer, group: str
) -> None:
    cluster.fill("orders", 40, 10)
    take(consumer, 40)
    with cluster.hold("BATCH_COMMIT") as hold, cluster.hold("LEAVE_GROUP"):
        commit = Background(consumer.commit)
        cluster.wait_for(hold.is_reached)
        with took(0.3, 0.6):
            consumer.close(timeout=0.4)
        with pytest.raises(Exception, match="not answered in time"):
            commit.result()
    assert consumer.state is State.CLOSED
    assert any("committing orders-0" in note for note in consumer.stats().given_up)


def test_close_with_the_cluster_gone(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    for broker in range(3):
        cluster.kill_broker(broker)
    with took(0.0, 1.0):
        consumer.close(timeout=1.0)
    assert consumer.state is State.CLOSED


def test_close_of_no_time_does_not_wait(consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    with took(0.0, 0.2):
        consumer.close(timeout=0)
    assert consumer.state is State.CLOSED


@pytest.mark.parametrize("what", ["records", "batches", "poll", "nothing"])
def test_a_forgotten_consumer_goes_silently_and_leaves(
    cluster: EmbeddedCluster, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    cluster.fill("orders", 1000, 10)
    consumer = Consumer(brokers=cluster.brokers, topic="orders", group_id="forgotten")
    if what == "poll":
        assert len(consumer.poll(timeout=10.0)) > 0
    elif what != "nothing":
        next(iter(consumer) if what == "records" else consumer.batches())
    gone = weakref.ref(consumer)
    with took(0.0, 0.1):
        del consumer
        gc.collect()
    assert gone() is None
    cluster.wait_for(lambda: (found := cluster.group("forgotten")) is None or not found.members)
    cluster.wait_for(lambda: not any(cluster.connections(broker) for broker in range(3)))
    assert capfd.readouterr() == ("", "")


def test_a_default_start_says_nothing(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.fill("orders", 10, 10)
    with make_consumer() as consumer:
        take(consumer, 10)
        cluster.cut_connections()
        cluster.fill("orders", 10, 10)
        take(consumer, 10)
    assert capfd.readouterr() == ("", "")


def test_nothing_of_a_closed_consumer_runs_on(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    def connections() -> int:
        return sum(cluster.connections(broker) for broker in range(3))

    for _ in range(5):
        with make_consumer() as consumer:
            consumer.start(timeout=10.0)
            assert connections() > 0
        until(lambda: connections() == 0, "its connections are closed")
    assert sum(thread.is_alive() for thread in threading.enumerate()) < 20
