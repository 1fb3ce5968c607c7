"""Steps that have a consumer ask brokers."""

from collections.abc import Callable, Mapping
from typing import Any

from cursus_consumer import GroupDescription, TopicPartition

from case_runner.cases import Arguments, Mistake, becomes, by_number, by_partition, equal, numbers, within
from case_runner.world import World


class QuestionSteps(World):
    """What a consumer is asked that it has to ask brokers for."""

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
