"""Explain why an object is kept or may be deleted, why an epoch is held, and what holds a partition, down to the log
entry.

The overview decides; its journals may be newer than the last computation of M. Nothing is changed. Each explanation
ends with the command that releases the held objects. If M is refused, it ends with the command that ends the refusal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from l0gc.collect.history import who_deleted
from l0gc.errors import NotFoundError, RefusedObjectError, SafetyError, UnansweredObjectError, UsageError
from l0gc.formatting import Outcome, count
from l0gc.inspect.causes import (
    BARRIER,
    GC_BARRIER,
    HOUSEKEEP,
    NOTHING,
    THEIR_COMPUTE,
    UNPIN,
    blocking_cause,
    free_in,
    poisoned,
    sweep_as_before,
)
from l0gc.inspect.laggards import COMPUTE, RECONCILE, Laggards
from l0gc.inspect.overview import Journals, Overview
from l0gc.inspect.overview_reader import check_holders, read_journals, read_overview
from l0gc.keys import (
    ATTEMPTS,
    CONTROLLER_LOG,
    FORMAT,
    GC_NOTE,
    JOURNALS,
    PAUSED,
    PUBLISHED_COPY,
    PUBLISHED_WATERMARK,
    RUNS,
    SCANS,
    L1Key,
    parse_level_one,
)
from l0gc.storage.objectstore import ask_of_one, if_there
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import tick_is_due
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal.rows import name_bytes
from l0gc.streamlog.journal.topic import UnreconciledObject
from l0gc.watermark.source import IDLE, UNRECONCILED, Holder

_PARTITION: Final = re.compile(r"(.+)/([0-9]{1,7})")
SHOWN: Final = 10
RESTORE: Final = "restore the named object from a version or a backup"

_VITAL: Final = "no command works without it"
_IN_TIME: Final = "housekeep deletes it once a checkpoint covers it"
_OLD: Final = "l0gc itself ends or replaces it"
_OWN: Final = (
    (FORMAT, "the version of the cluster's layout", _VITAL),
    (PUBLISHED_WATERMARK, "the published M", _VITAL),
    (PUBLISHED_COPY, "a copy of the published M, which shows if that is lost", _OLD),
    (rf"{CONTROLLER_LOG}log/0*(\d+)", "entry {0} of the controller log", _IN_TIME),
    (rf"{JOURNALS}0*(\d+)/log/0*(\d+)", "entry {1} of the log of journal {0}", _IN_TIME),
    (rf"{CONTROLLER_LOG}checkpoint/0*(\d+)", "a checkpoint of the controller log, as of entry {0}", _IN_TIME),
    (rf"{JOURNALS}0*(\d+)/checkpoint/0*(\d+)", "a checkpoint of journal {0}, as of entry {1}", _IN_TIME),
    (rf"{CONTROLLER_LOG}boundary.json", "the boundary below which the controller log was truncated", _VITAL),
    (rf"{JOURNALS}0*(\d+)/boundary.json", "the boundary below which the log of journal {0} was truncated", _VITAL),
    (rf"{SCANS}.+", "a scan snapshot, which compute-watermark wrote", _OLD),
    (
        rf"{RUNS}([^/]+)/.+",
        "a part of the record of run {0}",
        "l0gc undelete needs it until vacuum deletes it",
    ),
    (GC_NOTE, "the note of what gc did last", _OLD),
    (PAUSED, "the pause of all deletion", "l0gc resume ends it"),
    (rf"{ATTEMPTS}.+", "the record of a command's last attempt", _OLD),
    (r"l0gc/probe/.+", "left over from a probe of the store", "l0gc doctor writes such objects and deletes them"),
)
"""The bucket's keys outside of L0 and L1 (docs/reference/format.md): the pattern, its meaning, and how the object is
deleted.
"""


class Explanation(msgspec.Struct, Outcome):
    """The answer to a question: `verdict` is for scripts, `explanation` for display. `holders` has the lowest few;
    `held_by` counts all.

    Attributes:
        subject: The subject of the question.
        verdict: A word for scripts; see below.
        epoch: The epoch of the key, the requested epoch, or the partition's M(p); null for a foreign object.
        watermark: The published M; -1 if none is published.
        cluster_epoch: The cluster epoch at the start; for an external log, the last published epoch, or -1.
        held_by: The number of partitions that hold the object or epoch.
        holders: Up to ten of these partitions, the lowest first, each with `topic`, `partition`, `gc_epoch`, `kind`,
            `reason`, `unreconciled_records` and `key`, as for [status](#l0gc-status).
        explanation: The answer in sentences.
        broken: The journals that cannot be read, which hold everything above the published M.
        laggards: The partitions whose lag keeps the object although no journal refers to it, as in [`l0gc
            status`](#l0gc-status); otherwise null. The last sentence of `explanation` describes them.
        next: The command that releases it, or the next step. If only windows hold it: `nothing to do`, and when it
            becomes free if `l0gc gc` runs at each tick.
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


def explain_key(cluster: ClusterHandles, key: str) -> Explanation:
    """Return why the object `key` (relative to the URL) is kept, or that it may be deleted."""
    o = read_overview(cluster)
    parsed = o.layout.parse(key)
    exists = bool(key) and not key.endswith("/")
    with suppress(RefusedObjectError, UnansweredObjectError):  # the journals show whether it is needed
        exists = exists and ask_of_one(cluster.store, partial(if_there, cluster.store.head), key) is not None
    if parsed is None:
        return _not_l0(cluster, o, key, exists=exists)
    e = _explanation(o, key, parsed.epoch)
    if not exists:
        e.explanation.append(f"There is no such object; {who_deleted(cluster, key)}.")
    naming = o.logs.naming(key)
    if naming and not exists:  # it may have been reconciled after the journals were read, and then swept
        o.logs = read_journals(cluster, o.logs.snapshot, o.watermark)
        naming = o.logs.naming(key)
    if naming:
        _, damage, _ = check_holders(cluster, o.logs, (), named=key) if exists else ({}, "", "")
        _needed(e, o, naming, exists=exists, damage=damage)
    elif not exists:
        e.verdict, e.next = "gone", "nothing"
    else:
        _epoch(e, o, parsed.epoch, key=key)
        if e.verdict == "held" and not e.broken and not o.external_log:
            e.explanation.insert(0, "No journal refers to it any more; it may be deleted once M reaches its epoch.")
    return _refused(e, o)


def explain_epoch(cluster: ClusterHandles, epoch: int) -> Explanation:
    """Explain why the objects of an epoch are kept."""
    o = read_overview(cluster)
    e = _explanation(o, f"epoch {epoch}", epoch)
    _epoch(e, o, epoch)
    return _refused(e, o)


def explain_partition(cluster: ClusterHandles, name: str) -> Explanation:
    """Explain which epochs a partition (`TOPIC/NUMBER`) holds.

    Raises:
        UsageError: the name is malformed.
        NotFoundError: the topic or partition does not exist.
        SafetyError: the partitions belong to another system.
        CorruptObjectError: its journal cannot be read.
    """
    m = _PARTITION.fullmatch(name)
    if m is None:
        raise UsageError(f"{name!r} is not a partition; write TOPIC/NUMBER, e.g. events/0")
    o = read_overview(cluster)
    if o.external_log:
        raise SafetyError(
            f"partition {name} belongs to another system, whose log l0gc cannot read; see that system's reports"
        )
    topic, partition = o.logs.snapshot.topic(m[1]), int(m[2])
    if partition >= topic.partitions:
        raise NotFoundError(f"topic {m[1]!r} has the partitions 0 to {topic.partitions - 1}, not {partition}")
    h = o.logs.holder(topic, partition)
    e = _explanation(o, f"partition {h.name}", h.gc_epoch)
    e.holders, e.held_by = [h], 1
    e.verdict, e.next = "holds", _moves(o, [h], h.gc_epoch + 1, topic.journal_of(partition))
    e.explanation.append(_why(h))
    lowest = o.logs.watermark.watermark
    if h.gc_epoch > lowest:
        e.verdict = "does not hold M"
        e.explanation.append(f"It does not hold M back: others are at {lowest}, it is at {h.gc_epoch}.")
    elif h.kind == IDLE:
        e.explanation.append(f"To close the window of its journal at once, when uploads are quiet: {BARRIER}.")
    return _refused(e, o)


def _explanation(o: Overview, subject: str, epoch: int | None = None) -> Explanation:
    return Explanation(subject, "", [], "", epoch, o.watermark, o.cluster_epoch, broken=o.errors)


def _refused(e: Explanation, o: Overview) -> Explanation:
    """Return the explanation with the cause that blocks publications and deletions, since everything else waits for its
    end.
    """
    if (cause := blocking_cause(o)) is not None:
        e.explanation.append(f"Nothing is published or deleted by M until this is fixed: {cause.detail}.")
        e.next = cause.remedy
    return e


def _not_l0(cluster: ClusterHandles, o: Overview, key: str, *, exists: bool) -> Explanation:
    """Explain a key that is not an L0 key: a key in the bucket's layout, or a foreign key.

    Raises:
        NotFoundError: the key is foreign, and the object does not exist.
    """
    e = _explanation(o, key)
    e.verdict = "own" if exists else "gone"
    not_there = "" if exists else "There is no such object. "
    for pattern, description, advice in _OWN:
        if m := re.fullmatch(pattern, key):
            e.explanation.append(f"{not_there}This is {description.format(*m.groups())}.")
            e.next = f"nothing: leave it to l0gc; {advice}" if exists else f"nothing; {advice}"
            return _refused(e, o)
    l1 = parse_level_one(key)
    if l1 is None and not exists:
        text = (
            f"no object {key!r} exists, and that is neither an L0 key of this cluster ({o.layout.template}) nor another"
        )
        partition = _PARTITION.fullmatch(key)
        hint = f"; explain an epoch by --epoch {key}" if key.isdecimal() else ""
        if partition and partition[1] in o.logs.snapshot.topics:
            hint = f"; explain a partition by --partition {key}"
        raise NotFoundError(f"{text} of its keys{hint}")
    if l1 is None:
        e.verdict, e.next = "foreign", "nothing: its owner decides about it"
        e.explanation.append("It is not a key of this cluster, so no command ever deletes it.")
        return e
    e.epoch = l1.epoch
    e.next = "nothing: leave it to l0gc; a vacuum deletes it once no journal names it and no pin keeps it"
    if l1.partition < 0:
        description = (
            f"a shared L1 object with records of many partitions of topic {l1.topic}, which journal {l1.journal} keeps"
        )
        e.explanation.append(f"This is {description}; revision {l1.revision} of the topic.")
    else:
        records = f"the L1 object with the records {l1.base} to {l1.last}"
        e.explanation.append(f"This is {records} of partition {l1.id}, revision {l1.revision} of the topic.")
    logs = read_journals(cluster, o.logs.snapshot, o.watermark, whole=True)
    named, text = _who_names(logs, l1)
    e.explanation.append(text)
    if not exists:
        e.explanation.append(f"There is no such object; {who_deleted(cluster, key)}.")
        e.verdict, e.next = "gone", "nothing"
        if named:
            e.verdict, e.next = "missing", f"{RESTORE}; l0gc verify shows what else is wrong"
    e.explanation += [f"Table {t.sentence}." for t in o.tables if t.overdue or t.l1_bytes]
    if exists:
        e.next = next((t.remedy for t in o.tables if t.overdue), e.next)
    return e


def _who_names(logs: Journals, l1: L1Key) -> tuple[bool, str]:
    """Return whether a journal lists an L1 object, and a sentence about it."""
    name = name_bytes(l1.name)
    for journal, state in logs.states():
        if name in state.dropped_of(l1.revision)["name"].tolist():
            why = "it was replaced, or its records expired; readers may still need it"
            return False, f"Journal {journal} has dropped it: {why}."
        shared = next((o for o in state.topic(l1.revision).shared if o.name == name), None)
        if shared is not None:
            partitions = count(len(shared.partitions), "partition")
            return True, f"Journal {journal} names it: its records of {partitions} are live."
        if name in state.topic(l1.revision).l1_of(l1.partition, l1.base)["name"][:1].tolist():
            return True, f"Journal {journal} names it: its records are live."
    return False, "No journal that could be read names it: a run left it behind, or is about to commit it."


def _needed(
    e: Explanation,
    o: Overview,
    naming: Sequence[tuple[int, Topic, UnreconciledObject]],
    *,
    exists: bool,
    damage: str,
) -> None:
    e.verdict = "missing" if not exists else "damaged" if damage else "needed"
    if damage:
        e.explanation.append(f"{damage[0].upper()}{damage[1:]}.")
    if exists and not damage:
        e.next = RECONCILE
    else:
        journal, topic, unreconciled = naming[0]
        state, row = o.logs.readings[journal].state, unreconciled.extents[0]
        assert state is not None
        way = state.topic(topic.revision).how_to_give_up(int(row["partition"]), int(row["base"]))
        ways = f"restore it from a version or a backup, or give its records up: {way}"
        e.next = f"{ways}; l0gc verify shows what else is wrong"
    e.held_by = sum(len(unreconciled.extents) for _, _, unreconciled in naming)
    for journal, topic, unreconciled in naming:
        for row in unreconciled.extents[: SHOWN - len(e.holders)]:
            partition, base, records = int(row["partition"]), int(row["base"]), int(row["records"])
            e.holders.append(o.logs.holder(topic, partition))
            e.explanation.append(
                f"Partition {topic.name}/{partition} needs it: entry {unreconciled.log_offset} of journal {journal} refers "
                f"to it for the records {base} to {base + records - 1}, which are not in L1 yet."
            )
    _count_other_holders(e)


def _count_other_holders(e: Explanation) -> None:
    """Add the number of partitions that also hold the object but are not named."""
    if more := e.held_by - len(e.holders):
        e.explanation.append(f"So {'does' if more == 1 else 'do'} {count(more, 'more partition')}.")


def _epoch(e: Explanation, o: Overview, epoch: int, *, key: str = "") -> None:
    if epoch > o.cluster_epoch and not o.external_log:
        ahead = poisoned(key or f"of an object at epoch {epoch}", epoch, o.cluster_epoch)
        if key or (o.scan is not None and any(r.epoch == epoch for r in o.scan.epochs)):
            e.verdict, e.next = "above the cluster epoch", ahead.remedy
            e.explanation.append(f"{ahead.detail[0].upper()}{ahead.detail[1:]}.")
        else:
            e.verdict, e.next = "not begun", NOTHING
            e.explanation.append(
                f"The cluster epoch is {o.cluster_epoch}: epoch {epoch} has not begun, and holds nothing."
            )
        return
    if epoch <= o.watermark:
        e.verdict, e.next = "eligible", sweep_as_before(o)
        e.explanation.append(f"M = {o.watermark} is published, so a sweep may delete what is at epoch {epoch}.")
        return
    if o.external_log:
        e.verdict, e.next = "held", THEIR_COMPUTE
        e.explanation.append("The log is another system's: only its reports say who still needs it.")
        return
    e.holders, e.held_by = o.logs.holders_below(epoch)[:SHOWN], o.logs.partitions_below(epoch)
    pins = o.logs.pins_below(epoch)
    if e.broken:
        e.verdict, e.next = "held", RESTORE
    elif e.holders and not (pins and {h.kind for h in e.holders} == {IDLE}):
        e.verdict, e.next = "held", _moves(o, e.holders, epoch)
    elif pins:
        e.verdict, e.next = "held", UNPIN
    else:
        e.verdict, e.next = "releasable", COMPUTE
        e.explanation.append(f"No partition needs epoch {epoch} any more; M = {o.watermark} was computed before that.")
    e.explanation += [_why(h) for h in e.holders]
    e.explanation += [f"M stays at {h.gc_epoch} because of {h.reason}." for h in pins[:SHOWN]]
    _count_other_holders(e)
    if o.laggards is not None and o.laggards.hold(epoch):
        e.laggards = o.laggards
        e.explanation.append(o.laggards.sentence)


def _why(h: Holder) -> str:
    where = f"Partition {h.name} may still need epoch {h.gc_epoch + 1}: " if h.name else ""
    return f"{where}{h.reason}{f'; {h.key} holds the first of them' if h.key else ''}."


def _moves(o: Overview, holders: Sequence[Holder], epoch: int, journal: int | None = None) -> str:
    """Return the command that makes these partitions pass `epoch`, or a text that nothing is to be done, and when all
    of them will have passed it.

    Args:
        journal: the only journal to consider.
    """
    kinds = {h.kind for h in holders}
    if not kinds <= {UNRECONCILED, IDLE}:
        return RESTORE
    if UNRECONCILED in kinds:
        return RECONCILE
    age_ms = o.as_of_ms - o.epoch_ms
    ticks = o.logs.ticks_until_free(epoch, due=tick_is_due(age_ms, o.interval_ms), journal=journal)
    if not ticks:
        return f"{HOUSEKEEP} && {COMPUTE}"
    when = free_in(ticks, age_ms, o.interval_ms)
    return f"{NOTHING} to do: epoch {epoch} is free {when}, or now with {GC_BARRIER}"
