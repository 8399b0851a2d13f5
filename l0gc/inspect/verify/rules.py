"""What a look at a partition, at a key or at a report must not show (pure).

The rules hold at every moment of a healthy bucket if M is read before the logs, and the cluster epoch behind them: M(p)
of a live partition is never below a published M, and no log is ahead of the controller.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from l0gc.errors import ExternalLogError
from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.findings import Suspect, suspect
from l0gc.keys import JUMP, KeyLayout, PartitionId, level_one, partition_log
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.journal.entries import L1File, Unreconciled
from l0gc.streamlog.journal.state import PartitionState
from l0gc.watermark.compute import PartitionReport

LEVEL_ONE: Final = "level_one/data/"
_L1_KEY: Final = re.compile(
    LEVEL_ONE + r"(?P<topic>[A-Za-z0-9._-]+)-(?P<revision>[0-9]+)/(?P<partition>[0-9]{5,})/"
    r"(?P<base>[0-9]{20})-(?P<last>[0-9]{20})-(?P<name>[0-9a-f-]{36})\.parquet\Z"
)

LIVE: Final = "live"
DELETED: Final = "deleted"
FOREIGN: Final = "foreign"


class Basis(msgspec.Struct, frozen=True):
    """What everything is compared with: M, and the controller's snapshot taken behind it.

    `deleted` holds name and revision of deleted topics. L1 objects changed after `young_after_ms`, by the store's clock,
    may still be named by a log.
    """

    cluster_id: str
    cluster_epoch: int
    key_template: str
    shards: int
    topics: list[Topic]
    deleted: list[tuple[str, int]]
    watermark: int
    young_after_ms: int

    @property
    def layout(self) -> KeyLayout:
        return KeyLayout(self.key_template, self.shards)

    def partitions(self) -> list[PartitionId]:
        """Every partition, in the order of their folders."""
        return sorted((p for t in self.topics for p in t.ids()), key=lambda p: p.path)


def check_log_is_ours(state: ControllerState) -> None:
    """Raises `ExternalLogError` where another system keeps the log: nothing in the bucket could be compared with it."""
    if state.external_log:
        raise ExternalLogError(
            "this cluster's log is another system's, which l0gc cannot read, so there is nothing to compare the bucket "
            "with: verify it with that system's own means"
        )


def basis_of(state: ControllerState, watermark: int, young_after_ms: int) -> Basis:
    """The basis for a snapshot of the controller."""
    deleted = [(d.topic.name, d.topic.revision) for d in state.deleted]
    topics = list(state.topics.values())
    return Basis(
        state.cluster_id, state.epoch, state.key_template, state.shards, topics, deleted, watermark, young_after_ms
    )


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """A partition as its log says at `log_offset`; `beyond` if that log ends before its newest checkpoint."""

    id: PartitionId
    state: PartitionState
    log_offset: int
    beyond: bool = False


class ReportTop(msgspec.Struct, frozen=True):
    """The most that any report says of a partition. `key` is the report with the highest gc epoch."""

    topic: str
    revision: int
    partition: int
    gc_epoch: int
    max_applied_epoch: int
    next_offset: int
    last_reconciled_offset: int
    log_offset: int
    key: str

    @property
    def id(self) -> PartitionId:
        return PartitionId(self.topic, self.revision, self.partition)


# -- a partition ----------------------------------------------------------------------------------------------------------


def check_partition(look: PartitionLook, layout: KeyLayout, watermark: int, cluster_epoch: int) -> list[Suspect]:
    """All that is wrong with a live partition by its log alone.

    Args:
        watermark: the M that was published before the log was read.
        cluster_epoch: of a snapshot in which the topic exists.
    """
    p, folder = look.id, partition_log(look.id)
    if look.state.closed:
        return [suspect(kinds.STATE_BROKEN, p, folder, -1, "it has ended, though its topic exists")]
    found = [suspect(kinds.STATE_BROKEN, p, folder, -1, text) for text in _state_faults(look)]
    if look.beyond:
        found.append(
            suspect(kinds.CHECKPOINT_AHEAD, p, folder, -1, f"the log ends before checkpoint {look.log_offset}")
        )
    if look.state.max_applied_epoch > cluster_epoch:
        text = f"the window {look.state.window} is above the cluster epoch {cluster_epoch}"
        found.append(suspect(kinds.EPOCH_AHEAD, p, folder, -1, text, str(look.state.max_applied_epoch)))
    found += [suspect(kinds.L1_RANGE, p, key, at, text) for key, at, text in _l1_faults(look)]
    found += _epoch_suspects(look, layout, watermark)
    return found


def _state_faults(look: PartitionLook) -> Iterator[str]:
    s = look.state
    if not s.revision <= s.min_epoch_lower_bound <= s.previous_applied_epoch <= s.max_applied_epoch:
        yield (
            f"the bound {s.min_epoch_lower_bound} does not lie between revision {s.revision} and the window {s.window}"
        )
    lowest = s.lowest_unreconciled_epoch
    if lowest is not None and lowest < s.min_epoch_lower_bound:
        yield f"the bound {s.min_epoch_lower_bound} is above epoch {lowest} of an unreconciled placeholder"
    if any(u.epoch > s.max_applied_epoch for u in s.placeholders):
        yield f"a placeholder is above the window {s.window}"
    at, log_at = s.last_reconciled_offset + 1, s.last_reconciled_log_offset
    for u in s.placeholders:
        if (
            u.placeholder.base_offset != at
            or u.placeholder.records < 1
            or not log_at <= u.log_offset <= look.log_offset
        ):
            yield f"the placeholder of record {u.placeholder.base_offset} does not continue at record {at}"
            return
        at, log_at = u.placeholder.last_offset + 1, u.log_offset
    if at != s.next_offset:
        yield f"the placeholders end at record {at - 1}, though {s.next_offset} is next"


def _l1_faults(look: PartitionLook) -> Iterator[tuple[str, int, str]]:
    at = 0
    for f in look.state.l1:
        if f.base_offset != at or f.last_offset < f.base_offset:
            what = "overlaps" if f.base_offset < at else "leaves a gap behind"
            yield f.key, at, f"it holds records {f.base_offset} to {f.last_offset} and {what} record {at - 1}"
        if not _is_named(look.id, f):
            yield f.key, f.base_offset, f"its name is not that of records {f.base_offset} to {f.last_offset} here"
        at = f.last_offset + 1
    if at != look.state.last_reconciled_offset + 1:
        last = look.state.last_reconciled_offset
        yield partition_log(look.id), at, f"the L1 objects end at record {at - 1}, though {last} is reconciled"


def _is_named(p: PartitionId, f: L1File) -> bool:
    m = _L1_KEY.match(f.key)
    return m is not None and f.key == level_one(p, f.base_offset, f.last_offset, m["name"])


def _epoch_suspects(look: PartitionLook, layout: KeyLayout, watermark: int) -> Iterator[Suspect]:
    live_below = False
    for u in look.state.placeholders:
        p, ref = u.placeholder, msgspec.json.encode(u).decode()
        parsed = layout.parse(p.key)
        if parsed is None or parsed.epoch != u.epoch:
            said = "is no L0 key" if parsed is None else f"says epoch {parsed.epoch}"
            text = f"the log has it at epoch {u.epoch}, and its key {said}"
            yield suspect(kinds.L0_WRONG_EPOCH, look.id, p.key, p.base_offset, text, ref)
        epoch = u.epoch if parsed is None else min(u.epoch, parsed.epoch)
        if epoch <= watermark:
            live_below = True
            text = f"{p.records} unreconciled records at epoch {epoch}, and M = {watermark} is published"
            yield suspect(kinds.LIVE_BELOW_WATERMARK, look.id, p.key, p.base_offset, text, ref)
    if look.state.gc_epoch < watermark and not live_below:
        text = f"M = {watermark} is published, and the log allows {look.state.gc_epoch}"
        yield suspect(kinds.WATERMARK_AHEAD, look.id, partition_log(look.id), -1, text)


# -- reports --------------------------------------------------------------------------------------------------------------


def report_fault(report: PartitionReport, basis: Basis, topics: Topics) -> str:
    """What is wrong with a report, seen beside the controller's snapshot alone; empty for nothing."""
    if report.cluster_id != basis.cluster_id:
        return f"it belongs to cluster {report.cluster_id}, this bucket to {basis.cluster_id}"
    if report.revision <= basis.cluster_epoch and not topics.know(report.topic, report.revision):
        return f"it reports topic {report.topic!r} (revision {report.revision}), which the controller log does not know"
    return ""


