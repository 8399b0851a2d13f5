"""The real code on buckets that lose L0 objects, whose records somebody gives up: see README.md in this folder."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.losses import GIVEN_UP, LOST, MISREAD, REFUSED, WITHHELD, WITHHELD_LOGS
from tests.simulation.run import RECORDS, simulate

QUICK = 2
SEEDS = 26


def _nothing_is_violated(seeds: range) -> Counter[str]:
    """A violation names its seed; `python -m tests.simulation --losses --seeds 1 --first SEED` replays it."""
    return sum((simulate(seed, loses=True).happened for seed in seeds), Counter[str]())


def test_no_seed_with_losses_violates_an_invariant() -> None:
    assert _nothing_is_violated(range(QUICK))[RECORDS] > 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_none_of_many_seeds_with_losses_violates_an_invariant() -> None:
    happened = _nothing_is_violated(range(QUICK, SEEDS))
    assert all(happened[what] for what in (LOST, GIVEN_UP, REFUSED, WITHHELD, WITHHELD_LOGS, MISREAD, RECORDS)), (
        happened
    )
