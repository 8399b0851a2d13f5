"""`l0gc compute-watermark`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from l0gc.cli import logs
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output, epoch, held_back
from l0gc.cli.signals import telling_stop
from l0gc.cli.spark_options import OpenSpark, open_spark, spark_options, telling_tasks
from l0gc.cli.units import Duration
from l0gc.collect.attempts import LastRun
from l0gc.errors import CorruptObjectError, ObjectNotFoundError, UsageError
from l0gc.formatting import count, size, span
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark.source import HELD_BACK_SHOWN

if TYPE_CHECKING:
    from l0gc.storage.workers import Workers
    from l0gc.watermark.external_files import ExternalFiles
    from l0gc.watermark.external_log import ExternalLog
    from l0gc.watermark.inventory import Inventory
    from l0gc.watermark.pipeline import WatermarkResult
    from l0gc.watermark.scans import ScanSnapshot, ScanTotals

_HELD_LINES: Final = 3
SPARK: Final = "spark"
LOCAL: Final = "local"

_PLAIN = ("spark.sql.adaptive.enabled=false",)
"""The jobs collect a few rows once; there is nothing to adapt, and trying costs a small run a second."""

_EXTERNAL: Final = ("cluster_epoch", "snapshot_age", "expect_partitions")
_ALLOWED: Final = ("allow_no_partitions", "allow_fewer_partitions", "allow_unlisted_reports")


@click.command("compute-watermark")
@click.option("--scan/--no-scan", default=True, show_default=True, help="Read the listing, too: what is eligible.")
@click.option("--inventory", metavar="MANIFEST", help="Read an S3 Inventory instead of the listing: manifest.json.")
@click.option("--dry-run", is_flag=True, help="Compute M and write nothing.")
@click.option(
    "--engine",
    type=click.Choice([SPARK, LOCAL]),
    default=SPARK,
    show_default=True,
    help="Where the reading is done; local needs no Java, and suits small buckets.",
)
@click.option("--reports", metavar="PATH", help="Another system's reports: Parquet, CSV or NDJSON; local or s3://.")
@click.option("--partitions", metavar="PATH", help="That system's partitions, as of one snapshot.")
@click.option("--cluster-epoch", type=click.IntRange(0), metavar="E", help="That system's epoch at that snapshot.")
@click.option("--snapshot-age", type=Duration(), help="How old that snapshot is at most.  [default: 1h]")
@click.option(
    "--expect-partitions",
    type=click.IntRange(0),
    metavar="N",
    help="That system has N partitions. Without this, a folder has to hold _SUCCESS.",
)
@click.option("--allow-no-partitions", is_flag=True, help="That system has no partitions: all up to E may go.")
@click.option("--allow-fewer-partitions", is_flag=True, help="That system has deleted partitions since the last run.")
@click.option("--allow-unlisted-reports", is_flag=True, help="There are reports of partitions that are gone.")
@spark_options
@common_options
@metrics_options
def command(
    settings: Settings,
    scan: bool,
    inventory: str | None,
    dry_run: bool,
    engine: str,
    master: str | None,
    conf: tuple[str, ...],
    **theirs: Any,
) -> None:
    """Compute M from the journals, count what the bucket holds, and publish M, on Spark.

    With --reports and --partitions, M is computed for a system with an external log (l0gc init --external-log).

    \b
    Example:
      l0gc compute-watermark
      l0gc compute-watermark --no-scan --engine local --json
      l0gc compute-watermark --inventory s3://inventories/my-bucket/daily/2026-11-20T01-00Z/manifest.json
      l0gc compute-watermark --reports reports/ --partitions partitions.csv --cluster-epoch 4711
    """
    files = _external_files(**theirs)
    if inventory is not None and not scan:
        raise UsageError("--inventory is read instead of the listing, and --no-scan reads neither: give one of the two")
    with open_cluster(settings) as (cluster, store):

        def open_store(url: str) -> S3Store:
            place = {"endpoint_url": settings.endpoint_url, "region": settings.region, "profile": settings.profile}
            return S3Store(StoreConfig.from_url(url, **place))

        run_compute_watermark(
            Output(settings),
            cluster,
            store.config,
            lambda defaults: open_spark(settings, "compute-watermark", master, (*defaults, *conf)),
            scan=scan,
            inventory=inventory,
            dry_run=dry_run,
            engine=engine,
            read_external=None if files is None else lambda: files.read(open_store, cluster.parallel),
        )


def _external_files(reports: str | None, partitions: str | None, **more: Any) -> ExternalFiles | None:
    """Where another system's files are; None if none are given."""
    if (reports is None) != (partitions is None):
        raise UsageError("--reports and --partitions belong together")
    if reports is None or partitions is None:
        given = [n for n in _EXTERNAL if more[n] is not None] + [n for n in _ALLOWED if more[n]]
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} belongs to --reports and --partitions")
        return None
    from l0gc.watermark.external_files import ExternalFiles

    age = more.pop("snapshot_age")
    if age is not None:
        more["snapshot_age_ms"] = age * 1000
    return ExternalFiles(reports, partitions, **more)


