"""The real code on buckets of which a part went back to an older copy: see README.md in this folder."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.copies import PARTS
from tests.simulation.run import RECORDS
from tests.simulation.set_back import ACCEPTED, FOR_GOOD, REFUSED, set_back

QUICK = 2
SEEDS = 32
BLOCK = 30


def _nothing_is_violated(seeds: range) -> Counter[str]:
    """A violation names its seed; `python -m tests.simulation --set-back --seeds 1 --first SEED` replays it."""
    return sum((set_back(seed).happened for seed in seeds), Counter[str]())


def test_no_seed_violates_an_invariant() -> None:
    assert _nothing_is_violated(range(QUICK))[RECORDS] > 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK, SEEDS, BLOCK))
def test_none_of_many_seeds_violates_an_invariant(first: int) -> None:
    happened = _nothing_is_violated(range(first, first + BLOCK))
    for what in (ACCEPTED, FOR_GOOD, RECORDS, REFUSED, *(f"put back: {part}" for part in PARTS)):
        assert happened[what] > 0, f"the seeds from {first} on have no {what}"


@pytest.mark.thorough
def test_a_seed_is_a_run() -> None:
    first = set_back(3)
    set_back(4)
    assert set_back(3) == first
