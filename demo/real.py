"""The same consumer against a real cluster: until it is interrupted, or has nothing new to read."""

from __future__ import annotations

import time

from cursus_consumer import Consumer, CursusError, RebalancingError, TopicPartition
from show import say, table

#: Nothing new for so long counts as caught up.
QUIET_SECONDS = 3.0


def run(brokers: str, topic: str, group: str) -> int:
    say(f"Reading topic [bold]{topic}[/bold] as group [bold]{group}[/bold] from {brokers}. Ctrl-C ends it.")
    read: dict[int, int] = {}
    started = time.monotonic()
    try:
        with Consumer(brokers=brokers, topic=topic, group_id=group, consumer_id="demo") as consumer:
            consumer.start(timeout=15.0)
            say(f"Joined as {consumer.stats().member}, with {len(consumer.assignment())} partitions.")
            try:
                follow(consumer, read)
                say("Caught up: nothing new came for a while.")
            except KeyboardInterrupt:
                say("Interrupted.")
            try:
                consumer.commit()
            except RebalancingError as error:
                say(f"Not committed, and read again by whoever has it now: {error}")
            rows = [row(consumer, tp, read) for tp in consumer.assignment()]
        seconds = time.monotonic() - started
        table(f"topic {topic}, group {group}", ["partition", "records read", "position", "committed offset"], rows)
        total = sum(read.values())
        say(f"{total:,} records in {seconds:.1f} s; left the group.")
        good = all(committed == position or (position == 0 and committed == "none") for *_, position, committed in rows)
        return 0 if good else 1
    except CursusError as error:
        say(f"[red]{type(error).__name__}[/red]: {error}")
        return 1


def row(consumer: Consumer, tp: TopicPartition, read: dict[int, int]) -> list[object]:
    committed = consumer.committed(tp)
    return [tp.partition, read.get(tp.partition, 0), consumer.position(tp), "none" if committed is None else committed]


def follow(consumer: Consumer, read: dict[int, int]) -> None:
    last, told = time.monotonic(), 0
    while time.monotonic() - last < QUIET_SECONDS:
        try:
            batch = consumer.poll(timeout=0.5)
        except RebalancingError as error:
            say(f"Another member came or went: {error}")
            last = time.monotonic()
            continue
        for record in batch:
            read[record.partition] = read.get(record.partition, 0) + 1
        if batch:
            last = time.monotonic()
        total = sum(read.values())
        if total >= told + 50_000:
            told = total
            say(f"{total:,} records, holding {len(consumer.assignment())} partitions")
