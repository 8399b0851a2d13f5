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
QUICK = 8
SEEDS = 68
BLOCK = 20


def _nothing_is_violated(seeds: range) -> None:
    """A violation names its seed; `python -m tests.simulation --seeds 1 --first SEED` replays it."""
    happened = sum((simulate(seed).happened for seed in seeds), Counter[str]())
    for what in (CRASHES, GROUPED, LANDED_LATE, RECORDS, SWEPT):
        assert happened[what] > 0, f"the seeds {seeds} have no {what}"


def test_no_seed_violates_an_invariant() -> None:
    _nothing_is_violated(range(QUICK))


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK, SEEDS, BLOCK))
def test_none_of_many_seeds_violates_an_invariant(first: int) -> None:
    _nothing_is_violated(range(first, first + BLOCK))


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
    """What a seed did, on one line."""
    o = simulate(seed)
    return f"{o.steps} {sorted(o.happened.items())} {o.digest}"


@pytest.mark.thorough
def test_a_seed_is_a_run_whatever_ran_before_and_wherever() -> None:
    first = run_of(7)
    simulate(8)
    assert run_of(7) == first
    assert _elsewhere(7, "1") == _elsewhere(7, "2") == first
