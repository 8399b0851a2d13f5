"""Decide which steps of `l0gc gc` are due, which still run after one has failed, and what the run ends with (pure).

To skip a step is always safe: the next run finds what it would have done. So a step is skipped if the journals and the
records of the last runs show that it would find nothing; in doubt it runs. Every step is also safe after any other,
failed or not, because M covers only what is done and the sweep has its own guards. So after a failure a step is skipped
only if it would be useless, with one exception. If M was not computed, something about the bucket may be wrong that only
that step checks, so nothing is deleted.
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
"""The command of a record that undoes another run; not a step of `gc`."""
STEPS: Final = (HOUSEKEEP, RECONCILE, MERGE, EXPIRE, TABLE_SYNC, COMPUTE, SWEEP, VACUUM)
"""The steps in order. Each leaves a record of its last run, whichever command ran it."""
EXTERNAL_STEPS: Final = (COMPUTE, SWEEP, VACUUM)
"""The steps that a cluster with an external log supports. `gc` leaves the first to the program that has that log's
reports.
"""

WORST: Final = (143, 130, 4, 6, 5, 2, 1, 3)
"""Exit codes, the worst first: stopped; needs a person; cannot work; failed; partly done."""
SCAN_EVERY_MS: Final = 24 * 3_600_000
"""How often the bucket is listed in any case: objects that were uploaded and never committed are in no journal."""


class GcNote(msgspec.Struct, frozen=True):
    """The observations of the last `gc` runs, for the next one only.

    Attributes:
        landed: a number for everything that had landed when M was last computed; it differs if anything has landed since.
        published_ms: the time of that publication, which identifies it.
        held: L0 objects that were neither eligible then nor unrecognized; -1 if they were not counted.
        swept: the bound of the last sweep that left nothing at or below it.
        shadowed: the bound of the last shadow run that recorded everything at or below it; only shadow runs use it.
        merged: a number for the L1 objects among which nothing was to be merged; it differs if any were added or removed.
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
        lowest: where M could be now; None if that is unknown.
        landed: see `GcNote.landed`.
    """
    if published is None or published.eligible_objects < 0 or lowest is None or note.published_ms < 0:
        return ""
    age_ms = now_ms - published.published_at_ms
    if age_ms >= SCAN_EVERY_MS:
        return ""
    if lowest < published.watermark:
        return ""  # a journal was set back: the computation names it (hazard 38)
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
    """Return whether later steps would fail too: the cluster or bucket does not exist, an argument cannot be used, or the
    store has been silent for as long as the run waits.
    """
    return isinstance(e, UsageError | NotInitialisedError | BucketNotFoundError | StoreSilentError)


def is_left_out(step: str, failed: Collection[str]) -> bool:
    """Return whether `step` does not run because of the steps that `failed` before it."""
    return step in (SWEEP, VACUUM) and COMPUTE in failed


def worst(codes: Iterable[int]) -> int:
    """Return the exit code of a run whose steps ended with `codes`."""
    failures = set(codes) - {0}
    return next((c for c in WORST if c in failures), max(failures, default=0))
