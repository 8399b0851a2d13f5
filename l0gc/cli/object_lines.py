"""Objects, one on each line, as they are found: for what lists more of them than memory holds, or a screen.

A line has the key, the epoch, the bytes, and the time of the last change, between tabs; of a run's record also what became
of the object. Keys are printed so that none can act on a terminal, as all text is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from l0gc.cli.output import writing_stdout
from l0gc.cli.terminal import escaped
from l0gc.collect.record import RecordedObject
from l0gc.collect.scan import Deletable
from l0gc.errors import UsageError


class ObjectLines:
    """Writes objects to stdout, or to a file."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    @classmethod
    @contextmanager
    def to(cls, path: Path | None) -> Iterator[ObjectLines]:
        """Into the file `path`, which is begun anew; to stdout without one. Raises `UsageError` if it cannot be written."""
        if path is None:
            yield cls(None)
            return
        try:
            with path.open("w", encoding="utf-8") as file:
                yield cls(file)
        except OSError as e:
            raise UsageError(f"{path} cannot be written: {e.strerror or e}") from e

    def found(self, objects: Sequence[Deletable]) -> None:
        """Objects that a run would delete."""
        self._write([_line(o.key, o.epoch, o.size, o.modified_ms) for o in objects])

    def recorded(self, row: RecordedObject) -> None:
        """An object of a run's record."""
        self._write([f"{_line(row.key, row.epoch, row.size, row.modified_ms)}\t{row.status}"])

    def _write(self, lines: Sequence[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        if self._file is not None:
            self._file.write(text)
            return
        with writing_stdout():
            sys.stdout.write(text)


def _line(key: str, epoch: int, size: int, modified_ms: int) -> str:
    time = f"{datetime.fromtimestamp(modified_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"{escaped(key)}\t{epoch}\t{size}\t{time}"
