"""The partition's state machine (pure): what each entry does, what may be appended, and what epoch may still be needed.

What makes deletion safe: `min_epoch_lower_bound` is the lowest epoch that anything unreconciled here has, or that anything
may still land at. It follows `previous_applied_epoch`, never `max_applied_epoch` (hazard 1), because a straggler at the
previous epoch may still land; and it never goes down. `M(p)`, the gc epoch, is its predecessor.

Sources: the per-partition replicated state machine and the sliding window of Redpanda Cloud Topics.
"""

from __future__ import annotations

from typing import Final

import msgspec

from l0gc.epoch import is_epoch, prev
from l0gc.errors import (
    CorruptObjectError,
    L0gcError,
    PartitionClosedError,
    PoisonedEpochError,
    StaleClusterEpochError,
    StaleReconcilerError,
    UsageError,
)
from l0gc.keys import PartitionId
from l0gc.storage.log import Landed
from l0gc.streamlog.controller.state import PRODUCER_EXPIRY_MS
from l0gc.streamlog.journal import producers as producer_rules
from l0gc.streamlog.journal.entries import (
    Advance,
    Barrier,
    Closed,
    Int62,
    L1File,
    LandedBatch,
    PartitionEntry,
    Placeholder,
    Placeholders,
    ProducerState,
    Reconciled,
    Unreconciled,
)
from l0gc.streamlog.journal.window import EpochWindow

_MAX_OFFSET: Final = 2**62


class PartitionState(msgspec.Struct):
    """A partition as of one log offset. A new one may still need its topic's revision, and nothing below it."""

    revision: Int62
    max_applied_epoch: Int62
    previous_applied_epoch: Int62
    min_epoch_lower_bound: Int62
    current_epoch_window_offset: Int62 = -1
    next_offset: Int62 = 0
    last_reconciled_offset: Int62 = -1
    last_reconciled_log_offset: Int62 = -1
    placeholders: list[Unreconciled] = []
    l1: list[L1File] = []
    producers: dict[int, ProducerState] = {}
    closed: bool = False
    time_ms: Int62 = 0

    @classmethod
    def new(cls, revision: int) -> PartitionState:
        return cls(revision, revision, revision, revision)

    @property
    def window(self) -> EpochWindow:
        """The applied window."""
        return EpochWindow(self.previous_applied_epoch, self.max_applied_epoch)

    @property
    def gc_epoch(self) -> int:
        """M(p): as far as this partition goes, objects at this epoch and below may be deleted."""
        return prev(self.min_epoch_lower_bound)

    @property
    def lowest_unreconciled_epoch(self) -> int | None:
        return min((u.epoch for u in self.placeholders), default=None)

    @property
    def unreconciled_records(self) -> int:
        return self.next_offset - 1 - self.last_reconciled_offset


# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_STATE: Final = msgspec.json.Decoder(PartitionState)
_ENTRY: Final = msgspec.json.Decoder(PartitionEntry)


