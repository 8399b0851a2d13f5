"""A file that a command writes for its user: all of it or nothing.

It is written under another name in the same folder, and renamed when it is whole. So nobody ever reads a half, and the old
file stays until the new one takes its place, also if the command fails or is stopped. A process that is killed leaves the
other name, which begins with a dot. Anything but a regular file, a pipe or /dev/stdout, is written to directly.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from l0gc.errors import OutputFailedError, UsageError

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
