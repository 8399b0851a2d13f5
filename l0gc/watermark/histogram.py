"""What a bucket holds at each epoch, added up where its keys are read: all that leaves an executor of them."""

from __future__ import annotations

import types
from collections.abc import Iterable
from itertools import groupby
from typing import Final, get_args, get_type_hints

import msgspec
import pyarrow as pa

from l0gc.keys import KeyLayout
from l0gc.storage.objectstore import ListedPage

SAMPLES: Final = 5
"""How many keys that are not L0 keys are named."""


class EpochRow(msgspec.Struct, frozen=True, array_like=True):
    """What the bucket holds at one epoch; `epoch` is None for keys that are not L0 keys.

    `sample_key` is the lowest of the keys; `oldest_ms` is when the oldest object was written, by the store's clock, 0 if an
    inventory does not say. The noncurrent ones are versions that a delete or another version covers: no objects any more,
    but bytes that cost. Only an inventory shows them.
    """

    epoch: int | None
    objects: int
    bytes: int
    sample_key: str
    oldest_ms: int = 0
    noncurrent_objects: int = 0
    noncurrent_bytes: int = 0

    def plus(self, other: EpochRow) -> EpochRow:
        """Both together."""
        return EpochRow(
            self.epoch,
            self.objects + other.objects,
            self.bytes + other.bytes,
            min(self.sample_key, other.sample_key),
            min(self.oldest_ms, other.oldest_ms),
            self.noncurrent_objects + other.noncurrent_objects,
            self.noncurrent_bytes + other.noncurrent_bytes,
        )


class Histogram(msgspec.Struct):
    """A row for each epoch, and a few of the keys that are not L0 keys, the lowest ones."""

    rows: dict[int | None, EpochRow] = {}
    samples: list[str] = []

    @classmethod
    def of_rows(cls, rows: Iterable[EpochRow]) -> Histogram:
        """A histogram of rows that were added up elsewhere."""
        found = cls()
        for row in rows:
            found.add_row(row)
        if None in found.rows:
            found.samples = [found.rows[None].sample_key]
        return found

    def add_row(self, row: EpochRow) -> None:
        """Add what one row says."""
        known = self.rows.get(row.epoch)
        self.rows[row.epoch] = row if known is None else known.plus(row)

    def add(self, other: Histogram) -> Histogram:
        """Add what was read elsewhere."""
        for row in other.rows.values():
            self.add_row(row)
        self.samples = sorted({*self.samples, *other.samples})[:SAMPLES]
        return self

    def add_page(self, layout: KeyLayout, page: ListedPage) -> None:
        """Add a page of a listing. Keys of one epoch lie together, so it goes from run to run and not from key to key."""
        keys, sizes, times = page.keys, page.sizes, page.modified_ms
        at = 0
        for epoch, same in groupby(layout.epochs(keys)):
            end = at + sum(1 for _ in same)
            known = None if epoch < 0 else epoch
            self.add_row(EpochRow(known, end - at, sum(sizes[at:end]), min(keys[at:end]), min(times[at:end])))
            if known is None:
                self.samples = sorted([*self.samples, *keys[at:end]])[:SAMPLES]
            at = end


def schema_of(rows: type[msgspec.Struct]) -> pa.Schema:
    """The columns that hold such rows: text, and 64-bit integers, perhaps none."""
    hints = get_type_hints(rows)
    return pa.schema(
        [
            pa.field(
                name,
                pa.string() if hints[name] is str else pa.int64(),
                nullable=isinstance(hints[name], types.UnionType) and type(None) in get_args(hints[name]),
            )
            for name in rows.__struct_fields__
        ]
    )
