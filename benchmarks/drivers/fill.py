"""Found a cluster, fill it with L0 objects, and publish M; the environment names the cluster.

Run as a script: `fill.py SHARDS GARBAGE LIVE [GARBAGE LIVE]`; the last two are numbers of objects that the store
generates, and that are therefore not put. The published watermark has the counts that `compute-watermark` would have
found. Garbage has the epochs 1 to M, and live objects have the epochs above it. Names are random but the same in every
run; l0gc's own hash selects the shard of each. Prints what it created as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import uuid
from collections.abc import Iterator
from typing import Any, Final

import obstore
from obstore.store import S3Store as Obstore

from l0gc import api
from l0gc.keys import KeyLayout
from l0gc.storage.probe import probe
from l0gc.watermark.publication import PublishedWatermark, publish

WATERMARK: Final = 5
EPOCH: Final = 10
BODY: Final = b"x" * 200
PUTS_AT_ONCE: Final = 32
FOREIGN: Final = ("level_zero/data/README", "level_zero/data/000/1/short", "level_one/data/events-1/00000/kept.parquet")
"""Keys that are not L0 keys, which no program may touch."""


def keys(layout: KeyLayout, count: int, first_epoch: int, last_epoch: int, rng: random.Random) -> Iterator[str]:
    """Yield the keys of `count` objects, spread over the epochs from the first to the last."""
    for i in range(count):
        name = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        yield layout.format(layout.shard_of(name), first_epoch + i % (last_epoch - first_epoch + 1), name)


async def put_all(store: Obstore, names: Iterator[str]) -> None:
    """Put an object with each name, a few at a time."""

    async def work() -> None:
        for name in names:
            await obstore.put_async(store, name, BODY)

    await asyncio.gather(*(work() for _ in range(PUTS_AT_ONCE)))


def main(shards: int, garbage: int, live: int, made_up_garbage: int = 0, made_up_live: int = 0) -> dict[str, Any]:
    """Found the cluster and fill it."""
    with api.open(os.environ["L0GC_URL"]) as opened:
        cluster, store = opened.handles(), opened.store
        store.create_bucket()
        probe(store, cluster.runtime)
        cluster.controller.bootstrap(shards=shards)
        while cluster.controller.snapshot().epoch < EPOCH:
            cluster.controller.advance()
        if garbage + live:
            layout, rng = cluster.controller.layout(), random.Random(shards)
            bulk = Obstore(
                store.config.bucket,
                prefix=store.config.prefix or None,
                endpoint=store.access.endpoint_url,
                region=os.environ["AWS_REGION"],
                access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
                secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
                client_options={"allow_http": True},
            )
            asyncio.run(put_all(bulk, keys(layout, garbage, 1, WATERMARK, rng)))
            asyncio.run(put_all(bulk, keys(layout, live, WATERMARK + 1, EPOCH, rng)))
            asyncio.run(put_all(bulk, iter(FOREIGN if live else FOREIGN[-1:])))
        state = cluster.controller.snapshot()
        eligible = garbage + made_up_garbage
        counts = eligible, eligible * len(BODY), eligible + live + made_up_live
        seen = PublishedWatermark(state.cluster_id, WATERMARK, state.epoch, store.now_ms(), *counts)
        publish(store, cluster.runtime, seen)
    return {"shards": shards, "garbage": garbage, "live": live, "epoch": state.epoch}


if __name__ == "__main__":
    print(json.dumps(main(*(int(a) for a in sys.argv[1:]))))
