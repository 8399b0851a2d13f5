"""Which of very many partitions M is decided by: the lowest few, found in columns.

What `compute` makes of all partitions it makes of the lowest ones, too: M is their minimum. So only those become objects of
Python's. A partition without a report stands here at its topic's revision - 1, as it does there.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from l0gc import columns
from l0gc.keys import PartitionId
from l0gc.watermark.compute import HELD_BACK_SHOWN, PartitionReport, Watermark, compute
from l0gc.watermark.reports import KEY, SCHEMA, key_of, rows_of

_PARTITIONS = pa.schema([SCHEMA.field(name) for name in KEY])


def partitions_table(partitions: list[PartitionId]) -> pa.Table:
    """Partitions as columns."""
    arrays = [
        columns.strings([p.topic for p in partitions]),
        columns.integers([p.revision for p in partitions]),
        columns.integers([p.partition for p in partitions]).cast(pa.int32()),
    ]
    return pa.Table.from_arrays(arrays, schema=_PARTITIONS)


@dataclass(frozen=True, slots=True)
class Holders:
    """Which partitions still may need an epoch: those whose gc epoch is below it.

    Attributes:
        lowest: the partition with the lowest gc epoch, as text; empty if there are no partitions.
        gc_epochs: of all partitions, lowest first.
    """

    lowest: str
    gc_epochs: list[int]

    def of(self, epoch: int) -> tuple[str, int]:
        """Of the partitions that still may need `epoch`, the one with the lowest gc epoch (or empty), and how many."""
        count = bisect_left(self.gc_epochs, epoch)
        return self.lowest if count else "", count


def holders_of(partitions: pa.Table, best: pa.Table) -> Holders:
    """Who holds what, by the same reports as M."""
    first = [str(p) for p in lowest(partitions, best, 1)]
    _, gc_epochs = _gc_epochs(partitions, best)
    return Holders(first[0] if first else "", sorted(gc_epochs.to_pylist()))


def _gc_epochs(partitions: pa.Table, best: pa.Table) -> tuple[pa.Array, pa.Array]:
    """For each partition the row of `best` with its report, null without one, and M(p)."""
    row = pc.index_in(key_of(partitions, KEY), value_set=key_of(best, KEY))
    told = best["gc_epoch"].combine_chunks().take(row)
    return row, pc.coalesce(told, pc.subtract(partitions["revision"].combine_chunks(), columns.scalar(1)))


def lowest(partitions: pa.Table, best: pa.Table, count: int) -> dict[PartitionId, PartitionReport | None]:
    """The `count` partitions with the lowest gc epochs, lowest first, each with its report if it has one.

    Args:
        partitions: the snapshot's, as `partitions_table` gives them.
        best: a row for each partition that has a report; those of other partitions count for nothing.
    """
    row, gc_epoch = _gc_epochs(partitions, best)
    order = [("gc_epoch", "ascending"), ("topic", "ascending"), ("partition", "ascending")]
    everyone = partitions.append_column("gc_epoch", gc_epoch).append_column("row", row)
    few = everyone.take(pc.select_k_unstable(everyone, count, sort_keys=order)).to_pylist()
    there = [i for i, found in enumerate(few) if found["row"] is not None]
    reports = dict(zip(there, rows_of(best.take(columns.integers([few[i]["row"] for i in there]))), strict=True))
    return {PartitionId(r["topic"], r["revision"], r["partition"]): reports.get(i) for i, r in enumerate(few)}


def compute_of(cluster_epoch: int, partitions: pa.Table, best: pa.Table) -> Watermark:
    """`compute`, of columns."""
    few = lowest(partitions, best, HELD_BACK_SHOWN)
    watermark = compute(cluster_epoch, few, {p: r for p, r in few.items() if r is not None})
    return msgspec.structs.replace(watermark, partitions=partitions.num_rows)
