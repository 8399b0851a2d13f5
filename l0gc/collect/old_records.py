"""Old records of runs, and old scan snapshots.

Deleting them is safe because nothing that deletes data reads them, and neither does the computation of M. Each kind expires
by age, by the store's clock, and by number. The records of the newest runs always stay, and so does this run's. No record is
kept of records and snapshots that are deleted: it would be the next to expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from l0gc.collect.attempts import attempt_key
from l0gc.collect.gc_steps import STEPS
from l0gc.collect.plan import Removal
from l0gc.collect.runs import run_of, started_ms
from l0gc.collect.scan import Deletable
from l0gc.keys import ATTEMPTS, RUNS, SCANS
from l0gc.operations import Vacuum
from l0gc.storage.objectstore import ListedPage, ObjectStore
from l0gc.watermark.scans import old_scans

KEEP_RUNS: Final = 10_000
"""The most runs whose records are kept."""


def old_run_records(store: ObjectStore, plan: Removal[Vacuum], keep: int = KEEP_RUNS) -> Iterator[list[Deletable]]:
    """The records of runs that are older than the plan keeps them, and of all but the `keep` newest.

    An attempt of a step that this l0gc does not have expires by the same age.
    """
    before_ms = plan.started_ms - int(1000 * plan.options.keep_runs_s)
    known = {attempt_key(step) for step in STEPS}
    for page in store.scan(ATTEMPTS):
        yield _those(page, lambda key, modified_ms: key not in known and modified_ms < before_ms)
    runs: set[str] = set()
    for page in store.scan(RUNS):
        runs |= {run for key in page.keys if (run := run_of(key)) is not None}
    newest_first = sorted(runs, reverse=True)
    old = {run for i, run in enumerate(newest_first) if i >= keep or started_ms(run) < before_ms} - {plan.run_id}
    if not old:
        return
    newest = max(old)
    for page in store.scan(RUNS):
        yield _those(page, lambda key, _: run_of(key) in old)
        if (run_of(page.keys[-1]) or "") > newest:
            return  # names sort by time


def old_scan_snapshots(store: ObjectStore, plan: Removal[Vacuum]) -> Iterator[list[Deletable]]:
    """The snapshots that `old_scans` names."""
    pages = list(store.scan(SCANS))
    old = set(old_scans([key for page in pages for key in page.keys], plan.started_ms))
    yield from (_those(page, lambda key, _: key in old) for page in pages)


def _those(page: ListedPage, wanted: Callable[[str, int], bool]) -> list[Deletable]:
    """The objects of a page that are wanted, judged by key and by when they were written."""
    rows = zip(page.keys, page.sizes, page.modified_ms, strict=True)
    return [Deletable(key, -1, size, modified_ms) for key, size, modified_ms in rows if wanted(key, modified_ms)]
