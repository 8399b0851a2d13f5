"""The epochs of a whole Arrow column of keys, without a Python object for each.

The decision is `KeyLayout.parse`'s, put as the same regular expression and comparisons of digits: both accept exactly the
same keys as L0 keys (hazard 13).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from l0gc import columns
from l0gc.epoch import EPOCH_DIGITS, MAX_EPOCH
from l0gc.keys import KeyLayout


@dataclass(frozen=True)
class KeyColumns:
    """Reads columns of keys that have `prefix` before what `layout` describes."""

    layout: KeyLayout
    prefix: str = ""

    def below(self, keys: pa.Array) -> pa.Array:
        """Which keys lie in the data prefix, as booleans."""
        return pc.starts_with(keys, self.prefix + self.layout.data_prefix)

    def epochs(self, keys: pa.Array) -> pa.Array:
        """The epoch of each key; null for one that `KeyLayout.parse` gives None for."""
        a, b, c, d = self._bytes
        fits = pc.match_substring_regex(keys, self._pattern)
        raw = keys.cast(pa.binary())
        if self.layout.shards < 10 ** (b - a):
            fits = pc.and_(fits, _at_most(pc.binary_slice(raw, a, b), self.layout.shards - 1, b - a))
        epoch = pc.binary_slice(raw, c, d)
        if d - c > EPOCH_DIGITS:
            fits = pc.and_(fits, _at_most(epoch, MAX_EPOCH, d - c))
        if pc.all(fits).as_py() is False:
            epoch = pc.if_else(fits, epoch, pa.nulls(1, pa.binary())[0])
        return epoch.cast(pa.string()).cast(pa.int64())

    @cached_property
    def _pattern(self) -> str:
        return f"^{re.escape(self.prefix)}{self.layout.pattern.removeprefix('^')}"

    @cached_property
    def _bytes(self) -> tuple[int, int, int, int]:
        """`KeyLayout.places` in bytes, after the prefix; a template may have more than ASCII in it."""
        key = self.layout.format(0, 0, "")
        a, b, c, d = (len((self.prefix + key[:place]).encode()) for place in self.layout.places)
        return a, b, c, d


def _at_most(digits: pa.Array, highest: int, width: int) -> pa.Array:
    """Which of these numbers, written in `width` digits, are not above `highest`."""
    return pc.less_equal(digits, columns.binary([f"{highest:0{width}}".encode()])[0])
