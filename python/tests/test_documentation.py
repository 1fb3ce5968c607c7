"""The examples of the documentation do what it says they do."""

import re
import textwrap
from pathlib import Path
from typing import Any

import cursus_consumer
import pytest
from cursus_consumer import Consumer, testing
from cursus_consumer.testing import EmbeddedCluster
from support import Background, until

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


def test_the_cluster_s_example_runs() -> None:
    [example] = examples(testing.__doc__)
    exec(example, {})
