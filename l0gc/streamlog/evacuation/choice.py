"""Up to which epoch an evacuation moves what is still needed: a pure choice from two histograms.

The cost of a target epoch is what is still needed in the objects up to it, which is copied; the gain is the rest of these
objects, which nothing needs. Log-structured file systems choose the segments that they clean by the same rule. A wrong
choice costs bytes and no data: what a journal may name as moved is decided where its entry lands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from l0gc.formatting import count, size

RATIO: Final = 4.0
"""So many bytes must be released for each that is copied, where somebody asks for an evacuation."""
STEP_RATIO: Final = 50.0
"""The same for the step of `gc`, which runs unasked: what it copies in all is at most 2 % of what was uploaded."""
MAX_BYTES: Final = 1 << 30
"""At most so much is copied by a run."""
COPY_BYTES: Final = 64 << 20
"""About how large a copy is: as an object that was uploaded, or larger, and small enough to be held in memory."""
OBJECT_BYTES: Final = 1 << 20
"""What an object counts in addition to its bytes, where somebody asks: every run lists it, and at a run in ten minutes that
costs as much as to store so much. The step of `gc` counts bytes alone, which bounds what it copies."""


class Holding(NamedTuple):
    """How many L0 objects there are, and how many bytes."""

    objects: int = 0
    bytes: int = 0


class Target(NamedTuple):
    """What moving all up to `epoch` copies, and what it releases: the objects up to there that the lagging partitions hold,
    with those that were copied. `gain` is what that is worth. `why` says why there is no target: `epoch` is None, and the
    numbers are of the cheapest."""

    epoch: int | None = None
    copied: int = 0
    released: Holding = Holding()
    gain: int = 0
    why: str = ""

    @property
    def garbage(self) -> int:
        """The bytes that the bucket holds no longer: the copies take the place of what is copied."""
        return max(0, self.released.bytes - self.copied)


def choose_target(
    objects: Mapping[int, Holding],
    needed: Mapping[int, int],
    below: int,
    *,
    ratio: float = RATIO,
    max_bytes: int = MAX_BYTES,
    object_bytes: int = 0,
) -> Target:
    """The target epoch with the most gain beyond `ratio` times its cost; of equals the highest.

    Args:
        objects: what the bucket holds at each epoch.
        needed: how many bytes of the objects at each epoch a journal still needs.
        below: the lowest epoch that a journal may still take, or that a pin keeps; the target is below it.
        ratio: how many bytes have to be gained for each that is copied.
        max_bytes: at most so much is copied.
        object_bytes: how many bytes it is worth that there is one object less.
    """
    first = min(needed, default=below)
    if first >= below:
        return Target(
            why=f"no partition that lags holds anything below epoch {below}, where the journals' windows begin or a pin is"
        )
    copied, released, best, cheapest = 0, Holding(), Target(), Target()
    for epoch in sorted(e for e in {*objects, *needed} if first <= e < below):
        copied += needed.get(epoch, 0)
        there = objects.get(epoch, Holding())
        released = Holding(released.objects + there.objects, released.bytes + there.bytes)
        fewer = released.objects - max(1, -(-copied // COPY_BYTES))
        gain = max(0, released.bytes - copied) + object_bytes * max(0, fewer)
        found = Target(epoch, copied, released, gain)
        if cheapest.epoch is None or gain * cheapest.copied >= cheapest.gain * copied:
            cheapest = found
        worth = gain > 0 and gain >= ratio * copied and copied <= max_bytes
        if worth and (best.epoch is None or gain - ratio * copied >= best.gain - ratio * best.copied):
            best = found
    if best.epoch is not None:
        return best
    enough = cheapest.copied > max_bytes and cheapest.gain >= ratio * cheapest.copied
    limit = f"more than --max-bytes {size(max_bytes)}" if enough else f"and --ratio is {ratio:g}"
    there_are = f"{count(cheapest.released.objects, 'object')} with {size(cheapest.garbage)} of garbage"
    text = f"to move {size(cheapest.copied)} up to epoch {cheapest.epoch} would release {there_are}"
    return cheapest._replace(epoch=None, why=f"{text}, {limit}")
