"""The real code on buckets that lose L0 objects, whose records somebody gives up: see README.md in this folder."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.losses import GIVEN_UP, LOST, REFUSED
from tests.simulation.run import RECORDS, simulate

QUICK = 6
SEEDS = 106
BLOCK = 20


def _nothing_is_violated(seeds: range) -> None:
    """A violation names its seed; `python -m tests.simulation --losses --seeds 1 --first SEED` replays it."""
    happened = sum((simulate(seed, loses=True).happened for seed in seeds), Counter[str]())
    for what in (LOST, GIVEN_UP, REFUSED, RECORDS):
        assert happened[what] > 0, f"the seeds {seeds} have no {what}"


def test_no_seed_violates_an_invariant() -> None:
    _nothing_is_violated(range(QUICK))


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK, SEEDS, BLOCK))
def test_none_of_many_seeds_violates_an_invariant(first: int) -> None:
    _nothing_is_violated(range(first, first + BLOCK))