def run_compute_watermark(
    out: Output,
    cluster: Cluster,
    config: StoreConfig,
    open_session: OpenSpark,
    *,
    scan: bool = True,
    inventory: str | None = None,
    dry_run: bool = False,
    engine: str = SPARK,
    read_external: Callable[[], ExternalLog] | None = None,
) -> None:
    """Compute M, and print the result.

    Args:
        inventory: the manifest of the inventory that is read instead of the listing.
        read_external: reads what a system with an external log exports; None for l0gc's journals.
    """
    from l0gc.storage.workers import LocalWorkers
    from l0gc.watermark.pipeline import check_kind

    with (
        telling_stop(lambda: f"M is published whole or not at all; run l0gc {logs.running('compute-watermark')} again"),
        LastRun(cluster, "compute-watermark", whole=not dry_run),
        out.progress("computing M") as show,
    ):
        # What is wrong with the arguments is said before Spark starts.
        check_kind(cluster.identity(), external=read_external is not None)
        manifest = _inventory(config, inventory)
        external = read_external() if read_external is not None else None

        def run(workers: Workers[Cluster]) -> WatermarkResult:
            return _run(cluster, config, workers, external, manifest, scan=scan, dry_run=dry_run)

        if engine == LOCAL or (external is not None and not scan):
            result = run(LocalWorkers(cluster))
        else:
            began = time.monotonic()
            with open_session(_PLAIN) as spark, telling_tasks(spark, show) as say:
                from l0gc.spark.handles import ClusterAddress
                from l0gc.spark.workers import SparkWorkers

                started = time.monotonic() - began
                say("reading the journals and the listing" if scan else "reading the journals")
                result = run(SparkWorkers(spark, ClusterAddress(config)))
            result.seconds["spark"] = started
    print_result(out, result)


def _run(
    cluster: Cluster,
    config: StoreConfig,
    workers: Workers[Cluster],
    external: ExternalLog | None,
    inventory: Inventory | None,
    *,
    scan: bool,
    dry_run: bool,
) -> WatermarkResult:
    from l0gc.streamlog.epoch_source import JournalSource
    from l0gc.streamlog.journal.summary import READERS
    from l0gc.watermark.external_log import ExternalLogSource
    from l0gc.watermark.inventory_scan import InventoryScan
    from l0gc.watermark.listing import BucketScan, ListingScan
    from l0gc.watermark.pipeline import EpochSource, Pipeline

    journals = JournalSource(cluster, workers, readers=READERS)
    source: EpochSource = ExternalLogSource(cluster, external) if external is not None else journals
    read: BucketScan | None = None
    if inventory is not None:
        read = InventoryScan(workers, config, inventory)
    elif scan:
        read = ListingScan(workers)
    return Pipeline(cluster, source, read).run(dry_run=dry_run)


def _inventory(config: StoreConfig, url: str | None) -> Inventory | None:
    """What the manifest says, if there is one; it is read with the cluster's credentials."""
    if url is None:
        return None
    from l0gc.watermark.inventory import read_inventory

    def read(url: str) -> bytes | None:
        if not url.startswith("s3://"):
            try:
                return Path(url).read_bytes() if Path(url).is_file() else None
            except OSError as e:
                raise CorruptObjectError(f"{url} cannot be read: {e.strerror or e}") from e
        bucket, _, key = url.removeprefix("s3://").partition("/")
        try:
            return S3Store(replace(config, bucket=bucket, prefix="")).get(key).body
        except ObjectNotFoundError:
            return None

    return read_inventory(url, config.bucket, read)


