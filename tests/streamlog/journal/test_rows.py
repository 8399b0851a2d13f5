"""The functions that compute with packed rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.errors import UsageError
from l0gc.storage.entry import compressed
from l0gc.streamlog.journal.rows import L1_ROW, distinct, pack_columns, unpack_columns


@given(st.lists(st.integers(-5, 5)), st.sampled_from(["<i4", "<i8", "<u8"]))
def test_distinct_numbers_are_those_of_numpy(values: list[int], kind: str) -> None:
    numbers = np.array(values, np.int64).astype(kind)
    assert distinct(numbers).tolist() == np.unique(numbers).tolist()


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=5))
def test_distinct_names_are_those_of_numpy(names: list[bytes]) -> None:
    packed = np.frombuffer(b"".join(names * 2), "V16")
    assert distinct(packed).tolist() == np.unique(packed).tolist()


INT62 = st.integers(-(2**62), 2**62)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), INT62, INT62, INT62, st.integers(0, 1)), max_size=20))
def test_columns_of_any_numbers_are_unpacked_as_they_were(numbers: list[tuple[int, int, int, int, int]]) -> None:
    rows = np.array([(p, a, b, c, -c, a, bytes([hole]) * 16, hole) for p, a, b, c, hole in numbers], L1_ROW)
    assert unpack_columns(pack_columns(rows), L1_ROW).tobytes() == rows.tobytes()


def test_columns_that_cannot_be_rows_are_refused() -> None:
    rows = np.zeros(3, L1_ROW)
    rows["base"] = rows["last"] = [5, 6, 900]
    body = pack_columns(rows)
    for cut in range(len(body)):
        with pytest.raises(UsageError):
            unpack_columns(body[:cut], L1_ROW)
    for wrong in (body + b"\0", b"\xff" * 8 + body[8:], body[:8] + b"\x09" + body[9:]):
        with pytest.raises(UsageError):
            unpack_columns(wrong, L1_ROW)


def test_rows_of_a_history_take_less_than_half_of_their_size() -> None:
    n = 10_000
    rows, chance = np.zeros(n, L1_ROW), np.random.default_rng(1)
    ends = np.cumsum(chance.integers(900_000, 1_100_000, n))
    rows["base"], rows["last"], rows["bytes"] = np.r_[0, ends[:-1]], ends - 1, chance.integers(100 << 20, 140 << 20, n)
    rows["max_timestamp"], rows["epoch"] = 1_700_000_000_000 + np.arange(n) * 600_000, np.arange(n)
    rows["name"] = np.frombuffer(chance.bytes(16 * n), "V16")
    assert len(compressed(pack_columns(rows))) < 24 * n
