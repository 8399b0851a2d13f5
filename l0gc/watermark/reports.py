"""Watermark snapshots: one Parquet file for each time a process has touched partitions, a row for each of them.

A report is taken from a state that holds only what has landed in the log, so it never says more than the log (hazard 18).
A changed bit must not make it say more either: the file carries a checksum over its values.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from l0gc import columns
from l0gc.errors import CorruptObjectError
from l0gc.keys import REPORTS, PartitionId
from l0gc.partition.state import PartitionState
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore
from l0gc.watermark.compute import PartitionReport

SCHEMA_VERSION: Final = "1"
_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, MemoryError)
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
    metadata={"l0gc.reports": SCHEMA_VERSION},
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
    if not rows:
        return None
    sink = pa.BufferOutputStream()
    pq.write_table(_table(rows), sink, compression="zstd")
    key = f"{REPORTS}{reporter}/{runtime.new_id()}.parquet"
    store.put(key, sink.getvalue().to_pybytes())
    return key


def _table(rows: list[PartitionReport]) -> pa.Table:
    arrays = []
    for f in SCHEMA:
        values = [getattr(r, f.name) for r in rows]
        text = pa.types.is_string(f.type)
        arrays.append(columns.strings(values) if text else columns.integers(values).cast(f.type))
    table = pa.Table.from_arrays(arrays, schema=SCHEMA)
    return table.replace_schema_metadata({**SCHEMA.metadata, _CHECKSUM: b"%d" % _checksum(table)})


def _checksum(table: pa.Table) -> int:
    """The CRC-32 of the values, whatever file they are in."""
    return zlib.crc32(msgspec.json.encode([column.to_pylist() for column in table.columns]))


def read_report_file(body: bytes, key: str) -> pa.Table:
    """The rows of a report file.

    Raises:
        CorruptObjectError: it is not one, or of a newer kind, or has changed since it was written.
    """
    try:
        table = pq.read_table(pa.BufferReader(body))
        metadata = table.schema.metadata or {}
        version = metadata.get(b"l0gc.reports", b"?").decode()
        if version == SCHEMA_VERSION and table.schema.names == SCHEMA.names:
            table = table.cast(SCHEMA)
            if metadata.get(_CHECKSUM) == b"%d" % _checksum(table):
                return table
            raise CorruptObjectError(
                f"{key} does not match its checksum; remove that report, without which M can only be lower"
            )
    except _UNREADABLE as e:
        raise CorruptObjectError(f"{key} is not a watermark report: {e}") from e
    raise CorruptObjectError(f"{key} is a watermark report of version {version}, this l0gc reads {SCHEMA_VERSION}")
