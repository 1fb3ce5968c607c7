"""The story: three brokers, two members, a rebalance, a coordinator that moves, a leader that dies."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from cursus_consumer.testing import EmbeddedCluster
from show import Bar, say, table

TOPIC, GROUP, PARTITIONS = "orders", "billing", 6
#: How long the whole story may take. It takes a fraction of that.
PATIENCE = 110.0
WORK_MS = 25.0


Event = dict[str, Any]
Events = queue.Queue[tuple["Worker", Event]]


class Ledger:
    """What the workers say that they have processed: per partition, how often each offset."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.times = {partition: bytearray(end) for partition, end in ends.items()}
        self.distinct = 0
        self.duplicates = 0

    def add(self, partition: int, first: int, last: int, count: int) -> None:
        if last - first + 1 != count:
            raise SystemExit(f"partition {partition}: offsets {first} to {last} came as {count} records")
        times = self.times[partition]
        for offset in range(first, last + 1):
            if times[offset]:
                self.duplicates += 1
            else:
                self.distinct += 1
            times[offset] = min(times[offset] + 1, 255)

    def missing(self, partition: int) -> int:
        return self.times[partition].count(0)

    def repeated(self, partition: int) -> int:
        return sum(times - 1 for times in self.times[partition] if times > 1)


class Worker:
    """A consumer process, and what it says."""

    def __init__(self, name: str, brokers: list[str], events: Events) -> None:
        self.name = name
        self.records = 0
        arguments = ["--brokers", ",".join(brokers), "--topic", TOPIC, "--group", GROUP, "--work-ms", str(WORK_MS)]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, args=(events,), daemon=True).start()

    def _listen(self, events: Events) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            events.put((self, json.loads(line)))
        events.put((self, {"event": "ended", "code": self.process.wait()}))

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()


class Story:
    """The cluster, the workers, and the chapters: what happens when so much has been read."""

    def __init__(self, cluster: EmbeddedCluster, records: int) -> None:
        self.cluster = cluster
        self.records = records
        self.ends = cluster.end_offsets(TOPIC)
        self.ledger = Ledger(self.ends)
        self.events: Events = queue.Queue()
        self.workers: list[Worker] = []
        self.assignments: dict[str, list[int]] = defaultdict(list)
        self.rebalance_seen = False
        self.chapters = [(0.20, self.second_joins), (0.50, self.coordinator_moves), (0.65, self.leader_dies)]

    def hire(self, name: str) -> None:
        self.workers.append(Worker(name, self.cluster.brokers, self.events))

    def second_joins(self) -> None:
        say("[bold]A second consumer process joins the group.[/bold] The partitions are shared out anew.")
        self.hire("second")

    def coordinator_moves(self) -> None:
        old = self.cluster.coordinator(GROUP)
        new = (old + 1) % 3
        self.cluster.move_coordinator(GROUP, new)
        say(f"[bold]The group's coordinator moves[/bold] from broker {old} to broker {new}. The members follow it.")

    def leader_dies(self) -> None:
        coordinator = self.cluster.coordinator(GROUP)
        leaders = [self.cluster.leader(TOPIC, partition) for partition in range(PARTITIONS)]
        dead = next(broker for broker in leaders if broker != coordinator)
        lost = [partition for partition, leader in enumerate(leaders) if leader == dead]
        self.cluster.kill_broker(dead)
        say(f"[bold]Broker {dead} dies.[/bold] It led partitions {lost}; the others elect new leaders for them.")

    def on(self, worker: Worker, event: Event) -> None:
        kind = event["event"]
        if kind == "processed":
            for partition, (first, last, count) in event["offsets"].items():
                self.ledger.add(int(partition), first, last, count)
                worker.records += count
        elif kind == "assigned":
            if event["partitions"] != self.assignments[worker.name]:
                self.assignments[worker.name] = event["partitions"]
                say(f"  the {worker.name} consumer reads partitions {event['partitions']}")
        elif kind == "rebalanced":
            self.rebalance_seen |= worker.name == "first"
            say(f"  the {worker.name} consumer is told: partitions {event['partitions']} are being handed out anew")
        elif kind == "refused":
            records, partitions = event["records"], event["partitions"]
            say(
                f"  the {worker.name} consumer commits {records} records of partitions {partitions} too late: "
                "refused before a byte was sent"
            )
        elif kind == "ended":
            raise SystemExit(f"the {worker.name} consumer process ended with exit code {event['code']}")

    def read_everything(self, bar: Bar) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.ledger.distinct < self.records:
            if time.monotonic() > deadline:
                raise SystemExit(f"after {PATIENCE:.0f} s only {self.ledger.distinct:,} of {self.records:,} were read")
            while self.chapters and self.ledger.distinct >= self.chapters[0][0] * self.records:
                self.chapters.pop(0)[1]()
            try:
                worker, event = self.events.get(timeout=1.0)
            except queue.Empty:
                continue
            self.on(worker, event)
            bar.at(self.ledger.distinct)

    def close(self) -> bool:
        """Closes the workers; true where each said so and exited with 0."""
        say("All records are read. [bold]Both consumers close:[/bold] they commit, leave the group, and end.")
        for worker in self.workers:
            worker.close()
        codes: dict[str, int] = {}
        while len(codes) < len(self.workers):
            worker, event = self.events.get(timeout=30.0)
            if event["event"] == "ended":
                codes[worker.name] = event["code"]
            elif event["event"] != "closed":
                self.on(worker, event)
        return all(code == 0 for code in codes.values())

    def verdict(self, clean: bool) -> bool:
        committed = self.cluster.committed(GROUP, TOPIC)
        rows = [
            [p, end, end - self.ledger.missing(p), self.ledger.repeated(p), committed.get(p, 0)]
            for p, end in sorted(self.ends.items())
        ]
        table(
            f"topic {TOPIC}, group {GROUP}",
            ["partition", "records", "processed", "of them again", "committed offset"],
            rows,
        )
        for worker in self.workers:
            say(f"the {worker.name} consumer processed {worker.records:,} records")
        group = self.cluster.group(GROUP)
        checks = {
            "every record was processed": self.ledger.distinct == self.records,
            "every partition is committed up to its end": all(committed.get(p) == end for p, end in self.ends.items()),
            "the first consumer saw the rebalance": self.rebalance_seen,
            "both processes closed cleanly": clean,
            "the group is empty": group is not None and not group.members,
        }
        for what, holds in checks.items():
            say(f"{'[green]yes[/green]' if holds else '[red]NO [/red]'}  {what}")
        say(f"{self.ledger.duplicates:,} records were processed twice: at-least-once, at the boundary of a rebalance")
        return all(checks.values())


def run(records: int) -> int:
    say("[bold]Three brokers start[/bold], all inside of this process: the embedded cluster.")
    with EmbeddedCluster(brokers=3, leader_election_ms=800) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        cluster.fill(TOPIC, records, 100)
        say(f"Topic {TOPIC} has {PARTITIONS} partitions with {records:,} records of 100 bytes.")
        story = Story(cluster, records)
        try:
            say("[bold]A consumer process starts[/bold] and joins the group alone.")
            story.hire("first")
            bar = Bar(records)
            with bar.progress:
                story.read_everything(bar)
            good = story.verdict(story.close())
        finally:
            for worker in story.workers:
                worker.process.kill()
                worker.process.wait()
    say("[bold green]Nothing was lost.[/bold green]" if good else "[bold red]Something is wrong.[/bold red]")
    return 0 if good else 1
