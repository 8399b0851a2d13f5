"""Sweeping a span of shards: scan, and hand over; what the local engine does once, and each Spark task for its part.

Scanning and deleting overlap (`remover.py`). A store that lists out of order (hazard 12) is noticed by a scanner; then
all deletes in progress are finished, and the span is scanned once more, all of it and in one piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from l0gc.collect.pacing import Pacer
from l0gc.collect.plan import Removal
from l0gc.collect.record import RecordSink
from l0gc.collect.remover import Remover, Tally
from l0gc.collect.scan import Deletable, OutOfOrderError, SkipScan
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Where a run is; `expected` is what the last scan saw as eligible, -1 without one."""

    expected: int
    deleted: int
    bytes: int
    listed: int
    shard: str
    rate: float | None
    throttled: int


class Sweeper:
    """One worker's sweep of the shards `first` to `end` (end excluded); see `Remover` for the arguments.

    Args:
        progress: called after every request.
        gone: called with what each batch has removed, or would remove in a dry run.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        plan: Removal,
        *,
        worker: str,
        deleters: Executor,
        records: RecordSink | None,
        stop: threading.Event | None = None,
        pacer: Pacer | None = None,
        progress: Callable[[SweepProgress], None] = lambda progress: None,
        gone: Callable[[Sequence[Deletable]], None] = lambda objects: None,
    ) -> None:
        self._store, self._plan = store, plan
        self._layout = plan.layout
        self._progress = progress
        self._remover = Remover(
            store,
            runtime,
            plan,
            worker=worker,
            deleters=deleters,
            records=records,
            stop=stop,
            pacer=pacer,
            progress=self._report,
        )
        self._remover.gone = gone
        self._stop = self._remover.stop
        self._listed = 0
        self._at = ""

    def run(self, ranges: Sequence[tuple[int, int]], scanners: Parallel) -> Tally:
        """Sweep the ranges, which follow each other. Raises what ended the run before its end."""
        remover = self._remover
        try:
            try:
                self._scan_all(ranges, scanners, skip=True)
            except OutOfOrderError:
                remover.drain()
                remover.begin_again()
                self._listed = remover.tally.counts.listed
                self._scan_all([(ranges[0][0], ranges[-1][1])], scanners, skip=False)
            remover.drain()
        except Exception:
            self._stop.set()
            remover.drain()
            raise
        except BaseException:
            self._stop.set()  # the process is to die: nothing is waited for, and scanners on other threads end, too
            raise
        if remover.error is not None:
            raise remover.error
        return self.tally

    @property
    def tally(self) -> Tally:
        """What was done so far."""
        return self._remover.tally

    def _scan_all(self, ranges: Sequence[tuple[int, int]], scanners: Parallel, *, skip: bool) -> None:
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
        plan, remover = self._plan, self._remover
        scan = SkipScan(
            self._store, self._layout, plan.watermark, first, end,
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
                if remover.full or self._stop.is_set():
                    return
        except BaseException:
            remover.full = True
            raise
        finally:
            with remover.lock:
                remover.tally.counts.add(scan.counts)

    def _report(self) -> None:
        remover = self._remover
        with remover.lock:
            progress = SweepProgress(
                self._plan.expected,
                remover.shown,
                remover.shown_bytes,
                self._listed,
                self._layout.shard_text(self._at),
                remover.pacer.rate(),
                remover.pacer.throttled,
            )
        self._progress(progress)
