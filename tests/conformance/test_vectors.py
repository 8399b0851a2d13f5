"""The package agrees with each vector; a second implementation would run this file's first test."""

from __future__ import annotations

import copy
from typing import Final

import msgspec
import pytest

from l0gc.errors import L0gcError
from l0gc.storage.entry import StoredEntry
from l0gc.streamlog.controller.entries import ControllerEntry
from l0gc.streamlog.journal.entries import JournalEntry
from tests.conformance.vectors import FOLDER, Vector, after, refusal, shown, state_after
from tests.simulation.mutants.registry import MUTANTS
from tests.simulation.mutants.tools import Mutant

VECTORS: Final = [
    v
    for machine in ("controller", "journal")
    for v in msgspec.json.decode((FOLDER / f"{machine}.json").read_bytes(), type=list[Vector])
]


def failures(vectors: list[Vector]) -> list[str]:
    """Return the names of the vectors that the package contradicts, and how."""
    wrong = []
    for v in vectors:
        *log, proposed = (
            StoredEntry(n, e.time_ms, e.payload, e.time_ms | 1) for n, e in enumerate([*v.log, v.proposed])
        )
        try:
            state = state_after(v.machine, log)
            before = copy.deepcopy(state)
            refused = refusal(v.machine, state, proposed)
            now, unchanged = after(v.machine, state), after(v.machine, before) == after(v.machine, state)
        except (AssertionError, L0gcError, ValueError, LookupError, TypeError) as e:
            wrong.append(f"{v.name}: {e}")
            continue
        if refused.split(":")[0] != v.refused.split(":")[0] or now != v.state or (v.refused and not unchanged):
            wrong.append(f"{v.name}: {refused or 'lands'}")
    return wrong


def test_each_vector_holds() -> None:
    assert failures(VECTORS) == []
    assert len(VECTORS) >= 200


def test_a_vector_shows_its_entries_as_the_log_does() -> None:
    for v in VECTORS:
        for n, e in enumerate([*v.log, v.proposed]):
            assert e.entry == shown(v.machine, StoredEntry(n, e.time_ms, e.payload, 0)), v.name


@pytest.mark.parametrize(("machine", "entries"), [("controller", ControllerEntry), ("journal", JournalEntry)])
def test_every_entry_lands_in_a_vector_and_is_refused_in_one(machine: str, entries: object) -> None:
    kinds = {kind.__name__.lower() for kind in entries.__args__}  # type: ignore[attr-defined]
    some = [v for v in VECTORS if v.machine == machine]
    for refused in (False, True):
        seen = {v.proposed.entry.get("entry", "").replace("_", "") for v in some if bool(v.refused) == refused}
        assert kinds - seen == set()


PURE: Final = ("state", "topic", "admission", "apply", "edits", "producers")
"""The modules of a journal that decide without a store."""
BEFORE: Final = {
    "poison-taken": "it compares with the cluster epoch, which is in another log",
    "refused-too-late": "apply refuses the entry, too",
    "controller-not-asked": "it asks the controller's log",
    "shared-purged-above-fence": "it decides which dropped objects are ripe, and an entry only names what was purged",
    "lacking-is-empty": "it concerns a state that was partly read from a checkpoint, and a vector has no checkpoint",
    "shared-rows-passed": "it chooses which rows a table may name, and no entry depends on it",
}
"""Rules that a process applies before it appends; a log may hold an entry that breaks them."""
RULES: Final = [
    m
    for m in MUTANTS
    if m.guard.split("::")[0] in {f"l0gc/streamlog/journal/{module}.py" for module in PURE} and m.name not in BEFORE
]


@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULES, ids=lambda m: m.name)
def test_a_machine_without_one_of_the_rules_does_not_conform(rule: Mutant) -> None:
    with rule.off():
        assert failures(VECTORS)
