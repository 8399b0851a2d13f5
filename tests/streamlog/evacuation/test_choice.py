"""Which epoch an evacuation is worth: the rules, for any histograms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from l0gc.streamlog.evacuation.choice import Holding, Target, choose_target

HISTOGRAM = st.dictionaries(st.integers(0, 30), st.integers(0, 1000), max_size=12)


def held(objects: dict[int, int]) -> dict[int, Holding]:
    return {e: Holding(1, n) for e, n in objects.items()}


def at(objects: dict[int, int], needed: dict[int, int], epoch: int) -> tuple[int, int]:
    """What a target copies, and the garbage that it releases; counted once more."""
    copied = sum(n for e, n in needed.items() if e <= epoch)
    there = sum(n for e, n in objects.items() if min(needed) <= e <= epoch)
    return copied, there - copied


@given(HISTOGRAM, HISTOGRAM, st.integers(0, 35), st.sampled_from([1, 2, 4, 50]), st.sampled_from([0, 100, 2000, 10**6]))
def test_a_target_is_below_the_windows_within_the_limits_and_the_best(
    garbage: dict[int, int], needed: dict[int, int], below: int, ratio: int, max_bytes: int
) -> None:
    objects = {e: garbage.get(e, 0) + needed.get(e, 0) for e in garbage.keys() | needed.keys()}
    found = choose_target(held(objects), needed, below, ratio=ratio, max_bytes=max_bytes)
    allowed = [
        e
        for e in range(below)
        if needed and e >= min(needed)
        and at(objects, needed, e)[1] > 0
        and at(objects, needed, e)[1] >= ratio * at(objects, needed, e)[0]
        and at(objects, needed, e)[0] <= max_bytes
    ]  # fmt: skip
    if found.epoch is None:
        assert not allowed
        assert found.why
        return
    assert found.epoch in allowed
    assert found.epoch < below
    copied, gain = at(objects, needed, found.epoch)
    assert (found.copied, found.garbage) == (copied, gain)
    surplus = {e: at(objects, needed, e)[1] - ratio * at(objects, needed, e)[0] for e in allowed}
    assert surplus[found.epoch] == max(surplus.values())


def test_garbage_that_costs_too_much_is_left_and_what_is_cheap_below_it_goes() -> None:
    objects, needed = {1: 10, 2: 990, 3: 500, 4: 500}, {1: 10, 3: 450, 4: 450}
    assert choose_target(held(objects), needed, 9) == Target(2, 10, Holding(2, 1000), 990)


def test_the_reason_names_the_best_that_there_is_and_the_limit() -> None:
    objects, needed = {1: 1 << 20, 2: 1 << 20}, {1: 1 << 20}
    found = choose_target(held(objects), needed, 9)
    assert (
        found.why == "to move 1.0 MiB up to epoch 2 would release 2 objects with 1.0 MiB of garbage, and --ratio is 4"
    )
    found = choose_target({1: Holding(1, 100 << 20)}, needed, 9, max_bytes=1000)
    assert found.why.endswith("would release 1 object with 99.0 MiB of garbage, more than --max-bytes 1000 B")
    assert "below epoch 1," in choose_target(held(objects), needed, 1).why


def test_what_is_below_the_first_that_lags_is_no_gain() -> None:
    """It goes without an evacuation."""
    assert choose_target({1: Holding(9, 10**9), 2: Holding(1, 100)}, {2: 100}, 9).epoch is None


def test_fewer_objects_are_worth_a_copy_but_not_a_copy_of_a_copy() -> None:
    """Where tiny extents share a block, the block moves, and bytes alone gain nothing."""
    objects = {e: Holding(4, 4000) for e in range(1, 6)}
    assert choose_target(objects, dict.fromkeys(objects, 4000), 9).epoch is None
    assert choose_target(objects, dict.fromkeys(objects, 4000), 9, object_bytes=1 << 20).epoch == 5
    assert choose_target({7: Holding(1, 20_000)}, {7: 20_000}, 9, object_bytes=1 << 20).epoch is None
