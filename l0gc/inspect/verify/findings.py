"""Define the kinds of faults in a bucket, check journals for them, and give the next step (pure).

The first reading of a bucket in use gives suspects. A suspect becomes a finding only if a second reading, in an order
that leaves no other explanation, confirms it (`run.py`). This module defines the severity and the next step of every
kind of finding.

A journal is compared with M and with the controller's topics. All decisions work on whole columns, since a journal may
have a million extents. The decoder of checkpoints decides whether a state is consistent, without a gap from a
partition's first record to its last (`replay.py` calls it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final, Self

import msgspec
import numpy as np

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import CorruptObjectError, L0gcError, PartialFailureError, SafetyError, UnansweredObjectError, fault_of
from l0gc.formatting import Outcome, count, size, span
from l0gc.inspect.causes import PUT_BACK
from l0gc.inspect.overview import ahead_text, misplacement, set_back_text, unclosed_text
from l0gc.keys import KeyLayout, L1Key, PartitionId, journal_log
from l0gc.storage.entry import Place
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.epoch_source import unknown_topic
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.summary import unit_name
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject
from l0gc.watermark.publication import PublishedWatermark, watermark_of
from l0gc.watermark.source import RESTORE_CONTROLLER, UnitSummary

LIVE: Final = "live"
DELETED: Final = "deleted"
LATER: Final = "later"
"""The owner of an object whose topic was created after the controller was read."""
FOREIGN: Final = "foreign"

_RESTORE: Final = "restore it from a version or a backup"
_SEARCH: Final = f"{_RESTORE}; if no run deleted it (l0gc runs find KEY), find out who else can delete there"
_RESTORE_LOG: Final = "restore this log's entries and checkpoints from a version or a backup"
_STOP: Final = "run l0gc pause --why TEXT and stop what computes M"
_LIFT: Final = f"{_STOP}, then run l0gc reconcile, which reads it while it is there"
_WHO: Final = f"{_STOP} until you know who wrote that watermark, or which log was restored from a backup"
_UNTIL: Final = "run l0gc pause --why TEXT until you know"
_NEWER: Final = "restore the newest controller log"
_AHEAD: Final = f"stop uploads and housekeeping; {RESTORE_CONTROLLER}"


SEVERITIES: Final = ("loss", "danger", "waste", "unknown")


class Kind(StrEnum):
    """A kind of finding: its name, its severity, and its next step.

    The severity is `loss` (data cannot be read), `danger` (data may be lost), `waste` or `unknown` (not checked).
    """

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
    WATERMARK_UNREADABLE = (
        "watermark_unreadable",
        "danger",
        f"{_RESTORE}; without either, run l0gc compute-watermark --accept-lost",
    )
    EPOCH_AHEAD = "epoch_ahead", "danger", _AHEAD
    L1_MISSING = "l1_missing", "loss", _SEARCH
    L1_SIZE = "l1_size", "loss", _RESTORE
    L1_CORRUPT = "l1_corrupt", "loss", _RESTORE
    L1_ORPHAN = "l1_orphan", "waste", "run l0gc vacuum, which deletes orphans that are older than its --orphan-age"
    LOG_UNREADABLE = "log_unreadable", "loss", "restore the named object from a version or a backup; M waits until then"
    UNANSWERED = "unanswered", "unknown", "run l0gc verify again once the store serves it"
    LOG_GAP = "log_gap", "danger", f"{_STOP}; {_RESTORE_LOG}"
    JOURNAL_SET_BACK = "journal_set_back", "danger", f"{_STOP}; {PUT_BACK}"
    STATE_BROKEN = "state_broken", "danger", f"{_STOP}; {_RESTORE_LOG}"
    CHECKPOINT_DIFFERS = "checkpoint_differs", "danger", f"{_STOP}; {_RESTORE_LOG}, and keep both for a bug report"
    BOUNDARY_BROKEN = "boundary_broken", "danger", f"{_STOP}; {_RESTORE_LOG}, boundary.json included"
    TOPIC_MISPLACED = "topic_misplaced", "danger", f"{_STOP}; {_NEWER}, or the journal that the controller names"
    TOPIC_UNKNOWN = "topic_unknown", "danger", f"stop uploads; {_NEWER}: it looks restored from an old backup"
    TOPIC_UNCLOSED = "topic_unclosed", "waste", "run l0gc housekeep, which closes it, or reports why it cannot"
    JOURNAL_UNKNOWN = "journal_unknown", "danger", RESTORE_CONTROLLER
    SHADOW_NEEDED = "shadow_needed", "danger", f"stop: {_UNTIL} why it was needed after M had passed it"
    SHADOW_READ = "shadow_read", "danger", f"stop: {_UNTIL} why; a copy of the whole bucket reads it without need"


class Suspect(msgspec.Struct, frozen=True):
    """A fault that one reading found. Fields that do not apply are -1 or empty.

    Attributes:
        topic, revision, partition: the partition concerned, or the first of several.
        offset: the first record concerned.
        expected: the size or the epoch for comparison in the second reading.
        needed: the extents that the journal needs in an L0 object whose contents were read.
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
    def fault(self) -> tuple[str, int, str, int]:
        """Return the fields that identify a fault in both readings; numbers in `detail` may have changed."""
        return self.kind, self.revision, self.key, self.offset


