"""What is wrong is refused, with a message that says what is right."""

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from conftest import MakeConsumer
from cursus_consumer import Consumer, InvalidArgumentError, InvalidSettingError, TimedOutError, TopicPartition
from cursus_consumer.testing import EmbeddedCluster
from support import took

NEEDED: dict[str, Any] = {"brokers": ["127.0.0.1:9000"], "topic": "orders", "group_id": "billing"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grup_id": "x"}, 'no setting "grup_id": did you mean group_id'),
        ({"bootstrap_servers": "x"}, "The settings are brokers, topic, group_id"),
        ({"group_id": None}, "group_id=None is not accepted: it is text. To read without a group, leave it out"),
        ({"group_id": ""}, "group_id=.* is not accepted: it can't be empty"),
        ({"mode": "push"}, "it is one of polling, streaming"),
        ({"max_poll_interval_ms": 99}, "max_poll_interval_ms=99 is not accepted: it is a whole number from 100 to"),
        ({"metadata_refresh_ms": None}, "metadata_refresh_ms=None is not accepted: it is a whole number from 100 to"),
        ({"topic": None}, "topic=None is not accepted"),
        ({"brokers": None}, "brokers=None is not accepted: it is a list of texts"),
        ({"consumer_id": None}, "consumer_id=None is not accepted"),
        ({"max_poll_records": None}, "max_poll_records=None is not accepted: it is a whole number from 1 to"),
        ({"max_poll_records": True}, "max_poll_records=true is not accepted: it is a whole number"),
        ({"max_poll_records": 0}, "max_poll_records=0 is not accepted: it is a whole number from 1 to 1000000"),
        ({"max_poll_records": 2.5}, "max_poll_records=2.5 is not accepted"),
        ({"max_poll_records": 2**200}, "max_poll_records=a number of over 127 bits is not accepted"),
        ({"enable_auto_commit": 1}, "enable_auto_commit=1 is not accepted: it is true or false"),
        ({"auto_offset_reset": "newest"}, "it is one of earliest, latest, error"),
        ({"read_isolation": b"read_committed"}, "a value of type bytes is not accepted: it is one of read_committed"),
        ({"brokers": "localhost"}, 'brokers has "localhost", which is not host:port'),
        ({"brokers": []}, "at least one entry"),
        ({"brokers": ["127.0.0.1:1", 2]}, "a list with a int in it is not accepted"),
        ({"topic": "a\ud800"}, "topic=text with a lone surrogate is not accepted"),
        ({"brokers": ["a\ud800:1"]}, "brokers=a list with text with a lone surrogate"),
        ({"topic": "a b"}, "topic is not accepted: .*' ' at byte 1"),
        ({"heartbeat_interval_ms": 9000}, "more than a third of expected_session_timeout_ms=10000"),
    ],
    ids=lambda value: str(next(iter(value.items()))) if isinstance(value, dict) else "",
)
def test_a_wrong_setting_is_named_with_its_value_and_the_right_ones(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message) as caught:
        Consumer(**{**NEEDED, **settings})
    assert isinstance(caught.value, ValueError)


def test_what_must_be_given_is_asked_for() -> None:
    make: Any = Consumer
    with pytest.raises(InvalidSettingError, match="missing: topic"):
        make(brokers="127.0.0.1:9000", group_id="billing")
    with pytest.raises(TypeError):
        make("127.0.0.1:9000")


def test_brokers_are_a_list_a_tuple_or_one_text() -> None:
    for brokers in (["a:1", "b:2"], ("a:1", "b:2"), "a:1, b:2"):
        Consumer(brokers=brokers, topic="orders", group_id="billing")


TIMED: dict[str, Callable[[Consumer, Any], object]] = {
    "start": lambda consumer, timeout: consumer.start(timeout=timeout),
    "poll": lambda consumer, timeout: consumer.poll(timeout=timeout),
    "commit": lambda consumer, timeout: consumer.commit({0: 0}, timeout=timeout),
    "committed": lambda consumer, timeout: consumer.committed(0, timeout=timeout),
    "commit_async": lambda consumer, timeout: consumer.commit_async({0: 0}, timeout=timeout),
    "begin_offsets": lambda consumer, timeout: consumer.begin_offsets(timeout=timeout),
    "end_offsets": lambda consumer, timeout: consumer.end_offsets(timeout=timeout),
    "lag": lambda consumer, timeout: consumer.lag(timeout=timeout),
    "describe_group": lambda consumer, timeout: consumer.describe_group(timeout=timeout),
    "close": lambda consumer, timeout: consumer.close(timeout=timeout),
}


