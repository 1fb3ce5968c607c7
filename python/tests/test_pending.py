"""Commits that nobody waits for, and records acknowledged one by one."""

import gc
from typing import Any

import pytest
from conftest import MakeConsumer
from cursus_consumer import (
    AuthorizationError,
    ClosedError,
    Consumer,
    InvalidArgumentError,
    InvalidStateError,
    OffsetRegressionError,
    PendingCommit,
    RebalancingError,
    TimedOutError,
)
from cursus_consumer.testing import EmbeddedCluster
from support import Background, rebalanced, take, took, until

TEN_EACH = dict.fromkeys(range(4), 10)


@pytest.fixture
def read(cluster: EmbeddedCluster, consumer: Consumer) -> Consumer:
    """A consumer that has polled ten records of each partition."""
    cluster.fill("orders", 40, 10)
    take(consumer, 40)
    return consumer


def test_a_pending_commit_is_done_once_the_coordinator_has_it(
    cluster: EmbeddedCluster, read: Consumer, group: str
) -> None:
    with cluster.hold("BATCH_COMMIT") as hold:
        pending = read.commit_async()
        cluster.wait_for(hold.is_reached)
        assert pending.done() is False
        assert repr(pending) == "<PendingCommit, under way>"
        with took(0.1, 0.3), pytest.raises(TimedOutError, match=r"isn't known yet. It goes on"):
            pending.result(timeout=0.1)
        with took(0.0, 0.1), pytest.raises(TimedOutError):
            pending.result(0)
        waiting = [Background(pending.result) for _ in range(3)]
    for thread in waiting:
        thread.result()
    assert pending.done() is True
    pending.result(timeout=0)
    assert repr(pending) == "<PendingCommit, done>"
    assert cluster.committed(group, "orders") == TEN_EACH


def test_it_takes_what_commit_takes(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    cluster.produce("orders", [str(i) for i in range(9)], partition=2)
    batch = consumer.poll(timeout=10.0)
    consumer.commit_async(batch[0]).result(10.0)
    assert cluster.committed(group, "orders") == {2: 1}
    consumer.commit_async({2: 2}, timeout=10.0).result()
    assert cluster.committed(group, "orders") == {2: 2}
    consumer.commit_async(batch[:5]).result()
    assert cluster.committed(group, "orders") == {2: 5}
    consumer.commit_async({}).result(10.0)
    consumer.commit_async(batch[:0]).result(10.0)
    for wrong in (None, 7, [1]):
        with pytest.raises(TypeError, match="a commit is of a Batch, a Record or a mapping"):
            consumer.commit_async(wrong)  # type: ignore[call-overload]


def test_one_that_is_dropped_is_carried_out_all_the_same(cluster: EmbeddedCluster, read: Consumer, group: str) -> None:
    with cluster.hold("BATCH_COMMIT") as hold:
        pending = read.commit_async({0: 5})
        cluster.wait_for(hold.is_reached)
        del pending
        read.commit_async()
        gc.collect()
    cluster.wait_for(lambda: cluster.committed(group, "orders") == TEN_EACH)


def test_what_is_known_at_once_is_raised_at_once(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, read: Consumer
) -> None:
    with pytest.raises(InvalidArgumentError, match="read only up to 10"):
        read.commit_async({0: 11})
    records = [*take(make_consumer(group_id="another", enable_auto_commit=False), 1)]
    with pytest.raises(InvalidArgumentError, match="read by another consumer"):
        read.commit_async(records[0])


def test_its_error_is_raised_as_often_as_it_is_asked_for(cluster: EmbeddedCluster, read: Consumer) -> None:
    cluster.fail_next("BATCH_COMMIT", 1, "NOT_AUTHORIZED_FOR_OPERATION command=BATCH_COMMIT permission=commit")
    pending = read.commit_async()
    for _ in range(2):
        with pytest.raises(AuthorizationError, match="refuses the commit") as caught:
            pending.result(timeout=10.0)
        assert caught.value.broker is not None and caught.value.broker.class_ == "authorization"
    assert pending.done()
    assert repr(pending) == "<PendingCommit, failed with ERR_AUTHORIZATION>"
    read.commit({0: 5})
    with pytest.raises(OffsetRegressionError):
        read.commit_async({0: 4}).result(timeout=10.0)


def test_one_that_could_not_be_sent_in_its_time_is_withdrawn(
    cluster: EmbeddedCluster, read: Consumer, group: str
) -> None:
    cluster.stop_broker(cluster.coordinator(group))
    until(lambda: read.stats().coordinator_unreachable_seconds is not None, "the coordinator is missed")
    with pytest.raises(TimedOutError, match="withdrawn"):
        read.commit_async({0: 5}, timeout=0.1).result()


def test_close_waits_for_it_and_its_outcome_stays(cluster: EmbeddedCluster, read: Consumer, group: str) -> None:
    with cluster.hold("BATCH_COMMIT") as hold:
        pending = read.commit_async()
        cluster.wait_for(hold.is_reached)
        close = Background(read.close)
        until(lambda: read.state != "running", "it begins to close")
        assert not pending.done()
    close.result()
    pending.result(timeout=10.0)
    assert cluster.committed(group, "orders") == TEN_EACH
    with pytest.raises(ClosedError):
        read.commit_async()


def test_nobody_makes_one() -> None:
    make: Any = PendingCommit
    with pytest.raises(TypeError):
        make()


def test_acknowledgements_commit_what_has_no_gap(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    cluster.produce("orders", [str(i) for i in range(10)], partition=1)
    consumer = make_consumer(enable_auto_commit=False, auto_commit_interval_ms=10)
    records = take(consumer, 10)
    for i in (1, 0, 3, 2, 9):
        consumer.ack(records[i].detach())
    consumer.ack(records[0])
    cluster.wait_for(lambda: cluster.committed(group, "orders") == {1: 4})
    consumer.ack(records[4])
    consumer.close()
    assert cluster.committed(group, "orders") == {1: 5}, "and close commits the rest"
    with pytest.raises(ClosedError):
        consumer.ack(records[5])


def test_what_can_not_be_acknowledged_says_why(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, consumer: Consumer
) -> None:
    cluster.produce("orders", ["x", "y"], partition=1)
    automatic = make_consumer(group_id="automatic")
    with pytest.raises(InvalidStateError, match="can't be acknowledged with enable_auto_commit"):
        automatic.ack(take(automatic, 1)[0])
    record = take(consumer, 1)[0]
    with pytest.raises(InvalidArgumentError, match="read by another consumer"):
        automatic.ack(record)
    for wrong in (None, 1, consumer.poll(timeout=0)):
        with pytest.raises(TypeError):
            consumer.ack(wrong)  # type: ignore[arg-type]
    with make_consumer(enable_auto_commit=False) as other:
        other.start(timeout=10.0)
        rebalanced(consumer)
    with pytest.raises(RebalancingError) as caught:
        consumer.ack(record)
    assert caught.value.stale == [record.topic_partition]
