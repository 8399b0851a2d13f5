"""l0gc as a library: found a cluster, upload into it, look at it, and see what a sweep would delete.

What a command does, in a process of your own: the handles of a cluster are made once and may be used by many threads.
Takes the URL from `L0GC_URL` and the rest from the AWS variables. Nothing is deleted; `dry_run=False` would, as far as M
allows.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from l0gc.collect.local import LocalSweep
from l0gc.collect.plan import SweepOptions
from l0gc.errors import L0gcError
from l0gc.inspect.status import status
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Threads
from l0gc.storage.probe import probe
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest.inputs import Input
from l0gc.streamlog.ingest.partitioner import ByField
from l0gc.streamlog.ingest.uploader import Uploader
from l0gc.streamlog.reader import read_partition
from l0gc.streamlog.topics import create_topic

TOPIC = "readings"


def upload(cluster: Cluster, records: Sequence[dict[str, object]]) -> int:
    """Upload these records by the field `sensor`; how many landed."""
    topic = cluster.controller.snapshot().topic(TOPIC)
    lines = b"".join(json.dumps(r).encode() + b"\n" for r in records)
    with ThreadPoolExecutor(2) as packers, ThreadPoolExecutor(1) as committer:
        uploader = Uploader(cluster, topic, ByField("sensor", topic.partitions), packers=packers, committer=committer)
        return uploader.run([Input("from memory", "", lambda: io.BytesIO(lines))]).records


def main() -> int:
    """Do all of that, and print one JSON object."""
    store = S3Store(StoreConfig.from_url(os.environ["L0GC_URL"], endpoint_url=os.environ.get("AWS_ENDPOINT_URL_S3")))
    with Threads(8) as threads:
        cluster = Cluster(store, parallel=threads)
        store.create_bucket()
        probe(store, cluster.runtime)  # raises if the store lacks what safety rests on
        cluster.controller.bootstrap(shards=16)
        create_topic(cluster, TOPIC, 4)
        landed = upload(cluster, [{"sensor": f"s{n % 7}", "value": n} for n in range(100)])
        housekeep(cluster)
        now = status(cluster)
        topic = cluster.controller.snapshot().topic(TOPIC)
        read = sum(1 for p in topic.ids() for _ in read_partition(store, cluster.partition(p)))
        swept = LocalSweep(cluster, SweepOptions(dry_run=True)).run(threads)
    print(
        json.dumps(
            {
                "cluster_id": now.cluster_id,
                "epoch": now.cluster_epoch,
                "uploaded": landed,
                "read": read,
                "unreconciled": now.unreconciled_records,
                "next": now.next_step,
                "would_delete": swept.deleted,
            }
        )
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except L0gcError as error:
        print(f"embed: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
