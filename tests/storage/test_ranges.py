"""Ranges of a listing: every key once, however the range is cut and listed, and many readers where there are many keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.keys import KeyLayout
from l0gc.storage.ranges import (
    FIRST_PAGES,
    GROWTH,
    KeyRange,
    RangeReader,
    cut_range,
    of_shards,
    read_in_rounds,
    split_rest,
)
from l0gc.storage.s3 import S3Store
from l0gc.storage.workers import LOCAL
from tests.support.l0_buckets import SHARDS, Backwards, Disordered, a_store, below, buckets, name_of
from tests.support.memory_store import MemoryStore

Bucket = tuple[KeyLayout, list[str], int]


class Reader:
    """Reads the given ranges, and records how they were divided."""

    def __init__(self, store: MemoryStore, layout: KeyLayout) -> None:
        self.store, self.layout = store, layout
        self.rounds: list[list[int]] = []
        self.keys: list[str] = []
        self.sizes: list[int] = []

    def __call__(self, ranges: Sequence[KeyRange], pages: int) -> Iterator[KeyRange]:
        self.rounds.append([])
        for keys in ranges:
            reader = RangeReader(self.store, self.layout, keys, pages)
            read = list(reader.read())
            self.keys += [k for page in read for k in page.keys]
            self.sizes += [s for page in read for s in page.sizes]
            assert all(len(p.keys) == len(p.sizes) == len(p.modified_ms) > 0 for p in read)
            self.rounds[-1].append(len(read))
            if reader.rest is not None:
                yield reader.rest


def read_all(store: MemoryStore, layout: KeyLayout, readers: int, ceiling: int, first_pages: int) -> Reader:
    reader = Reader(store, layout)
    read_in_rounds(layout, readers, lambda: ceiling, reader, first_pages)
    return reader


@given(buckets(), st.integers(1, 7), st.integers(1, 9), st.integers(0, 9), st.integers(1, 3))
@settings(max_examples=300)
def test_every_key_is_read_once_foreign_ones_too(
    bucket: Bucket, page_size: int, readers: int, ceiling: int, first_pages: int
) -> None:
    layout, keys, _ = bucket
    reader = read_all(a_store(keys, page_size), layout, readers, ceiling, first_pages)
    assert sorted(reader.keys) == below(layout, keys)
    assert reader.sizes == [len(k) % 7 for k in reader.keys]


@given(buckets(), st.integers(1, 7), st.integers(1, 9), st.integers(0, 9))
@settings(max_examples=200)
def test_a_store_that_lists_backwards_is_read_once_too(
    bucket: Bucket, page_size: int, readers: int, ceiling: int
) -> None:
    """Hazard 12: no range may rely on the order of the store's listing."""
    layout, keys, _ = bucket
    reader = read_all(a_store(keys, max(2, page_size), Backwards), layout, readers, ceiling, 1)
    assert sorted(reader.keys) == below(layout, keys)


@given(buckets(), st.integers(2, 7), st.integers(1, 9), st.integers(0, 9))
@settings(max_examples=200)
def test_a_disordered_store_yields_every_key_once(bucket: Bucket, page_size: int, readers: int, seed: int) -> None:
    """Hazard 12: a page that looks ordered may hide keys from a reader that stops there, but no key is invented or
    repeated.
    """
    layout, keys, _ = bucket
    store = a_store(keys, page_size, Disordered)
    assert isinstance(store, Disordered)
    store.seed = seed
    found = read_all(store, layout, readers, 6, 10**6).keys
    assert set(found) <= set(below(layout, keys))
    assert len(set(found)) == len(found)


@given(buckets(), st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=9), st.integers(1, 7))
@settings(max_examples=200)
def test_wherever_it_is_cut_the_pieces_hold_every_key_once(bucket: Bucket, cuts: list[str], page_size: int) -> None:
    layout, keys, _ = bucket
    store = a_store(keys, page_size)
    pieces = cut_range(KeyRange(), [layout.data_prefix + c for c in cuts] + keys[::3])
    read = [k for piece in pieces for page in RangeReader(store, layout, piece).read() for k in page.keys]
    assert read == below(layout, keys)


@pytest.mark.parametrize("ordered", [True, False])
def test_another_folder_is_read_in_ranges_too_whatever_the_order(ordered: bool) -> None:
    keys = [f"f/{n:02}" for n in range(20)]
    store = a_store([*keys, "e", "g"], 3 if ordered else 100)
    if not ordered:
        store.order = lambda keys: sorted(keys, key=lambda k: k[::-1])  # type: ignore[method-assign]
    pieces = cut_range(KeyRange(folder="f/"), ["f/04~", "f/11~"])
    readers = [RangeReader(store, KeyLayout(), piece) for piece in pieces]
    found = [sorted(k for page in reader.read() for k in page.keys) for reader in readers]
    assert found == [keys[:5], keys[5:12], keys[12:]]


def test_a_range_that_ends_with_its_page_takes_no_further_request() -> None:
    store = a_store([f"f/{n}" for n in range(6)], 3)
    reader = RangeReader(store, KeyLayout(), KeyRange(end="f/2", folder="f/"))
    assert [k for page in reader.read() for k in page.keys] == ["f/0", "f/1", "f/2"]
    assert reader.requests == store.requests["scan"] == 1


