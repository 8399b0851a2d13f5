"""Three controller logs that were set back to a backup, from beginning to end (hazard 10).

Whatever is acknowledged, before or after, is read back once. A command that is refused leaves the bucket as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from l0gc.collect.local import LocalSweep
from l0gc.collect.vacuum import Vacuum
from l0gc.collect.vacuum_plan import VacuumOptions
from l0gc.errors import EpochRegressionError, InvalidProducerEpochError, L0gcError
from l0gc.keys import CONTROLLER_LOG
from l0gc.runtime import Runtime
from l0gc.storage.parallel import Inline
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.delete_records import HIGH_WATERMARK, delete_records
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest.job import open_upload
from l0gc.streamlog.level_one.expire import expire
from l0gc.streamlog.level_one.merge import merge
from l0gc.streamlog.topics import close_unknown_topics, create_topic, delete_topic
from l0gc.watermark.pipeline import Pipeline
from l0gc.watermark.publication import read_published, watermark_of
from tests.support.ingest import stored_values
from tests.support.memory_store import MemoryStore, memory_cluster
from tests.support.reconcile import reconcile

TOPIC = "events"
INTERVAL_MS = 600_000
PATIENCE = 20
"""So often somebody repeats an upload that was refused, an epoch interval later each time."""
Objects = dict[str, bytes]


class Place:
    """A bucket, its processes, and what was reported to them as landed."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._processes = 0
        self.store = MemoryStore()
        self.acknowledged: list[bytes] = []
        memory_cluster(self.store)
        create_topic(self.process(), TOPIC, 3, 2)
        self.upload("first")
        self.backup = self.objects(CONTROLLER_LOG)

    def process(self) -> Cluster:
        """The handles of a new process."""
        self._processes += 1
        return Cluster(self.store, Runtime(self.store.clock, random.Random(self._processes)))

    def objects(self, prefix: str = "") -> Objects:
        return {k: o.body for k, o in self.store.objects.items() if k.startswith(prefix)}

    def upload(self, job: str) -> int:
        """Upload a job's records under the name of the one producer, and return how many landed now."""
        lines = [f"{job}-{i:02}".encode() for i in range(20)]
        path = self._scratch / "lines"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        with ExitStack() as stack:
            uploader, inputs = open_upload(
                self.process(), TOPIC, [str(path)], stack, producer="nightly", batch_bytes=100
            )
            result = uploader.run(inputs)
        self.acknowledged += [line for line in lines if line not in self.acknowledged]
        return result.records

    def upload_until_accepted(self, job: str) -> list[type[L0gcError]]:
        """Repeat the upload as long as it is refused; returns with what."""
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
        return Pipeline(cluster, JournalSource(cluster)).run().watermark

    def loop(self) -> None:
        """Everything that cron does, twice."""
        for _ in range(2):
            self.store.clock.ms += INTERVAL_MS
            housekeep(self.process(), barrier=True)
            reconcile(self.process())
            self.compute()
            LocalSweep(self.process()).run(Inline())

    def restore(self, log: Objects) -> Objects:
        """Put this log in the place of the one that is there, which is returned. Every process was stopped before."""
        there = self.objects(CONTROLLER_LOG)
        self.store.delete(list(there))
        for key, body in log.items():
            self.store.put(key, body)
        return there

    def check(self) -> None:
        """Each acknowledged record can be read once."""
        values = [v for partition in stored_values(self.process(), TOPIC) for v in partition]
        assert sorted(values) == sorted(self.acknowledged)

    def check_all_is_well(self) -> None:
        """Records come and go as ever, and nothing that nobody needs is left."""
        self.upload_until_accepted("last")
        self.loop()
        self.loop()
        self.check()
        assert self.objects("level_zero/") == {}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def vacuum(cluster: Cluster) -> None:
    Vacuum(cluster, JournalGarbage(cluster), VacuumOptions(l1_grace_ms=0, orphan_age_ms=0)).run(Inline())


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
    "sweep": lambda p: LocalSweep(p.process()).run(Inline()),
    "advance --close-unknown-topics": lambda p: close_unknown_topics(p.process()),
    "topic alter": lambda p: p.process().controller.alter_topic(TOPIC, RetentionSettings(1, 1)),
    "topic alter --defaults": lambda p: p.process().controller.alter_defaults(RetentionSettings(1, 1)),
    "reconcile": lambda p: reconcile(p.process()),
    "merge": lambda p: merge(p.process()),
    "expire": lambda p: expire(p.process()),
    "delete-records": lambda p: delete_records(p.process(), TOPIC, before_offset=HIGH_WATERMARK),
    "vacuum": lambda p: vacuum(p.process()),
}


def nobody_gets_anything(place: Place) -> None:
    """Each change is refused, and leaves all as it was; a tick would be due."""
    place.store.clock.ms += 2 * INTERVAL_MS
    before = place.objects()
    for name, change in CHANGES.items():
        with pytest.raises(EpochRegressionError) as e:
            change(place)
        assert e.value.exit_code == 4
        assert place.objects() == before, name


def test_noticed_and_recovered_as_documented(place: Place) -> None:
    """The newer log is lost for good: `epoch advance --above E --close-unknown-topics`."""
    place.upload("second")
    create_topic(place.process(), "young", 2, 2)
    place.upload("third")
    place.compute()
    newest = place.restore(place.backup)
    nobody_gets_anything(place)

    operator = place.process()
    highest = max(int(key[-20:]) for key in newest if "/log/" in key)
    operator.controller.advance_above(highest)
    close_unknown_topics(operator)
    # The controller gives out the epochs of the second run and of the third once more, and journals know these runs.
    assert place.upload_until_accepted("fourth") == [InvalidProducerEpochError] * 2
    assert (place.upload("second"), place.upload("third")) == (0, 0)
    place.check_all_is_well()


def test_unnoticed(place: Place) -> None:
    """Nothing was published since the backup, so only the runs of producers and the windows of journals show it."""
    place.upload("second")
    place.restore(place.backup)
    refused = place.upload_until_accepted("third")
    assert set(refused) == {InvalidProducerEpochError}
    assert place.upload("second") == 0
    place.check_all_is_well()


def test_unnoticed_by_a_producer_that_is_new(place: Place) -> None:
    """The windows of journals are above the cluster epoch: nothing lands there before that has caught up."""
    for _ in range(3):
        place.store.clock.ms += INTERVAL_MS
        housekeep(place.process(), barrier=True)
    place.upload("second")
    place.restore(place.backup)
    refused = place.upload_until_accepted("third")
    assert EpochRegressionError in refused
    place.check_all_is_well()


def test_m_above_the_epoch(place: Place) -> None:
    """Nobody gets anything until the newest log is back, and then all goes on as before."""
    place.upload("second")
    place.loop()
    place.upload("third")
    epoch = place.process().controller.epoch()
    newest = place.restore(place.backup)
    cluster = place.process()
    published = watermark_of(read_published(place.store, cluster.identity().cluster_id)[0])
    assert cluster.controller.epoch() < published < epoch
    nobody_gets_anything(place)
    place.restore(newest)
    assert place.upload("second") == 0
    place.check_all_is_well()
