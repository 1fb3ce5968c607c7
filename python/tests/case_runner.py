"""Runs the cases of tests/cases, which every language's runner runs alike. Its README says what they are made of."""

import json
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from cursus_consumer import (
    Batch,
    Consumer,
    CursusError,
    RebalancingError,
    Record,
    State,
    TopicPartition,
)
from cursus_consumer.testing import EmbeddedCluster, Hold
from support import Background

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "cases"
GRACE = 15.0
"""How much longer than its own deadline a step may take before it counts as hanging, in seconds."""
TURN = 0.05
"""How long one of several consumers that are read in turn may wait, in seconds."""

Arguments = dict[str, Any]


class Mistake(Exception):
    """Something isn't as a case expects it."""


class Failure(Exception):
    """A case failed at one of its steps, counted from 1, or behind them."""

    def __init__(self, message: str, step: int | None) -> None:
        super().__init__(message)
        self.step = step


def each_key_once(pairs: list[tuple[str, Any]]) -> Arguments:
    if len(dict(pairs)) != len(pairs):
        raise ValueError(f"a key stands twice in {[key for key, _ in pairs]}")
    return dict(pairs)


def load(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"), object_pairs_hook=each_key_once)


@cache
def defaults() -> Any:
    return load(FOLDER / "defaults.json")


@cache
def validator() -> jsonschema.Draft202012Validator:
    schema = load(FOLDER / "schema.json")
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check_shape(case: Any) -> None:
    """Refuse whatever the schema doesn't know."""
    problems = [f"{problem.json_path}: {problem.message}" for problem in validator().iter_errors(case)]
    if problems:
        raise ValueError("; ".join(problems))


def value(topic: str, partition: int, offset: int, size: int) -> bytes:
    """Make a record's value: its place, so that it can be told whether it is the right one, and dots up to a size."""
    return f"{topic}-{partition}@{offset}".encode().ljust(size, b".")


class Reader:
    """A consumer and what it has read last."""

    def __init__(self, consumer: Consumer, settings: Arguments) -> None:
        self.consumer = consumer
        self.topic: str = settings["topic"]
        self.group: str = settings.get("group_id", "")
        self.last: Batch | None = None

    def check_intact(self, record: Record) -> None:
        """A record's key and value tell where it was written."""
        expected = value(self.topic, record.partition, record.offset, len(record.value))
        if (record.topic, record.key, record.value) != (self.topic, str(record.offset).encode(), expected):
            raise Mistake(f"{place(record)} came with the key {record.key!r} and the value {record.value[:100]!r}")

    def statistic(self, name: str, partition: int | None = None) -> Any:
        statistics: Any = self.consumer.stats()
        if partition is not None:
            found = {where.partition: found for where, found in statistics.partitions.items()}
            if partition not in found:
                return None
            statistics = found[partition]
        if not hasattr(statistics, name):
            raise Mistake(f"there is no statistic {name!r}")
        measure = getattr(statistics, name)
        if isinstance(measure, State):
            return measure.value
        if isinstance(measure, dict):
            return len(measure)
        return "\n".join(measure) if isinstance(measure, list) else measure


def place(record: Record) -> str:
    return f"{record.topic}-{record.partition}@{record.offset}"


def ranges(records: dict[str, list[int]]) -> dict[int, tuple[int, int]]:
    return {int(partition): (first, end) for partition, (first, end) in records.items()}


def within(arguments: Arguments, key: str = "within_ms") -> float:
    """Give a step's deadline in seconds."""
    return float(arguments.get(key, defaults()["within_ms"])) / 1000


def becomes(look: Callable[[], str | None], seconds: float) -> None:
    """Look until nothing is wrong any more."""
    deadline = time.monotonic() + seconds
    while (problem := look()) is not None:
        if time.monotonic() >= deadline:
            raise Mistake(problem)
        time.sleep(0.005)


def equal(what: str, found: object, expected: object) -> str | None:
    return None if found == expected else f"{what} is {found!r}, and should be {expected!r}"


class World:
    """What a case runs in: its cluster, its consumers, and what its steps have put aside."""

    def __init__(self, case: Any, mode: str) -> None:
        self.case = case
        self.mode = mode
        self.cluster = EmbeddedCluster(**{**defaults()["cluster"], **case.get("cluster", {})})
        for topic, partitions in case.get("topics", {}).items():
            self.cluster.create_topic(topic, partitions)
        self.readers: dict[str, Reader] = {}
        self.making = threading.Lock()
        self.holds: dict[str, Hold] = {}
        self.batches: dict[str, Batch] = {}
        self.remembered: Arguments = {}
        self.seen: set[tuple[str, int, int]] = set()
        self.begun: dict[str, Background] = {}

    def run(self, step: Arguments) -> None:
        """Carry out a step, whose one key is its name."""
        ((name, arguments),) = step.items()
        getattr(self, f"do_{name}")(arguments)

    def watched(self, step: Arguments) -> None:
        """Carry out a step that hangs nobody: what the library should end by itself is given up a while later."""
        limit = max(within({}), longest(step)) + GRACE
        running = Background(lambda: self.run(step))
        running.thread.join(limit)
        if running.thread.is_alive():
            raise Mistake(f"it hangs: it hasn't ended after {limit} s")
        running.result()

    def end(self) -> None:
        """Leave nothing running."""
        for hold in self.holds.values():
            hold.release()
        for reader in self.readers.values():
            reader.consumer.close(timeout=5.0)
        self.cluster.stop()

    def picture(self) -> str:
        consumers = [f"{name}: {reader.consumer.stats()}" for name, reader in self.readers.items()]
        requests = [f"to broker {request.broker}: {request.text}" for request in self.cluster.requests()[-20:]]
        return "\n".join([*consumers, "last requests:", *requests])

    def filled_in(self, text: str) -> str:
        """Put in where broker 0 listens for `$address0` and `$port0`."""
        # From the last one: `$port1` is also how `$port10` begins.
        for index, address in reversed(list(enumerate(self.cluster.brokers))):
            text = text.replace(f"$address{index}", address).replace(f"$port{index}", address.rpartition(":")[2])
        return text

    def reader(self, name: str) -> Reader:
        """Give a consumer by its name; it is made at the first step that names it."""
        with self.making:
            if name not in self.readers:
                self.readers[name] = self.make(name)
            return self.readers[name]

    def make(self, name: str) -> Reader:
        if name not in self.case["consumers"]:
            raise Mistake(f"the case has no consumer {name!r}")
        settings = {"brokers": self.cluster.brokers, **defaults()["consumer"], **self.case["consumers"][name]}
        settings.setdefault("mode", self.mode)
        # Null takes a default away.
        settings = {setting: given for setting, given in settings.items() if given is not None}
        settings["brokers"] = [self.filled_in(broker) for broker in settings["brokers"]]
        return Reader(Consumer(**settings), settings)

    def outcome(self, expected: Any, call: Callable[[], object]) -> None:
        """Check that a call fails as expected, or goes well where nothing else is."""
        try:
            call()
        except CursusError as error:
            if expected is None:
                raise Mistake(f"it failed with {error.code}: {error}") from error
            self.check_error(expected, error)
        else:
            if expected is not None:
                raise Mistake(f"it went well, and {expected['code']} was to come")

    def check_error(self, expected: Any, error: CursusError) -> None:
        shown = f"{error.code}: {error}"
        if error.code != expected["code"]:
            raise Mistake(f"{expected['code']} was to come, and it was {shown}")
        for what in ("stale", "owned"):
            found = sorted(partition.partition for partition in getattr(error, what, []))
            if found != expected.get(what, found):
                raise Mistake(f"the {what} partitions are {found}: {shown}")
        for word in map(self.filled_in, expected.get("says", [])):
            if word not in str(error):
                raise Mistake(f"the error doesn't say {word!r}: {shown}")

    def check(self, what: str, found: Any, check: Arguments) -> str | None:
        ((kind, than),) = check.items()
        number = isinstance(found, int | float)
        if kind in ("same_as", "differs_from") and than not in self.remembered:
            raise Mistake(f"nothing was remembered as {than!r}")
        kinds: dict[str, Callable[[], bool]] = {
            "equal": lambda: found == than,
            "at_least": lambda: number and found >= than,
            "at_most": lambda: number and found <= than,
            "present": lambda: (found is not None) == than,
            "says": lambda: isinstance(found, str) and than in found,
            "same_as": lambda: found == self.remembered[than],
            "differs_from": lambda: found != self.remembered[than],
        }
        return None if kinds[kind]() else f"{what} is {found!r}, and should be {check}"

    # The steps that are about the cluster.

    def do_create_topic(self, step: Arguments) -> None:
        self.cluster.create_topic(step["topic"], step["partitions"])

    def do_delete_topic(self, step: Arguments) -> None:
        self.cluster.delete_topic(step["topic"])

    def do_produce(self, step: Arguments) -> None:
        topic = step.get("topic", "t")
        ends = self.cluster.end_offsets(topic)
        # A topic or partition that doesn't exist is reported by producing to it.
        for partition in [step["partition"]] if "partition" in step else ends or [0]:
            first = ends.get(partition, 0)
            offsets = range(first, first + step["count"])
            records = [(str(at), value(topic, partition, at, step.get("value_size", 0))) for at in offsets]
            self.cluster.produce(topic, records, partition)

    def do_delete_records(self, step: Arguments) -> None:
        self.cluster.delete_records(step.get("topic", "t"), step["partition"], step["earliest"])

    def do_stop_broker(self, step: Arguments) -> None:
        self.cluster.stop_broker(step["broker"])

    def do_kill_broker(self, step: Arguments) -> None:
        self.cluster.kill_broker(step["broker"])

    def do_restart_broker(self, step: Arguments) -> None:
        self.cluster.restart_broker(step["broker"])

    def do_move_coordinator(self, step: Arguments) -> None:
        self.cluster.move_coordinator(step.get("group", "g"), step["broker"])

    def do_move_leader(self, step: Arguments) -> None:
        self.cluster.move_leader(step.get("topic", "t"), step["partition"], step["broker"])

    def do_fail_next(self, step: Arguments) -> None:
        self.cluster.fail_next(step["command"], step.get("times", 1), self.filled_in(step["error"]))

    def do_lose_reply(self, step: Arguments) -> None:
        self.cluster.lose_reply(step["command"], step.get("times", 1))

    def do_corrupt_next(self, step: Arguments) -> None:
        self.cluster.corrupt_next(step["command"], step.get("times", 1))

    def do_hold(self, step: Arguments) -> None:
        if step["as"] in self.holds:
            raise Mistake(f"there is a hold {step['as']!r} already")
        self.holds[step["as"]] = self.cluster.hold(step["command"])

    def do_held(self, step: Arguments) -> None:
        hold = self.holds[step["hold"]]
        becomes(lambda: None if hold.is_reached() else "no request has come to be held", within(step))

    def do_release(self, step: Arguments) -> None:
        self.holds.pop(step["hold"]).release()

    def do_cut_connections(self, step: Arguments) -> None:
        self.cluster.cut_connections(step.get("broker"))

    def do_expire_member(self, step: Arguments) -> None:
        reader = self.reader(step["consumer"])
        member = reader.consumer.stats().member
        if member is None:
            raise Mistake(f"{step['consumer']!r} is no member yet")
        self.cluster.expire_member(reader.group, member)

    def do_clear_requests(self, step: Arguments) -> None:
        self.cluster.clear_requests()

    def do_group_committed(self, step: Arguments) -> None:
        group, expected = step.get("group", "g"), {int(key): offset for key, offset in step["offsets"].items()}

        def look() -> str | None:
            committed = self.cluster.committed(group, step.get("topic", "t"))
            return equal(f"what group {group!r} has committed", {key: committed.get(key) for key in expected}, expected)

        becomes(look, within(step))

    def do_group_members(self, step: Arguments) -> None:
        group = step.get("group", "g")

        def look() -> str | None:
            found = self.cluster.group(group)
            count = len(found.members) if found is not None else 0
            return equal(f"the count of members of group {group!r}", count, step["count"])

        becomes(look, within(step))

    def do_requests(self, step: Arguments) -> None:
        # A word that is no command's name would never be counted.
        self.cluster.fail_next(step["command"], 0, "")

        def look() -> str | None:
            count = sum(
                request.command == step["command"]
                and request.broker == step.get("broker", request.broker)
                and step.get("says", "") in request.text
                for request in self.cluster.requests()
            )
            return self.check(f"the count of {step['command']}", count, step["is"])

        becomes(look, within(step))

    # The steps that are about consumers.

    def do_create(self, step: Arguments) -> None:
        self.outcome(step.get("error"), lambda: self.reader(step["consumer"]))

    def do_start(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer
        self.outcome(step.get("error"), lambda: consumer.start(timeout=within(step, "timeout_ms")))

    def do_read(self, step: Arguments) -> None:
        """Poll until exactly the ranges have come, in order, and nothing else."""
        reader, expected = self.reader(step["consumer"]), ranges(step["records"])
        deadline = time.monotonic() + within(step)
        following = {partition: first for partition, (first, _) in expected.items()}
        while any(following[partition] < end for partition, (_, end) in expected.items()):
            try:
                batch = reader.consumer.poll(timeout=max(0.0, deadline - time.monotonic()))
            except CursusError as error:
                raise Mistake(f"poll failed after {following}: {error.code}: {error}") from error
            if not batch:
                raise Mistake(f"only {following} of {expected} has come")
            for record in batch:
                reader.check_intact(record)
                if following.get(record.partition, 0) >= expected.get(record.partition, (0, 0))[1]:
                    raise Mistake(f"{place(record)} has come as well")
                if record.offset != following[record.partition]:
                    raise Mistake(f"{place(record)} has come instead of {following[record.partition]}")
                following[record.partition] += 1
            reader.last = batch

    def do_read_together(self, step: Arguments) -> None:
        """Poll in turn, through any rebalance, until each record has come, in this step or one like it before."""
        readers = [self.reader(name) for name in step["consumers"]]
        group, deadline = readers[0].group, time.monotonic() + within(step)
        wanted = {(group, key, at) for key, (first, end) in ranges(step["records"]).items() for at in range(first, end)}
        following: list[dict[int, int]] = [{} for _ in readers]
        while missing := wanted - self.seen:
            if time.monotonic() >= deadline:
                raise Mistake(f"{len(missing)} records haven't come, the first is {min(missing)}")
            for reader, next_of in zip(readers, following, strict=True):
                try:
                    batch = reader.consumer.poll(timeout=TURN)
                except RebalancingError:
                    next_of.clear()
                    continue
                except CursusError as error:
                    raise Mistake(f"poll failed: {error.code}: {error}") from error
                for record in batch:
                    reader.check_intact(record)
                    if record.offset != next_of.get(record.partition, record.offset):
                        raise Mistake(f"{place(record)} has come instead of {next_of[record.partition]}")
                    next_of[record.partition] = record.offset + 1
                if not batch:
                    continue
                reader.last = batch
                if step.get("commit", False):
                    try:
                        reader.consumer.commit(batch, timeout=within(step))
                    except RebalancingError:
                        continue  # What couldn't be committed comes again.
                    except CursusError as error:
                        raise Mistake(f"commit failed: {error.code}: {error}") from error
                self.seen.update((reader.group, record.partition, record.offset) for record in batch)

    def do_poll_nothing(self, step: Arguments) -> None:
        consumer, seconds = self.reader(step["consumer"]).consumer, step["timeout_ms"] / 1000
        begun = time.monotonic()
        try:
            batch = consumer.poll(timeout=seconds)
        except CursusError as error:
            raise Mistake(f"poll failed: {error.code}: {error}") from error
        took = time.monotonic() - begun
        if batch:
            raise Mistake(f"poll returned {place(batch[0])}")
        if took < seconds:
            raise Mistake(f"poll ended after {took} s")

    def do_poll_until_error(self, step: Arguments) -> None:
        reader, deadline = self.reader(step["consumer"]), time.monotonic() + within(step)
        while (left := deadline - time.monotonic()) > 0:
            try:
                batch = reader.consumer.poll(timeout=left)
            except CursusError as error:
                return self.check_error(step["error"], error)
            if batch:
                reader.last = batch
        raise Mistake(f"{step['error']['code']} hasn't come")

    def do_commit(self, step: Arguments) -> None:
        reader, what, timeout = self.reader(step["consumer"]), step["what"], within(step, "timeout_ms")
        commit = reader.consumer.commit
        if what == "all":
            return self.outcome(step.get("error"), lambda: commit(timeout=timeout))
        if what != "last" and "offsets" in what:
            offsets: dict[TopicPartition | int, int] = {
                int(partition): offset for partition, offset in what["offsets"].items()
            }
            return self.outcome(step.get("error"), lambda: commit(offsets, timeout=timeout))
        batch = reader.last if what == "last" else self.batches[what["saved"]]
        if batch is None:
            raise Mistake(f"{step['consumer']!r} has read nothing yet")
        return self.outcome(step.get("error"), lambda: commit(batch, timeout=timeout))

    def do_close(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer
        consumer.close(timeout=step.get("timeout_ms", 10_000) / 1000)
        if consumer.state is not State.CLOSED:
            raise Mistake(f"it is {consumer.state}")

    def do_save(self, step: Arguments) -> None:
        batch = self.reader(step["consumer"]).last
        if batch is None:
            raise Mistake(f"{step['consumer']!r} has read nothing yet")
        self.batches[step["as"]] = batch

    def do_remember(self, step: Arguments) -> None:
        self.remembered[step["as"]] = self.reader(step["consumer"]).statistic(step["statistic"])

    def do_state(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer
        becomes(lambda: equal("the state", consumer.state.value, step["is"]), within(step))

    def do_statistics(self, step: Arguments) -> None:
        reader, name = self.reader(step["consumer"]), step["name"]
        becomes(lambda: self.check(name, reader.statistic(name, step.get("partition")), step["is"]), within(step))

    def do_assignment(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer

        def look() -> str | None:
            found = sorted(partition.partition for partition in consumer.assignment())
            right = {"partitions": found, "count": len(found)}
            return None if step["is"].items() <= right.items() else f"the assignment is {found}, not {step['is']}"

        becomes(look, within(step))

    def do_position(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer
        becomes(lambda: equal("the position", consumer.position(step["partition"]), step["is"]), within(step))

    def do_committed(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer
        found = consumer.committed(step["partition"], timeout=within(step))
        if problem := equal("what is committed", found, step["is"]):
            raise Mistake(problem)

    def do_fatal_error(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer

        def look() -> str | None:
            error = consumer.fatal_error
            return equal("the fatal error", None if error is None else error.code, step["is"])

        becomes(look, within(step))

    # Steps in steps.

    def do_begin(self, step: Arguments) -> None:
        if step["as"] in self.begun:
            raise Mistake(f"there is a step {step['as']!r} already")
        self.begun[step["as"]] = Background(lambda: self.run(step["step"]))

    def do_end(self, step: Arguments) -> None:
        running = self.begun.pop(step["step"])
        running.thread.join(within(step))
        if running.thread.is_alive():
            raise Mistake(f"{step['step']!r} hasn't ended in time")
        running.result()


def longest(step: Arguments) -> float:
    """Give the deadline that a step names, in seconds; 0 where it names none."""
    ((_, arguments),) = step.items()
    return max(float(arguments.get("within_ms", 0)), float(arguments.get("timeout_ms", 0))) / 1000


def run_case(case: Any, mode: str) -> None:
    """Run a case to its end, or raise the failure that names it, its step, and what was there instead."""
    about = f"{case['name']!r} ({mode})"
    world = World(case, mode)
    try:
        for number, step in enumerate(case["steps"], 1):
            try:
                world.watched(step)
            except Exception as problem:
                what = str(problem) if isinstance(problem, Mistake) else repr(problem)
                message = f"{about}: step {number} of {len(case['steps'])}, {json.dumps(step)}: {what}"
                raise Failure(f"{message}\n{world.picture()}", number) from problem
        if world.begun:
            raise Failure(f"{about}: begun and never ended: {list(world.begun)}", None)
    finally:
        world.end()
