"""Every interleaving of a few processes: none breaks a rule, and each rule that is taken out is missed by one of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from l0gc.errors import AmbiguousWriteError, LogConflictError, StoreError
from l0gc.keys import PartitionId
from l0gc.storage.log import Landed, SharedLog
from l0gc.storage.objectstore import Written
from l0gc.storage.replica import Replica
from l0gc.streamlog.journal import handle as partition_handle
from l0gc.streamlog.journal import state as partition_state
from l0gc.streamlog.journal.entries import LandedBatch, Placeholder, Placeholders
from l0gc.streamlog.journal.state import PartitionState
from tests.exhaustive import scopes
from tests.exhaustive.__main__ import told
from tests.exhaustive.actors import PARTITION
from tests.exhaustive.actors import Replica as Replicated
from tests.exhaustive.search import Found, Scope, Search
from tests.exhaustive.store import AnsweredStore
from tests.support.memory_store import memory_cluster

WHOLE = [
    (scopes.faults(2), 80_000),
    (scopes.producers(1), 16_000),
    (scopes.zombies(), 40_000),
    (scopes.sleeper(), 120_000),
]


def searched(scope: Scope, depth: int | None = None) -> Found:
    return Search(scope).run(max_depth=depth)


@pytest.mark.parametrize(("scope", "states"), WHOLE, ids=[s.name for s, _ in WHOLE])
def test_no_interleaving_breaks_a_rule(scope: Scope, states: int) -> None:
    found = searched(scope)
    assert not found.wrong, told(found)
    assert found.complete
    assert found.states >= states
    assert found.content > 0


@pytest.mark.parametrize(
    ("scope", "depth", "states"), [(scopes.window(), 22, 135_000), (scopes.truncation(), 12, 160_000)]
)
def test_no_interleaving_of_so_many_steps_breaks_a_rule(scope: Scope, depth: int, states: int) -> None:
    found = searched(scope, depth)
    assert not found.wrong, told(found)
    assert found.depth == depth
    assert found.states >= states


def test_a_search_finds_the_same_again() -> None:
    first, second = searched(scopes.faults(1)), searched(scopes.faults(1))
    assert (first.states, first.transitions, first.ends) == (second.states, second.transitions, second.ends)


# -- each rule, taken out ---------------------------------------------------------------------------------------------------


def bound_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_bound(state: PartitionState) -> None:
        lowest = state.lowest_unreconciled_epoch
        bound = state.max_applied_epoch if lowest is None else min(state.max_applied_epoch, lowest)
        state.min_epoch_lower_bound = max(state.min_epoch_lower_bound, bound)

    monkeypatch.setattr(partition_state, "_raise_bound", raise_bound)


def admission_is_not_checked_at_the_landing(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(
        state: PartitionState, partition: PartitionId, extent: Placeholder, epoch: int, cluster_epoch: int
    ) -> Placeholders | LandedBatch:
        return Placeholders(epoch, [msgspec.structs.replace(extent, base_offset=state.next_offset)])

    monkeypatch.setattr(partition_handle, "decide_placeholder", decide)


def _append_with(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """An ambiguous append is not settled but ends as `error`."""

    def append(self: SharedLog, offset: int, payload: bytes, *, time_ms: int, as_of_ms: int) -> Landed:
        def put(store: AnsweredStore, key: str, body: bytes) -> Written:
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


def a_range_need_not_continue_what_is_reconciled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_state, "_check_reconciled", lambda state, e: None)


def truncation_does_not_raise_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedLog, "_raise_boundary", lambda self, boundary: None)


def nobody_asks_the_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedLog, "_boundary_if_due", lambda self, as_of_ms, date_ms: (0, date_ms))


def the_state_has_what_is_only_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    def propose(self: Replica[PartitionState], decide: Callable[[PartitionState, int], bytes | None]) -> int | None:
        def early(state: PartitionState, offset: int) -> bytes | None:
            payload = decide(state, offset)
            if payload is not None:
                self._machine.apply(state, Landed(offset, 0, payload, 0))
            return payload

        return real(self, early)

    real = Replica.propose
    monkeypatch.setattr(Replica, "propose", propose)


MUTANTS = [
    (bound_is_the_newest, scopes.faults(0), 8, "landed, though M(p) was"),
    (admission_is_not_checked_at_the_landing, scopes.window(), 12, "a placeholder of epoch 1 landed"),
    (an_ambiguous_append_is_tried_at_the_next_offset, scopes.faults(1), 8, "landed twice"),
    (an_ambiguous_append_is_taken_for_lost, scopes.faults(1), 5, "did not land, and it did"),
    (a_range_need_not_continue_what_is_reconciled, scopes.zombies(0), 14, "were reconciled behind"),
    (truncation_does_not_raise_the_boundary, scopes.sleeper(), 19, "the log does not have there"),
    (nobody_asks_the_boundary, scopes.sleeper(), 23, "the log does not have there"),
    (the_state_has_what_is_only_proposed, scopes.faults(0), 8, "the log does not have there"),
]


@pytest.mark.parametrize(("mutant", "scope", "depth", "wrong"), MUTANTS, ids=[m[0].__name__ for m in MUTANTS])
def test_a_rule_that_is_taken_out_is_missed(
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
    scope: Scope,
    depth: int,
    wrong: str,
) -> None:
    mutant(monkeypatch)
    found = searched(scope, depth)
    assert wrong in found.wrong
    assert len(found.trace) <= depth
    shown = told(found).splitlines()
    assert shown[1].startswith(f"VIOLATION after {len(found.trace)} steps: ")
    assert len(shown) == len(found.trace) + 2


def test_between_two_steps_a_process_keeps_all_that_its_handle_does() -> None:
    """A field that is new has to be kept, too, or the search would leave something out."""
    handle = memory_cluster().partition(PARTITION)
    fixed = {"lock", "log", "_machine", "_runtime"}
    assert set(vars(handle.replica)) - fixed == {"_state", *Replicated._fields, "_looked_at"} - {"state", "seen"}
    assert set(vars(handle.fence)) == {"_applied", "_counters", "_holders", "_partition", "_seen", "_sliding", "_turn"}


def test_the_processes_of_a_scope_have_names_of_their_own() -> None:
    for scope in scopes.ALL.values():
        assert all(a.name != b.name for a, b in itertools.combinations(scope.actors, 2))
