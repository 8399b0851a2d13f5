"""Old notes: records of runs, scan snapshots, attempts, and the marks of `gc` runs that are no more.

What makes their deletion safe: nothing that deletes data reads any of them, and neither does M. They are for people, and
each kind has its age by the store's clock, as its keys or the store say, and a number that is enough. The record of the
newest runs always stays, and so does this run's. What is deleted here is not on record: the records of that would be next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from l0gc.collect.attempts import JOBS, attempt_key
from l0gc.collect.runs import old_runs, run_of
from l0gc.collect.scan import EligibleObject
from l0gc.collect.under_way import is_stale
from l0gc.keys import ATTEMPTS, GC_UNDER_WAY, RUNS, SCANS
from l0gc.storage.objectstore import ListedPage, ObjectStore
from l0gc.watermark.scan_keys import old_scans

KEEP_RUNS: Final = 10_000
"""So many runs at the most are on record."""


def old_run_records(store: ObjectStore, before_ms: int, keep: int, this_run: str) -> Iterator[list[EligibleObject]]:
    """The records of runs that began before `before_ms`, and of all but the `keep` newest."""
    runs: set[str] = set()
    for page in store.scan(RUNS):
        runs |= {run for key in page.keys if (run := run_of(key)) is not None}
    old = old_runs(runs, before_ms, keep) - {this_run}
    if not old:
        return
    newest = max(old)
    for page in store.scan(RUNS):
        yield _those(page, lambda key: run_of(key) in old)
        if (run_of(page.keys[-1]) or "") > newest:
            return  # names sort by time


def old_scan_snapshots(store: ObjectStore, now_ms: int, keep: int) -> Iterator[list[EligibleObject]]:
    """The snapshots that compute-watermark would remove, too, and all but the `keep` newest."""
    pages = list(store.scan(SCANS))
    old = set(old_scans([key for page in pages for key in page.keys], now_ms, keep))
    yield from (_those(page, lambda key: key in old) for page in pages)


def old_attempts(store: ObjectStore, before_ms: int) -> Iterator[list[EligibleObject]]:
    """The last runs of jobs that this l0gc does not have, and not since `before_ms`."""
    known = {attempt_key(job) for job in JOBS}
    for page in store.scan(ATTEMPTS):
        ages = dict(zip(page.keys, page.modified_ms, strict=True))
        yield _those(page, lambda key: key not in known and ages[key] < before_ms)  # noqa: B023 - it is used at once


def stale_marks(store: ObjectStore, now_ms: int) -> Iterator[list[EligibleObject]]:
    """The marks of runs that were killed."""
    for page in store.scan(GC_UNDER_WAY):
        ages = dict(zip(page.keys, page.modified_ms, strict=True))
        yield _those(page, lambda key: is_stale(ages[key], now_ms))  # noqa: B023 - it is used at once


def _those(page: ListedPage, wanted: Callable[[str], bool]) -> list[EligibleObject]:
    rows = zip(page.keys, page.sizes, page.modified_ms, strict=True)
    return [EligibleObject(key, -1, size, modified_ms) for key, size, modified_ms in rows if wanted(key)]
