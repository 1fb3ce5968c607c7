"""Transactions: all of one is written, or nothing, whatever ends it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from conftest import MakeConsumer
from cursus_consumer import (
    BrokerResponseError,
    CommitOutcomeUnknownError,
    CursusError,
    GroupMetadata,
    InvalidArgumentError,
    InvalidStateError,
    OffsetRegressionError,
    TimedOutError,
    TopicPartition,
)
from cursus_consumer.testing import EmbeddedCluster, FencedError, TransactionalWriter
from support import PATIENCE, Background, line_of, run_python, start_python, take


@pytest.fixture
def writer(cluster: EmbeddedCluster) -> TransactionalWriter:
    """A writer of the test's cluster."""
    return TransactionalWriter(cluster.brokers, "billing")


@pytest.fixture
def member(cluster: EmbeddedCluster, make_consumer: MakeConsumer, group: str) -> GroupMetadata:
    """The one member of the test's group."""
    make_consumer(enable_auto_commit=False).start(timeout=PATIENCE)
    known = cluster.group(group)
    assert known is not None
    [name] = known.members
    return GroupMetadata(group, "orders", name, known.generation)


def test_what_a_transaction_holds_is_read_after_its_end(
    cluster: EmbeddedCluster, writer: TransactionalWriter, member: GroupMetadata, make_consumer: MakeConsumer
) -> None:
    with writer.transaction() as transaction:
        assert transaction.publish("orders", "one", key="k", partition=2) == 2
        assert transaction.publish("orders", b"two", partition=2) == 2
        transaction.send_offsets(member, {0: 5, TopicPartition("orders", 1): 7})
        assert sum(cluster.end_offsets("orders").values()) == 0
    assert cluster.committed(member.group, "orders") == {0: 5, 1: 7}
    reader = make_consumer(group_id="reader")
    records = take(reader, 2)
    assert [(record.partition, record.key, record.value) for record in records] == [(2, b"k", b"one"), (2, b"", b"two")]


def test_an_exception_aborts_and_is_what_is_raised(cluster: EmbeddedCluster, writer: TransactionalWriter) -> None:
    with pytest.raises(ZeroDivisionError), writer.transaction() as transaction:
        transaction.publish("orders", "never")
        raise ZeroDivisionError
    assert sum(cluster.end_offsets("orders").values()) == 0
    # Also where the abort itself isn't possible any more.
    with pytest.raises(ZeroDivisionError), writer.transaction():
        writer.abort()
        raise ZeroDivisionError
    with writer.transaction() as transaction:
        partition = transaction.publish("orders", "kept")
    assert cluster.end_offsets("orders")[partition] == 2


def test_without_a_context_each_step_is_a_call(cluster: EmbeddedCluster, writer: TransactionalWriter) -> None:
    for end in (writer.abort, writer.commit):
        writer.begin()
        writer.publish("orders", "x", partition=0)
        end()
    assert cluster.end_offsets("orders")[0] == 2
    for step in (writer.commit, writer.abort, lambda: writer.publish("orders", "x")):
        with pytest.raises(InvalidStateError, match="begin one first"):
            step()


def test_a_newer_writer_fences_the_older_one(cluster: EmbeddedCluster, writer: TransactionalWriter) -> None:
    newer = TransactionalWriter(cluster.brokers, "billing")
    with pytest.raises(FencedError, match="billing"), writer.transaction() as transaction:
        transaction.publish("orders", "old", partition=0)
        newer.begin()
        transaction.publish("orders", "old", partition=0)
    with pytest.raises(FencedError) as caught, writer.transaction():
        pass
    assert isinstance(caught.value, CursusError)
    newer.publish("orders", "new", partition=0)
    newer.commit()
    assert cluster.end_offsets("orders")[0] == 2


def test_refusals_carry_what_the_broker_said(
    cluster: EmbeddedCluster, writer: TransactionalWriter, member: GroupMetadata
) -> None:
    with pytest.raises(BrokerResponseError, match="partition_not_found") as caught, writer.transaction() as transaction:
        transaction.publish("orders", "x", partition=9)
    assert caught.value.broker is not None and caught.value.broker.fields == {"partition": "9"}

    with writer.transaction() as transaction:
        transaction.send_offsets(member, {0: 5})
    with pytest.raises(OffsetRegressionError), writer.transaction() as transaction:
        transaction.send_offsets(member, {0: 4})

    later = replace(member, generation=member.generation + 1)
    with pytest.raises(BrokerResponseError) as caught, writer.transaction() as transaction:
        transaction.send_offsets(later, {0: 6})
    assert caught.value.broker is not None and caught.value.broker.code == "GEN_MISMATCH"
    assert cluster.committed(member.group, "orders") == {0: 5}


