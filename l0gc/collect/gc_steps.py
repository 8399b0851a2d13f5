"""The steps of `l0gc gc`, which of them still run after one has failed, and what the run ends with.

Every step is safe after any other, failed or not: M covers only what is done, and the sweep has its own guards. So a step
is left out only where it could do no good, with one exception: where M was not computed, something about the bucket may be
wrong that only that step looks for, and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from l0gc.errors import BucketNotFoundError, L0gcError, NotInitialisedError, UsageError

HOUSEKEEP: Final = "housekeep"
RECONCILE: Final = "reconcile"
COMPUTE: Final = "compute-watermark"
SWEEP: Final = "sweep"
STEPS: Final = (HOUSEKEEP, RECONCILE, COMPUTE, SWEEP)

WORST: Final = (143, 130, 4, 6, 5, 2, 1, 3)
"""Exit codes, the worst first: stopped; needs a person; cannot work; failed; partly done."""


def is_final(e: L0gcError) -> bool:
    """Whether no later step would fare better: there is no cluster or no bucket, or an argument cannot be used."""
    return isinstance(e, UsageError | NotInitialisedError | BucketNotFoundError)


def is_left_out(step: str, failed: Collection[str]) -> bool:
    """Whether `step` does not run because of the steps that `failed` before it."""
    return step == SWEEP and COMPUTE in failed


def worst(codes: Iterable[int]) -> int:
    """What a run ends with whose steps ended with `codes`."""
    known = set(codes) - {0}
    return next((c for c in WORST if c in known), max(known, default=0))
