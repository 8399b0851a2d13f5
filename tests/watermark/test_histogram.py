"""The sums of a listing equal those of its keys, however the pages divide them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import ListedPage
from l0gc.watermark.histogram import SAMPLES, EpochRow, Histogram
from tests.support.l0_buckets import buckets


@given(buckets(), st.integers(1, 7), st.booleans())
@settings(max_examples=200)
def test_a_histogram_is_what_counting_key_by_key_gives(
    bucket: tuple[KeyLayout, list[str], int], page_size: int, backwards: bool
) -> None:
    layout, keys, _ = bucket
    keys = keys[::-1] if backwards else keys
    size = {k: len(k) * (i % 5) for i, k in enumerate(keys)}
    written = {k: 10**12 - i * 37 % 11 for i, k in enumerate(keys)}
    parts = [Histogram(), Histogram()]
    for at in range(0, len(keys), page_size):
        page = keys[at : at + page_size]
        parts[at % 2].add_page(layout, ListedPage(page, [size[k] for k in page], [written[k] for k in page]))
    histogram = parts[0].add(parts[1])
    of_epoch: dict[int | None, list[str]] = {}
    for k in keys:
        parsed = layout.parse(k)
        of_epoch.setdefault(None if parsed is None else parsed.epoch, []).append(k)
    assert histogram.rows == {
        e: EpochRow(e, len(ks), sum(size[k] for k in ks), min(ks), min(written[k] for k in ks))
        for e, ks in of_epoch.items()
    }
    assert histogram.samples == sorted(of_epoch.get(None, []))[:SAMPLES]
