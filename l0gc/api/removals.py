"""What deletes: the methods of the library that sweep and vacuum. In each, its command's run is put together, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from l0gc.api.engine import Engine, Work
from l0gc.api.groups import checked
from l0gc.collect.attempts import RecordedAttempt
from l0gc.collect.plan import L1_GRACE_MS, ONE_PROCESS, ORPHAN_AGE_MS, Removal
from l0gc.collect.runs import KEEP_RUNS_S
from l0gc.events import Progress, quiet
from l0gc.storage.config import StoreConfig
from l0gc.storage.workers import LOCAL, Workers
from l0gc.streamlog.cluster import Cluster as Handles
from l0gc.watermark.publication import read_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from l0gc.collect.scan import Deletable
    from l0gc.collect.sweep import SweepResult
    from l0gc.collect.vacuum import VacuumResult

SPARK_FROM: Final = 1_000_000
"""Objects from which `auto` takes a Spark cluster, if it is given one: below, starting Spark takes longer."""


class Removals:
    """The part of a cluster that deletes."""

    handles: Callable[[], Handles]
    _config: StoreConfig

    def sweep(
        self,
        *,
        dry_run: bool = False,
        min_age_s: float = 0,
        max_objects: int | None = None,
        max_rate: float | None = None,
        max_delete_ratio: float | None = None,
        shards: tuple[int, int] | None = None,
        purge_versions: bool = False,
        record: bool = True,
        record_dir: Path | None = None,
        run_id: str | None = None,
        spark: SparkSession | Engine | None = None,
        progress: Progress = quiet,
        stop: threading.Event | None = None,
        gone: Callable[[Sequence[Deletable]], None] | None = None,
    ) -> SweepResult:
        """Delete the L0 objects whose epoch is at or below the published M. As `l0gc sweep`.

        Args:
            dry_run: delete nothing; the result has the numbers that the run would have.
            min_age_s: leave objects that are younger.
            max_objects: delete no more than this many.
            max_rate: delete no more than this many a second.
            max_delete_ratio: stop before deleting more than this share of the bucket.
            shards: the first and the last shard to sweep.
            purge_versions: remove every version of what is deleted, for good.
            record: whether the run goes on record.
            record_dir: keep the record in this folder instead of the bucket.
            run_id: the run's name; by default a new one.
            spark: see `reconcile`.
            progress: called after each request with where the run is.
            stop: once it is set, the run finishes its requests in flight, and ends with a `StoppedError`.
            gone: called with the objects of each batch that was deleted, or would be in a dry run, in the order of keys.
        """
        from l0gc.collect.sweep import Sweep

        wanted = Removal(
            dry_run=dry_run,
            min_age_ms=int(min_age_s * 1000),
            max_objects=max_objects,
            max_rate=max_rate,
            shards=shards,
            max_delete_ratio=max_delete_ratio,
            purge_versions=purge_versions,
            record=record,
            record_dir=record_dir,
            run_id=run_id or "",
        )
        handles, engine = self.handles(), Engine.of(spark)
        work = sweep_work(lambda: _eligible(handles), limited=wanted.in_one_process or gone is not None)
        with RecordedAttempt(handles, "sweep", whole=wanted.whole):
            kind, why = engine.choose(work)
            with self._removing(engine, kind, progress) as (workers, deleters):
                result = Sweep(handles, wanted, workers, stop=stop, deleters=deleters, gone=gone).run(reason=why)
            return checked(result, result.problem)

    def vacuum(
        self,
        *,
        dry_run: bool = False,
        l1_grace_s: float = L1_GRACE_MS / 1000,
        orphan_age_s: float = ORPHAN_AGE_MS / 1000,
        orphans: bool = True,
        max_objects: int | None = None,
        max_rate: float | None = None,
        keep_runs_s: float = KEEP_RUNS_S,
        record: bool = True,
        record_dir: Path | None = None,
        run_id: str | None = None,
        spark: SparkSession | Engine | None = None,
        progress: Progress = quiet,
        stop: threading.Event | None = None,
    ) -> VacuumResult:
        """Delete what else is garbage: dropped L1 objects, orphans, old records. As `l0gc vacuum`.

        Args:
            dry_run: delete nothing; the result has the numbers that the run would have.
            l1_grace_s: how long readers may go on with L1 objects that were merged or dropped.
            orphan_age_s: refuse what runs stamped so long ago and have not committed, and delete it.
            orphans: False to leave out the listing that finds orphans.
            max_objects: delete no more than this many.
            max_rate: delete no more than this many a second.
            keep_runs_s: remove the records of runs that are older than this.
            record: see `sweep`, and so for the others.
        """
        from l0gc.collect.vacuum import Vacuum
        from l0gc.streamlog.garbage import JournalGarbage

        wanted = Removal(
            dry_run=dry_run,
            l1_grace_ms=int(l1_grace_s * 1000),
            orphan_age_ms=int(orphan_age_s * 1000),
            orphans=orphans,
            keep_runs_ms=int(keep_runs_s * 1000),
            max_objects=max_objects,
            max_rate=max_rate,
            record=record,
            record_dir=record_dir,
            run_id=run_id or "",
        )
        handles, engine = self.handles(), Engine.of(spark)
        with RecordedAttempt(handles, "vacuum", whole=wanted.whole):
            source = None if handles.identity().external_log else JournalGarbage(handles)

            def named() -> int:
                if source is None:
                    return 0
                source.refresh()
                return source.objects

            limits = ONE_PROCESS if wanted.in_one_process else ""
            kind, _ = engine.choose(Work(named, "objects in L1", SPARK_FROM, limits=limits))
            with self._removing(engine, LOCAL if source is None else kind, progress) as (workers, deleters):
                result = Vacuum(handles, source, wanted, workers, stop=stop, deleters=deleters).run()
            return checked(result, result.problem)

    @contextmanager
    def _removing(self, engine: Engine, kind: str, progress: Progress) -> Iterator[tuple[Workers[Any], Executor]]:
        from l0gc.collect.run import DELETERS

        with (
            engine.workers(self.handles(), self._config, kind, progress) as workers,
            ThreadPoolExecutor(DELETERS) as deleters,
        ):
            yield workers, deleters


def sweep_work(eligible: Callable[[], int], *, limited: bool) -> Work:
    """How large a sweep is.

    Args:
        eligible: gives what the last scan saw as eligible, -1 without one.
        limited: whether there is a limit, or a record, that only one process can keep.
    """
    return Work(
        eligible,
        "objects were eligible at the last scan",
        SPARK_FROM,
        limits=ONE_PROCESS if limited else "",
        uncounted="the last compute-watermark did not count what is eligible",
    )


def _eligible(cluster: Handles) -> int:
    """How many objects the last computation of M found eligible; -1 without a scan."""
    published, _ = read_published(cluster.store, cluster.identity().cluster_id)
    return published.eligible_objects if published is not None else -1
