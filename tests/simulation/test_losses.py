"""The real code on buckets that lose L0 objects, whose records somebody gives up: see README.md in this folder."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.losses import GIVEN_UP, LOST, MISREAD, REFUSED, WITHHELD, WITHHELD_LOGS
from tests.simulation.run import RECORDS, simulate


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(first, first + count), marks=[] if first == 0 else [pytest.mark.thorough])
        for first, count in ((0, 6), (6, 20))
    ],
)
@pytest.mark.timeout(900)
def test_no_seed_with_losses_violates_an_invariant(seeds: range) -> None:
    """A violation names its seed; `python -m tests.simulation --losses --seeds 1 --first SEED` replays it."""
    happened = sum((simulate(seed, loses=True).happened for seed in seeds), Counter[str]())
    assert all(happened[what] for what in (LOST, GIVEN_UP, REFUSED, WITHHELD, WITHHELD_LOGS, MISREAD, RECORDS)), (
        happened
    )
