"""Clusters that fail: reading goes on, nothing is lost, and what is wrong can be seen."""

import pytest
from conftest import MakeCluster, MakeConsumer
from cursus_consumer import (
    Consumer,
    GroupTopicMismatchError,
    State,
    UnknownTopicError,
    UnreachableError,
)
from cursus_consumer.testing import EmbeddedCluster
from support import Background, places, take, took, until


def everything(cluster: EmbeddedCluster) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, end in cluster.end_offsets("orders").items() for offset in range(end)]


def test_a_leader_dies(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    cluster.move_coordinator(group, 0)
    cluster.fill("orders", 40, 10)
    records = take(consumer, 40)
    cluster.kill_broker(cluster.leader("orders", 1))
    cluster.fill("orders", 40, 10)
    records += take(consumer, 40)
    assert places(records) == everything(cluster)
    assert consumer.stats().reconnects > 0
    consumer.commit()
    assert cluster.committed(group, "orders") == cluster.end_offsets("orders")


def test_a_leader_moves(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    records = []
    for broker in (1, 2, 0):
        for partition in range(4):
            cluster.move_leader("orders", partition, broker)
        cluster.fill("orders", 40, 10)
        records += take(consumer, 40)
    assert places(records) == everything(cluster)
    until(
        lambda: {found.leader for found in consumer.stats().partitions.values()} == {cluster.brokers[0]},
        "the statistics name the new leader",
    )


def test_the_coordinator_moves(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    consumer.start(timeout=10.0)
    for broker in (1, 2, 0):
        cluster.move_coordinator(group, broker)
        cluster.fill("orders", 40, 10)
        take(consumer, 40)
        consumer.commit(timeout=10.0)
        assert cluster.committed(group, "orders") == cluster.end_offsets("orders")
    assert consumer.stats().rebalances == 0, "moving the coordinator ends no assignment"


def test_the_coordinator_is_gone_for_a_while(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    cluster.fill("orders", 40, 10)
    records = take(consumer, 40)
    coordinator = cluster.coordinator(group)
    cluster.kill_broker(coordinator)
    until(lambda: consumer.stats().coordinator_unreachable_seconds is not None, "it is missed")
    cluster.fill("orders", 40, 10)
    records += take(consumer, 40)
    assert places(records) == everything(cluster), "reading goes on without it"
    commit = Background(consumer.commit)
    cluster.restart_broker(coordinator)
    commit.result()
    assert cluster.committed(group, "orders") == cluster.end_offsets("orders")
    until(lambda: consumer.stats().coordinator_unreachable_seconds is None, "it is no longer missed")


def test_connections_are_cut(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    records = []
    for _ in range(5):
        cluster.cut_connections()
        cluster.fill("orders", 40, 10)
        records += take(consumer, 40)
    assert places(records) == everything(cluster)


def test_corrupt_frames_are_counted_and_lose_nothing(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.corrupt_next("CONSUME", 3)
    cluster.fill("orders", 400, 10)
    assert places(take(consumer, 400)) == everything(cluster)
    stats = consumer.stats()
    assert stats.corrupt_frames == 3 and stats.reconnects >= 3


def test_lost_and_refused_replies_lose_nothing(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    for command in ("METADATA", "FIND_COORDINATOR", "JOIN_GROUP", "SYNC_GROUP", "FETCH_OFFSET", "CONSUME"):
        cluster.lose_reply(command)
    cluster.fail_next("CONSUME", 2, "raft_apply_failed reason=test")
    cluster.fill("orders", 40, 10)
    assert set(places(take(consumer, 40))) == set(everything(cluster))
    consumer.commit(timeout=10.0)
    assert cluster.committed(group, "orders") == cluster.end_offsets("orders")


def test_a_rolling_restart(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    seen: set[tuple[int, int]] = set()
    for broker in range(3):
        cluster.stop_broker(broker)
        cluster.fill("orders", 40, 10)
        cluster.restart_broker(broker)
        while len(seen) < len(everything(cluster)):
            seen.update(places(take(consumer, 1)))
    assert seen == set(everything(cluster))
    consumer.commit(timeout=10.0)


def gone(make_cluster: MakeCluster) -> EmbeddedCluster:
    """A cluster of one broker, which is down."""
    cluster = make_cluster(brokers=1)
    cluster.create_topic("orders", 4)
    cluster.kill_broker(0)
    return cluster


def test_no_broker_in_reach_and_then_there_is_one(make_cluster: MakeCluster, make_consumer: MakeConsumer) -> None:
    cluster = gone(make_cluster)
    consumer = make_consumer(brokers=cluster.brokers)
    with took(0.5, 0.7), pytest.raises(UnreachableError, match=cluster.brokers[0]) as caught:
        consumer.start(timeout=0.5)
    assert isinstance(caught.value, ConnectionError) and caught.value.retryable and not caught.value.fatal
    with took(0.3, 0.5):
        assert len(consumer.poll(timeout=0.3)) == 0
    stats = consumer.stats()
    assert stats.last_error and stats.failing_seconds is not None and stats.failing_seconds > 0.5
    assert consumer.state is State.REBALANCING
    cluster.restart_broker(0)
    cluster.produce("orders", ["back"])
    assert [record.value for record in take(consumer, 1)] == [b"back"]
    until(lambda: consumer.stats().failing_seconds is None, "nothing fails any more")


def test_a_poll_keeps_its_time_while_the_cluster_dies(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    for broker in range(3):
        cluster.kill_broker(broker)
    for _ in range(3):
        with took(0.2, 0.4):
            assert len(consumer.poll(timeout=0.2)) == 0
    assert consumer.stats().last_error is not None


def test_a_name_that_does_not_resolve(make_consumer: MakeConsumer) -> None:
    consumer = make_consumer(brokers=["no-such-host.invalid:9000"])
    with pytest.raises(UnreachableError, match=r"no-such-host\.invalid:9000"):
        consumer.start(timeout=0.5)
    with took(0.2, 0.4):
        assert len(consumer.poll(timeout=0.2)) == 0


def test_one_good_broker_of_several_is_enough(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer(brokers=["127.0.0.1:1", "no-such-host.invalid:9000", cluster.brokers[2]])
    cluster.produce("orders", ["x"])
    take(consumer, 1)


def test_an_unknown_topic_is_an_error_that_stays(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer(topic="no-such-topic", topic_missing_timeout_ms=200)
    with pytest.raises(UnknownTopicError, match='there is no topic "no-such-topic"') as caught:
        consumer.poll(timeout=None)
    assert caught.value.fatal and caught.value.broker is not None
    assert caught.value.broker.code == "topic_not_found"
    until(lambda: consumer.state is State.CLOSED, "it closes by itself")
    for call in (consumer.poll, consumer.start, consumer.commit, lambda: next(iter(consumer))):
        with pytest.raises(UnknownTopicError):
            call()
    error = consumer.fatal_error
    assert isinstance(error, UnknownTopicError) and str(error) == str(caught.value)
    assert consumer.stats().last_error is not None
    consumer.close()


def test_an_unknown_topic_ends_start_and_iteration(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    with pytest.raises(UnknownTopicError):
        make_consumer(topic="no-such-topic", topic_missing_timeout_ms=100).start(timeout=None)
    with pytest.raises(UnknownTopicError):
        list(make_consumer(topic="no-such-topic", topic_missing_timeout_ms=100))


def test_a_topic_that_comes_in_time_is_read(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer(topic="late")
    assert len(consumer.poll(timeout=0.1)) == 0
    cluster.create_topic("late", 1)
    cluster.produce("late", ["x"])
    take(consumer, 1)


def test_a_group_reads_one_topic(cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str) -> None:
    cluster.create_topic("returns", 1)
    make_consumer().start(timeout=10.0)
    other = make_consumer(topic="returns")
    with pytest.raises(GroupTopicMismatchError) as caught:
        other.start(timeout=10.0)
    for name in (group, "orders", "returns"):
        assert name in str(caught.value)
    assert caught.value.broker is not None and caught.value.broker.fields is not None
    assert caught.value.broker.fields["expected"] == "orders"
