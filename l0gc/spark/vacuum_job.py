"""The scan for orphans on Spark: each task looks at its part's journals, lists its part, and removes what is left over.

The fences are in the logs before the first task begins. A task that is run again, because its executor died, lists anew;
what the dead one deleted is gone from the listing, and on record, and the driver counts it from there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from l0gc.collect.garbage import ListingPart, LookAt
from l0gc.collect.orphans import OrphanCounts, OrphanScan
from l0gc.collect.plan import Removal
from l0gc.collect.remover import Remover, Tally
from l0gc.collect.runs import deleted_on_record
from l0gc.runtime import Runtime
from l0gc.spark.sweep_job import pacer_of
from l0gc.storage.workers import Place, Workers
from l0gc.watermark.source import ClusterHandle

_DELETERS = 4


class _Done(NamedTuple):
    """What a task did; `worker` is what its segments are called."""

    worker: str
    tally: bytes
    counts: bytes


class SparkOrphans:
    """Looks for orphans on the executors of a session; see `collect.vacuum.ScansElsewhere`."""

    def __init__(self, cluster: ClusterHandle, workers: Workers[Place]) -> None:
        self._cluster, self._workers = cluster, workers
        self.slots = workers.slots

    def run(
        self, plan: Removal, kind: str, parts: Sequence[ListingPart], look_at: LookAt
    ) -> tuple[Tally, OrphanCounts]:
        """Scan the parts. Raises what a task raises."""
        if plan.max_rate is not None:
            plan = msgspec.structs.replace(plan, max_rate=plan.max_rate / len(parts))
        tally, counts = Tally(), OrphanCounts()
        done = self._workers.map(functools.partial(_scan, plan, kind, look_at), parts)
        for d in done:
            tally.add(msgspec.json.decode(d.tally, type=Tally))
            counts.add(msgspec.json.decode(d.counts, type=OrphanCounts))
        if not plan.dry_run:
            workers = {d.worker for d in done}
            lost = deleted_on_record(
                self._cluster, plan.run_id, lambda key: f"-{kind}-" in key and not any(f"-{w}-" in key for w in workers)
            )
            tally.deleted += lost[0]
            tally.bytes += lost[1]
        return tally, counts


def _scan(plan: Removal, kind: str, look_at: LookAt, place: Place, part: ListingPart) -> _Done:
    """One part, on an executor."""
    store, runtime = place.store, Runtime()
    worker = f"{kind}-{runtime.new_id()[:8]}"
    scan = OrphanScan(store, part, look_at)
    with ThreadPoolExecutor(_DELETERS) as deleters:
        remover = Remover(
            store,
            runtime,
            msgspec.structs.replace(plan, started_ms=store.now_ms()),
            worker=worker,
            deleters=deleters,
            records=None if plan.dry_run else store,
            pacer=pacer_of(plan.run_id, plan.max_rate),
        )
        for batch in scan.batches():
            remover.take(batch)
            if remover.stop.is_set():
                break
        remover.drain()
    if remover.error is not None:
        raise remover.error
    return _Done(worker, msgspec.json.encode(remover.tally), msgspec.json.encode(scan.counts))
