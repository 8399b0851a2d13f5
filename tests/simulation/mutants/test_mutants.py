"""The simulation finds every mutant, by the seeds of docs/why/hazards.md, or tests are named for it."""

from __future__ import annotations

import contextlib

import pytest

from tests.simulation.mutants import hunt as hunting
from tests.simulation.mutants import table
from tests.simulation.mutants.hunt import SEVERAL, Caught, hunt
from tests.simulation.mutants.registry import BY_NAME, MUTANTS
from tests.simulation.mutants.tools import Mutant

ROWS = {row.name: row for row in table.rows(table.DOCUMENT.read_text())}
AGAIN = f"the simulated code has changed: run `{table.REGENERATE}`, which writes the table anew"
SIMULATED = [m.name for m in MUTANTS if m.simulated]
SAMPLE = (
    "any-range",
    "bound-follows-max",
    "bound-forgets-data",
    "fence-alone",
    "refused-too-late",
)
"""The mutants that `make test` hunts, because nearly every seed finds them."""


def test_the_table_says_what_the_registry_says() -> None:
    text = table.DOCUMENT.read_text()
    assert table.written(text, MUTANTS, {}) == text, AGAIN


def test_every_hazard_has_a_mutant() -> None:
    hazards = table.hazards(table.DOCUMENT.read_text())
    assert {m.hazard for m in MUTANTS} == set(hazards)
    assert len(BY_NAME) == len(MUTANTS)


def test_every_mutant_is_to_be_found_somewhere() -> None:
    assert [m.name for m in MUTANTS if not m.simulated and not m.tests] == []


@pytest.mark.parametrize("name", BY_NAME)
def test_every_guard_can_be_switched_off(name: str) -> None:
    """A mutant whose target has moved fails all its tests, whatever these prove."""
    with BY_NAME[name].off():
        pass


def _is_found(name: str) -> None:
    seeds = ROWS[name].found_by
    assert len(seeds) == SEVERAL, AGAIN
    assert next(hunt(BY_NAME[name], seeds), None) is not None, AGAIN


@pytest.mark.parametrize("name", SAMPLE)
def test_the_simulation_finds_a_mutant(name: str) -> None:
    _is_found(name)


def test_a_seed_that_fails_without_the_mutant_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(mutant: Mutant, seed: int) -> Caught | None:
        alone = mutant.off is contextlib.nullcontext
        return Caught(seed, 1, "harm") if seed in ({0, 2} if alone else {0, 1, 2, 3}) else None

    monkeypatch.setattr(hunting, "run", run)
    assert [caught.seed for _, found in hunting.hunt_all(["any-range"], 1) for caught in found] == [1, 3]


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [name for name in SIMULATED if name not in SAMPLE])
def test_the_simulation_finds_every_mutant_by_the_seeds_of_the_table(name: str) -> None:
    _is_found(name)