def unread_log(journal: int, error: CorruptObjectError) -> Suspect:
    """Return the suspect for a journal that cannot be read."""
    kind = Kind.UNANSWERED if isinstance(error, UnansweredObjectError) else Kind.LOG_UNREADABLE
    return Suspect(kind, journal, key=journal_log(journal), detail=fault_of(error))


class Finding(msgspec.Struct, frozen=True):
    """A confirmed fault. `offset` is the first record concerned. Fields that do not apply are None."""

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
        """Return the finding as one line."""
        where = ""
        if self.topic is not None:
            where = f" {self.topic}" if self.partition is None else f" {self.topic}/{self.partition}"
        record = f" at record {self.offset}" if self.offset is not None else ""
        fault = self.detail if self.key in self.detail else f"{self.key}: {self.detail}"
        text = f"{self.kind}{where}{record}: {fault}; {self.next_step}"
        return " ".join(text.split())


def finding_of(s: Suspect) -> Finding:
    """Return the finding for a confirmed suspect."""
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


class ReadCounts(msgspec.Struct):
    """The amounts that were read. `extents` are unreconciled; `bytes_read` counts the blocks and L1 objects whose
    contents were read.

    `holes` are ranges of records that were given up.
    """

    journals: int = 0
    partitions: int = 0
    extents: int = 0
    l0_objects: int = 0
    l1_objects: int = 0
    bytes_read: int = 0
    holes: int = 0


class ShadowProof(msgspec.Struct):
    """The objects that shadow runs would have deleted, and the data that was read to check them. `sentence` sums up the
    result.

    Since `since_ms`, `runs` have recorded `objects` with `bytes` in total. The journals were read at `until_ms`. Since
    the first of these runs, they had `entries`, which were read, and `entries_gone`, which had been truncated.
    `log_lines` of access logs, with requests from `logs_from_ms` to `logs_until_ms`, were read; these fields are None
    without access logs.
    """

    runs: int
    since_ms: int
    until_ms: int
    objects: int = 0
    bytes: int = 0
    entries: int = 0
    entries_gone: int = 0
    log_lines: int | None = None
    logs_from_ms: int = -1
    logs_until_ms: int = -1
    sentence: str = ""

    def sum_up(self, result: str) -> None:
        """Write the sentence, which ends with `result`."""
        objects, since = f"{count(self.objects, 'object')} ({size(self.bytes)})", span(self.until_ms - self.since_ms)
        self.sentence = f"{objects} would have gone in {since}, by {count(self.runs, 'shadow run')}; {result}"


