"""l0gc as a library: found a cluster, upload, read, and see what a sweep would delete. Takes the URL from `L0GC_URL`."""

import json
import os

import l0gc

readings = [json.dumps({"sensor": f"s{n % 7}", "value": n}).encode() for n in range(100)]

with l0gc.open(os.environ["L0GC_URL"]) as cluster:
    cluster.init(create_bucket=True)
    cluster.topics.create("readings", partitions=4)
    uploaded = cluster.upload("readings", readings, key_field="sensor")
    sums: dict[bytes | None, int] = {}
    for record in cluster.read("readings"):
        sums[record.key] = sums.get(record.key, 0) + json.loads(record.value)["value"]
    cluster.reconcile()  # in this process; give it a Spark session for large buckets
    cluster.housekeep(barrier=True)
    watermark = cluster.compute_watermark().watermark
    swept = cluster.sweep(dry_run=True)  # without it, sweep deletes, as far as M allows
    print(f"{uploaded.records} records uploaded, {len(sums)} sensors, the sum is {sum(sums.values())}")
    print(f"M = {watermark}: a sweep would delete {swept.deleted} of {swept.listed} objects, {swept.bytes} bytes")
