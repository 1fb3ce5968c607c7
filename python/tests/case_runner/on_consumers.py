"""Steps that a consumer takes: reading, committing, moving, closing."""

import time
from typing import Any

from cursus_consumer import CursusError, RebalancingError, State

from case_runner.cases import (
    TURN,
    Arguments,
    Mistake,
    becomes,
    by_partition,
    equal,
    is_change,
    numbers,
    place,
    ranges,
    within,
)
from case_runner.world import World


class ConsumerSteps(World):
    """What is done by consumers, and what they show by themselves."""

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
