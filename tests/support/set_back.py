"""Sets a part of a bucket back to an older copy, and records its processes, their changes and what they acknowledged."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from l0gc.collect.sweep import SweepRun
from l0gc.errors import L0gcError
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.operations import Upload
from l0gc.runtime import Runtime
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import HIGH_WATERMARK, delete_records
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest.uploader import open_upload
from l0gc.streamlog.level_one.expire import expire
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.streamlog.topics import close_unknown_topics, delete_topic
from l0gc.watermark.pipeline import run_pipeline
from l0gc.watermark.publication import PublishedWatermark, decode_published, encode_published
from tests.support.ingest import stored_values
from tests.support.memory_store import MemoryStore, copy_of, memory_cluster, put_back
from tests.support.merge import merge
from tests.support.reconcile import reconcile
from tests.support.topics import create_topic, topics_of
from tests.support.vacuum import vacuum

TOPIC = "events"
INTERVAL_MS = 600_000
PATIENCE = 20
"""How often a refused upload is repeated, an epoch interval later each time."""
Objects = dict[str, bytes]


class Place:
    """A bucket, its processes, and the records that were reported to them as landed."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._processes = 0
        self.store = MemoryStore()
        self.acknowledged: list[bytes] = []
        self.copy: Objects = {}
        self.newest: Objects = {}
        memory_cluster(self.store)
        create_topic(self.process(), TOPIC, 3, 2)
        self.upload("first")

    def process(self) -> ClusterHandles:
        """Return the handles of a new process."""
        self._processes += 1
        return ClusterHandles(self.store, Runtime(self.store.clock, random.Random(self._processes)))

    def objects(self, prefix: str = "") -> Objects:
        return copy_of(self.store, prefix)

    def upload(self, job: str, topic: str = TOPIC) -> int:
        """Upload a job's records under the name of the only producer, and return how many landed."""
        lines = [f"{job}-{i:02}".encode() for i in range(20)]
        path = self._scratch / "lines"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        with ExitStack() as stack:
            uploader, inputs = open_upload(
                self.process(), topic, [str(path)], stack, Upload(producer="nightly", batch_bytes=100)
            )
            result = uploader.run(inputs)
        if topic == TOPIC:
            self.acknowledged += [line for line in lines if line not in self.acknowledged]
        return result.records

    def upload_until_accepted(self, job: str) -> list[type[L0gcError]]:
        """Repeat the upload as long as it is refused, and return the refusals."""
        refused: list[type[L0gcError]] = []
        for _ in range(PATIENCE):
            try:
                self.upload(job)
            except L0gcError as e:
                refused.append(type(e))
                self.store.clock.ms += INTERVAL_MS
                continue
            return refused
        raise AssertionError(f"{job} was refused {PATIENCE} times: {refused}")

    def compute(self) -> int:
        cluster = self.process()
        return run_pipeline(cluster, JournalSource(cluster)).watermark

    def loop(self) -> None:
        """Run everything that cron runs, twice."""
        for _ in range(2):
            self.store.clock.ms += INTERVAL_MS
            housekeep(self.process(), barrier=True)
            reconcile(self.process())
            self.compute()
            SweepRun(self.process()).run()

    def restore(self, prefix: str, copy: Objects) -> Objects:
        """Set objects back by `put_back`."""
        return put_back(self.store, prefix, copy)

    def published(self) -> PublishedWatermark:
        return decode_published(self.store.get(PUBLISHED_WATERMARK).body)

    def forget_ends(self) -> None:
        """Remove the ends of the journals from the published watermark."""
        forgotten = msgspec.structs.replace(self.published(), ends={})
        self.store.put(PUBLISHED_WATERMARK, encode_published(forgotten))

    def check(self) -> None:
        """Check that each acknowledged record can be read once."""
        values = [v for partition in stored_values(self.process(), TOPIC) for v in partition]
        assert sorted(values) == sorted(self.acknowledged)

    def check_all_is_well(self) -> None:
        """Check that records can be uploaded and deleted as usual, and that no unneeded object is left."""
        self.upload_until_accepted("last")
        self.loop()
        self.loop()
        self.check()
        assert self.objects("level_zero/") == {}


CHANGES: dict[str, Callable[[Place], object]] = {
    "upload": lambda p: p.upload("refused"),
    "topic create": lambda p: create_topic(p.process(), "refused", 1),
    "topic delete": lambda p: delete_topic(p.process(), TOPIC),
    "epoch advance": lambda p: p.process().controller.advance(),
    "producer": lambda p: p.process().controller.init_producer("refused"),
    "tick": lambda p: p.process().controller.tick_if_due(),
    "housekeep": lambda p: housekeep(p.process()),
    "housekeep --barrier": lambda p: housekeep(p.process(), barrier=True),
    "compute-watermark": lambda p: p.compute(),
    "sweep": lambda p: SweepRun(p.process()).run(),
    "advance --close-unknown-topics": lambda p: close_unknown_topics(p.process()),
    "topic alter": lambda p: topics_of(p.process()).alter(TOPIC, retention_ms=1, retention_bytes=1),
    "topic alter --defaults": lambda p: topics_of(p.process()).alter_defaults(retention_ms=1, retention_bytes=1),
    "reconcile": lambda p: reconcile(p.process()),
    "merge": lambda p: merge(p.process()),
    "expire": lambda p: expire(p.process()),
    "delete-records": lambda p: delete_records(p.process(), TOPIC, before_offset=HIGH_WATERMARK),
    "give-up": lambda p: give_up(p.process(), "ann", topic=TOPIC, partition=0, offsets=(0, 0)),
    "vacuum": lambda p: vacuum(p.process()),
}
