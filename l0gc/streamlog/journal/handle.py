"""A process's handle on one journal: replay, fence, group commit.

Admission is decided twice on purpose. The fence decides early, which saves an append that would be refused. Safety
rests on `Admission`, which decides at the very offset where the objects land (hazard 2).

Group commit: a process has one append in flight for each journal. Objects that its threads finish in the meantime are
queued for the next entry. So an idle process commits at once, a busy one in groups, and throughput in objects holds
even if appends are slow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, takewhile
from typing import Final

import msgspec
import numpy as np

from l0gc.errors import (
    CorruptObjectError,
    EpochRegressionError,
    L0gcError,
    StaleClusterEpochError,
    StoreError,
    UnknownProducerError,
    fault_of,
)
from l0gc.runtime import Runtime
from l0gc.storage.entry import Place
from l0gc.storage.log import SharedLog, outcome_unknown
from l0gc.storage.replica import Replica
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.admission import Admission, check_not_poisoned
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.edits import dropped_by, fits
from l0gc.streamlog.journal.entries import (
    ENTRY_BYTES,
    Advance,
    Barrier,
    Closed,
    ClosedTopic,
    Edit,
    FenceL1,
    JournalEntry,
    ObjectExtents,
    Objects,
    Purged,
    SetBack,
)
from l0gc.streamlog.journal.fence import EpochFence
from l0gc.streamlog.journal.producers import needs_controller_check
from l0gc.streamlog.journal.rows import NAME, NO_DROPPED, NUMBER, Rows, distinct, pack
from l0gc.streamlog.journal.state import JournalState, purged_rows
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject
from l0gc.watermark.source import UnitSummary

APPEND_INTERVAL_S: Final = 0.1
"""How long a busy lone writer waits between two entries of its journal. With 100 journals, their entries then cost a tenth
as much as 10,000 objects per second. A writer that has not appended for this long does not wait.
"""
_OBJECT_BYTES: Final = 200
"""The weight of an object in an entry, without its extents."""


class LandedObject(msgspec.Struct, frozen=True):
    """Where an object landed. `bases` has the first offset of each of its extents; None if they are in L1
    already, or the journal cannot be read.
    """

    log_offset: int
    bases: Rows | None


class AppendResult(msgspec.Struct):
    """The outcome of objects that were offered together: those that landed, and why the next one did not."""

    landed: list[LandedObject] = []
    error: L0gcError | None = None


class LandedEdit(msgspec.Struct):
    """The outcome of an edit.

    Attributes:
        refused: the partitions for which it did not land, as (revision, partition), and why: see `fits`.
        dropped: the objects that it removed from the lists, as rows of `DROPPED`.
    """

    refused: dict[tuple[int, int], str] = {}
    dropped: Rows = msgspec.field(default_factory=NO_DROPPED.copy)

    def has(self, revision: int, partitions: Rows) -> Rows:
        landed: Rows = ~np.isin(partitions, [p for of, p in self.refused if of == revision])
        return landed


class _Request(msgspec.Struct, eq=False):
    """Objects of one epoch, whose thread waits for them to land.

    `offered`: they may have landed. If they are not `done` when no append is in flight, the thread that appended them was
    interrupted.
    """

    objects: Sequence[ObjectExtents]
    cluster_epoch: int
    offsets: list[int] = []
    error: L0gcError | None = None
    offered: bool = False
    done: bool = False

    @property
    def weight(self) -> int:
        return sum(_OBJECT_BYTES + 2 * len(o.partitions) + len(o.blocks) for o in self.objects)


class JournalHandle:
    """One journal in one process, so that all threads share its fence and its appends. Safe for use by several
    threads.

    Attributes:
        checked: whether it was readable when it was checked for a set back (hazard 38).
        unread: the reading that never succeeded; the journal then accepts nothing.
    """

    def __init__(
        self, journal: int, log: SharedLog, controller: Controller, runtime: Runtime, *, as_of: Place | None = None
    ) -> None:
        self.journal = journal
        self._controller = controller
        self.replica = Replica(log, JournalMachine(journal), runtime, as_of=as_of)
        self.unread: UnitSummary | None = None
        self.checked = False
        # The fence peeks without the replica's lock, whose holder may be waiting for the fence's lock. The fence is only a
        # hint; the append is decided under the replica's lock.
        self.fence = EpochFence(journal, lambda: self.replica.peek().window)
        self._runtime = runtime
        self._appending = threading.Lock()
        self._appended_at = float("-inf")
        self._queue: list[_Request] = []

    @property
    def state(self) -> JournalState:
        """Return the state as of the last replay. It is shared with the handle, so do not change it."""
        return self.replica.state

    @property
    def head(self) -> JournalState:
        """Return the same state, but possibly without L1 rows: see `Replica`."""
        return self.replica.head

    def catch_up(self, *, whole: bool = True) -> JournalState:
        """Return the state up to the log's current end, possibly without L1 rows if not `whole`."""
        return self.replica.catch_up(whole=whole)

    # -- data -----------------------------------------------------------------------------------------------------------

    def append(self, objects: Sequence[ObjectExtents]) -> AppendResult:
        """Commit stored L0 objects in their order; none lands after one that was refused.

        Returns:
            The offsets of those that landed. If one did not, `error` is the reason, and those after it did not land either:
            StaleClusterEpochError: upload it again under a fresh epoch.
            SafetyError, PartitionClosedError, EpochRegressionError, UsageError, ProtocolError: see `Admission`.
            AppendOutcomeUnknownError: see `SharedLog.append`.
            StoreError: the store refused the append.
        """
        appended = AppendResult()
        if self.unread is not None:
            appended.error = self.unchecked_error(self.unread)
            return appended
        for epoch, group in groupby(objects, key=lambda o: o.epoch):
            try:
                appended.landed += self._append_epoch(epoch, list(group), appended)
            except L0gcError as e:  # this epoch failed; the caller gets the earlier ones, which have landed
                appended.error = e
            if isinstance(appended.error, StaleClusterEpochError):
                appended.error = self._explained(appended.error)
            if appended.error is not None:
                break
        return appended

    def _append_epoch(self, epoch: int, objects: Sequence[ObjectExtents], appended: AppendResult) -> list[LandedObject]:
        cluster_epoch = self._controller.epoch(at_least=epoch)
        check_not_poisoned(
            self.journal, epoch, cluster_epoch
        )  # before the fence, whose window such an epoch would move
        if self.replica.as_of_ms is None:  # once replayed, do not wait for the append in flight
            _ = self.replica.head  # replays, so that the fence has an applied window
        request = _Request(objects, cluster_epoch)
        hold = threading.Lock()
        try:
            with hold:
                self.fence.enter(epoch, hold)
                self._append_until_done(request)
                if isinstance(request.error, StaleClusterEpochError):
                    self.fence.count_rejected_at_landing(request.error)
        except StaleClusterEpochError:
            raise
        except BaseException:
            self.fence.forget()
            raise
        if request.error is not None:
            self.fence.forget()  # even if an object was too old: one older than its topic moves the fence, not the log
            appended.error = request.error
        return self._landed(request)

    def _append_until_done(self, request: _Request) -> None:
        """Wait until this thread or another has appended a request. A thread may be interrupted anywhere (hazard 29)."""
        try:
            self._queue.append(request)
            with self._appending:
                while not request.done:
                    if request.offered:
                        raise outcome_unknown(
                            f"the group offered to journal {self.journal}",
                            "the thread that appended it was interrupted",
                        )
                    self._append_queued()
        finally:
            if request in self._queue:
                self._queue.remove(request)  # no thread may commit what its caller takes for failed

    def _append_queued(self) -> None:
        """Append the queue as one entry, and set the outcome of each request."""
        clock = self._runtime.clock
        wait = self._appended_at + APPEND_INTERVAL_S - clock.monotonic()
        if wait > 0 and self.replica.writers == 1:  # several writers take turns, and wait for each other anyway
            clock.sleep(wait)
        self._appended_at = clock.monotonic()
        taken: list[_Request] = []
        offsets: list[int] = []

        def decide(state: JournalState, offset: int) -> Objects | None:
            if offsets and offsets[-1] != offset:  # a conflict: another process has appended
                self.fence.forget()
            offsets.append(offset)
            self._take(taken)
            admission = Admission(state.window, state.topics, state.producers, state.closed)
            entry = [o for request in taken for o in self._admit(admission, request, state, offset)]
            for request in taken:
                request.offered = True
            return Objects(entry) if entry else None

        try:
            self.replica.propose(decide, whole=False)
        except L0gcError as e:
            self.fence.forget()
            if not taken:
                raise
            for request in taken:
                request.error, request.offsets = e, []
        for request in taken:
            request.done = True

    def _take(self, taken: list[_Request]) -> None:
        """Take as many waiting requests as fit into an entry."""
        weight = sum(r.weight for r in taken)
        for request in self._queue[:]:
            if request.offered or request.done:
                continue  # already taken, or its thread is about to leave
            if taken and weight + request.weight > ENTRY_BYTES:
                break
            taken.append(request)
            weight += request.weight

    def _admit(self, admission: Admission, request: _Request, state: JournalState, offset: int) -> list[ObjectExtents]:
        """Return those of a request's objects that land at `offset`, up to the first that is refused."""
        request.offsets, request.error = [], None
        entry: list[ObjectExtents] = []
        for o in request.objects:
            try:
                check_not_poisoned(self.journal, o.epoch, request.cluster_epoch)
                if o.producer is not None:
                    self._check_producer(state, o)
                landed = admission.admit(o)
            except L0gcError as e:
                request.error = e
                break
            if landed is None:
                entry.append(o)
                request.offsets.append(offset)
            else:
                # Nothing is appended at this epoch, so the log's window does not follow the fence's.
                self.fence.forget()
                request.offsets.append(landed.log_offset if landed.log_offset >= 0 else offset)
        return entry

    def _check_producer(self, state: JournalState, o: ObjectExtents) -> None:
        """Check with the controller a producer that this journal has not seen (hazard 17)."""
        batch = o.producer
        assert batch is not None
        if needs_controller_check(state.producers, batch) and not self._controller.producer_is_current(
            batch.producer_id, batch.epoch, batch.run
        ):
            raise UnknownProducerError(
                f"producer {batch.producer_id} epoch {batch.epoch} is not the newest at the controller; "
                "start the upload again, which bumps its epoch"
            )

    def _landed(self, request: _Request) -> list[LandedObject]:
        if not request.offsets:
            return []
        first = min(request.offsets)
        objects: dict[tuple[str, int], UnreconciledObject] = {}
        with suppress(L0gcError), self.replica.lock:  # they have landed, even if the journal cannot be read now
            topics = self.replica.head.topics
            objects = {
                (o.key, o.log_offset): o
                for revision in {o.revision for o in request.objects}
                if (topic := topics.get(revision)) is not None
                for o in takewhile(lambda o: o.log_offset >= first, reversed(topic.objects))
            }
        landed = []
        for o, offset in zip(request.objects, request.offsets, strict=False):
            placed = objects.get((o.key, offset))
            whole = placed is not None and NUMBER.itemsize * len(placed.extents) == len(o.partitions)
            landed.append(LandedObject(offset, placed.extents["base"] if placed is not None and whole else None))
        return landed

    def _explained(self, error: StaleClusterEpochError) -> L0gcError:
        """Return the error to report. A window above the cluster epoch means that the controller log went back: a
        retry is useless.
        """
        try:
            self.check_not_ahead(error.window[0])
        except EpochRegressionError as e:
            return e
        except L0gcError:
            pass  # the outcome stays unknown
        return error

    def check_not_ahead(self, newest: int) -> None:
        """Raise `EpochRegressionError` if this journal has seen an epoch that the cluster has not reached (hazard 10)."""
        epoch = self._controller.epoch(at_least=newest)
        if newest > epoch:
            raise EpochRegressionError(
                f"journal {self.journal} has seen epoch {newest}, above the cluster epoch {epoch}: the controller log looks "
                "restored from an old backup. Restore the newer one, or see l0gc help operate-logs"
            )

    # -- L1 -------------------------------------------------------------------------------------------------------------

    def _propose(self, decide: Callable[[JournalState], JournalEntry | None], *, whole: bool = False) -> bool:
        if self.unread is not None:
            raise self.unchecked_error(self.unread)
        self.replica.catch_up(whole=whole)
        return self.replica.propose(lambda state, offset: decide(state), whole=whole) is not None

    def unchecked_error(self, unread: UnitSummary) -> L0gcError:
        """Return the error of an operation that is skipped because a reading failed; a retry helps only if nothing is
        damaged.
        """
        text = f"it is not known whether journal {self.journal} was set back: {unread.error}"
        if unread.damaged:
            return CorruptObjectError(f"{fault_of(text)}; restore the named object from a version or a backup")
        return StoreError(f"{text}; run it again")

    def topics(self, topics: Iterable[Topic]) -> list[TopicState]:
        """Return copies of the current states of those topics that the journal has."""
        with self.replica.lock:
            state = self.catch_up()
            pairs = ((state.topics.get(topic.revision), topic) for topic in topics)
            return [
                topic_state.copy()
                for topic_state, topic in pairs
                if topic_state is not None and topic_state.topic_id == topic.topic_id
            ]

    def land(self, edit: Edit, *, dry_run: bool = False) -> LandedEdit:
        """Append an edit, whose objects are durable, in as many entries as it needs; a dry run returns the outcome without
        appending it.
        """
        done = LandedEdit()
        for part in edit.divided(ENTRY_BYTES):
            landed = LandedEdit()

            def left(state: JournalState, part: Edit = part, landed: LandedEdit = landed) -> Edit | None:
                landed.refused = fits(state, part)
                rest = part.without(landed.refused)
                landed.dropped = NO_DROPPED if rest is None or not rest.drops else dropped_by(state, rest)
                if rest is None or not rest.drops:
                    return rest
                # Objects that leave the lists stay for some epochs from now on. A run may have begun long ago, and the
                # window of an idle journal may be old. The objects that the run wrote keep their stamp.
                return msgspec.structs.replace(rest, epoch=max(rest.epoch, self._controller.epoch()))

            if dry_run:
                left(self.catch_up())
            else:
                self._propose(left, whole=True)
            done.refused |= landed.refused
            done.dropped = np.concatenate([done.dropped, landed.dropped])
        return done

    def fence_l1(self, epoch: int) -> int:
        """Raise the L1 fence to at least `epoch`, and return it.

        From then on no entry lists an object that is stamped below the fence and is not in the handle's state. Raises
        `SafetyError` if the cluster has not reached that epoch.
        """
        check_not_poisoned(self.journal, epoch, self._controller.epoch(at_least=epoch))
        self._propose(lambda s: FenceL1(epoch) if epoch > s.l1_fence else None)
        return self.replica.head.l1_fence

    def purge(self, names: Iterable[bytes]) -> int:
        """Forget dropped objects, given by name, that have been deleted from the bucket; return how many there were."""
        purged = 0
        distinct_names = sorted(set(names))
        for at in range(0, len(distinct_names), ENTRY_BYTES // NAME.itemsize):
            entry = Purged(pack(np.array(distinct_names[at : at + ENTRY_BYTES // NAME.itemsize], NAME)))
            sums: list[int] = []

            def left(state: JournalState, entry: Purged = entry, sums: list[int] = sums) -> Purged | None:
                rows = purged_rows(state, entry)
                sums[:] = [int(rows.sum())]
                names = distinct(state.dropped["name"][rows])
                return Purged(pack(names)) if len(names) else None

            self._propose(left)
            purged += sums[0]
        return purged

    # -- the window, the end ------------------------------------------------------------------------------

    def advance(self, epoch: int) -> bool:
        """Slide the window to the cluster epoch `epoch`, without data; return False if it is already there."""
        check_not_poisoned(self.journal, epoch, self._controller.epoch(at_least=epoch))
        return self._propose(lambda s: Advance(epoch) if epoch > s.max_applied_epoch else None)

    def barrier(self, epoch: int) -> bool:
        """Close the window to the fresh tick `epoch`, or to the journal's newest epoch if that is higher; return False
        if it is already closed.
        """
        check_not_poisoned(self.journal, epoch, self._controller.epoch(at_least=epoch))

        def decide(state: JournalState) -> Barrier | None:
            to = max(epoch, state.max_applied_epoch)
            return Barrier(to) if to > state.previous_applied_epoch else None

        return self._propose(decide)

    def accept_set_back(self, epoch: int, times: int) -> bool:
        """Accept the log as it is after it was set back; return False if that was accepted before.

        `epoch` is a fresh tick. See `SetBack`.
        """
        check_not_poisoned(self.journal, epoch, self._controller.epoch(at_least=epoch))
        return self._propose(lambda s: SetBack(epoch, times) if times > s.set_backs else None)

    def close(self, revision: int, topic_id: str = "") -> bool:
        """End the topic with this revision, because it was deleted; return False if it had already ended. See
        `close_topics`.
        """
        return bool(self.close_topics({revision: topic_id}))

    def close_topics(self, topics: Mapping[int, str]) -> dict[int, str]:
        """End deleted topics, given as revisions with their topic ids, in one entry.

        Returns:
            The topics that this call ended. It excludes topics that had already ended, and those whose revision belongs
            to another topic here because a restored controller log assigned it again.
        """
        closed: dict[int, str] = {}

        def decide(state: JournalState) -> Closed | None:
            closed.clear()
            for revision, topic_id in topics.items():
                topic_state = state.topics.get(revision)
                if not state.closed(revision) and (topic_state is None or topic_id in ("", topic_state.topic_id)):
                    closed[revision] = topic_id
            ended = [ClosedTopic(*topic) for topic in closed.items()]
            return Closed(ended, self._controller.epoch()) if ended else None

        self._propose(decide)
        return closed
