"""What a signal does to a run: the first one asks it to end, the second one ends it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from l0gc.cli.signals import stopping

TWICE = """
import signal
from l0gc.cli.signals import stopping
heard = []
with stopping(lambda: print("stop", flush=True), heard):
    signal.raise_signal({number})
    print(heard, flush=True)
    signal.raise_signal({number})
    print("still here", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_kills_the_process(number: signal.Signals) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TWICE.format(number=int(number))], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (-number, f"stop\n[{int(number)}]\n")


def test_signals_mean_afterwards_what_they_meant_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    heard: list[int] = []
    with stopping(lambda: None, heard):
        assert signal.getsignal(signal.SIGTERM) != before
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == before
