"""l0gc's journals as a source of epochs: what M is computed from, one journal after another, wherever they are read.

A journal's checkpoint and the entries after it are the snapshot of all its partitions, always as new as the journal.

A controller log that was restored from a backup is found out here, too (hazard 10): a journal has seen an epoch that the
cluster has not reached, or it holds a topic that the controller does not know. So all journals are read, also those that
no topic uses: a forgotten topic may lie in any of them. An unused journal costs a request or two.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

from l0gc.errors import EpochRegressionError
from l0gc.storage.workers import LocalWorkers, Place, Workers
from l0gc.streamlog.cluster import Cluster, identity_of
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.summary import JournalReading, JournalTask, read_journal, tasks_of
from l0gc.watermark.publication import PublishedWatermark, watermark_of
from l0gc.watermark.source import WAY_OUT, ClusterIdentity, UnitSummary


class JournalSource:
    """The journals of a cluster.

    Args:
        workers: where they are read; by default in this process.
        readers: how many entries of a journal are read at once; 0 for one after another, as a test replays them.
    """

    external: Final = False
    snapshot_age_ms: Final = None
    way_out: Final = WAY_OUT

    def __init__(self, cluster: Cluster, workers: Workers[Place] | None = None, *, readers: int = 0) -> None:
        self._cluster = cluster
        self._workers = workers or LocalWorkers(cluster)
        self._read = functools.partial(_read, readers)
        self._state: ControllerState | None = None

    def snapshot(self) -> ClusterIdentity:
        self._state = self._cluster.controller.snapshot()
        return identity_of(self._state)

    def read(self, published: PublishedWatermark | None) -> list[UnitSummary]:
        """See `EpochSource.read`.

        Raises:
            EpochRegressionError: a journal holds a topic that the controller should know.
        """
        assert self._state is not None
        readings = self._workers.map(self._read, tasks_of(self._state, watermark_of(published)))
        for reading in readings:
            if unknown := unknown_topic(self._state, reading.summary.unit, reading.topics):
                raise EpochRegressionError(
                    f"{unknown}: it looks restored from a backup that is older than the topic; nothing was published. "
                    "Restore the newer controller log"
                )
        return [r.summary for r in readings]

    def epoch_now(self) -> int:
        return self._cluster.controller.snapshot().epoch


def _read(readers: int, place: Place, task: JournalTask) -> JournalReading:
    return read_journal(place.store, task, readers=readers)


def unknown_topic(state: ControllerState, unit: str, topics: Iterable[tuple[int, str]]) -> str:
    """The topic of a journal that a controller log which was not set back would know (hazard 10), as a sentence; or empty.

    Args:
        topics: revision and id of the topics that the journal holds.
    """
    for revision, topic_id in topics:
        if revision <= state.epoch and not state.knows(revision, topic_id):
            return f"{unit} holds a topic with revision {revision} and id {topic_id}, which the controller log does not know"
    return ""
