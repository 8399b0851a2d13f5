"""Up to which epoch an evacuation moves what is still needed: a pure choice from two histograms.

The cost of a target epoch is what is still needed in the objects up to it, which is copied; the gain is the rest of these
objects, which nothing needs. Log-structured file systems choose the segments that they clean by the same rule. A wrong
choice costs bytes and no data: what a journal may name as moved is decided where its entry lands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from l0gc.formatting import size

RATIO: Final = 4.0
"""So many bytes must be released for each that is copied, where somebody asks for an evacuation."""
STEP_RATIO: Final = 50.0
"""The same for the step of `gc`, which runs unasked: what it copies in all is at most 2 % of what was uploaded."""
MAX_BYTES: Final = 1 << 30
"""At most so much is copied by a run."""


class Held(NamedTuple):
    """How many L0 objects there are, and how many bytes."""

    objects: int = 0
    bytes: int = 0


class Target(NamedTuple):
    """What moving all up to `epoch` copies, and what it releases: the objects up to there that the lagging partitions hold,
    with those that were copied. `why` says why there is no target, then `epoch` is None and the numbers are of the
    cheapest."""

    epoch: int | None = None
    copied: int = 0
    released: Held = Held()
    why: str = ""

    @property
    def gain(self) -> int:
        """The bytes of what is released that nothing needs."""
        return max(0, self.released.bytes - self.copied)


def choose_target(
    objects: Mapping[int, Held],
    needed: Mapping[int, int],
    below: int,
    *,
    ratio: float = RATIO,
    max_bytes: int = MAX_BYTES,
) -> Target:
    """The target epoch with the most gain beyond `ratio` times its cost; of equals the highest.

    Args:
        objects: what the bucket holds at each epoch.
        needed: how many bytes of the objects at each epoch a journal still needs.
        below: the lowest epoch that a journal may still take; the target is below it.
        ratio: how many bytes have to be released for each that is copied.
        max_bytes: at most so much is copied.
    """
    first = min(needed, default=below)
    if first >= below:
        return Target(
            why=f"no partition that lags holds anything below epoch {below}, where the journals' windows begin"
        )
    copied, released, best, cheapest = 0, Held(), Target(), Target()
    for epoch in sorted(e for e in {*objects, *needed} if first <= e < below):
        copied += needed.get(epoch, 0)
        there = objects.get(epoch, Held())
        released = Held(released.objects + there.objects, released.bytes + there.bytes)
        found = Target(epoch, copied, released)
        if not cheapest.copied or found.gain * cheapest.copied >= cheapest.gain * copied:
            cheapest = found
        worth = found.gain > 0 and found.gain >= ratio * copied and copied <= max_bytes
        if worth and (best.epoch is None or found.gain - ratio * copied >= best.gain - ratio * best.copied):
            best = found
    if best.epoch is not None:
        return best
    enough = cheapest.copied > max_bytes and cheapest.gain >= ratio * cheapest.copied
    limit = f"more than --max-bytes {size(max_bytes)}" if enough else f"and --ratio is {ratio:g}"
    text = (
        f"to move {size(cheapest.copied)} up to epoch {cheapest.epoch} would release {size(cheapest.gain)} of garbage"
    )
    return cheapest._replace(epoch=None, why=f"{text}, {limit}")
