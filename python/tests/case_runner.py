"""Runs the cases of tests/cases, which every language's runner runs alike. Its README says what they are made of."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from cursus_consumer import (
    Batch,
    Consumer,
    CursusError,
    GroupDescription,
    PendingCommit,
    RebalancingError,
    Record,
    State,
    TopicPartition,
)
from cursus_consumer.testing import EmbeddedCluster, Hold, TransactionalWriter
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
        self.read: list[Batch] = []
        """What the last step `read` has read."""
        self.told: list[tuple[str, list[int]]] = []
        """The changes of the assignment that callbacks were called for."""

    def listen(self) -> None:
        def telling(change: str) -> Callable[[Consumer, list[TopicPartition]], None]:
            return lambda _, partitions: self.told.append((change, numbers(partitions)))

        self.consumer.on_assigned(telling("assigned"))
        self.consumer.on_revoked(telling("revoked"))

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


def numbers(partitions: Iterable[TopicPartition]) -> list[int]:
    """Give the numbers of partitions, in order."""
    return sorted(partition.partition for partition in partitions)


def by_partition(given: dict[str, Any]) -> dict[int, Any]:
    return {int(partition): what for partition, what in given.items()}


def by_number(found: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {partition.partition: what for partition, what in found.items()}


def ranges(records: dict[str, list[int]]) -> dict[int, list[int]]:
    """Give the offsets that are meant, by partition: each pair is the first and the one behind the last."""
    return {
        int(partition): [at for first, end in zip(ends[::2], ends[1::2], strict=True) for at in range(first, end)]
        for partition, ends in records.items()
    }


def is_change(told: tuple[str, list[int]], expected: Arguments) -> bool:
    ((change, what),) = expected.items()
    return told[0] == change and what.items() <= {"partitions": told[1], "count": len(told[1])}.items()


def exchange(address: str, text: str) -> str:
    """Send one command over a connection of its own, and give the reply."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=within({})) as connection:
        # The length of the body, and in it that of a topic, which commands don't have.
        connection.sendall(struct.pack(">IH", len(text) + 2, 0) + text.encode())
        replies = connection.makefile("rb")
        (length,) = struct.unpack(">I", replies.read(4))
        return replies.read(length).decode("utf-8", "replace")


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
        self.commits: dict[str, PendingCommit] = {}
        self.writers: dict[str, TransactionalWriter] = {}

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
            found = numbers(getattr(error, what, []))
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

    def do_pause_broker(self, step: Arguments) -> None:
        self.cluster.pause_broker(step["broker"])

    def do_resume_broker(self, step: Arguments) -> None:
        self.cluster.resume_broker(step["broker"])

    def do_advance(self, step: Arguments) -> None:
        self.cluster.advance(step["by_ms"])

    def do_swap_addresses(self, step: Arguments) -> None:
        self.cluster.swap_addresses(step["a"], step["b"])

    def do_freeze_connections(self, step: Arguments) -> None:
        self.cluster.freeze_connections(step.get("broker"))

    def do_close_streams(self, step: Arguments) -> None:
        self.cluster.close_streams(step["reason"])

    def do_append_marker(self, step: Arguments) -> None:
        self.cluster.append_marker(step.get("topic", "t"), step["partition"])

    def do_append_aborted(self, step: Arguments) -> None:
        topic, partition = step.get("topic", "t"), step["partition"]
        first = self.cluster.end_offsets(topic).get(partition, 0)
        offsets = range(first, first + step["count"])
        self.cluster.append_aborted(topic, [(str(at), value(topic, partition, at, 0)) for at in offsets], partition)

    def do_transact(self, step: Arguments) -> None:
        name, topic = step.get("id", "writer"), step.get("topic", "t")
        if name not in self.writers:
            self.writers[name] = TransactionalWriter(self.cluster.brokers, name, timeout=within({}))
        writer, ends = self.writers[name], self.cluster.end_offsets(topic)
        writer.begin()
        for partition, count in by_partition(step["records"]).items():
            first = ends.get(partition, 0)
            for at in range(first, first + count):
                writer.publish(topic, value(topic, partition, at, 0), key=str(at), partition=partition)
        if step.get("abort", False):
            writer.abort()
            return
        try:
            if "offsets_of" in step:
                batch = self.batches[step["offsets_of"]]
                metadata = batch.group_metadata()
                if metadata is None:
                    raise Mistake("the batch is of no member")
                writer.send_offsets(metadata, batch.next_offsets())
            writer.commit()
        except CursusError as refusal:
            if "refused" not in step:
                raise
            for word in step["refused"]:
                if word not in str(refusal):
                    raise Mistake(f"the refusal doesn't say {word!r}: {refusal}") from refusal
            writer.abort()
        else:
            if "refused" in step:
                raise Mistake("it was committed, and should have been refused")

    def do_send(self, step: Arguments) -> None:
        text = self.filled_in(step["text"])
        # From the last one: `$a` is also how `$ab` begins.
        for name, found in sorted(self.remembered.items(), reverse=True):
            text = text.replace(f"${name}", str(found))
        reply = exchange(self.cluster.brokers[step.get("broker", 0)], text)
        if step["says"] not in reply:
            raise Mistake(f"the reply to {text!r} is {reply!r}")

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
        reader, missing = self.reader(step["consumer"]), ranges(step["records"])
        control, deadline = by_partition(step.get("control", {})), time.monotonic() + within(step)
        reader.read = []
        while any(missing.values()):
            following = {partition: offsets[0] for partition, offsets in missing.items() if offsets}
            try:
                batch = reader.consumer.poll(timeout=max(0.0, deadline - time.monotonic()))
            except CursusError as error:
                raise Mistake(f"poll failed before {following}: {error.code}: {error}") from error
            if not batch:
                raise Mistake(f"what hasn't come begins with {following}")
            for record in batch:
                is_control = record.offset in control.get(record.partition, [])
                if record.is_control != is_control:
                    raise Mistake(f"{place(record)} is {'a' if record.is_control else 'no'} control record")
                if not is_control:
                    reader.check_intact(record)
                if not missing.get(record.partition):
                    raise Mistake(f"{place(record)} has come as well")
                expected = missing[record.partition].pop(0)
                if record.offset != expected:
                    raise Mistake(f"{place(record)} has come instead of {expected}")
            reader.read.append(batch)
            reader.last = batch

    def do_read_together(self, step: Arguments) -> None:
        """Poll in turn, through any rebalance, until each record has come, in this step or one like it before."""
        readers = [self.reader(name) for name in step["consumers"]]
        group, deadline = readers[0].group, time.monotonic() + within(step)
        wanted = {(group, partition, at) for partition, offsets in ranges(step["records"]).items() for at in offsets}
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

    def claim(self, step: Arguments) -> tuple[Any, ...]:
        """Give what a commit is called with."""
        what = step["what"]
        if what == "all":
            return ()
        if what != "last" and "offsets" in what:
            return (by_partition(what["offsets"]),)
        batch = self.reader(step["consumer"]).last if what == "last" else self.batches[what["saved"]]
        if batch is None:
            raise Mistake(f"{step['consumer']!r} has read nothing yet")
        return (batch,)

    def do_commit(self, step: Arguments) -> None:
        commit: Any = self.reader(step["consumer"]).consumer.commit
        claim, timeout = self.claim(step), within(step, "timeout_ms")
        self.outcome(step.get("error"), lambda: commit(*claim, timeout=timeout))

    def do_commit_async(self, step: Arguments) -> None:
        commit: Any = self.reader(step["consumer"]).consumer.commit_async
        claim = self.claim(step)
        timeout = within(step, "timeout_ms") if "timeout_ms" in step else None
        if step["as"] in self.commits:
            raise Mistake(f"there is a commit {step['as']!r} already")

        def call() -> None:
            self.commits[step["as"]] = commit(*claim, timeout=timeout)

        self.outcome(step.get("error"), call)

    def do_commit_outcome(self, step: Arguments) -> None:
        pending = self.commits.pop(step["commit"])
        becomes(lambda: None if pending.done() else "its outcome isn't known in time", within(step))
        self.outcome(step.get("error"), lambda: pending.result(timeout=0))

    def do_ack(self, step: Arguments) -> None:
        consumer, of = self.reader(step["consumer"]).consumer, self.reader(str(step.get("of", step["consumer"])))
        records = {(record.partition, record.offset): record for batch in of.read for record in batch}
        for partition, offsets in by_partition(step["records"]).items():
            for offset in offsets:
                if (partition, offset) not in records:
                    raise Mistake(f"{partition}@{offset} wasn't read by the step before")
                record = records[partition, offset]
                self.outcome(step.get("error"), lambda record=record: consumer.ack(record))  # type: ignore[misc]

    def do_assign(self, step: Arguments) -> None:
        consumer, given = self.reader(step["consumer"]).consumer, step["partitions"]
        partitions = by_partition(given) if isinstance(given, dict) else given
        self.outcome(step.get("error"), lambda: consumer.assign(partitions))

    def do_seek(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer
        self.outcome(step.get("error"), lambda: consumer.seek(step["partition"], step["offset"]))

    def do_pause(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer
        self.outcome(step.get("error"), lambda: consumer.pause(step["partitions"]))

    def do_resume(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer
        self.outcome(step.get("error"), lambda: consumer.resume(step["partitions"]))

    def do_listen(self, step: Arguments) -> None:
        self.reader(step["consumer"]).listen()

    def do_told(self, step: Arguments) -> None:
        """Poll until exactly this was told, in order."""
        reader, expected, deadline = self.reader(step["consumer"]), step["is"], time.monotonic() + within(step)
        while True:
            told = list(reader.told)
            if len(told) == len(expected) and all(map(is_change, told, expected)):
                return
            over = reader.consumer.state is State.CLOSED or time.monotonic() >= deadline
            if len(told) >= len(expected) or over:
                raise Mistake(f"what was told is {told}, and should be {expected}")
            try:
                batch = reader.consumer.poll(timeout=TURN)
            except RebalancingError:
                continue
            except CursusError as error:
                raise Mistake(f"poll failed: {error.code}: {error}") from error
            if batch:
                raise Mistake(f"poll returned {place(batch[0])}")

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
            found = numbers(consumer.assignment())
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

    def do_paused(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer
        becomes(lambda: equal("what is paused", numbers(consumer.paused()), step["is"]), within(step))

    def answer(self, step: Arguments, ask: Callable[[], Any], compare: Callable[[Any], str | None]) -> None:
        """Check what a question is answered with, or how it fails."""
        answers: list[Any] = []
        self.outcome(step.get("error"), lambda: answers.append(ask()))
        for found in answers:
            if problem := compare(found):
                raise Mistake(problem)

    def offsets(self, step: Arguments, ask: Callable[[], Mapping[TopicPartition, int]]) -> None:
        self.answer(step, ask, lambda found: equal("it", by_number(found), by_partition(step["is"])))

    def do_begin_offsets(self, step: Arguments) -> None:
        consumer, timeout = self.reader(step["consumer"]).consumer, within(step, "timeout_ms")
        self.offsets(step, lambda: consumer.begin_offsets(step.get("partitions"), timeout=timeout))

    def do_end_offsets(self, step: Arguments) -> None:
        consumer, timeout = self.reader(step["consumer"]).consumer, within(step, "timeout_ms")
        self.offsets(step, lambda: consumer.end_offsets(step.get("partitions"), timeout=timeout))

    def do_lag(self, step: Arguments) -> None:
        consumer, timeout = self.reader(step["consumer"]).consumer, within(step, "timeout_ms")
        self.offsets(step, lambda: consumer.lag(timeout=timeout))

    def do_describe_group(self, step: Arguments) -> None:
        consumer, timeout = self.reader(step["consumer"]).consumer, within(step, "timeout_ms")

        def compare(group: GroupDescription) -> str | None:
            read = numbers(partition for member in group.members for partition in member.partitions)
            owned = numbers(where for where, told in group.partitions.items() if told.member is not None)
            if read != owned:
                return f"members read {read}, and {owned} have a reader"
            found = {
                "state": group.state,
                "members": len(group.members),
                "read": read,
                "committed": {str(where.partition): told.committed for where, told in group.partitions.items()},
                "lag": {str(where.partition): told.lag for where, told in group.partitions.items()},
            }
            return equal("the group", {what: found[what] for what in step["is"]}, step["is"])

        self.answer(step, lambda: consumer.describe_group(timeout=timeout), compare)

    def do_group_metadata(self, step: Arguments) -> None:
        consumer = self.reader(step["consumer"]).consumer

        def ask() -> object:
            return self.batches[step["saved"]].group_metadata() if "saved" in step else consumer.group_metadata()

        def compare(found: object) -> str | None:
            if found is None:
                return "the batch is of no member"
            problems = (self.check(field, getattr(found, field), check) for field, check in step["is"].items())
            return next((problem for problem in problems if problem), None)

        self.answer(step, ask, compare)

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
