"""The clusters in which commands are killed: built in memory by l0gc's own functions, and copied to a real server.

A scene is the same for every point of a command, and costs one write for each object. Its log entries are 20 minutes
old, so a tick is due. The store dates its objects anew, whatever is in them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from l0gc.keys import CONTROLLER_LOG, KeyLayout, level_one, parse_level_one
from l0gc.storage.log import TRUNCATE_MIN_AGE_MS
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one.merge_plan import DRAINED_AGE_MS, MergeRule
from l0gc.streamlog.level_one.share import LEAST_PARTITIONS
from l0gc.streamlog.pins import create_pin
from l0gc.streamlog.topics import delete_topic
from l0gc.watermark.histogram import read_listing
from l0gc.watermark.pipeline import run_pipeline
from tests.support.ingest import upload
from tests.support.memory_store import FakeClock, MemoryStore, memory_cluster
from tests.support.merge import merge
from tests.support.reconcile import reconcile

TOPIC: Final = "events"
SMALL: Final = "other"
DELETED: Final = "gone"
MANY: Final = "many"
"""The topic whose partitions share L1 objects."""
PARTITIONS: Final = {TOPIC: 2, SMALL: 1}
AGE_S: Final = TRUNCATE_MIN_AGE_MS // 1000 + 300
INPUT: Final = [f"new-{i:03}".encode() for i in range(30)]
"""The input of `upload`."""

LIFTS: Final = 5
"""How many L1 objects a partition has if there is something to merge."""
_ENTRIES: Final = 50
"""How many entries a journal has after its last checkpoint, more than housekeeping permits."""

Records = dict[str, list[list[bytes]]]
"""The values of each partition, by topic."""


@dataclass(frozen=True)
class Scene:
    """A bucket's objects, and the records in them; `watermark` is the M that `compute-watermark` computes for it."""

    objects: dict[str, bytes]
    records: Records
    layout: KeyLayout
    watermark: int = -1