def test_wrong_arguments_are_refused_by_name(cluster: EmbeddedCluster, writer: TransactionalWriter) -> None:
    with pytest.raises(InvalidArgumentError, match="at least one broker"):
        TransactionalWriter([], "x")
    with pytest.raises(InvalidArgumentError, match="host:port"):
        TransactionalWriter(["nowhere"], "x")
    with pytest.raises(InvalidArgumentError, match="a b"):
        TransactionalWriter(cluster.brokers, "a b")
    with pytest.raises(TypeError):
        TransactionalWriter(cluster.brokers[0], "x")  # type: ignore[arg-type, unused-ignore]
    member = GroupMetadata("g", "orders", "m", 1)
    writer.begin()
    wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (TypeError, "str or bytes, not int", lambda: writer.publish("orders", 1)),  # type: ignore[arg-type]
        (InvalidArgumentError, "text", lambda: writer.publish("orders", b"\xff")),
        (InvalidArgumentError, "empty", lambda: writer.publish("orders", "")),
        (InvalidArgumentError, "white space", lambda: writer.publish("orders", "x\n")),
        (InvalidArgumentError, "key|value", lambda: writer.publish("orders", "x", key="two words")),
        (TypeError, "not bool", lambda: writer.publish("orders", "x", partition=True)),
        (AttributeError, "group", lambda: writer.send_offsets(object(), {0: 1})),  # type: ignore[call-overload]
        (TypeError, "mapping", lambda: writer.send_offsets(member, [(0, 1)])),  # type: ignore[call-overload]
        (InvalidArgumentError, "other", lambda: writer.send_offsets(member, {TopicPartition("other", 0): 1})),
    ]
    for error, words, call in wrong:
        with pytest.raises(error, match=words):
            call()
    writer.publish("orders", "x", partition=0)
    writer.commit()
    assert cluster.end_offsets("orders")[0] == 2


def test_a_call_ends_with_its_time(cluster: EmbeddedCluster) -> None:
    writer = TransactionalWriter(cluster.brokers, "billing", timeout=0.3)
    writer.begin()
    writer.publish("orders", "x", partition=0)
    cluster.fail_next("TXN_PUBLISH", 1000, "coordinator_not_available")
    with pytest.raises(TimedOutError, match="coordinator_not_available"):
        writer.publish("orders", "y", partition=0)
    cluster.lose_reply("END_TXN", 1)
    cluster.fail_next("FIND_COORDINATOR", 1000, "coordinator_not_available")
    with pytest.raises(CommitOutcomeUnknownError):
        writer.commit()
    with pytest.raises(InvalidStateError, match="call commit again"):
        writer.begin()
    assert cluster.end_offsets("orders")[0] == 2


def test_the_interpreter_is_free_while_a_call_waits(cluster: EmbeddedCluster, writer: TransactionalWriter) -> None:
    with cluster.hold("BEGIN_TXN") as hold:
        begun = Background(writer.begin)
        cluster.wait_for(hold.is_reached)
        # One call at a time.
        with pytest.raises(InvalidStateError, match="another thread"):
            writer.publish("orders", "x")
        assert threading.active_count() > 1
        assert repr(writer) == "<TransactionalWriter in a call>"
    begun.result()
    assert repr(writer) == "<TransactionalWriter billing>"
    writer.abort()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as Unix has them")
def test_ctrl_c_ends_a_call_and_the_transaction_with_it(cluster: EmbeddedCluster) -> None:
    process: subprocess.Popen[str] = start_python(
        """
        from cursus_consumer.testing import TransactionalWriter
        writer = TransactionalWriter(sys.argv[1].split(","), "billing")
        try:
            with writer.transaction() as transaction:
                transaction.publish("orders", "never", partition=0)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        with writer.transaction() as transaction:
            transaction.publish("orders", "kept", partition=0)
        """,
        ",".join(cluster.brokers),
    )
    with cluster.hold("TXN_PUBLISH") as hold:
        cluster.wait_for(hold.is_reached, timeout=PATIENCE)
        process.send_signal(signal.SIGINT)
        assert line_of(process) == "interrupted"
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert cluster.end_offsets("orders")[0] == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_can_not_use_a_writer_that_it_inherited(cluster: EmbeddedCluster) -> None:
    run_python(
        """
        import warnings
        from cursus_consumer.testing import TransactionalWriter
        warnings.simplefilter("ignore", DeprecationWarning)
        writer = TransactionalWriter(sys.argv[1].split(","), "billing")
        writer.begin()
        child = os.fork()
        if child == 0:
            calls = (
                writer.begin, writer.commit, writer.abort, writer.transaction().__enter__,
                lambda: writer.publish("orders", "x"),
            )
            for call in calls:
                try:
                    call()
                except ForkedError as error:
                    assert "make a new one here" in str(error)
                else:
                    os._exit(1)
            assert "another process" in repr(writer)
            del writer, calls, call
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        writer.publish("orders", "x", partition=0)
        writer.commit()
        """,
        ",".join(cluster.brokers),
    )
    assert cluster.end_offsets("orders")[0] == 2
