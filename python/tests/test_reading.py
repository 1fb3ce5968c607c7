"""Poll and iteration: every record once, in order, and processed is what was asked beyond."""

import time
from collections.abc import Callable

import pytest
from conftest import MakeCluster, MakeConsumer
from cursus_consumer import (
    Consumer,
    ConsumerSettings,
    InvalidArgumentError,
    InvalidStateError,
    OffsetGapError,
    Record,
    State,
    TopicPartition,
)
from cursus_consumer.testing import EmbeddedCluster, TransactionalWriter
from support import PATIENCE, Background, fetched, places, take, until


def test_every_record_is_polled_once_and_in_order(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.fill("orders", 2000, 50)
    records = take(consumer, 2000)
    for partition in range(4):
        assert [r.offset for r in records if r.partition == partition] == list(range(500))
    assert sorted(int(record.key) for record in records) == list(range(2000))
    assert len(consumer.poll(timeout=0.1)) == 0
    stats = consumer.stats()
    assert (stats.records, stats.dropped_records, stats.buffered_bytes) == (2000, 0, 0)


def test_the_first_example(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.create_topic("orders", 2)
    cluster.produce("orders", [("k", "v")], partition=0)
    with Consumer(brokers=cluster.brokers, topic="orders", group_id="billing") as consumer:
        batch = consumer.poll(timeout=10.0)
        for record in batch:
            seen = (record.topic, record.partition, record.offset, record.key, record.value)
            assert seen == ("orders", 0, 0, b"k", b"v")
        consumer.commit(batch)
        assert consumer.state is State.RUNNING
        assert consumer.committed(TopicPartition("orders", 0), timeout=10.0) == 1
        assert consumer.committed(1, timeout=10.0) is None
    assert consumer.state is State.CLOSED  # type: ignore[comparison-overlap]


def test_settings_can_be_put_together_first(cluster: EmbeddedCluster) -> None:
    settings: ConsumerSettings = {"brokers": cluster.brokers, "topic": "orders", "group_id": "typed"}
    with Consumer(**settings) as consumer:
        consumer.start(timeout=10.0)


def test_a_poll_returns_at_most_what_was_set(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    cluster.fill("orders", 100, 10)
    consumer = make_consumer(max_poll_records=7)
    records: list[Record] = []
    while len(records) < 100:
        batch = consumer.poll(timeout=10.0)
        assert 1 <= len(batch) <= 7
        records += batch
    assert len(set(places(records))) == 100


def test_a_poll_that_waits_ends_with_the_first_record(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    poll = Background(lambda: consumer.poll(timeout=None))
    cluster.produce("orders", ["at last"], partition=1)
    assert [record.value for record in poll.result()] == [b"at last"]


def test_position_is_what_poll_returns_next(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    assert consumer.position(0) is None, "nothing is assigned yet"
    cluster.produce("orders", ["a", "b"], partition=0)
    consumer.start(timeout=10.0)
    assert consumer.position(TopicPartition("orders", 0)) == 0
    take(consumer, 2)
    assert consumer.position(0) == consumer.position(TopicPartition("orders", 0)) == 2
    assert consumer.position(9) is None
    assert consumer.stats().partitions[TopicPartition("orders", 0)].position == 2


def test_assignment_names_all_partitions(consumer: Consumer) -> None:
    assert consumer.assignment() == []
    consumer.start(timeout=10.0)
    assert consumer.assignment() == [TopicPartition("orders", partition) for partition in range(4)]


def test_iterating_gives_every_record_and_commits_what_was_asked_beyond(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    cluster.create_topic("single", 1)
    cluster.produce("single", [str(i) for i in range(100)])
    with make_consumer(topic="single") as consumer:
        for record in consumer:
            if record.offset == 41:
                break
    assert cluster.committed(group, "single") == {0: 41}, "record 41 was being processed, 0 to 40 were done"
    with make_consumer(topic="single") as consumer:
        records = iter(consumer)
        assert [next(records).offset for _ in range(59)] == list(range(41, 100))


def test_iterating_by_batches(cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str) -> None:
    cluster.create_topic("single", 1)
    cluster.produce("single", [str(i) for i in range(100)])
    with make_consumer(topic="single", max_poll_records=10) as consumer:
        fetched(cluster, consumer, "single")
        batches = consumer.batches()
        assert iter(batches) is batches
        seen = [record.offset for _, batch in zip(range(5), batches, strict=False) for record in batch]
    assert seen == list(range(50))
    assert cluster.committed(group, "single") == {0: 40}, "the fifth batch was being processed"


def test_the_rest_of_an_abandoned_iteration_is_polled_first(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer
) -> None:
    cluster.create_topic("single", 1)
    cluster.produce("single", [str(i) for i in range(20)])
    consumer = make_consumer(topic="single")
    for record in consumer:
        if record.offset == 4:
            break
    assert [record.offset for record in take(consumer, 15)] == list(range(5, 20))


def test_in_an_iteration_position_and_commit_are_behind_the_last_record_seen(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    cluster.create_topic("single", 1)
    cluster.produce("single", [str(i) for i in range(20)])
    consumer = make_consumer(topic="single", enable_auto_commit=False)
    records = iter(consumer)
    for offset in range(5):
        assert next(records).offset == offset
        assert consumer.position(0) == consumer.stats().records == offset + 1
    consumer.commit()
    assert cluster.committed(group, "single") == {0: 5}


def test_with_auto_commit_a_poll_commits_the_one_before(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    cluster.create_topic("single", 1)
    cluster.produce("single", [str(i) for i in range(20)])
    with make_consumer(topic="single", max_poll_records=10, auto_commit_interval_ms=10) as consumer:
        fetched(cluster, consumer, "single")
        take(consumer, 10)
        assert cluster.committed(group, "single") == {}
        take(consumer, 10)
        cluster.wait_for(lambda: cluster.committed(group, "single") == {0: 10})
    assert cluster.committed(group, "single") == {0: 10}, "close proves nothing"


def test_with_auto_commit_polls_may_not_overlap(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    consumer.start(timeout=10.0)
    first = Background(lambda: consumer.poll(timeout=None))

    def refused() -> bool:
        try:
            consumer.poll(timeout=0)
        except InvalidStateError as error:
            assert "set enable_auto_commit to false" in str(error)
            return True
        return False

    until(refused, "the second poll is refused")
    cluster.produce("orders", ["x"])
    assert len(first.result()) == 1
    consumer.poll(timeout=0)


def test_several_threads_share_the_records(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    cluster.fill("orders", 4000, 20)
    consumer = make_consumer(enable_auto_commit=False, max_poll_records=50)

    everything: list[tuple[int, int]] = []

    def work() -> None:
        while len(everything) < 4000:
            everything.extend(places(consumer.poll(timeout=0.1)))
            consumer.stats()

    for worker in [Background(work) for _ in range(4)]:
        worker.result()
    assert sorted(everything) == [(partition, offset) for partition in range(4) for offset in range(1000)]


def test_the_memory_of_what_is_fetched_is_bounded(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    cluster.fill("orders", 400, 10_000)
    consumer = make_consumer(max_buffered_bytes=200_000, fetch_batch_size=5, max_poll_records=5)
    records = []
    for batch in consumer.batches():
        assert consumer.stats().buffered_bytes <= 260_000, "the limit and one frame"
        records += places(batch)
        if len(records) == 400:
            break
    assert len(set(records)) == 400


def test_an_idle_consumer_rests(consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    before = time.process_time()
    assert len(consumer.poll(timeout=1.0)) == 0
    # The cluster's own work is in this, too.
    assert time.process_time() - before < 0.25


@pytest.mark.parametrize("size", [0, 1, 1_000_000, 8_000_000])
def test_records_of_any_size(cluster: EmbeddedCluster, consumer: Consumer, size: int) -> None:
    value = bytes(range(256)) * (size // 256 + 1)
    cluster.produce("orders", [(b"\x00\xff key", value[:size])] * 3, partition=1)
    for record in take(consumer, 3):
        assert record.key == b"\x00\xff key" and record.value == value[:size]


@pytest.mark.parametrize("mode", ["polling", "streaming"])
def test_both_modes_deliver_the_same(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str, mode: str
) -> None:
    cluster.fill("orders", 400, 10)
    consumer = make_consumer(mode=mode, enable_auto_commit=False)
    records = take(consumer, 400)
    assert places(records) == [(partition, offset) for partition in range(4) for offset in range(100)]
    consumer.commit()
    assert cluster.committed(group, "orders") == cluster.end_offsets("orders")
    asked = {request.command for request in cluster.requests()}
    assert ("STREAM" in asked) == (mode == "streaming")


def test_the_latest_is_what_is_written_from_now_on(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    cluster.fill("orders", 40, 10)
    consumer = make_consumer(auto_offset_reset="latest")
    consumer.start(timeout=10.0)
    cluster.produce("orders", ["new"], partition=2)
    assert [(record.offset, record.value) for record in take(consumer, 1)] == [(10, b"new")]


@pytest.mark.parametrize(
    "read",
    [lambda consumer: consumer.poll(timeout=10.0), lambda consumer: next(iter(consumer))],
    ids=["poll", "iteration"],
)
def test_a_gap_is_an_error_where_that_is_asked_for(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, read: Callable[[Consumer], object]
) -> None:
    cluster.produce("orders", ["x"], partition=0)
    consumer = make_consumer(auto_offset_reset="error")
    for _ in range(2):
        with pytest.raises(OffsetGapError, match="orders-0"):
            read(consumer)
    assert isinstance(consumer.fatal_error, OffsetGapError) and consumer.fatal_error.fatal
    until(lambda: consumer.state is State.CLOSED, "it closes")


def test_a_control_record_shows_in_the_raw_log_alone(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    with TransactionalWriter(cluster.brokers, "billing").transaction() as transaction:
        transaction.publish("orders", "x", partition=0)
    raw = make_consumer(group_id="raw", read_isolation="read_uncommitted")
    assert [(record.offset, record.is_control) for record in take(raw, 2)] == [(0, False), (1, True)]
    committed = make_consumer()
    [record] = take(committed, 1)
    assert (record.value, record.is_control, record.detach().is_control) == (b"x", False, False)
    zero = TopicPartition("orders", 0)
    assert committed.end_offsets(zero, timeout=10.0) == {zero: 2}
    assert (committed.position(zero), committed.lag(timeout=10.0)[zero]) == (1, 0), "there is nothing left to read"


def test_a_poll_asks_for_as_many_records_as_it_wants_and_gets_no_more_than_the_setting_allows(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer
) -> None:
    cluster.create_topic("single", partitions=1)
    cluster.fill("single", 20, 10)
    with make_consumer(topic="single", max_poll_records=5) as consumer:
        fetched(cluster, consumer, "single")
        assert len(consumer.poll(PATIENCE, max_records=2)) == 2
        assert len(consumer.poll(PATIENCE, max_records=10**30)) == 5
        assert [record.offset for record in consumer.poll(PATIENCE, max_records=None)] == [7, 8, 9, 10, 11]
        for wrong in (0, -1, -(10**30)):
            with pytest.raises(InvalidArgumentError, match=rf"max_records={wrong} is not accepted: it is 1 or more"):
                consumer.poll(0, max_records=wrong)
        for other in (True, 1.5, "3"):
            with pytest.raises(TypeError, match="max_records"):
                consumer.poll(0, max_records=other)  # type: ignore[arg-type]
