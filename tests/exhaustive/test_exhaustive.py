"""Every interleaving of a few processes: none breaks a rule, and each rule that is taken out is broken in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from l0gc.errors import (
    AmbiguousWriteError,
    LogConflictError,
    PreconditionFailedError,
    StaleClusterEpochError,
    StoreError,
)
from l0gc.storage.entry import StoredEntry
from l0gc.storage.log import Boundary, SharedLog
from l0gc.storage.objectstore import PutResult, StoredObject
from l0gc.storage.replica import Replica
from l0gc.streamlog.journal import apply as journal_apply
from l0gc.streamlog.journal import handle as journal_handle
from l0gc.streamlog.journal.admission import Admission
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.producers import LandedSequence, Overlay
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState
from tests.exhaustive import scopes
from tests.exhaustive.__main__ import summary
from tests.exhaustive.breadth import NO_LIMITS, Found, Limits
from tests.exhaustive.process import Replica as Replicated
from tests.exhaustive.search import Scope, Search
from tests.exhaustive.store import AnsweredStore
from tests.support.memory_store import memory_cluster

QUICK = [
    (scopes.faults(0), 1_000),
    (scopes.older_than_its_topic(0), 2_000),
]

THOROUGH = scopes.WHOLE | {"partitions": scopes.partitions(0)}
"""The scopes of `make explore`; the largest without its fault, which takes four times as long."""

FIRST = Limits(states=8_000)
"""How far `make thorough` searches; `make release` searches to the end."""


def searched(scope: Scope, limits: Limits = NO_LIMITS) -> Found:
    return Search(scope).run(limits)


def _nothing_wrong(scope: Scope, states: int, limits: Limits = NO_LIMITS) -> None:
    found = searched(scope, limits)
    assert not found.wrong, summary(found)
    assert found.states >= states
    assert found.complete or found.states >= limits.states
    assert found.content > 0 or not found.complete


@pytest.mark.parametrize(("scope", "states"), QUICK, ids=[s.name for s, _ in QUICK])
def test_no_interleaving_breaks_a_rule(scope: Scope, states: int) -> None:
    _nothing_wrong(scope, states)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scope", THOROUGH.values(), ids=THOROUGH)
def test_no_early_interleaving_breaks_a_rule(scope: Scope) -> None:
    _nothing_wrong(scope, 8_000, FIRST)


@pytest.mark.thorough
def test_a_search_finds_the_same_again() -> None:
    first, second = searched(scopes.faults(0)), searched(scopes.faults(0))
    assert (first.states, first.transitions, first.ends) == (second.states, second.transitions, second.ends)


# -- mutants of each rule ---------------------------------------------------------------------------------------------------


def bound_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    real = JournalState.bounds

    def bounds(self: JournalState, revision: int, first: int, count: int) -> Rows:
        return real(
            msgspec.structs.replace(self, previous_applied_epoch=self.max_applied_epoch), revision, first, count
        )

    monkeypatch.setattr(JournalState, "bounds", bounds)


def bound_forgets_what_is_unreconciled(monkeypatch: pytest.MonkeyPatch) -> None:
    def lowest(self: TopicState, first: int, count: int, ceiling: int) -> Rows:
        return np.full(count, ceiling, np.int64)

    monkeypatch.setattr(TopicState, "lowest_epochs", lowest)


def _admission_without(monkeypatch: pytest.MonkeyPatch, admitted: Callable[[Admission, ObjectExtents], bool]) -> None:
    """Admit what is refused as stale if `admitted` returns true."""
    real = Admission.admit

    def admit(self: Admission, o: ObjectExtents) -> LandedSequence | None:
        try:
            return real(self, o)
        except StaleClusterEpochError:
            if not admitted(self, o):
                raise
            self._window = self._window.slide(o.epoch)
            return None

    monkeypatch.setattr(Admission, "admit", admit)


def admission_is_not_checked_at_the_landing(monkeypatch: pytest.MonkeyPatch) -> None:
    _admission_without(monkeypatch, lambda self, o: True)


def a_topic_takes_what_is_older_than_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    _admission_without(monkeypatch, lambda self, o: o.epoch >= self._window.oldest)


def objects_of_an_entry_are_admitted_to_the_state_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Overlay, "record", lambda self, batch: None)


def _append_with(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """End an ambiguous append as `error` instead of settling it."""

    def append(self: SharedLog, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> StoredEntry:
        def put(store: AnsweredStore, key: str, body: bytes) -> PutResult:
            try:
                return real_put(store, key, body)
            except AmbiguousWriteError as e:
                raise _UnsettledError from e

        with monkeypatch.context() as patch:
            patch.setattr(AnsweredStore, "put_if_absent", put)
            try:
                return real_append(self, offset, payload, time_ms=time_ms, as_of_ms=as_of_ms)
            except _UnsettledError as e:
                raise error("the append was lost, for all that is known") from e

    real_append, real_put = SharedLog.append, AnsweredStore.put_if_absent
    monkeypatch.setattr(SharedLog, "append", append)


class _UnsettledError(Exception):
    pass


def an_ambiguous_append_is_tried_at_the_next_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    _append_with(monkeypatch, LogConflictError)


def an_ambiguous_append_is_taken_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    _append_with(monkeypatch, StoreError)


def a_refusal_that_cannot_be_looked_at_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    real_put, real_get = AnsweredStore.put_if_absent, AnsweredStore.get

    def put(store: AnsweredStore, key: str, body: bytes) -> PutResult:
        refused.clear()
        try:
            return real_put(store, key, body)
        except PreconditionFailedError:
            refused.append(key)
            raise

    def get(store: AnsweredStore, key: str) -> StoredObject:
        try:
            return real_get(store, key)
        except StoreError as e:
            if key in refused:
                refused.clear()
                raise LogConflictError("somebody else was first") from e
            raise

    monkeypatch.setattr(AnsweredStore, "put_if_absent", put)
    monkeypatch.setattr(AnsweredStore, "get", get)


def a_range_need_not_continue_what_is_reconciled(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (journal_apply, journal_handle):
        monkeypatch.setattr(module, "fits", lambda state, edit: {})


def truncation_does_not_raise_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Boundary, "lift", lambda self, boundary: self._store.list(self.key).date_ms)


def nobody_asks_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Boundary, "is_due", lambda self, as_of_ms, date_ms: False)


def the_state_has_what_is_only_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    def propose(
        self: Replica[JournalState], decide: Callable[[JournalState, int], object | None], **how: bool
    ) -> int | None:
        def early(state: JournalState, offset: int) -> object | None:
            entry = decide(state, offset)
            if entry is not None:
                self._machine.apply(state, StoredEntry(offset, 0, msgspec.msgpack.encode(entry), 0))
            return entry

        return real(self, early, **how)

    real = Replica.propose
    monkeypatch.setattr(Replica, "propose", propose)


MUTANTS = [
    (bound_is_the_newest, scopes.faults(0), 8, "landed, though M(0) was"),
    (bound_forgets_what_is_unreconciled, scopes.window(), 14, "is unreconciled"),
    (admission_is_not_checked_at_the_landing, scopes.window(), 12, "an object of epoch 1 landed"),
    (
        a_topic_takes_what_is_older_than_itself,
        scopes.older_than_its_topic(0),
        5,
        "an object of epoch 0 landed, though M",
    ),
    (objects_of_an_entry_are_admitted_to_the_state_before, scopes.together(0), 4, "UnknownProducerError"),
    (an_ambiguous_append_is_tried_at_the_next_offset, scopes.faults(1), 8, "landed twice"),
    (an_ambiguous_append_is_taken_for_lost, scopes.faults(1), 5, "did not land in journal 0, and it did"),
    (a_refusal_that_cannot_be_looked_at_is_believed, scopes.faults(2), 12, "landed twice"),
    (a_range_need_not_continue_what_is_reconciled, scopes.zombies(0), 14, "were reconciled after"),
    (truncation_does_not_raise_the_boundary, scopes.sleeper(), 19, "the log does not have there"),
    (nobody_asks_the_boundary, scopes.sleeper(), 23, "the log does not have there"),
    (the_state_has_what_is_only_proposed, scopes.faults(0), 8, "the log does not have there"),
]


SLOW = (truncation_does_not_raise_the_boundary, nobody_asks_the_boundary)
"""These take many steps, and thus half a minute. Quick tests are named for the simulation's mutants of the same rules.
"""


MEDIUM = (a_refusal_that_cannot_be_looked_at_is_believed, a_range_need_not_continue_what_is_reconciled)
"""These take seconds: the others suffice to show that the search finds what is wrong."""


def marks_of(mutant: Callable[[pytest.MonkeyPatch], None]) -> list[pytest.MarkDecorator]:
    if mutant in SLOW:
        return [pytest.mark.thorough, pytest.mark.release]
    return [pytest.mark.thorough] if mutant in MEDIUM else []


@pytest.mark.parametrize(
    ("mutant", "scope", "depth", "wrong"),
    [pytest.param(*m, id=m[0].__name__, marks=marks_of(m[0])) for m in MUTANTS],
)
def test_a_rule_that_is_taken_out_is_missed(
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
    scope: Scope,
    depth: int,
    wrong: str,
) -> None:
    mutant(monkeypatch)
    found = searched(scope, Limits(depth=depth))
    assert wrong in found.wrong
    assert len(found.trace) <= depth
    shown = summary(found).splitlines()
    assert shown[1].startswith(f"VIOLATION after {len(found.trace)} steps: ")
    assert len(shown) == len(found.trace) + 2


def test_between_two_steps_a_process_keeps_all_that_its_handle_does() -> None:
    """A new field has to be kept, too, or the search would omit something."""
    handle = memory_cluster().journal(0)
    fixed = {"lock", "log", "_machine", "_runtime", "_order", "_as_of"}
    fixed |= {"_since", "_base"}  # so small a checkpoint is read whole, and nothing is missing
    kept = {"_state", "_whole", "_folder", "_charges", "_behind", "_ids"} | set(Replicated._fields) - {"state", "seen"}
    kept -= {"folder", "charges", "behind", "whole", "ids"}
    assert set(vars(handle.replica)) - fixed == {*kept, "_read_at", "_as_of_at"}
    assert set(vars(handle.fence)) == {"_applied", "_counters", "_holders", "_journal", "_lock", "_seen", "_turn"}
    paced = {"_runtime", "_appended_at"}  # these decide when an append is made, and not its effect
    set_back = {"checked", "unread"}  # no process of the search asks whether a journal was set back
    assert set(vars(handle)) - paced - set_back == {
        "journal",
        "_controller",
        "replica",
        "fence",
        "_appending",
        "_queue",
    }


def test_the_processes_of_a_scope_have_names_of_their_own() -> None:
    for scope in scopes.ALL.values():
        assert all(a.name != b.name for a, b in itertools.combinations(scope.actors, 2))
