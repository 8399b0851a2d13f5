"""Scans and runs for the tests of the report."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from l0gc.collect.record import RunSummary
from l0gc.collect.runs import RunEntry
from l0gc.watermark.scans import ScanTotals

DAY_MS = 86_400_000
CLUSTER = "c"


def totals(taken_ms: int, **changes: object) -> ScanTotals:
    """The totals of a scan."""
    plain = ScanTotals(
        cluster_id=CLUSTER, run_ms=taken_ms, taken_ms=taken_ms, watermark=2, cluster_epoch=4, source="listing",
        objects=3, bytes=30, eligible_objects=1, eligible_bytes=10, unparsable=0,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def summary(started_ms: int, deleted: int, number: int = 0) -> RunSummary:
    """How a run ended that deleted so many objects of 10 bytes."""
    run_id = f"{datetime.fromtimestamp(started_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{number:08x}"
    return RunSummary(
        run_id,
        started_ms,
        2,
        4,
        "local",
        "off",
        False,
        0,
        4,
        started_ms + 1,
        "done",
        deleted=deleted,
        bytes=deleted * 10,
    )


def run_entry(started_ms: int, deleted: int | None) -> RunEntry:
    """A run; one that was killed if nobody knows what it deleted."""
    ended = summary(started_ms, deleted or 0)
    return RunEntry(ended.run_id, started_ms, 1, ended if deleted is not None else None)
