"""Watermark snapshots: one Parquet file for each time a process has touched partitions, a row for each of them.

A report is taken from a state that holds only what has landed in the log, so it never says more than the log (hazard 18).
Of several reports of a partition each is safe to go by; the highest moves M furthest. What cannot be read, or is of a newer
kind, is refused: a report that is misread could be too high. A changed
bit must not make it say more either: the file carries a checksum over its values.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from l0gc import columns
from l0gc.errors import CorruptObjectError
from l0gc.keys import REPORTS, PartitionId
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.journal.state import PartitionState
from l0gc.watermark.compute import PartitionReport

SCHEMA_VERSION: Final = 1
"""Goes up when a column is added or means something else; docs/reports.md tells of each version."""
KEY: Final = ["topic", "revision", "partition"]
"""The columns that tell partitions apart."""
UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, MemoryError)
"""What pyarrow raises over bytes that are no report; text that is no UTF-8 is a ValueError."""
SCHEMA: Final = pa.schema(
    [
        pa.field("cluster_id", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("revision", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("gc_epoch", pa.int64(), nullable=False),
        pa.field("max_applied_epoch", pa.int64(), nullable=False),
        pa.field("previous_applied_epoch", pa.int64(), nullable=False),
        pa.field("next_offset", pa.int64(), nullable=False),
        pa.field("last_reconciled_offset", pa.int64(), nullable=False),
        pa.field("lowest_unreconciled_epoch", pa.int64()),
        pa.field("log_offset", pa.int64(), nullable=False),
        pa.field("reported_at_ms", pa.int64(), nullable=False),
    ],
    metadata={"l0gc.reports": str(SCHEMA_VERSION)},
)
_CHECKSUM: Final = b"l0gc.crc32"


def report_of(cluster_id: str, p: PartitionId, state: PartitionState, log_offset: int) -> PartitionReport:
    """The snapshot of a partition whose state is as of `log_offset`."""
    return PartitionReport(
        cluster_id,
        p.topic,
        p.revision,
        p.partition,
        state.gc_epoch,
        state.max_applied_epoch,
        state.previous_applied_epoch,
        state.next_offset,
        state.last_reconciled_offset,
        state.lowest_unreconciled_epoch,
        log_offset,
        state.time_ms,
    )


def publish_reports(
    store: ObjectStore, runtime: Runtime, reporter: str, reports: Iterable[PartitionReport]
) -> str | None:
    """Write one file with these rows and return its key; None if there are none.

    Args:
        reporter: what kind of process reports, e.g. `upload`; a folder of the bucket.
    """
    rows = list(reports)
    return write_reports(store, runtime, reporter, table_of(rows)) if rows else None


def write_reports(store: ObjectStore, runtime: Runtime, reporter: str, table: pa.Table) -> str:
    """Write one file with the rows of `table` and return its key; it is durable then."""
    table = table.replace_schema_metadata({**SCHEMA.metadata, _CHECKSUM: b"%d" % checksum_of(table)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    key = f"{REPORTS}{reporter}/{runtime.new_id()}.parquet"
    store.put(key, sink.getvalue().to_pybytes())
    return key


def report_keys(store: ObjectStore) -> list[str]:
    """The keys of the report files that there are."""
    return [k for k in store.list(REPORTS).modified_ms if k.endswith(".parquet")]


def table_of(rows: list[PartitionReport]) -> pa.Table:
    """Reports as columns."""
    arrays = []
    for f in SCHEMA:
        values = [getattr(r, f.name) for r in rows]
        text = pa.types.is_string(f.type)
        arrays.append(columns.strings(values) if text else columns.integers(values).cast(f.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def checksum_of(table: pa.Table) -> int:
    """The CRC-32 of the values, whatever file they are in."""
    crc = 0
    for column in table.columns:
        values = column.combine_chunks()
        if pa.types.is_string(values.type):
            crc = zlib.crc32("".join(values.to_pylist()).encode(), crc)
            values = pc.binary_length(values)
        for numbers in (pc.coalesce(values.cast(pa.int64()), columns.scalar(0)), pc.is_valid(values).cast(pa.int64())):
            crc = zlib.crc32(columns.raw(numbers), crc)
    return crc


def rows_of(table: pa.Table) -> list[PartitionReport]:
    """Columns as reports; for a few rows, it is slow."""
    return msgspec.convert(table.to_pylist(), list[PartitionReport])


def best_of(table: pa.Table) -> pa.Table:
    """The row with the highest gc epoch of each partition; rows of other clusters stay, so that somebody refuses them."""
    return last_of(table, ["cluster_id", *KEY], ["gc_epoch", "log_offset"])


def highest_of(table: pa.Table) -> tuple[int, str]:
    """The highest epoch that any of these reports (there are some) knows, and which one that is."""
    highest = pc.max_element_wise(table["max_applied_epoch"], table["revision"])
    row = table.slice(pc.index(highest, pc.max(highest)).as_py(), 1).to_pylist()[0]
    return max(row["max_applied_epoch"], row["revision"]), f"a report of partition {row['topic']}/{row['partition']}"


def last_of(table: pa.Table, names: list[str], order: list[str]) -> pa.Table:
    """Of the rows that are equal in the columns `names`, the last one in the order of the columns `order`."""
    if table.num_rows < 2:
        return table
    group = pc.dictionary_encode(key_of(table, names)).indices
    ordered = pa.table({"group": group, **{name: table[name] for name in order}})
    by = pc.sort_indices(ordered, sort_keys=[(name, "ascending") for name in ordered.schema.names])
    sorted_group = group.take(by)
    ends = pc.not_equal(sorted_group.slice(0, len(by) - 1), sorted_group.slice(1))
    return table.take(pa.concat_arrays([by.slice(0, len(by) - 1).filter(ends), by.slice(len(by) - 1)]))


def key_of(table: pa.Table, names: list[str]) -> pa.Array:
    """One text for each row that is equal where all the columns `names` are; a null stands for itself."""
    # Numbers first: they hold no separator, so that only the last of the texts could.
    parts = sorted((table[name] for name in names), key=lambda column: pa.types.is_string(column.type))
    texts = [pc.coalesce(part.cast(pa.string()), columns.scalar("-")) for part in parts]
    return pc.binary_join_element_wise(*texts, columns.scalar("\0")).combine_chunks()


def read_report_file(body: bytes, key: str) -> pa.Table:
    """The rows of a report file.

    Raises:
        CorruptObjectError: it is not one, or of a newer kind, or has changed since it was written.
    """
    try:
        table = pq.ParquetFile(pa.BufferReader(body)).read()  # read_table would import pandas
        metadata = table.schema.metadata or {}
        version = metadata.get(b"l0gc.reports", b"").decode("ascii", "replace")
        if version == str(SCHEMA_VERSION) and table.schema.names == SCHEMA.names:
            table = table.cast(SCHEMA)
            if metadata.get(_CHECKSUM) == b"%d" % checksum_of(table):
                return table
            raise CorruptObjectError(
                f"{key} does not match its checksum; remove that report, without which M can only be lower"
            )
    except UNREADABLE as e:
        raise CorruptObjectError(f"{key} is not a watermark report: {e}") from e
    if version.isdecimal() and len(version) < 9 and int(version) > SCHEMA_VERSION:
        raise CorruptObjectError(
            f"{key} is a watermark report of version {version}, and this l0gc reads versions up to {SCHEMA_VERSION}: "
            "run a newer l0gc here"
        )
    raise CorruptObjectError(f"{key} is not a watermark report: its columns are {', '.join(table.schema.names)}")
