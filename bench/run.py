#!/usr/bin/env python3
"""Measure the engine and Python beside a bare loop that reads the same frames, and print a table.

The cluster is a process of its own. Each program reads the whole topic once per round, in a process of its own too; a
round runs them one after the other, so that whatever else the machine does hits all of them alike. What is printed are
medians over the rounds; a ratio is the median of the rounds' ratios to the bare loop of the same round.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
TOPIC = "orders"


@dataclass
class Program:
    """Something that reads the topic, and what it took so far."""

    name: str
    command: list[str]
    in_group: bool = True
    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def measure(self, options: list[str], group: str) -> None:
        """Read the topic once."""
        command = [*self.command, *options, *(["--group", group] if self.in_group else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{self.name}: ended with {done.returncode}")
        measured = json.loads(done.stdout)
        self.rates.append(measured["records"] / measured["seconds"])
        self.costs.append((measured["user_seconds"] + measured["system_seconds"]) / measured["records"])


def programs(binaries: Path) -> list[Program]:
    """What is measured, the bare loop first."""
    rust = str(binaries / "cursus-bench")
    found = [
        Program("bare loop", [rust, "bare"], in_group=False),
        Program("engine, batches", [rust, "engine"]),
        Program("engine, every key and value", [rust, "engine", "--touch"]),
    ]
    if importlib.util.find_spec("cursus_consumer") is None:
        print(f"cursus_consumer isn't installed for {sys.executable}: Python is left out (make python)\n")
        return found
    python = [sys.executable, str(HERE / "poll.py")]
    return [
        *found,
        Program("Python, batches", [*python, "batches"]),
        Program("Python, every value of a batch", [*python, "values"]),
        Program("Python, for record in consumer", [*python, "iterate"]),
    ]


@contextmanager
def cluster(binaries: Path, arguments: argparse.Namespace) -> Iterator[str]:
    """Run a cluster that holds the records, and give its brokers."""
    command = [str(binaries / "cursus-embedded"), f"--brokers={arguments.brokers}"]
    command += [f"--topic={TOPIC}:{arguments.partitions}", f"--produce={TOPIC}:{arguments.records}:{arguments.size}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            if not ready:
                raise SystemExit("the cluster didn't start")
            yield ",".join(json.loads(ready)["brokers"])
        finally:
            process.terminate()


def built() -> Path:
    """Find where cargo puts what it builds."""
    command = ["cargo", "metadata", "--no-deps", "--format-version=1"]
    metadata = json.loads(subprocess.run(command, cwd=HERE, check=True, capture_output=True).stdout)
    return Path(metadata["target_directory"]) / "release"


def table(measured: list[Program]) -> str:
    """Lay out the medians."""
    bare = measured[0]

    def ratios(values: list[float], base: list[float]) -> str:
        each = [value / floor for value, floor in zip(values, base, strict=True)]
        spread = f"({min(each):.2f} to {max(each):.2f})" if len(each) > 1 and values is not base else ""
        return f"{median(each):>8.2f} {spread:<16}"

    lines = [f"{'':<32}{'records/s':>12}{'of bare':>9}{'':17}{'CPU/record':>11}{'of bare':>9}"]
    for program in measured:
        rate, cost = median(program.rates), median(program.costs)
        lines.append(
            f"{program.name:<32}{rate:>12,.0f} {ratios(program.rates, bare.rates)}"
            f"{cost * 1e9:>9.1f} ns {ratios(program.costs, bare.costs)}".rstrip()
        )
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000_000, help="how many, over all partitions")
    parser.add_argument("--size", type=int, default=100, help="bytes of a record's value")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8192, help="the most records per frame")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a quarter of the records, two rounds")
    parser.add_argument(
        "--binaries", type=Path, help="where cursus-bench and cursus-embedded are, if not where cargo puts them"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.records, arguments.rounds = arguments.records // 4, 2
    return arguments


def main() -> None:
    """Measure in rounds, and print the table."""
    arguments = parsed()
    binaries = arguments.binaries or built()
    measured = programs(binaries)
    groups = (f"bench-{number}" for number in count())
    print(
        f"{arguments.records:,} records of {arguments.size} bytes, {arguments.partitions} partitions, "
        f"{arguments.brokers} brokers, {arguments.batch} records a frame; "
        f"medians of {arguments.rounds} rounds; {os.cpu_count()} processors\n"
    )
    with cluster(binaries, arguments) as brokers:
        options = [f"--brokers={brokers}", f"--topic={TOPIC}", f"--records={arguments.records}"]
        options.append(f"--batch={arguments.batch}")
        # The first reading of memory just written is slower, and nobody's fault.
        Program("warm-up", measured[0].command, in_group=False).measure(options, "")
        for number in range(arguments.rounds):
            if sys.stderr.isatty():
                print(f"\rround {number + 1} of {arguments.rounds}", end="\r", file=sys.stderr, flush=True)
            for program in measured:
                program.measure(options, next(groups))
    print(table(measured))


if __name__ == "__main__":
    main()
