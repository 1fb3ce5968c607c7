"""`examples/exactly_once.py` is killed: of what it reads nothing is missing behind it, twice there or out of order."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import MakeCluster
from cursus_consumer import Consumer, InvalidArgumentError
from cursus_consumer.testing import EmbeddedCluster, Hold
from support import PATIENCE, until

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "exactly_once.py"
COMMANDS = ["INIT_PRODUCER_ID", "BEGIN_TXN", "SEND_OFFSETS_TO_TXN", "TXN_PUBLISH", "END_TXN"]
"""The commands of a transaction, in their order."""

Program = subprocess.Popen[bytes]
Start = Callable[[str], Program]


@pytest.fixture
def processing(make_cluster: MakeCluster) -> EmbeddedCluster:
    """Three brokers with something to process. Nobody expires but on command."""
    cluster = make_cluster(session_timeout_ms=600_000)
    for topic in ("in", "out"):
        cluster.create_topic(topic, 4)
    return cluster


@pytest.fixture
def start(processing: EmbeddedCluster) -> Iterator[Start]:
    """Start the example under a transactional id, and kill it at the test's end."""
    programs: list[Program] = []

    def make(transactional_id: str) -> Program:
        arguments = [",".join(processing.brokers), "in", "out", "g", transactional_id]
        programs.append(subprocess.Popen([sys.executable, EXAMPLE, *arguments], stdout=subprocess.DEVNULL))
        return programs[-1]

    yield make
    for program in programs:
        kill(program)


def kill(program: Program) -> None:
    program.kill()
    program.wait()


def all_is_processed(cluster: EmbeddedCluster) -> bool:
    return cluster.committed("g", "in") == cluster.end_offsets("in")


def wait_for_commands(cluster: EmbeddedCluster, more: int) -> None:
    """Wait until the brokers have received so many more commands of transactions, or all is processed."""
    cluster.clear_requests()

    def received() -> bool:
        requests = cluster.requests()
        return sum(request.command in COMMANDS for request in requests) >= more or all_is_processed(cluster)

    cluster.wait_for(received, timeout=PATIENCE)


def wait_for_a_commit(cluster: EmbeddedCluster, before: dict[int, int]) -> None:
    """Wait until the group has committed more than it had, or all there is."""
    cluster.wait_for(lambda: cluster.committed("g", "in") != before or all_is_processed(cluster), timeout=PATIENCE)


def members(cluster: EmbeddedCluster) -> set[str]:
    group = cluster.group("g")
    return set(group.members) if group else set()


def expire_all(cluster: EmbeddedCluster) -> None:
    """End the sessions of those who died, which happens at some time: now."""
    for member in members(cluster):
        with suppress(InvalidArgumentError):  # One that ended by itself may be leaving just now.
            cluster.expire_member("g", member)


def latest(cluster: EmbeddedCluster, command: str) -> str:
    return next((request.text for request in reversed(cluster.requests()) if request.command == command), "")


def reached(cluster: EmbeddedCluster, command: str, held: Hold) -> Hold:
    """Wait for a command to be held. Of those that end a transaction it is a commit: an abort may be a question."""
    while True:
        cluster.wait_for(held.is_reached, timeout=PATIENCE)
        if "result=abort" not in latest(cluster, command):
            return held
        following = cluster.hold(command)
        held.release()
        held = following


def assert_exactly_once(cluster: EmbeddedCluster) -> None:
    """Each record of `in` has one result, and in a partition of `out` those of a partition of `in` are in order."""
    found: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(4)}
    with Consumer(brokers=cluster.brokers, topic="out", read_isolation="read_committed") as reader:
        reader.assign(dict.fromkeys(found))
        reader.start(timeout=PATIENCE)
        while any(reader.lag(timeout=PATIENCE).values()):
            for record in reader.poll(timeout=0.2):
                place = record.value.split()[0].split(b"/")
                found[record.partition].append((int(place[0]), int(place[1])))
    for places in found.values():
        for partition in range(4):
            offsets = [place[1] for place in places if place[0] == partition]
            assert offsets == sorted(offsets)
    ends = cluster.end_offsets("in")
    expected = [(partition, offset) for partition, end in ends.items() for offset in range(end)]
    assert sorted(place for places in found.values() for place in places) == expected