class VerifyResult(msgspec.Struct, Outcome):
    """The findings of a run, and counts of what is correct.

    Attributes:
        findings: Up to 1,000 findings, each with `kind`, `severity`, `journal`, `topic`, `partition`, `key`, `offset`
            (the first record concerned), `detail` and `next_step`. A field that does not apply is null.
        total: The number of all findings.
        counts: The number of findings of each kind.
        severities: The number of findings of each severity: `loss`, `danger`, `waste` and `unknown`.
        deep: Whether contents were read.
        watermark: The published M; -1 if it does not exist or cannot be read.
        cluster_epoch: The cluster epoch at the start.
        checked: The amounts that were read: `journals`, `partitions`, unreconciled `extents`, `l0_objects`,
            `l1_objects`, `bytes_read` of their contents, and `holes`, whose records were given up.
        waiting_objects: The number of L0 objects above M to which no journal refers. This is normal: they were
            reconciled or never committed, and wait for M.
        waiting_bytes: The size of these objects.
        eligible_objects: The number of L0 objects at or below M to which no journal refers. The next sweep deletes
            them.
        eligible_bytes: The size of these objects.
        young_l1_objects: The number of L1 objects that no journal lists and that are younger than `--min-age` or belong
            to a journal with another finding.
        deleted_topic_objects: The number of L1 objects of deleted topics; [vacuum](#l0gc-vacuum) deletes them.
        unparsable_keys: The number of keys in the L0 folder and in the L1 folders of topics that l0gc did not write.
            Such objects are never changed.
        shadow: With `--shadow`, the result of that check: `runs`, and the `objects` and `bytes` that they have recorded
            since `since_ms`; the `entries` since then that were read by `until_ms`, and `entries_gone`, which had been
            truncated; for access logs, `log_lines`, `logs_from_ms` and `logs_until_ms`; and a `sentence`. Null without
            this option.
        engine: `local` or `spark`.
        engine_reason: Why this engine was chosen.
        seconds: How long the check took, without the start of Spark.
    """

    cluster_epoch: int
    watermark: int
    deep: bool
    findings: list[Finding] = []
    total: int = 0
    counts: dict[str, int] = {}
    checked: ReadCounts = msgspec.field(default_factory=ReadCounts)
    waiting_objects: int = 0
    waiting_bytes: int = 0
    eligible_objects: int = 0
    eligible_bytes: int = 0
    severities: dict[str, int] = {}
    unparsable_keys: int = 0
    young_l1_objects: int = 0
    deleted_topic_objects: int = 0
    shadow: ShadowProof | None = None
    engine: str = "local"
    engine_reason: str = ""
    seconds: float = 0.0

    @property
    def problem(self) -> L0gcError | None:
        """Return the command's error, which has the number of findings. Objects that the store does not serve at
        present count as unchecked.
        """
        unchecked = self.counts.get(Kind.UNANSWERED, 0)
        if self.total > unchecked:
            return SafetyError(f"{count(self.total, 'finding')}; nothing was changed")
        if not unchecked:
            return None
        return PartialFailureError(
            f"{count(unchecked, 'object or log is', 'objects and logs are')} not checked, since the store does not serve "
            f"{'it' if unchecked == 1 else 'them'} at present: run l0gc verify again"
        )


# -- faults of a journal's state ---------------------------------------------------------------------------------------

DOUBTFUL: Final = frozenset(
    {
        Kind.LOG_UNREADABLE,
        Kind.LOG_GAP,
        Kind.JOURNAL_SET_BACK,
        Kind.CHECKPOINT_DIFFERS,
        Kind.BOUNDARY_BROKEN,
        Kind.STATE_BROKEN,
        Kind.WATERMARK_AHEAD,
        Kind.LIVE_BELOW_WATERMARK,
        Kind.TOPIC_MISPLACED,
        Kind.TOPIC_UNKNOWN,
    }
)
"""The findings after which a journal may have lost entries, so that objects that it does not list are not reported as
orphans.
"""


@dataclass(frozen=True)
class ClusterSnapshot:
    """The published M, and the controller's snapshot taken after it.

    L1 objects changed after `young_after_ms`, by the store's clock, may still get listed by a journal. The topics
    `to_be_closed` were deleted so long ago that each of their journals should have closed them.
    """

    state: ControllerState
    published: PublishedWatermark | None
    young_after_ms: int
    to_be_closed: Sequence[Topic] = ()

    @property
    def watermark(self) -> int:
        return watermark_of(self.published)

    @cached_property
    def layout(self) -> KeyLayout:
        return KeyLayout(self.state.key_template, self.state.shards)

    @cached_property
    def live(self) -> dict[int, Topic]:
        """Return the topics that exist, by their revisions."""
        return {t.revision: t for t in self.state.topics.values()}

    def owner(self, key: L1Key | None) -> tuple[str, int]:
        """Return the owner of an L1 object, and the journal that should list it; `FOREIGN` if no reconciler of this
        cluster can have written it.
        """
        if key is None:
            return FOREIGN, -1
        p = key.id
        kind = LIVE
        topic = self.live.get(p.revision)
        if topic is None:
            kind, topic = DELETED, next((d.topic for d in self.state.deleted if d.topic.revision == p.revision), None)
        if topic is None:
            return (LATER if p.revision > self.state.epoch else FOREIGN), -1
        if topic.name != p.topic or (kind == LIVE and p.partition >= topic.partitions):
            return FOREIGN, -1
        if key.journal >= 0 and key.journal not in topic.journals:
            return FOREIGN, -1
        journal = topic.journal_of(p.partition) if key.journal < 0 else key.journal
        return kind, journal if kind == LIVE else -1


