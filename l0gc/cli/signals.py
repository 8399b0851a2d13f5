"""Ending a run in good order when the user, or the machine, asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stopping(stop: Callable[[], None], signals: list[int]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run in good order; the second one kills it, which the record is made for."""

    def heard(number: int, frame: Any) -> None:
        if signals:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        signals.append(number)
        stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
