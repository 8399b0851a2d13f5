"""Readers of a cluster that others work on: each reads whole topics, over and over, until it is stopped."""

from __future__ import annotations

import random
import threading
import time
from types import TracebackType
from typing import Final, Self
from unittest import mock

import l0gc.streamlog.reader
from l0gc.errors import L0gcError
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.reader import read_topic
from tests.crash.checks import BrokenError
from tests.crash.scenes import Records

_READERS: Final = 2
_PAUSE_S: Final = 0.05
"""The longest pause between two records of a reader: a vacuum comes in the middle of what it reads."""


class Readers:
    """A context manager; leaving it raises `BrokenError` if a reader missed a record, or was told of a loss."""

    def __init__(self, config: StoreConfig, records: Records, seed: str) -> None:
        self._config, self._records, self._seed = config, records, seed
        self._ended = threading.Event()
        self._wrong: list[str] = []
        self._threads = [threading.Thread(target=self._read, args=(n,)) for n in range(_READERS)]
        self._by_object = mock.patch.object(l0gc.streamlog.reader, "WINDOW_BYTES", 1)
        """So few records are in one partition that they would be read at once otherwise."""

    def __enter__(self) -> Self:
        self._by_object.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._by_object.stop()
        if self._wrong and error is None:
            raise BrokenError(self._wrong[0])

    def _read(self, n: int) -> None:
        chance = random.Random(f"{self._seed}:{n}")
        try:
            while not self._ended.is_set():
                self._read_all(chance)
        except (L0gcError, BrokenError) as e:
            self._wrong.append(f"a reader: {type(e).__name__}: {e}")

    def _read_all(self, chance: random.Random) -> None:
        cluster = Cluster(S3Store(self._config))
        for name, partitions in self._records.items():
            got: list[list[bytes]] = [[] for _ in partitions]
            for r in read_topic(cluster, cluster.controller.snapshot().topic(name)):
                if r.offset != len(got[r.partition]):
                    raise BrokenError(f"{name}/{r.partition} gave offset {r.offset} behind {len(got[r.partition])}")
                got[r.partition].append(r.value)
                time.sleep(chance.random() * _PAUSE_S)
            if got != partitions:
                raise BrokenError(f"{name} gave {got}, not {partitions}")
