"""Every guard that is switched off is found: by the simulation at the seed and step of docs/safety.md, or by named tests."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.simulation.mutants import table
from tests.simulation.mutants.hunt import MOST_SEEDS, run
from tests.simulation.mutants.registry import BY_NAME, MUTANTS

ROWS = {row.name: row for row in table.rows(table.DOCUMENT.read_text())}
AGAIN = f"the simulated code has changed: run `{table.REGENERATE}`, which writes the table anew"


def test_the_table_says_what_the_registry_says() -> None:
    text = table.DOCUMENT.read_text()
    assert table.written(text, MUTANTS, {}) == text, AGAIN


def test_every_hazard_has_a_mutant() -> None:
    hazards = table.hazards(table.DOCUMENT.read_text())
    assert {m.hazard for m in MUTANTS} == set(hazards) == set(range(1, len(hazards) + 1))
    assert len(BY_NAME) == len(MUTANTS)


def test_every_mutant_is_to_be_found_somewhere() -> None:
    assert [m.name for m in MUTANTS if not m.simulated and not m.tests] == []


@pytest.mark.parametrize("name", [m.name for m in MUTANTS if m.simulated])
def test_the_simulation_finds_a_mutant_at_the_seed_and_step_of_the_table(name: str) -> None:
    expected = ROWS[name].caught
    assert expected is not None, AGAIN
    assert expected[0] < MOST_SEEDS
    caught = run(BY_NAME[name], expected[0])
    assert caught is not None, AGAIN
    assert (caught.seed, caught.steps) == expected, AGAIN


@pytest.mark.slow
def test_the_named_tests_of_every_mutant_fail_under_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.simulation.mutants", "--tests"],
        capture_output=True,
        text=True,
        check=False,
        cwd=table.DOCUMENT.parents[1],
    )
    assert json.loads(ended.stdout) == {}, ended.stderr
