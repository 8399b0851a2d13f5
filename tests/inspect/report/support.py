"""Scans, runs and journals for the tests of the report."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from hypothesis import strategies as st

from l0gc.collect.history import RunEntry
from l0gc.collect.record import RunSummary
from l0gc.watermark.scans import ScanRow, ScanTotals
from l0gc.watermark.source import UNRECONCILED, Holder, UnitSummary

DAY_MS = 86_400_000
CLUSTER = "c"


def totals(taken_ms: int, **changes: object) -> ScanTotals:
    """Return the totals of a scan taken at this time."""
    plain = ScanTotals(
        cluster_id=CLUSTER, taken_ms=taken_ms, watermark=2, cluster_epoch=4,
        objects=3, bytes=30, eligible_objects=1, eligible_bytes=10, unparsable=0,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def summary(started_ms: int, deleted: int, number: int = 0) -> RunSummary:
    """Return the summary of a run that deleted this many objects of 10 bytes."""
    run_id = f"{datetime.fromtimestamp(started_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{number:08x}"
    return RunSummary(
        run_id=run_id, started_ms=started_ms, ended_ms=started_ms + 1, outcome="done", watermark=2, cluster_epoch=4,
        end_shard=4, objects=deleted, bytes=deleted * 10,
    )  # fmt: skip


def run_entry(started_ms: int, deleted: int | None) -> RunEntry:
    """Return a run, which was killed if `deleted` is None."""
    ended = summary(started_ms, deleted or 0)
    return RunEntry(ended.run_id, started_ms, 1, ended if deleted is not None else None)


def unit(topic: str, gc_epochs: Mapping[int, int], shown: int) -> UnitSummary:
    """Return a journal whose topic has these numbers of partitions at each M(p), and that names the `shown` lowest
    ones.
    """
    each = [m for m, n in sorted(gc_epochs.items()) for _ in range(n)]
    lowest = [Holder(topic, p, m, UNRECONCILED, f"from epoch {m + 1} on", 1) for p, m in enumerate(each[:shown])]
    return UnitSummary(unit="journal 0", gc_epochs=gc_epochs, lowest=lowest)


epochs = st.one_of(st.integers(0, 500), st.integers(0, 2**62))


@st.composite
def scan_rows(draw: st.DrawFn) -> list[ScanRow]:
    found = sorted(draw(st.sets(epochs, min_size=1, max_size=60)))
    amounts = st.integers(1, 10**12)
    return [ScanRow(e, draw(amounts), draw(amounts), draw(amounts)) for e in found]
