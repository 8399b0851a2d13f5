"""l0gc's journals as a source of epochs, from which M is computed, in this process or on executors.

A journal's checkpoint and the entries after it are the snapshot of all its partitions, always as new as the journal.

A controller log restored from a backup is also detected here (hazard 10): a journal has seen an epoch that the cluster
has not reached, or holds a topic that the controller does not have. So all journals are read, including unused ones,
since any of them may hold a forgotten topic. An unused journal costs a request or two.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from l0gc.errors import EpochRegressionError, L0gcError
from l0gc.formatting import moment
from l0gc.storage.workers import LocalWorkers, Workers, Workplace
from l0gc.streamlog.cluster import ClusterHandles, identity_of
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.summary import JournalTask, read_journal, summary_of, tasks_of
from l0gc.watermark.publication import PublishedWatermark, ends_of, watermark_of
from l0gc.watermark.source import CONTROLLER_REMEDY, PINNED, ClusterIdentity, Holder, PinnedUnits, UnitSummary


class JournalSource:
    """The journals of a cluster.

    Args:
        workers: the workers that read them; by default this process.
        readers: how many entries of a journal are read at once; 0 to read them one after another, for tests that replay
            the order.
    """

    external: Final = False
    snapshot_age_ms: Final = None
    remedy: Final = CONTROLLER_REMEDY

    def __init__(self, cluster: ClusterHandles, workers: Workers[Workplace] | None = None, *, readers: int = 0) -> None:
        self._cluster = cluster
        self._workers = workers or LocalWorkers(cluster)
        self._read = functools.partial(_read, readers)
        self._state: ControllerState | None = None
        self._now = ControllerState()

    def snapshot(self) -> ClusterIdentity:
        self._state = self._cluster.controller.snapshot()
        return identity_of(self._state)

    def read(self, published: PublishedWatermark | None) -> list[UnitSummary]:
        """Read the summaries: see `EpochSource.read`.

        Raises:
            EpochRegressionError: a journal holds a topic that the controller should have.
        """
        assert self._state is not None
        readings = self._workers.map(
            self._read, tasks_of(self._state, watermark_of(published), noted=ends_of(published))
        )
        for summary, topics in readings:
            if unknown := unknown_topic(self._state, summary.unit, topics):
                raise EpochRegressionError(
                    f"{unknown}: it looks restored from a backup that is older than the topic; nothing was published. "
                    "Restore the newer controller log, or see l0gc help operate-logs"
                )
        return [summary for summary, _ in readings]

    def epoch_now(self) -> int:
        self._now = self._cluster.controller.snapshot()
        return self._now.epoch

    def pins(self, published: int) -> PinnedUnits:
        return pins_of(self._now, published)


def _read(readers: int, workplace: Workplace, task: JournalTask) -> tuple[UnitSummary, list[tuple[int, str]]]:
    return read_journal(workplace.store, task, readers=readers)


def pins_of(state: ControllerState, published: int) -> PinnedUnits:
    """Return the pins of a state as units that hold back M. `published` is the M that was published before the state was
    read.

    A pin that has not taken effect keeps M where it is. So does a pin below M, which had ended before the controller log
    was restored from a backup (hazard 10).
    """
    units = []
    for pin in state.pins.values():
        if not pin.level_one:
            reason = f"pin {pin.name!r} until {moment(pin.end_ms)} (l0gc pin delete)"
            holder = Holder("", -1, max(pin.watermark, published), PINNED, reason)
            units.append(UnitSummary(unit=f"pin {pin.name}", gc_epochs={}, lowest=[holder]))
    return PinnedUnits(state.epoch, units)


def unknown_topic(state: ControllerState, unit: str, topics: Iterable[tuple[int, str]]) -> str:
    """Return a sentence on a topic of a journal that an intact controller log would contain (hazard 10); empty if there is
    none.

    Args:
        topics: the revisions and ids of the topics that the journal holds.
    """
    for revision, topic_id in topics:
        if revision <= state.epoch and not state.has_created(revision, topic_id):
            return f"{unit} holds a topic with revision {revision} and id {topic_id}, which the controller log does not list"
    return ""


class JournalTotals(NamedTuple):
    """`lowest` is the highest possible M, or None if a journal cannot be read. `landed` is a hash of how much has landed
    so far.
    """

    lowest: int | None
    landed: int


def journal_totals(cluster: ClusterHandles) -> JournalTotals:
    """Return the totals of the journals now, so that a process can cheaply check whether M could move.

    They only decide whether a run is worth starting. M is computed from journals that are read for that purpose.
    """
    state = cluster.controller.snapshot()
    try:
        cluster.parallel.map(lambda journal: cluster.journal(journal).catch_up(whole=False), state.journals_in_use())
    except L0gcError:
        return JournalTotals(None, -1)
    epochs: list[int] = [state.epoch]
    landed: list[tuple[int, int]] = []
    for journal in state.journals_in_use():
        runs = state.topics_of(journal)
        handle = cluster.journal(journal)
        with handle.replica.lock:
            head = handle.head
            summary = summary_of(journal, runs, head, handle.replica.end)
            landed += [(t.revision, head.topic(t.revision).landed) for t, _ in runs]
        if summary.gc_epoch is not None:
            epochs.append(summary.gc_epoch)
    epochs += [p.watermark for p in state.pins.values() if p.in_effect and not p.level_one]
    return JournalTotals(min(epochs), landed_number(landed))


def landed_number(landed: Iterable[tuple[int, int]]) -> int:
    """Return a hash of how many records have landed in each topic of each journal, given with the topics' revisions."""
    return zlib.crc32(msgspec.msgpack.encode(sorted(landed)))
