"""Compares the sweeps' figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Final

from benchmarks.measure import Ratio, Sample, Spread
from l0gc.collect.run import SEGMENTS_IN_HAND
from l0gc.storage.workers import LOCAL_SLOTS

PAGE: Final = 1000


def list_bound(keys: int, garbage: int, shards: int) -> int:
    """Return the most LIST requests of the data prefix that a sweep may need."""
    return min(ceil(keys / PAGE), ceil(garbage / PAGE) + shards) + LOCAL_SLOTS


def delete_bound(garbage: int) -> int:
    """Return the most DELETE requests that a sweep may need."""
    return ceil(garbage / PAGE) + SEGMENTS_IN_HAND


def best(samples: Mapping[str, Sequence[Sample]], names: Sequence[str]) -> str:
    """Return which of the programs has the smallest median wall time."""
    return min(names, key=lambda name: Spread.of([s.wall for s in samples[name]]).median)


def ratio(
    samples: Mapping[str, Sequence[Sample]], ours: str, theirs: str, of: Callable[[Sample], float] = lambda s: s.wall
) -> Ratio:
    """Return how two programs compare."""
    return Ratio.of([of(s) for s in samples[ours]], [of(s) for s in samples[theirs]])