def print_result(out: Output, result: WatermarkResult) -> None:
    """The result of a compute-watermark run."""
    listing = result.listing
    data: dict[str, Any] = {
        "watermark": result.watermark,
        "previous_watermark": result.previous_watermark,
        "cluster_epoch": result.cluster_epoch,
        "partitions": result.partitions,
        "held_back_by": [msgspec.structs.asdict(h) for h in result.held_back_by],
        "unreadable": [u._asdict() for u in result.unreadable],
        "listing": None,
        "published": result.published,
        "scan": (result.kept.key or None) if result.kept is not None else None,
        "seconds": {name: round(seconds, 3) for name, seconds in result.seconds.items()},
    }
    lines = [
        f"M = {epoch(result.watermark)} (was {epoch(result.previous_watermark)}), cluster epoch {result.cluster_epoch}, "
        f"{count(result.partitions, 'partition')}{'' if result.published else '; not published'}"
    ]
    if listing is not None:
        data["listing"] = _listing_data(listing)
        lines += _listing_lines(listing)
    cut = len(result.held_back_by) == HELD_BACK_SHOWN
    lines += [f"held back by {line}" for line in held_back(result.held_back_by, cut=cut)]
    if out.verbose:
        lines.append("seconds: " + ", ".join(f"{name} {s:.1f}" for name, s in result.seconds.items()))
    out.result(data, lines)
    for u in result.unreadable:
        out.note(f"{u.unit} cannot be read, so M does not pass it: {u.error}", "unreadable", unit=u.unit)
    if result.kept is not None and result.kept.error:
        out.note(f"M is published, but the scan snapshot could not be written: {result.kept.error}")


def _listing_data(scan: ScanSnapshot) -> dict[str, Any]:
    t = scan.totals
    return {
        "source": t.source,
        "taken_ms": t.taken_ms,
        "objects": t.objects,
        "bytes": t.bytes,
        "eligible_objects": t.eligible_objects,
        "eligible_bytes": t.eligible_bytes,
        "oldest_eligible_age_s": _age_s(t, t.oldest_eligible_ms),
        "oldest_held_age_s": _age_s(t, t.oldest_held_ms),
        "unparsable": t.unparsable,
        "unparsable_samples": t.unparsable_samples,
        "noncurrent_objects": t.noncurrent_objects,
        "noncurrent_bytes": t.noncurrent_bytes,
        "epochs": [msgspec.structs.asdict(r) for r in scan.epochs],
    }


def _listing_lines(scan: ScanSnapshot) -> list[str]:
    t = scan.totals
    lines = [
        f"L0 holds {count(t.objects, 'object')} ({size(t.bytes)}); eligible now: "
        f"{t.eligible_objects:,} ({size(t.eligible_bytes)}{_oldest(t, t.oldest_eligible_ms)})"
    ]
    held: dict[tuple[str, int], tuple[int, int, int]] = {}
    for r in scan.epochs:
        if r.epoch is not None and r.epoch > t.watermark:
            objects, so_far, oldest = held.get((r.held_by, r.holders), (0, 0, r.oldest_ms))
            held[r.held_by, r.holders] = objects + r.objects, so_far + r.bytes, min(oldest, r.oldest_ms)
    most = sorted(held.items(), key=lambda item: -item[1][1])
    for (held_by, holders), (objects, so_far, oldest) in most[:_HELD_LINES]:
        others = f" and {holders - 1:,} more" if holders > 1 else ""
        by = f"by {held_by}{others}" if held_by else "until the next run (newer than the snapshot)"
        lines.append(f"held {by}: {count(objects, 'object')} ({size(so_far)}{_oldest(t, oldest or None)})")
    if rest := most[_HELD_LINES:]:
        objects, so_far = sum(n for _, (n, _, _) in rest), sum(n for _, (_, n, _) in rest)
        lines.append(f"held by others: {count(objects, 'object')} ({size(so_far)}; --json has them)")
    if t.unparsable:
        lines.append(f"{count(t.unparsable, 'unrecognized key')}, never deleted, for example:")
        lines += [f"  {key}" for key in t.unparsable_samples]
    if t.noncurrent_objects:
        versions = count(t.noncurrent_objects, "noncurrent version")
        lines.append(f"not included above, but billed: {versions} ({size(t.noncurrent_bytes)})")
    if t.source != "listing":
        age = t.run_ms - t.taken_ms
        made = f"made {span(age)} ago" if age else "of unknown age"
        lines.append(f"counted from an {t.source} {made}, not from the bucket as it is now")
    return lines


def _age_s(t: ScanTotals, written_ms: int | None) -> float | None:
    """How old that was when the bucket was so, by the store's clock."""
    return None if written_ms is None else max(0, t.taken_ms - written_ms) / 1000


def _oldest(t: ScanTotals, written_ms: int | None) -> str:
    age = _age_s(t, written_ms)
    return "" if age is None else f", oldest {span(age * 1000)}"
