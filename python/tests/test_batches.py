"""Partitions, records and batches as values."""

import gc
import pickle
import weakref
from collections.abc import Sequence

import pytest
from conftest import MakeConsumer
from cursus_consumer import Batch, Consumer, InvalidArgumentError, Record, TopicPartition
from cursus_consumer.testing import EmbeddedCluster
from support import fetched, places, take


def test_a_partition_is_a_value() -> None:
    first, second, other = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
    assert first == TopicPartition("a", 0) and hash(first) == hash(TopicPartition("a", 0))
    assert first != second and first != "a-0" and first != ("a", 0)
    assert sorted([other, second, first]) == [first, second, other]
    assert (str(first), repr(first)) == ("a-0", "TopicPartition('a', 0)")
    assert eval(repr(second)) == second
    assert pickle.loads(pickle.dumps(second)) == second
    topic, partition = second
    assert (topic, partition) == ("a", 1)
    match second:
        case TopicPartition("a", number):
            assert number == 1
        case _:
            pytest.fail("no match")
    with pytest.raises(AttributeError):
        first.partition = 2  # type: ignore[misc]


def test_what_is_no_partition_is_refused() -> None:
    for topic in ("", "a b", "a=b", "a\n"):
        with pytest.raises(InvalidArgumentError, match="topic "):
            TopicPartition(topic, 0)
    for number in (-1, 2**32):
        with pytest.raises(InvalidArgumentError, match="whole number"):
            TopicPartition("a", number)
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(TypeError):
            TopicPartition("a", wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TopicPartition(None, 0)  # type: ignore[arg-type]


def read(cluster: EmbeddedCluster, consumer: Consumer) -> Batch:
    """Poll a batch of five records of one partition."""
    cluster.produce("orders", [(f"key-{i}", bytes([i, 0, 255])) for i in range(5)], partition=2)
    fetched(cluster, consumer, "orders")
    batch = consumer.poll(timeout=10.0)
    assert len(batch) == 5
    return batch


def test_a_record_has_its_place_and_its_bytes(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    record = read(cluster, consumer)[3]
    assert (record.topic, record.partition, record.offset) == ("orders", 2, 3)
    assert record.topic_partition == TopicPartition("orders", 2)
    assert (record.key, record.value) == (b"key-3", b"\x03\x00\xff")
    assert record.value is record.value, "copied once, when it is first asked for"
    assert record.is_control is False
    assert repr(record) == "<Record orders-2@3, key of 5 bytes, value of 3 bytes>"
    with pytest.raises(AttributeError):
        record.value = b""  # type: ignore[misc]


def test_a_record_without_a_key_has_an_empty_one(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.produce("orders", [b"", (None, b"x"), "é"], partition=0)
    records = take(consumer, 3)
    assert [(record.key, record.value) for record in records] == [(b"", b""), (b"", b"x"), (b"", "é".encode())]


def test_records_are_equal_by_place_and_bytes(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    batch = read(cluster, consumer)
    assert batch[1] is not batch[1] and batch[1] == batch[1] and hash(batch[1]) == hash(batch[1])
    assert batch[1] != batch[2] and batch[1] != b"key-1"
    assert len({*batch, *batch}) == 5


def test_a_batch_is_a_sequence(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    batch = read(cluster, consumer)
    assert isinstance(batch, Sequence) and not isinstance(batch, (list, tuple))
    assert bool(batch)
    offsets = [record.offset for record in batch]
    assert offsets == [0, 1, 2, 3, 4]
    assert [batch[i].offset for i in range(-5, 5)] == offsets * 2
    assert [record.offset for record in reversed(batch)] == offsets[::-1]
    for out in (5, -6, 2**70, -(2**70)):
        with pytest.raises(IndexError):
            batch[out]
    for wrong in ("0", 1.0, None):
        with pytest.raises(TypeError, match="indices are ints or slices"):
            batch[wrong]  # type: ignore[call-overload]
    assert batch[2] in batch and b"x" not in batch
    assert batch.index(batch[3]) == 3 and batch.index(batch[3], -2) == 3 and batch.count(batch[3]) == 1
    assert batch.count("no record") == 0
    with pytest.raises(ValueError, match="not in the batch"):
        batch.index(batch[3], 0, 3)
    with pytest.raises(TypeError):
        batch[0] = batch[1]  # type: ignore[index]
    match batch:
        case [first, *_, last]:
            assert (first.offset, last.offset) == (0, 4)
        case _:
            pytest.fail("no match")
    assert repr(batch) == "<Batch of 5 records from orders-2>"


def test_two_iterations_of_a_batch_are_each_their_own(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    batch = read(cluster, consumer)
    first, second = iter(batch), iter(batch)
    assert next(first).offset == 0 and next(first).offset == 1 and next(second).offset == 0
    assert len(list(first)) == 3
    with pytest.raises(StopIteration):
        next(first)


def test_a_slice_is_a_batch_that_can_be_committed(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    batch = read(cluster, consumer)
    offsets = list(range(5))
    for cut in (slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(-2, None), slice(3, 3), slice(-99, 99)):
        part = batch[cut]
        assert isinstance(part, Batch)
        assert [record.offset for record in part] == offsets[cut]
    assert batch[1:3].next_offsets() == {TopicPartition("orders", 2): 3}
    consumer.commit(batch[:2])
    assert cluster.committed(group, "orders") == {2: 2}
    consumer.commit(batch[::-1])
    assert cluster.committed(group, "orders") == {2: 5}


def test_an_empty_batch(consumer: Consumer) -> None:
    consumer.start(timeout=10)
    batch = consumer.poll(timeout=0)
    assert not batch and list(batch) == [] and batch.next_offsets() == {} and not batch.owned()
    assert repr(batch) == "<Batch, empty>"
    consumer.commit(batch)


def test_next_offsets_are_behind_the_last_of_each_partition(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.produce("orders", ["a", "b", "c"], partition=0)
    cluster.produce("orders", ["d"], partition=1)
    cluster.produce("orders", ["e", "f"], partition=3)
    records: list[Record] = []
    furthest: dict[TopicPartition, int] = {}
    while len(records) < 6:
        batch = consumer.poll(timeout=10.0)
        records += batch
        furthest.update(batch.next_offsets())
    assert furthest == {TopicPartition("orders", p): offset for p, offset in ((0, 3), (1, 1), (3, 2))}
    assert places(records) == [(0, 0), (0, 1), (0, 2), (1, 0), (3, 0), (3, 1)]


def test_batches_outlive_their_consumer_and_do_not_hold_it(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer
) -> None:
    consumer = Consumer(brokers=cluster.brokers, topic="orders", group_id="short-lived", heartbeat_interval_ms=50)
    batch = read(cluster, consumer)
    gone = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert gone() is None
    assert [record.value for record in batch] == [bytes([i, 0, 255]) for i in range(5)]
    assert len(batch.owned()) == 0


def test_a_detached_record_is_the_same_and_lets_go_of_the_others(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    cluster.fill("orders", 1000, 1000)
    # All in one batch: what is only partly taken is still in the consumer's own hands.
    consumer = make_consumer(max_poll_records=1000)
    fetched(cluster, consumer, "orders")
    batch = consumer.poll(timeout=10.0)
    # The first frames of a consumer have few records; the last one is of a frame with many.
    record = batch[-1]
    copy = record.detach()
    assert copy == record and copy.is_control == record.is_control
    held = consumer.stats().held_bytes
    del batch, record
    after = consumer.stats().held_bytes
    assert after < held / 10 and after >= 1000
    consumer.commit(copy)
    assert cluster.committed(group, "orders") == {copy.partition: copy.offset + 1}
    del copy
    assert consumer.stats().held_bytes == 0
