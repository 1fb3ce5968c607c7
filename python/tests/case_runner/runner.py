"""Runs a case, step by step."""

import json
from typing import Any

from support import Background

from case_runner.cases import Arguments, Failure, Mistake, within
from case_runner.on_cluster import ClusterSteps
from case_runner.on_consumers import ConsumerSteps
from case_runner.questions import QuestionSteps


class Runner(ClusterSteps, ConsumerSteps, QuestionSteps):
    """All the steps there are, and steps within steps."""

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


def run_case(case: Any, mode: str) -> None:
    """Run a case to its end, or raise the failure that names it, its step, and what was there instead."""
    about = f"{case['name']!r} ({mode})"
    world = Runner(case, mode)
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
