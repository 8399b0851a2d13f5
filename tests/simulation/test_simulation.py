"""The real code under seeds: see README.md in this folder."""

from __future__ import annotations

import pytest

from tests.simulation.run import simulate


@pytest.mark.parametrize("block", range(10))
def test_no_seed_violates_an_invariant(block: int) -> None:
    outcomes = [simulate(seed) for seed in range(block * 5, block * 5 + 5)]
    assert sum(o.acknowledged for o in outcomes) > 0
    assert sum(o.crashes for o in outcomes) > 0


def test_a_seed_replays_exactly() -> None:
    assert simulate(7) == simulate(7)
