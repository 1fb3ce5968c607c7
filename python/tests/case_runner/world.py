"""What a case runs in: a cluster, consumers, and what its steps have put aside."""

import threading
from collections.abc import Callable
from typing import Any

from cursus_consumer import Batch, Consumer, CursusError, PendingCommit, Record, State, TopicPartition
from cursus_consumer.testing import EmbeddedCluster, Hold, TransactionalWriter
from support import Background

from case_runner.cases import GRACE, Arguments, Mistake, defaults, longest, numbers, place, value, within


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
