"""Why an object is kept or may go, why an epoch is held, and what holds a partition: down to the log entry.

Read from the journals as they are now, which may know more than when M was computed. Changes nothing. Each explanation ends
with the command that moves what is held.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from l0gc.errors import NotFoundError, SafetyError, UsageError
from l0gc.formatting import Outcome
from l0gc.inspect.causes import (
    BARRIER,
    GC_BARRIER,
    HOUSEKEEP,
    NOTHING,
    SWEEP,
    THEIR_COMPUTE,
    free_in,
)
from l0gc.inspect.journals import Journals, read_journals
from l0gc.inspect.laggards import COMPUTE, RECONCILE, Laggards
from l0gc.inspect.status import newest_scan, see_laggards, see_objects
from l0gc.inspect.tables import tables_held
from l0gc.keys import L1_DATA, KeyLayout
from l0gc.storage.objectstore import if_there
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.decisions import tick_is_due
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.holes import how_to_give_up
from l0gc.streamlog.journal.topic import UnreconciledObject
from l0gc.watermark.publication import read_published, watermark_of
from l0gc.watermark.source import IDLE, UNRECONCILED, Holder

_PARTITION: Final = re.compile(r"(.+)/([0-9]{1,7})")
SHOWN: Final = 10
RESTORE: Final = "restore the named object from a version or a backup"


class Explanation(msgspec.Struct, Outcome):
    """`verdict` is for scripts, `explanation` for display; `holders` are the lowest few, `held_by` counts all.

    `laggards` are those whose lag keeps what is explained; None where nobody's does, or that is not known.
    """

    subject: str
    verdict: str
    explanation: list[str]
    next: str
    epoch: int | None = None
    watermark: int = -1
    cluster_epoch: int = -1
    holders: list[Holder] = []
    held_by: int = 0
    broken: list[str] = []
    laggards: Laggards | None = None


class _View:
    """The cluster, read once.

    `epoch` is the cluster's; for another system's log the one published last, -1 if none was.
    """

    def __init__(self, cluster: Handles) -> None:
        self._cluster = cluster
        self.snapshot = cluster.controller.snapshot()
        self.layout = KeyLayout(self.snapshot.key_template, self.snapshot.shards)
        published, _ = read_published(cluster.store, self.snapshot.cluster_id)
        self.watermark = watermark_of(published)
        self.epoch = self.snapshot.epoch
        self.now_ms = cluster.store.now_ms()
        self._age_ms = self.now_ms - self.snapshot.time_ms
        self._interval_ms = int(cluster.epoch_interval_s * 1000)
        self.journals = Journals(self.snapshot)
        if self.snapshot.external_log:
            self.epoch = published.cluster_epoch if published is not None else -1
        else:
            self.journals = read_journals(cluster, self.snapshot, self.watermark)

    def explanation(self, subject: str, epoch: int | None = None) -> Explanation:
        return Explanation(subject, "", [], "", epoch, self.watermark, self.epoch, broken=self.journals.errors)

    def moves(self, holders: Sequence[Holder], epoch: int, journal: int | None = None) -> str:
        """What makes these partitions leave `epoch` behind; or that there is nothing to do, and when all of them have.

        Args:
            journal: the only one that matters.
        """
        kinds = {h.kind for h in holders}
        if not kinds <= {UNRECONCILED, IDLE}:
            return RESTORE
        if UNRECONCILED in kinds:
            return RECONCILE
        due = tick_is_due(self._age_ms, self._interval_ms)
        ticks = self.journals.ticks_until_free(epoch, due=due, journal=journal)
        if not ticks:
            return f"{HOUSEKEEP} && {COMPUTE}"
        when = free_in(ticks, self._age_ms, self._interval_ms)
        return f"{NOTHING} to do: epoch {epoch} is free {when}, or now with {GC_BARRIER}"

    def laggards(self, epoch: int, holders: Sequence[Holder]) -> Laggards | None:
        """Those whose lag keeps the objects of an epoch; `holders` are the lowest of those that may need it."""
        seen = see_objects(self._cluster, self.journals, holders)
        read_scan = partial(newest_scan, self._cluster, self.snapshot.cluster_id)
        found = see_laggards(read_scan, self.journals, self.now_ms, giving_up=seen.giving_up)
        return found if found is not None and found.hold(epoch) else None

    def naming(self, key: str) -> list[tuple[int, Topic, UnreconciledObject]]:
        """Which journals refer to the L0 object `key`, for which topics that there are, and the extents."""
        return [
            (r.journal, topic, o)
            for r in self.journals.readings
            if r.state is not None
            for topic, _ in self.snapshot.topics_of(r.journal)
            if topic.revision in r.state.topics
            for o in r.state.topics[topic.revision].objects
            if o.key == key
        ]


def explain_key(cluster: Handles, key: str) -> Explanation:
    """Why the object `key` (relative to the URL) is kept, or that it may go."""
    view = _View(cluster)
    parsed = view.layout.parse(key)
    there = bool(key) and not key.endswith("/") and if_there(cluster.store.head, key) is not None
    if parsed is None:
        if not there:
            raise NotFoundError(
                f"no object {key!r} exists, and that is not an L0 key of this cluster ({view.layout.template})"
            )
        e = view.explanation(key)
        e.verdict, e.next = "foreign", "nothing: remove it by hand if nobody needs it"
        what = "It is not an L0 key of this cluster, so no sweep ever deletes it."
        if key.startswith(("l0gc/", "level_one/")):
            what = "It is not an L0 object: no sweep ever lists it."
        e.explanation.append(what)
        if key.startswith(L1_DATA):
            e.next = "nothing: a vacuum deletes it once no journal names it and no pin keeps it"
            kept = tables_held(view.snapshot, view.journals.dropped_bytes, view.now_ms)
            e.explanation += [f"Table {t.sentence}." for t in kept if t.overdue or t.l1_bytes]
            e.next = next((t.remedy for t in kept if t.overdue), e.next)
        return e
    e = view.explanation(key, parsed.epoch)
    if not there:
        e.explanation.append("There is no such object: it was deleted, or never written.")
    naming = view.naming(key)
    if naming and not there:  # perhaps reconciled since the journals were read, and then swept
        view.journals = read_journals(cluster, view.snapshot, view.watermark)
        naming = view.naming(key)
    if naming:
        _needed(e, view, naming, there=there)
        return e
    if not there:
        e.verdict, e.next = "gone", "nothing"
        return e
    _of_epoch(e, view, parsed.epoch)
    if e.verdict == "held" and not e.broken and not view.snapshot.external_log:
        e.explanation.insert(0, "No journal refers to it any more; it goes when M reaches its epoch.")
    return e


def _needed(
    e: Explanation, view: _View, naming: Sequence[tuple[int, Topic, UnreconciledObject]], *, there: bool
) -> None:
    e.verdict = "needed" if there else "missing"
    if there:
        e.next = RECONCILE
    else:
        journal, topic, o = naming[0]
        state, row = view.journals.readings[journal].state, o.extents[0]
        assert state is not None
        way = how_to_give_up(state.topic(topic.revision), topic.name, int(row["partition"]), int(row["base"]))
        ways = f"restore it from a version or a backup, or give its records up: {way}"
        e.next = f"{ways}; l0gc verify shows what else is wrong"
    e.held_by = sum(len(o.extents) for _, _, o in naming)
    for journal, topic, o in naming:
        for row in o.extents[: SHOWN - len(e.holders)]:
            partition, base, records = int(row["partition"]), int(row["base"]), int(row["records"])
            e.holders.append(view.journals.holder(topic, partition))
            e.explanation.append(
                f"Partition {topic.name}/{partition} needs it: entry {o.log_offset} of journal {journal} refers to it "
                f"for the records {base} to {base + records - 1}, which are not in L1 yet."
            )
    if e.held_by > len(e.holders):
        e.explanation.append(f"So do {e.held_by - len(e.holders):,} more partitions.")


def explain_epoch(cluster: Handles, epoch: int) -> Explanation:
    """What holds the objects of an epoch."""
    view = _View(cluster)
    e = view.explanation(f"epoch {epoch}", epoch)
    _of_epoch(e, view, epoch)
    return e


def _of_epoch(e: Explanation, view: _View, epoch: int) -> None:
    if epoch > view.epoch and not view.snapshot.external_log:
        e.verdict, e.next = "above the cluster epoch", "see docs/operations.md: the controller log looks old"
        e.explanation.append(
            f"Epoch {epoch} is above the cluster epoch {view.epoch}: nothing is published or deleted while such an object "
            "is there."
        )
        return
    if epoch <= view.watermark:
        e.verdict, e.next = "eligible", SWEEP
        e.explanation.append(f"M = {view.watermark} is published, so the next sweep deletes what is at epoch {epoch}.")
        return
    if view.snapshot.external_log:
        e.verdict, e.next = "held", THEIR_COMPUTE
        e.explanation.append("The log is another system's: only its reports say who still needs it.")
        return
    e.holders, e.held_by = view.journals.lowest(epoch)[:SHOWN], view.journals.below(epoch)
    pins = view.journals.pinned(epoch)
    if e.broken:
        e.verdict, e.next = "held", RESTORE
    elif e.holders:
        e.verdict, e.next = "held", view.moves(e.holders, epoch)
    elif pins:
        e.verdict, e.next = "held", f"wait until the pin ends, or delete it with l0gc pin delete, then {COMPUTE}"
    else:
        e.verdict, e.next = "releasable", COMPUTE
        e.explanation.append(
            f"No partition needs epoch {epoch} any more; M = {view.watermark} was computed before that."
        )
    e.explanation += [_why(h) for h in e.holders]
    e.explanation += [f"M stays at {h.gc_epoch} because of {h.reason}." for h in pins[:SHOWN]]
    if e.held_by > len(e.holders):
        e.explanation.append(f"So do {e.held_by - len(e.holders):,} more partitions.")
    if not e.broken and (lag := view.laggards(epoch, e.holders)) is not None:
        e.laggards = lag
        e.explanation.append(lag.sentence)


def _why(h: Holder) -> str:
    where = f"Partition {h.name} may still need epoch {h.gc_epoch + 1}: " if h.name else ""
    return f"{where}{h.reason}{f'; {h.key} holds the first of them' if h.key else ''}."


def explain_partition(cluster: Handles, name: str) -> Explanation:
    """What a partition (`TOPIC/NUMBER`) holds.

    Raises:
        UsageError: the name is of another form.
        NotFoundError: there is no such topic or partition.
        SafetyError: partitions are another system's.
        CorruptObjectError: its journal cannot be read.
    """
    m = _PARTITION.fullmatch(name)
    if m is None:
        raise UsageError(f"{name!r} is not a partition; write TOPIC/NUMBER, e.g. events/0")
    view = _View(cluster)
    if view.snapshot.external_log:
        raise SafetyError(
            f"partition {name} is another system's, whose log l0gc cannot read: its reports say what it holds"
        )
    topic, partition = view.snapshot.topic(m[1]), int(m[2])
    if partition >= topic.partitions:
        raise NotFoundError(f"topic {m[1]!r} has the partitions 0 to {topic.partitions - 1}, not {partition}")
    h = view.journals.holder(topic, partition)
    e = view.explanation(f"partition {h.name}", h.gc_epoch)
    e.holders, e.held_by = [h], 1
    e.verdict, e.next = "holds", view.moves([h], h.gc_epoch + 1, topic.journal_of(partition))
    e.explanation.append(_why(h))
    lowest = view.journals.watermark.watermark
    if h.gc_epoch > lowest:
        e.verdict = "does not hold M"
        e.explanation.append(f"It does not hold M back: others are at {lowest}, it is at {h.gc_epoch}.")
    elif h.kind == IDLE:
        e.explanation.append(f"To close the window of its journal at once, when uploads are quiet: {BARRIER}.")
    return e
