"""Writes the lines of a file to one Parquet file on the local disk with DuckDB, on all cores, as a whole process.

The benchmarks compare l0gc's reconcile with this program, which does not check, order, upload or commit anything.
Usage: duckdb_lines.py SOURCE TARGET
"""

from __future__ import annotations

import json
import sys
from typing import Any

import duckdb

LINES = "read_csv(?, columns = {'value': 'VARCHAR'}, header = false, delim = '', quote = '', escape = '')"


def main(source: str, target: str) -> dict[str, Any]:
    """Write the Parquet file, compressed as L1 objects are."""
    wanted = f"COPY (SELECT * FROM {LINES}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
    found = duckdb.execute(wanted, [source]).fetchone()
    return {"records": found[0] if found else 0}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
