"""Show the progress of a command: a line on the terminal that follows the work, or else a note every 10 s.

The work reports the amount done, and the total if known. This module derives the share and the remaining time, in the
same way for all commands. The line has its own thread, so it is updated while Spark starts or a job takes long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from l0gc.cli.terminal import escaped
from l0gc.events import Progress
from l0gc.formatting import span

NOTE_EVERY_S: Final = 10.0
_FIRST_ESTIMATE_S: Final = 2.0
"""The time before the first estimate, since the pace is not representative while connections are being opened."""
_WIDE: Final = 110
"""The number of columns from which a bar fits next to the text."""


class Estimate:
    """Estimates the share that is done, and the remaining time at the pace so far.

    Args:
        clock: returns seconds since an arbitrary start.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began, self._first, self._of = clock(), 0.0, -1.0

    def text(self, done: float | None, total: float | None) -> str:
        """Return `41 %, about 2 min left`; empty if that is unknown."""
        if done is None or not total or not 0 <= done <= total:
            return ""
        now = self._clock()
        if total != self._of or done < self._first:  # a new piece of work has begun
            self._began, self._first, self._of = now, done, total
        share = f"{int(100 * done / total)} %"
        took, moved = now - self._began, done - self._first
        if took < _FIRST_ESTIMATE_S or moved <= 0 or done >= total:
            return share
        return f"{share}, about {span(1000 * max(1.0, took * (total - done) / moved))} left"


class Newest:
    """The last message, for the next note."""

    def __init__(self, title: str) -> None:
        self._lock = threading.Lock()
        self._title = title
        self._estimate = Estimate(time.monotonic)
        self._said: tuple[str, dict[str, Any]] = ("", {})

    def __call__(self, text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
        with self._lock:
            shown = _joined(text, self._estimate.text(done, total))
            amounts = {"done": done, "total": total}
            self._said = shown, {k: v for k, v in amounts.items() if v is not None} | fields

    def note(self, note: Callable[..., None]) -> None:
        with self._lock:
            text, fields = self._said
        note(f"{self._title}: {text}" if text else self._title, "progress", **fields)


@contextmanager
def following(title: str) -> Iterator[Progress]:
    """Show a line on stderr, which is a terminal, as wide as that terminal, and remove it afterwards."""
    from rich import progress as bars
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        *([BarColumn(20)] if console.width >= _WIDE else []),
        TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        TimeElapsedColumn(),
    )
    estimate = Estimate(time.monotonic)
    with bars.Progress(*columns, console=console, transient=True) as bar:
        name = escaped(title)
        task = bar.add_task(name, total=None, text="")

        def show(text: str, *, done: float | None = None, total: float | None = None, **fields: Any) -> None:
            shown = escaped(_joined(text, estimate.text(done, total)))
            about = f"{name}:" if shown else name
            bar.update(task, description=about, text=shown, completed=done if total else None, total=total)

        yield show


@contextmanager
def noting(title: str, note: Callable[..., None], wait: Callable[[float], bool] | None = None) -> Iterator[Progress]:
    """Write a note with the last message, however old it is, every 10 s.

    Args:
        note: writes a text, with the name and the fields of its event.
        wait: waits for the given number of seconds, and returns whether the work has ended.
    """
    ended = threading.Event()
    newest = Newest(title)
    sleep = wait or ended.wait

    def repeat() -> None:
        while not sleep(NOTE_EVERY_S):
            newest.note(note)

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield newest
    finally:
        ended.set()
        thread.join()


def _joined(text: str, estimate: str) -> str:
    return ", ".join(part for part in (text, estimate) if part)
