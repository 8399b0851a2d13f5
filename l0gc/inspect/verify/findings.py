"""What can be wrong with a bucket, and what to do about it (pure).

A suspect is what one look at a bucket in use gives. It becomes a finding only if a second look, in an order that leaves no
other explanation, gives it again (`confirm.py`). Every kind of finding has its severity and its next step here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from l0gc.keys import PartitionId

L0_MISSING: Final = "l0_missing"
L0_SHORT: Final = "l0_short"
L0_CORRUPT: Final = "l0_corrupt"
L0_WRONG_EPOCH: Final = "l0_wrong_epoch"
LIVE_BELOW_WATERMARK: Final = "live_below_watermark"
WATERMARK_AHEAD: Final = "watermark_ahead"
WATERMARK_UNREADABLE: Final = "watermark_unreadable"
EPOCH_AHEAD: Final = "epoch_ahead"
L1_MISSING: Final = "l1_missing"
L1_SIZE: Final = "l1_size"
L1_CORRUPT: Final = "l1_corrupt"
L1_RANGE: Final = "l1_range"
L1_ORPHAN: Final = "l1_orphan"
LOG_UNREADABLE: Final = "log_unreadable"
STATE_BROKEN: Final = "state_broken"
CHECKPOINT_AHEAD: Final = "checkpoint_ahead"
REPORT_AHEAD: Final = "report_ahead"
REPORT_FOREIGN: Final = "report_foreign"
REPORT_UNREADABLE: Final = "report_unreadable"


@dataclass(frozen=True, slots=True)
class Kind:
    """`severity` is `loss` (data cannot be read), `danger` (data may be lost) or `waste` (it costs space alone)."""

    severity: str
    next_step: str


_RESTORE: Final = "restore it from a version or a backup"
_STOP: Final = "stop l0gc sweep and l0gc compute-watermark"

KINDS: Final[dict[str, Kind]] = {
    L0_MISSING: Kind("loss", f"{_RESTORE}; look for its key in l0gc/runs/, and at who else can delete there"),
    L0_SHORT: Kind("loss", _RESTORE),
    L0_CORRUPT: Kind("loss", _RESTORE),
    L0_WRONG_EPOCH: Kind("danger", f"{_STOP}, then run l0gc reconcile, which reads it while it is there"),
    LIVE_BELOW_WATERMARK: Kind("danger", f"{_STOP}, then run l0gc reconcile, which reads it while it is there"),
    WATERMARK_AHEAD: Kind(
        "danger", f"{_STOP} until it is known who wrote that watermark, or which log was restored from a backup"
    ),
    WATERMARK_UNREADABLE: Kind("danger", "remove it, then run l0gc compute-watermark"),
    EPOCH_AHEAD: Kind(
        "danger",
        "stop uploads and housekeeping; restore the newest controller log, or remove the object if it is foreign",
    ),
    L1_MISSING: Kind("loss", _RESTORE),
    L1_SIZE: Kind("loss", _RESTORE),
    L1_CORRUPT: Kind("loss", _RESTORE),
    L1_RANGE: Kind("loss", "restore this partition's log and checkpoints from a version or a backup"),
    L1_ORPHAN: Kind("waste", "remove it if no l0gc reconcile has been running since then"),
    LOG_UNREADABLE: Kind("loss", "restore the object that is named from a version or a backup; M waits meanwhile"),
    STATE_BROKEN: Kind("danger", f"{_STOP}; restore this partition's log and checkpoints from a version or a backup"),
    CHECKPOINT_AHEAD: Kind("danger", f"{_STOP}; restore the log entries that the checkpoint covers"),
    REPORT_AHEAD: Kind(
        "danger", f"{_STOP}; restore the newest log of this partition, or remove the report if it is foreign"
    ),
    REPORT_FOREIGN: Kind("danger", "restore the newest controller log, or remove the report if it is foreign"),
    REPORT_UNREADABLE: Kind("danger", "remove it, then run l0gc housekeep, which reports every partition"),
}


class Suspect(msgspec.Struct, frozen=True):
    """What one look gives.

    `topic` is empty and `revision` and `partition` are -1 where it concerns no partition. `offset` is the first record
    concerned, -1 for none. `ref` holds what the second look needs, as JSON.
    """

    kind: str
    topic: str
    revision: int
    partition: int
    key: str
    offset: int = -1
    detail: str = ""
    ref: str = ""

    @property
    def id(self) -> PartitionId | None:
        return PartitionId(self.topic, self.revision, self.partition) if self.topic else None

    @property
    def place(self) -> tuple[str, str, int]:
        """What makes two looks at one partition give the same suspect; numbers in `detail` may have moved."""
        return self.kind, self.key, self.offset


def suspect(kind: str, p: PartitionId | None, key: str, offset: int = -1, detail: str = "", ref: str = "") -> Suspect:
    """A suspect of partition `p`, or of none."""
    if p is None:
        return Suspect(kind, "", -1, -1, key, offset, detail, ref)
    return Suspect(kind, p.topic, p.revision, p.partition, key, offset, detail, ref)


class Finding(msgspec.Struct, frozen=True):
    """What is wrong. `offset` is the first record concerned; what does not apply is None."""

    kind: str
    severity: str
    topic: str | None
    partition: int | None
    key: str
    offset: int | None
    detail: str
    next_step: str

    @property
    def line(self) -> str:
        """The finding as one line."""
        where = f" {self.topic}/{self.partition}" if self.topic is not None else ""
        record = f" at record {self.offset}" if self.offset is not None else ""
        text = f"{self.kind}{where}{record}: {self.key}: {self.detail}; {self.next_step}"
        return " ".join(text.split())


def finding_of(s: Suspect) -> Finding:
    """The finding that a confirmed suspect is."""
    kind = KINDS[s.kind]
    return Finding(
        s.kind,
        kind.severity,
        s.topic or None,
        s.partition if s.topic else None,
        s.key,
        s.offset if s.offset >= 0 else None,
        s.detail,
        kind.next_step,
    )


class Checked(msgspec.Struct):
    """How much was looked at. `bytes_read` counts extents and L1 objects that were read for their checksums."""

    partitions: int = 0
    placeholders: int = 0
    l0_objects: int = 0
    l1_objects: int = 0
    reports: int = 0
    bytes_read: int = 0


@dataclass(slots=True)
class VerifyResult:
    """What a run found, and what it saw that is as it should be.

    `findings` are at most as many as were asked for, `total` and `counts` (by kind) count all of them. Of the L0 objects
    that no log needs, `waiting_objects` are above M and `eligible_objects` at or below it. `unparsable_keys` are keys in
    the data folders of L0 and L1 that are not l0gc's. `young_l1_objects` are named by no log, or not yet.
    """

    cluster_epoch: int
    watermark: int
    deep: bool
    findings: list[Finding] = field(default_factory=list)
    total: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    checked: Checked = field(default_factory=Checked)
    waiting_objects: int = 0
    waiting_bytes: int = 0
    eligible_objects: int = 0
    eligible_bytes: int = 0
    unparsable_keys: int = 0
    young_l1_objects: int = 0
    deleted_topic_objects: int = 0
    seconds: float = 0.0
