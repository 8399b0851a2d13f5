"""The sources of M: the collector's view of a cluster, and of the writers whose objects it deletes.

The collector depends on no journal and no other system's log. It uses a `ClusterView`, which identifies the bucket's
cluster and its epoch, and an `EpochSource` (`pipeline.py`), which reports what the partitions may still need. Partitions
come in units (a journal, a set of files), each summed up in a few numbers, so nothing here grows with the number of
partitions.

What makes deletion safe: epoch and partitions of a source are of one moment, and M is capped at that epoch (hazard 5). A
summary may have any age, since M(p) never goes down. An unreadable unit counts with the lowest epoch that its partitions
can have, and is named (hazard 6).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from l0gc.epoch import NO_WATERMARK
from l0gc.keys import KeyLayout
from l0gc.runtime import Runtime
from l0gc.storage.entry import Place
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel

HELD_BACK_SHOWN: Final = 10
"""How many of the partitions with the lowest M(p) are named."""

RESTORE_CONTROLLER: Final = (
    "restore the newest controller log (l0gc help operate-logs), or have a foreign object moved elsewhere by its owner"
)
CONTROLLER_REMEDY: Final = (
    "the controller log looks restored from an old backup, or the object is foreign; nothing was published or deleted. "
    f"R{RESTORE_CONTROLLER[1:]}"
)
"""The likely cause, and what to do, if the bucket contains an epoch above that of l0gc's own controller log."""

LogEnd = tuple[int, Place]
"""Where the log of a unit ended: how often it was set back and accepted, and the place of the last entry. The number of
acceptances and the offset, compared in this order, never decrease.
"""
CONTROLLER_UNIT: Final = "the controller log"
"""The name of l0gc's own controller log as a unit without partitions. Each jump of its epoch accepts it as it is."""

UNRECONCILED: Final = "unreconciled"
IDLE: Final = "idle"
UNREADABLE: Final = "unreadable"
REPORTED: Final = "reported"
UNREPORTED: Final = "unreported"
PINNED: Final = "pinned"
"""Why a partition is where it is: its data is not in L1; its window may still take the epoch; its journal cannot be read;
another system's report has it; that system has not reported it. And a pin may hold M, whatever partitions need."""


class ClusterIdentity(NamedTuple):
    """The bucket's cluster, its epoch, and the form of its L0 keys, all of one moment.

    With an external log, l0gc's own epoch has no meaning; see `publication.refuse_if_behind`.
    """

    cluster_id: str
    cluster_epoch: int
    layout: KeyLayout
    external_log: bool = False


class PinnedUnits(NamedTuple):
    """The objects held by pins, as units without partitions, and the epoch at which the pins were read."""

    as_of: int
    held: Sequence[UnitSummary] = ()


class ClusterView(Protocol):
    """The collector's interface to a cluster. `l0gc.streamlog.cluster.ClusterHandles` is one."""

    @property
    def store(self) -> ObjectStore: ...

    @property
    def runtime(self) -> Runtime: ...

    @property
    def parallel(self) -> Parallel: ...

    @property
    def identified(self) -> bool:
        """Return whether this process has read the identity, and found that it is the expected cluster."""

    def identity(self) -> ClusterIdentity:
        """Return the cluster as it is now. Raises `NotInitialisedError`, and `ClusterMismatchError` if another one is
        expected.
        """

    def now_ms(self) -> int:
        """Return the store's clock now. Raises `SafetyError`: replies disagree, and nothing may be deleted by it."""

    def between_ms(self) -> tuple[int, int]:
        """Return the earlier and the later date of two replies now. Raises as `now_ms`."""

    def controller_unit(self, noted: Mapping[str, LogEnd]) -> UnitSummary | None:
        """Return the controller log as of the last `identity`, as a unit; None if the log is external. See `units`."""

    def units(
        self, numbers: Collection[int] | None = None, *, keep: bool = True, noted: Mapping[str, LogEnd] = {}
    ) -> Sequence[UnitSummary]:
        """Return the units of the cluster's own writers as their logs are now, with what the cluster was at the last
        `identity`.

        Empty if the log is external.

        Args:
            numbers: the only units to be read.
            keep: whether the process keeps the states that it reads, because it will use them again.
            noted: where their logs ended before, for `UnitSummary.rewritten`.
        """


class Holder(msgspec.Struct, frozen=True):
    """A partition that may still need the epoch after `gc_epoch`, why, and what moves it.

    Attributes:
        partition: -1, and no topic, for a unit as a whole, which the reason names.
        kind: UNRECONCILED, IDLE, UNREADABLE, REPORTED, UNREPORTED or PINNED.
        reason: the same as a sentence, with the remedy.
        unreconciled_records: of the partition, whether they hold it or not.
        key: the L0 object that holds it; empty if none does.
    """

    topic: str
    partition: int
    gc_epoch: int
    kind: str
    reason: str
    unreconciled_records: int = 0
    key: str = ""

    @property
    def name(self) -> str:
        """Return the partition, such as `events/0`; empty for a unit as a whole."""
        return f"{self.topic}/{self.partition}" if self.topic else ""


class UnitSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The needs of one unit's partitions.

    Attributes:
        unit: what messages call it: `journal 3`.
        gc_epochs: how many partitions there are at each M(p).
        lowest: those with the lowest M(p), at most `HELD_BACK_SHOWN`, in order of M(p), topic and partition.
        highest_epoch: the highest epoch recorded in the unit, which shows a controller log that went back (hazard 10).
        highest_in: where it is recorded, for the message.
        error: why the unit cannot be read; `lowest` then shows where that holds M.
        damaged: whether its content is the reason, and not an error of the store.
        end: where its log ended when it was read; None if that is unknown.
        rewritten: whether the log does not have the entry at which it ended before, see `Replica.holds`.
    """

    unit: str
    gc_epochs: Mapping[int, int]
    lowest: Sequence[Holder]
    highest_epoch: int = NO_WATERMARK
    highest_in: str = ""
    error: str = ""
    damaged: bool = False
    end: LogEnd | None = None
    rewritten: bool = False

    @property
    def gc_epoch(self) -> int | None:
        """Return the lowest M(p), or where an unreadable unit holds M; None if there is nothing in it."""
        return min([*self.gc_epochs, *(h.gc_epoch for h in self.lowest[:1])], default=None)

    @property
    def partitions(self) -> int:
        return sum(self.gc_epochs.values())
