"""Checks whether an error keeps its callers' objects alive, since a traceback refers to the frames of all callers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class _Body:
    """Stands for an object that a caller holds."""


@contextmanager
def without_cycle_search() -> Iterator[None]:
    """Let Python free only objects without references."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def held_by_caller(call: Callable[[], object], error: type[Exception]) -> Callable[[], object | None]:
    """Return a weak reference to an object that the caller of a failing call held, after the error was caught."""
    body = _Body()
    with suppress(error):
        call()
        raise AssertionError("it did not fail")
    return weakref.ref(body)
