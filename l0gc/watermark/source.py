"""The inputs of M: the collector's view of a cluster, and of the writers whose objects it deletes.

The collector does not depend on journals or on another system's log. It uses a `ClusterView`, which identifies the
bucket's cluster and its epoch, and an `EpochSource` (`pipeline.py`), which reports the epochs that the partitions may
still need. Partitions are grouped in units (a journal, a set of files), and a few numbers sum up each unit, so nothing
here grows with the number of partitions.

Deletion is safe because the epoch and the partitions of a source belong to one moment, and M is capped at that epoch
(hazard 5). A summary may have any age, since M(p) never decreases. An unreadable unit counts with the lowest epoch that
its partitions can have, and is reported by name (hazard 6).
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
"""The likely cause and the way out if the bucket contains an epoch above that of l0gc's own controller log."""

LogEnd = tuple[int, Place]
"""Where the log of a unit ended: how often it was set back and accepted, and the place of the last entry. The pair of
the number of acceptances and the offset never decreases.
"""
CONTROLLER_UNIT: Final = "the controller log"
"""The name of l0gc's own controller log, which is a unit without partitions. Each jump of its epoch accepts the log."""

UNRECONCILED: Final = "unreconciled"
IDLE: Final = "idle"
UNREADABLE: Final = "unreadable"
REPORTED: Final = "reported"
UNREPORTED: Final = "unreported"
PINNED: Final = "pinned"
"""The reasons for an M(p), in this order: the partition's data is not in L1; its window may still admit the epoch; its
journal cannot be read; another system has reported it; that system has not reported it. A pin holds M whatever the
partitions need.
"""


class ClusterIdentity(NamedTuple):
    """The bucket's cluster, its epoch, and the form of its L0 keys, all as of one moment.

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
        """Return whether this process has read the identity and confirmed that it is the expected cluster."""

    def identity(self) -> ClusterIdentity:
        """Return the current identity. Raises `NotInitialisedError`, and `ClusterMismatchError` if another cluster is
        expected.
        """

    def now_ms(self) -> int:
        """Return the store's current time. Raises `SafetyError` if replies disagree, since a deletion must not rely on
        such a time.
        """

    def between_ms(self) -> tuple[int, int]:
        """Return the earlier and the later date of two new replies. Raises the errors of `now_ms`."""

    def controller_unit(self, noted: Mapping[str, LogEnd]) -> UnitSummary | None:
        """Return the controller log, as of the last `identity`, as a unit; None if the log is external. See `units`."""

    def units(
        self, numbers: Collection[int] | None = None, *, keep: bool = True, noted: Mapping[str, LogEnd] = {}
    ) -> Sequence[UnitSummary]:
        """Return the units of the cluster's own writers as of the current ends of their logs, and of the last
        `identity`.

        The result is empty if the log is external.

        Args:
            numbers: the only units to be read.
            keep: whether the process keeps the states that it reads, to use them again.
            noted: where the logs ended before, for `UnitSummary.rewritten`.
        """


class Holder(msgspec.Struct, frozen=True):
    """A partition that may still need the epoch after `gc_epoch`, with the reason and the remedy.

    Attributes:
        partition: the number of the partition; -1, with an empty topic, for a whole unit, which the reason names.
        kind: UNRECONCILED, IDLE, UNREADABLE, REPORTED, UNREPORTED or PINNED.
        reason: the kind as a sentence, with the remedy.
        unreconciled_records: the number of unreconciled records in the partition, whether or not they hold M(p).
        key: the L0 object that holds M(p); empty if none does.
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
        """Return the name of the partition, such as `events/0`; empty for a whole unit."""
        return f"{self.topic}/{self.partition}" if self.topic else ""


class UnitSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The epochs that the partitions of one unit may still need.

    Attributes:
        unit: the name of the unit in messages, e.g. `journal 3`.
        gc_epochs: the number of partitions at each M(p).
        lowest: the partitions with the lowest M(p), at most `HELD_BACK_SHOWN`, in order of M(p), topic and partition.
        highest_epoch: the highest epoch recorded in the unit, which reveals a controller log that was set back (hazard
            10).
        highest_in: the place of that record, for messages.
        error: why the unit cannot be read; empty if it can. `lowest` then shows at which epoch the unit holds M.
        damaged: whether damaged content, and not an error of the store, is the reason.
        end: where the log ended when it was read; None if that is unknown.
        rewritten: whether the log lacks the entry at which it ended before; see `Replica.holds`.
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
        """Return the lowest M(p), or the epoch at which an unreadable unit holds M; None if the unit is empty."""
        return min([*self.gc_epochs, *(h.gc_epoch for h in self.lowest[:1])], default=None)

    @property
    def partitions(self) -> int:
        return sum(self.gc_epochs.values())
