"""The cluster that tests are written with: what it does, and what it says where it can't."""

from collections.abc import Callable

import pytest
from conftest import MakeCluster, MakeConsumer
from cursus_consumer import Consumer, CursusError, InvalidArgumentError, InvalidStateError, TimedOutError
from cursus_consumer.testing import EmbeddedCluster, Group, Request
from support import Background, take, took


def test_a_cluster_has_its_brokers(make_cluster: MakeCluster) -> None:
    with make_cluster(brokers=2) as cluster:
        assert len(set(cluster.brokers)) == 2
        assert all(broker.startswith("127.0.0.1:") for broker in cluster.brokers)
        assert [cluster.is_running(broker) for broker in range(3)] == [True, True, False]
        assert repr(cluster) == f"<EmbeddedCluster of {', '.join(cluster.brokers)}>"
    assert not cluster.is_running(0)
    cluster.stop()


def test_records_are_dealt_out_or_put_where_they_are_told(cluster: EmbeddedCluster) -> None:
    assert cluster.produce("orders", [b"a", "b", bytearray(b"c"), ("k", b"d"), (None, "e")], partition=2) == {2: 5}
    assert cluster.produce("orders", (str(i) for i in range(8))) == {0: 2, 1: 2, 2: 7, 3: 2}
    assert cluster.produce("orders", []) == {}
    ends = cluster.produce("orders", [("one key", str(i)) for i in range(8)])
    assert len(ends) == 1, "one key, one partition"
    assert sum(cluster.end_offsets("orders").values()) == 21
    cluster.fill("orders", 10, 30)
    assert sum(cluster.end_offsets("orders").values()) == 31
    assert cluster.end_offsets("no-such-topic") == {}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ("abc", "not a single one"),
        (b"abc", "not a single one"),
        (["a", 1], "record 1 is bytes, str or a .key, value. pair of these, not int"),
        ([("k", None)], "record 0 is bytes"),
        ([("a", "b", "c")], "record 0 is bytes"),
        (7, "not iterable"),
    ],
)
def test_what_is_no_record_is_refused(cluster: EmbeddedCluster, records: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        cluster.produce("orders", records)  # type: ignore[arg-type]


def test_what_does_not_exist_is_named_with_what_does(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    consumer.start(timeout=10.0)
    cases: list[tuple[object, str]] = [
        (lambda: cluster.produce("ordres", ["x"]), 'no topic "ordres"; there are: orders'),
        (lambda: cluster.produce("orders", ["x"], partition=4), "no partition 4 in topic"),
        (lambda: cluster.leader("orders", 9), "no partition 9 in topic"),
        (lambda: cluster.kill_broker(3), "no broker 3; there are 3, counted from 0"),
        (lambda: cluster.move_leader("orders", 0, 3), "no broker 3"),
        (lambda: cluster.move_coordinator("g", 3), "no broker 3"),
        (lambda: cluster.cut_connections(3), "no broker 3"),
        (lambda: cluster.freeze_connections(3), "no broker 3"),
        (lambda: cluster.pause_broker(3), "no broker 3"),
        (lambda: cluster.resume_broker(3), "no broker 3"),
        (lambda: cluster.delay(1, 3), "no broker 3"),
        (lambda: cluster.advertise(3), "no broker 3"),
        (lambda: cluster.swap_addresses(0, 3), "no broker 3"),
        (lambda: cluster.advertise(0, "localhost"), '"localhost" is no address to advertise: expected HOST:PORT'),
        (lambda: EmbeddedCluster(advertised={3: "localhost:1"}), "there is no broker 3 to advertise"),
        (lambda: cluster.advance(-1), "whole number"),
        (lambda: cluster.fail_next("COMSUME", 1, "x"), 'no command "COMSUME"; there are: '),
        (lambda: cluster.hold("COMSUME"), 'no command "COMSUME"'),
        (lambda: cluster.expire_member("nobody", "x"), f'no group "nobody"; there are: {group}'),
        (lambda: cluster.expire_member(group, "x"), f'no member "x" in group "{group}"; its members are: consumer-'),
        (lambda: cluster.create_topic("a b", 1), "a topic can't be named"),
        (lambda: cluster.create_topic("orders", 1), "it has 4 and can't lose any"),
        (lambda: cluster.delete_topic("ordres"), 'no topic "ordres"'),
        (lambda: cluster.produce("orders", ["x", ("k" * 70_000, "x")], partition=0), "record 1 has a key of 70000"),
        (lambda: EmbeddedCluster(brokers=0), "at least one broker"),
        (lambda: cluster.kill_broker(-1), "whole number"),
    ]
    for call, message in cases:
        with pytest.raises(InvalidArgumentError) as caught:
            call()  # type: ignore[operator]
        assert message in str(caught.value)
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, CursusError)
    with pytest.raises(TypeError):
        cluster.kill_broker(True)
    with pytest.raises(TypeError):
        EmbeddedCluster(3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cluster: cluster.kill_broker(True), "argument 'broker': it must be an int, not bool"),
        (lambda cluster: cluster.kill_broker("0"), "argument 'broker': it must be an int, not str"),
        (lambda cluster: cluster.kill_broker(None), "argument 'broker': it must be an int, not NoneType"),
        (lambda cluster: cluster.lose_reply("LIST", None), "argument 'times': it must be an int, not NoneType"),
        (lambda cluster: cluster.delete_topic(7), "argument 'name': 'int' object .* 'str'"),
        (lambda cluster: cluster.delete_topic(), "missing 1 required positional argument: 'name'"),
        (lambda cluster: cluster.delete_topic("orders", force=True), "unexpected keyword argument 'force'"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(
    cluster: EmbeddedCluster, call: Callable[[EmbeddedCluster], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(cluster)


def test_a_broker_is_down_or_running_and_not_both(cluster: EmbeddedCluster) -> None:
    with pytest.raises(InvalidStateError, match="broker 1 is running already"):
        cluster.restart_broker(1)
    cluster.stop_broker(1)
    with pytest.raises(InvalidStateError, match="broker 1 is down already"):
        cluster.kill_broker(1)
    cluster.restart_broker(1)
    assert cluster.is_running(1)
    cluster.stop()
    with pytest.raises(InvalidStateError, match="stopped"):
        cluster.restart_broker(1)


def test_a_paused_broker_waits_and_its_leadership_goes(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.produce("orders", [("k", "v")], partition=1)
    take(consumer, 1)
    assert cluster.leader("orders", 1) == 1 and not cluster.is_paused(1)
    cluster.pause_broker(1)
    assert cluster.is_paused(1) and cluster.is_running(1)
    with pytest.raises(InvalidStateError, match="broker 1 is paused already"):
        cluster.pause_broker(1)
    cluster.advance(500)
    assert cluster.leader("orders", 1) == 0
    cluster.resume_broker(1)
    assert not cluster.is_paused(1)
    with pytest.raises(InvalidStateError, match="broker 1 is running already"):
        cluster.resume_broker(1)
    cluster.kill_broker(1)
    with pytest.raises(InvalidStateError, match="broker 1 is down; restart it first"):
        cluster.pause_broker(1)


def test_the_clock_ends_sessions(cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str) -> None:
    consumer = make_consumer()
    consumer.start(timeout=10.0)
    with cluster.hold("HEARTBEAT"), cluster.hold("JOIN_GROUP"):
        cluster.advance(3_600_000)
        found = cluster.group(group)
        assert found is not None and found.members == {}
        assert found.generation == 2
    cluster.produce("orders", ["x"])
    assert [record.value for record in take(consumer, 1)] == [b"x"], "it joined again"


def test_replies_are_delayed(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    cluster.delay(3_600_000)
    consumer = make_consumer()
    with pytest.raises(CursusError):
        consumer.start(timeout=0.1)
    cluster.delay(0)
    cluster.advance(3_600_000)
    consumer.start(timeout=10.0)


def test_frozen_connections_bring_nothing_and_new_ones_do(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.produce("orders", ["before"], partition=0)
    take(consumer, 1)
    cluster.freeze_connections(0)
    frozen = cluster.connections(0)
    assert frozen > 0, "they stay open"
    cluster.clear_requests()
    cluster.produce("orders", ["after"], partition=0)
    assert [record.value for record in take(consumer, 1)] == [b"after"]
    assert cluster.connections(0) > frozen, "it came by a new one"


def test_brokers_name_other_addresses(make_cluster: MakeCluster, make_consumer: MakeConsumer) -> None:
    with make_cluster(brokers=2, advertised={1: "127.0.0.1:1"}) as cluster:
        cluster.create_topic("orders", 2)
        cluster.produce("orders", ["x"], partition=1)
        cluster.move_coordinator("elsewhere", 1)
        consumer = make_consumer(brokers=cluster.brokers, group_id="elsewhere")
        with pytest.raises(CursusError):
            consumer.start(timeout=0.2)
        cluster.advertise(1)
        assert [record.value for record in take(consumer, 1)] == [b"x"]


def test_brokers_swap_their_addresses(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.produce("orders", ["x"], partition=0)
    take(consumer, 1)
    before = cluster.brokers
    cluster.swap_addresses(0, 1)
    assert cluster.brokers == [before[1], before[0], before[2]]
    cluster.produce("orders", ["y"], partition=0)
    assert [record.value for record in take(consumer, 1)] == [b"y"]
    cluster.stop_broker(0)
    with pytest.raises(InvalidStateError, match="broker 0 is down; restart it first"):
        cluster.swap_addresses(0, 1)


def test_a_port_that_is_taken_is_an_os_error(cluster: EmbeddedCluster) -> None:
    port = int(cluster.brokers[0].rsplit(":", 1)[1])
    with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
        EmbeddedCluster(brokers=1, port=port)


def test_leaders_and_coordinators_are_where_they_were_put(cluster: EmbeddedCluster) -> None:
    assert [cluster.leader("orders", partition) for partition in range(4)] == [0, 1, 2, 0]
    cluster.move_leader("orders", 3, 2)
    assert cluster.leader("orders", 3) == 2
    for broker in range(3):
        cluster.move_coordinator("g", broker)
        assert cluster.coordinator("g") == broker


def test_groups_and_requests_can_be_looked_at(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> None:
    assert cluster.group(group) is None
    consumer.start(timeout=10.0)
    member = consumer.stats().member
    assert member is not None
    assert cluster.group(group) == Group("orders", 1, "Stable", {member: [0, 1, 2, 3]})
    joins = [request for request in cluster.requests() if request.command == "JOIN_GROUP"]
    assert len(joins) == 1 and isinstance(joins[0], Request)
    assert joins[0].text.startswith("JOIN_GROUP topic=orders") and joins[0].broker == cluster.coordinator(group)
    cluster.clear_requests()
    assert not [request for request in cluster.requests() if request.command == "JOIN_GROUP"]


def test_a_hold_holds_until_it_is_released(cluster: EmbeddedCluster, make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    with cluster.hold("JOIN_GROUP") as hold:
        assert not hold.is_reached()
        with pytest.raises(CursusError):
            consumer.start(timeout=0.1)
        cluster.wait_for(hold.is_reached)
    consumer.start(timeout=10.0)
    hold.release()


def test_retention_forgets(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    cluster.produce("orders", [str(i) for i in range(10)], partition=0)
    cluster.delete_records("orders", 0, 6)
    assert [record.offset for record in take(consumer, 4)] == [6, 7, 8, 9]


def test_what_transactions_leave_in_a_log_is_written_on_command(cluster: EmbeddedCluster, consumer: Consumer) -> None:
    assert cluster.append_marker("orders", 0) == 1
    assert cluster.append_aborted("orders", ["never", ("k", b"seen")], 0) == 4
    cluster.produce("orders", ["x"], partition=0)
    assert [record.offset for record in take(consumer, 1)] == [4]
    with pytest.raises(InvalidArgumentError, match="no partition 7"):
        cluster.append_marker("orders", 7)
    with pytest.raises(TypeError, match="put it into a list"):
        cluster.append_aborted("orders", "x", 0)


def test_waiting_for_a_condition(cluster: EmbeddedCluster) -> None:
    cluster.wait_for(lambda: True, timeout=0)
    with took(0.1, 0.3), pytest.raises(TimedOutError, match=r"did not come true in time; there is Cluster \{"):
        cluster.wait_for(lambda: False, timeout=0.1)
    with pytest.raises(ZeroDivisionError):
        cluster.wait_for(lambda: 1 / 0)
    waiting = Background(lambda: cluster.wait_for(lambda: cluster.end_offsets("orders")[0] == 1, timeout=None))
    cluster.produce("orders", ["x"], partition=0)
    waiting.result()


def test_a_forgotten_cluster_ends(make_consumer: MakeConsumer) -> None:
    cluster = EmbeddedCluster(brokers=1)
    cluster.create_topic("orders", 1)
    cluster.produce("orders", ["x"])
    consumer = make_consumer(brokers=cluster.brokers)
    take(consumer, 1)
    del cluster
    with took(0.1, 0.3):
        assert len(consumer.poll(timeout=0.1)) == 0
    consumer.close(timeout=1.0)
