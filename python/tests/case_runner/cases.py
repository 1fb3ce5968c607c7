"""Cases as they are read and checked, and what their numbers and deadlines mean."""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from cursus_consumer import Record, TopicPartition

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "cases"
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


def longest(step: Arguments) -> float:
    """Give the deadline that a step names, in seconds; 0 where it names none."""
    ((_, arguments),) = step.items()
    return max(float(arguments.get("within_ms", 0)), float(arguments.get("timeout_ms", 0))) / 1000