def report_says_more(top: ReportTop, look: PartitionLook) -> str:
    """What a report says beyond the log of its partition (hazard 18); empty for nothing.

    Holds if the log was read behind the report: what a report copies never goes down.
    """
    s = look.state
    for name, said, held in (
        ("M(p)", top.gc_epoch, s.gc_epoch),
        ("a window up to", top.max_applied_epoch, s.max_applied_epoch),
        ("next record", top.next_offset, s.next_offset),
        ("last reconciled record", top.last_reconciled_offset, s.last_reconciled_offset),
        ("log offset", top.log_offset, look.log_offset),
    ):
        if said > held:
            return f"it says {name} {said}, and the log has {held}"
    return ""


# -- keys of L1 -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class L1Key:
    """What the key of an L1 object says."""

    id: PartitionId
    base_offset: int
    last_offset: int


def parse_l1(key: str) -> L1Key | None:
    """What `key` says, or None if it is no key of an L1 object."""
    m = _L1_KEY.match(key)
    if m is None:
        return None
    p = PartitionId(m["topic"], int(m["revision"]), int(m["partition"]))
    base, last = int(m["base"]), int(m["last"])
    return L1Key(p, base, last) if level_one(p, base, last, m["name"]) == key else None


def l1_ranges(basis: Basis, parts: int) -> list[tuple[str, str, str]]:
    """Ranges that cover the L1 folders of every topic that there is or was: folder, and what the keys lie above and up to.

    An empty bound is none. A range never spans two topics: stores that list folder by folder put `a-1/` before `a-1.b-2/`,
    others behind it. Within a topic the bounds sort behind one partition's folder and before the next one's, and are no
    folder's name, at which some stores would skip that folder (hazard 12).
    """
    ranges = []
    step = max(1, -(-sum(t.partitions for t in basis.topics) // parts))
    for t in basis.topics:
        folder = f"{LEVEL_ONE}{t.name}-{t.revision}/"
        cuts = ["", *(f"{folder}{p - 1:05}{JUMP}" for p in range(step, t.partitions, step)), ""]
        ranges += [(folder, a, b) for a, b in pairwise(cuts)]
    return ranges + [(f"{LEVEL_ONE}{name}-{revision}/", "", "") for name, revision in basis.deleted]


class Topics:
    """The topics that there are and were."""

    def __init__(self, basis: Basis) -> None:
        self._epoch = basis.cluster_epoch
        self._partitions = {(t.name, t.revision): t.partitions for t in basis.topics}
        self._deleted = set(basis.deleted)

    def know(self, topic: str, revision: int) -> bool:
        """Whether this incarnation of a topic was ever created."""
        return (topic, revision) in self._partitions or (topic, revision) in self._deleted

    def owner(self, key: L1Key | None) -> str:
        """Whose an L1 object is: `LIVE`, `DELETED`, or `FOREIGN` if no reconciler of this cluster can have written it.

        A topic that was created behind the snapshot counts as live: its objects are young.
        """
        if key is None:
            return FOREIGN
        topic = (key.id.topic, key.id.revision)
        if topic in self._partitions:
            return LIVE if key.id.partition < self._partitions[topic] else FOREIGN
        if topic in self._deleted:
            return DELETED
        return LIVE if key.id.revision > self._epoch else FOREIGN


def orphan_text(base: int, last: int, state: PartitionState) -> str:
    """What is known of an L1 object that no log names."""
    if last <= state.last_reconciled_offset:
        return f"no log names it; its records {base} to {last} are in other L1 objects"
    return (
        f"no log names it; it holds records {base} to {last}, and {state.last_reconciled_offset} is the last reconciled"
    )


def names(state: PartitionState, u: Unreconciled) -> bool:
    """Whether the log still needs what `u` refers to."""
    return not state.closed and u in state.placeholders
