"""l0gc's histogram of an inventory, with the session's start and the job timed apart: `inventory.py MANIFEST`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.support.inventories import BUCKET, PREFIX, WATERMARK
from l0gc.keys import KeyLayout
from l0gc.spark.handles import ClusterAddress
from l0gc.spark.session import get_session
from l0gc.spark.workers import SparkWorkers
from l0gc.storage.config import StoreConfig
from l0gc.watermark.inventory import read_inventory
from l0gc.watermark.inventory_scan import scan_inventory


def read(path: str) -> bytes | None:
    """A local file, None if there is none."""
    return Path(path).read_bytes() if Path(path).is_file() else None


def main(manifest: str) -> dict[str, Any]:
    """Read the manifest and everything that it names."""
    started = time.monotonic()
    spark = get_session("inventory", master="local[2]", conf={"spark.sql.adaptive.enabled": "false"})
    ready = time.monotonic()
    inventory = read_inventory(manifest, BUCKET, read)
    config = StoreConfig(BUCKET, PREFIX)
    workers = SparkWorkers(spark, ClusterAddress(config))
    rows = list(scan_inventory(workers, config, inventory, KeyLayout(), lambda: WATERMARK).rows.values())
    done = time.monotonic()
    spark.stop()
    return {
        "job_seconds": done - ready,
        "session_seconds": ready - started,
        "objects": sum(r.objects for r in rows),
        "epochs": len(rows),
        "eligible_bytes": sum(r.bytes for r in rows if r.epoch is not None and r.epoch <= WATERMARK),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