@given(buckets(), st.integers(0, 9), st.integers(1, 9), st.data())
@settings(max_examples=200)
def test_the_pieces_of_a_rest_are_the_rest(bucket: Bucket, ceiling: int, parts: int, data: st.DataObject) -> None:
    layout, keys, _ = bucket
    ends = sorted(data.draw(st.lists(st.sampled_from(keys), min_size=2, max_size=2))) if keys else ["", "z"]
    rest = KeyRange(ends[0], data.draw(st.sampled_from([ends[1], None])))
    pieces = split_rest(layout, rest, ceiling, parts)
    assert (pieces[0].start, pieces[-1].end) == (rest.start, rest.end)
    assert all(a.end == b.start for a, b in pairwise(pieces))
    assert len(pieces) <= 3 * parts + 1


def test_the_ranges_of_shards_are_as_even_as_they_can_be() -> None:
    layout = KeyLayout(shards=10)
    assert of_shards(layout, 1) == [KeyRange()]
    assert [r.end for r in of_shards(layout, 3)] == [layout.before_shard(3), layout.before_shard(6), None]
    assert len(of_shards(layout, 99)) == 10


@pytest.mark.parametrize(
    ("shards", "epochs"), [(1, 40), (1000, 40), (1, 1)], ids=["one-shard", "one-of-a-thousand", "one-epoch"]
)
def test_what_lies_in_one_shard_is_read_by_several(shards: int, epochs: int) -> None:
    """No reader reads much more than the others, wherever the keys are; the first round finds the large range."""
    layout = KeyLayout(shards=shards)
    names = [f"{i * 7919 % 256:02x}{i:06x}-0000-4000-8000-000000000000" for i in range(2000)]
    keys = [layout.format(shards // 2, i % epochs, name) for i, name in enumerate(names)]
    reader = read_all(a_store(keys, 10), layout, readers=8, ceiling=epochs, first_pages=10)
    assert sorted(reader.keys) == sorted(keys)
    pages = sum(map(sum, reader.rounds))
    longest = sum(max(of_round) for of_round in reader.rounds)
    assert longest <= pages / 3
    assert reader.rounds[0].count(10) == 1
    assert max(reader.rounds[1]) <= 10 * GROWTH


def test_a_scan_continues_past_a_key_like_a_directory() -> None:
    """Hazard 12: the next reader would start there."""
    layout = KeyLayout(shards=2)
    keys = [layout.format(0, 1, name_of(1)), f"{layout.data_prefix}000/2", layout.format(1, 1, name_of(2))]
    reader = RangeReader(a_store(sorted([*keys, layout.format(1, 1, name_of(3))]), 1), layout, KeyRange(), pages=2)
    assert [k for page in reader.read() for k in page.keys] == keys
    assert reader.rest == KeyRange(keys[2])


@pytest.mark.weed
def test_seaweedfs_gives_every_key_once_wherever_a_range_begins(store: S3Store) -> None:
    """Hazard 12: from `level_zero/data/001` on, this store's listing skips the whole folder of that name."""
    layout = KeyLayout(shards=4)
    names = [f"{i:02x}{i:06x}-0000-4000-8000-000000000000" for i in (0, 100, 200)]
    keys = sorted(layout.format(shard, epoch, n) for shard in range(4) for epoch in (1, 5) for n in names)
    store.create_bucket()
    for key in [*keys, f"{layout.data_prefix}001/README"]:
        store.put(key, b"x")
    cuts = [layout.before_shard(s) for s in range(4)]
    cuts += [layout.before_epoch(s, e) for s in range(4) for e in (0, 1, 2, 5, 6)]
    cuts += [layout.before_name(s, 1, n) for s in range(4) for n in (0, 100, 201, 255)]
    pieces = [*cut_range(KeyRange(), cuts), *cut_range(KeyRange(), keys)]
    read = [k for piece in pieces for page in RangeReader(store, layout, piece).read() for k in page.keys]
    assert sorted(read) == sorted(2 * [*keys, f"{layout.data_prefix}001/README"])


def test_a_small_bucket_takes_one_listing_round() -> None:
    layout = KeyLayout(shards=SHARDS)
    keys = [layout.format(s, e, name_of(s)) for s in range(SHARDS) for e in range(6)]
    reader = Reader(a_store(keys, 10), layout)

    def ceiling() -> int:
        raise AssertionError("no range was left")

    read_in_rounds(layout, 4, ceiling, reader, FIRST_PAGES[LOCAL])
    assert len(reader.rounds) == 1
    assert reader.keys == keys


def test_the_epoch_is_requested_once_a_round_however_many_ranges_are_left() -> None:
    """The epoch costs a request, and there may be a thousand ranges."""
    layout = KeyLayout(shards=SHARDS)
    keys = [layout.format(s, e, name_of(n)) for s in range(SHARDS) for e in range(6) for n in range(20)]
    reader = Reader(a_store(keys, 10), layout)
    rounds_before: list[int] = []

    def ceiling() -> int:
        rounds_before.append(len(reader.rounds))
        return 5

    read_in_rounds(layout, 4, ceiling, reader, first_pages=1)
    assert sorted(reader.keys) == sorted(keys)
    assert rounds_before == list(range(1, len(reader.rounds)))
    assert rounds_before
