"""One process's handles on a cluster: the store, the controller, and one handle for each journal that it uses.

This module decides nothing. It puts the pieces together in the same way for commands, executors and tests.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec

from l0gc.epoch import NO_WATERMARK
from l0gc.keys import CONTROLLER_LOG, KeyLayout, journal_log
from l0gc.runtime import Runtime
from l0gc.storage.config import StoreConfig
from l0gc.storage.entry import Place
from l0gc.storage.log import TRUNCATE_MIN_AGE_MS, SharedLog
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.storage.replica import Replica
from l0gc.storage.s3 import S3Store
from l0gc.storage.store_time import StoreTime
from l0gc.storage.workers import LOCAL, Workers
from l0gc.streamlog.controller.entries import ControllerMachine
from l0gc.streamlog.controller.handle import EPOCH_CACHE_S, EPOCH_INTERVAL_S, Controller
from l0gc.streamlog.controller.state import ALL_TOPICS, ControllerState
from l0gc.streamlog.controller.value_schema import Numbers
from l0gc.watermark.publication import refuse_if_behind, refuse_if_not_above, reserve_numbers
from l0gc.watermark.source import CONTROLLER_UNIT, ClusterIdentity, LogEnd, UnitSummary

if TYPE_CHECKING:
    from l0gc.streamlog.journal.handle import JournalHandle
    from l0gc.streamlog.journal.summary import JournalTask

THREADS: Final = 32
"""The threads for concurrent requests of a command, or of a program that uses the library."""
Writing = Callable[[], AbstractContextManager[threading.Event]]
"""Returns a block in which no signal is raised. It extends from before the first L1 object of a round is written until the
round is committed. Its event ends the round early: the objects already written are committed, so that none is left
unnamed.
"""
Begin = Callable[[], threading.Event]
"""Begins such a block, once; returns its event."""


def unheld() -> AbstractContextManager[threading.Event]:
    return nullcontext(threading.Event())


class ClusterHandles(msgspec.Struct, dict=True):
    """The handles of one process. Safe for use by several threads."""

    store: ObjectStore
    runtime: Runtime = msgspec.field(default_factory=Runtime)
    parallel: Parallel = msgspec.field(default_factory=Parallel)
    expected_cluster_id: str | None = None
    epoch_cache_s: float = EPOCH_CACHE_S
    epoch_interval_s: float = EPOCH_INTERVAL_S
    truncate_min_age_ms: int = TRUNCATE_MIN_AGE_MS
    journals_kept: int | None = None
    """The most journals whose handles are kept; None for all that are used."""
    writing: Writing = unheld

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._journals: dict[int, JournalHandle] = {}
        self._store_time = StoreTime(self.store)
        self.controller = Controller(
            self._log(CONTROLLER_LOG),
            self.runtime,
            expected_cluster_id=self.expected_cluster_id,
            epoch_cache_s=self.epoch_cache_s,
            epoch_interval_s=self.epoch_interval_s,
            guard=lambda: refuse_if_behind(self),
            check_above=lambda epoch: refuse_if_not_above(self, epoch),
            reserve=lambda numbers: Numbers(*reserve_numbers(self, numbers)),
        )

    def _log(self, folder: str) -> SharedLog:
        return SharedLog(
            self.store,
            folder,
            self.runtime,
            parallel=self.parallel,
            truncate_min_age_ms=self.truncate_min_age_ms,
            store_time=self._store_time,
        )

    @property
    def identified(self) -> bool:
        """Return whether this process has confirmed that the expected cluster is here."""
        return self.controller.looked

    def identity(self) -> ClusterIdentity:
        """Return the cluster and its epoch, according to the current controller log. See `Controller.snapshot`."""
        return identity_of(self.controller.snapshot())

    def now_ms(self) -> int:
        """Return the current time by the store's clock, reliable enough for decisions that cannot be undone. See
        `StoreTime.settle`.
        """
        return self._store_time.now_ms()

    def between_ms(self) -> tuple[int, int]:
        """Return the earlier and the later date of two fresh replies. See `StoreTime.between_ms`."""
        return self._store_time.between_ms()

    def journal(self, number: int) -> JournalHandle:
        """Return the process's handle on a journal, always the same one, so that its threads share one fence."""
        with self._lock:
            handle = self._journals.pop(number, None) or self._new_handle(number)
            self._journals[number] = handle  # keeps the order of use, so the least recently used one is dropped first
            if self.journals_kept is not None and len(self._journals) > self.journals_kept:
                del self._journals[next(iter(self._journals))]
            return handle

    def passing_journal(self, number: int) -> JournalHandle:
        """Return a handle for work that visits all journals.

        If the process limits its handles, or already has one on this journal, it is a kept one. Otherwise it is new, and
        is dropped after the work.
        """
        if self.journals_kept is None and number not in self._journals:
            return self._new_handle(number)
        return self.journal(number)

    def journal_as_of(self, number: int, place: Place) -> JournalHandle:
        """Return a read-only handle on a journal as it was after an entry; a pin must keep that state."""
        return self._new_handle(number, place)

    def controller_as_of(self, offset: int) -> ControllerState:
        """Return the cluster's state after an entry of the controller's log; a pin must keep that state."""
        return Replica(self._log(CONTROLLER_LOG), ControllerMachine(), self.runtime, as_of=Place(offset)).catch_up()

    def _new_handle(self, number: int, as_of: Place | None = None) -> JournalHandle:
        from l0gc.streamlog.journal.handle import JournalHandle  # imports numpy, which many commands do not need

        return JournalHandle(number, self._log(journal_log(number)), self.controller, self.runtime, as_of=as_of)

    def controller_unit(self, noted: Mapping[str, LogEnd]) -> UnitSummary | None:
        """Return the controller log as of its last read; see `ClusterView.controller_unit`."""
        replica = self.controller.replica
        with replica.lock:
            accepted, end = replica.state.jump.epoch, replica.end
            if replica.state.external_log:
                return None
            before = noted.get(CONTROLLER_UNIT)
            gone = before is not None and (
                before[0] > accepted or (before[0] == accepted and not replica.holds(before[1]))
            )
        return UnitSummary(unit=CONTROLLER_UNIT, gc_epochs={}, lowest=[], end=(accepted, end), rewritten=gone)

    def units(
        self,
        numbers: Collection[int] | None = None,
        *,
        keep: bool = True,
        topic: int = ALL_TOPICS,
        noted: Mapping[str, LogEnd] = {},
    ) -> Sequence[UnitSummary]:
        """Return the journals, with the topics as of the last read of the controller's log; see `ClusterView.units`.

        Args:
            topic: count only the partitions of this topic, given its revision.
        """
        from l0gc.streamlog.journal.summary import read_journal, sum_up, tasks_of

        with self.controller.replica.lock:
            state = self.controller.replica.state
            everyone = [] if state.external_log else tasks_of(state, NO_WATERMARK, topic, noted)

        def read(task: JournalTask) -> UnitSummary:
            if not keep and task.journal not in self._journals:
                return read_journal(self.store, task)[0]
            handle = self.journal(task.journal)
            summary, state = sum_up(task, handle.replica)
            if state is not None:
                handle.unread, handle.checked = None, True
            elif not handle.checked:
                handle.unread = summary
            return summary

        return self.parallel.map(read, [t for t in everyone if numbers is None or t.journal in numbers])


@contextmanager
def committing(cluster: ClusterHandles, workers: Workers[ClusterHandles]) -> Iterator[Begin]:
    """Yield a function that begins a block of `ClusterHandles.writing`, which ends with this one.

    Executors get a function that holds back no signal: Spark's tasks are ended, and their objects are left to vacuum.
    """
    with ExitStack() as held:
        begin = functools.cache(lambda: held.enter_context(cluster.writing()))
        yield begin if workers.engine == LOCAL else threading.Event


@contextmanager
def open_cluster(config: StoreConfig, **settings: Any) -> Iterator[tuple[ClusterHandles, S3Store]]:
    """Open the handles on the cluster at `config`, for a command or the library; see `ClusterHandles` for `settings`."""
    store = S3Store(config)
    with Parallel(THREADS) as threads:
        yield ClusterHandles(store, Runtime(), threads, **settings), store


def identity_of(state: ControllerState) -> ClusterIdentity:
    """Return the collector's view of the cluster, from the controller's state."""
    layout = KeyLayout(state.key_template, state.shards)
    return ClusterIdentity(state.cluster_id, state.epoch, layout, state.external_log)
