"""Interrupts calls of the library at random moments; `tests/flows/interrupted_calls.py` interrupts more of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.flows.interrupted_calls import LARGE, SMALL, Moment, interrupt


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_no_interrupted_call_leaves_a_wrong_state_or_a_thread_that_waits() -> None:
    assert interrupt(Moment(by_signal=True), SMALL, 3, 0).interrupted.total() >= 3


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("by_signal", [True, False], ids=["signal", "thread"])
@pytest.mark.parametrize(("size", "interrupts"), [(SMALL, 60), (LARGE, 10)])
def test_no_interrupted_call_leaves_a_wrong_state_however_many_there_are(
    by_signal: bool, size: str, interrupts: int
) -> None:
    assert interrupt(Moment(by_signal=by_signal), size, interrupts, 1).interrupted.total() >= interrupts
