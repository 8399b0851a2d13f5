"""Epochs: their values, and the predecessor from which M(p) is made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.epoch import EPOCH_DIGITS, MAX_EPOCH, NO_WATERMARK, is_epoch, prev


def test_the_largest_epoch_fills_its_digits_and_fits_an_int64() -> None:
    assert str(MAX_EPOCH) == "9" * EPOCH_DIGITS
    assert MAX_EPOCH < 2**63


@pytest.mark.parametrize(("value", "expected"), [(-1, False), (0, True), (MAX_EPOCH, True), (MAX_EPOCH + 1, False)])
def test_epochs_run_from_zero_to_what_a_key_can_hold(value: int, expected: bool) -> None:
    assert is_epoch(value) is expected


@given(st.integers(0, MAX_EPOCH))
def test_below_the_first_epoch_is_the_watermark_that_deletes_nothing(epoch: int) -> None:
    assert prev(epoch) < epoch
    assert prev(0) == NO_WATERMARK
    assert is_epoch(prev(epoch)) == (epoch > 0)