@dataclass(frozen=True, slots=True)
class ReplayedJournal:
    """A journal according to its log, which ended at `end`.

    `faults` lists the faults of the log itself, as (kind, detail). For `rewritten`, see `UnitSummary.rewritten`.
    """

    journal: int
    state: JournalState
    end: Place
    faults: list[tuple[Kind, str]]
    rewritten: bool = False

    @property
    def folder(self) -> str:
        return journal_log(self.journal)


def placed(copy: ReplayedJournal, snapshot: ClusterSnapshot) -> list[tuple[Topic, TopicState]]:
    """Return the live topics that the journal has and should have. The bucket must contain the objects to which they
    refer.
    """
    topics = ((snapshot.live.get(state.revision), state) for state in copy.state.topics.values())
    return [
        (topic, state)
        for topic, state in topics
        if topic is not None and topic.topic_id == state.topic_id and not misplacement(copy.journal, topic, state)
    ]


def check_journal(copy: ReplayedJournal, snapshot: ClusterSnapshot) -> list[Suspect]:
    """Return all faults of a journal that the log alone shows."""

    def suspect(
        kind: Kind, detail: str, topic: Topic | None = None, partition: int = -1, expected: int = -1
    ) -> Suspect:
        name, revision = ("", -1) if topic is None else (topic.name, topic.revision)
        return Suspect(kind, copy.journal, name, revision, partition, copy.folder, expected=expected, detail=detail)

    suspects = [suspect(kind, text) for kind, text in copy.faults]
    if (epoch := copy.state.max_applied_epoch) > snapshot.state.epoch:
        text = ahead_text(f"its window {copy.state.window}", epoch, snapshot.state.epoch)
        suspects.append(suspect(Kind.EPOCH_AHEAD, text, expected=epoch))
    log = UnitSummary(
        unit=unit_name(copy.journal),
        gc_epochs={},
        lowest=[],
        end=(copy.state.set_backs, copy.end),
        rewritten=copy.rewritten,
    )
    if text := set_back_text(snapshot.published, log):  # the check of M below finds the epochs that its partitions need
        suspects.append(suspect(Kind.JOURNAL_SET_BACK, text))
    suspects += _check_placement(copy, snapshot)
    for topic, state in placed(copy, snapshot):
        if text := _object_fault(copy, state):
            suspects.append(suspect(Kind.STATE_BROKEN, text, topic))
        suspects += _check_epochs(copy.journal, topic, state, snapshot)
    live_below = {s.revision for s in suspects if s.kind == Kind.LIVE_BELOW_WATERMARK}
    for topic in snapshot.to_be_closed:
        if copy.journal in topic.journals and not copy.state.closed(topic.revision):
            suspects.append(suspect(Kind.TOPIC_UNCLOSED, unclosed_text(topic, copy.journal), topic))
    for topic, r in snapshot.state.topics_of(copy.journal) if snapshot.watermark != NO_WATERMARK else ():
        if topic.revision not in live_below and not copy.state.closed(topic.revision):
            (low,) = copy.state.lowest(topic.revision, r.first, r.count, 1)
            if low.gc_epoch < snapshot.watermark:  # checks M even if the topic has no unreconciled records
                text = f"M = {snapshot.watermark} is published, and the journal allows {low.gc_epoch}"
                suspects.append(suspect(Kind.WATERMARK_AHEAD, text, topic, low.partition))
    return suspects


