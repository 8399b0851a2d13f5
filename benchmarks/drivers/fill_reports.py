"""Found a cluster with very many partitions, and write a report of each; the cluster is named by the environment.

Run as a script: `fill_reports.py PARTITIONS FILES`. Prints the M that they make as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any, Final

from l0gc.cli.options import open_cluster
from l0gc.settings import Settings
from l0gc.streamlog.journal.state import PartitionState
from l0gc.watermark.reports import publish_reports, report_of

EPOCHS: Final = 20


def main(partitions: int, files: int) -> dict[str, Any]:
    """Found and fill. Each partition stands at an epoch of its own, and is in one file."""
    settings = Settings(url=os.environ["L0GC_URL"], endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])
    with open_cluster(settings) as (cluster, store):
        store.create_bucket()
        cluster.controller.bootstrap()
        ids = cluster.controller.create_topic("many", partitions)[0].ids()
        for _ in range(EPOCHS):
            cluster.controller.advance()
        cluster_id, rng = cluster.controller.snapshot().cluster_id, random.Random(0)
        rng.shuffle(ids)
        reports = [report_of(cluster_id, p, PartitionState.new(rng.randint(3, EPOCHS)), 0) for p in ids]
        cluster.parallel.map(
            lambda i: publish_reports(store, cluster.runtime, "upload", reports[i::files]), range(files)
        )
    return {"watermark": min(r.gc_epoch for r in reports), "partitions": partitions, "files": files}


if __name__ == "__main__":
    print(json.dumps(main(*(int(a) for a in sys.argv[1:]))))
