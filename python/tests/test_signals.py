"""Ctrl-C ends every wait at once, and no record is lost by it."""

import signal
import subprocess
import sys
import time

import pytest
from cursus_consumer import Consumer
from cursus_consumer.testing import EmbeddedCluster
from support import PATIENCE, SLACK, Background, line_of, start_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as Unix has them")


def interrupt(process: "subprocess.Popen[str]") -> None:
    """Wait until the program is ready and in its wait, then press Ctrl-C."""
    assert line_of(process) == "ready"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)


WAITS = {
    "poll": "consumer.poll(timeout=None)",
    "poll with a time-out": "consumer.poll(timeout=60)",
    "iteration": "for record in consumer: pass",
    "batches": "for batch in consumer.batches(): pass",
    "commit": "consumer.commit({0: 1})",
    "committed": "consumer.committed(0)",
    "pending commit": "consumer.commit_async({0: 1}).result()",
    "end_offsets": "consumer.end_offsets([0])",
    "lag": "consumer.lag()",
    "describe_group": "consumer.describe_group()",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_ctrl_c_ends_every_wait(cluster: EmbeddedCluster, wait: str) -> None:
    cluster.produce("orders", ["x"], partition=0)
    process = start_python(
        f"""
        consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS, enable_auto_commit=False)
        while not consumer.poll(timeout=10): pass
        print("hold", flush=True)
        sys.stdin.readline()
        print("ready", flush=True)
        try:
            {wait}
        except KeyboardInterrupt:
            print("interrupted", time.time())
        consumer.close(timeout=0)
        """,
        ",".join(cluster.brokers),
    )
    assert line_of(process) == "hold"
    with cluster.hold("BATCH_COMMIT"), cluster.hold("FETCH_OFFSET"), cluster.hold("METADATA"):
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        interrupt(process)
        sent = time.time()
        words = line_of(process).split()
        output = process.communicate(timeout=PATIENCE)
    assert words[0] == "interrupted"
    assert float(words[1]) - sent < 0.3 + SLACK
    assert (output, process.returncode) == (("", ""), 0)


@pytest.mark.parametrize("wait", ["consumer.start()", "consumer.poll()"])
def test_ctrl_c_ends_a_wait_for_a_cluster_that_is_gone(wait: str) -> None:
    process = start_python(
        f"""
        consumer = Consumer(brokers="127.0.0.1:1", **SETTINGS)
        print("ready", flush=True)
        {wait}
        """
    )
    interrupt(process)
    sent = time.time()
    _, errors = process.communicate(timeout=PATIENCE)
    assert time.time() - sent < 0.3 + SLACK
    assert errors.strip().endswith("KeyboardInterrupt") and "Traceback" in errors
    assert process.returncode in (130, -signal.SIGINT)


def test_an_interrupted_close_goes_on_in_the_background(cluster: EmbeddedCluster) -> None:
    process = start_python(
        """
        consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS)
        consumer.start(timeout=10)
        print("ready", flush=True)
        try:
            consumer.close()
        except KeyboardInterrupt:
            print(consumer.state, flush=True)
        sys.stdin.readline()
        consumer.close()
        print(consumer.state)
        """,
        ",".join(cluster.brokers),
    )
    with cluster.hold("LEAVE_GROUP"):
        interrupt(process)
        assert line_of(process) == "closing"
    cluster.wait_for(lambda: (found := cluster.group("children")) is not None and not found.members)
    output, errors = process.communicate("\n", timeout=PATIENCE)
    assert (output.strip(), errors, process.returncode) == ("closed", "", 0)


def test_ctrl_c_loses_no_record(cluster: EmbeddedCluster) -> None:
    process = start_python(
        """
        consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS, max_poll_records=1)
        seen, interrupts, idle = [], 0, 0
        print("ready", flush=True)
        while len(seen) < 400:
            try:
                for record in (batch := consumer.poll(timeout=10)):
                    seen.append((record.partition, record.offset))
            except KeyboardInterrupt:
                interrupts += 1
        print(len(set(seen)), interrupts > 0)
        consumer.close()
        """,
        ",".join(cluster.brokers),
    )
    assert line_of(process) == "ready"
    for _ in range(40):
        time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        cluster.fill("orders", 10, 10)
    output, errors = process.communicate(timeout=PATIENCE)
    assert (output.strip(), errors, process.returncode) == ("400 True", "", 0)


def test_a_signal_handler_may_close(cluster: EmbeddedCluster) -> None:
    process = start_python(
        """
        consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS)
        signal.signal(signal.SIGTERM, lambda *_: consumer.close())
        consumer.start(timeout=10)
        print("ready", flush=True)
        try:
            consumer.poll()
        except ClosedError:
            print("closed")
        """,
        ",".join(cluster.brokers),
    )
    assert line_of(process) == "ready"
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert (output.strip(), errors, process.returncode) == ("closed", "", 0)


def test_ctrl_c_ends_a_callback_and_comes_out_of_the_poll(cluster: EmbeddedCluster) -> None:
    process = start_python(
        """
        consumer = Consumer(brokers=sys.argv[1].split(","), **SETTINGS)

        @consumer.on_assigned
        def assigned(consumer, partitions):
            print("ready", flush=True)
            time.sleep(60)

        consumer.on_revoked(lambda _, partitions: print("revoked", len(partitions)))
        try:
            consumer.poll()
        except KeyboardInterrupt:
            print("interrupted", len(consumer.poll(timeout=0)))
        consumer.close()
        """,
        ",".join(cluster.brokers),
    )
    interrupt(process)
    output, errors = process.communicate(timeout=PATIENCE)
    assert (output.split("\n"), errors) == (["interrupted 0", "revoked 4", ""], "")


def test_other_threads_run_while_one_waits(consumer: Consumer) -> None:
    consumer.start(timeout=10.0)
    poll = Background(lambda: consumer.poll(timeout=0.5))
    turns = 0
    while poll.thread.is_alive():
        turns += 1
    assert turns > 1000, "the interpreter wasn't released"