def test_killed_at_random_moments_it_writes_each_result_once(processing: EmbeddedCluster, start: Start) -> None:
    chance = random.Random(1)
    for _ in range(10):
        processing.fill("in", 150, 20)
        program = start("worker")
        wait_for_commands(processing, chance.randint(1, 200))
        kill(program)
        expire_all(processing)
    start("worker")
    processing.wait_for(lambda: all_is_processed(processing), timeout=PATIENCE)
    assert_exactly_once(processing)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fate", ["done unheard", "late"])
def test_killed_while_a_command_is_on_its_way_it_writes_each_result_once(
    processing: EmbeddedCluster, start: Start, command: str, fate: str
) -> None:
    processing.fill("in", 200, 20)
    with processing.hold("JOIN_GROUP") as joining:
        program = start("worker")
        # What comes before the group is joined is no transaction with records.
        processing.wait_for(joining.is_reached, timeout=PATIENCE)
        held = processing.hold(command)
    held = reached(processing, command, held)
    kill(program)
    expire_all(processing)
    processing.clear_requests()
    if fate == "done unheard":
        held.release()
        processing.wait_for(lambda: not any(map(processing.connections, range(3))), timeout=PATIENCE)
        program = start("worker")
    else:
        program = start("worker")
        processing.wait_for(
            lambda: sum(request.command == "TXN_PUBLISH" for request in processing.requests()) > 3, timeout=PATIENCE
        )
        held.release()

    def finished() -> bool:
        nonlocal program
        # What comes late may fence the one that is at work.
        if program.poll() is not None:
            expire_all(processing)
            program = start("worker")
        return all_is_processed(processing)

    until(finished, "everything is processed")
    kill(program)
    assert_exactly_once(processing)


def test_what_is_lost_on_the_way_is_written_once_without_any_restart(processing: EmbeddedCluster, start: Start) -> None:
    processing.fill("in", 400, 20)
    for command in COMMANDS:
        processing.lose_reply(command, 3)
    program = start("worker")
    processing.wait_for(lambda: all_is_processed(processing), timeout=PATIENCE)
    assert program.poll() is None
    kill(program)
    assert_exactly_once(processing)


def test_two_that_are_killed_in_turn_write_each_result_once(processing: EmbeddedCluster, start: Start) -> None:
    chance = random.Random(2)

    def joined(transactional_id: str) -> tuple[Program, str]:
        others = members(processing)
        program = start(transactional_id)
        processing.wait_for(lambda: len(members(processing)) > len(others), timeout=PATIENCE)
        [name] = members(processing) - others
        return program, name

    elder = joined("a")
    for transactional_id in "baba":
        processing.fill("in", 300, 20)
        wait_for_commands(processing, chance.randint(1, 120))
        # It joins while the other one works, and takes some of its partitions away.
        younger = joined(transactional_id)
        processing.fill("in", 300, 20)
        wait_for_commands(processing, chance.randint(1, 120))
        assert elder[0].poll() is None and younger[0].poll() is None
        kill(elder[0])
        processing.expire_member("g", elder[1])
        elder = younger
    processing.wait_for(lambda: all_is_processed(processing), timeout=PATIENCE)
    assert elder[0].poll() is None
    assert_exactly_once(processing)


def test_with_brokers_killed_under_it_and_itself_killed_it_writes_each_result_once(
    processing: EmbeddedCluster, start: Start
) -> None:
    chance = random.Random(3)
    for _ in range(5):
        program = start("worker")
        processing.fill("in", 300, 20)
        wait_for_commands(processing, chance.randint(1, 150))
        broker = chance.randrange(3)
        processing.kill_broker(broker)
        processing.restart_broker(broker)
        # A commit that a broker's death has caught half-way has to be asked for again, while its member is known.
        wait_for_a_commit(processing, processing.committed("g", "in"))
        assert program.poll() is None
        wait_for_commands(processing, chance.randint(0, 60))
        kill(program)
        expire_all(processing)
    start("worker")
    processing.wait_for(lambda: all_is_processed(processing), timeout=PATIENCE)
    assert_exactly_once(processing)
