"""Mutants of the shared log, and of the replica on it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from l0gc.errors import AmbiguousWriteError, AppendOutcomeUnknownError, LogOvertakenError
from l0gc.storage.log import Landed, SharedLog
from l0gc.storage.objectstore import Written
from l0gc.storage.replica import Replica
from tests.simulation.mutants.tools import Mutant, method

_append = SharedLog.append
_propose = Replica.propose


def _decided_once() -> AbstractContextManager[Any]:
    def propose(self: Replica[Any], decide: Callable[[Any, int], bytes | None]) -> int | None:
        first: list[bytes | None] = []

        def once(state: Any, offset: int) -> bytes | None:
            if not first:
                first.append(decide(state, offset))
            return first[0]

        return _propose(self, once)

    return method(Replica, "propose", propose)


def _unbounded(log: SharedLog) -> SharedLog:
    """The same log, whose boundary is never asked for."""
    other = copy.copy(log)
    other._boundary_if_due = lambda as_of_ms, date_ms: (0, date_ms)  # type: ignore[method-assign]
    return other


def _boundary_not_asked() -> AbstractContextManager[Any]:
    def append(self: SharedLog, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> Landed:
        return _append(_unbounded(self), offset, payload, time_ms=time_ms, as_of_ms=as_of_ms)

    return method(SharedLog, "append", append)


def _phantoms_read() -> AbstractContextManager[Any]:
    original = SharedLog.tail

    def tail(self: SharedLog, after: int, as_of_ms: int) -> tuple[list[Landed], int]:
        return original(_unbounded(self), after, as_of_ms)

    return method(SharedLog, "tail", tail)


def _boundary_not_raised() -> AbstractContextManager[Any]:
    return method(SharedLog, "_raise_boundary", lambda self, boundary: None)


def _landed_taken_for_overtaken() -> AbstractContextManager[Any]:
    def append(self: SharedLog, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> Landed:
        try:
            return _append(self, offset, payload, time_ms=time_ms, as_of_ms=as_of_ms)
        except AppendOutcomeUnknownError as e:
            if isinstance(e.__cause__, LogOvertakenError):
                raise e.__cause__ from None
            raise

    return method(SharedLog, "append", append)


def _ids_not_compared() -> AbstractContextManager[Any]:
    original = SharedLog._owner

    def owner(self: SharedLog, offset: int) -> tuple[str, int] | None:
        found = original(self, offset)
        return None if found is None else ("somebody else", found[1])

    return method(SharedLog, "_owner", owner)


class _Hopeful:
    """A store whose conditional creates always seem to land."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_if_absent(self, key: str, body: bytes) -> Written:
        try:
            return self._store.put_if_absent(key, body)  # type: ignore[no-any-return]
        except AmbiguousWriteError:
            return Written("", self._store.clock.ms)


def _ambiguous_taken_for_landed() -> AbstractContextManager[Any]:
    def append(self: SharedLog, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> Landed:
        store = self._store
        self._store = _Hopeful(store)
        try:
            return _append(self, offset, payload, time_ms=time_ms, as_of_ms=as_of_ms)
        finally:
            self._store = store

    return method(SharedLog, "append", append)


def _state_ahead_of_log() -> AbstractContextManager[Any]:
    def propose(self: Replica[Any], decide: Callable[[Any, int], bytes | None]) -> int | None:
        wanted: list[tuple[int, bytes]] = []

        def noted(state: Any, offset: int) -> bytes | None:
            payload = decide(state, offset)
            if payload is not None:
                wanted.append((offset, payload))
            return payload

        try:
            return _propose(self, noted)
        except AppendOutcomeUnknownError:
            offset, payload = wanted[-1]
            self._apply(Landed(offset, self.time_ms, payload, self.time_ms))
            self.as_of_ms = self.time_ms
            raise

    return method(Replica, "propose", propose)


_HANDLE = "tests/partition/test_handle.py"
_LOG = "tests/storage/test_log.py"
_REPLICA = "tests/storage/test_replica.py"


MUTANTS = [
    Mutant(
        2,
        "decided-once",
        "l0gc/storage/replica.py::Replica.propose",
        "after a conflict the old decision is appended",
        _decided_once,
        (f"{_REPLICA}::test_a_decision_is_made_on_the_state_at_the_offset_where_it_lands",),
    ),
    Mutant(
        7,
        "boundary-not-asked",
        "l0gc/storage/log.py::SharedLog.append",
        "a sleeper believes that it won",
        _boundary_not_asked,
        (f"{_LOG}::test_a_writer_that_slept_through_a_truncation_does_not_believe_that_it_won",),
    ),
    Mutant(
        7,
        "phantoms-read",
        "l0gc/storage/log.py::SharedLog.tail",
        "a sleeper reads on without asking the boundary",
        _phantoms_read,
        (f"{_REPLICA}::test_a_reader_that_slept_through_a_truncation_does_not_apply_a_phantom",),
    ),
    Mutant(
        7,
        "boundary-not-raised",
        "l0gc/storage/log.py::SharedLog.truncate",
        "truncation deletes at once",
        _boundary_not_raised,
        (f"{_LOG}::test_truncation_raises_the_boundary_before_it_deletes",),
    ),
    Mutant(
        7,
        "landed-and-truncated",
        "l0gc/storage/log.py::SharedLog.append",
        "what landed and was truncated since counts as overtaken",
        _landed_taken_for_overtaken,
        (f"{_LOG}::test_an_entry_that_landed_and_was_truncated_before_the_boundary_was_asked_is_no_loser",),
    ),
    Mutant(
        8,
        "ids-not-compared",
        "l0gc/storage/log.py::SharedLog.append",
        "what is at the offset is always another's",
        _ids_not_compared,
        (
            f"{_LOG}::test_an_append_that_landed_without_a_reply_is_reported_as_landed_and_not_repeated",
            f"{_HANDLE}::test_an_append_whose_reply_is_lost_lands_once",
        ),
    ),
    Mutant(
        8,
        "ambiguous-is-landed",
        "l0gc/storage/log.py::SharedLog.append",
        "no reply is taken for success",
        _ambiguous_taken_for_landed,
        (f"{_LOG}::test_an_append_that_was_lost_on_its_way_is_repeated_at_the_same_offset",),
    ),
    Mutant(
        18,
        "state-ahead-of-log",
        "l0gc/storage/replica.py::Replica.propose",
        "an append of unknown outcome stays in the state",
        _state_ahead_of_log,
        (f"{_REPLICA}::test_the_state_holds_only_what_has_landed",),
    ),
]
