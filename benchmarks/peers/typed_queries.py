"""Queries a table through DuckDB by its typed columns, or by the JSON of its values: `typed_queries.py WHAT HOW
METADATA`.

WHAT is `sum`, `group by` or `range`, HOW `typed` or `JSON`. The connection is made before the clock starts.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from benchmarks.peers.table_readers import a_duckdb

QUERIES: Final = {
    "sum": "SELECT sum({distance}) FROM {table}",
    "group by": "SELECT {carrier} AS carrier, count(*), sum({dep_delay}) FROM {table} GROUP BY ALL ORDER BY ALL",
    "range": "SELECT count(*), sum({air_time}) FROM {table} "
    "WHERE {time_hour} >= '2013-03-01T00:00:00Z' AND {time_hour} < '2013-03-08T00:00:00Z'",
}
TYPES: Final = {"distance": "BIGINT", "dep_delay": "BIGINT", "air_time": "BIGINT", "time_hour": "TIMESTAMPTZ"}


def main(what: str, how: str, metadata: str) -> dict[str, Any]:
    """Run the query; return its rows as text, and its duration."""
    names = ("distance", "carrier", "dep_delay", "air_time", "time_hour")
    fields = {name: name if how == "typed" else _of_json(name) for name in names}
    connection = a_duckdb()
    query = QUERIES[what].format(table=f"iceberg_scan('{metadata}')", **fields)
    started = time.monotonic()
    rows = connection.execute(query).fetchall()
    return {"job_seconds": time.monotonic() - started, "rows": repr(rows)}


def _of_json(name: str) -> str:
    return f"""CAST(decode("value")::JSON ->> '{name}' AS {TYPES.get(name, "VARCHAR")})"""


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
