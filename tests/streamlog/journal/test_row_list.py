"""A list of L1 rows in pieces behaves like a list of tuples, and copies only the pieces that a change touches."""

from __future__ import annotations

import random
import uuid

import numpy as np
import pytest

from l0gc.streamlog.journal import row_list
from l0gc.streamlog.journal.row_list import PIECE_ROWS, RowList
from l0gc.streamlog.journal.rows import L1_ROW, Rows, in_order
from tests.support.journal import l1_row, l1_rows
from tests.support.tries import sampled


def rows_of(places: set[tuple[int, int]]) -> Rows:
    """Return rows of ten records each, for these pairs of partition and number."""
    rows = [l1_row(p, 10 * n, 10 * n + 9, name=1000 * p + n) for p, n in sorted(places)]
    return l1_rows(*rows) if rows else np.empty(0, L1_ROW)


@pytest.mark.parametrize("piece", sampled([1, 3, 64], [3]))
def test_any_changes_leave_the_rows_that_sets_of_places_have(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_list, "PIECE_ROWS", piece)
    chance = random.Random(piece)
    for _ in range(30):
        there: set[tuple[int, int]] = set()
        listed = RowList()
        for _ in range(20):
            every = [(p, n) for p in range(4) for n in range(12)]
            gone = {place for place in there if chance.random() < 0.3}
            added = {place for place in every if place not in there and chance.random() < 0.2}
            before, rows = listed, listed.rows.tobytes()
            listed = listed.changed(rows_of(gone), rows_of(added))
            assert before.rows.tobytes() == rows
            there = there - gone | added
            assert listed.rows.tobytes() == rows_of(there).tobytes()
            assert len(listed) == len(there)
            partition = chance.randrange(5)
            assert listed.of(partition).tobytes() == rows_of({at for at in there if at[0] == partition}).tobytes()
            assert listed.has(rows_of(set(every))).tolist() == [at in there for at in every]
            assert listed.names(rows_of(set(every))).tolist() == [at in there for at in every]
            starts = {p: chance.randrange(130) for p in range(5) if chance.random() < 0.6}
            below = listed.below(np.array(list(starts), np.int32), np.array(list(starts.values()), np.int64))
            left = {(p, n) for p, n in there if p in starts and 10 * n + 9 < starts[p]}
            assert below.tobytes() == rows_of(left).tobytes()


def test_a_row_of_other_bytes_is_not_in_the_list() -> None:
    listed = RowList(rows_of({(0, 0), (0, 1)}))
    wanted = rows_of({(0, 0), (0, 1), (1, 0)})
    wanted["bytes"][0] += 1
    assert listed.has(wanted).tolist() == [False, True, False]


def test_a_name_is_known_in_its_own_partition_alone() -> None:
    listed = RowList(rows_of({(0, 0), (2, 5)}))
    wanted = rows_of({(0, 7), (1, 7), (2, 7)})
    wanted["name"] = uuid.UUID(int=2005).bytes
    assert listed.names(wanted).tolist() == [False, False, True]


def test_a_change_copies_only_the_pieces_that_it_touches() -> None:
    n = 10 * PIECE_ROWS
    rows = np.zeros(n, L1_ROW)
    rows["base"] = rows["last"] = np.arange(n)
    rows["name"] = np.frombuffer(np.arange(2 * n, dtype="<u8").tobytes(), "V16")
    listed = RowList(rows)
    listed.names(rows[:1])
    added = rows[-1:].copy()
    added["base"] = added["last"] = n
    after = listed.changed(rows[5:6], added)
    assert sum(np.shares_memory(a, rows) for a in after._pieces) == len(listed._pieces) - 2
    assert after.changed(added, rows[5:6]).rows.tobytes() == rows.tobytes()
    assert in_order(after.rows).tobytes() == after.rows.tobytes()
