"""Print a command's result as readable text or as exactly one JSON object on stdout, notes on stderr, and requested
files.

A file is written under a temporary name in the same folder, and renamed when it is complete. Therefore readers never
see a partial file, and the old file stays if the command fails or is stopped. A killed process leaves the temporary
file, whose name begins with a dot. A pipe, /dev/stdout and anything else that is not a regular file are written to
directly.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
import msgspec

from l0gc.cli import logs
from l0gc.cli.main import CHANGES, GOES_ON, READS, effects
from l0gc.cli.metrics import OBSERVING, Run
from l0gc.cli.progress import following, noting
from l0gc.cli.signals import OutputClosedError, stop_on_interrupt
from l0gc.cli.terminal import escaped, fitted, json_bytes, json_text
from l0gc.errors import (
    L0gcError,
    NotFoundError,
    OutputFailedError,
    StoppedError,
    StoreUnreachableError,
    UsageError,
)
from l0gc.events import NOTE, Progress, event, quiet, scalars
from l0gc.formatting import Outcome, count, moment
from l0gc.redaction import without_secrets
from l0gc.runtime import SystemClock
from l0gc.settings import Settings
from l0gc.storage.workers import LOCAL
from l0gc.watermark.source import PINNED, UNRECONCILED

if TYPE_CHECKING:
    from l0gc.api import Cluster
    from l0gc.collect.deletion import Deletable
    from l0gc.inspect.overview import Overview
    from l0gc.watermark.source import Holder


R = TypeVar("R", bound=Outcome)


class Result(msgspec.Struct, frozen=True):
    """The output of a command, in both forms."""

    data: dict[str, Any]
    text: list[str]


_HELD_BACK_LINES: Final = 4
_CHECKS: Final = ("status", "verify", "report")
"""The commands that change nothing. With `--quiet`, they only report whether something is wrong."""

_taken: ContextVar[list[Result] | None] = ContextVar("taken", default=None)
measured: Final[ContextVar[Run | None]] = ContextVar("measured", default=None)
"""The current run whose values are kept for metrics, if there is one."""
_log: Final = logging.getLogger(__name__)


@contextmanager
def taking_results() -> Iterator[list[Result]]:
    """Collect results instead of printing them, for a command that runs other commands."""
    results: list[Result] = []
    token = _taken.set(results)
    try:
        yield results
    finally:
        _taken.reset(token)


@contextmanager
def writing_stdout(failed: str = "stdout could not be written") -> Iterator[None]:
    """Turn an `OSError` in the block into an error about stdout. Nothing else in the block may raise one.

    Args:
        failed: the start of the error's sentence.

    Raises:
        OutputClosedError: the reader of stdout has closed it.
        OutputFailedError: stdout cannot be written, since its disk is full or it is closed.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError as e:
        raise OutputClosedError from e
    except OSError as e:
        why = "it is closed" if e.errno == errno.EBADF else e.strerror or str(e)
        raise OutputFailedError(f"{failed}: {why}") from e


