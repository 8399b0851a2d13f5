"""The real code under seeds: see README.md in this folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import Outcome, simulate

ROOT = Path(__file__).parents[2]
SEEDS = 200
BLOCK = 10


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_no_seed_violates_an_invariant(first: int) -> None:
    """A violation names its seed; `python -m tests.simulation --seeds 1 --first SEED` replays it."""
    outcomes = [simulate(seed) for seed in range(first, first + BLOCK)]
    assert sum(o.records for o in outcomes) > 0
    assert sum(o.swept for o in outcomes) > 0
    assert sum(o.crashes for o in outcomes) > 0


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
