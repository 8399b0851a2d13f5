"""Readers of a cluster that others change: each reads whole topics, over and over, until the block ends."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final
from unittest import mock

import l0gc.streamlog.reader
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.reader import read_topic
from tests.crash.checks import BrokenError
from tests.crash.scenes import Records

_READERS: Final = 2
_PAUSE_S: Final = 0.05
"""The longest pause in seconds between two records of a reader, so that a vacuum comes in the middle of its read."""


@contextmanager
def readers(config: StoreConfig, records: Records, seed: str) -> Iterator[None]:
    """Run readers; raise `BrokenError` at the end of the block if one missed a record, or failed in any way."""
    ended = threading.Event()
    with (
        # The few records of a partition would otherwise be read at once.
        mock.patch.object(l0gc.streamlog.reader, "WINDOW_BYTES", 1),
        ThreadPoolExecutor(_READERS) as pool,
    ):
        under_way = [pool.submit(_read, config, records, f"{seed}:{n}", ended) for n in range(_READERS)]
        try:
            yield
        finally:
            ended.set()
        for reader in under_way:
            reader.result()


def _read(config: StoreConfig, records: Records, seed: str, ended: threading.Event) -> None:
    chance = random.Random(seed)
    try:
        while not ended.is_set():
            _read_all(config, records, chance)
    except Exception as e:
        raise BrokenError(f"a reader: {type(e).__name__}: {e}") from e


def _read_all(config: StoreConfig, records: Records, chance: random.Random) -> None:
    cluster = ClusterHandles(S3Store(config))
    for name, partitions in records.items():
        got: list[list[bytes]] = [[] for _ in partitions]
        for r in read_topic(cluster, cluster.controller.snapshot().topic(name)):
            if r.offset != len(got[r.partition]):
                raise BrokenError(f"{name}/{r.partition} gave offset {r.offset} after {len(got[r.partition])} records")
            got[r.partition].append(r.value)
            time.sleep(chance.random() * _PAUSE_S)
        if got != partitions:
            raise BrokenError(f"{name} gave {got}, not {partitions}")
