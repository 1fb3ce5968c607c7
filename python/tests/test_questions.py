"""Questions about offsets and the group."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from conftest import MakeConsumer
from cursus_consumer import (
    BrokerResponseError,
    Consumer,
    GroupMember,
    GroupMetadata,
    InvalidArgumentError,
    InvalidStateError,
    PartitionDescription,
    RebalancingError,
    TimedOutError,
    TopicPartition,
)
from cursus_consumer.testing import EmbeddedCluster, TransactionalWriter
from support import Background, held_in_a_rebalance, partitions, rebalanced, take, took


def test_where_logs_begin_and_end(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.fill("orders", 40, 10)
    cluster.delete_records("orders", 1, 4)
    zero, one, two, _ = partitions(0, 1, 2, 3)
    assert consumer.begin_offsets([0, one], timeout=10.0) == {zero: 0, one: 4}
    assert consumer.end_offsets(two, timeout=10.0) == {two: 10}
    assert consumer.end_offsets({0, 1}, timeout=None) == {zero: 10, one: 10}
    assert consumer.end_offsets([0, 9], timeout=10.0) == {zero: 10}, "what doesn't exist is left out"
    assert consumer.begin_offsets([], timeout=10.0) == {}
    with pytest.raises(InvalidArgumentError, match="returns-0 is not of the topic"):
        consumer.end_offsets(TopicPartition("returns", 0), timeout=10.0)


def test_without_partitions_it_is_about_those_assigned(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.fill("orders", 40, 10)
    assert consumer.end_offsets(timeout=10.0) == {}, "nothing is assigned yet"
    consumer.start(timeout=10.0)
    assert consumer.begin_offsets(timeout=10.0) == dict.fromkeys(partitions(0, 1, 2, 3), 0)
    assert consumer.end_offsets(None, timeout=10.0) == dict.fromkeys(partitions(0, 1, 2, 3), 10)


def test_lag_is_what_is_ahead_of_the_position(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    assert consumer.lag(timeout=10.0) == {}
    cluster.produce("orders", [str(i) for i in range(9)], partition=2)
    take(consumer, 9)
    consumer.seek(2, 5)
    zero, one, two, three = partitions(0, 1, 2, 3)
    consumer.pause(2)
    assert consumer.lag(timeout=10.0) == {zero: 0, one: 0, two: 4, three: 0}
    consumer.resume(2)
    take(consumer, 4)
    assert set(consumer.lag(timeout=10.0).values()) == {0}


def test_what_it_reads(consumer: Consumer) -> None:
    assert consumer.subscription() == ["orders"]
    consumer.close()
    assert consumer.subscription() == ["orders"]


def test_who_a_consumer_is_in_its_group(cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str) -> None:
    cluster.produce("orders", ["x"], partition=0)
    consumer = make_consumer(enable_auto_commit=False)
    with pytest.raises(InvalidStateError, match="there is no assignment yet"):
        consumer.group_metadata()
    batch = consumer.poll(timeout=10.0)
    stats = consumer.stats()
    assert stats.member is not None and stats.generation is not None
    found = consumer.group_metadata()
    assert found == GroupMetadata(group, "orders", stats.member, stats.generation) == batch.group_metadata()
    assert consumer.poll(timeout=0).group_metadata() is None, "an empty batch was read by nobody"
    assert batch[:1].group_metadata() == found
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.generation = 7  # type: ignore[misc]
    asked = pytest.raises(RebalancingError, match="no generation to name")
    with held_in_a_rebalance(cluster, consumer, group), asked:
        consumer.group_metadata()
    rebalanced(consumer)
    consumer.start(timeout=10.0)
    assert consumer.group_metadata().generation > found.generation
    assert batch.group_metadata() == found, "a batch stays what it was"


def test_a_batch_s_offsets_go_with_a_transaction_until_a_rebalance_comes(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, consumer: Consumer, group: str
) -> None:
    cluster.produce("orders", ["x"], partition=0)
    writer = TransactionalWriter(cluster.brokers, "billing")
    batch = consumer.poll(timeout=10.0)
    metadata = batch.group_metadata()
    assert metadata is not None
    with writer.transaction() as transaction:
        transaction.send_offsets(metadata, batch.next_offsets())
    assert cluster.committed(group, "orders") == {0: 1}
    make_consumer(enable_auto_commit=False).start(timeout=10.0)
    with pytest.raises(BrokerResponseError) as caught, writer.transaction() as transaction:
        transaction.send_offsets(metadata, {0: 2})
    assert caught.value.broker is not None and caught.value.broker.code == "GEN_MISMATCH"
    assert cluster.committed(group, "orders") == {0: 1}


def test_a_group_is_described_with_its_members_and_how_far_it_is(
    cluster: EmbeddedCluster, consumer: Consumer, group: str
) -> None:
    cluster.fill("orders", 40, 10)
    take(consumer, 40)
    consumer.commit({0: 4})
    found = consumer.describe_group(timeout=10.0)
    me = consumer.group_metadata()
    assert (found.group, found.topic, found.state, found.generation) == (group, "orders", "Stable", me.generation)
    assert found.members == [GroupMember(me.member, partitions(0, 1, 2, 3))]
    zero, one, two, three = partitions(0, 1, 2, 3)
    rest = PartitionDescription(member=me.member, committed=None, lag=10)
    assert found.partitions == {
        zero: PartitionDescription(member=me.member, committed=4, lag=6),
        one: rest,
        two: rest,
        three: rest,
    }


QUESTIONS: dict[str, tuple[str, Callable[[Consumer, Any], object]]] = {
    "begin_offsets": ("METADATA", lambda consumer, timeout: consumer.begin_offsets(timeout=timeout)),
    "end_offsets": ("METADATA", lambda consumer, timeout: consumer.end_offsets([0], timeout=timeout)),
    "lag": ("METADATA", lambda consumer, timeout: consumer.lag(timeout=timeout)),
    "describe_group": ("GROUP_STATUS", lambda consumer, timeout: consumer.describe_group(timeout=timeout)),
}
questions = pytest.mark.parametrize(("command", "ask"), QUESTIONS.values(), ids=QUESTIONS)


@questions
def test_a_question_that_is_not_answered_in_time_says_so(
    cluster: EmbeddedCluster, consumer: Consumer, command: str, ask: Callable[[Consumer, Any], object]
) -> None:
    consumer.start(timeout=10.0)
    with cluster.hold(command), took(0.1, 0.4), pytest.raises(TimedOutError, match="in time"):
        ask(consumer, 0.1)
    assert ask(consumer, 10.0)


@questions
def test_other_threads_run_while_one_asks_and_close_ends_it(
    cluster: EmbeddedCluster, consumer: Consumer, command: str, ask: Callable[[Consumer, Any], object]
) -> None:
    consumer.start(timeout=10.0)
    with cluster.hold(command) as hold:
        asking = Background(lambda: ask(consumer, None))
        cluster.wait_for(hold.is_reached)
        consumer.close(timeout=0.5)
        with pytest.raises(Exception, match="the consumer is closed"):
            asking.result()
