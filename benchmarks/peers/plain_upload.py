"""The same upload without any guarantee: lines to 8 groups by a key, 4 MiB of records to an object, objects to S3.

It is a simple program with pyarrow, boto3 and msgspec: only the key is decoded, a group is an Arrow record batch, an
object is one Arrow IPC stream with zstd, and two threads encode and put while the lines are read. It has no epoch, no
checksum, no log and no order among objects; a run that is cut off cleans nothing up.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import boto3
import msgspec
import pyarrow as pa
from botocore.config import Config

BATCH_BYTES = 4 << 20
RECORD_OVERHEAD = 16
"""The bytes that l0gc counts for a record in addition to its own; counted here, too, so that objects have the same
number and size.
"""
THREADS = 2
SCHEMA = pa.schema([("timestamp", pa.timestamp("ms", tz="UTC")), ("key", pa.binary()), ("value", pa.binary())])
OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


class Sender:
    """Encodes and puts batches on a few threads; at most one more batch waits."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._client = boto3.client(
            "s3",
            endpoint_url=os.environ.get("AWS_ENDPOINT_URL_S3"),
            config=Config(max_pool_connections=8, s3={"addressing_style": "path"}),
        )
        self._bucket, self._prefix = bucket, prefix
        self._pool = ThreadPoolExecutor(THREADS)
        self._slots = threading.BoundedSemaphore(THREADS + 1)
        self._sent: list[Future[int]] = []

    def send(self, groups: dict[int, tuple[list[bytes], list[bytes]]]) -> None:
        """Put a batch in the background."""
        self._slots.acquire()
        future = self._pool.submit(self._put, groups, time.time_ns() // 1_000_000)
        future.add_done_callback(lambda _: self._slots.release())
        self._sent.append(future)

    def finish(self) -> list[int]:
        """Return the objects' sizes, once all are put."""
        with self._pool:
            return [f.result() for f in self._sent]

    def _put(self, groups: dict[int, tuple[list[bytes], list[bytes]]], now_ms: int) -> int:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA, options=OPTIONS) as writer:
            for _, (keys, values) in sorted(groups.items()):
                timestamps = pa.array([now_ms] * len(values), SCHEMA.field("timestamp").type)
                columns = [timestamps, pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
                writer.write_batch(pa.record_batch(columns, SCHEMA))
        body = sink.getvalue().to_pybytes()
        self._client.put_object(Bucket=self._bucket, Key=f"{self._prefix}{uuid.uuid4()}", Body=body)
        return len(body)


def main(bucket: str, prefix: str, field: str, partitions: int, names: list[str]) -> dict[str, Any]:
    """Upload the files' lines."""
    shape = msgspec.defstruct("Keyed", [("key", str)], rename={"key": field})
    decode = msgspec.json.Decoder(shape).decode
    sender = Sender(bucket, prefix)
    placed: dict[str, tuple[int, bytes]] = {}
    groups: dict[int, tuple[list[bytes], list[bytes]]] = {}
    size = records = 0
    for name in names:
        with open(name, "rb") as lines:  # noqa: PTH123 - a plain script
            for with_newline in lines:
                line = with_newline.rstrip(b"\n")
                text: str = decode(line).key  # type: ignore[attr-defined]
                place = placed.get(text)
                if place is None:
                    key = text.encode()
                    place = placed[text] = (zlib.crc32(key) % partitions, key)
                group = groups.get(place[0])
                if group is None:
                    group = groups[place[0]] = ([], [])
                group[0].append(place[1])
                group[1].append(line)
                records += 1
                size += len(line) + RECORD_OVERHEAD
                if size >= BATCH_BYTES:
                    sender.send(groups)
                    groups, size = {}, 0
    if groups:
        sender.send(groups)
    sizes = sender.finish()
    return {"records": records, "objects": len(sizes), "bytes": sum(sizes)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])))
