"""Builds L1 objects that no reconciler writes: their contents differ from their journal's record, or their footer was
changed.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from l0gc.streamlog.level_one.parquet import KEY_METADATA, seal_footer


def l1_body(table: pa.Table, key: str = "", **options: object) -> bytes:
    """Return a table as the body of the L1 object at `key`, with its checksums; `options` are Parquet's."""
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, table.schema, **{"write_page_checksum": True, "store_schema": False, "use_dictionary": False, **options}
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({KEY_METADATA: key})
    seal_footer(sink)
    return sink.getvalue()


def sealed_again(body: bytes) -> bytes:
    """Return an L1 object whose footer was changed, with a checksum that fits the new footer."""
    size = footer_size(body)
    file = io.BytesIO(body[: -size - 4] + body[-size:])
    seal_footer(file)
    return file.getvalue()


def footer_size(body: bytes) -> int:
    """Return the bytes of a Parquet file's footer, including its length and magic number."""
    return int.from_bytes(body[-8:-4], "little") + 8