class Output:
    """The output of a command."""

    def __init__(self, settings: Settings) -> None:
        self.json = settings.json
        self._json_file = None if settings.json_file is None else _new_file(settings.json_file)
        self.verbose = settings.verbose
        self._log_format = settings.log_format
        self.follows = settings.log_format == logs.TEXT and sys.stderr.isatty() and not settings.quiet
        """Whether progress is shown."""
        effect, _ = effects().get(logs.HANDLER.command, (READS, ""))
        self._cluster_url = without_secrets(settings.url or "") if effect in (CHANGES, GOES_ON) else ""
        """The cluster whose state the result describes; empty if the result is the requested data itself."""
        self._quiet = settings.quiet and not self.json and (bool(self._cluster_url) or logs.HANDLER.command in _CHECKS)

    def finish(
        self,
        work: Callable[..., R],
        lines: Callable[[R], Sequence[str]],
        *,
        title: str = "",
        reports: bool = False,
        stays: Callable[[dict[str, Any]], str] | None = None,
        indent: int | None = 2,
        aside: bool = False,
    ) -> None:
        """Do the work, and print its result as `result` does. Then raise the error of a partial result.

        Args:
            title: the title of the progress display; without a title, there is no display.
            reports: whether the work takes the argument `progress`, to report its progress.
            stays: returns a sentence about the remaining state if a signal ends the work, given the last reported
                fields.
            aside: print the result as a note, since stdout has other output.
        """
        error: L0gcError | None = None
        reported = dict[str, Any]()

        def progress(text: str, **fields: Any) -> None:
            reported.update(fields)
            show(text, **fields)

        try:
            with (
                stop_on_interrupt(lambda: stays(reported)) if stays is not None else nullcontext(),
                self.progress(title) if title else nullcontext(quiet) as show,
            ):
                result = work(progress=progress) if reports else work()
        except BaseException as e:
            if not isinstance(e, L0gcError) or not isinstance(e.result, Outcome):
                so_far = vars(e).get("so_far")
                if isinstance(so_far, Outcome):
                    self.measure(so_far.to_json() | so_far.measures())
                raise
            result, error = cast(R, e.result), e
        self.measure(result.measures())
        text = list(lines(result))
        reason = getattr(result, "engine_reason", "")
        if reason and self.verbose:
            where = "in this process" if getattr(result, "engine", LOCAL) == LOCAL else "on Spark"
            text.append(f"ran {where}: {reason}")
        if aside:
            self.measure(result.to_json())
            for line in text:
                self.note(line)
        else:
            needed = (error or result.problem) is not None
            self.result(result.to_json(), text, indent=indent, needed=needed)
        error = error or result.problem
        if error is not None:
            raise error

    def result(
        self,
        data: dict[str, Any],
        text: Sequence[str],
        *,
        indent: int | None = 2,
        styled: bool = False,
        needed: bool = False,
    ) -> None:
        """Print the command's result: `data` as JSON, or the lines of `text`, without characters on which a terminal
        would act.

        The text of a command that changes something begins with the time and the cluster, for the logs of cron.

        Args:
            indent: the indentation of lines folded to the terminal's width; None for text that is not folded.
            needed: print it even with `--quiet`.
            styled: whether `text` has colours, and was escaped before they were added.
        """
        self.measure(data)
        text = text if styled else [escaped(line) for line in text]
        taken = _taken.get()
        if taken is not None:
            taken.append(Result(msgspec.json.decode(json_bytes(data)), list(text)))
            return
        self._write_file(data)
        if self._log_format == logs.JSON:
            _log.info("%s", text[0] if text else "", extra=event("result", **scalars(data)))
        if self._quiet and not needed:
            return
        if self._cluster_url:
            head = f"{moment(SystemClock().now_ms())} {escaped(self._cluster_url)}"
            text, indent = ([f"{head}: {text[0]}"], indent and 2) if len(text) == 1 else ([head, *text], indent)
        shown = text if indent is None else fitted(text, indent, sys.stdout)
        lines = [json_text(data)] if self.json else shown
        with writing_stdout("the command succeeded, but its result could not be written to stdout"):
            for line in lines:
                click.echo(line, color=is_coloured() or None)

    @contextmanager
    def watching(self) -> Iterator[Callable[[dict[str, Any], Sequence[str]], None]]:
        """Yield a function that shows styled results one after another.

        On a terminal, each result replaces the previous one; elsewhere, it is printed below the previous one, after a
        blank line. With `--json`, each is an object on one line.
        """
        if self.json or not is_capable():
            first = True

            def show(data: dict[str, Any], text: Sequence[str]) -> None:
                nonlocal first
                self.result(data, text if first else ["", *text], indent=None, styled=True)
                first = False

            yield show
            return
        from rich.live import Live
        from rich.text import Text

        with Live(auto_refresh=False, vertical_overflow="crop") as live:

            def update(data: dict[str, Any], text: Sequence[str]) -> None:
                self._write_file(data)
                live.update(Text.from_ansi("\n".join(_fitting(text, live.console.size.height))), refresh=True)

            yield update

    def refuse_file(self, instead: str) -> None:
        """Raise `UsageError` if --json-file is given to a command without a single result."""
        if self._json_file is not None:
            raise UsageError(f"--json-file needs a single result, and this command prints as it runs: use {instead}")

    def _write_file(self, data: dict[str, Any]) -> None:
        if self._json_file is not None:
            with atomic_file(self._json_file) as write:
                write(json_bytes(data) + b"\n")

    def measure(self, data: dict[str, Any]) -> None:
        """Add values for the metrics that are not in the result, or that belong to a run without a result."""
        run = measured.get()
        if run is not None:
            run.data.update(data)

    @contextmanager
    def observing(self, cluster: Cluster) -> Iterator[None]:
        """Read the cluster's state at the end of the block for the run's metrics, if they are exported and do not have
        it yet.

        This is skipped after a signal, and if the error shows that there is nothing to read.
        """
        try:
            yield
        except L0gcError as e:
            if not isinstance(e, StoppedError | UsageError | NotFoundError | StoreUnreachableError):
                self._observe(cluster)
            raise
        self._observe(cluster)

    def saw(self, overview: Overview) -> None:
        """Set the cluster's state for the run's metrics."""
        if (run := measured.get()) is not None:
            run.seen = overview

    def _observe(self, cluster: Cluster) -> None:
        run = measured.get()
        if run is None or run.step not in OBSERVING or run.seen is not None:
            return
        try:
            self.saw(cluster.status())
        except L0gcError as e:
            self.note(f"the metrics lack the cluster's present state: {e}", "metrics_failed")

    def note(self, text: str, name: str = "note", *, needed: bool = False, **fields: Any) -> None:
        """Print a note in addition to the result. `name` and `fields` are for programs that read the log.

        Args:
            needed: print it even with `--quiet`.
        """
        _log.log(logging.WARNING if needed else NOTE, "%s", text, extra=event(name, **fields))

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """Show the progress of the work: a line on a terminal, or a note every 10 s if stderr is redirected or has
        JSON.
        """
        with following(title) if self.follows else noting(title, self.note) as show:
            yield show


