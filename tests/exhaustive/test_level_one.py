"""Every interleaving of what changes L1: none breaks a rule, and each rule that is taken out is missed by one of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pytest

from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.garbage_look import JournalPart
from l0gc.streamlog.journal.l1_handle import L1Handle
from tests.exhaustive import l1_scopes as scopes
from tests.exhaustive.__main__ import summary
from tests.exhaustive.breadth import Found
from tests.exhaustive.l1_search import L1Scope, L1Search
from tests.simulation.mutants.of_l1 import MUTANTS as SIMULATED
from tests.simulation.mutants.tools import everywhere, method

QUICK = [
    (scopes.lifted_and_vacuumed(1), 1_000),
    (scopes.merged_and_vacuumed(1), 1_000),
    (scopes.two_expiries(0), 200),
    (scopes.read_while_expired(1), 200),
    (scopes.listed_and_read(1), 100),
    (scopes.listed_and_repeated(0), 100),
    (scopes.repeated_by_two(0), 200),
]


def searched(scope: L1Scope) -> Found:
    return L1Search(scope).run()


def _nothing_wrong(scope: L1Scope, states: int) -> None:
    found = searched(scope)
    assert not found.wrong, summary(found)
    assert found.complete
    assert found.states >= states
    assert found.content > 0


@pytest.mark.parametrize(("scope", "states"), QUICK, ids=[s.name for s, _ in QUICK])
def test_no_interleaving_breaks_a_rule(scope: L1Scope, states: int) -> None:
    _nothing_wrong(scope, states)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scope", scopes.L1_WHOLE.values(), ids=scopes.L1_WHOLE)
def test_no_interleaving_breaks_a_rule_however_many_there_are(scope: L1Scope) -> None:
    _nothing_wrong(scope, 500)


# -- each rule, taken out ---------------------------------------------------------------------------------------------------


Mutant = Callable[[], AbstractContextManager[Any]]
_STATE = "l0gc.streamlog.journal.state"
simulated: dict[str, Mutant] = {m.name: m.off for m in SIMULATED}


def any_commit() -> AbstractContextManager[Any]:
    return everywhere(_STATE, "refusals", lambda state, t, log_offset: {})


def any_expiry() -> AbstractContextManager[Any]:
    return everywhere(_STATE, "expiry_refusals", lambda state, t: {})


def listing_decides() -> AbstractContextManager[Any]:
    """What no journal names goes, whatever it is stamped with."""
    real = JournalGarbage.parts

    def parts(self: JournalGarbage, prefix: str, count: int) -> list[JournalPart]:
        above = {journal: fence + 1_000 for journal, fence in self._fences.items()}
        return [msgspec.structs.replace(p, fences=above, assumed=True) for p in real(self, prefix, count)]

    return method(JournalGarbage, "parts", parts)


def dropped_as_of_the_stamp() -> AbstractContextManager[Any]:
    return method(L1Handle, "_as_of_now", lambda self, entry: entry)


CASES: list[tuple[str, Mutant, L1Scope, str]] = [
    ("any-merge", simulated["any-merge"], scopes.two_merges(0), "which it does not name"),
    ("any-commit", any_commit, scopes.two_reconcilers(0), "as reconciled after"),
    ("any-expiry", any_expiry, scopes.two_expiries(0), "begins"),
    (
        "commit-below-fence",
        simulated["commit-below-fence"],
        scopes.lifted_and_vacuumed(1),
        "stamped below its L1 fence",
    ),
    ("looked-before-fence", simulated["looked-before-fence"], scopes.lifted_and_vacuumed(1), "the journal names it"),
    ("listing-decides", listing_decides, scopes.lifted_and_vacuumed(1), "the journal names it"),
    ("no-grace", simulated["no-grace"], scopes.merged_and_vacuumed(1), "and was dropped at"),
    ("dropped-as-of-the-stamp", dropped_as_of_the_stamp, scopes.merged_and_vacuumed(2), "and was dropped at"),
    ("dropped-as-of-the-window", dropped_as_of_the_stamp, scopes.expired_and_vacuumed(1), "and was dropped at"),
    ("losers-removed", simulated["losers-removed"], scopes.listed_and_repeated(0), "the journal names it"),
    ("index-not-asked", simulated["index-not-asked"], scopes.listed_and_lifted(1), "the journal names it"),
    ("replaced-index-removed", simulated["replaced-index-removed"], scopes.listed_and_read(0), "the journal names it"),
]


@pytest.mark.parametrize(("mutant", "scope", "wrong"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_rule_that_is_taken_out_is_missed(mutant: Mutant, scope: L1Scope, wrong: str) -> None:
    with mutant():
        found = searched(scope)
    assert wrong in found.wrong, summary(found)
    shown = summary(found).splitlines()
    assert shown[1].startswith(f"VIOLATION after {len(found.trace)} steps: ")
    assert len(shown) == len(found.trace) + 2


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_commit_that_deletes_what_it_takes_for_lost_is_missed_where_some_of_it_is_purged() -> None:
    """No index object is needed for that."""
    with simulated["losers-removed"]():
        found = searched(scopes.repeated_and_expired())
    assert "the journal names it" in found.wrong, summary(found)


def test_a_search_finds_the_same_again() -> None:
    first, second = (searched(scopes.two_expiries(0)) for _ in range(2))
    assert (first.states, first.transitions, first.ends) == (second.states, second.transitions, second.ends)
