"""What commands print: text for people, or exactly one JSON object on stdout. Progress and notes go to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import click
import msgspec

from l0gc.settings import Settings


class Advance(Protocol):
    """Tells a progress display what is done."""

    def __call__(self, text: str, *, done: float | None = None, total: float | None = None) -> None: ...


class Output:
    """One command's output."""

    def __init__(self, settings: Settings) -> None:
        self.json = settings.json
        self.verbose = settings.verbose

    def result(self, data: dict[str, Any], text: Sequence[str]) -> None:
        """The command's result: `data` as JSON, or `text` line by line."""
        if self.json:
            click.echo(msgspec.json.encode(data).decode())
        else:
            for line in text:
                click.echo(line)

    def note(self, text: str) -> None:
        """Something beside the result that the user should know."""
        click.echo(f"l0gc: {text}", err=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Advance]:
        """A line on the terminal that follows the work; nothing where stderr is not a terminal."""
        if not sys.stderr.isatty():
            yield lambda text, *, done=None, total=None: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.fields[text]}"),
        )
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=None, text="")
            yield lambda text, *, done=None, total=None: bar.update(task, text=text, completed=done, total=total)


def size(n: float) -> str:
    """Bytes for people: `12.3 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1024 or unit == "TiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError("unreachable")


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`1 object`, `1,234 objects`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def epoch(value: int) -> str:
    """An epoch or a watermark for people: none is below every epoch."""
    return str(value) if value >= 0 else "none"
