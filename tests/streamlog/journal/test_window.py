"""The sliding window moves only up, and spans two epochs and those between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.streamlog.journal.admission import EpochWindow

EPOCHS = st.integers(0, 40)


def test_slides_from_one_epoch_to_two_and_then_drops_the_oldest() -> None:
    window = EpochWindow(5, 5)
    assert window.slide(5) == EpochWindow(5, 5)
    assert window.slide(6) == EpochWindow(5, 6)
    assert window.slide(6).slide(7) == EpochWindow(6, 7)


@pytest.mark.parametrize(
    ("epoch", "inside", "admitted"), [(4, False, False), (5, True, True), (9, True, True), (10, False, True)]
)
def test_admits_what_is_inside_or_above(epoch: int, inside: bool, admitted: bool) -> None:
    window = EpochWindow(5, 9)
    assert (epoch in window) is inside
    assert window.admits(epoch) is admitted


def test_says_its_bounds_and_its_size() -> None:
    assert str(EpochWindow(5, 9)) == "[5, 9]"
    assert EpochWindow(5, 9).size == 5
    assert EpochWindow(5, 5).size == 1


@given(st.lists(EPOCHS, max_size=20))
def test_never_moves_down_and_keeps_the_newest_epoch_before(epochs: list[int]) -> None:
    window = EpochWindow(0, 0)
    for epoch in epochs:
        slid = window.slide(epoch)
        assert slid.oldest >= window.oldest
        assert slid.newest == max(window.newest, epoch)
        assert slid == window or slid.oldest == window.newest  # a writer one slide behind is still admitted
        window = slid
