"""Seek, pause and resume: what an application does to partitions that it owns, and what a rebalance does to that."""

from collections.abc import Callable

import pytest
from conftest import MakeConsumer
from cursus_consumer import Consumer, InvalidArgumentError, InvalidStateError, RebalancingError, TopicPartition
from cursus_consumer.testing import EmbeddedCluster
from support import held_in_a_rebalance, partitions, places, rebalanced, take, until

MOVES: dict[str, Callable[[Consumer, TopicPartition | int], object]] = {
    "seek": lambda consumer, partition: consumer.seek(partition, 0),
    "pause": lambda consumer, partition: consumer.pause(partition),
    "resume": lambda consumer, partition: consumer.resume([partition]),
}
moves = pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)


@pytest.mark.parametrize("partition", [1, TopicPartition("orders", 1)], ids=["number", "in full"])
def test_a_seek_goes_back_and_forth(
    cluster: EmbeddedCluster, consumer: Consumer, partition: TopicPartition | int
) -> None:
    cluster.produce("orders", [str(i) for i in range(10)], partition=1)
    assert len(take(consumer, 10)) == 10
    consumer.seek(partition, 3)
    assert consumer.position(partition) == 3
    assert [record.offset for record in take(consumer, 7)] == list(range(3, 10))
    consumer.seek(partition, 9)
    assert [record.offset for record in take(consumer, 1)] == [9]


def test_a_seek_leaves_the_fences_as_they_are(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    cluster.produce("orders", ["a", "b", "c"], partition=1)
    batch = take(consumer, 3)
    consumer.seek(1, 0)
    consumer.commit(batch[1])
    assert cluster.committed(group, "orders") == {1: 2}


def test_what_is_paused_is_not_returned_and_the_others_are(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    consumer.pause([0, TopicPartition("orders", 1)])
    consumer.pause(0)
    assert consumer.paused() == partitions(0, 1)
    cluster.fill("orders", 40, 10)
    assert {partition for partition, _ in places(take(consumer, 20))} == {2, 3}
    assert len(consumer.poll(timeout=0)) == 0
    consumer.resume(TopicPartition("orders", 0))
    assert {partition for partition, _ in places(take(consumer, 10))} == {0}
    consumer.resume(iter([0, 1]))
    assert consumer.paused() == []
    assert {partition for partition, _ in places(take(consumer, 10))} == {1}


def test_all_of_them_are_paused_or_none(consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    consumer.pause([])
    with pytest.raises(
        InvalidStateError, match=r"orders-7, orders-9 can't be paused: not assigned .* It owns orders-0"
    ):
        consumer.pause([0, 7, 9])
    assert consumer.paused() == []
    consumer.pause([0, 1])
    with pytest.raises(InvalidStateError, match="orders-7 can't be resumed"):
        consumer.resume([0, 7])
    assert consumer.paused() == partitions(0, 1)


@moves
def test_before_the_assignment_there_is_nothing_to_move(
    cluster: EmbeddedCluster, consumer: Consumer, move: Callable[[Consumer, int], object]
) -> None:
    with pytest.raises(
        InvalidStateError, match=r"orders-0 can't be .*: not assigned to this consumer now. It owns none"
    ):
        move(consumer, 0)
    assert consumer.state == "new", "it doesn't join for that"
    with cluster.hold("JOIN_GROUP") as hold:
        consumer.poll(timeout=0)
        cluster.wait_for(hold.is_reached)
        with pytest.raises(InvalidStateError):
            move(consumer, 0)
    assert consumer.paused() == []


@moves
def test_during_a_rebalance_a_move_says_so(
    cluster: EmbeddedCluster, consumer: Consumer, group: str, move: Callable[[Consumer, int], object]
) -> None:
    consumer.start(timeout=10.0)
    with held_in_a_rebalance(cluster, consumer, group):
        with pytest.raises(RebalancingError, match=r"a rebalance ended their assignment. Poll to go on") as caught:
            move(consumer, 0)
        assert caught.value.stale == partitions(0)


def test_a_rebalance_forgets_seeks_and_pauses(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, consumer: Consumer
) -> None:
    cluster.fill("orders", 40, 10)
    take(consumer, 40)
    consumer.commit()
    consumer.seek(0, 5)
    consumer.pause([0, 1, 2, 3])
    with make_consumer() as other:
        other.start(timeout=10.0)
        rebalanced(consumer)
    consumer.start(timeout=10.0)
    assert consumer.paused() == []
    until(lambda: len(consumer.assignment()) == 4, "everything is its own again")
    assert [consumer.position(partition) for partition in range(4)] == [10] * 4


@moves
def test_another_topic_s_partition_is_not_moved(
    consumer: Consumer, move: Callable[[Consumer, TopicPartition], object]
) -> None:
    consumer.start(timeout=10.0)
    with pytest.raises(InvalidArgumentError, match="returns-0 is not of the topic that this consumer reads, orders"):
        move(consumer, TopicPartition("returns", 0))


def test_what_is_no_partition_is_refused(consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    several: list[Callable[..., object]] = [
        consumer.pause,
        consumer.resume,
        lambda what: consumer.begin_offsets(what, timeout=10.0),
        lambda what: consumer.end_offsets(what, timeout=10.0),
    ]
    for call in several:
        for wrong in ("orders", b"\x00", bytearray(b"\x00"), 0.5, object()):
            with pytest.raises(
                TypeError, match="partitions are a TopicPartition or its number, or an iterable of those"
            ):
                call(wrong)
        for wrong in ([None], ["0"], [0.5], [True], [("orders", 0)], True):
            with pytest.raises(TypeError, match="a partition is a TopicPartition or its number, not"):
                call(wrong)
        for wrong in (-1, [0, -1], [2**32]):
            with pytest.raises(InvalidArgumentError, match=r"whole number from 0 to 2\*\*32 - 1"):
                call(wrong)
        with pytest.raises(ZeroDivisionError):
            call(1 // i for i in range(3))
    for call in several[:2]:
        with pytest.raises(TypeError, match="not NoneType"):
            call(None)
    assert consumer.paused() == []


def test_what_is_no_offset_is_refused(consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    seek: Callable[..., object] = consumer.seek
    for wrong in (None, "1", 1.0, float("nan"), True):
        with pytest.raises(TypeError, match="must be an int, not"):
            seek(0, wrong)
    for wrong in (-1, 2**64):
        with pytest.raises(InvalidArgumentError, match=r"whole number from 0 to 2\*\*64 - 1"):
            seek(0, wrong)
    with pytest.raises(TypeError, match="a partition is a TopicPartition or its number, not list"):
        seek([0], 1)
    assert consumer.position(0) == 0
