"""Mutants of the shared log, and of the replica on it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec

import l0gc.storage.log
from l0gc.errors import (
    AmbiguousWriteError,
    AppendOutcomeUnknownError,
    LogConflictError,
    LogOvertakenError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
)
from l0gc.storage.entry import StoredEntry
from l0gc.storage.log import Boundary, Folder, Replay, SharedLog
from l0gc.storage.objectstore import PutResult, StoredObject, if_there
from l0gc.storage.replica import Replica
from l0gc.storage.store_time import StoreTime
from l0gc.watermark.publication import PublishedWatermark
from tests.simulation.mutants.tools import Wrapped, instead, method, mutant

_EXPIRE = "tests/streamlog/level_one/test_expire.py"
_HANDLE = "tests/streamlog/journal/test_handle.py"
_LOG = "tests/storage/test_log.py"
_REPLICA = "tests/storage/test_replica.py"
_REPLICA_INTERRUPTED = "tests/storage/test_replica_interrupted.py"

_append = SharedLog.append
_propose = Replica.propose


@instead(
    2,
    "l0gc/storage/replica.py::Replica.propose",
    "after a conflict, or after the decision has read the log, the old decision is appended",
    f"{_REPLICA}::test_a_decision_uses_the_state_where_it_lands",
    f"{_REPLICA}::test_a_decision_that_reads_the_log_is_repeated_on_that_state",
)
def decided_once(self: Replica[Any], decide: Callable[[Any, int], object | None], *, whole: bool = True) -> int | None:
    first: list[object | None] = []

    def once(state: Any, offset: int) -> object | None:
        if not first:
            first.append(decide(state, offset))
        return first[0]

    return _propose(self, once, whole=whole)


def _unbounded(log: SharedLog) -> SharedLog:
    """Return the same log, which never reads its boundary."""
    other = copy.copy(log)
    other.boundary = copy.copy(log.boundary)
    other.boundary.is_due = lambda as_of_ms, date_ms: False  # type: ignore[method-assign]
    return other


@instead(
    7,
    "l0gc/storage/log.py::SharedLog.append",
    "a writer that slept assumes that its append won",
    f"{_LOG}::test_a_writer_asleep_during_truncation_does_not_claim_success",
)
def boundary_not_asked(self: SharedLog, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> StoredEntry:
    return _append(_unbounded(self), offset, payload, time_ms=time_ms, as_of_ms=as_of_ms)


@mutant(
    7,
    "l0gc/storage/log.py::SharedLog.tail",
    "a process that slept reads on without reading the boundary",
    f"{_REPLICA}::test_a_reader_that_slept_through_a_truncation_does_not_apply_a_phantom",
)
def phantoms_read() -> AbstractContextManager[Any]:
    original = SharedLog.tail

    def tail(self: SharedLog, *args: Any, **options: Any) -> tuple[list[StoredEntry], int]:
        return original(_unbounded(self), *args, **options)

    return method(SharedLog, "tail", tail)


@mutant(
    7,
    "l0gc/storage/log.py::SharedLog.replay",
    "a long replay does not read the boundary",
    f"{_LOG}::test_a_replay_does_not_take_a_phantom_for_an_entry",
    simulated=False,
)
def phantoms_replayed() -> AbstractContextManager[Any]:
    original = SharedLog.replay

    def replay(self: SharedLog, as_of: int | None = None, *, whole: bool = True) -> Replay:
        return original(_unbounded(self), as_of, whole=whole)

    return method(SharedLog, "replay", replay)


@mutant(
    7,
    "l0gc/storage/log.py::SharedLog.truncate",
    "truncation deletes at once",
    f"{_LOG}::test_truncation_raises_the_boundary_before_it_deletes",
)
def boundary_not_raised() -> AbstractContextManager[Any]:
    return method(Boundary, "lift", lambda self, boundary: self._store.now_ms())


@mutant(
    45,
    "l0gc/storage/log.py::Boundary.lift",
    "raising the boundary has no deadline",
    f"{_LOG}::test_a_store_that_answers_reads_and_refuses_writes_ends_a_truncation",
)
def raised_for_ever() -> AbstractContextManager[Any]:
    return mock.patch.object(l0gc.storage.log, "RAISE_DEADLINE_S", float("inf"))


@instead(
    7,
    "l0gc/storage/log.py::SharedLog.append",
    "an entry that landed and was truncated in the meantime counts as overtaken",
    f"{_LOG}::test_a_landed_entry_truncated_before_the_boundary_read_counts",
)
def landed_and_truncated(self: SharedLog, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> StoredEntry:
    try:
        return _append(self, offset, payload, time_ms=time_ms, as_of_ms=as_of_ms)
    except AppendOutcomeUnknownError as e:
        if isinstance(e.__cause__, LogOvertakenError):
            raise e.__cause__ from None
        raise


@mutant(
    8,
    "l0gc/storage/log.py::SharedLog.append",
    "the entry at the offset always counts as another writer's",
    f"{_LOG}::test_an_unanswered_append_that_landed_is_not_repeated",
    f"{_LOG}::test_a_refused_append_that_landed_is_reported_as_landed",
    f"{_HANDLE}::test_an_append_whose_reply_is_lost_lands_once",
)
def ids_not_compared() -> AbstractContextManager[Any]:
    original = SharedLog._owner

    def owner(self: SharedLog, offset: int) -> Any:
        found = original(self, offset)
        return None if found is None else msgspec.structs.replace(found, id="somebody else")

    return method(SharedLog, "_owner", owner)


@instead(
    34,
    "l0gc/storage/log.py::SharedLog._owner",
    "an append counts as lost if its outcome was misread",
    f"{_LOG}::test_a_landed_append_that_is_misread_once_is_reported_as_landed",
    f"{_LOG}::test_a_landed_append_is_unknown_where_it_or_the_boundary_is_misread",
    simulated=False,
)
def misread_append_lost(self: SharedLog, offset: int) -> StoredEntry | None:
    key = self.entry_key(offset)
    stored = if_there(self.store.get, key)
    return None if stored is None else l0gc.storage.log._landed(key, offset, stored)


class _Hopeful(Wrapped):
    """A store whose conditional creates always seem to land."""

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        try:
            return self._store.put_if_absent(key, body)  # type: ignore[no-any-return]
        except AmbiguousWriteError:
            return PutResult("", self._store.clock.ms)


class _Sure(Wrapped):
    """A store whose refusals are believed, even if the reason cannot be read."""

    refused = ""

    def put_if_absent(self, key: str, body: bytes) -> PutResult:
        try:
            return self._store.put_if_absent(key, body)  # type: ignore[no-any-return]
        except PreconditionFailedError:
            self.refused = key
            raise

    def get(self, key: str) -> StoredObject:
        try:
            return self._store.get(key)  # type: ignore[no-any-return]
        except ObjectNotFoundError:
            raise
        except StoreError as e:
            if key == self.refused:
                raise LogConflictError(f"{key} belongs to somebody") from e
            raise


def _appending_to(kind: type[Wrapped]) -> AbstractContextManager[Any]:
    def append(self: SharedLog, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> StoredEntry:
        store: Any = self.store
        self.store = kind(store)
        try:
            return _append(self, offset, payload, time_ms=time_ms, as_of_ms=as_of_ms)
        finally:
            self.store = store

    return method(SharedLog, "append", append)


@mutant(
    8,
    "l0gc/storage/log.py::SharedLog.append",
    "a missing reply counts as success",
    f"{_LOG}::test_a_lost_append_is_repeated_at_its_offset",
)
def ambiguous_is_landed() -> AbstractContextManager[Any]:
    return _appending_to(_Hopeful)


@mutant(
    8,
    "l0gc/storage/log.py::SharedLog.append",
    "a refusal whose cause cannot be read counts as another writer's append",
    f"{_LOG}::test_a_412_with_an_unreadable_owner_may_be_this_writers",
)
def refusal_believed() -> AbstractContextManager[Any]:
    return _appending_to(_Sure)


@instead(
    7,
    "l0gc/storage/log.py::Boundary.is_due",
    "a `Date` that goes back proves that no time has passed",
    f"{_LOG}::test_a_date_that_was_ahead_once_makes_the_boundary_due",
    simulated=False,
)
def date_believed(self: Boundary, as_of_ms: int, date_ms: int) -> bool:
    """Take a time that goes back as proof that no time has passed."""
    return date_ms - as_of_ms >= self.min_age_ms // 3


@mutant(
    18,
    "l0gc/storage/replica.py::Replica.propose",
    "an append of unknown outcome stays in the state",
    f"{_REPLICA}::test_the_state_holds_only_what_has_landed",
)
def state_ahead_of_log() -> AbstractContextManager[Any]:
    apply = Replica._apply

    def propose(self: Replica[Any], decide: Callable[[Any, int], object | None], *, whole: bool = True) -> int | None:
        wanted: list[tuple[int, bytes]] = []

        def noted(state: Any, offset: int) -> object | None:
            entry = decide(state, offset)
            if entry is not None:
                wanted.append((offset, msgspec.msgpack.encode(entry)))
            return entry

        try:
            return _propose(self, noted, whole=whole)
        except AppendOutcomeUnknownError:
            offset, payload = wanted[-1]
            apply(self, StoredEntry(offset, self.time_ms, payload, self.time_ms))
            self._whole = True
            raise

    return method(Replica, "propose", propose)


@mutant(
    18,
    "l0gc/storage/replica.py::Replica.replay",
    "a replay does not take the log's time from its checkpoint",
    f"{_REPLICA}::test_a_replay_restores_the_time_of_the_log_from_its_checkpoint",
    simulated=False,
)
def time_forgotten() -> AbstractContextManager[Any]:
    """Let a replay take the log's time only from the entries after the checkpoint."""
    original = Replica.replay

    def replay(self: Replica[Any], *, whole: bool = True) -> Folder:
        folder = original(self, whole=whole)
        if self.offset == self.checkpoint_offset:
            self.time_ms = 0
        return folder

    return method(Replica, "replay", replay)


