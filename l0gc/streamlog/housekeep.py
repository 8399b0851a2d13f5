"""Housekeep: tick, slide idle windows, close deleted topics, and keep the logs short.

Each step is safe to run at any time, by any number of processes: a tick, an advance and a closing are ordinary log
entries, a checkpoint holds the state of its log, and truncation follows the shared log's rules. The cost grows with the
journals in use, never with their partitions: an idle journal takes one entry. A failure affects only its own log, which is
named; the work on all other logs is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from l0gc.errors import CorruptObjectError, EpochRegressionError, PartialFailureError, ProtocolError, StoreError
from l0gc.formatting import Outcome, count
from l0gc.storage.replica import Replica
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import Topic
from l0gc.watermark.publication import refuse_if_set_back

S = TypeVar("S")

_OF_ONE_LOG: Final = (CorruptObjectError, StoreError, ProtocolError)
"""The errors that affect a single log. A missing cluster, or a controller log that was set back, affects all."""

_NAMED: Final = 3
"""The most logs that the error message names."""


class LogFailure(msgspec.Struct, frozen=True):
    """A log for which housekeeping failed, and why; `journal` is None for the controller's."""

    journal: int | None
    error: str

    @property
    def log(self) -> str:
        return "the controller's log" if self.journal is None else f"journal {self.journal}"


class HousekeepResult(msgspec.Struct, Outcome):
    """The result of a housekeeping run.

    Attributes:
        cluster_epoch: The epoch to which windows were moved.
        ticked: Whether the epoch moved in this run.
        journals: How many journals are in use: each keeps at least one partition of a topic.
        partitions: How many partitions exist.
        advanced: How many journals' windows slid.
        barriers: How many journals' windows were closed.
        checkpoints: How many checkpoints were written, including the controller's.
        truncated_entries: How many log entries were deleted.
        closed: How many deleted topics were closed in this run, counted in each journal that kept them.
        broken: The logs for which it failed, each with `journal` (null for the controller's log) and `error`; for all
            others it is done. If a journal in use is among them, it holds back M. If there are any, the exit code is 3.
    """

    cluster_epoch: int
    ticked: bool = False
    advanced: int = 0
    barriers: int = 0
    checkpoints: int = 0
    truncated_entries: int = 0
    closed: int = 0
    journals: int = 0
    partitions: int = 0
    broken: list[LogFailure] = []

    @property
    def problem(self) -> PartialFailureError | None:
        if not self.broken:
            return None
        named = "; ".join(f"{b.log}: {b.error}" for b in self.broken[:_NAMED])
        return PartialFailureError(
            f"housekeeping failed for {count(len(self.broken), 'log')} and is done for all others; a journal that topics "
            f"use holds M until it succeeds: {named}"
        )


class _Log(msgspec.Struct):
    """The work done at one log, and its error."""

    journal: int | None
    moved: bool = False
    closed: int = 0
    checkpoints: int = 0
    truncated: int = 0
    errors: list[str] = []

    def attempt(self, step: Callable[[], object]) -> None:
        """Carry out a step; record its failure, so that the other steps are still carried out."""
        try:
            step()
        except _OF_ONE_LOG as e:
            self.errors.append(str(e))

    def checkpoint_and_truncate(self, replica: Replica[S], controller: Controller) -> None:
        """Checkpoint and truncate, each if it is worth its requests. Entries that a replay as of a pin needs are kept."""
        if replica.checkpoint_due(housekeeping=True):
            replica.write_checkpoint()
            self.checkpoints += 1
        self.truncated += replica.truncate(lambda: controller.snapshot().pinned_at(self.journal))


def housekeep(cluster: ClusterHandles, *, barrier: bool = False) -> HousekeepResult:
    """Housekeep the whole cluster once. A log for which a step fails is named in `broken`; the work on all other logs is
    done.

    Args:
        barrier: tick in any case, and close every window to that tick, so that only unreconciled records keep M below it.

    Raises:
        NotInitialisedError, CorruptObjectError, StoreError: the controller's log cannot be read.
        SafetyError: `published.json` is ahead of the controller's log (hazard 10) or belongs to another cluster, or
            another system counts the epochs. Nothing was written.
    """
    controller = cluster.controller
    before = refuse_if_set_back(cluster).identity.cluster_epoch
    own = _Log(None)
    own.attempt(controller.advance if barrier else controller.tick_if_due)
    state = controller.snapshot()
    in_use, deleted_of = state.journals_in_use(), state.deleted_of()
    own.attempt(lambda: own.checkpoint_and_truncate(controller.replica, controller))

    def keep(journal: int) -> _Log:
        deleted = deleted_of.get(journal, [])
        return _keep(cluster, journal, state.epoch if journal in in_use else None, deleted, barrier=barrier)

    logs = [own, *cluster.parallel.map(keep, sorted({*in_use, *deleted_of}))]
    moved = sum(log.moved for log in logs)
    return HousekeepResult(
        state.epoch,
        ticked=state.epoch != before,
        advanced=0 if barrier else moved,
        barriers=moved if barrier else 0,
        checkpoints=sum(log.checkpoints for log in logs),
        truncated_entries=sum(log.truncated for log in logs),
        closed=sum(log.closed for log in logs),
        journals=len(in_use),
        partitions=state.partition_count,
        broken=[LogFailure(log.journal, "; ".join(dict.fromkeys(log.errors))) for log in logs if log.errors],
    )


def _keep(cluster: ClusterHandles, journal: int, epoch: int | None, deleted: Sequence[Topic], *, barrier: bool) -> _Log:
    """Housekeep one journal.

    Args:
        epoch: the epoch to move its window to; None if it has no topic any more.
        deleted: the topics to close here, unless they already are.
    """
    log, handle = _Log(journal), cluster.journal(journal)
    try:
        if handle.unread is not None:
            raise handle.unchecked_error(handle.unread)
        handle.check_not_ahead(handle.catch_up(whole=False).max_applied_epoch)
    except (*_OF_ONE_LOG, EpochRegressionError) as e:
        log.errors.append(str(e))
        return log

    def move() -> None:
        if epoch is not None:
            log.moved = handle.barrier(epoch) if barrier else handle.advance(epoch)

    def close() -> None:
        state = handle.head  # read anew if the move failed
        left = {t.revision: t.topic_id for t in deleted if not state.closed(t.revision)}
        if left:
            log.closed += len(handle.close_topics(left))

    log.attempt(move)
    log.attempt(close)
    log.attempt(lambda: log.checkpoint_and_truncate(handle.replica, cluster.controller))
    return log