def _new_file(name: str) -> Path:
    """Return the path of a file, and check that its folder seems to allow writing it later."""
    path, writable = Path(name), False
    if name == "-":
        raise UsageError("--json-file needs a file name; --json prints to stdout")
    with suppress(OSError, ValueError):  # for example a name that is too long for a file
        writable = not path.is_dir() and os.access(path.parent, os.W_OK)
    if not writable:
        raise UsageError(f"--json-file {name} cannot be written: name a file in a writable folder")
    return path


def _fitting(text: Sequence[str], height: int) -> list[str]:
    """Return `text`; if it is higher than the terminal, omit its middle, since the next step is at its end."""
    if len(text) <= height or height < 4:
        return list(text)
    above = height // 3
    return [*text[:above], "...", *text[above + 1 - height :]]


def is_capable() -> bool:
    """Return whether stdout is a terminal with cursor control."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown", ""}


def is_coloured() -> bool:
    """Return whether stdout supports colours, and NO_COLOR is not set (https://no-color.org)."""
    return is_capable() and not os.environ.get("NO_COLOR")


def epoch(value: int) -> str:
    """Return an epoch or a watermark as text; the watermark below every epoch is `none`."""
    return str(value) if value >= 0 else "none"


def misfits_text(misfits: int) -> str:
    """Return a sentence about records that did not fit a value schema, and how to find them."""
    misfit_records = count(misfits, "record did", "records did")
    return (
        f"{misfit_records} not fit the value schema; find them in the topic's table with WHERE value_error IS NOT NULL"
    )


def held_back(
    holders: Sequence[Holder],
    *,
    cut: bool = False,
    total: int | None = None,
    beside: Callable[[Sequence[Holder]], str] = lambda group: "",
) -> list[str]:
    """Return the holders of M, one line per reason: `events/0 and 7 more at 4: ...`.

    Args:
        cut: whether there may be more holders than these.
        total: the number of all holders, if known.
        beside: returns a text to add to a reason, given the partitions with this reason.
    """
    groups: dict[tuple[int, str], list[Holder]] = {}
    for h in holders:
        groups.setdefault((h.gc_epoch, UNRECONCILED if h.kind == UNRECONCILED else h.reason), []).append(h)
    cut = cut or (total is not None and total > len(holders))
    lines = []
    for (gc_epoch, _), group in groups.items():
        first = group[0]
        # If all named holders have the same reason, the others at that epoch are counted with them.
        counted = total if total is not None and len(groups) == 1 else len(group)
        at_least = "at least " if cut and counted == len(group) else ""
        others = f" and {at_least}{counted - 1:,} more" if counted > 1 else ""
        reason = first.reason
        if first.kind == UNRECONCILED and len(group) > 1:
            records = count(sum(h.unreconciled_records for h in group), "unreconciled record")
            reason = f"{'at least ' if cut else ''}{records} from epoch {gc_epoch + 1} on (l0gc reconcile)"
        holder = first.name or ("a pin" if first.kind == PINNED else "a journal")
        lines.append(f"{holder}{others} at {epoch(gc_epoch)}: {reason}{beside(group)}")
    more = len(lines) - _HELD_BACK_LINES
    if more > 0:
        return [*lines[:_HELD_BACK_LINES], f"{count(more, 'other reason')} like these (--json has them)"]
    return lines


# -- files ---------------------------------------------------------------------------------------------------------------


@contextmanager
def atomic_file(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes to `path`. The file is replaced at the end, and stays unchanged after an error.

    Raises:
        UsageError: the file cannot be created.
        OutputFailedError: the file could not be written, for example because the disk is full.
    """
    try:
        is_file = path.is_file() or not path.exists()  # for a directory, opening it raises an error that names it
        target = path.resolve() if is_file else path
        part = (
            target.with_name(f".l0gc-{uuid.uuid4().hex}") if is_file else target
        )  # short enough for every file system
        file = part.open("wb")
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror}; name another file with -o FILE") from e
    try:

        def write(data: bytes) -> None:
            with _saying(path):
                file.write(data)

        try:
            yield write
        finally:
            with _saying(path):
                file.close()
        if is_file:
            with _saying(path):
                part.replace(target)
    finally:
        if is_file:
            with suppress(OSError):
                part.unlink(missing_ok=True)


@contextmanager
def _saying(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise OutputFailedError(f"{path} could not be written: {e.strerror or e}") from e


@contextmanager
def listing(path: str | None) -> Iterator[Callable[[Sequence[Deletable]], None] | None]:
    """Yield a function that adds objects to a new list in the file `path`, or on stdout for `-`; yield None without a
    path.

    Raises:
        UsageError: the file cannot be written.
    """

    def add(objects: Sequence[Deletable], write: Callable[[str], object] = to_stdout) -> None:
        write("".join(map(object_line, objects)))

    if path is None or path == "-":
        yield None if path is None else add
        return
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            yield partial(add, write=file.write)
    except OSError as e:
        raise UsageError(f"{path} cannot be written: {e.strerror or e}") from e


def to_stdout(text: str) -> None:
    """Write text unchanged."""
    with writing_stdout():
        sys.stdout.write(text)


def object_line(object_: Deletable, *more: str) -> str:
    """Return the key, epoch, bytes and time of the last change of an object, and `more`, separated by tabs, without
    control characters.
    """
    line = f"{escaped(object_.key)}\t{object_.epoch}\t{object_.size}\t{moment(object_.modified_ms, 'T')}"
    return "\t".join([line, *more]) + "\n"
