"""The examples of the documentation do what it says they do."""

import re
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import cursus_consumer
import pytest
from conftest import MakeConsumer
from cursus_consumer import Consumer, Record, testing
from cursus_consumer.testing import EmbeddedCluster
from support import Background, take, until

CONSUMING = Path(__file__).parent.parent.parent / "docs" / "consuming.md"
README = Path(__file__).parent.parent / "README.md"


def examples(text: str | None) -> list[str]:
    """Find the indented blocks of a text that are programs."""
    blocks = re.findall(r"(?:^    .*\n(?:\s*\n)*)+", (text or "") + "\n", re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks if "import" in block]


@pytest.mark.parametrize("text", [cursus_consumer.__doc__, README.read_text()], ids=["package", "README"])
def test_the_first_example_reads(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    [example] = examples(text)
    made: list[Consumer] = []

    def here(**settings: Any) -> Consumer:
        made.append(Consumer(**{**settings, "brokers": cluster.brokers}))
        return made[-1]

    cluster.produce("orders", ["hello"], partition=1)
    monkeypatch.setattr(cursus_consumer, "Consumer", here)
    running = Background(lambda: exec(example, {}))
    until(lambda: made and made[0].position(1) == 1, "the example reads")
    made[0].close()
    running.result()
    assert capfd.readouterr().out == "1 0 b'hello'\n"


class Enough(Exception):
    """What the examples have to process ends with this, or they would go on for ever."""


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", CONSUMING.read_text(), re.DOTALL))
def test_the_examples_of_consuming_run(
    cluster: EmbeddedCluster, make_consumer: MakeConsumer, capfd: pytest.CaptureFixture[str], example: str
) -> None:
    cluster.fill("orders", 40, 10)
    consumer = make_consumer(enable_auto_commit=False)
    if "on_assigned" not in example:
        consumer.start(timeout=10.0)
    processed: list[Record] = []

    def process(record: Record) -> None:
        processed.append(record)
        if len(processed) >= 5:
            raise Enough

    names: dict[str, object] = {
        **vars(cursus_consumer),
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "consumer": consumer,
        "brokers": cluster.brokers,
        "process": process,
        "forget": list.copy,
        "offset_in_my_database": lambda partition: 7,
    }
    with suppress(Enough):
        exec(example, names)
    assert len(processed) >= 5 or "process(" not in example
    if "offset_in_my_database" in example:
        assert take(consumer, 1)[0].offset == 7
    consumer.close()


def test_the_cluster_s_example_runs() -> None:
    [example] = examples(testing.__doc__)
    exec(example, {})
