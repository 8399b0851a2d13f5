"""The skip-scan: exactly the garbage, whatever lies around it and however it is listed, and few requests for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l0gc.sweep.scan
from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import PAGE_SIZE, ListedPage
from l0gc.sweep.scan import OutOfOrderError, ScanCounts, SkipScan, in_range
from tests.support.memory_store import MemoryStore

SHARDS = 5
LAYOUTS = [
    KeyLayout(shards=SHARDS),
    KeyLayout("{shard:01}/{epoch:018}/{uuid}", SHARDS),
    KeyLayout("d/s{shard:02}-{epoch:05}-{uuid}.l0", SHARDS),
]
FOREVER = 2**60


def name_of(i: int) -> str:
    return f"{i:08x}-0000-4000-8000-000000000000"


def foreign_keys(layout: KeyLayout) -> list[str]:
    """Keys that lie before, between, among and behind those of a layout, and are none."""
    p, key = layout.data_prefix, layout.format(2, 3, name_of(1))
    width = len(layout.shard_prefix(0)) - len(p)
    return [
        *([p] if p else []),
        f"{p}README",
        f"{p}!first",
        f"{p}~last",
        *([f"{p}{'0' * (width - 1)}"] if width > 1 else []),
        f"{p}{'0' * (width + 1)}/x",
        *[f"{layout.shard_prefix(s)}/" for s in range(SHARDS)],
        *[f"{layout.shard_prefix(s)}~" for s in range(SHARDS)],
        *[f"{layout.shard_prefix(s)}/zzz" for s in range(SHARDS)],
        f"{layout.shard_prefix(SHARDS)}/{'0' * 18}/{name_of(1)}",
        layout.format(2, 3, name_of(1)).replace(name_of(1), "?"),
        f"{key}.tmp",
        f"{key}/",
        f"{key}\n",
        layout.format(1, 1, "abcdef12-0000-4000-8000-000000000000").upper(),
        f"other/{key}",
    ]


@st.composite
def buckets(draw: st.DrawFn) -> tuple[KeyLayout, list[str], int]:
    """A layout, a bucket's keys and a watermark."""
    layout = draw(st.sampled_from(LAYOUTS))
    objects = draw(st.lists(st.tuples(st.integers(0, SHARDS - 1), st.integers(0, 6), st.integers(0, 20)), max_size=40))
    foreign = draw(st.lists(st.sampled_from(foreign_keys(layout)), max_size=6))
    keys = {layout.format(s, e, name_of(n)) for s, e, n in objects} | set(foreign)
    return layout, sorted(keys), draw(st.integers(-1, 7))


def a_store(keys: list[str], page_size: int, kind: type[MemoryStore] = MemoryStore) -> MemoryStore:
    store = kind()
    store.page_size = page_size
    for k in keys:
        store.put(k, b"x" * (len(k) % 7))
    store.requests.clear()
    return store


def below(layout: KeyLayout, keys: list[str]) -> list[str]:
    return [k for k in keys if k.startswith(layout.data_prefix)]


def garbage(layout: KeyLayout, keys: list[str], watermark: int) -> list[str]:
    """By definition: what parses, at the watermark or below it."""
    parsed = [(k, layout.parse(k)) for k in below(layout, keys)]
    return [k for k, p in parsed if p is not None and p.epoch <= watermark]


def scan_range(
    store: MemoryStore, layout: KeyLayout, watermark: int, cut: tuple[int, int], skip: bool = True
) -> tuple[list[str], ScanCounts]:
    scan = SkipScan(store, layout, watermark, *cut, older_than_ms=FOREVER, skip=skip)
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
    """The scan takes a page of `size` for a full one, as the store makes it."""
    setattr(l0gc.sweep.scan, "PAGE_SIZE", size)  # noqa: B010 - the name is not the module's own


