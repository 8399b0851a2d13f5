"""What a vacuum asks of the writers: which objects they have dropped, and which they may still need.

The collector does not depend on journals. It sees a `GarbageSource`, whose units are the journals, and asks a `KeyFacts`
about each key of a listing: what the key's own unit recorded after the fence. `dropped_l1.py`, `orphans.py` and
`old_records.py` decide what may be deleted, a module for each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from l0gc.collect.scan import Deletable
from l0gc.storage.objectstore import ObjectStore

DROPPED_L1: Final = "dropped_l1"
DROPPED_INDEX: Final = "dropped_index"
ORPHANED_L1: Final = "orphaned_l1"
ORPHANED_INDEX: Final = "orphaned_index"
RUN_RECORDS: Final = "run_records"
SCAN_SNAPSHOTS: Final = "scan_snapshots"


class GarbageKind(NamedTuple):
    """What it is, and whether it held data: what is deleted of such is on record."""

    text: str
    held_data: bool = True


KINDS: Final = {
    DROPPED_L1: GarbageKind("L1 objects that were merged, expired or of deleted topics"),
    DROPPED_INDEX: GarbageKind("index objects that others have taken the place of"),
    ORPHANED_L1: GarbageKind("L1 objects that no journal ever named"),
    ORPHANED_INDEX: GarbageKind("index objects that no journal ever named"),
    RUN_RECORDS: GarbageKind("objects of old run records", held_data=False),
    SCAN_SNAPSHOTS: GarbageKind("old scan snapshots", held_data=False),
}
"""What a vacuum deletes, in the order in which it does; its counts, metrics and messages have a line for each."""


class DroppedBatch(NamedTuple):
    """Dropped objects of one kind, which their unit lists.

    `trees`: by the key of an index object, the L1 objects that only this one lists: they go first.
    """

    kind: str
    objects: list[Deletable]
    trees: Mapping[str, list[Deletable]] = {}


class Fact(NamedTuple):
    """What is known of a key in a listing: the epoch that it is stamped with, -1 if it is no such key; the fence of its
    unit, below which nothing is named any more; and whether its unit names it, or has it among what it dropped.

    `unknown`: it belongs to something that the writers should know, and do not (hazard 10).
    """

    epoch: int
    fence: int
    needed: bool
    unknown: bool = False


class Amounts(msgspec.Struct, frozen=True):
    """L1 and index objects and their bytes: those that are named, and those that were dropped and are still there.

    `oldest_dropped_ms` is when the oldest of these was dropped; None without any.
    """

    live_objects: int = 0
    live_bytes: int = 0
    dropped_objects: int = 0
    dropped_bytes: int = 0
    oldest_dropped_ms: int | None = None


class KeyFacts(Protocol):
    """What the units of a part of the listing said, at or after their fences."""

    def facts(self, keys: Sequence[str]) -> list[Fact]:
        """What is known of each key."""
        ...


class ListingPart(Protocol):
    """A part of a listing: the keys below `prefix` after `start` up to `end`, itself included; without an end, to the last.

    It holds no secret and can be sent to executors.
    """

    @property
    def prefix(self) -> str: ...

    @property
    def start(self) -> str: ...

    @property
    def end(self) -> str | None: ...


LookAt = Callable[[ObjectStore, ListingPart], KeyFacts]
"""Looks at the units of a part; not before the fences are in their logs."""


class GarbageSource(Protocol):
    """The writers' side of what a vacuum deletes. Nothing is cached from before `refresh`."""

    @property
    def broken(self) -> Sequence[str]:
        """The units that cannot be read, each with its error; nothing of theirs is garbage."""
        ...

    @property
    def damaged(self) -> Sequence[str]:
        """The dropped objects that cannot be read, each with its error and the way out; they stay with what they list."""
        ...

    @property
    def objects(self) -> int:
        """About how many objects the units name."""
        ...

    def refresh(self) -> None:
        """Read all units.

        Raises:
            EpochRegressionError: a unit knows what the controller does not (hazard 10).
        """
        ...

    def units(self) -> Sequence[int]:
        """The units that can be read."""
        ...

    def dropped(self, unit: int, before_ms: int, epoch: int) -> Iterator[DroppedBatch]:
        """What a unit dropped at `before_ms` or before, by the store's clock, and when no epoch above `epoch` was known."""
        ...

    def purged(self, unit: int, objects: Sequence[Deletable]) -> None:
        """Those dropped objects are gone."""
        ...

    def amounts(self) -> Amounts:
        """What there is of L1, as the units have it now."""
        ...

    def fence(self, before_ms: int, dropped_before_ms: int, *, dry_run: bool) -> int:
        """Append a fence against what was stamped before `before_ms` to all units; returns its epoch, 0 without one.

        What was dropped since `dropped_before_ms` is not garbage yet, even if nothing but the listing finds it.
        A unit that does not take it is broken from then on. A dry run appends nothing, and assumes what it would append.
        """
        ...

    def scan_due(self, before_ms: int) -> bool:
        """Whether the fences are older than `before_ms`: so long no run has searched for orphans."""
        ...

    def parts(self, prefix: str, count: int) -> Sequence[ListingPart]:
        """The listing below `prefix` in about `count` parts, which together are all of it."""
        ...

    def looker(self, *, remote: bool) -> LookAt:
        """How a part is read; `remote` where that is done in another process."""
        ...

    def prefixes(self) -> dict[str, str]:
        """Where objects of each kind that can be orphaned lie."""
        ...

    def scanned(self, fence: int, left: Collection[str] | None) -> None:
        """All objects below the fence that are not needed were found: what was kept only to find them may be forgotten.

        Args:
            left: the keys of those that could not be deleted; None if they are too many to be known.
        """
        ...
