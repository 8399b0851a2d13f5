"""Runs `l0gc reconcile`, and times the session's start and the job separately; the environment names the cluster."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from l0gc import api
from l0gc.spark.handles import ClusterAddress
from l0gc.spark.session import get_session
from l0gc.spark.workers import SparkWorkers
from l0gc.streamlog.level_one.reconcile import reconcile


def main() -> dict[str, Any]:
    """Reconcile all topics."""
    with api.open(os.environ["L0GC_URL"]) as opened:
        cluster, store = opened.handles(), opened.store
        started = time.monotonic()
        spark = get_session("reconcile")
        ready = time.monotonic()
        result = reconcile(cluster, workers=SparkWorkers(spark, ClusterAddress(store.access.settled())))
        done = time.monotonic()
        spark.stop()
    return {
        "job_seconds": done - ready,
        "session_seconds": ready - started,
        "records": result.records,
        "files": result.l1_objects,
        "bytes": result.bytes,
    }


if __name__ == "__main__":
    print(json.dumps(main()))