def _check_placement(copy: ReplayedJournal, snapshot: ClusterSnapshot) -> Iterator[Suspect]:
    """Yield suspects for topics that a journal should not have, and for live topics that it has closed."""
    for t in copy.state.topics.values():
        if text := unknown_topic(snapshot.state, "it", [(t.revision, t.topic_id)]):
            yield Suspect(Kind.TOPIC_UNKNOWN, copy.journal, revision=t.revision, key=copy.folder, detail=text)
        elif (topic := snapshot.live.get(t.revision)) is not None and (text := misplacement(copy.journal, topic, t)):
            where = (copy.journal, topic.name, topic.revision)
            yield Suspect(Kind.TOPIC_MISPLACED, *where, key=copy.folder, detail=f"it {text}")
    for topic, _ in snapshot.state.topics_of(copy.journal):
        if copy.state.closed(topic.revision):
            text = f"topic {topic.name!r} has ended there, though it exists"
            yield Suspect(Kind.STATE_BROKEN, copy.journal, topic.name, topic.revision, key=copy.folder, detail=text)


def _object_fault(copy: ReplayedJournal, t: TopicState) -> str:
    """Return why the first impossible object is impossible; empty if all objects are possible."""
    before = -1
    for o in t.objects:
        if not t.revision <= o.epoch <= copy.state.max_applied_epoch:
            return (
                f"object {o.key} at epoch {o.epoch} does not lie between its topic's revision {t.revision} and the "
                f"window {copy.state.window}"
            )
        if not before <= o.log_offset <= copy.end.offset:
            return f"object {o.key} landed at offset {o.log_offset}, not after {before} and up to {copy.end.offset}"
        before = o.log_offset
    return ""


def _check_epochs(journal: int, topic: Topic, state: TopicState, snapshot: ClusterSnapshot) -> Iterator[Suspect]:
    objects = state.objects
    for o, in_key in zip(objects, snapshot.layout.epochs([o.key for o in objects]), strict=True):
        lowest = o.epoch if in_key < 0 else min(o.epoch, in_key)
        if in_key == o.epoch and lowest > snapshot.watermark:
            continue
        if in_key != o.epoch:
            said = "is not an L0 key" if in_key < 0 else f"has epoch {in_key}"
            text = f"the journal has it at epoch {o.epoch}, and its key {said}"
            yield of_object(Kind.L0_WRONG_EPOCH, journal, topic, o, text)
        if lowest <= snapshot.watermark:
            text = f"{described(o)}, at epoch {lowest}, and M = {snapshot.watermark} is published"
            yield of_object(Kind.LIVE_BELOW_WATERMARK, journal, topic, o, text)


def of_object(kind: Kind, journal: int, topic: Topic, o: UnreconciledObject, detail: str = "") -> Suspect:
    """Return a suspect about an L0 object, with the first extent that the journal still needs."""
    partition, base, end = first_needed(o)
    return Suspect(kind, journal, topic.name, topic.revision, partition, o.key, base, end, detail)


def first_needed(o: UnreconciledObject) -> tuple[int, int, int]:
    """Return the partition and the record of the first extent that the journal still needs, and `needed_end`."""
    return int(o.extents["partition"][0]), int(o.extents["base"][0]), needed_end(o)


def needed_end(o: UnreconciledObject) -> int:
    """Return the end of the last block of an object that the journal still needs."""
    last = o.block(int(o.extents["block"].max()))
    return last.start + last.length


def described(o: UnreconciledObject) -> str:
    """Return a text about how much of an object is unreconciled."""
    records, n = int(o.extents["records"].sum(dtype=np.int64)), len(o.extents)
    return f"{records:,} unreconciled record{'' if records == 1 else 's'} of {n:,} partition{'' if n == 1 else 's'}"


def needs(state: JournalState, revision: int, keys: set[str]) -> dict[str, list[UnreconciledObject]]:
    """Return the given objects that the journal still needs for a topic. An object can contain records of several
    topics.
    """
    topic, objects = state.topics.get(revision), dict[str, list[UnreconciledObject]]()
    for o in () if topic is None else topic.objects:
        if o.key in keys:
            objects.setdefault(o.key, []).append(o)
    return objects


def orphan_text(base: int, last: int, state: JournalState, p: PartitionId) -> str:
    """Return a text about an L1 object that no journal lists."""
    if p.partition < 0:
        return "no journal names it; it was to hold records of many partitions"
    reconciled = state.topic(p.revision).view(p.partition).last_reconciled_offset
    if last <= reconciled:
        return f"no journal names it; its records {base} to {last} are in other L1 objects"
    return f"no journal names it; it holds records {base} to {last}, and {reconciled} is the last reconciled"
