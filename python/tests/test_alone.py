"""Reading without a group: the application chooses its partitions, nobody shares them, and nothing is committed."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from conftest import MakeConsumer
from cursus_consumer import ClosedError, Consumer, InvalidArgumentError, InvalidStateError, Record, TopicPartition
from cursus_consumer.testing import EmbeddedCluster
from support import partitions, places, take, until


@pytest.mark.parametrize("named", [[1, 3], partitions(3, 1), iter((1, 3)), {1: None, 3: 0}, {1, 3}], ids=repr)
def test_it_reads_what_it_assigns_to_itself(cluster: EmbeddedCluster, alone: Consumer, named: Any) -> None:
    cluster.fill("orders", 40, 10)
    alone.assign(named)
    assert places(take(alone, 20)) == [(partition, offset) for partition in (1, 3) for offset in range(10)]
    assert alone.assignment() == partitions(1, 3)
    assert not any(request.command in ("JOIN_GROUP", "HEARTBEAT") for request in cluster.requests())


@pytest.mark.parametrize(
    "named", [{1: 7}, {TopicPartition("orders", 1): 7}, MappingProxyType({1: 7})], ids=["number", "in full", "mapping"]
)
def test_it_begins_where_it_is_told_to(cluster: EmbeddedCluster, alone: Consumer, named: Any) -> None:
    cluster.fill("orders", 40, 10)
    alone.assign(named)
    assert [record.offset for record in take(alone, 3)] == [7, 8, 9]


def test_a_single_partition_needs_no_list(cluster: EmbeddedCluster, alone: Consumer) -> None:
    cluster.fill("orders", 40, 10)
    alone.assign(TopicPartition("orders", 2))
    assert {partition for partition, _ in places(take(alone, 10))} == {2}
    alone.assign(1)
    assert {partition for partition, _ in places(take(alone, 10))} == {1}


def test_a_later_call_replaces_the_one_before_and_no_poll_raises(cluster: EmbeddedCluster, alone: Consumer) -> None:
    cluster.fill("orders", 40, 10)
    alone.assign([0])
    take(alone, 10)
    alone.assign({1: 8})
    records: list[Record] = []
    while len(records) < 2:
        records += alone.poll(timeout=10.0)
    assert places(records) == [(1, 8), (1, 9)]
    alone.assign([])
    until(lambda: alone.assignment() == [], "nothing is read any more")
    assert len(alone.poll(timeout=0.05)) == 0


def test_iteration_and_seek_work_as_with_a_group(cluster: EmbeddedCluster, alone: Consumer) -> None:
    cluster.fill("orders", 40, 10)
    alone.assign([2])
    records = iter(alone)
    assert next(records).offset == 0
    alone.seek(2, 9)
    assert next(records).offset == 9
    alone.pause(2)
    assert alone.paused() == partitions(2)
    assert alone.lag(timeout=10.0) == {TopicPartition("orders", 2): 0}


def test_nothing_is_read_before_something_is_assigned(alone: Consumer) -> None:
    calls: list[Callable[[], object]] = [
        lambda: alone.poll(timeout=0),
        lambda: alone.start(timeout=0),
        lambda: next(iter(alone)),
        lambda: next(alone.batches()),
    ]
    for call in calls:
        with pytest.raises(InvalidStateError, match="without a group_id, assign partitions first"):
            call()
    assert alone.state == "new"


def test_what_to_read_is_assigned_inside_of_with(cluster: EmbeddedCluster, alone: Consumer) -> None:
    cluster.fill("orders", 40, 10)
    with alone as reader:
        assert reader.state == "new"
        reader.assign([0])
        assert next(iter(reader)).offset == 0
    assert alone.state == "closed"


def test_what_needs_a_group_says_so(cluster: EmbeddedCluster, alone: Consumer) -> None:
    cluster.produce("orders", ["x"], partition=0)
    alone.assign([0])
    batch = alone.poll(timeout=10.0)
    assert batch.group_metadata() is None
    calls: list[Callable[[], object]] = [
        lambda: alone.commit(),
        lambda: alone.commit(batch),
        lambda: alone.commit_async({0: 1}),
        lambda: alone.ack(batch[0]),
        lambda: alone.committed(0),
        lambda: alone.group_metadata(),
        lambda: alone.describe_group(),
    ]
    for call in calls:
        with pytest.raises(InvalidStateError, match="needs a group, and this consumer has none: set group_id"):
            call()


def test_a_member_of_a_group_can_not_choose(consumer: Consumer, group: str) -> None:
    with pytest.raises(InvalidStateError, match=f'group "{group}" hands them out. Leave out group_id to choose them'):
        consumer.assign([0])
    assert consumer.state == "new"


def test_what_can_not_be_assigned_is_refused(alone: Consumer) -> None:
    assign: Any = alone.assign
    wrong: Any
    for wrong in (None, "orders", b"\x00", 0.5):
        with pytest.raises(TypeError, match="partitions are a TopicPartition or its number, or an iterable of those"):
            assign(wrong)
    for wrong in ([None], [("orders", 0)], {"0": 1}, {None: 1}):
        with pytest.raises(TypeError, match="a partition is a TopicPartition or its number"):
            assign(wrong)
    for wrong in ({0: "1"}, {0: 1.0}, {0: True}):
        with pytest.raises(TypeError, match="must be an int, not"):
            assign(wrong)
    for wrong in ([-1], {0: -1}, {0: 2**64}):
        with pytest.raises(InvalidArgumentError, match="whole number from 0 to"):
            assign(wrong)
    with pytest.raises(InvalidArgumentError, match="orders-0 is given twice"):
        assign({0: 1, TopicPartition("orders", 0): 2})
    with pytest.raises(InvalidArgumentError, match="returns-0 is not of the topic"):
        assign([TopicPartition("returns", 0)])
    assert alone.state == "new", "a refused call has no effect"
    alone.close()
    with pytest.raises(ClosedError):
        assign([0])


def test_it_says_that_it_has_no_group(alone: Consumer) -> None:
    assert repr(alone) == "<Consumer of orders without a group, new>"


def test_two_of_them_do_not_share(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    cluster.fill("orders", 40, 10)
    for consumer in (make_consumer(alone=True), make_consumer(alone=True)):
        consumer.assign(range(4))
        assert len(take(consumer, 40)) == 40