@given(buckets(), st.integers(1, 7), cuts, st.booleans())
@settings(max_examples=400, deadline=None)
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
@settings(max_examples=400, deadline=None)
def test_a_scan_asks_for_no_more_pages_than_garbage_and_shards_or_than_there_are(
    bucket: tuple[KeyLayout, list[str], int], page_size: int, ranges: list[tuple[int, int]]
) -> None:
    layout, keys, watermark = bucket
    pages_of(page_size)
    store = a_store(keys, page_size)
    counted = sum(scan_range(store, layout, watermark, cut)[1].requests for cut in ranges)
    all_keys = below(layout, keys)
    dead = garbage(layout, keys, watermark)
    foreign = [k for k in all_keys if layout.parse(k) is None]
    bound = min(len(all_keys) // page_size, len(dead) // page_size + SHARDS + len(foreign)) + len(ranges)
    assert store.requests["scan"] <= bound
    assert counted == store.requests["scan"]


@given(buckets(), st.integers(1, 7), cuts)
@settings(max_examples=200, deadline=None)
def test_a_scan_without_skipping_counts_every_key_once(
    bucket: tuple[KeyLayout, list[str], int], page_size: int, ranges: list[tuple[int, int]]
) -> None:
    layout, keys, watermark = bucket
    store = a_store(keys, page_size)
    total = ScanCounts()
    for cut in ranges:
        total.add(scan_range(store, layout, watermark, cut, skip=False)[1])
    all_keys = below(layout, keys)
    foreign = [k for k in all_keys if layout.parse(k) is None]
    assert (total.listed, total.unparsable) == (len(all_keys), len(foreign))
    assert total.unparsable_sample in (foreign or [""])
    assert total.eligible == len(garbage(layout, keys, watermark))
    assert total.highest_epoch == max((p.epoch for k in all_keys if (p := layout.parse(k))), default=-1)


@given(buckets(), st.integers(1, 7), cuts)
@settings(max_examples=200, deadline=None)
def test_the_ranges_of_all_shards_cover_the_prefix_exactly_once(
    bucket: tuple[KeyLayout, list[str], int], page_size: int, ranges: list[tuple[int, int]]
) -> None:
    layout, keys, _ = bucket
    store = a_store(keys, page_size)
    pages = [page for cut in ranges for page in in_range(store, layout, *cut)]
    assert [k for page in pages for k in page.keys] == below(layout, keys)
    assert all(len(p.keys) == len(p.sizes) == len(p.modified_ms) > 0 for p in pages)
    assert [s for p in pages for s in p.sizes] == [len(k) % 7 for k in below(layout, keys)]


def test_one_page_of_each_shard_is_enough_where_nothing_is_garbage() -> None:
    layout = KeyLayout(shards=SHARDS)
    keys = [layout.format(s, 9, name_of(n)) for s in range(SHARDS) for n in range(100)]
    pages_of(10)
    store = a_store(keys, 10)
    found, counts = scan_range(store, layout, 5, (0, SHARDS))
    assert found == []
    assert store.requests["scan"] == SHARDS + 1  # and one to see that the last shard was the last
    assert counts.listed == SHARDS * 10


# -- stores that list out of order (hazard 12) --------------------------------------------------------------------------


class Disordered(MemoryStore):
    """Lists in an order of its own, and goes on by position, as a store with continuation tokens does."""

    seed = 0

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        keys = [k for k in self.order(sorted(self.objects)) if k.startswith(prefix) and k > start_after]
        objects = dict(self.objects)
        for at in range(0, max(1, len(keys)), self.page_size):
            self._enter("scan", prefix)
            page = keys[at : at + self.page_size]
            if page:
                yield ListedPage(page, [len(objects[k].body) for k in page], [objects[k].modified_ms for k in page])

    def order(self, keys: list[str]) -> list[str]:
        shuffled = keys[:]
        random.Random(self.seed).shuffle(shuffled)
        return shuffled


class Backwards(Disordered):
    def order(self, keys: list[str]) -> list[str]:
        return keys[::-1]


@given(buckets(), st.integers(1, 7), cuts, st.integers(0, 9))
@settings(max_examples=300, deadline=None)
def test_a_disordered_store_is_never_read_wrongly(
    bucket: tuple[KeyLayout, list[str], int], page_size: int, ranges: list[tuple[int, int]], seed: int
) -> None:
    """Skipping finds garbage only, or says that it cannot skip; reading on without skipping finds all of it."""
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
    covered = [k for cut in ranges for page in in_range(store, layout, *cut) for k in page.keys]
    assert set(covered) <= set(below(layout, keys))
    assert len(set(covered)) == len(covered)


@pytest.mark.parametrize("kind", [Disordered, Backwards])
def test_a_disordered_page_is_noticed(kind: type[MemoryStore]) -> None:
    layout = KeyLayout(shards=SHARDS)
    keys = [layout.format(s, e, name_of(1)) for s in range(SHARDS) for e in range(6)]
    pages_of(10)
    with pytest.raises(OutOfOrderError):
        scan_range(a_store(keys, 10, kind), layout, 3, (0, SHARDS))


def test_the_ranges_of_a_store_that_lists_backwards_cover_the_prefix_exactly_once() -> None:
    layout = KeyLayout(shards=SHARDS)
    keys = [layout.format(s, e, name_of(1)) for s in range(SHARDS) for e in range(6)]
    store = a_store(keys, 4, Backwards)
    covered = [k for s in range(SHARDS) for page in in_range(store, layout, s, s + 1) for k in page.keys]
    assert sorted(covered) == keys


# -- age (hazard 16) ----------------------------------------------------------------------------------------------------


def test_an_object_is_old_enough_at_the_age_exactly() -> None:
    layout = KeyLayout(shards=SHARDS)
    store = MemoryStore()
    for n in range(3):
        store.put(layout.format(0, 1, name_of(n)), b"x")
        store.clock.ms += 1000
    changed = store.objects[layout.format(0, 1, name_of(1))].modified_ms
    scan = SkipScan(store, layout, 5, 0, SHARDS, older_than_ms=changed)
    assert [o.key for b in scan.batches() for o in b] == [layout.format(0, 1, name_of(n)) for n in (0, 1)]
    assert (scan.counts.eligible, scan.counts.held_by_age) == (3, 1)
