"""The interface through which a vacuum asks writers which objects they have dropped, and which they may still need.

The collector does not depend on journals. It uses a `GarbageSource`, whose units are the journals, and asks a `KeyFacts`
about each listed key: what the key's unit recorded after the fence. `dropped_l1.py`, `orphans.py` and `runs.py` decide
what may be deleted, one module for each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

import msgspec

from l0gc.collect.gc_steps import SWEEP, VACUUM
from l0gc.collect.plan import Removal
from l0gc.collect.runs import old_run_records, old_scan_snapshots
from l0gc.collect.scan import Deletable
from l0gc.formatting import Outcome
from l0gc.keys import ATTEMPTS, L1_DATA, RUNS, SCANS, KeyLayout
from l0gc.operations import Vacuum
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.ranges import KeyRange

LEVEL_ZERO: Final = "l0"
DROPPED_L1: Final = "dropped_l1"
ORPHANED_L1: Final = "orphaned_l1"
RUN_RECORDS: Final = "run_records"
SCAN_SNAPSHOTS: Final = "scan_snapshots"


class GarbageKind(NamedTuple):
    """A kind of garbage.

    Attributes:
        text: its name in messages and metrics.
        goes: when it is deleted, and what keeps it until then, for the documents.
        places: its folders: a policy has to allow deleting there, and doctor tests that.
        command: the command that deletes it.
        old: finds it, if it expires by age.
        recorded: whether its deletions are recorded; old records hold no data.
    """

    text: str
    goes: str
    places: tuple[str, ...]
    command: str = VACUUM
    old: Callable[[ObjectStore, Removal[Vacuum]], Iterator[list[Deletable]]] | None = None
    recorded: bool = True


_DROPPED: Final = (
    "`--l1-grace` after the journal that named it dropped it, by the store's clock, and not before two epochs have passed. "
    "No listing is needed: the journal lists it until it is gone."
)
_ORPHANED: Final = (
    "A run was killed, or refused. A fence goes into the journals first: what is stamped with an epoch of `--orphan-age` "
    "ago or more can be committed no more. Then the journals are read, and then L1 is listed."
)
GARBAGE: Final = {
    LEVEL_ZERO: GarbageKind(
        "L0 objects that no partition needs",
        "Its epoch is at or below M, and at or below `--up-to`: no partition takes a placeholder for it any more.",
        (KeyLayout().data_prefix,),
        SWEEP,
    ),
    DROPPED_L1: GarbageKind("L1 objects that were merged, expired or of deleted topics", _DROPPED, (L1_DATA,)),
    ORPHANED_L1: GarbageKind("L1 objects that no journal ever named", _ORPHANED, (L1_DATA,)),
    RUN_RECORDS: GarbageKind(
        "objects of old run records",
        "The run is older than `--keep-runs`, or not one of the 10,000 newest; equally old notes of the last runs of "
        "jobs that this l0gc does not have go, too.",
        (RUNS, ATTEMPTS),
        old=old_run_records,
        recorded=False,
    ),
    SCAN_SNAPSHOTS: GarbageKind(
        "old scan snapshots",
        "The snapshot is older than 90 days, or not one of the 1,000 newest.",
        (SCANS,),
        old=old_scan_snapshots,
        recorded=False,
    ),
}
"""All kinds. Counts, metrics, messages, the documents' table, the policies' rights and doctor's tests follow from them."""
KINDS: Final = {name: kind for name, kind in GARBAGE.items() if kind.command == VACUUM}
"""The kinds that a vacuum deletes, in its order."""


class Fact(NamedTuple):
    """The facts about a listed key: its epoch (-1 if it is not such a key), its unit's fence, and its status there.

    Nothing stamped below the fence is ever listed again. The status is whether the unit lists it, or has dropped it.
    `unknown`: it belongs to something that the writers should have, and do not (hazard 10).
    """

    epoch: int
    fence: int
    needed: bool
    unknown: bool = False


class Amounts(msgspec.Struct, Outcome, frozen=True):
    """L1 objects and their bytes: those that are listed, and those that were dropped but still exist.

    `dead_bytes` of the listed ones are in shared objects, for partitions that no longer list them.
    `oldest_dropped_ms` is when the oldest dropped object that no pin keeps was dropped; None without any.
    """

    hidden: ClassVar[frozenset[str]] = frozenset({"oldest_dropped_ms"})

    live_objects: int = 0
    live_bytes: int = 0
    dropped_objects: int = 0
    dropped_bytes: int = 0
    oldest_dropped_ms: int | None = None
    dead_bytes: int = 0


KeyFacts = Callable[[Sequence[str]], list[Fact]]
"""Returns what is known of each key, according to the units of a part of the listing at or after their fences."""


LookAt = Callable[[ObjectStore, KeyRange], KeyFacts]
"""Reads the units of a part, once the fences are in their logs."""


class GarbageSource(Protocol):
    """The writers' side of what a vacuum deletes. Nothing is cached from before `refresh`."""

    @property
    def broken(self) -> Sequence[str]:
        """Return the units that cannot be read, each with its error; nothing of theirs is garbage."""

    @property
    def objects(self) -> int:
        """Return the approximate number of objects that the units list."""

    def refresh(self) -> None:
        """Read all units.

        Raises:
            EpochRegressionError: a unit contains something that the controller does not (hazard 10).
        """

    def units(self) -> Sequence[int]:
        """Return the units that can be read."""

    def dropped(self, unit: int, before_ms: int, epoch: int) -> Iterator[list[Deletable]]:
        """Yield what a unit dropped by `before_ms`, by the store's clock, while no epoch above `epoch` existed, a few
        thousand objects at a time.
        """

    def purged(self, unit: int, objects: Sequence[Deletable]) -> None:
        """Record that those dropped objects are gone."""

    def amounts(self) -> Amounts:
        """Return the amounts of L1 that the units have now."""

    def fence(self, before_ms: int, dropped_before_ms: int, *, dry_run: bool) -> int:
        """Append a fence to all units against stamps older than `before_ms`; return its epoch, 0 without one.

        What was dropped since `dropped_before_ms` is not garbage yet, even if only the listing finds it. A unit that does
        not accept the fence counts as broken from then on. A dry run appends nothing, and assumes what it would append.
        """

    def parts(self, prefix: str, count: int) -> Sequence[KeyRange]:
        """Return the listing below `prefix` in about `count` parts, which together cover all of it."""

    def looker(self, *, remote: bool) -> LookAt:
        """Return the function that reads a part; `remote` if that is done in another process."""

    def scanned(self, fence: int, left: Collection[str] | None) -> None:
        """Record that all unneeded objects below the fence were found: what was kept only to find them may be
        forgotten.

        Args:
            left: the keys of those that could not be deleted; None if they are too many to list.
        """
