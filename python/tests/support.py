"""How the tests read, wait and run other Pythons."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cursus_consumer import Consumer, RebalancingError, Record, TopicPartition
from cursus_consumer.testing import EmbeddedCluster

PATIENCE = 20.0
"""How long anything may take that has to happen, in seconds."""
SLACK = 1.5
"""How long this machine may do other things, in seconds."""


def take(consumer: Consumer, count: int) -> list[Record]:
    """Poll until there are `count` records. Rebalances on the way are none of the caller's business."""
    records: list[Record] = []
    deadline = time.monotonic() + PATIENCE
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records: {consumer.stats()}"
        try:
            records += consumer.poll(timeout=1.0)
        except RebalancingError:
            records.clear()
    return records


def fetched(cluster: EmbeddedCluster, consumer: Consumer, topic: str) -> None:
    """Start the consumer and wait until it has fetched, and not yet returned, all that the topic has."""
    consumer.start(timeout=PATIENCE)
    ends = cluster.end_offsets(topic)

    def at_the_ends() -> bool:
        asked = [request.text for request in cluster.requests() if request.command == "CONSUME"]
        return all(
            end == 0 or any(f" partition={partition} offset={end} " in text for text in asked)
            for partition, end in ends.items()
        )

    cluster.wait_for(at_the_ends, timeout=PATIENCE)


def rebalanced(consumer: Consumer) -> RebalancingError:
    """Poll until it raises, which it has to."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            consumer.poll(timeout=1.0)
        except RebalancingError as error:
            return error
    raise AssertionError(f"no rebalance: {consumer.stats()}")


@contextmanager
def held_in_a_rebalance(cluster: EmbeddedCluster, consumer: Consumer, group: str) -> Iterator[None]:
    """Expire a consumer, and hold its next JOIN_GROUP meanwhile."""
    member = consumer.stats().member
    assert member is not None
    with cluster.hold("JOIN_GROUP") as hold:
        cluster.expire_member(group, member)
        cluster.wait_for(hold.is_reached)
        assert consumer.state == "rebalancing"
        yield


def partitions(*numbers: int) -> list[TopicPartition]:
    """Partitions of `orders`."""
    return [TopicPartition("orders", number) for number in numbers]


def places(records: Any) -> list[tuple[int, int]]:
    """Partition and offset of each record, in order."""
    return sorted((record.partition, record.offset) for record in records)


def until(condition: Callable[[], object], what: str) -> None:
    """Look until it is true. For what has no event to wait for."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.005)


@contextmanager
def took(at_least: float, at_most: float) -> Iterator[None]:
    """Check how long something takes, in seconds. A machine that is busy with other things gets some more."""
    begun = time.monotonic()
    yield
    seconds = time.monotonic() - begun
    assert at_least <= seconds <= at_most + SLACK, f"it took {seconds:.3f} s, not {at_least} to {at_most} s"


class Background:
    """Something that runs in another thread, and what came of it."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.outcome: Any = None
        self.error: BaseException | None = None

        def keep() -> None:
            try:
                self.outcome = run()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=keep, daemon=True)
        self.thread.start()

    def result(self) -> Any:
        """Wait for its end."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the thread didn't end"
        if self.error is not None:
            raise self.error
        return self.outcome


SETTINGS = {
    "topic": "orders",
    "group_id": "children",
    "heartbeat_interval_ms": 50,
    "fetch_wait_ms": 100,
    "retry_backoff_max_ms": 100,
}


def start_python(program: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a Python program that says something on its standard output once it is ready."""
    prelude = f"import os, signal, sys, time\nfrom cursus_consumer import *\nSETTINGS = {SETTINGS!r}\n"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-u", "-c", prelude + textwrap.dedent(program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line_of(process: "subprocess.Popen[str]") -> str:
    """Wait for the next line of a program's output."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        _, errors = process.communicate(timeout=PATIENCE)
        raise AssertionError(f"the program ended with {process.returncode}:\n{errors}")
    return line.strip()


def run_python(program: str, *arguments: str) -> str:
    """Run a Python program that has to end well and silently, and give what it printed."""
    process = start_python(program, *arguments)
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        raise AssertionError(f"the program didn't end:\n{output}\n{errors}") from None
    assert (process.returncode, errors) == (0, ""), f"it ended with {process.returncode}:\n{errors}"
    return output.strip()
