"""The real code under seeds: see README.md in this folder."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.run import CRASHES, RECORDS, SWEPT, simulate
from tests.simulation.watch import GROUPED
from tests.simulation.world import LANDED_LATE

ROOT = Path(__file__).parents[2]
QUICK = 1
SEEDS = 21
BLOCK = 20


def _nothing_is_violated(seeds: range) -> Counter[str]:
    """Run the seeds. A violation names its seed; `python -m tests.simulation --seeds 1 --first SEED` replays it."""
    return sum((simulate(seed).happened for seed in seeds), Counter[str]())


def test_no_seed_violates_an_invariant() -> None:
    happened = _nothing_is_violated(range(QUICK))
    assert happened[RECORDS] > 0
    assert happened[SWEPT] > 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK, SEEDS, BLOCK))
def test_none_of_many_seeds_violates_an_invariant(first: int) -> None:
    happened = _nothing_is_violated(range(first, first + BLOCK))
    for what in (CRASHES, GROUPED, LANDED_LATE, RECORDS, SWEPT):
        assert happened[what] > 0, f"the seeds from {first} on have no {what}"


def _elsewhere(seed: int, hash_seed: str) -> str:
    code = f"from tests.simulation.test_simulation import run_of; print(run_of({seed}))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONHASHSEED": hash_seed},
    )
    return ended.stdout.strip()


def run_of(seed: int) -> str:
    """Return what a seed did, on one line."""
    o = simulate(seed)
    return f"{o.steps} {sorted(o.happened.items())} {o.digest}"


@pytest.mark.thorough
def test_a_seed_is_a_run_whatever_ran_before_and_wherever() -> None:
    first = run_of(7)
    simulate(8)
    assert run_of(7) == first
    assert _elsewhere(7, "1") == _elsewhere(7, "2") == first
