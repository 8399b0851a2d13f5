"""The steps of `l0gc gc`: which of them are due, which still run after one has failed, and what the run ends with (pure).

Leaving a step out is always safe: what it would have done is there for the next run. So a step is left out where the
journals and what the last runs recorded say that it would find nothing, and it runs where they do not say. And every step is
safe after any other, failed or not: M covers only what is done, and the sweep has its own guards. So after a failure a step
is left out only if it would be useless, with one exception: if M was not computed, something about the bucket may be wrong
that only that step checks, and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import BucketNotFoundError, L0gcError, NotInitialisedError, UsageError
from l0gc.formatting import span
from l0gc.watermark.publication import PublishedWatermark, watermark_at

HOUSEKEEP: Final = "housekeep"
RECONCILE: Final = "reconcile"
MERGE: Final = "merge"
EXPIRE: Final = "expire"
TABLE_SYNC: Final = "table-sync"
COMPUTE: Final = "compute-watermark"
SWEEP: Final = "sweep"
VACUUM: Final = "vacuum"
UNDELETE: Final = "undelete"
"""The command of a record that undoes another run; no step of `gc`."""
STEPS: Final = (HOUSEKEEP, RECONCILE, MERGE, EXPIRE, TABLE_SYNC, COMPUTE, SWEEP, VACUUM)
EXTERNAL_STEPS: Final = (COMPUTE, SWEEP, VACUUM)
"""Those that a cluster with an external log can do; `gc` leaves the first to whoever has that log's reports."""
"""In their order. Each leaves a record of its last run, whoever ran it."""

WORST: Final = (143, 130, 4, 6, 5, 2, 1, 3)
"""Exit codes, the worst first: stopped; needs a person; cannot work; failed; partly done."""
SCAN_EVERY_MS: Final = 24 * 3_600_000
"""So often the bucket is listed, whatever the journals say: what was uploaded and never committed is in none of them."""


class GcNote(msgspec.Struct, frozen=True):
    """What the last `gc` runs saw; for the next one, and for nothing else.

    Attributes:
        landed: stands for all that had landed when M was computed last; another number where anything has landed since.
        published_ms: which publication that was, by its time.
        held: L0 objects that were neither eligible then nor unrecognized; -1 if nobody counted.
        swept: the bound of the last sweep that left nothing at or below it.
        shadowed: the bound of the last shadow run that has all at or below it on record; only shadow runs go by it.
    """

    landed: int = -1
    published_ms: int = -1
    held: int = -1
    swept: int = NO_WATERMARK
    shadowed: int = NO_WATERMARK


def compute_not_due(
    published: PublishedWatermark | None, note: GcNote, *, lowest: int | None, landed: int, now_ms: int
) -> str:
    """Why M need not be computed; empty if it is due.

    Args:
        lowest: where M could be now; None if that is not known.
        landed: see `GcNote.landed`.
    """
    if published is None or published.eligible_objects < 0 or lowest is None or note.published_ms < 0:
        return ""
    age_ms = now_ms - published.published_at_ms
    if age_ms >= SCAN_EVERY_MS:
        return ""
    if lowest < published.watermark:
        return ""  # a journal was set back: the computation says which one (hazard 38)
    if lowest == published.watermark:
        return f"M = {published.watermark} cannot move yet"
    if note.published_ms == published.published_at_ms and note.landed == landed and note.held == 0:
        return f"no L0 object has landed since the last run, {span(age_ms)} ago, and none was held then"
    return ""


def sweep_not_due(
    published: PublishedWatermark | None, note: GcNote, before_ms: int | None = None, *, shadow: bool = False
) -> str:
    """Why nothing need be swept; empty if a sweep is due.

    Args:
        before_ms: the sweep goes by the M that was published at this time; None for the one that is published.
        shadow: whether it is a shadow run.
    """
    if published is None or published.watermark <= NO_WATERMARK:
        return "nothing is published that may be deleted"
    bound = published.watermark if before_ms is None else watermark_at(published, before_ms)
    if bound <= NO_WATERMARK:
        return f"M = {published.watermark} was published too lately for --sweep-grace, and none before it"
    if bound <= (done := max(note.swept, note.shadowed) if shadow else note.swept):
        older = "" if bound == published.watermark else ", the newest that --sweep-grace allows"
        did = "deleted" if done == note.swept else "has on record"
        return f"the last sweep {did} all up to M = {bound}{older}"
    if published.eligible_objects == 0:
        return f"M = {published.watermark} was published with a listing, which had nothing at or below it"
    return ""


def is_final(e: L0gcError) -> bool:
    """Return whether later steps would fail too: the cluster or bucket does not exist, or an argument cannot be used."""
    return isinstance(e, UsageError | NotInitialisedError | BucketNotFoundError)


def is_left_out(step: str, failed: Collection[str]) -> bool:
    """Return whether `step` does not run because of the steps that `failed` before it."""
    return step in (SWEEP, VACUUM) and COMPUTE in failed


def worst(codes: Iterable[int]) -> int:
    """What a run ends with whose steps ended with `codes`."""
    known = set(codes) - {0}
    return next((c for c in WORST if c in known), max(known, default=0))
