"""What can be wrong with a bucket, and what to do about it (pure).

A suspect is what one reading of a bucket in use gives. It becomes a finding only if a second reading, in an order that
leaves no other explanation, gives it again (`confirm.py`). Every kind of finding has its severity and its next step here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

import msgspec

from l0gc.errors import SafetyError
from l0gc.formatting import Outcome, count
from l0gc.inspect.causes import PUT_BACK
from l0gc.streamlog.journal.topic import UnreconciledObject

_RESTORE: Final = "restore it from a version or a backup"
_SEARCH: Final = f"{_RESTORE}; search l0gc/runs/ for its key, and find out who else can delete there"
_RESTORE_LOG: Final = "restore this log's entries and checkpoints from a version or a backup"
_STOP: Final = "stop l0gc sweep and l0gc compute-watermark"
_LIFT: Final = f"{_STOP}, then run l0gc reconcile, which reads it while it is there"
_WHO: Final = f"{_STOP} until you know who wrote that watermark, or which log was restored from a backup"
_NEWER: Final = "restore the newest controller log"
_AHEAD: Final = f"stop uploads and housekeeping; {_NEWER}, or remove the object if it is foreign"


class Kind(StrEnum):
    """A kind: its name, its severity (`loss`: data cannot be read; `danger`: it may be lost; `waste`), and its next step."""

    severity: str
    next_step: str

    def __new__(cls, name: str, severity: str, next_step: str) -> Self:
        kind = str.__new__(cls, name)
        kind._value_, kind.severity, kind.next_step = name, severity, next_step
        return kind

    L0_MISSING = "l0_missing", "loss", _SEARCH
    L0_SHORT = "l0_short", "loss", _RESTORE
    L0_CORRUPT = "l0_corrupt", "loss", _RESTORE
    L0_WRONG_EPOCH = "l0_wrong_epoch", "danger", _LIFT
    LIVE_BELOW_WATERMARK = "live_below_watermark", "danger", _LIFT
    WATERMARK_AHEAD = "watermark_ahead", "danger", _WHO
    WATERMARK_UNREADABLE = "watermark_unreadable", "danger", "remove it, then run l0gc compute-watermark"
    EPOCH_AHEAD = "epoch_ahead", "danger", _AHEAD
    L1_MISSING = "l1_missing", "loss", _RESTORE
    L1_SIZE = "l1_size", "loss", _RESTORE
    L1_CORRUPT = "l1_corrupt", "loss", _RESTORE
    L1_ORPHAN = "l1_orphan", "waste", "remove it if no l0gc reconcile has been running since it was written"
    INDEX_UNREADABLE = "index_unreadable", "loss", f"{_RESTORE}: it names the partition's older L1 objects"
    LOG_UNREADABLE = "log_unreadable", "loss", "restore the named object from a version or a backup; M waits until then"
    LOG_GAP = "log_gap", "danger", f"{_STOP}; {_RESTORE_LOG}"
    JOURNAL_SET_BACK = "journal_set_back", "danger", f"{_STOP}; {PUT_BACK}"
    STATE_BROKEN = "state_broken", "danger", f"{_STOP}; {_RESTORE_LOG}"
    CHECKPOINT_DIFFERS = "checkpoint_differs", "danger", f"{_STOP}; {_RESTORE_LOG}, and keep both for a bug report"
    BOUNDARY_BROKEN = "boundary_broken", "danger", f"{_STOP}; {_RESTORE_LOG}, boundary.json included"
    TOPIC_MISPLACED = "topic_misplaced", "danger", f"{_STOP}; {_NEWER}, or the journal that the controller names"
    TOPIC_UNKNOWN = "topic_unknown", "danger", f"stop uploads; {_NEWER}: it looks restored from an old backup"
    TOPIC_UNCLOSED = "topic_unclosed", "waste", "run l0gc housekeep, which closes it, or says why it cannot"
    JOURNAL_UNKNOWN = "journal_unknown", "danger", f"{_NEWER}, or remove the journal if it is foreign"


class Suspect(msgspec.Struct, frozen=True):
    """What one reading gives; -1 and empty where a field does not apply.

    Attributes:
        topic, revision, partition: the partition concerned, or the first of several.
        offset: the first record concerned.
        expected: the size or the epoch that the second reading compares with.
        needed: what the journal needs of an L0 object that was read.
    """

    kind: Kind
    journal: int = -1
    topic: str = ""
    revision: int = -1
    partition: int = -1
    key: str = ""
    offset: int = -1
    expected: int = -1
    detail: str = ""
    needed: UnreconciledObject | None = None

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
    return Finding(
        s.kind.value,
        s.kind.severity,
        s.journal if s.journal >= 0 else None,
        s.topic or None,
        s.partition if s.partition >= 0 else None,
        s.key,
        s.offset if s.offset >= 0 else None,
        s.detail,
        s.kind.next_step,
    )


class Checked(msgspec.Struct):
    """How much was read. `extents` are unreconciled; `bytes_read` counts blocks and L1 objects read for their contents.

    `holes` are ranges of records that were given up.
    """

    journals: int = 0
    partitions: int = 0
    extents: int = 0
    l0_objects: int = 0
    l1_objects: int = 0
    index_objects: int = 0
    bytes_read: int = 0
    holes: int = 0


class VerifyResult(msgspec.Struct, Outcome):
    """What a run found, and what it saw that is as it should be.

    `findings` are at most as many as were requested, `total` and `counts` (by kind) count all of them. Of the L0 objects
    that no journal needs, `waiting_objects` are above M and `eligible_objects` at or below it. `unparsable_keys` are keys
    in the data folders of L0 and L1 that are not l0gc's. `young_l1_objects` are named by no journal, or not yet.
    """

    cluster_epoch: int
    watermark: int
    deep: bool
    findings: list[Finding] = []
    total: int = 0
    counts: dict[str, int] = {}
    checked: Checked = msgspec.field(default_factory=Checked)
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
