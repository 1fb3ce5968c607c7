"""What an application sees when partitions change hands."""

from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from conftest import MakeConsumer
from cursus_consumer import Consumer, MaxPollIntervalError, RebalancingError, State, TopicPartition
from cursus_consumer.testing import EmbeddedCluster
from support import Background, places, rebalanced, take, until

ALL = [TopicPartition("orders", partition) for partition in range(4)]


def test_two_consumers_share_the_partitions_and_read_everything(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    first = make_consumer(enable_auto_commit=False)
    first.start(timeout=10.0)
    second = make_consumer(enable_auto_commit=False)
    second.start(timeout=10.0)
    error = rebalanced(first)
    assert (error.stale, error.owned, error.retryable) == (ALL, error.owned, True)
    first.start(timeout=10.0)
    assert sorted(first.assignment() + second.assignment()) == ALL
    assert len(first.assignment()) == len(second.assignment()) == 2
    cluster.fill("orders", 400, 10)
    records = take(first, 200) + take(second, 200)
    assert places(records) == [(partition, offset) for partition in range(4) for offset in range(100)]
    first.commit()
    second.commit()
    assert cluster.committed(group, "orders") == cluster.end_offsets("orders")


def test_poll_raises_once_and_goes_on(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer(enable_auto_commit=False)
    cluster.produce("orders", ["a"], partition=0)
    take(consumer, 1)
    other = make_consumer(enable_auto_commit=False)
    other.start(timeout=10.0)
    other.close()
    rebalanced(consumer)
    before = consumer.stats()
    cluster.produce("orders", ["b"], partition=0)
    seen = [record.value for record in take(consumer, 2)]
    assert seen == [b"a", b"b"], "nothing was committed, so it is read again"
    assert consumer.state is State.RUNNING
    assert consumer.stats().local_generation >= before.local_generation


def test_what_was_read_before_cannot_be_committed_after(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    consumer = make_consumer(enable_auto_commit=False)
    cluster.fill("orders", 40, 10)
    batch = consumer.poll(timeout=10.0)
    assert len(batch.owned()) == len(batch)
    other = make_consumer(enable_auto_commit=False)
    other.start(timeout=10.0)
    rebalanced(consumer)
    consumer.start(timeout=10.0)
    generation = cluster.group(group)
    assert generation is not None
    cluster.clear_requests()
    for _ in range(2):
        for work in (batch, batch[0], batch[0].detach(), batch[:1]):
            with pytest.raises(RebalancingError, match="nothing was committed") as caught:
                consumer.commit(work)
            assert set(caught.value.stale) <= set(ALL) and caught.value.stale
            assert caught.value.owned == []
    assert len(consumer.owned(batch)) == len(batch.owned()) == 0
    commits = [request for request in cluster.requests() if "COMMIT" in request.command]
    assert commits == [], "a stale commit isn't sent"
    after = cluster.group(group)
    assert after is not None and after.generation == generation.generation, "and costs no generation"


def test_a_rebalance_is_a_boundary_of_an_iteration(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    cluster.fill("orders", 40, 10)
    records = iter(consumer)
    seen = set(places(islice(records, 40)))
    other = make_consumer()
    other.start(timeout=10.0)
    until(lambda: len(consumer.assignment()) == 2, "the partitions are shared")
    other.close()
    cluster.fill("orders", 40, 10)
    while len(seen) < 80:
        record = next(records)
        seen.add((record.partition, record.offset))


def test_a_rebalance_is_a_boundary_between_batches(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    cluster.fill("orders", 40, 10)
    seen: set[tuple[int, int]] = set()
    other = None
    for batch in consumer.batches():
        seen.update(places(batch))
        if other is None and len(seen) == 40:
            other = make_consumer()
            other.start(timeout=10.0)
            until(lambda: len(consumer.assignment()) == 2, "the partitions are shared")
            other.close()
            cluster.fill("orders", 40, 10)
        if len(seen) == 80:
            break


def test_a_spare_member_idles_and_takes_over(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    cluster.create_topic("single", 1)
    # Partitions go to members in the order of their ids.
    first = make_consumer(topic="single", consumer_id="a")
    first.start(timeout=10.0)
    spare = make_consumer(topic="single", consumer_id="b")
    spare.start(timeout=10.0)
    assert spare.state is State.RUNNING and spare.assignment() == []
    assert len(spare.poll(timeout=0.05)) == 0
    cluster.produce("single", ["x"])
    assert len(take(first, 1)) == 1
    first.close()
    assert [record.value for record in take(spare, 1)] == [b"x"]


def test_an_expired_member_rejoins(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    consumer.start(timeout=10.0)
    member = consumer.stats().member
    assert member is not None
    cluster.expire_member(group, member)
    rebalanced(consumer)
    consumer.start(timeout=10.0)
    assert consumer.stats().member != member
    assert consumer.assignment() == ALL
    cluster.produce("orders", ["x"])
    take(consumer, 1)


def test_commits_during_rebalances_never_end_the_membership(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    cluster.fill("orders", 2000, 10)
    consumer = make_consumer(enable_auto_commit=False, max_poll_records=20)

    def read() -> set[tuple[int, int]]:
        seen: set[tuple[int, int]] = set()
        while len(seen) < 2000:
            try:
                batch = consumer.poll(timeout=10.0)
                consumer.commit(batch)
                seen.update(places(batch))
            except RebalancingError:
                pass
        return seen

    reading = Background(read)
    for _ in range(3):
        with make_consumer(enable_auto_commit=False) as other:
            other.start(timeout=10.0)
    assert len(reading.result()) == 2000
    assert consumer.state in (State.RUNNING, State.REBALANCING)


def test_who_does_not_poll_leaves_the_group_and_hears_of_it_once(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str
) -> None:
    cluster.produce("orders", ["x"], partition=0)
    consumer = make_consumer(enable_auto_commit=False, max_poll_interval_ms=200)
    [record] = take(consumer, 1)
    cluster.wait_for(lambda: (found := cluster.group(group)) is not None and not found.members)
    with pytest.raises(MaxPollIntervalError, match="max_poll_interval_ms=200") as caught:
        consumer.poll(timeout=10.0)
    assert caught.value.stale == ALL and caught.value.retryable and not caught.value.fatal
    with pytest.raises(RebalancingError):
        consumer.commit(record)
    assert places(consumer.poll(timeout=10.0)) == [(0, 0)], "it joined anew, and reads again what wasn't committed"


@pytest.mark.parametrize("iterate", [iter, Consumer.batches], ids=["records", "batches"])
def test_an_iteration_hears_once_that_it_took_too_long_and_goes_on(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str, iterate: Callable[[Consumer], Iterator[object]]
) -> None:
    cluster.produce("orders", ["x"], partition=0)
    consumer = make_consumer(max_poll_interval_ms=200)
    iteration = iterate(consumer)
    next(iteration)
    cluster.wait_for(lambda: (found := cluster.group(group)) is not None and not found.members)
    with pytest.raises(MaxPollIntervalError) as caught:
        next(iteration)
    assert caught.value.stale == ALL
    assert next(iteration)


@pytest.mark.parametrize("iterate", [iter, Consumer.batches], ids=["records", "batches"])
def test_an_iteration_may_wait_for_longer_than_the_poll_interval(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, iterate: Callable[[Consumer], Iterator[object]]
) -> None:
    consumer = make_consumer(max_poll_interval_ms=200)
    consumer.start(timeout=10.0)
    waiting = Background(lambda: next(iterate(consumer)))
    # At 50 ms each, for five times as long as the interval.
    cluster.wait_for(lambda: sum(request.command == "HEARTBEAT" for request in cluster.requests()) >= 20)
    cluster.produce("orders", ["x"], partition=0)
    waiting.result()
    assert consumer.stats().rebalances == 0
