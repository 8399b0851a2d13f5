"""The skip-scan: it finds exactly the garbage, whatever surrounds it and however it is listed, with few requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import l0gc.collect.skip_scan
from l0gc.collect.plan import DeletionPlan
from l0gc.collect.skip_scan import OutOfOrderError, RunCounts, SkipScan
from l0gc.keys import KeyLayout
from l0gc.operations import Sweep
from l0gc.storage.objectstore import PAGE_SIZE
from tests.support.l0_buckets import SHARDS, Backwards, Disordered, a_store, below, buckets, name_of
from tests.support.memory_store import MemoryStore
from tests.support.tries import tries


def garbage(layout: KeyLayout, keys: list[str], watermark: int) -> list[str]:
    """Return the garbage by definition: the keys that parse, at or below the watermark."""
    parsed = [(k, layout.parse(k)) for k in below(layout, keys)]
    return [k for k, p in parsed if p is not None and p.epoch <= watermark]


def scan_range(
    store: MemoryStore, layout: KeyLayout, watermark: int, cut: tuple[int, int], skip: bool = True
) -> tuple[list[str], RunCounts]:
    scan = SkipScan(store, DeletionPlan(options=Sweep(), layout=layout, bound=watermark), *cut, skip=skip)
    found = [o.key for batch in scan.batches() for o in batch]
    return found, scan.counts


cuts = st.lists(st.integers(1, SHARDS - 1), unique=True, max_size=SHARDS - 1).map(
    lambda c: list(zip([0, *sorted(c)], [*sorted(c), SHARDS], strict=True))
)


@pytest.fixture(autouse=True, scope="module")
def _real_pages_afterwards() -> Iterator[None]:
    yield
    pages_of(PAGE_SIZE)


def pages_of(size: int) -> None:
    """Make `size` keys a full page for the scan, as for the store."""
    setattr(l0gc.collect.skip_scan, "PAGE_SIZE", size)  # noqa: B010 - the name is not the module's own


@given(buckets(), st.integers(1, 7), cuts, st.booleans())
@tries(150)
def test_the_ranges_find_exactly_the_garbage_each_key_once(
    bucket: tuple[KeyLayout, list[str], int], page_size: int, ranges: list[tuple[int, int]], skip: bool
) -> None:
    layout, keys, watermark = bucket
    pages_of(page_size)
    store = a_store(keys, page_size)
    found: list[str] = []
    for cut in ranges:
        found += scan_range(store, layout, watermark, cut, skip)[0]
    assert found == garbage(layout, keys, watermark)


@given(buckets(), st.integers(1, 7), cuts)
@tries(150)
def test_a_scan_reads_at_most_the_pages_of_garbage_and_shards(
    bucket: tuple[KeyLayout, list[str], int], page_size: int, ranges: list[tuple[int, int]]
) -> None:
    layout, keys, watermark = bucket
    pages_of(page_size)
    store = a_store(keys, page_size)
    counted = sum(scan_range(store, layout, watermark, cut)[1].list_requests for cut in ranges)
    all_keys = below(layout, keys)
    dead = garbage(layout, keys, watermark)
    foreign = [k for k in all_keys if layout.parse(k) is None]
    bound = min(len(all_keys) // page_size, len(dead) // page_size + SHARDS + len(foreign)) + len(ranges)
    assert store.requests["scan"] <= bound
    assert counted == store.requests["scan"]


@given(buckets(), st.integers(1, 7), cuts)
@tries(80)
def test_a_scan_without_skipping_counts_every_key_once(
    bucket: tuple[KeyLayout, list[str], int], page_size: int, ranges: list[tuple[int, int]]
) -> None:
    layout, keys, watermark = bucket
    store = a_store(keys, page_size)
    total = RunCounts()
    for cut in ranges:
        total.include(scan_range(store, layout, watermark, cut, skip=False)[1])
    all_keys = below(layout, keys)
    foreign = [k for k in all_keys if layout.parse(k) is None]
    assert (total.listed, total.unparsable) == (len(all_keys), len(foreign))
    assert set(total.unparsable_samples) <= set(foreign)
    assert bool(total.unparsable_samples) == bool(foreign)
    assert total.eligible == len(garbage(layout, keys, watermark))


def test_one_page_of_each_shard_is_enough_where_nothing_is_garbage() -> None:
    layout = KeyLayout(shards=SHARDS)
    keys = [layout.format(s, 9, name_of(n)) for s in range(SHARDS) for n in range(100)]
    pages_of(10)
    store = a_store(keys, 10)
    found, counts = scan_range(store, layout, 5, (0, SHARDS))
    assert found == []
    assert store.requests["scan"] == SHARDS + 1  # one more request shows that no shard follows
    assert counts.listed == SHARDS * 10


# -- stores that list out of order (hazard 12) --------------------------------------------------------------------------


@given(buckets(), st.integers(1, 7), cuts, st.integers(0, 9))
@tries(120)
def test_a_disordered_store_is_never_read_wrongly(
    bucket: tuple[KeyLayout, list[str], int], page_size: int, ranges: list[tuple[int, int]], seed: int
) -> None:
    """A skipping scan finds only garbage, or reports that it cannot skip; a full scan finds all of it."""
    layout, keys, watermark = bucket
    pages_of(page_size)
    store = a_store(keys, page_size, Disordered)
    assert isinstance(store, Disordered)
    store.seed = seed
    dead = garbage(layout, keys, watermark)
    found: list[str] = []
    for cut in ranges:
        with suppress(OutOfOrderError):
            assert set(scan_range(store, layout, watermark, cut)[0]) <= set(dead)
        found += scan_range(store, layout, watermark, cut, skip=False)[0]
    assert sorted(found) == dead


@pytest.mark.parametrize("kind", [Disordered, Backwards])
def test_a_disordered_page_is_noticed(kind: type[MemoryStore]) -> None:
    layout = KeyLayout(shards=SHARDS)
    keys = [layout.format(s, e, name_of(1)) for s in range(SHARDS) for e in range(6)]
    pages_of(10)
    with pytest.raises(OutOfOrderError):
        scan_range(a_store(keys, 10, kind), layout, 3, (0, SHARDS))


# -- age (hazard 16) ----------------------------------------------------------------------------------------------------


def three_ages() -> tuple[KeyLayout, MemoryStore, int]:
    """Create three objects, one second apart; return the time of the second, too."""
    layout = KeyLayout(shards=SHARDS)
    store = MemoryStore()
    for n in range(3):
        store.put(layout.format(0, 1, name_of(n)), b"x")
        store.clock.ms += 1000
    return layout, store, store.objects[layout.format(0, 1, name_of(1))].modified_ms


def test_an_object_is_old_enough_at_the_age_exactly() -> None:
    layout, store, changed = three_ages()
    scan = SkipScan(store, DeletionPlan(options=Sweep(), layout=layout, bound=5, older_than_ms=changed), 0, SHARDS)
    assert [o.key for b in scan.batches() for o in b] == [layout.format(0, 1, name_of(n)) for n in (0, 1)]
    assert (scan.counts.eligible, scan.counts.held_by_age) == (3, 1)


def test_what_shadow_runs_recorded_was_changed_before_their_time() -> None:
    layout, store, changed = three_ages()
    scan = SkipScan(store, DeletionPlan(options=Sweep(), layout=layout, bound=5, known=(1, changed)), 0, SHARDS)
    assert [o.key for b in scan.batches() for o in b] == [layout.format(0, 1, name_of(n)) for n in (1, 2)]
    assert scan.counts.eligible == 3