@instead(
    29,
    "l0gc/storage/replica.py::Replica._take",
    "a state that an exception has left half changed is used",
    f"{_REPLICA_INTERRUPTED}::test_a_catch_up_that_is_interrupted_leaves_no_half_state",
)
def half_applied(self: Replica[Any], entries: Sequence[StoredEntry], as_of_ms: int) -> None:
    for entry in entries:
        self._apply(entry)
    self.as_of_ms = as_of_ms
    self._whole = True


@mutant(
    16,
    "l0gc/storage/store_time.py::StoreTime.settle",
    "one reply's `Date` counts as the time, even if it jumps",
    f"{_EXPIRE}::test_one_reply_that_is_weeks_ahead_deletes_nothing",
    f"{_REPLICA}::test_no_entry_gets_a_time_that_another_reply_does_not_confirm",
    simulated=False,
)
def jumps_believed() -> AbstractContextManager[Any]:
    return method(StoreTime, "settle", lambda self, date_ms: date_ms)


@mutant(
    16,
    "l0gc/storage/store_time.py::StoreTime.between_ms",
    "one reply's `Date` decides when M was published, and how long ago that was",
    "tests/collect/test_plan.py::test_a_reply_with_a_wrong_date_ends_no_grace_early",
    simulated=False,
)
def grace_by_one_reply() -> AbstractContextManager[Any]:
    return method(StoreTime, "between_ms", lambda self: (self._store.now_ms(),) * 2)


@instead(
    16,
    "l0gc/watermark/publication.py::_as_stored",
    "M counts as published when its writer read the clock, however much later it wrote",
    "tests/collect/test_plan.py::test_grace_begins_when_a_suspended_publisher_writes",
    simulated=False,
)
def landing_time_ignored(published: PublishedWatermark, stored_ms: int) -> PublishedWatermark:
    return published


@instead(
    16,
    "l0gc/storage/replica.py::Replica.propose",
    "entries, and the records in them, have the time of the process's clock",
    f"{_EXPIRE}::test_a_wrong_uploader_clock_does_not_change_retention",
    simulated=False,
    place="l0gc/storage/log.py::SharedLog.append",
)
def entries_by_local_clock(self: SharedLog, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> StoredEntry:
    return _append(self, offset, payload, time_ms=self._runtime.clock.now_ms(), as_of_ms=as_of_ms)


@instead(
    31,
    "l0gc/storage/replica.py::Replica.payload",
    "an entry is appended as it was built, even if readers cannot decode it",
    f"{_REPLICA}::test_what_a_reader_would_refuse_is_not_appended",
    simulated=False,
)
def entries_unread(self: Replica[Any], entry: object) -> bytes:
    return msgspec.msgpack.encode(entry)
