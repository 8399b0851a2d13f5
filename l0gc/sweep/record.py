"""The run record: what a sweep deleted, as Parquet under `l0gc/runs/{run id}/`, written as it goes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from l0gc.keys import RUNS
from l0gc.storage.objectstore import ObjectStore
from l0gc.sweep.scan import EligibleObject

_ROWS_PER_FILE: Final = 50_000


class RunRecord:
    """Collects deleted objects and writes a file whenever enough have come together; safe for several threads."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self.run_id = run_id
        self._store = store
        self._lock = threading.Lock()
        self._rows: list[EligibleObject] = []
        self._files = 0

    def add(self, objects: Sequence[EligibleObject]) -> None:
        """Note objects that are gone."""
        with self._lock:
            self._rows += objects
            if len(self._rows) < _ROWS_PER_FILE:
                return
        self.flush()

    def flush(self) -> None:
        """Write what has come together."""
        with self._lock:
            rows, self._rows = self._rows, []
            number, self._files = self._files, self._files + bool(rows)
        if not rows:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        from l0gc import columns

        arrays = [
            columns.strings([o.key for o in rows]),
            columns.integers([o.epoch for o in rows]),
            columns.integers([o.size for o in rows]),
        ]
        table = pa.Table.from_arrays(arrays, names=["key", "epoch", "size"])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self._store.put(f"{RUNS}{self.run_id}/deleted-{number:05}.parquet", sink.getvalue().to_pybytes())
