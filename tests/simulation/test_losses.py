"""The real code on buckets that lose L0 objects, whose records are given up: see README.md in this folder."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque

import pytest

from tests.simulation.actors import TOPICS, new_lines, upload
from tests.simulation.answers import MISREAD
from tests.simulation.holds import Holds
from tests.simulation.losses import GIVEN_UP, LOST, REFUSED, WITHHELD, WITHHELD_LOGS, Losses, give_all_up, held
from tests.simulation.run import RECORDS, found, simulate, world_of
from tests.simulation.watch import Violation
from tests.simulation.weather import Weather

QUICK = 1
SEEDS = 16


def _nothing_is_violated(seeds: range) -> Counter[str]:
    """Run the seeds. A violation names its seed; `python -m tests.simulation --losses --seeds 1 --first SEED` replays
    it.
    """
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


def test_what_can_be_neither_lifted_nor_given_up_is_named() -> None:
    """The object is damaged in the bucket itself and not recorded as lost: the end of the seed names it, and does not
    repeat forever.
    """
    chance = random.Random(1)
    with world_of(1, chance, Weather.draw(chance), Holds(1)) as world:
        found(world)
        world.losses = Losses()
        upload(world, world.cluster(), TOPICS[0], new_lines(world, "some"))
        damaged = next(held(world)).extent.key
        stored = world.store.objects[damaged]
        stored.body = bytes(len(stored.body))
        with pytest.raises(Violation, match=f"neither lifted nor given up: .*{damaged}"):
            give_all_up(world, world.cluster())


def test_an_operator_who_comes_to_no_end_is_a_violation() -> None:
    chance = random.Random(1)
    with world_of(1, chance, Weather.draw(chance), Holds(1)) as world:
        calls = (world.store.list("level_zero/") for _ in itertools.count())
        with pytest.raises(Violation, match="comes to no end, and is at level_zero/"):
            deque(calls, maxlen=0)
