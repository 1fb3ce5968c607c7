"""Commits: what is committed is the next offset to read, all of a call or nothing."""

from types import MappingProxyType

import pytest
from conftest import MakeConsumer
from cursus_consumer import (
    CommitOutcomeUnknownError,
    Consumer,
    InvalidArgumentError,
    OffsetRegressionError,
    RebalancingError,
    TimedOutError,
    TopicPartition,
)
from cursus_consumer.testing import EmbeddedCluster
from support import Background, take, took, until


@pytest.fixture
def read(cluster: EmbeddedCluster, consumer: Consumer) -> Consumer:
    """A consumer that has polled ten records of each partition."""
    cluster.fill("orders", 40, 10)
    take(consumer, 40)
    return consumer


def test_a_commit_of_nothing_named_commits_all_that_was_polled(
    cluster: EmbeddedCluster, read: Consumer, group: str
) -> None:
    cluster.fill("orders", 4, 10)
    read.commit()
    assert cluster.committed(group, "orders") == dict.fromkeys(range(4), 10)
    assert read.stats().commits == 1
    read.commit()
    assert read.stats().commits == 1, "there was nothing new to say"


def test_a_commit_of_a_record_includes_it(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    cluster.produce("orders", ["a", "b", "c"], partition=3)
    record = take(consumer, 3)[1]
    consumer.commit(record)
    assert cluster.committed(group, "orders") == {3: 2}
    consumer.commit(record)
    with pytest.raises(OffsetRegressionError, match="a step back"):
        consumer.commit({3: 1})
    assert cluster.committed(group, "orders") == {3: 2}


def test_a_commit_of_offsets(cluster: EmbeddedCluster, read: Consumer, group: str) -> None:
    read.commit({TopicPartition("orders", 0): 4, 1: 5})
    read.commit(MappingProxyType({2: 6}))
    read.commit({})
    assert cluster.committed(group, "orders") == {0: 4, 1: 5, 2: 6}
    assert read.committed(1, timeout=10.0) == 5
    assert read.stats().partitions[TopicPartition("orders", 2)].committed == 6


def test_a_commit_of_what_a_batch_says_it_commits(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    cluster.produce("orders", ["a", "b", "c"], partition=3)
    batch = consumer.poll(timeout=10.0)
    consumer.commit(batch[:2].next_offsets())
    assert cluster.committed(group, "orders") == {3: 2}
    numbers = {partition.partition: offset for partition, offset in batch.next_offsets().items()}
    consumer.commit_async(numbers).result(timeout=10.0)
    assert cluster.committed(group, "orders") == {3: 3}


def test_what_cannot_be_committed_commits_nothing_else_either(
    cluster: EmbeddedCluster, read: Consumer, group: str
) -> None:
    with pytest.raises(InvalidArgumentError, match="orders-1 can't be committed at 11: it was read only up to 10"):
        read.commit({0: 5, 1: 11})
    with pytest.raises(RebalancingError, match="orders-9 can't be committed: not assigned") as caught:
        read.commit({0: 5, 9: 1})
    assert caught.value.stale == [TopicPartition("orders", 9)]
    assert caught.value.owned == [TopicPartition("orders", 0)]
    read.commit({0: 5})
    with pytest.raises(OffsetRegressionError):
        read.commit({0: 4, 1: 5})
    assert cluster.committed(group, "orders") == {0: 5}


def test_another_consumer_s_records_are_refused(
    cluster: EmbeddedCluster, read: Consumer, make_consumer: MakeConsumer
) -> None:
    other = make_consumer(group_id="another", enable_auto_commit=False)
    batch = other.poll(timeout=10.0)
    for records in (batch, batch[0], batch[0].detach()):
        with pytest.raises(InvalidArgumentError, match="read by another consumer"):
            read.commit(records)
    assert len(read.owned(batch)) == 0 and len(other.owned(batch)) == len(batch) == len(batch.owned())


def test_a_commit_that_could_not_be_sent_in_time_is_withdrawn(
    cluster: EmbeddedCluster, read: Consumer, group: str
) -> None:
    cluster.stop_broker(cluster.coordinator(group))
    until(lambda: read.stats().coordinator_unreachable_seconds is not None, "the coordinator is missed")
    with took(0.2, 0.6), pytest.raises(TimedOutError, match="withdrawn") as caught:
        read.commit({0: 5}, timeout=0.2)
    assert isinstance(caught.value, TimeoutError) and caught.value.retryable


def test_a_commit_that_was_not_answered_in_time_may_or_may_not_count(
    cluster: EmbeddedCluster, read: Consumer, group: str
) -> None:
    with cluster.hold("BATCH_COMMIT"), took(0.2, 0.6), pytest.raises(CommitOutcomeUnknownError):
        read.commit({0: 5}, timeout=0.2)
    cluster.wait_for(lambda: cluster.committed(group, "orders") == {0: 5})


def test_a_commit_survives_a_lost_reply(cluster: EmbeddedCluster, read: Consumer, group: str) -> None:
    cluster.lose_reply("BATCH_COMMIT")
    read.commit(timeout=10.0)
    assert cluster.committed(group, "orders") == dict.fromkeys(range(4), 10)


def test_a_refused_commit_carries_what_the_broker_said(cluster: EmbeddedCluster, read: Consumer) -> None:
    cluster.fail_next("BATCH_COMMIT", 1, "NOT_AUTHORIZED_FOR_OPERATION command=BATCH_COMMIT permission=commit")
    with pytest.raises(Exception, match="refuses the commit") as caught:
        read.commit(timeout=10.0)
    failure = caught.value.broker  # type: ignore[attr-defined]
    assert failure.code == "NOT_AUTHORIZED_FOR_OPERATION"
    assert (failure.class_, failure.fields["permission"]) == ("authorization", "commit")


def test_close_waits_for_commits_of_other_threads(cluster: EmbeddedCluster, read: Consumer, group: str) -> None:
    hold = cluster.hold("BATCH_COMMIT")
    commit = Background(read.commit)
    cluster.wait_for(hold.is_reached)
    close = Background(read.close)
    until(lambda: read.state != "running", "it begins to close")
    hold.release()
    commit.result()
    close.result()
    assert cluster.committed(group, "orders") == dict.fromkeys(range(4), 10)
    assert read.stats().given_up == []


def test_committed_tells_never_from_what_is_there(cluster: EmbeddedCluster, read: Consumer) -> None:
    assert read.committed(0, timeout=10.0) is None
    read.commit({0: 7})
    assert read.committed(TopicPartition("orders", 0), timeout=10.0) == 7
    with cluster.hold("FETCH_OFFSET"), took(0.1, 0.5), pytest.raises(TimedOutError):
        read.committed(0, timeout=0.1)
