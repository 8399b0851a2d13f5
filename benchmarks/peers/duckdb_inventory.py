"""The same sum as l0gc's by DuckDB: `duckdb_inventory.py CHECKED FILE...`.

With CHECKED `yes` a key counts if it has the whole shape of an L0 key, as for l0gc; with `no` it is cut where an epoch
stands, whatever the rest is. Checksums of files are not compared either way.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import duckdb

from benchmarks.support.inventories import PREFIX, WATERMARK
from l0gc.keys import KeyLayout


def main(checked: bool, files: list[str]) -> dict[str, Any]:
    """Objects and bytes at each epoch, and what is eligible of them."""
    layout = KeyLayout()
    where = PREFIX + layout.data_prefix
    connection = duckdb.connect(config={"threads": 2})
    started = time.monotonic()
    _, _, first, end = (len(PREFIX) + place for place in layout.places)
    epoch = f"substr(key, {first + 1}, {end - first})"
    matches = f"regexp_matches(key, '^{PREFIX}{layout.pattern[1:]}')" if checked else "true"
    rows = connection.execute(
        f"SELECT CAST({epoch} AS BIGINT), count(*), sum(size), min(last_modified_date) FROM read_parquet(?) "
        f"WHERE starts_with(key, '{where}') AND {matches} GROUP BY 1",
        [files],
    ).fetchall()
    result = {
        "objects": sum(n for _, n, _, _ in rows),
        "epochs": len(rows),
        "eligible_bytes": int(sum(size for e, _, size, _ in rows if e <= WATERMARK)),
    }
    return {"job_seconds": time.monotonic() - started, **result}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1] == "yes", sys.argv[2:])))
