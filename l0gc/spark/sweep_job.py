"""sweep on Spark: each task sweeps a range of shards with `collect/sweeper.py`; the driver gets counts only.

A task that is run again, because its executor died, scans its range anew; what the dead one deleted is gone from the
listing, and on record. The driver counts that from the record, so the totals say what the run deleted, whichever task
did it. A run that is stopped is settled in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import SparkSession

from l0gc.collect.local import SweepResult
from l0gc.collect.pacing import Pacer
from l0gc.collect.plan import Removal, needs_one_process, plan_sweep
from l0gc.collect.remover import Tally
from l0gc.collect.run_end import ending
from l0gc.collect.runs import deleted_on_record
from l0gc.collect.sweeper import Sweeper
from l0gc.collect.uploads import abort_uploads
from l0gc.decoding import json_decoder
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import StoreError
from l0gc.keys import RUNS
from l0gc.runtime import Runtime
from l0gc.spark.remote import JOB_ERRORS, cause_of, store_from_options, store_options
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Inline
from l0gc.watermark.source import ClusterHandle

if TYPE_CHECKING:
    import pyarrow as pa

_TASKS_PER_SLOT: Final = 4
_DELETERS: Final = 4
"""Threads that delete, of one task; it scans in its own."""

_LOOK_EVERY_S: Final = 1.0

_TALLY: Final = json_decoder(Tally)


class SparkSweep:
    """One run.

    Args:
        config: where the bucket is, as the executors see it.
        progress: called every second with how many of how many ranges of shards are done.
    """

    def __init__(
        self,
        cluster: ClusterHandle,
        config: StoreConfig,
        wanted: Removal | None = None,
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._cluster, self._config, self._progress = cluster, config, progress
        self._wanted = wanted or Removal()
        self._spark: SparkSession | None = None
        self._stop = threading.Event()
        self.result: SweepResult | None = None
        """As of `LocalSweep`."""

    def stop(self) -> None:
        """End the run: the tasks are cancelled, and what they deleted is counted from the record."""
        self._stop.set()
        if self._spark is not None:
            self._spark.sparkContext.cancelAllJobs()

    def run(self, spark: SparkSession) -> SweepResult:
        """Sweep; raises what `LocalSweep.run` raises.

        Raises:
            UsageError: a limit or another record is wanted, which only one process can keep.
        """
        cluster = self._cluster
        began = cluster.runtime.clock.monotonic()
        plan = plan_sweep(cluster, self._wanted)
        result = self.result = SweepResult(plan, "spark")
        if plan.in_one_process:
            raise needs_one_process()
        if plan.watermark == NO_WATERMARK:
            return result
        self._spark = spark
        with ending(cluster, None if plan.dry_run else cluster.store, result, began):
            try:
                self._sweep(spark, plan, result)
                if not result.tally.paused:
                    result.uploads = abort_uploads(cluster.store, plan, self._stop)
            except Exception:
                with suppress(StoreError):  # the error that ended the run is the one to report
                    _settle(cluster, result, set())
                raise
            finally:
                result.stopped = self._stop.is_set() or result.tally.paused != ""
        return result

    def _sweep(self, spark: SparkSession, plan: Removal, result: SweepResult) -> None:
        slots = spark.sparkContext.defaultParallelism
        # A rate can be shared out among as many tasks as there are, however many of them run at once, and no more.
        ranges = plan.ranges(slots * (_TASKS_PER_SLOT if plan.max_rate is None else 1))
        if plan.max_rate is not None:
            plan = msgspec.structs.replace(plan, max_rate=plan.max_rate / len(ranges))
        tasks = spark.range(0, len(ranges), 1, len(ranges))
        reported: set[str] = set()
        try:
            rows = tasks.mapInArrow(_task(store_options(self._config), plan, ranges), "worker string, tally binary")
            with following(spark, len(ranges), self._follow):
                for row in rows.collect() if not self._stop.is_set() else ():
                    result.tally.add(_TALLY.decode(row.tally))
                    reported.add(row.worker)
        except JOB_ERRORS as e:
            if not self._stop.is_set():
                raise cause_of(e) from e
        _settle(self._cluster, result, reported)

    def _follow(self, done: int, total: int) -> None:
        if self._stop.is_set():
            self.stop()  # once more: while the job was about to begin there was nothing to cancel
        self._progress(done, total)


@contextmanager
def following(spark: SparkSession, total: int, progress: Callable[[int, int], None]) -> Iterator[None]:
    """Report how many tasks of the job that runs inside the block have ended, by Spark's own count."""
    ended = threading.Event()

    def follow() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(_LOOK_EVERY_S):
            with suppress(*JOB_ERRORS):  # if Java has gone, the job says so
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                progress(sum(s.numCompletedTasks for s in stages if s is not None), total)

    thread = threading.Thread(target=follow, name="l0gc-follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _settle(cluster: ClusterHandle, result: SweepResult, reported: set[str]) -> None:
    """Count what was deleted by workers that did not report: those whose names are not among `reported`."""
    plan, tally = result.plan, result.tally
    if plan.dry_run:
        return
    segments = cluster.store.list(f"{RUNS}{plan.run_id}/").modified_ms
    if all(any(f"-{worker}-" in key for worker in reported) for key in segments):
        return
    deleted, size = deleted_on_record(cluster, plan.run_id)
    unreported = deleted - tally.deleted
    tally.deleted, tally.bytes = deleted, size
    tally.counts.listed += unreported
    tally.counts.eligible += unreported


@lru_cache(maxsize=1)
def pacer_of(run_id: str, max_rate: float | None) -> Pacer:
    """The pace of this executor's process, which does one task after another."""
    return Pacer(Runtime(), max_rate)


def _task(options: dict[str, str], plan: Removal, ranges: list[tuple[int, int]]) -> Any:
    def sweep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        numbers = [n for batch in batches for n in batch.column("id").to_pylist()]
        if not numbers:
            return
        context = TaskContext.get()
        assert context is not None
        worker = f"task{context.taskAttemptId():08}"
        store, tally = store_from_options(options), Tally()
        with ThreadPoolExecutor(_DELETERS) as deleters:
            for n in numbers:
                sweeper = Sweeper(
                    store,
                    Runtime(),
                    msgspec.structs.replace(plan, started_ms=store.now_ms()),
                    worker=f"{worker}-{n:05}",
                    deleters=deleters,
                    records=None if plan.dry_run else store,
                    pacer=pacer_of(plan.run_id, plan.max_rate),
                )
                tally.add(sweeper.run([ranges[n]], Inline()))
        yield pa.RecordBatch.from_pydict(
            {"worker": [worker], "tally": [msgspec.json.encode(tally)]},
            pa.schema([pa.field("worker", pa.string()), pa.field("tally", pa.binary())]),
        )

    return sweep
