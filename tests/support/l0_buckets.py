"""Draws buckets of L0 objects for hypothesis: several layouts, foreign keys everywhere, and stores that list out of
order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import strategies as st

from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import ListedPage
from tests.support.memory_store import MemoryStore

SHARDS = 5
LAYOUTS = [
    KeyLayout(shards=SHARDS),
    KeyLayout("{shard:01}/{epoch:018}/{uuid}", SHARDS),
    KeyLayout("d/s{shard:02}-{epoch:05}-{uuid}.l0", SHARDS),
]


def name_of(i: int) -> str:
    return f"{i:08x}-0000-4000-8000-000000000000"


def foreign_keys(layout: KeyLayout) -> list[str]:
    """Return keys that sort before, between, among and after those of a layout, but are not L0 keys."""
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
    """Draw a layout, a bucket's keys and a watermark."""
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


class Disordered(MemoryStore):
    """Lists in its own order, and continues by position, as a store with continuation tokens does."""

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
