"""Hash the columns of records, so that a copy of them can be compared with its sources.

After a merge or a drain, the copy that l0gc made is the only one. So each column is hashed over all rows of the sources,
and the new object must have the same hashes before any journal lists it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

from l0gc import columns
from l0gc.streamlog.ingest.headers_and_times import OPTIONAL, headers_of
from l0gc.streamlog.level_one.parquet import L1_SCHEMA


class Hashes:
    """One hash for each column over all added rows, however they were cut into batches. An absent optional column has the
    same hash as one of nulls.
    """

    def __init__(self) -> None:
        self._of: dict[str, Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        for name in L1_SCHEMA.names:
            column = batch.column(name)
            if pa.types.is_binary(column.type):
                self._add_bytes(name, column)
            else:
                self._update(name, columns.raw(column))
        for name in OPTIONAL.names:
            if name in batch.schema.names:
                self._add_optional(name, batch.filter(batch.column(name).is_valid()))

    def _add_optional(self, name: str, batch: pa.RecordBatch) -> None:
        """Add the values that are present, with the offsets of their records."""
        if not batch.num_rows:
            return
        column = batch.column(name)
        self._update(f"{name} offsets", columns.raw(batch.column("offset")))
        if name == "create_time":
            self._update(name, columns.raw(column))
            return
        counts, keys, values = headers_of(column)
        self._update(f"{name} counts", counts)
        self._add_bytes(f"{name} keys", keys)
        self._add_bytes(f"{name} values", values)

    def _add_bytes(self, name: str, column: pa.Array) -> None:
        lengths, content = columns.uncut(column)
        self._update(name, content)
        self._update(f"{name} lengths", lengths)

    def _update(self, name: str, content: Any) -> None:
        self._of.setdefault(name, hashlib.sha256()).update(content)

    def digest(self) -> dict[str, bytes]:
        return {name: h.digest() for name, h in self._of.items()}
