"""Packed rows: what is computed with them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from l0gc.streamlog.journal.rows import distinct


@given(st.lists(st.integers(-5, 5)), st.sampled_from(["<i4", "<i8", "<u8"]))
def test_distinct_numbers_are_those_of_numpy(values: list[int], kind: str) -> None:
    numbers = np.array(values, np.int64).astype(kind)
    assert distinct(numbers).tolist() == np.unique(numbers).tolist()


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=5))
def test_distinct_names_are_those_of_numpy(names: list[bytes]) -> None:
    packed = np.frombuffer(b"".join(names * 2), "V16")
    assert distinct(packed).tolist() == np.unique(packed).tolist()
