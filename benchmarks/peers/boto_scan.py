"""Computes a histogram of a bucket's epochs in the plain way: boto3's paginator, key by key. Prints it as JSON.

Run as a script: `boto_scan.py BUCKET PREFIX`, with the endpoint and the credentials in the environment.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Final

import boto3

KEY: Final = re.compile(r"[0-9]{3}/([0-9]{18})/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def main(bucket: str, prefix: str) -> dict[str, tuple[int, int]]:
    """Return the objects and bytes at each epoch; `none` for other keys."""
    epochs: dict[str, tuple[int, int]] = {}
    for page in boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for found in page.get("Contents", []):
            match = KEY.fullmatch(found["Key"], len(prefix))
            epoch = str(int(match[1])) if match else "none"
            objects, size = epochs.get(epoch, (0, 0))
            epochs[epoch] = objects + 1, size + found["Size"]
    return epochs


if __name__ == "__main__":
    print(json.dumps({"epochs": main(*sys.argv[1:])}))
