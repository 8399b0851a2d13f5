"""The folder of reports: reading all of it while others write and compact, and putting one file in the place of many.

A file is deleted only after a file that holds the best of its rows is durable, and only by a run that has read it. Keys are
never used twice. So for every report there is at all times a file that says as much: whoever deletes that one has written
another before. A file that appears meanwhile was not read and stays; a run that is killed leaves files that say the same
twice. Two runs at once write two such files, which the next one makes one of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from l0gc.errors import ObjectNotFoundError, StoreError
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import PAGE_SIZE, ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.watermark.reports import best_of, read_report_file, report_keys, table_of, write_reports

COMPACT_FILES: Final = 16
"""Fewer files than this are left as they are: reading them costs less than writing another."""
REPORTER: Final = "compacted"
_LOOKS: Final = 5
"""How often the folder is listed anew when files vanish while they are read; then the run makes do with what it has."""

ReadFiles = Callable[[list[str]], pa.Table]
"""Reads the rows of these files; one that is gone is left out, one that cannot be read ends the run."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: `files` were replaced by one of `rows` rows; `error` says why some are left, if any."""

    files: int
    rows: int
    error: str = ""


def read_folder(store: ObjectStore, runtime: Runtime, parallel: Parallel, most_files: int) -> pa.Table | None:
    """The best report of each partition, read by this process; None if there are more files than `most_files`.

    Raises:
        CorruptObjectError: a file cannot be read.
    """

    def read_one(key: str) -> pa.Table:
        try:
            return read_report_file(store.get(key).body, key)
        except ObjectNotFoundError:
            return table_of([])

    def read(keys: list[str]) -> pa.Table:
        return pa.concat_tables(parallel.map(read_one, keys))

    return None if len(report_keys(store)) > most_files else ReportFolder(store, runtime, read).read()


class ReportFolder:
    """One run's view of the folder.

    Args:
        compact_files: how many files it takes to make one of them.
    """

    def __init__(
        self, store: ObjectStore, runtime: Runtime, read: ReadFiles, *, compact_files: int = COMPACT_FILES
    ) -> None:
        self._store, self._runtime, self._read = store, runtime, read
        self._compact_files = compact_files
        self.files: list[str] = []
        """The files that were read for certain, and were there behind it."""

    def read(self) -> pa.Table:
        """The best report of each partition.

        A file that another run compacts away between the listing and the read is not missed: what vanished is noticed by
        listing once more, and the file that took its place is read, too.
        """
        table, seen = table_of([]), set[str]()
        present = set(report_keys(self._store))
        for _ in range(_LOOKS):
            new = sorted(present - seen)
            if new:
                table = best_of(pa.concat_tables([table, self._read(new)]))
                seen |= present
            present = set(report_keys(self._store)) if seen else present
            if seen <= present:
                break
        # Keys are not used twice, so what is still there was there when it was read.
        self.files = sorted(seen & present)
        return table

    def compact(self, best: pa.Table) -> Compacted | None:
        """Put one file with the rows of `best` in the place of all that were read; None if there is little to gain.

        Args:
            best: says as much as all the files that were read.
        """
        if len(self.files) < self._compact_files:
            return None
        removed, error = 0, ""
        try:
            write_reports(self._store, self._runtime, REPORTER, best.sort_by([("topic", "ascending")]))
            for start in range(0, len(self.files), PAGE_SIZE):
                keys = self.files[start : start + PAGE_SIZE]
                failures = self._store.delete(keys)
                removed += len(keys) - len(failures)
                error = error or (f"{failures[0].key}: {failures[0].code} {failures[0].message}" if failures else "")
        except StoreError as e:  # M is published; what is left over is removed by another run
            error = str(e)
        return Compacted(removed, best.num_rows, error)
