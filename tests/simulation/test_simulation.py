"""The real code under seeds: see README.md in this folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import Outcome, simulate

ROOT = Path(__file__).parents[2]
QUICK = 12
SEEDS = 400
BLOCK = 20


def _nothing_is_violated(seeds: range) -> None:
    """A violation names its seed; `python -m tests.simulation --seeds 1 --first SEED` replays it."""
    outcomes = [simulate(seed) for seed in seeds]
    for what in ("records", "swept", "crashes", "grouped", "late"):
        assert sum(getattr(o, what) for o in outcomes) > 0, f"the seeds {seeds} have no {what}"


def test_no_seed_violates_an_invariant() -> None:
    _nothing_is_violated(range(QUICK))


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK, SEEDS, BLOCK))
def test_none_of_many_seeds_violates_an_invariant(first: int) -> None:
    _nothing_is_violated(range(first, first + BLOCK))


def _elsewhere(seed: int, hash_seed: str) -> str:
    code = (
        f"from tests.simulation.run import simulate; o = simulate({seed}); print(o.steps, o.records, o.swept, o.digest)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONHASHSEED": hash_seed},
    )
    return ended.stdout.strip()


def _told(o: Outcome) -> str:
    return f"{o.steps} {o.records} {o.swept} {o.digest}"


def test_a_seed_is_a_run_whatever_ran_before_and_wherever() -> None:
    first = simulate(7)
    simulate(8)
    assert simulate(7) == first
    assert _elsewhere(7, "1") == _elsewhere(7, "2") == _told(first)
