"""What `l0gc sweep` prints of a run, as JSON and as text."""

from __future__ import annotations

from typing import Any

from l0gc.cli.output import epoch
from l0gc.cli.run_options import bytes_that_stay
from l0gc.collect.local import SweepResult
from l0gc.collect.plan import UNKNOWN
from l0gc.formatting import count, size


def data_of(r: SweepResult, why: str) -> dict[str, Any]:
    """The run, for `--json`; `why` is why its engine was chosen."""
    t = r.tally
    return {
        "watermark": r.watermark,
        "dry_run": r.dry_run,
        "listed": r.listed,
        "eligible": r.eligible,
        "deleted": r.deleted,
        "bytes": r.bytes,
        "failed": r.failed,
        "held_by_age": r.held_by_age,
        "unparsable": r.unparsable,
        "uploads_aborted": r.uploads.aborted,
        "requests": r.requests,
        "throttled": t.throttled,
        "backpressure_seconds": round(t.backpressure_s, 3),
        "failures": [{"key": f.key, "code": f.code, "message": f.message} for f in t.failures],
        "versioning": r.plan.versioning,
        "engine": r.engine,
        "engine_reason": why,
        "stopped": r.stopped,
        "paused": r.paused,
        "seconds": round(r.seconds, 3),
        "run_id": r.run_id,
    }


def lines_of(r: SweepResult) -> list[str]:
    """The run as text."""
    plan, t, c = r.plan, r.tally, r.tally.counts
    lines = [
        f"M = {epoch(plan.watermark)}: {count(t.deleted, 'version' if plan.by_version else 'object')} ({size(t.bytes)}) "
        f"{'would be deleted' if plan.dry_run else 'deleted'} in {r.seconds:.1f} s; "
        f"{c.listed:,} listed, {c.eligible:,} eligible, {r.requests['list']:,} LIST and {t.delete_requests:,} DELETE "
        "requests"
    ]
    if plan.watermark < 0:
        lines.append("nothing is published yet: run l0gc compute-watermark")
    if plan.paused:
        lines.append(f"sweeps are paused, so a run would delete nothing: {plan.paused}")
    if c.held_by_age:
        young = count(
            c.held_by_age, "object is too young for --min-age and stays", "objects are too young for --min-age and stay"
        )
        lines.append(f"{young} for now")
    if c.unparsable:
        foreign = count(c.unparsable, "key is not an L0 key and stays", "keys are not L0 keys and stay")
        lines.append(f"{foreign}, e.g. {c.unparsable_sample}")
    if r.uploads.aborted:
        would = "would be " if plan.dry_run else ""
        lines.append(f"{count(r.uploads.aborted, 'unfinished upload')} {would}aborted")
    if r.uploads.note:
        lines.append(r.uploads.note)
    if t.throttled:
        lines.append(
            f"the store asked to slow down {count(t.throttled, 'time')}; {t.backpressure_s:.1f} s were spent waiting for it"
        )
    if not plan.purge_versions and t.deleted:
        lines += bytes_that_stay(plan, " or l0gc sweep --purge-versions")
    if plan.versioning == UNKNOWN:
        lines.append("whether the bucket keeps versions is not known: the store does not say (s3:GetBucketVersioning)")
    return lines
