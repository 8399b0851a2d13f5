"""Sweeping a part of the shards: scan, and hand over; what one process does once, and each task on Spark for its part.

Scanning and deleting overlap (`remover.py`). A store that lists out of order (hazard 12) is noticed by a scanner; then
all deletes in progress are finished, and the part is scanned once more, all of it and in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence

from l0gc.collect.remover import Remover
from l0gc.collect.scan import OutOfOrderError, SkipScan
from l0gc.events import Progress
from l0gc.formatting import count, size
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.storage.workers import Place

Ranges = Sequence[tuple[int, int]]
"""Ranges of shards that follow each other, each from its first shard to the one after its last."""


def sweep_ranges(progress: Progress, place: Place, remover: Remover, ranges: Ranges) -> None:
    """Hand over what may go in the ranges.

    Args:
        progress: called after every request with where the run is.
    """
    _Sweeper(place.store, remover, progress).run(ranges, place.parallel)


class _Sweeper:
    def __init__(self, store: ObjectStore, remover: Remover, progress: Progress) -> None:
        self._store, self._remover, self._progress = store, remover, progress
        self._listed = 0
        self._at = ""
        remover.progress = self._report

    def run(self, ranges: Ranges, scanners: Parallel) -> None:
        remover = self._remover
        try:
            self._scan_all(ranges, scanners, skip=True)
        except OutOfOrderError:
            remover.drain()
            remover.begin_again()
            self._listed = remover.tally.listed
            self._scan_all([(ranges[0][0], ranges[-1][1])], scanners, skip=False)

    def _scan_all(self, ranges: Ranges, scanners: Parallel, *, skip: bool) -> None:
        disordered: list[OutOfOrderError] = []

        def one(span: tuple[int, int]) -> None:
            try:
                self._scan(*span, skip=skip)
            except OutOfOrderError as e:
                disordered.append(e)
                self._remover.full = True  # the other scanners may as well end

        scanners.map(one, ranges)
        if disordered:
            raise disordered[0]

    def _scan(self, first: int, end: int, *, skip: bool) -> None:
        remover, plan = self._remover, self._remover.plan
        scan = SkipScan(
            self._store, plan.layout, plan.watermark, first, end,
            older_than_ms=plan.older_than_ms, skip=skip, versions=plan.by_version,
        )  # fmt: skip
        seen = 0
        try:
            for batch in scan.batches():
                with remover.lock:
                    self._listed, seen = self._listed + scan.counts.listed - seen, scan.counts.listed
                    self._at = scan.at
                remover.take(batch)
                self._report()
                if remover.full or remover.stop.is_set():
                    return
        except BaseException:
            remover.full = True
            raise
        finally:
            with remover.lock:
                remover.tally.add(scan.counts)

    def _report(self) -> None:
        remover, expected = self._remover, self._remover.plan.expected
        with remover.lock:
            deleted, gone, rate = remover.shown, remover.shown_bytes, remover.pacer.rate()
            listed, shard = self._listed, remover.plan.layout.shard_text(self._at)
        total = expected if expected >= deleted else None
        of = f" of {count(expected, 'object')}" if total is not None else ""
        held = f", held to {rate:,.0f}/s" if rate is not None else ""
        text = f"{deleted:,}{of} deleted, {size(gone)}, shard {shard}{held}"
        self._progress(
            text, done=deleted, total=total, deleted=deleted, bytes=gone, listed=listed, shard=shard, rate=rate
        )
