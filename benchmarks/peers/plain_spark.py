"""A plain Spark job for the same records: NDJSON lines in, Parquet with zstd out, spread over 8 files by a hash of a
key.

Lines are read as text and kept unchanged; only the key is parsed. The session has the settings of l0gc's jobs and
starts before the clock. Nothing is checked, ordered or committed, and the output is local.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import functions as F

from l0gc.spark.session import get_session


def main(output: str, field: str, partitions: int, names: list[str]) -> dict[str, Any]:
    """Run the job, and count what it wrote."""
    started = time.monotonic()
    spark = get_session("plain job")
    ready = time.monotonic()
    lines = spark.read.text(names)
    keyed = lines.select(F.get_json_object("value", f"$.{field}").alias("key"), "value")
    keyed.repartition(partitions, "key").write.option("compression", "zstd").parquet(output)
    done = time.monotonic()
    spark.stop()
    files = sorted(Path(output).glob("*.parquet"))
    return {
        "job_seconds": done - ready,
        "session_seconds": ready - started,
        "records": sum(pq.ParquetFile(f).metadata.num_rows for f in files),
        "files": len(files),
        "bytes": sum(f.stat().st_size for f in files),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])))
