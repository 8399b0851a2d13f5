"""Sweeps as a simple script with boto3 does: lists everything, compares epochs, and deletes with 8 threads, without
record, pace or check.

Run as a script: `boto_sweep.py BUCKET PREFIX WATERMARK`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.config import Config

EPOCH = re.compile(r"/[0-9]{3}/([0-9]{18})/[0-9a-f-]{36}$")


def main(bucket: str, prefix: str, watermark: int) -> dict[str, int]:
    """Delete everything below `prefix` with an epoch at or below the watermark."""
    config = Config(max_pool_connections=10, s3={"addressing_style": "path"})
    s3 = boto3.client("s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL_S3"), config=config)

    def batches() -> Iterator[list[str]]:
        batch: list[str] = []
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            found = [(o["Key"], EPOCH.search(o["Key"])) for o in page.get("Contents", [])]
            batch += [key for key, m in found if m is not None and int(m[1]) <= watermark]
            while len(batch) >= 1000:
                yield batch[:1000]
                batch = batch[1000:]
        if batch:
            yield batch

    def delete(batch: list[str]) -> tuple[int, int]:
        done = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": k} for k in batch], "Quiet": True})
        return len(batch), len(done.get("Errors", []))

    with ThreadPoolExecutor(8) as pool:
        results = [f.result() for f in [pool.submit(delete, b) for b in batches()]]
    return {"deleted": sum(n for n, _ in results), "errors": sum(e for _, e in results)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
