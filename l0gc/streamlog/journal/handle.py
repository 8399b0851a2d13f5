"""A process's handle on one partition: replay, fence, append.

Admission is decided twice, on purpose: early by the fence, which saves an append that would be refused, and at the very
offset where the placeholder lands, by `decide_placeholder`, which is what safety rests on (hazard 2).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from l0gc.errors import StaleClusterEpochError, UnknownProducerError
from l0gc.keys import PartitionId, partition_log
from l0gc.runtime import Runtime
from l0gc.storage.log import TRUNCATE_MIN_AGE_MS, SharedLog
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.storage.replica import Replica
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.journal.entries import LandedBatch, PartitionEntry, Placeholder, ProducerBatch, Reconciled
from l0gc.streamlog.journal.fence import EpochFence
from l0gc.streamlog.journal.producers import landed_of, needs_controller_check
from l0gc.streamlog.journal.state import (
    PartitionMachine,
    PartitionState,
    check_not_poisoned,
    decide_advance,
    decide_barrier,
    decide_closed,
    decide_placeholder,
    decide_reconciled,
)
from l0gc.streamlog.journal.window import EpochWindow


class PartitionHandle:
    """Safe for use by several threads; one per partition and process, so that they share its fence."""

    def __init__(
        self,
        partition: PartitionId,
        store: ObjectStore,
        controller: Controller,
        runtime: Runtime,
        *,
        parallel: Parallel | None = None,
        truncate_min_age_ms: int = TRUNCATE_MIN_AGE_MS,
    ) -> None:
        self.partition = partition
        self._controller = controller
        log = SharedLog(
            store,
            partition_log(partition),
            runtime,
            parallel=parallel,
            truncate_min_age_ms=truncate_min_age_ms,
        )
        self.replica = Replica(log, PartitionMachine(partition), runtime)
        self.fence = EpochFence(partition, self._applied_window)

    def _applied_window(self) -> EpochWindow:
        # Without the replica's lock: whoever holds that one may be waiting for the fence's. The fence is a hint; the
        # append is decided under the lock.
        return self.replica.peek().window

    @property
    def state(self) -> PartitionState:
        """The state as of the last look; shared with the handle, so read it and let it be."""
        return self.replica.state

    def catch_up(self) -> PartitionState:
        return self.replica.catch_up()

    # -- data -----------------------------------------------------------------------------------------------------------

    def append_placeholder(self, extent: Placeholder, epoch: int) -> LandedBatch:
        """Commit an extent of the L0 object at `epoch`; returns where its records are now.

        Raises:
            StaleClusterEpochError: upload the data again under a fresh epoch.
            PoisonedEpochError, PartitionClosedError, ProtocolError: see `decide_placeholder`.
            AppendOutcomeUnknownError: see `SharedLog.append`.
        """
        cluster_epoch = self._controller.epoch(at_least=epoch)
        check_not_poisoned(self.partition, epoch, cluster_epoch)  # before the fence, whose window it would move
        _ = self.replica.state  # replayed on first use, so that the fence has an applied window to go by
        try:
            with self.fence.fence_epoch(epoch):
                return self._append_fenced(extent, epoch, cluster_epoch)
        except StaleClusterEpochError:
            raise
        except BaseException:
            self.fence.forget()
            raise

    def _append_fenced(self, extent: Placeholder, epoch: int, cluster_epoch: int) -> LandedBatch:
        landed: list[LandedBatch] = []
        offsets: list[int] = []

        def decide(state: PartitionState, offset: int) -> bytes | None:
            if offsets and offsets[-1] != offset:  # a conflict: the log moved otherwise than this process thought
                self.fence.forget()
            offsets.append(offset)
            if extent.producer is not None:
                self._check_producer(state, extent.producer)
            decision = decide_placeholder(state, self.partition, extent, epoch, cluster_epoch)
            if isinstance(decision, LandedBatch):
                self.fence.forget()  # nothing is appended at this epoch, so the log's window does not follow
                landed.append(decision)
                return None
            p = decision.placeholders[0]
            sequence = p.producer.sequence if p.producer is not None else -1
            landed.append(LandedBatch(sequence, p.base_offset, p.last_offset))
            return msgspec.json.encode(decision)

        self.replica.propose(decide)
        return landed[-1]

    def _check_producer(self, state: PartitionState, batch: ProducerBatch) -> None:
        """Ask the controller about a producer that this partition has not seen (hazard 17)."""
        if needs_controller_check(state.producers, batch) and not self._controller.producer_is_current(
            batch.producer_id, batch.epoch
        ):
            raise UnknownProducerError(
                f"producer {batch.producer_id} epoch {batch.epoch} is not the newest that the controller knows; "
                "start the upload again, which bumps its epoch"
            )

    def landed_of(self, producer_id: int, input_id: str) -> int:
        """How many of an input's records for this partition have landed, as of the last look."""
        return landed_of(self.replica.state.producers, producer_id, input_id)

    # -- the window, the reconciler, the end ------------------------------------------------------------------------------

    def _propose(self, decide: Callable[[PartitionState], PartitionEntry | None]) -> bool:
        def encoded(state: PartitionState, offset: int) -> bytes | None:
            entry = decide(state)
            return None if entry is None else msgspec.json.encode(entry)

        with self.replica.lock:
            self.replica.catch_up()
            return self.replica.propose(encoded) is not None

    def advance(self, epoch: int) -> bool:
        """Slide the window to the cluster epoch `epoch`, without data; False if it is there."""
        check_not_poisoned(self.partition, epoch, self._controller.epoch(at_least=epoch))
        return self._propose(lambda s: decide_advance(s, epoch))

    def barrier(self, epoch: int) -> bool:
        """Close the window to the fresh tick `epoch`; False if it is closed there."""
        check_not_poisoned(self.partition, epoch, self._controller.epoch(at_least=epoch))
        return self._propose(lambda s: decide_barrier(s, epoch))

    def commit_reconciled(self, entry: Reconciled) -> None:
        """Commit what a reconciler has made durable. Raises `StaleReconcilerError` if another one was first."""
        self._propose(lambda s: decide_reconciled(s, self.partition, entry))

    def close(self) -> bool:
        """End the partition, because its topic was deleted; False if it has ended."""
        return self._propose(decide_closed)
