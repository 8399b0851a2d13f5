"""A toy segment store that keeps its own log, like a system independent of l0gc.

It puts records of several partitions into segments `segments/{shard:02}-{epoch:020}-{uuid}.seg`. Its log, a file here,
records which partitions still need each segment. `write` fills the bucket and exports what l0gc needs; `verify` reports
whether a segment that the log still needs is missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3

PARTITIONS = [(topic, n) for topic in ("clicks", "orders") for n in range(4)]
SHARDS = 16


@dataclass
class Log:
    """The system's log: its epoch, and for each segment the partitions that still need it."""

    epoch: int = 0
    needs: dict[str, list[list[Any]]] = field(default_factory=dict)

    def gc_epoch(self, topic: str, partition: int) -> int:
        """Return M(p): below the oldest segment that p needs, and below this epoch, at which p may still get one."""
        needed = [epoch_of(k) for k, who in self.needs.items() if [topic, partition] in who]
        return min([self.epoch, *needed]) - 1


def epoch_of(key: str) -> int:
    """Return the epoch in a segment's key."""
    return int(key.split("-")[1])


def write(s3: Any, bucket: str, prefix: str, log: Log, epochs: int) -> None:
    """Write three segments at each epoch; every partition has finished with the older ones."""
    rng = random.Random(0)
    for _ in range(epochs):
        for _ in range(3):
            key = f"segments/{rng.randrange(SHARDS):02}-{log.epoch:020}-{uuid.uuid4()}.seg"
            s3.put_object(Bucket=bucket, Key=prefix + key, Body=rng.randbytes(100))
            log.needs[key] = [list(p) for p in rng.sample(PARTITIONS, 3)]
        log.epoch += 1
    for key, who in log.needs.items():
        if epoch_of(key) < log.epoch // 2:
            who.clear()


def export(log: Log, folder: Path) -> None:
    """Export what l0gc needs: the reports first, then the partitions and the epoch, which are of one time.

    A folder is finished when it holds `_SUCCESS`; a single file gets its name when it is complete.
    """
    reports = folder / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    (reports / "_SUCCESS").unlink(missing_ok=True)
    with (reports / "node-0.ndjson").open("w") as file:
        for topic, n in PARTITIONS:
            file.write(json.dumps({"topic": topic, "partition": n, "gc_epoch": log.gc_epoch(topic, n)}) + "\n")
    (reports / "_SUCCESS").touch()
    with (folder / "partitions.csv.partial").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["topic", "partition", "revision", "cluster_epoch"])
        rows.writerows([topic, n, 0, log.epoch] for topic, n in PARTITIONS)
    (folder / "partitions.csv.partial").replace(folder / "partitions.csv")


def main() -> None:
    """Do what the arguments request, and print one JSON object."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("command", choices=["write", "verify"])
    arguments.add_argument("--epochs", type=int, default=12)
    arguments.add_argument("--export", type=Path, required=True, help="where the log and the exported files are kept")
    given = arguments.parse_args()
    url = urlsplit(os.environ["L0GC_URL"])
    bucket, prefix = url.netloc, url.path.strip("/") + "/" if url.path.strip("/") else ""
    s3 = boto3.client("s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL_S3"))
    state = given.export / "log.json"
    log = Log(**json.loads(state.read_text())) if state.exists() else Log()
    if given.command == "write":
        given.export.mkdir(parents=True, exist_ok=True)  # before anything is written that could not be exported
        write(s3, bucket, prefix, log, given.epochs)
        state.write_text(json.dumps({"epoch": log.epoch, "needs": log.needs}))
        export(log, given.export)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}segments/")
    there = {o["Key"].removeprefix(prefix) for page in pages for o in page.get("Contents", [])}
    oldest = min((epoch_of(k) for k, who in log.needs.items() if who), default=log.epoch)
    result = {
        "epoch": log.epoch,
        "objects": len(there),
        "needed_from": oldest,
        "garbage": sum(epoch_of(k) < oldest for k in there),
        "missing": sum(bool(who) and k not in there for k, who in log.needs.items()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
