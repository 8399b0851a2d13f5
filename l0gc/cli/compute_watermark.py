"""`l0gc compute-watermark`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import Duration, common_options, open_cluster
from l0gc.cli.output import Output, epoch, held_back
from l0gc.cli.spark_options import OpenSpark, open_spark, spark_options
from l0gc.collect.attempts import Noted
from l0gc.errors import CorruptObjectError, ObjectNotFoundError, UsageError
from l0gc.figures import count, size, span
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark.compute import HELD_BACK_SHOWN

if TYPE_CHECKING:
    from l0gc.watermark.external_log import ExternalLog
    from l0gc.watermark.inventory import Inventory
    from l0gc.watermark.job import WatermarkResult
    from l0gc.watermark.scans import ScanSnapshot, ScanTotals

_HELD_LINES: Final = 3

_PLAIN = ("spark.sql.adaptive.enabled=false",)
"""The jobs bring a few rows together once; there is nothing to adapt, and trying costs a small run a second."""


@click.command("compute-watermark")
@click.option("--scan/--no-scan", default=True, show_default=True, help="Read the listing, too: what is eligible.")
@click.option("--inventory", metavar="MANIFEST", help="Read an S3 Inventory in the listing's place: manifest.json.")
@click.option("--dry-run", is_flag=True, help="Compute M and write nothing.")
@click.option("--refresh", is_flag=True, help="Look into the logs of the partitions that hold M back.")
@click.option("--reports", metavar="PATH", help="Another system's reports: Parquet, CSV or NDJSON; local or s3://.")
@click.option("--partitions", metavar="PATH", help="That system's partitions, as of one snapshot.")
@click.option("--cluster-epoch", type=click.IntRange(0), metavar="E", help="That system's epoch at that snapshot.")
@click.option("--snapshot-age", type=Duration(), help="How old that snapshot is at most.  [default: 1h]")
@click.option("--allow-no-partitions", is_flag=True, help="That system has no partitions: all up to E may go.")
@spark_options
@common_options
@metrics_options
def command(
    settings: Settings,
    scan: bool,
    inventory: str | None,
    dry_run: bool,
    refresh: bool,
    reports: str | None,
    partitions: str | None,
    cluster_epoch: int | None,
    snapshot_age: int | None,
    allow_no_partitions: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Compute M from the partitions' reports, look at what the bucket holds, and publish M, on Spark.

    \b
    Example:
      l0gc compute-watermark
      l0gc compute-watermark --refresh --json
      l0gc compute-watermark --inventory s3://inventories/my-bucket/daily/2026-11-20T01-00Z/manifest.json
      l0gc compute-watermark --reports reports/ --partitions partitions.csv --cluster-epoch 4711
    """
    out = Output(settings)
    if (reports is None) != (partitions is None):
        raise UsageError("--reports and --partitions belong together")
    if reports is None and (cluster_epoch is not None or snapshot_age is not None or allow_no_partitions):
        raise UsageError(
            "--cluster-epoch, --snapshot-age and --allow-no-partitions belong to --reports and --partitions"
        )
    if reports is not None and refresh:
        raise UsageError("--refresh reads l0gc's own logs; with --reports there are none")
    if inventory is not None and not scan:
        raise UsageError("--inventory is read in the listing's place, and --no-scan reads neither: give one of the two")
    with open_cluster(settings) as (cluster, store):
        spark = lambda defaults: open_spark(settings, "compute-watermark", master, (*defaults, *conf))  # noqa: E731
        if reports is None or partitions is None:
            run_compute_watermark(
                out, cluster, store.config, spark, scan=scan, inventory=inventory, dry_run=dry_run, refresh=refresh
            )
            return
        with Noted(cluster, "compute-watermark", whole=not dry_run), out.progress("computing M"):
            held = _inventory(store.config, inventory)
            theirs = _external_log(
                settings, cluster, reports, partitions, cluster_epoch, snapshot_age, allow=allow_no_partitions
            )
            result = _their_m(cluster, store.config, theirs, spark, scan=scan, inventory=held, dry_run=dry_run)
    print_result(out, result)


def run_compute_watermark(
    out: Output,
    cluster: Cluster,
    config: StoreConfig,
    open_session: OpenSpark,
    *,
    scan: bool = True,
    inventory: str | None = None,
    dry_run: bool = False,
    refresh: bool = False,
) -> None:
    """Compute M of l0gc's own logs, and tell the result."""
    with Noted(cluster, "compute-watermark", whole=not dry_run), out.progress("computing M"):
        held = _inventory(config, inventory)
        result = _our_m(out, cluster, config, open_session, scan=scan, inventory=held, dry_run=dry_run, refresh=refresh)
    print_result(out, result)


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


