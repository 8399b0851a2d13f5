"""L1 objects that no reconciler wrote: with other contents than their journal records, or with a footer that was changed."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from l0gc.streamlog.level_one.parquet import KEY_METADATA, seal_footer


def l1_body(table: pa.Table, key: str = "", **options: object) -> bytes:
    """A table as the L1 object at `key`, with the checksums of one; `options` are Parquet's."""
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, table.schema, **{"write_page_checksum": True, "store_schema": False, "use_dictionary": False, **options}
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({KEY_METADATA: key})
    seal_footer(sink)
    return sink.getvalue()


def sealed_again(body: bytes) -> bytes:
    """An L1 object whose footer was changed, with a checksum that fits."""
    size = footer_size(body)
    file = io.BytesIO(body[: -size - 4] + body[-size:])
    seal_footer(file)
    return file.getvalue()


def footer_size(body: bytes) -> int:
    """Bytes of a Parquet file's footer, with its length and Parquet's name."""
    return int.from_bytes(body[-8:-4], "little") + 8