class PartitionMachine:
    """What each entry does to the state of one partition."""

    def __init__(self, partition: PartitionId) -> None:
        self._partition = partition

    def initial(self) -> PartitionState:
        return PartitionState.new(self._partition.revision)

    def encode(self, state: PartitionState) -> bytes:
        return msgspec.json.encode(state)

    def decode(self, body: bytes, source: str) -> PartitionState:
        try:
            state = _STATE.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise CorruptObjectError(f"{source} is not a partition checkpoint: {e}") from e
        if state.revision != self._partition.revision:
            raise CorruptObjectError(f"{source} is of revision {state.revision}, not {self._partition.revision}")
        return state

    def apply(self, state: PartitionState, entry: Landed) -> None:
        """Change `state` by `entry`. An entry that admission would have refused is corrupt, and changes nothing."""
        where = f"partition {self._partition} log entry {entry.offset}"
        try:
            e = _ENTRY.decode(entry.payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptObjectError(f"{where} cannot be read: {error}") from error
        try:
            if state.closed:
                raise PartitionClosedError("it follows the end of the partition")
            match e:
                case Placeholders():
                    _check_placeholders(state, e)
                    _apply_placeholders(state, e, entry)
                case Advance():
                    _check_epoch(e.epoch)
                    _slide(state, e.epoch, entry.offset)
                case Barrier():
                    _check_epoch(e.epoch)
                    _close_window(state, e.epoch, entry.offset)
                case Reconciled():
                    _check_reconciled(state, e)
                    _apply_reconciled(state, e)
                case Closed():
                    state.closed = True
        except L0gcError as error:
            raise CorruptObjectError(f"{where} should never have landed: {error}") from error
        state.time_ms = entry.time_ms
        producer_rules.expire(state.producers, entry.time_ms - PRODUCER_EXPIRY_MS)


def _check_epoch(epoch: int) -> None:
    if not is_epoch(epoch):
        raise UsageError(f"{epoch} is no epoch")


def _check_placeholders(state: PartitionState, e: Placeholders) -> None:
    _check_epoch(e.epoch)
    if not state.window.admits(e.epoch):
        raise StaleClusterEpochError(
            f"epoch {e.epoch} is below the window {state.window}",
            epoch=e.epoch,
            window=(state.previous_applied_epoch, state.max_applied_epoch),
        )
    at = state.next_offset
    for p in e.placeholders:
        if p.base_offset != at or not 1 <= p.records <= _MAX_OFFSET - at or p.start < 0 or p.length < 1:
            raise UsageError(f"{p.records} records at offset {p.base_offset} do not continue at {at}")
        at += p.records
    if not e.placeholders:
        raise UsageError("there are no placeholders in it")
    batches = [p.producer for p in e.placeholders if p.producer is not None]
    if batches and (len(batches) > 1 or producer_rules.admit(state.producers, batches[0]) is not None):
        raise UsageError(f"producer {batches[0].producer_id} has landed that batch before, or two at once")


def _apply_placeholders(state: PartitionState, e: Placeholders, entry: Landed) -> None:
    for p in e.placeholders:
        state.placeholders.append(Unreconciled(p, e.epoch, entry.offset))
        state.next_offset += p.records
        if p.producer is not None:
            producer_rules.record(state.producers, p.producer, p.base_offset, p.last_offset, entry.time_ms)
    _slide(state, e.epoch, entry.offset)


def _slide(state: PartitionState, epoch: int, offset: int) -> None:
    window = state.window.slide(epoch)
    if window != state.window:
        _set_window(state, window, offset)


def _close_window(state: PartitionState, epoch: int, offset: int) -> None:
    if epoch < state.max_applied_epoch:
        raise UsageError(f"a barrier at {epoch} would lower the window {state.window}")
    _set_window(state, EpochWindow(epoch, epoch), offset)


def _set_window(state: PartitionState, window: EpochWindow, offset: int) -> None:
    state.previous_applied_epoch, state.max_applied_epoch = window.oldest, window.newest
    state.current_epoch_window_offset = offset
    _raise_bound(state)


def _raise_bound(state: PartitionState) -> None:
    lowest = state.lowest_unreconciled_epoch
    bound = state.previous_applied_epoch if lowest is None else min(state.previous_applied_epoch, lowest)
    state.min_epoch_lower_bound = max(state.min_epoch_lower_bound, bound)


def _check_reconciled(state: PartitionState, e: Reconciled) -> None:
    if e.base_offset != state.last_reconciled_offset + 1:
        raise StaleReconcilerError(
            f"records up to {state.last_reconciled_offset} are reconciled already, so {e.base_offset} is not next"
        )
    covered = [u for u in state.placeholders if u.log_offset <= e.log_offset]
    if not covered or (covered[-1].placeholder.last_offset, covered[-1].log_offset) != (e.last_offset, e.log_offset):
        raise StaleReconcilerError(f"records {e.base_offset} to {e.last_offset} do not end with a log entry")
    at = e.base_offset
    for f in e.files:
        if f.base_offset != at or f.last_offset < at:
            raise StaleReconcilerError(f"L1 object {f.key} does not continue at record {at}")
        at = f.last_offset + 1
    if at != e.last_offset + 1:
        raise StaleReconcilerError(f"the L1 objects end at record {at - 1}, not {e.last_offset}")


def _apply_reconciled(state: PartitionState, e: Reconciled) -> None:
    state.last_reconciled_offset = e.last_offset
    state.last_reconciled_log_offset = e.log_offset
    state.placeholders = [u for u in state.placeholders if u.log_offset > e.log_offset]
    state.l1.extend(e.files)
    _raise_bound(state)


# -- decisions, each against the state at the offset where its entry will land ------------------------------------------


def decide_placeholder(
    state: PartitionState, partition: PartitionId, extent: Placeholder, epoch: int, cluster_epoch: int
) -> Placeholders | LandedBatch:
    """Admit an extent at `epoch`, or say where the same batch has landed before.

    Args:
        extent: where the records are; its base offset is set here.
        epoch: the epoch in the L0 object's key.
        cluster_epoch: the newest cluster epoch that the caller knows.

    Raises:
        PartitionClosedError: the topic is gone.
        PoisonedEpochError: the epoch lies above the cluster's (hazard 14).
        StaleClusterEpochError: the epoch lies below the window (hazard 2).
        ProtocolError: see `producers.admit`.
    """
    _check_open(state, partition)
    if extent.producer is not None:
        landed = producer_rules.admit(state.producers, extent.producer)
        if landed is not None:
            return landed
    check_not_poisoned(partition, epoch, cluster_epoch)
    if not state.window.admits(epoch):
        raise stale(partition, epoch, state.window)
    return Placeholders(epoch, [msgspec.structs.replace(extent, base_offset=state.next_offset)])


def decide_advance(state: PartitionState, epoch: int) -> Advance | None:
    """Slide the window to the cluster epoch, without data; None if it is there."""
    return Advance(epoch) if not state.closed and epoch > state.max_applied_epoch else None


def decide_barrier(state: PartitionState, epoch: int) -> Barrier | None:
    """Close the window to `epoch`, a fresh tick, or to what is newer here; None if it is closed there or beyond."""
    epoch = max(epoch, state.max_applied_epoch)
    return Barrier(epoch) if not state.closed and epoch > state.previous_applied_epoch else None


def decide_reconciled(state: PartitionState, partition: PartitionId, e: Reconciled) -> Reconciled:
    """Commit a reconciled range.

    Raises:
        PartitionClosedError: the topic is gone.
        StaleReconcilerError: the range does not continue what is reconciled (hazard 9).
    """
    _check_open(state, partition)
    _check_reconciled(state, e)
    return e


def decide_closed(state: PartitionState) -> Closed | None:
    """End the partition; None if it has ended."""
    return None if state.closed else Closed()


def check_not_poisoned(partition: PartitionId, epoch: int, cluster_epoch: int) -> None:
    """Raises `PoisonedEpochError` if `epoch` is above the cluster's (hazard 14)."""
    if epoch > cluster_epoch or not is_epoch(epoch):
        raise PoisonedEpochError(
            f"epoch {epoch} offered to partition {partition} is above the cluster epoch {cluster_epoch}; "
            "it is refused, since it would shut out every writer"
        )


def stale(partition: PartitionId, epoch: int, window: EpochWindow) -> StaleClusterEpochError:
    """The error for an epoch below the window."""
    return StaleClusterEpochError(
        f"epoch {epoch} is below the window {window} of partition {partition}; stamp the data anew and upload it again",
        epoch=epoch,
        window=(window.oldest, window.newest),
    )


def _check_open(state: PartitionState, partition: PartitionId) -> None:
    if state.closed:
        raise PartitionClosedError(f"topic {partition.topic!r} (revision {partition.revision}) was deleted")
