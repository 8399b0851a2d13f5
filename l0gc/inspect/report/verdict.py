"""The verdict: the state of a cluster, in one sentence, for a reader of nothing else (pure).

It decides nothing anew: causes and remedies are those of `causes.py`, which `status` shows. It adds whether somebody has to
act. A cause that the next runs of `l0gc gc` end is waiting; one that has waited for longer than a day, and any that no run
ends, needs a person.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from l0gc.formatting import count, size, span
from l0gc.inspect.causes import IDLE_WINDOW, NOT_COMPUTED, NOTHING, PAUSED, UNRECONCILED_DATA, Cause

HEALTHY: Final = "healthy"
WAITING: Final = "waiting"
NEEDS_YOU: Final = "needs_you"

LATE_MS: Final = 86_400_000
"""A scheduler that works has run `l0gc gc` dozens of times by then."""
_WAITS_FOR: Final = {
    UNRECONCILED_DATA: "l0gc reconcile",
    IDLE_WINDOW: "l0gc housekeep",
    NOT_COMPUTED: "l0gc compute-watermark",
    PAUSED: "l0gc resume",
}
_COMMANDS: Final = re.compile(r"l0gc [a-z-]+(?: [\w./-]+)*(?: && l0gc [a-z-]+(?: [\w./-]+)*)*$")


class Verdict(msgspec.Struct, frozen=True):
    """`state` is `healthy`, `waiting` or `needs_you`; `sentence` says what is well, what it waits for, or why.

    `cause` is the code of the cause that it names, empty for none.
    """

    state: str = HEALTHY
    sentence: str = ""
    cause: str = ""


def verdict(
    causes: Sequence[Cause],
    warnings: Sequence[Cause],
    findings: int,
    *,
    watermark: int,
    lag_ms: int | None,
    left: tuple[int, int] | None,
    held_objects: int,
    since_sweep_ms: int | None,
) -> Verdict:
    """How the cluster stands.

    Args:
        findings: how many `l0gc verify` had.
        watermark: the published M; negative for none.
        lag_ms: how long M has stood, as far as is known.
        left: the garbage: objects and bytes; None where no scan is there.
        held_objects: L0 objects above M.
        since_sweep_ms: how long ago the last run on record began; None without one.
    """
    acute = next((c for c in causes if c.cause not in _WAITS_FOR), None)
    if acute is not None:
        return Verdict(NEEDS_YOU, _sentence(acute, len(causes)), acute.cause)
    if findings:
        return Verdict(NEEDS_YOU, f"l0gc verify has {count(findings, 'finding')}; what is damaged is named below.")
    if causes and causes[0].cause != PAUSED and lag_ms is not None and lag_ms > LATE_MS:
        return Verdict(
            NEEDS_YOU, f"M has stood for {span(lag_ms)}: {_sentence(causes[0], len(causes))}", causes[0].cause
        )
    if warnings:
        return Verdict(NEEDS_YOU, f"nothing is held back, but {warnings[0].detail}.", warnings[0].cause)
    if causes:
        first = causes[0]
        return Verdict(WAITING, f"for {_WAITS_FOR[first.cause]}: {_sentence(first, len(causes))}", first.cause)
    if watermark < 0:
        return Verdict(WAITING, "for the first M: none is published yet, so nothing may go.")
    if left is None:
        return Verdict(HEALTHY, "M follows the cluster epoch. What the bucket holds is not known: no scan is there.")
    objects, size_bytes = left
    if not objects:
        held = f"{count(held_objects, 'object')} may still be needed" if held_objects else "L0 is empty"
        return Verdict(HEALTHY, f"no garbage is left; {held}.")
    garbage = f"{count(objects, 'object')} ({size(size_bytes)})"
    if since_sweep_ms is None or since_sweep_ms > LATE_MS:
        last = "none is on record" if since_sweep_ms is None else f"the last one began {span(since_sweep_ms)} ago"
        return Verdict(WAITING, f"for l0gc sweep: {garbage} may go, and {last}.")
    return Verdict(HEALTHY, f"the next sweep may delete {garbage}.")


def _sentence(cause: Cause, total: int) -> str:
    more = f" And {count(total - 1, 'other cause')}, below." if total > 1 else ""
    return f"{cause.detail}.{more}"


def commands_of(remedy: str) -> str:
    """The commands with which a remedy ends, to be copied; empty if it is words alone, or if nothing has to be done."""
    found = _COMMANDS.search(remedy)
    if found is None or remedy.startswith(NOTHING) or not (found.start() == 0 or remedy[found.start() - 1] == " "):
        return ""
    return found[0]


def words_of(remedy: str) -> str:
    """What stands before them: what a person has to do first."""
    return remedy.removesuffix(commands_of(remedy))
