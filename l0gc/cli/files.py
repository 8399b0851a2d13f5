"""Files that a command writes for its user: one that is whole or as it was, and a list of objects as they are found.

A whole file is written under another name in the same folder, and renamed when it is whole. So nobody ever reads a half, and
the old file stays until the new one takes its place, also if the command fails or is stopped. A process that is killed
leaves the other name, which begins with a dot. Anything but a regular file, a pipe or /dev/stdout, is written to directly.

A line of a list has the key, the epoch, the bytes, and the time of the last change, between tabs; of a run's record also
what became of the object. Keys are printed so that none can act on a terminal, as all text is.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from l0gc.cli.output import writing_stdout
from l0gc.cli.terminal import escaped
from l0gc.errors import OutputFailedError, UsageError
from l0gc.formatting import moment

if TYPE_CHECKING:
    from l0gc.collect.record import RecordedObject
    from l0gc.collect.scan import Deletable

Write = Callable[[bytes], object]


@contextmanager
def whole_file(path: Path) -> Iterator[Write]:
    """Gives what writes to `path`, which is whole when this ends without an error, and else as it was.

    Raises:
        UsageError: there can be no such file.
        OutputFailedError: it could not be written, its disk being full.
    """
    try:
        is_file = path.is_file() or not path.exists()  # of a directory, opening it says that it is one
        place = path.resolve() if is_file else path
        part = place.with_name(f".{place.name}.{uuid.uuid4().hex}") if is_file else place
        file = part.open("wb")
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror}; say where with -o FILE") from e
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
                part.replace(place)
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
    return f"{escaped(key)}\t{epoch}\t{size}\t{moment(modified_ms, 'T')}"
