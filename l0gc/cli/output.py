"""What commands print: text for people, or exactly one JSON object on stdout. Progress and notes go to stderr."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import click
import msgspec

from l0gc.cli import logs
from l0gc.cli.exit_codes import OutputClosedError
from l0gc.events import event
from l0gc.figures import count
from l0gc.settings import Settings
from l0gc.watermark.source import UNRECONCILED

if TYPE_CHECKING:
    from l0gc.watermark.source import Holder


@dataclass(frozen=True, slots=True)
class Result:
    """What a command would have printed, in both forms."""

    data: dict[str, Any]
    text: list[str]


_HELD_BACK_LINES: Final = 4

_taken: ContextVar[list[Result] | None] = ContextVar("taken", default=None)
_measured: ContextVar[dict[str, Any] | None] = ContextVar("measured", default=None)
_log: Final = logging.getLogger(__name__)


@contextmanager
def taking_results() -> Iterator[list[Result]]:
    """Collect results instead of printing them, for a command that runs others."""
    results: list[Result] = []
    token = _taken.set(results)
    try:
        yield results
    finally:
        _taken.reset(token)


@contextmanager
def taking_measures(into: dict[str, Any]) -> Iterator[None]:
    """Collect in `into`, beside whatever is printed, the result of what runs inside, and what else it measures."""
    token = _measured.set(into)
    try:
        yield
    finally:
        _measured.reset(token)


class Advance(Protocol):
    """Tells a progress display what is done."""

    def __call__(self, text: str, *, done: float | None = None, total: float | None = None) -> None: ...


@contextmanager
def writing_stdout() -> Iterator[None]:
    """Raises `OutputClosedError` if stdout's reader has gone."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as e:
        raise OutputClosedError from e


class Output:
    """One command's output."""

    def __init__(self, settings: Settings) -> None:
        self.json = settings.json
        self.verbose = settings.verbose
        self._log_format = settings.log_format
        self.follows = settings.log_format == logs.TEXT and sys.stderr.isatty()
        """Whether progress is shown."""

    @property
    def tells_data(self) -> bool:
        """Whether anybody gets a result's data, beside its text."""
        return self.json or _taken.get() is not None

    def result(self, data: dict[str, Any], text: Sequence[str], *, indent: int | None = 2) -> None:
        """The command's result: `data` as JSON, or `text` line by line.

        Args:
            indent: of what is folded to a terminal's width; None for text that is as wide as it should be.
        """
        self.measure(data)
        taken = _taken.get()
        if taken is not None:
            taken.append(Result(msgspec.json.decode(msgspec.json.encode(data)), list(text)))
            return
        if self._log_format == logs.JSON:
            _log.info("%s", text[0] if text else "", extra=event("result", **logs.scalars(data)))
        folded = text if indent is None else _folded(text, indent)
        lines = [msgspec.json.encode(data).decode()] if self.json else folded
        with writing_stdout():
            for line in lines:
                click.echo(line, color=is_coloured() or None)

    @contextmanager
    def watching(self) -> Iterator[Callable[[dict[str, Any], Sequence[str]], None]]:
        """Shows one result after another, each as wide as it should be.

        On a terminal each takes the place of the one before; elsewhere, and on one that cannot do that, it is printed
        below it behind a blank line. With `--json` it is one object a line.
        """
        if self.json or not is_capable():
            first = True

            def show(data: dict[str, Any], text: Sequence[str]) -> None:
                nonlocal first
                self.result(data, text if first else ["", *text], indent=None)
                first = False

            yield show
            return
        from rich.live import Live
        from rich.text import Text

        with Live(auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda data, text: live.update(
                Text.from_ansi("\n".join(_fitting(text, live.console.size.height))), refresh=True
            )

    def measure(self, data: dict[str, Any]) -> None:
        """Numbers for the metrics that are not in the result, or of a run that has none."""
        into = _measured.get()
        if into is not None:
            into.update(data)

    def note(self, text: str, name: str = "note", **fields: Any) -> None:
        """Something beside the result that the user should know; `name` and `fields` are for who reads the log."""
        _log.log(logs.NOTE, "%s", text, extra=event(name, **fields))

    @contextmanager
    def progress(self, title: str) -> Iterator[Advance]:
        """A line on the terminal that follows the work; nothing where stderr is not a terminal, or holds a log."""
        if not self.follows:
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


def _fitting(text: Sequence[str], height: int) -> list[str]:
    """`text` without what is in its middle, if it is higher than the terminal: the end says what to do."""
    if len(text) <= height or height < 4:
        return list(text)
    above = height // 3
    return [*text[:above], "...", *text[above + 1 - height :]]


def is_capable() -> bool:
    """Whether stdout is a terminal that can do more than print one line below the other."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown", ""}


def is_coloured() -> bool:
    """Whether stdout takes colours, and nobody has asked to do without (https://no-color.org)."""
    return is_capable() and not os.environ.get("NO_COLOR")


def _folded(text: Sequence[str], indent: int) -> list[str]:
    """`text` as wide as the terminal; as it is where stdout is none, so that grep sees whole lines."""
    if not sys.stdout.isatty():
        return list(text)
    width = max(40, shutil.get_terminal_size().columns)
    fold = textwrap.TextWrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [line for t in text for line in (fold.wrap(t) if len(t) > width else [t])]


def epoch(value: int) -> str:
    """An epoch or a watermark for people: none is below every epoch."""
    return str(value) if value >= 0 else "none"


def held_back(
    held: Sequence[Holder],
    *,
    cut: bool = False,
    total: int | None = None,
    beside: Callable[[Sequence[Holder]], str] = lambda group: "",
) -> list[str]:
    """What holds M back, a line for each reason: `events/0 and 7 more at 4: ...`.

    Args:
        cut: there may be others than these.
        total: how many there are in all, where that is known.
        beside: what is added to a reason, given those that it is about.
    """
    groups: dict[tuple[int, str], list[Holder]] = {}
    for h in held:
        groups.setdefault((h.gc_epoch, UNRECONCILED if h.kind == UNRECONCILED else h.reason), []).append(h)
    cut = cut or (total is not None and total > len(held))
    lines = []
    for (gc_epoch, _), group in groups.items():
        first = group[0]
        # Where all that are named have one reason, the others at that epoch are counted with them.
        counted = total if total is not None and len(groups) == 1 else len(group)
        at_least = "at least " if cut and counted == len(group) else ""
        others = f" and {at_least}{counted - 1:,} more" if counted > 1 else ""
        reason = first.reason
        if first.kind == UNRECONCILED and len(group) > 1:
            records = count(sum(h.unreconciled_records for h in group), "unreconciled record")
            reason = f"{'at least ' if cut else ''}{records} from epoch {gc_epoch + 1} on: run l0gc reconcile"
        lines.append(f"{first.name or 'a journal'}{others} at {epoch(gc_epoch)}: {reason}{beside(group)}")
    more = len(lines) - _HELD_BACK_LINES
    if more > 0:
        return [*lines[:_HELD_BACK_LINES], f"{count(more, 'other reason')} like these (--json has them)"]
    return lines
