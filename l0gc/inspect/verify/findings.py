"""What can be wrong with a bucket, and what to do about it (pure).

A suspect is what one reading of a bucket in use gives. It becomes a finding only if a second reading, in an order that
leaves no other explanation, gives it again (`confirm.py`). Every kind of finding has its severity and its next step here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from l0gc.errors import SafetyError
from l0gc.formatting import Outcome, count

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
INDEX_UNREADABLE: Final = "index_unreadable"
LOG_UNREADABLE: Final = "log_unreadable"
LOG_GAP: Final = "log_gap"
STATE_BROKEN: Final = "state_broken"
CHECKPOINT_DIFFERS: Final = "checkpoint_differs"
BOUNDARY_BROKEN: Final = "boundary_broken"
TOPIC_MISPLACED: Final = "topic_misplaced"
TOPIC_UNKNOWN: Final = "topic_unknown"
TOPIC_UNCLOSED: Final = "topic_unclosed"
JOURNAL_UNKNOWN: Final = "journal_unknown"


@dataclass(frozen=True, slots=True)
class Kind:
    """`severity` is `loss` (data cannot be read), `danger` (data may be lost) or `waste` (it only costs space)."""

    severity: str
    next_step: str


_RESTORE: Final = "restore it from a version or a backup"
_RESTORE_LOG: Final = "restore this log's entries and checkpoints from a version or a backup"
_STOP: Final = "stop l0gc sweep and l0gc compute-watermark"
_NEWER: Final = "restore the newest controller log"

KINDS: Final[dict[str, Kind]] = {
    L0_MISSING: Kind("loss", f"{_RESTORE}; search l0gc/runs/ for its key, and find out who else can delete there"),
    L0_SHORT: Kind("loss", _RESTORE),
    L0_CORRUPT: Kind("loss", _RESTORE),
    L0_WRONG_EPOCH: Kind("danger", f"{_STOP}, then run l0gc reconcile, which reads it while it is there"),
    LIVE_BELOW_WATERMARK: Kind("danger", f"{_STOP}, then run l0gc reconcile, which reads it while it is there"),
    WATERMARK_AHEAD: Kind(
        "danger", f"{_STOP} until you know who wrote that watermark, or which log was restored from a backup"
    ),
    WATERMARK_UNREADABLE: Kind("danger", "remove it, then run l0gc compute-watermark"),
    EPOCH_AHEAD: Kind("danger", f"stop uploads and housekeeping; {_NEWER}, or remove the object if it is foreign"),
    L1_MISSING: Kind("loss", _RESTORE),
    L1_SIZE: Kind("loss", _RESTORE),
    L1_CORRUPT: Kind("loss", _RESTORE),
    L1_RANGE: Kind("loss", _RESTORE_LOG),
    L1_ORPHAN: Kind("waste", "remove it if no l0gc reconcile has been running since it was written"),
    INDEX_UNREADABLE: Kind("loss", f"{_RESTORE}: it names the partition's older L1 objects"),
    LOG_UNREADABLE: Kind("loss", "restore the named object from a version or a backup; M waits until then"),
    LOG_GAP: Kind("danger", f"{_STOP}; {_RESTORE_LOG}"),
    STATE_BROKEN: Kind("danger", f"{_STOP}; {_RESTORE_LOG}"),
    CHECKPOINT_DIFFERS: Kind("danger", f"{_STOP}; {_RESTORE_LOG}, and keep both for a bug report"),
    BOUNDARY_BROKEN: Kind("danger", f"{_STOP}; {_RESTORE_LOG}, boundary.json included"),
    TOPIC_MISPLACED: Kind("danger", f"{_STOP}; {_NEWER}, or the journal that the controller names"),
    TOPIC_UNKNOWN: Kind("danger", f"stop uploads; {_NEWER}: it looks restored from an old backup"),
    TOPIC_UNCLOSED: Kind("waste", "run l0gc housekeep, which closes it, or says why it cannot"),
    JOURNAL_UNKNOWN: Kind("danger", f"{_NEWER}, or remove the journal if it is foreign"),
}


class Suspect(msgspec.Struct, frozen=True):
    """What one reading gives; -1 and empty where a field does not apply.

    Attributes:
        topic, revision, partition: the partition concerned, or the first of several.
        offset: the first record concerned.
        expected: the size or the epoch that the second reading compares with.
        ref: what else the second reading needs.
    """

    kind: str
    journal: int = -1
    topic: str = ""
    revision: int = -1
    partition: int = -1
    key: str = ""
    offset: int = -1
    expected: int = -1
    detail: str = ""
    ref: bytes = b""

    @property
    def place(self) -> tuple[str, int, str, int]:
        """What two readings of one journal have in common; numbers in `detail` may have moved."""
        return self.kind, self.revision, self.key, self.offset


class Finding(msgspec.Struct, frozen=True):
    """What is wrong. `offset` is the first record concerned; what does not apply is None."""

    kind: str
    severity: str
    journal: int | None
    topic: str | None
    partition: int | None
    key: str
    offset: int | None
    detail: str
    next_step: str

    @property
    def line(self) -> str:
        """The finding as one line."""
        where = ""
        if self.topic is not None:
            where = f" {self.topic}" if self.partition is None else f" {self.topic}/{self.partition}"
        record = f" at record {self.offset}" if self.offset is not None else ""
        text = f"{self.kind}{where}{record}: {self.key}: {self.detail}; {self.next_step}"
        return " ".join(text.split())


def finding_of(s: Suspect) -> Finding:
    """The finding that a confirmed suspect is."""
    kind = KINDS[s.kind]
    return Finding(
        s.kind,
        kind.severity,
        s.journal if s.journal >= 0 else None,
        s.topic or None,
        s.partition if s.partition >= 0 else None,
        s.key,
        s.offset if s.offset >= 0 else None,
        s.detail,
        kind.next_step,
    )


class Checked(msgspec.Struct):
    """How much was read. `extents` are unreconciled; `bytes_read` counts blocks and L1 objects read for their contents."""

    journals: int = 0
    partitions: int = 0
    extents: int = 0
    l0_objects: int = 0
    l1_objects: int = 0
    index_objects: int = 0
    bytes_read: int = 0


@dataclass(slots=True)
class VerifyResult(Outcome):
    """What a run found, and what it saw that is as it should be.

    `findings` are at most as many as were requested, `total` and `counts` (by kind) count all of them. Of the L0 objects
    that no journal needs, `waiting_objects` are above M and `eligible_objects` at or below it. `unparsable_keys` are keys
    in the data folders of L0 and L1 that are not l0gc's. `young_l1_objects` are named by no journal, or not yet.
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

    @property
    def problem(self) -> SafetyError | None:
        """How many findings there are, as the error that the command ends with."""
        return SafetyError(f"{count(self.total, 'finding')}; nothing was changed") if self.total else None
