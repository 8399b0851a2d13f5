"""`l0gc vacuum`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from l0gc.cli import logs
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.run_options import bytes_that_stay, removal_options
from l0gc.cli.signals import stopping
from l0gc.cli.spark_options import OpenSpark, open_spark, spark_options
from l0gc.cli.sweep import give_memory_back
from l0gc.collect.attempts import RecordedAttempt
from l0gc.collect.garbage import KINDS, GarbageSource
from l0gc.collect.local import DELETERS
from l0gc.collect.plan import SPARK_FROM, Removal, needs_one_process, run_id
from l0gc.collect.vacuum import Vacuum, VacuumResult
from l0gc.errors import StoppedError
from l0gc.formatting import count, size, span
from l0gc.settings import Settings
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster

if TYPE_CHECKING:
    from l0gc.collect.vacuum import ScansElsewhere


@click.command("vacuum")
@click.option("--dry-run", is_flag=True, help="Delete nothing; print the numbers that the run would print.")
@removal_options("vacuum")
@spark_options
@common_options
@metrics_options
def command(
    settings: Settings,
    removal: Removal,
    engine: str,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Delete what else is garbage: replaced and expired L1 objects, orphans, old records.

    L0 objects are deleted by l0gc sweep, log entries by l0gc housekeep.

    \b
    Example:
      l0gc vacuum --dry-run
      l0gc vacuum --l1-grace 2h
    """
    with open_cluster(settings) as (cluster, store):
        spark = lambda defaults: open_spark(settings, "vacuum", master, (*defaults, *conf))  # noqa: E731
        run_vacuum(Output(settings), cluster, store, removal, spark, engine, master)


def run_vacuum(
    out: Output,
    cluster: Cluster,
    store: S3Store,
    removal: Removal,
    open_session: OpenSpark,
    engine: str,
    master: str | None,
) -> None:
    """Vacuum, and print the result.

    Raises after the result:
        StoppedError: the user stopped the run.
        PausedError: a pause ended it.
        PartialFailureError: objects could not be deleted, or journals not be read.
        EpochRegressionError: objects were left that may be of topics which the controller log has lost.
    """
    limited = removal.in_one_process
    if engine == "spark" and limited:
        raise needs_one_process()
    if not removal.run_id:
        removal = replace(removal, run_id=run_id(cluster.now_ms(), cluster.runtime.new_id()))
        logs.set_run_id(removal.run_id)
    signals: list[int] = []
    with RecordedAttempt(cluster, "vacuum", whole=removal.whole):
        result = _run(out, cluster, store, removal, open_session, engine, None if limited else master, signals)
        out.result(data_of(result), lines_of(result))
        if signals:
            raise StoppedError(
                "stopped; requests in progress are done, and another vacuum goes on from there", 128 + signals[0]
            )
        if result.problem is not None:
            raise result.problem


def _run(
    out: Output,
    cluster: Cluster,
    store: S3Store,
    removal: Removal,
    open_session: OpenSpark,
    engine: str,
    master: str | None,
    signals: list[int],
) -> VacuumResult:
    from l0gc.streamlog.garbage import JournalGarbage

    external = cluster.identity().external_log
    source = None if external else JournalGarbage(cluster)
    give_memory_back()

    def run(elsewhere: ScansElsewhere | None) -> VacuumResult:
        with out.progress("vacuuming") as show, ThreadPoolExecutor(DELETERS) as deleters:

            def progress(kind: str, objects: int, total: int) -> None:
                show(f"{kind}: {objects:,} deleted, {size(total)}", kind=kind, deleted=objects, bytes=total)

            vacuum = Vacuum(cluster, source, removal, elsewhere=elsewhere, progress=progress)
            try:
                with stopping(vacuum.stop.set, signals):
                    return vacuum.run(cluster.parallel, deleters)
            finally:
                if vacuum.result is not None:
                    out.measure(data_of(vacuum.result))

    if source is None or not _wants_spark(engine, master, source):
        return run(None)
    with open_session(()) as spark:
        from l0gc.spark.handles import ClusterAddress
        from l0gc.spark.vacuum_job import SparkOrphans
        from l0gc.spark.workers import SparkWorkers

        return run(SparkOrphans(cluster, SparkWorkers(spark, ClusterAddress(store.config))))


def _wants_spark(engine: str, master: str | None, source: GarbageSource) -> bool:
    """Whether orphans are searched for on Spark: if the user says so, or it is given a cluster and much to list."""
    if engine != "auto" or master is None or master.startswith("local"):
        return engine == "spark"
    source.refresh()
    return source.objects >= SPARK_FROM


def data_of(r: VacuumResult) -> dict[str, Any]:
    """The run, for `--json`."""
    t = r.tally
    return {
        "deleted": {kind: {"objects": d.objects, "bytes": d.bytes} for kind, d in r.deleted.items()},
        "objects": t.deleted,
        "bytes": t.bytes,
        "failed": t.failed,
        "dry_run": r.dry_run,
        "fence": r.fence if r.fence >= 0 else None,
        "listed": r.scanned.listed,
        "unparsable": r.scanned.unparsable,
        "unparsable_samples": r.scanned.samples,
        "unknown": r.scanned.unknown,
        "unknown_folders": r.scanned.unknown_folders,
        "l1": {
            "live_objects": r.amounts.live_objects,
            "live_bytes": r.amounts.live_bytes,
            "dropped_objects": r.amounts.dropped_objects,
            "dropped_bytes": r.amounts.dropped_bytes,
        },
        "oldest_dropped_age_s": r.oldest_dropped_age_s,
        "requests": {"list": r.scanned.requests, "delete": t.delete_requests},
        "throttled": r.throttled,
        "backpressure_seconds": round(r.backpressure_s, 3),
        "failures": [{"key": f.key, "code": f.code, "message": f.message} for f in t.failures],
        "broken": list(r.broken),
        "damaged": list(r.damaged),
        "versioning": r.plan.versioning,
        "engine": r.engine,
        "stopped": r.stopped,
        "paused": r.paused,
        "seconds": round(r.seconds, 3),
        "run_id": r.run_id,
    }


def lines_of(r: VacuumResult) -> list[str]:
    """The run as text."""
    t = r.tally
    would = "would be deleted" if r.dry_run else "deleted"
    lines = [f"{count(t.deleted, 'object')} ({size(t.bytes)}) {would} in {r.seconds:.1f} s"]
    lines += [f"  {d.objects:,} {KINDS[kind]} ({size(d.bytes)})" for kind, d in r.deleted.items() if d.objects]
    if r.fence >= 0:
        listed = count(r.scanned.listed, "object")
        lines.append(f"orphans were stamped below epoch {r.fence}, and no journal names them; {listed} listed")
    if r.oldest_dropped_age_s is not None and not t.paused:
        lines.append(
            f"the oldest object that waits for its grace was dropped {span(1000 * r.oldest_dropped_age_s)} ago (--l1-grace)"
        )
    if r.plan.paused:
        lines.append(f"deletions are paused, so a run would delete nothing: {r.plan.paused}")
    if r.scanned.unparsable:
        keys = count(r.scanned.unparsable, "key is not an L1 key and stays", "keys are not L1 keys and stay")
        lines.append(f"{keys}, e.g. {r.scanned.samples[0]}")
    if t.deleted:
        lines += bytes_that_stay(r.plan)
    return lines
