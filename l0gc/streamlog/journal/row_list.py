"""Keep a topic's L1 rows in order, so that an edit costs what it changes, however many rows there are (pure).

The rows lie in pieces of a few thousand. A change copies only the pieces that it touches and returns a new list, which
shares the other pieces with the old one. So a list never changes, and a state can be copied while an entry is being
applied.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from l0gc.streamlog.journal.rows import (
    NO_L1_ROWS,
    RANGE,
    Rows,
    distinct,
    identities,
    in_order,
    indices_in,
    is_hole,
    lost_records,
    of_partition,
    position,
    ranks,
    the_same,
)

PIECE_ROWS: Final = 4096
"""The most rows of a piece: 250 KB."""
_SPARSE: Final = 4
"""The pieces are cut anew once there are this many times as many as the rows need."""


class L1Sums(NamedTuple):
    """Sums over L1 rows, which a state has in place of a list that was not read."""

    objects: int = 0
    bytes: int = 0
    holes: int = 0
    lost_records: int = 0

    @classmethod
    def of(cls, rows: Rows) -> L1Sums:
        return cls(len(rows), int(rows["bytes"].sum()), int(is_hole(rows).sum()), lost_records(rows))

    @property
    def sums(self) -> L1Sums:
        return self

    def changed(self, gone: Rows, added: Rows) -> L1Sums:
        """Return the sums without the rows `gone`, and with those `added`."""
        before, after = L1Sums.of(gone), L1Sums.of(added)
        return L1Sums(*(a - b + c for a, b, c in zip(self, before, after, strict=True)))


class RowList:
    """Rows of `L1_ROW` by partition and offset."""

    __slots__ = ("_firsts", "_named", "_pieces", "_whole")

    def __init__(self, rows: Rows = NO_L1_ROWS) -> None:
        self._whole: Rows | None = rows
        pieces = _cut(rows)
        self._set(pieces, [None] * len(pieces))

    def _set(self, pieces: list[Rows], named: list[Rows | None]) -> None:
        self._pieces, self._named = pieces, named
        self._firsts = np.array([(p["partition"][0], p["base"][0], 0) for p in pieces], RANGE)

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    @property
    def rows(self) -> Rows:
        """Return all rows."""
        if self._whole is None:
            whole = np.concatenate([NO_L1_ROWS, *self._pieces])
            self._pieces = np.split(whole, np.cumsum([len(piece) for piece in self._pieces])[:-1]) if len(whole) else []
            self._whole = whole
        return self._whole

    @property
    def sums(self) -> L1Sums:
        return L1Sums.of(self.rows)

    def of(self, partition: int) -> Rows:
        """Return the rows of one partition."""
        ends = self._firsts["partition"]
        first, last = int(np.searchsorted(ends, partition)), int(np.searchsorted(ends, partition, "right"))
        pieces = self._pieces[max(0, first - 1) : last]
        return np.concatenate([NO_L1_ROWS, *(of_partition(piece, partition) for piece in pieces)])

    def has(self, rows: Rows) -> Rows:
        """Return which of `rows`, given in order, the list contains, equal in every byte."""
        listed = np.zeros(len(rows), bool)
        for number, in_piece in self._touched(rows["partition"], rows["base"]):
            piece, asked = self._pieces[number], rows[in_piece]
            at = position(piece, asked["partition"], asked["base"])
            equal = at >= 0
            equal[equal] = the_same(piece[at[equal]], asked[equal])
            listed[in_piece] = equal
        return listed

    def names(self, rows: Rows) -> Rows:
        """Return which of `rows`, given in order, have the name of a row of their partition in the list."""
        ids, named = identities(rows), np.zeros(len(rows), bool)
        for number, piece in enumerate(self._pieces):
            lower = int(np.searchsorted(rows["partition"], piece["partition"][0]))
            upper = int(np.searchsorted(rows["partition"], piece["partition"][-1], "right"))
            if lower < upper:
                if (piece_ids := self._named[number]) is None:
                    self._named[number] = piece_ids = np.sort(identities(piece))
                named[lower:upper] |= indices_in(piece_ids, ids[lower:upper])[1]
        return named

    def below(self, partitions: Rows, starts: Rows) -> Rows:
        """Return the rows that end before the start of their partition. `partitions` are ascending."""
        parts = [NO_L1_ROWS]
        lower = np.maximum(ranks(self._firsts, partitions, np.zeros(len(partitions), np.int64)), 0)
        upper = ranks(self._firsts, partitions, starts)
        steps = np.zeros(len(self._pieces) + 1, np.int64)
        reached = upper >= 0
        np.add.at(steps, lower[reached], 1)
        np.add.at(steps, upper[reached] + 1, -1)
        for number in np.flatnonzero(np.cumsum(steps)[:-1]).tolist():
            piece = self._pieces[number]
            at = np.searchsorted(partitions, piece["partition"])
            at[at == len(partitions)] = 0
            parts.append(piece[(partitions[at] == piece["partition"]) & (piece["last"] < starts[at])])
        return np.concatenate(parts)

    def changed(self, gone: Rows, added: Rows) -> RowList:
        """Return the list without the rows `gone`, which it contains, and with the rows `added`, which it does not
        contain. Both are in order.
        """
        if not self._pieces:
            return RowList(added)
        leaving = dict(self._touched(gone["partition"], gone["base"]))
        coming = dict(self._touched(added["partition"], added["base"]))
        pieces: list[Rows] = []
        named: list[Rows | None] = []
        for number, piece in enumerate(self._pieces):
            parts = [piece]
            if number in leaving:
                left = gone[leaving[number]]
                kept = np.ones(len(piece), bool)
                kept[position(piece, left["partition"], left["base"])] = False
                parts = _cut(piece[kept])
            if number in coming:
                parts = _cut(in_order(np.concatenate([*parts, added[coming[number]]])))
            pieces += parts
            named += [self._named[number]] if parts and parts[0] is piece else [None] * len(parts)
        if len(pieces) > _SPARSE * (1 + sum(map(len, pieces)) // PIECE_ROWS):
            return RowList(np.concatenate(pieces))
        changed = RowList()
        changed._whole = None
        changed._set(pieces, named)
        return changed

    def _touched(self, partitions: Rows, offsets: Rows) -> list[tuple[int, slice]]:
        """Return the numbers of the pieces in which these offsets lie, each with the indices of its offsets."""
        if not self._pieces:
            return []
        at = np.maximum(ranks(self._firsts, partitions, offsets), 0)
        numbers = distinct(at)
        ends = np.searchsorted(at, numbers, "right")
        return list(zip(numbers.tolist(), map(slice, np.r_[0, ends[:-1]], ends), strict=True))


def _cut(rows: Rows) -> list[Rows]:
    """Return rows as pieces of about the same size."""
    count = -(-len(rows) // PIECE_ROWS)
    return np.array_split(rows, count) if count else []
