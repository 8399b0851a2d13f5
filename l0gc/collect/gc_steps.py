"""Decide which steps of `l0gc gc` are due, which ones run after a failure, and with which exit code the run ends
(pure).

It is always safe to skip a step, since the next run finds the same work. A step is skipped if the journals and the
records of the last runs show that it would find nothing; in doubt, it runs. Every step is also safe after any other
step, even a failed one, because M covers only finished work and the sweep has its own guards. Therefore, after a
failure, a step is skipped only if it would be useless, with one exception: if M was not computed, the bucket may have a
problem that only that step detects, so nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import BucketNotFoundError, L0gcError, NotInitialisedError, StoreSilentError, UsageError
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
"""The command in the record of an undelete, which is not a step of `gc`."""
STEPS: Final = (HOUSEKEEP, RECONCILE, MERGE, EXPIRE, TABLE_SYNC, COMPUTE, SWEEP, VACUUM)
"""The steps in order. Each records its last run, whichever command ran it."""
EXTERNAL_STEPS: Final = (COMPUTE, SWEEP, VACUUM)
"""The steps that a cluster with an external log supports. `gc` skips the first, which only the program that has the
log's reports can run.
"""

WORST: Final = (143, 130, 4, 6, 5, 2, 1, 3)
"""The exit codes, the worst first: stopped; needs an operator; cannot work; failed; partly done."""
SCAN_EVERY_MS: Final = 24 * 3_600_000
"""How often the bucket is listed in any case, since no journal contains objects that were uploaded but never committed.
"""


class GcNote(msgspec.Struct, frozen=True):
    """The observations of the last `gc` runs, which only the next run reads.

    Attributes:
        landed: a number that identifies all objects that had landed when M was last computed; it changes if another one
            lands.
        published_ms: the time of the publication of that M, which identifies it.
        held: the number of L0 objects that were not eligible at that time; -1 if they were not counted.
        swept: the bound of the last sweep that deleted everything at or below its bound.
        shadowed: the bound of the last shadow run that recorded everything at or below its bound; only shadow runs use
            it.
        merged: a number that identifies the L1 objects when there was nothing to merge; it changes if any are added or
            removed.
    """

    landed: int = -1
    published_ms: int = -1
    held: int = -1
    swept: int = NO_WATERMARK
    shadowed: int = NO_WATERMARK
    merged: int = -1


def compute_not_due(
    published: PublishedWatermark | None, note: GcNote, *, lowest: int | None, landed: int, now_ms: int
) -> str:
    """Return why M need not be computed; empty if it is due.

    Args:
        lowest: the M that is possible now; None if that is unknown.
        landed: see `GcNote.landed`.
    """
    if published is None or published.eligible_objects < 0 or lowest is None or note.published_ms < 0:
        return ""
    age_ms = now_ms - published.published_at_ms
    if age_ms >= SCAN_EVERY_MS:
        return ""
    if lowest < published.watermark:
        return ""  # a journal was set back, and the computation reports it (hazard 38)
    if lowest == published.watermark:
        return f"M = {published.watermark} cannot move yet"
    if note.published_ms == published.published_at_ms and note.landed == landed and note.held == 0:
        return f"no L0 object has landed since the last run, {span(age_ms)} ago, and none was held then"
    return ""


def sweep_not_due(
    published: PublishedWatermark | None, note: GcNote, before_ms: int | None = None, *, shadow: bool = False
) -> str:
    """Return why nothing needs to be swept; empty if a sweep is due.

    Args:
        before_ms: the sweep uses the M that was published by this time; None for the current one.
        shadow: whether it is a shadow run.
    """
    if published is None or published.watermark <= NO_WATERMARK:
        return "no published M allows a deletion"
    bound = published.watermark if before_ms is None else watermark_at(published, before_ms)
    if bound <= NO_WATERMARK:
        return f"M = {published.watermark} was published too recently for --sweep-grace, and no older one counts"
    if bound <= (done := max(note.swept, note.shadowed) if shadow else note.swept):
        older = "" if bound == published.watermark else ", the newest that --sweep-grace allows"
        did = "deleted" if done == note.swept else "has on record"
        return f"the last sweep {did} all up to M = {bound}{older}"
    if published.eligible_objects == 0:
        return f"M = {published.watermark} was published with a listing that had nothing at or below it"
    return ""


def is_final(e: L0gcError) -> bool:
    """Return whether later steps would fail, too: the cluster or the bucket does not exist, an argument is invalid, or
    the store has been silent for as long as the run waits.
    """
    return isinstance(e, UsageError | NotInitialisedError | BucketNotFoundError | StoreSilentError)


def is_left_out(step: str, failed: Collection[str]) -> bool:
    """Return whether `step` is skipped because of the steps that `failed` before it."""
    return step in (SWEEP, VACUUM) and COMPUTE in failed


def worst(codes: Iterable[int]) -> int:
    """Return the exit code of a run whose steps ended with `codes`."""
    failures = set(codes) - {0}
    return next((c for c in WORST if c in failures), max(failures, default=0))