def _external_log(
    settings: Settings,
    cluster: Cluster,
    reports: str,
    partitions: str,
    cluster_epoch: int | None,
    snapshot_age: int | None,
    *,
    allow: bool,
) -> ExternalLog:
    from l0gc.watermark.external_files import read_external_log
    from l0gc.watermark.external_log import SNAPSHOT_AGE_MS

    def open_store(url: str) -> S3Store:
        place = {"endpoint_url": settings.endpoint_url, "region": settings.region, "profile": settings.profile}
        return S3Store(StoreConfig.from_url(url, **place))

    return read_external_log(
        reports,
        partitions,
        cluster_epoch,
        open_store,
        cluster.parallel,
        allow_no_partitions=allow,
        snapshot_age_ms=SNAPSHOT_AGE_MS if snapshot_age is None else snapshot_age * 1000,
    )


def _their_m(
    cluster: Cluster,
    config: StoreConfig,
    theirs: ExternalLog,
    open_session: OpenSpark,
    *,
    scan: bool,
    inventory: Inventory | None,
    dry_run: bool,
) -> WatermarkResult:
    """M of a system that keeps its own log; only the listing needs Spark."""
    from l0gc.watermark import external_log

    if not scan:
        return external_log.run(cluster, theirs, publish_it=not dry_run)
    cluster.controller.snapshot()
    with open_session(_PLAIN) as spark:
        from l0gc.spark import watermark_job

        return watermark_job.run_external_log(
            spark, cluster, config, theirs, publish_it=not dry_run, inventory=inventory
        )


def _our_m(
    out: Output,
    cluster: Cluster,
    config: StoreConfig,
    open_session: OpenSpark,
    *,
    scan: bool,
    inventory: Inventory | None,
    dry_run: bool,
    refresh: bool,
) -> WatermarkResult:
    cluster.controller.snapshot()  # what is wrong with the arguments is said before Spark starts
    began = time.monotonic()
    with open_session(_PLAIN) as spark:
        from l0gc.spark import watermark_job

        started = time.monotonic() - began
        result = watermark_job.run(
            spark,
            cluster,
            config,
            scan=scan,
            publish_it=not dry_run,
            refresh=refresh,
            broken=out.note,
            inventory=inventory,
        )
    result.seconds["spark"] = started
    return result


def print_result(out: Output, result: WatermarkResult) -> None:
    """The result of a compute-watermark run."""
    w, listing, compacted = result.watermark, result.listing, result.compacted
    data: dict[str, Any] = {
        "watermark": w.watermark,
        "previous_watermark": result.previous_watermark,
        "cluster_epoch": w.cluster_epoch,
        "partitions": w.partitions,
        "held_back_by": [msgspec.structs.asdict(h) for h in w.held_back_by],
        "listing": None,
        "published": result.published,
        "refreshed": result.refreshed,
        "scan": (result.kept.key or None) if result.kept is not None else None,
        "compacted": compacted.files if compacted is not None else 0,
        "seconds": {name: round(seconds, 3) for name, seconds in result.seconds.items()},
    }
    lines = [
        f"M = {epoch(w.watermark)} (was {epoch(result.previous_watermark)}), cluster epoch {w.cluster_epoch}, "
        f"{count(w.partitions, 'partition')}{'' if result.published else '; not published'}"
    ]
    if listing is not None:
        data["listing"] = _listing_data(listing)
        lines += _listing_lines(listing)
    cut = len(w.held_back_by) == HELD_BACK_SHOWN
    lines += [f"held back by {line}" for line in held_back(w.held_back_by, cut=cut)]
    if out.verbose:
        lines.append("seconds: " + ", ".join(f"{name} {s:.1f}" for name, s in result.seconds.items()))
    out.result(data, lines)
    if result.kept is not None and result.kept.error:
        out.note(f"M is published, but the scan snapshots are not as they should be: {result.kept.error}")
    if compacted is not None and compacted.error:
        out.note(f"M is published, but reports that were compacted are still there: {compacted.error}")


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
        by = f"by {held_by}{others}" if held_by else "until the next run: newer than its snapshot"
        lines.append(f"held {by}: {count(objects, 'object')} ({size(so_far)}{_oldest(t, oldest or None)})")
    if rest := most[_HELD_LINES:]:
        objects, so_far = sum(n for _, (n, _, _) in rest), sum(n for _, (_, n, _) in rest)
        lines.append(f"held by others: {count(objects, 'object')} ({size(so_far)}; --json has them)")
    if t.unparsable:
        lines.append(f"{count(t.unparsable, 'key')} are no L0 keys and are never deleted, e.g.")
        lines += [f"  {key}" for key in t.unparsable_samples]
    if t.noncurrent_objects:
        versions = count(t.noncurrent_objects, "noncurrent version")
        lines.append(f"not counted above, but paid for: {versions} ({size(t.noncurrent_bytes)})")
    if t.source != "listing":
        age = t.run_ms - t.taken_ms
        made = f"made {span(age)} ago" if age else "of an unknown time"
        lines.append(f"that is by an {t.source} {made}, and not of now")
    return lines


def _age_s(t: ScanTotals, written_ms: int | None) -> float | None:
    """How old that was when the bucket was so, by the store's clock."""
    return None if written_ms is None else max(0, t.taken_ms - written_ms) / 1000


def _oldest(t: ScanTotals, written_ms: int | None) -> str:
    age = _age_s(t, written_ms)
    return "" if age is None else f", oldest {span(age * 1000)}"
