"""How the demo speaks: a progress bar on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

console = Console(highlight=False, soft_wrap=True)
STARTED = time.monotonic()


def say(text: str) -> None:
    console.print(f"[dim]{time.monotonic() - STARTED:5.1f} s[/dim]  {text}")


def table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    shown = Table(title=title, title_justify="left")
    for column in columns:
        shown.add_column(column, justify="right")
    for row in rows:
        shown.add_row(*[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row])
    console.print()
    console.print(shown)


class Bar:
    """Progress towards a total: a bar where somebody looks, a line every tenth where not."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.tenths = 0
        self.progress = Progress(
            TextColumn("        records"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("records", total=total)

    def at(self, done: int) -> None:
        self.progress.update(self.task, completed=done)
        tenths = done * 10 // max(self.total, 1)
        if not console.is_terminal and tenths > self.tenths:
            self.tenths = tenths
            say(f"{done:,} of {self.total:,} records")