class _Builder:
    def __init__(self, scratch: Path, age_ms: int = AGE_S * 1000) -> None:
        self._scratch = scratch
        self.store = MemoryStore(FakeClock(time.time_ns() // 1_000_000 - age_ms))
        self.cluster = memory_cluster(self.store)
        self.records: Records = {t: [[] for _ in range(n)] for t, n in PARTITIONS.items()}
        for topic, partitions in PARTITIONS.items():
            self.cluster.controller.create_topic(topic, partitions, partitions)
        for topic, count in ((TOPIC, 12), (SMALL, 4)):
            self.upload(topic, count)

    def upload(self, topic: str, count: int) -> None:
        """Upload records in several L0 objects, at their own epoch."""
        self.cluster.controller.advance()
        before = sum(map(len, self.records[topic]))
        lines = [f"{topic}-{i:03}".encode() for i in range(before, before + count)]
        file = self._scratch / "lines"
        file.write_bytes(b"\n".join(lines))
        upload(self.cluster, topic, [file], batch_bytes=150)
        for partition, there in enumerate(self.records[topic]):
            there.extend(in_turn(lines, partition, len(self.records[topic])))

    def scene(self, watermark: int = -1) -> Scene:
        objects = {k: o.body for k, o in self.store.objects.items()}
        return Scene(objects, self.records, self.cluster.controller.layout(), watermark)

    def many_l1_objects(self) -> None:
        """Add `LIFTS` more L1 objects to each partition of `TOPIC`."""
        for _ in range(LIFTS):
            self.upload(TOPIC, 4)
            self.lift()

    def lift(self) -> None:
        """Lift all records to L1, and raise M above them."""
        housekeep(self.cluster, barrier=True)
        reconcile(self.cluster)
        housekeep(self.cluster)
        compute_watermark(self.cluster)


def in_turn(lines: list[bytes], partition: int, partitions: int) -> list[bytes]:
    """Return the lines that a partition gets from an upload without `--partition` and `--key-field`."""
    return lines[partition::partitions]


def compute_watermark(cluster: ClusterHandles) -> int:
    """Publish M, and return it; the bucket is listed."""
    listing = partial(read_listing, LocalWorkers(cluster))
    return run_pipeline(cluster, JournalSource(cluster), listing).watermark


def quiet(scratch: Path) -> Scene:
    """Build two topics, with records in L0."""
    return _Builder(scratch).scene()


def pinned(scratch: Path) -> Scene:
    """Build the same with a pin."""
    b = _Builder(scratch)
    create_pin(b.cluster, "backup", 3_600_000)
    return b.scene()


def overdue(scratch: Path) -> Scene:
    """Build everything that housekeeping has to do, once 20 minutes have passed.

    The controller's log has a checkpoint and the entries that it covers; a journal is due for a checkpoint; a deleted
    topic is open in its journal.
    """
    b = _Builder(scratch)
    b.cluster.controller.create_topic(DELETED, 1)
    b.upload(TOPIC, 4)
    b.cluster.controller.delete_topic(DELETED)
    first = b.cluster.journal(b.cluster.controller.snapshot().topic(TOPIC).journals[0])
    for _ in range(_ENTRIES):
        first.advance(b.cluster.controller.advance())
    b.cluster.controller.replica.write_checkpoint()
    b.cluster.controller.advance()
    assert f"{CONTROLLER_LOG}boundary.json" not in b.store.objects
    return b.scene()


def reconciled(scratch: Path) -> Scene:
    """Build an M that can move up: records in L1, and more in L0."""
    b = _Builder(scratch)
    b.lift()
    b.upload(TOPIC, 6)
    reconcile(b.cluster)
    b.upload(TOPIC, 6)
    housekeep(b.cluster, barrier=True)
    before = b.scene()
    watermark = compute_watermark(b.cluster)
    return Scene(before.objects, before.records, before.layout, watermark)


def sweepable(scratch: Path) -> Scene:
    """Build L0 objects in every shard that M allows to delete, orphans among them, and live ones above M."""
    b = _Builder(scratch)
    layout, chance = b.cluster.controller.layout(), random.Random(7)
    for shard in range(layout.shards):
        name = b.cluster.runtime.new_id()
        b.store.put(layout.format(shard, chance.randrange(3), name), b"orphan")
    b.upload(TOPIC, 8)
    b.lift()
    b.upload(TOPIC, 8)
    housekeep(b.cluster)
    return b.scene(compute_watermark(b.cluster))


def mergeable(scratch: Path) -> Scene:
    """Build several small L1 objects in each partition."""
    b = _Builder(scratch)
    b.many_l1_objects()
    return b.scene(compute_watermark(b.cluster))


def too_old(scratch: Path) -> Scene:
    """Build a topic with records in L1, none of which its retention keeps, and more that are not in L1 yet."""
    b = _Builder(scratch)
    b.cluster.controller.alter_topic(TOPIC, RetentionSettings(bytes=0))
    b.upload(TOPIC, 6)
    b.lift()
    b.upload(TOPIC, 6)
    return b.scene(compute_watermark(b.cluster))


def vacuumable(scratch: Path) -> Scene:
    """Build L1 objects that were merged away, that were expired, that a deleted topic had, and that no journal has ever
    named; with records in L1 and in L0 that stay.
    """
    b = _littered(scratch)
    b.upload(TOPIC, 4)
    return b.scene(compute_watermark(b.cluster))


def unfinished(scratch: Path) -> Scene:
    """Build the scene of `vacuumable`, with more to merge and more to reconcile."""
    b = _littered(scratch)
    b.many_l1_objects()
    b.upload(TOPIC, 4)
    b.upload(SMALL, 4)
    return b.scene(compute_watermark(b.cluster))


def sharing(scratch: Path) -> Scene:
    """Build two shared L1 objects, a day old, of partitions that have more records in L0."""
    b = _Builder(scratch, AGE_S * 1000 + DRAINED_AGE_MS)
    b.cluster.controller.create_topic(MANY, LEAST_PARTITIONS)
    b.records[MANY] = [[] for _ in range(LEAST_PARTITIONS)]
    for _ in range(2):
        b.upload(MANY, LEAST_PARTITIONS)
        b.lift()
    assert sum(parsed is not None and parsed.journal >= 0 for parsed in map(parse_level_one, b.store.objects)) == 2
    b.store.clock.ms += DRAINED_AGE_MS
    b.upload(MANY, LEAST_PARTITIONS)
    return b.scene(compute_watermark(b.cluster))


def _littered(scratch: Path) -> _Builder:
    b = _Builder(scratch)
    b.cluster.controller.create_topic(DELETED, 1)
    file = scratch / "gone"
    file.write_bytes(b"x\ny\nz")
    upload(b.cluster, DELETED, [file])
    b.many_l1_objects()
    merged = merge(b.cluster, rule=MergeRule(fan_in=2))
    assert merged.objects_after
    delete_topic(b.cluster, DELETED)
    topic = b.cluster.controller.snapshot().topic(TOPIC)
    for n in range(2):
        b.store.put(level_one(topic.id(n), 1, 0, 9, b.cluster.runtime.new_id()), b"orphan")
    for _ in range(3):  # epochs of grace
        b.cluster.controller.advance()
    return b


Build = Callable[[Path], Scene]
