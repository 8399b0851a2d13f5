"""`l0gc sweep`."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import click
from msgspec.structs import replace

from l0gc.cli import logs
from l0gc.cli.files import ObjectLines
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import FILE, common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.run_options import removal_options
from l0gc.cli.signals import stopping
from l0gc.cli.spark_options import OpenSpark, open_spark, spark_options
from l0gc.cli.sweep_text import data_of, lines_of
from l0gc.collect.attempts import RecordedAttempt
from l0gc.collect.local import DELETERS, SCANNERS, LocalSweep, SweepResult
from l0gc.collect.plan import Removal, choose_engine, run_id
from l0gc.collect.sweeper import SweepProgress
from l0gc.errors import StoppedError, UsageError
from l0gc.events import Progress
from l0gc.formatting import count, size
from l0gc.settings import Settings
from l0gc.storage.s3 import S3Store
from l0gc.watermark.publication import read_published
from l0gc.watermark.source import ClusterHandle

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3
_MMAP_BYTES: Final = 128 << 10


class ShardRange(click.ParamType[tuple[int, int]]):
    """`000-249`, or one shard; the first and the last."""

    name = "shards"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        m = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", str(value).strip())
        if m is None or int(m[2] or m[1]) < int(m[1]):
            self.fail(f"{value!r} is not a range of shards; use for example 000-249 or 7", param, ctx)
        return int(m[1]), int(m[2] or m[1])


@click.command("sweep")
@click.option("--dry-run", is_flag=True, help="Delete nothing; print the numbers that the run would print.")
@removal_options("sweep")
@click.option("--shards", type=ShardRange(), metavar="FIRST-LAST", help="Sweep these shards only, e.g. 000-249.")
@click.option("--purge-versions", is_flag=True, help="Remove every version of what is deleted, for good.")
@click.option(
    "--list",
    "listed",
    type=FILE,
    metavar="FILE",
    help="With --dry-run: write what would be deleted there (key, epoch, bytes, time), - for stdout.",
)
@spark_options
@common_options
@metrics_options
def command(
    settings: Settings,
    removal: Removal,
    engine: str,
    listed: str | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Delete the L0 objects whose epoch is at or below the published watermark M.

    \b
    Example:
      l0gc sweep --dry-run
      l0gc sweep --min-age 1h --max-rate 3000
      l0gc sweep --dry-run --list - | head
      l0gc sweep --record-dir /var/lib/l0gc     # the store is full
    """
    if listed is not None and not removal.dry_run:
        raise UsageError(
            "--list writes what would be deleted, so it belongs to --dry-run; of a run, see l0gc runs show"
        )
    if listed == "-" and settings.json:
        raise UsageError("--list - writes to stdout, and so does --json: name a file for one of them")
    with open_cluster(settings) as (cluster, store):
        spark = lambda defaults: open_spark(settings, "sweep", master, (*defaults, *conf))  # noqa: E731
        limited = removal.in_one_process or listed is not None
        engine, why = choose_engine(engine, master, lambda: eligible(cluster), limited=limited)
        run_sweep(Output(settings), cluster, store, removal, spark, engine, why, listed)


def run_sweep(
    out: Output,
    cluster: ClusterHandle,
    store: S3Store,
    removal: Removal,
    open_session: OpenSpark,
    engine: str,
    why: str,
    listed: str | None = None,
) -> None:
    """Sweep with the engine that was chosen, and print the result.

    Args:
        listed: the file that a dry run lists the objects in, - for stdout; the result is then a note.

    Raises what `_raise_what_went_wrong` raises, after the result.
    """
    if not removal.run_id:
        removal = replace(removal, run_id=run_id(cluster.now_ms(), cluster.runtime.new_id()))
        logs.set_run_id(removal.run_id)
    signals: list[int] = []
    with RecordedAttempt(cluster, "sweep", whole=removal.whole):
        if engine == "local":
            result = _local(out, cluster, removal, signals, listed)
        else:
            out.note(f"the spark engine sweeps: {why}")
            result = _spark(out, cluster, store, removal, signals, open_session)
        if listed == "-":
            for line in lines_of(result):
                out.note(line)
        else:
            out.result(data_of(result, why), lines_of(result))
        _raise_what_went_wrong(result, signals)


