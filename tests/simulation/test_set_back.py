"""The real code on buckets of which parts went back to an older copy: see README.md in this folder."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from l0gc.keys import PUBLISHED_COPY, PUBLISHED_WATERMARK, journal_log
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one.reconcile import reconcile
from l0gc.watermark.publication import decode_published, encode_published, reserve_numbers
from tests.simulation.actors import TOPICS, new_lines, upload
from tests.simulation.copies import LOGS, LOST, OLDER, PARTS, PUBLISHED, REMOVED, Copy, Restore
from tests.simulation.events import Work, plant
from tests.simulation.holds import Holds
from tests.simulation.jobs import compute_watermark, watermark_job
from tests.simulation.losses import Losses
from tests.simulation.run import RECORDS, found, world_of
from tests.simulation.set_back import ACCEPTED, FOR_GOOD, REFUSED, set_back
from tests.simulation.watch import LAYOUT, Violation
from tests.simulation.weather import Shape, Weather
from tests.simulation.world import World

QUICK = 1
SEEDS = 18
BLOCK = 17


def _nothing_is_violated(seeds: range) -> Counter[str]:
    """Run the seeds. A violation names its seed; `python -m tests.simulation --set-back --seeds 1 --first SEED` replays
    it.
    """
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


@pytest.fixture
def world() -> Iterator[World]:
    """Yield a world without faults, with a journal from before its records were lifted and M passed them."""
    chance = random.Random(1)
    weather = replace(Weather.draw(chance), journals=1, shapes=(Shape(2, 1),) * 3)
    with world_of(1, chance, weather, Holds(1)) as world, world.quietly():
        found(world)
        upload(world, world.cluster(), TOPICS[0], new_lines(world, "some"))
        copy = Copy.of(world, Work())
        reconcile(world.cluster())
        for _ in range(2):
            housekeep(world.cluster(), barrier=True)
        compute_watermark(world, world.cluster())
        restore = Restore(frozenset({LOGS}), frozenset({0}), frozenset(), "", newer_vanish=False, for_good=False)
        restore.happen(world, copy, Copy.of(world, Work()))
        yield world


def test_m_may_be_published_while_a_journal_set_back_is_unread(world: World) -> None:
    before, m = world.store.objects[PUBLISHED_WATERMARK].etag, world.watch.watermark
    world.losses = Losses(withheld={key for key in world.store.objects if key.startswith(journal_log(0))})
    world.spawn("watermark", watermark_job(world, 1))
    world.run(1000)
    assert world.store.objects[PUBLISHED_WATERMARK].etag != before
    assert world.watch.watermark == m


def test_nothing_may_go_while_published_json_is_lost(world: World) -> None:
    first, second = (LAYOUT.format(0, 0, str(UUID(int=n))) for n in range(2))
    for garbage in (first, second):
        plant(world, garbage, b"garbage")
    newest = Copy.of(world, Work())
    world.store.delete([first])
    lost = Restore(frozenset({PUBLISHED}), frozenset(), frozenset(), LOST, newer_vanish=False, for_good=False)
    lost.happen(world, newest, newest)
    with pytest.raises(Violation, match=r"or published\.json is lost"):
        world.store.delete([second])


def test_a_restored_copy_without_published_json_loses_it(world: World) -> None:
    newest = Copy.of(world, Work())
    before = replace(newest, objects={k: body for k, body in newest.objects.items() if k != PUBLISHED_WATERMARK})
    for copy, drawn in ((newest, {"", OLDER, REMOVED, LOST}), (before, {"", REMOVED, LOST})):
        assert {Restore.draw(random.Random(n), copy, newest).published for n in range(100)} == drawn


def test_no_higher_m_may_be_published_while_a_journal_is_set_back(world: World) -> None:
    published = decode_published(world.store.objects[PUBLISHED_WATERMARK].body)
    higher = msgspec.structs.replace(published, watermark=published.watermark + 1)
    with pytest.raises(Violation, match="was published, though a/0"):
        world.store.put(PUBLISHED_WATERMARK, encode_published(higher))


@pytest.mark.parametrize("first", [True, False])
def test_who_reserves_numbers_on_an_older_controller_log_publishes_no_m(world: World, first: bool) -> None:
    """Seeds 415 and 902016 without --set-back found this: a first publication, and one that keeps an earlier
    computation.
    """
    watch, computed = world.watch, decode_published(world.store.objects[PUBLISHED_WATERMARK].body)
    if first:
        for key in (PUBLISHED_WATERMARK, PUBLISHED_COPY):
            del world.store.objects[key]
        watch.watermark = watch.published_epoch = -1
    watch.highest_epoch = watch.controller.epoch + 9
    plant(world, LAYOUT.format(0, watch.highest_epoch, str(UUID(int=9))), b"of the newer log")
    reserve_numbers(world.cluster(), (9, 9))
    assert decode_published(world.store.objects[PUBLISHED_WATERMARK].body).given == (9, 9)
    again = msgspec.structs.replace(computed, watermark=watch.watermark, partitions=computed.partitions + 1)
    with pytest.raises(Violation, match="is above the cluster epoch"):
        world.store.put(PUBLISHED_WATERMARK, encode_published(again))