@pytest.mark.parametrize("call", TIMED.values(), ids=TIMED)
def test_time_outs_that_mean_nothing_are_refused(call: Callable[[Consumer, Any], object]) -> None:
    consumer = Consumer(**NEEDED)
    for time in (-1, -0.001, math.nan, -math.inf, -(10**400)):
        with pytest.raises(InvalidArgumentError, match=r"a timeout of .* is not accepted: it is 0 or more"):
            call(consumer, time)
    for wrong in ("1", b"1", True, [1], object()):
        with pytest.raises(TypeError, match="a number of seconds or None, not"):
            call(consumer, wrong)
    assert consumer.state == "new", "a refused call has no effect"


def test_a_time_out_of_none_or_more_than_a_life_waits(make_consumer: MakeConsumer, cluster: EmbeddedCluster) -> None:
    cluster.produce("orders", ["x"], partition=0)
    consumer = make_consumer()
    consumer.start(timeout=None)
    for timeout in (None, math.inf, 10**400, 1e300, 10):
        cluster.produce("orders", ["x"], partition=0)
        assert len(consumer.poll(timeout)) > 0
    consumer.close(timeout=math.inf)


def test_time_outs_mean_what_they_say(make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    consumer.start(timeout=10.0)
    for seconds in (0, 0.0, -0.0):
        with took(0.0, 0.1):
            assert len(consumer.poll(seconds)) == 0
    for seconds in (0.03, 0.3):
        with took(seconds, seconds + 0.15):
            assert len(consumer.poll(seconds)) == 0


def test_a_start_of_no_time_does_not_wait(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    with cluster.hold("JOIN_GROUP"), took(0.0, 0.1), pytest.raises(TimedOutError, match="Still trying"):
        consumer.start(timeout=0)
    consumer.start(timeout=10)


def test_partitions_and_offsets_are_what_they_must_be(consumer: Consumer) -> None:
    consumer.start(timeout=10)
    for name in ("orders", 0.5, True, None, ("orders", 0)):
        with pytest.raises(TypeError, match="a partition is a TopicPartition or its number, not"):
            consumer.position(name)  # type: ignore[arg-type]
    for wrong in (-1, 2**32):
        with pytest.raises(InvalidArgumentError, match=r"whole number from 0 to 2\*\*32 - 1"):
            consumer.position(wrong)
    for offset in ("1", 1.0, True, None):
        with pytest.raises(TypeError, match="must be an int, not"):
            consumer.commit({0: offset})  # type: ignore[dict-item]
    for wrong in (-1, 2**64):
        with pytest.raises(InvalidArgumentError, match=r"whole number from 0 to 2\*\*64 - 1"):
            consumer.commit({0: wrong})
    with pytest.raises(InvalidArgumentError, match="orders-0 is given twice"):
        consumer.commit({0: 0, TopicPartition("orders", 0): 0})
    for what in (None, 7, "orders", [1]):
        with pytest.raises(TypeError, match="a commit is of a Batch, a Record or a mapping"):
            consumer.commit(what)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="give nothing"):
        consumer.commit(None)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        consumer.owned([])  # type: ignore[arg-type]


def test_another_topic_s_partition_is_refused(consumer: Consumer) -> None:
    with pytest.raises(InvalidArgumentError, match="not of the topic that this consumer reads"):
        consumer.committed(TopicPartition("returns", 0), timeout=10)
    assert consumer.position(TopicPartition("returns", 0)) is None


def test_an_enum_of_texts_is_its_value() -> None:
    class Topics(str, Enum):
        ORDERS = "orders"

    assert "orders" in repr(Consumer(brokers="127.0.0.1:9", topic=Topics.ORDERS, group_id="g"))
    assert "Topics" not in repr(Consumer(brokers="127.0.0.1:9", topic=Topics.ORDERS, group_id="g"))
