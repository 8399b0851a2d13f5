"""`l0gc vacuum`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.cli import logs
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import Duration, common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.run_options import (
    ENGINES,
    bytes_that_stay,
    max_objects_option,
    max_rate_option,
    no_record_option,
    record_dir_option,
)
from l0gc.cli.signals import stopping
from l0gc.cli.spark_options import OpenSpark, open_spark, spark_options
from l0gc.cli.sweep import give_memory_back
from l0gc.collect.attempts import LastRun
from l0gc.collect.garbage import KINDS, GarbageSource
from l0gc.collect.local import DELETERS
from l0gc.collect.plan import SPARK_FROM, needs_one_process, run_id
from l0gc.collect.runs import KEEP_RUNS_S
from l0gc.collect.vacuum import Vacuum, VacuumResult
from l0gc.collect.vacuum_plan import L1_GRACE_MS, ORPHAN_AGE_MS, VacuumOptions
from l0gc.errors import StoppedError
from l0gc.formatting import count, size, span
from l0gc.settings import Settings
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster

if TYPE_CHECKING:
    from l0gc.collect.vacuum import ScansElsewhere

_SAYS: Final = {
    "dropped_l1": "L1 objects that were merged, expired or of deleted topics",
    "dropped_index": "index objects that others have taken the place of",
    "orphaned_l1": "L1 objects that no journal ever named",
    "orphaned_index": "index objects that no journal ever named",
    "run_records": "objects of old run records",
    "scan_snapshots": "old scan snapshots",
}
_AGES: Final = [
    click.option(
        "--l1-grace", type=Duration(), default=f"{L1_GRACE_MS // 3_600_000}h", show_default=True,
        help="How long readers may go on with L1 objects that were merged or dropped.",
    ),
    click.option(
        "--orphan-age", type=Duration(), default=f"{ORPHAN_AGE_MS // 3_600_000}h", show_default=True,
        help="Refuse what runs stamped so long ago and have not committed, and delete it.",
    ),
    click.option(
        "--keep-runs", type=Duration(), default=f"{KEEP_RUNS_S // 86400}d", show_default=True,
        help="Remove records of runs older than this.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ages:
    """How old what is, in seconds, before it goes."""

    l1_grace: int
    orphan_age: int
    keep_runs: int

    def options(self, **more: Any) -> VacuumOptions:
        """The same as options of a vacuum, with `more` of them."""
        return VacuumOptions(
            l1_grace_ms=self.l1_grace * 1000,
            orphan_age_ms=self.orphan_age * 1000,
            keep_runs_ms=self.keep_runs * 1000,
            **more,
        )


def ages(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options that say how old what is before it goes; it gets them as one `Ages`."""
    names = [f.name for f in fields(Ages)]

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return command(*args, ages=Ages(**{name: kwargs.pop(name) for name in names}), **kwargs)

    for option in reversed(_AGES):
        wrapped = option(wrapped)
    return wrapped


@click.command("vacuum")
@click.option("--dry-run", is_flag=True, help="Delete nothing; print the numbers that the run would print.")
@ages
@max_objects_option
@max_rate_option
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="Where orphans are searched for; auto takes a Spark cluster, if one is given, for a million objects and more.",
)
@record_dir_option
@no_record_option
@spark_options
@common_options
@metrics_options
def command(
    settings: Settings,
    dry_run: bool,
    ages: Ages,
    max_objects: int | None,
    max_rate: float | None,
    engine: str,
    record_dir: Path | None,
    no_record: bool,
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
    options = ages.options(
        dry_run=dry_run,
        max_objects=max_objects,
        max_rate=max_rate,
        record_dir=record_dir,
        record=not no_record,
    )
    with open_cluster(settings) as (cluster, store):
        spark = lambda defaults: open_spark(settings, "vacuum", master, (*defaults, *conf))  # noqa: E731
        run_vacuum(Output(settings), cluster, store, options, spark, engine, master)


def run_vacuum(
    out: Output,
    cluster: Cluster,
    store: S3Store,
    options: VacuumOptions,
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
    limited = options.max_objects is not None or options.record_dir is not None or not options.record
    if engine == "spark" and limited:
        raise needs_one_process()
    if options.run_id is None:
        options = replace(options, run_id=run_id(cluster.now_ms(), cluster.runtime.new_id()))
        logs.set_run_id(options.run_id or "")
    signals: list[int] = []
    with LastRun(cluster, "vacuum", whole=not options.dry_run):
        result = _run(out, cluster, store, options, open_session, engine, None if limited else master, signals)
        out.result(data_of(result), lines_of(result, options))
        if signals:
            raise StoppedError(
                "stopped; what was under way is done, and another vacuum goes on from there", 128 + signals[0]
            )
        if result.problem is not None:
            raise result.problem


def _run(
    out: Output,
    cluster: Cluster,
    store: S3Store,
    options: VacuumOptions,
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

            vacuum = Vacuum(cluster, source, options, elsewhere=elsewhere, progress=progress)
            try:
                with stopping(vacuum.stop.set, signals):
                    return vacuum.run(cluster.parallel, deleters)
            finally:
                if vacuum.result is not None:
                    out.measure(data_of(vacuum.result))

    if source is None or not _wants_spark(engine, master, source):
        return run(None)
    with open_session(()) as spark:
        from l0gc.spark.vacuum_job import SparkOrphans

        return run(SparkOrphans.of(cluster, spark, store.config))


def _wants_spark(engine: str, master: str | None, source: GarbageSource) -> bool:
    """Whether orphans are searched for on Spark: if the user says so, or it is given a cluster and much to list."""
    if engine != "auto" or master is None or master.startswith("local"):
        return engine == "spark"
    source.look()
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


def lines_of(r: VacuumResult, options: VacuumOptions) -> list[str]:
    """The run, for people."""
    t = r.tally
    would = "would be deleted" if r.dry_run else "deleted"
    lines = [f"{count(t.deleted, 'object')} ({size(t.bytes)}) {would} in {r.seconds:.1f} s"]
    lines += [f"  {d.objects:,} {_SAYS[kind]} ({size(d.bytes)})" for kind in KINDS if (d := r.deleted[kind]).objects]
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
        keys = count(r.scanned.unparsable, "key is no L1 key and stays", "keys are no L1 keys and stay")
        lines.append(f"{keys}, e.g. {r.scanned.samples[0]}")
    if t.deleted:
        lines += bytes_that_stay(r.plan.versioning, options, "" if r.dry_run else r.run_id)
    return lines