def eligible(cluster: ClusterHandle) -> int:
    """How many objects the last computation of M found eligible; -1 without a scan."""
    published, _ = read_published(cluster.store, cluster.identity().cluster_id)
    return published.eligible_objects if published is not None else -1


def give_memory_back() -> None:
    """Have glibc's malloc keep less than it would: an arena for each of a dozen threads, and what pages came in.

    Its threshold for separate mappings grows with each large block that is freed, unless it is set.
    """
    with suppress(OSError, AttributeError):  # another C library has no such call
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_ARENA_MAX, 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def _local(
    out: Output, cluster: ClusterHandle, removal: Removal, signals: list[int], listed: str | None
) -> SweepResult:
    give_memory_back()
    with ExitStack() as stack:
        gone = None
        if listed is not None:
            gone = stack.enter_context(ObjectLines.to(None if listed == "-" else Path(listed))).found
        show = stack.enter_context(out.progress("sweeping"))
        deleters = stack.enter_context(ThreadPoolExecutor(DELETERS))
        sweep = LocalSweep(cluster, removal, progress=_reporter(show), gone=gone or (lambda objects: None))
        stack.enter_context(_measured(out, sweep))
        stack.enter_context(stopping(sweep.stop.set, signals))
        # In one range, the list is in the order of keys.
        return sweep.run(cluster.parallel, SCANNERS if listed is None else 1, deleters)


def _spark(
    out: Output,
    cluster: ClusterHandle,
    store: S3Store,
    removal: Removal,
    signals: list[int],
    open_session: OpenSpark,
) -> SweepResult:
    with out.progress("sweeping") as show, open_session(()) as spark:
        from l0gc.spark.sweep_job import SparkSweep

        sweep = SparkSweep(cluster, store.config, removal, progress=_task_reporter(show))
        with _measured(out, sweep), stopping(sweep.stop, signals):
            return sweep.run(spark)


class _Sweep(Protocol):
    result: SweepResult | None


@contextmanager
def _measured(out: Output, sweep: _Sweep) -> Iterator[None]:
    """Give the metrics what a sweep did, also one that fails."""
    try:
        yield
    finally:
        if sweep.result is not None:
            t = sweep.result.tally
            more = {
                "cluster_epoch": sweep.result.plan.cluster_epoch,
                "highest_deleted_epoch": t.highest_deleted_epoch,
                "list_errors": t.counts.errors,
                "delete_errors": t.delete_errors,
            }
            out.measure(data_of(sweep.result, "") | more)


def _reporter(show: Progress) -> Callable[[SweepProgress], None]:
    """Shows what is deleted, request by request, of what the last scan saw as eligible."""

    def report(p: SweepProgress) -> None:
        text = f"{p.deleted:,} deleted, {size(p.bytes)}, shard {p.shard}"
        if p.expected >= p.deleted:
            text = f"{p.deleted:,} of {count(p.expected, 'object')} deleted, {size(p.bytes)}, shard {p.shard}"
        if p.rate is not None:
            text += f", held to {p.rate:,.0f}/s"
        total = p.expected if p.expected >= p.deleted else None
        fields = {"deleted": p.deleted, "bytes": p.bytes, "listed": p.listed, "shard": p.shard, "rate": p.rate}
        show(text, done=p.deleted, total=total, **fields)

    return report


def _task_reporter(show: Progress) -> Callable[[int, int], None]:
    """The same for a sweep on Spark, whose executors report what they have deleted when a task ends."""
    return lambda done, total: show(f"{done} of {count(total, 'range')} of shards", done=done, total=total)


def _raise_what_went_wrong(r: SweepResult, signals: list[int]) -> None:
    """Raise what is printed after the totals, and sets the exit code.

    Raises:
        StoppedError: the user stopped the run.
        PausedError: a pause ended it.
        SafetyError: more was eligible than the share that may go.
        PartialFailureError: objects could not be deleted.
    """
    if signals:
        raise StoppedError(
            "stopped; requests in progress are done, and another sweep goes on from there", 128 + signals[0]
        )
    if r.problem is not None:
        raise r.problem
