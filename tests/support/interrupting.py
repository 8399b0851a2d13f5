"""Raises an exception between any two bytecodes of l0gc, at the n-th of them in a call, so that a test can try every n."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import l0gc

_PACKAGE = l0gc.__path__[0]
_LOOKS = ("RESUME", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
"""Instructions after which Python checks for a signal, or for an exception that another thread has set."""


class Interrupt(KeyboardInterrupt):
    """Ctrl-C, or the exception that a task runner raises in a thread whose time is over."""


class NoMemory(MemoryError):
    """The exception of a step for which memory does not suffice."""


class Failure(Exception):
    """Any other exception, for example one that a signal handler raises."""


KINDS: tuple[type[BaseException], ...] = (Interrupt, NoMemory, Failure)


@functools.cache
def _looks(code: CodeType) -> frozenset[int]:
    """Return the offsets of the bytecodes before which a signal can raise, with the same handlers as if it had raised
    there.
    """
    table: list[Any] = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    def handler(offset: int) -> int | None:
        return next((e.target for e in table if e.start <= offset < e.end), None)

    found, before = set(), None
    for i in dis.get_instructions(code):
        if before is not None and before.opname.startswith(_LOOKS) and handler(before.offset) == handler(i.offset):
            found.add(i.offset)
        before = i
    return frozenset(found)


@contextmanager
def interrupted(at: int, kind: type[BaseException] = Interrupt, *, as_signals: bool = False) -> Iterator[list[int]]:
    """End what is called inside the block with `kind` before its `at`-th bytecode in l0gc's code.

    Yields a list with the number of bytecodes so far.

    Args:
        as_signals: count only the bytecodes before which a signal can raise. Python handles no signal between the
            others, for example while `with` releases a lock.
    """
    steps = [0]
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(_PACKAGE):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and (not as_signals or frame.f_lasti in _looks(frame.f_code)):
            steps[0] += 1
            if steps[0] == at:
                raise kind(f"before bytecode {at}")
        return trace

    sys.settrace(trace)
    try:
        yield steps
    finally:
        sys.settrace(before)
