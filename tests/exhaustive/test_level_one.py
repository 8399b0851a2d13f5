"""Every interleaving of what changes L1: none breaks a rule, and each rule that is taken out is broken in one of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec
import pytest

from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.garbage_facts import JournalPart
from l0gc.streamlog.journal import edits
from l0gc.streamlog.journal.entries import EXPIRE, RECONCILE, Edit
from l0gc.streamlog.journal.state import JournalState
from tests.exhaustive.__main__ import summary
from tests.exhaustive.breadth import NO_LIMITS, Found, Limits
from tests.exhaustive.l1_scopes import L1_WHOLE, within
from tests.exhaustive.l1_search import L1Scope, L1Search
from tests.simulation.mutants import of_holes, of_l1
from tests.simulation.mutants.tools import everywhere, method
from tests.support.tries import sampled

QUICK = [
    (within("lifted-and-vacuumed", 1), 900),
    (within("merged-and-vacuumed", 1), 500),
    (within("two-expiries", 0), 200),
    (within("read-while-expired", 1), 200),
    (within("repeated-and-expired", 0), 100),
    (within("repeated-by-two", 0), 200),
    (within("given-up-and-repeated", 1), 100),
    (within("given-up-twice", 1), 1_000),
    (within("given-up-and-expired", 0), 500),
    (within("given-up-and-read", 0), 200),
    (within("shared-and-drained-by-two", 0), 1_000),
    (within("shared-drained-and-expired", 0), 1_000),
    (within("shared-drained-and-read", 0), 100),
    (within("altered-and-merged", 0), 200),
]


BEGUN = Limits(states=1_000)
"""How far `make test` searches the scopes; `make thorough` searches them to the end."""


def searched(scope: L1Scope, limits: Limits = NO_LIMITS) -> Found:
    return L1Search(scope).run(limits)


def _nothing_wrong(scope: L1Scope, states: int, limits: Limits = NO_LIMITS) -> None:
    found = searched(scope, limits)
    assert not found.wrong, summary(found)
    assert found.states >= states
    assert found.complete or found.states >= limits.states
    assert found.content > 0 or not found.complete


@pytest.mark.parametrize("limits", [BEGUN, pytest.param(NO_LIMITS, marks=pytest.mark.thorough)], ids=["begun", "all"])
@pytest.mark.parametrize(("scope", "states"), QUICK, ids=[s.name for s, _ in QUICK])
def test_no_interleaving_breaks_a_rule(scope: L1Scope, states: int, limits: Limits) -> None:
    _nothing_wrong(scope, states, limits)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scope", L1_WHOLE.values(), ids=L1_WHOLE)
def test_no_early_interleaving_breaks_a_rule(scope: L1Scope) -> None:
    """`make release` searches the scopes to their end."""
    _nothing_wrong(scope, 100, Limits(states=8_000))


# -- mutants of each rule ---------------------------------------------------------------------------------------------------


_take = edits.take
Mutant = Callable[[], AbstractContextManager[Any]]


def any_commit() -> AbstractContextManager[Any]:
    return of_l1.fits_anyhow(RECONCILE)


def any_expiry() -> AbstractContextManager[Any]:
    return of_l1.fits_anyhow(EXPIRE)


def listing_decides() -> AbstractContextManager[Any]:
    """Delete whatever no journal names, whatever its stamp is."""
    real = JournalGarbage.parts

    def parts(self: JournalGarbage, prefix: str, count: int) -> list[JournalPart]:
        above = {journal: fence + 1_000 for journal, fence in self._fences.items()}
        return [msgspec.structs.replace(p, fences=above, assumed=True) for p in real(self, prefix, count)]

    return method(JournalGarbage, "parts", parts)


def dropped_as_of_the_stamp() -> AbstractContextManager[Any]:
    return mock.patch.object(Edit, "drops", False)


def dropped_as_of_the_window() -> AbstractContextManager[Any]:
    def take(state: JournalState, edit: Edit, time_ms: int) -> None:
        _take(state, msgspec.structs.replace(edit, epoch=0), time_ms)

    return everywhere("l0gc.streamlog.journal.edits", "take", take)


CASES: list[tuple[str, Mutant, L1Scope, str]] = [
    ("any-merge", of_l1.any_merge.off, within("two-merges", 0), "which it does not name"),
    ("any-commit", any_commit, within("two-reconcilers", 0), "as reconciled after"),
    ("any-expiry", any_expiry, within("two-expiries", 0), "begins"),
    (
        "commit-below-fence",
        of_l1.commit_below_fence.off,
        within("lifted-and-vacuumed", 1),
        "stamped below its L1 fence",
    ),
    ("looked-before-fence", of_l1.looked_before_fence.off, within("lifted-and-vacuumed", 1), "the journal names it"),
    (
        "newer-columns-lost",
        of_l1.newer_columns_lost.off,
        within("altered-and-merged", 0),
        "merged columns of value schema",
    ),
    (
        "shared-dropped-at-first",
        of_l1.shared_dropped_at_first.off,
        within("shared-and-drained-by-two", 0),
        "other L1 objects",
    ),
    ("dropped-shared-named", of_l1.dropped_shared_named.off, within("shared-drained-and-expired", 0), "a second time"),
    (
        "shared-commit-below-fence",
        of_l1.commit_below_fence.off,
        within("shared-and-vacuumed", 1),
        "stamped below its L1 fence",
    ),
    (
        "shared-looked-before-fence",
        of_l1.looked_before_fence.off,
        within("shared-and-vacuumed", 1),
        "the journal names it",
    ),
    ("listing-decides", listing_decides, within("lifted-and-vacuumed", 1), "the journal names it"),
    ("no-grace", of_l1.no_grace.off, within("merged-and-vacuumed", 1), "and was dropped at"),
    ("dropped-as-of-the-stamp", dropped_as_of_the_stamp, within("merged-and-vacuumed", 2), "and was dropped at"),
    ("dropped-as-of-the-window", dropped_as_of_the_window, within("expired-and-vacuumed", 1), "and was dropped at"),
    ("any-hole", of_holes.any_hole.off, within("given-up-twice", 0), "as reconciled after"),
]
QUICK_CASES = {"commit-below-fence", "looked-before-fence", "no-grace", "any-hole", "dropped-as-of-the-window"}
"""In `make test` these show that each kind of rule is watched."""


@pytest.mark.parametrize(
    ("mutant", "scope", "wrong"),
    sampled([c[1:] for c in CASES], [c[1:] for c in CASES if c[0] in QUICK_CASES]),
    ids=[c[0] for c in CASES],
)
def test_a_rule_that_is_taken_out_is_missed(mutant: Mutant, scope: L1Scope, wrong: str) -> None:
    with mutant():
        found = searched(scope)
    assert wrong in found.wrong, summary(found)
    shown = summary(found).splitlines()
    assert shown[1].startswith(f"VIOLATION after {len(found.trace)} steps: ")
    assert len(shown) == len(found.trace) + 2


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_repeated_commit_that_deletes_lost_objects_is_caught() -> None:
    with of_l1.losers_removed.off():
        found = searched(L1_WHOLE["repeated-and-expired"])
    assert "the journal names it" in found.wrong, summary(found)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_dropped_shared_object_purged_before_the_fence_is_missed() -> None:
    with of_l1.shared_purged_above_fence.off():
        found = searched(L1_WHOLE["shared-dropped-and-vacuumed"])
    assert "which is not there" in found.wrong, summary(found)


def test_a_search_finds_the_same_again() -> None:
    first, second = (searched(within("two-expiries", 0)) for _ in range(2))
    assert (first.states, first.transitions, first.ends) == (second.states, second.transitions, second.ends)
