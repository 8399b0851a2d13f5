"""Rows of an external log give the same sums, however they are divided among workers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.watermark.external_rows import ExternalSummary, add_up, merged, spread
from tests.support.external import LISTED, REPORTED, table
from tests.support.tries import tries

Listed = tuple[str, int | None, int]
Reported = tuple[str, int | None, int, int]


def summed_up(listed: list[Listed], reported: list[Reported], parts: int) -> ExternalSummary:
    """Sum up the rows in `parts` parts, from pieces of three rows."""
    by_part: dict[int, tuple[list[pa.Table], list[pa.Table]]] = {}
    kinds: list[tuple[Sequence[Any], Sequence[str]]] = [(listed, LISTED), (reported, REPORTED)]
    for kind, (rows, columns) in enumerate(kinds):
        for begin in range(0, len(rows), 3):
            for part, piece in spread(table(rows[begin : begin + 3], columns), parts):
                by_part.setdefault(part, ([], []))[kind].append(piece)
    return merged([add_up(*pieces) for pieces in by_part.values()])


def plainly(listed: list[Listed], reported: list[Reported]) -> tuple[dict[Listed, int], set[Reported], bool]:
    """Return M(p) of each partition, the reports of unlisted partitions, and whether a name is ambiguous."""
    by_name = {(t, n) for t, r, n, *_ in (*listed, *reported) if r is None}
    there = set(listed)
    ambiguous = any(len({p for p in there if (p[0], p[2]) == name}) > 1 for name in by_name)
    at, unlisted = {}, []
    for p in there:
        t, r, n = p
        mine = [g for t2, r2, n2, g in reported if (t2, n2) == (t, n) and ((t, n) in by_name or r2 == r)]
        at[p] = max(mine, default=(r or 0) - 1)
    for t, r, n, g in reported:
        of = [p[1] for p in there if (p[0], p[2]) == (t, n)]
        known = [x for x in of if x is not None]
        if not of or (r is not None and len(known) == len(of) and r > max(known)):
            unlisted.append((t, r, n, g))
    return at, set(unlisted), ambiguous


@given(st.randoms(use_true_random=False))
@tries(60)
def test_the_answer_is_that_of_a_plain_loop_however_rows_are_spread(rng: random.Random) -> None:
    choices: list[list[int | None]] = [[None], [1, 5, 9], [None, 1, 5]]
    revisions = rng.choice(choices)
    names = [
        (rng.choice(["a", "aé", "b/c", "\U0001f600", "\uffff"]), rng.choice([0, 1, 7, 2**31 - 1])) for _ in range(6)
    ]

    def row() -> Listed:
        topic, number = rng.choice(names)
        return topic, rng.choice(revisions), number

    listed = [row() for _ in range(rng.randrange(12))]
    reported = [(*row(), rng.randrange(-1, 12)) for _ in range(rng.randrange(12))]
    at, unlisted, ambiguous = plainly(listed, reported)
    found = summed_up(listed, reported, 1)
    for parts in (2, 7):
        assert summed_up(listed, reported, parts) == found
    assert (found.ambiguous is not None) == ambiguous
    assert (found.unlisted > 0, found.first_unlisted) == (
        bool(unlisted), min(((t, n) for t, _, n, _ in unlisted), default=None),
    )  # fmt: skip
    if not ambiguous:
        assert found.partitions == len(at)
        assert found.gc_epochs == {e: list(at.values()).count(e) for e in at.values()}
        lowest = sorted((e, t, n) for (t, _, n), e in at.items())[:10]
        assert [(h.gc_epoch, h.topic, h.partition) for h in found.lowest] == lowest
    highest = min(((-g, t, n) for t, _, n, g in reported), default=None)
    assert found.highest == highest


@pytest.mark.parametrize(
    ("listed", "reported", "said"),
    [
        ([("t", 1, -1)], [], "a partition cannot be below 0"),
        ([("t", -1, 1)], [], "a revision cannot be below 0"),
        ([("t", 1, 2**31)], [], "a partition cannot be above 2147483647: 2147483648"),
        ([], [("t", 1, 1, -2)], "a gc_epoch cannot be below -1"),
    ],
)
@pytest.mark.parametrize("parts", [1, 5])
def test_a_number_that_cannot_be_is_found_wherever_it_is(
    listed: list[Listed], reported: list[Reported], said: str, parts: int
) -> None:
    others: list[Listed] = [("t", 1, n) for n in range(5)]
    assert said in summed_up(others + listed, [(*p, 3) for p in others] + reported, parts).impossible
