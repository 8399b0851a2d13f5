"""Verify a whole bucket in three stages, which read it once and change nothing.

The order of the reads keeps suspects few, and only a second reading turns a suspect into a finding:

1. M is read first, then the controller's snapshot, then the journals. Each can only be older than the next: M(p) of a
live partition is never below a published M, and no journal is ahead of the controller.
2. The listings are read after the journals. An object that a journal needs and the listing lacks was reconciled and
swept since, or is missing. An object that is listed but not named was written since, or is not needed.
3. Every suspect is read again: the object itself, then the journal, then the controller.

The listings are cut into ranges of keys, and each range belongs to one task. A reference is sent to the task that lists
its key, so each task can decide alone which objects are missing or not needed. A task first receives all its
references, and only then lists its ranges.

A repeated task reads a later state, but nothing relies on a single moment. No process has a list of all keys: a task
has the references to the keys that it lists, or the suspects of some journals; the driver has numbers, and a limited
number of findings from each task.
"""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from l0gc.collect.history import who_deleted
from l0gc.errors import CorruptObjectError, RefusedObjectError, SafetyError, UnansweredObjectError, fault_of
from l0gc.formatting import count
from l0gc.inspect.overview import ahead_text
from l0gc.inspect.overview_reader import published_m
from l0gc.inspect.verify.findings import (
    DELETED,
    DOUBTFUL,
    FOREIGN,
    LATER,
    SEVERITIES,
    ClusterSnapshot,
    Kind,
    ReadCounts,
    ReplayedJournal,
    Suspect,
    VerifyResult,
    check_journal,
    described,
    finding_of,
    first_needed,
    needed_end,
    needs,
    orphan_text,
    placed,
    unread_log,
)
from l0gc.inspect.verify.replay import (
    block_faults,
    controller_faults,
    l1_fault,
    read_copy,
    size_of,
    unknown_journals,
)
from l0gc.keys import (
    CONTROLLER_LOG,
    JUMP,
    L1_DATA,
    PUBLISHED_WATERMARK,
    L1Key,
    PartitionId,
    parse_level_one,
)
from l0gc.storage.objectstore import ListedPage
from l0gc.storage.ranges import KeyRange, RangeReader, cut_range, of_shards
from l0gc.storage.workers import LOCAL, Stage, Workers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.journal.rows import Rows, name_bytes
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject, l1_file, l1_key, shared_key

T = TypeVar("T")

MAX_FINDINGS: Final = 1000
REFERENCE: Final = np.dtype(
    [("journal", "<i4"), ("revision", "<i8"), ("partition", "<i4"), ("offset", "<i8"), ("expected", "<i8"), ("l1", "?")]
)
"""The fields of a reference: the journal, the topic's revision, the partition, its first record in the object, the end
of the last needed block or the size of an L1 object, and whether it is an L1 object.
"""
_OBJECTS_A_TASK: Final = 500_000
"""About how many objects a task on a Spark cluster lists, since it has the references to them in memory."""
_REFERENCES_AT_ONCE: Final = 16_384
_CONTENTS_AT_ONCE: Final = 64
"""How many objects are read for their contents before the faults are passed on."""
_SUSPECTS_AT_ONCE: Final = 1000
_KEYS_SEARCHED: Final = 20
"""The number of missing objects for which the records of runs are searched. Each search reads about one record."""
_LAST: Final = "\U0010ffff"
_BY_SIZE: Final = {Kind.L0_MISSING, Kind.L0_SHORT, Kind.L1_MISSING, Kind.L1_SIZE}
_L0: Final = {Kind.L0_MISSING, Kind.L0_SHORT, Kind.L0_CORRUPT}
_L1: Final = {Kind.L1_MISSING, Kind.L1_SIZE, Kind.L1_CORRUPT, Kind.L1_ORPHAN}
_AS_SEEN: Final = {
    Kind.LIVE_BELOW_WATERMARK,
    Kind.WATERMARK_AHEAD,
    Kind.WATERMARK_UNREADABLE,
    Kind.UNANSWERED,
    Kind.TOPIC_MISPLACED,
    Kind.TOPIC_UNKNOWN,
    Kind.SHADOW_NEEDED,
    Kind.SHADOW_READ,
}
"""The suspects that need no second reading of the journal. M was read before the journal and never decreases, and
nothing may need an object that M once allowed to be deleted, even if a reconciler has ended the need since. A topic's
placement never changes.
"""


def check_log_is_ours(state: ControllerState) -> None:
    """Raise `SafetyError` if another system keeps the log, in which case the bucket cannot be compared with it."""
    if state.external_log:
        raise SafetyError(
            "this cluster's log is another system's, which l0gc cannot read, so there is nothing to compare the bucket "
            "with: verify it with that system's own means"
        )


def verify(
    cluster: ClusterHandles,
    workers: Workers[ClusterHandles],
    *,
    deep: bool = False,
    min_age_ms: int,
    max_findings: int = MAX_FINDINGS,
) -> VerifyResult:
    """Read the whole bucket once, and change nothing.

    Args:
        deep: also read every block that a journal needs and every L1 object, check their contents, and compare all
            checkpoints with their entries.
        min_age_ms: the age, by the store's clock, below which an L1 object may still get listed by a journal.
        max_findings: how many findings to list; all findings are counted.

    Raises:
        NotInitialisedError, ClusterMismatchError: there is no cluster here, or a different one.
        CorruptObjectError: the controller log cannot be read.
        StoreError: the store failed, so there is no result.
    """
    started = time.monotonic()
    now_ms = cluster.store.now_ms()
    snapshot, suspects = read_snapshot(cluster, now_ms, young_after_ms=now_ms - min_age_ms)
    state, published = snapshot.state, snapshot.published
    if published is not None:
        newest, reached = max(published.watermark, published.cluster_epoch), min(published.cluster_epoch, state.epoch)
        if newest > reached:
            where = f"M = {published.watermark}, which is published with cluster epoch {published.cluster_epoch},"
            text = ahead_text(where, newest, reached)
            suspects.append(Suspect(Kind.WATERMARK_AHEAD, key=PUBLISHED_WATERMARK, detail=text))
    suspects += [Suspect(kind, key=CONTROLLER_LOG, detail=text) for kind, text in controller_faults(cluster, deep=deep)]
    for folder in unknown_journals(cluster.store, state.journals):
        text = f"the controller has only the journals 0 to {state.journals - 1}"
        suspects.append(Suspect(Kind.JOURNAL_UNKNOWN, key=folder, detail=text))

    listed = published.listed_objects if published is not None else -1
    slots = max(workers.slots, listed // _OBJECTS_A_TASK)
    readers = 1 if workers.engine == LOCAL else min(slots, state.journals)
    cut = Cut(snapshot, slots, 1 if workers.engine == LOCAL else slots)
    workers.say(f"reading the journals and the listings{' and every object' if deep else ''}")
    parts = workers.flow(
        range(state.journals),
        Stage(readers, partial(_read_journals, snapshot, cut, deep)),
        Stage(cut.tasks, partial(_compare, snapshot, readers, deep)),
        Stage(readers, partial(_read_again, snapshot, deep, max_findings)),
    )
    parts += _read_again(snapshot, deep, max_findings, cluster, suspects)

    counts = sum((kinds for _, kinds, _ in parts), Counter[Kind]())
    first = heapq.nsmallest(max_findings, (s for _, _, findings in parts for s in findings), key=finding_order)
    # The first missing objects are shown with the run that deleted each.
    missing = dict.fromkeys(s.key for s in first if s.kind in (Kind.L0_MISSING, Kind.L1_MISSING))
    deleters = {key: who_deleted(cluster, key) for key in islice(missing, _KEYS_SEARCHED)}
    findings = [
        msgspec.structs.replace(s, detail=f"{s.detail}; {deleters[s.key]}") if s.key in deleters else s for s in first
    ]
    result = result_of(snapshot, counts, findings, deep=deep)
    for name, n in sum((seen for seen, _, _ in parts), Counter[str]()).items():
        setattr(result.checked if hasattr(result.checked, name) else result, name, n)
    result.engine, result.engine_reason = workers.engine, workers.reason
    result.seconds = time.monotonic() - started
    return result


def read_snapshot(
    cluster: ClusterHandles, now_ms: int, *, young_after_ms: int
) -> tuple[ClusterSnapshot, list[Suspect]]:
    """Read M, then the controller, and compare them. Return both, and any fault of `published.json`."""
    published, error = published_m(cluster)
    state = cluster.controller.snapshot()
    shown = msgspec.structs.replace(state, producers={})  # tasks do not need producers
    snapshot = ClusterSnapshot(shown, published, young_after_ms, state.to_be_closed_by(now_ms))
    unreadable = (
        []
        if error is None
        else [Suspect(Kind.WATERMARK_UNREADABLE, key=PUBLISHED_WATERMARK, detail=fault_of(error[1]))]
    )
    return snapshot, unreadable


def result_of(
    snapshot: ClusterSnapshot, counts: Counter[Kind], listed: Iterable[Suspect], *, deep: bool
) -> VerifyResult:
    """Return the result of a run, given the number of findings of each kind and some of the findings."""
    state = snapshot.state
    return VerifyResult(
        state.epoch,
        snapshot.watermark,
        deep,
        findings=[finding_of(s) for s in listed],
        total=counts.total(),
        counts={kind.value: n for kind, n in sorted(counts.items())},
        severities={
            severity: sum(n for kind, n in counts.items() if kind.severity == severity) for severity in SEVERITIES
        },
        checked=ReadCounts(journals=state.journals, partitions=state.partition_count),
    )


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size` items."""
    it = iter(items)
    while chunk := list(islice(it, size)):
        yield chunk


# -- which task lists what -----------------------------------------------------------------------------------------------


def l1_ranges(state: ControllerState, parts: int) -> list[KeyRange]:
    """Return ranges that cover the L1 folders of every past or present topic.

    A range never spans two topics, since stores that list folder by folder put `a-1/` before `a-1.b-2/`, and others
    after it. Within a topic, the bounds sort between the folders of two partitions, and do not equal a folder's name,
    since some stores would skip that folder (hazard 12).
    """
    ranges = []
    step = max(1, -(-state.partition_count // parts))
    for t in state.topics.values():
        folder = _topic_folder(t)
        cuts = (f"{folder}{p - 1:05}{JUMP}" for p in range(step, t.partitions, step))
        ranges += cut_range(KeyRange(folder=folder), cuts)
    return ranges + [KeyRange(folder=_topic_folder(d.topic)) for d in state.deleted]


def _topic_folder(topic: Topic) -> str:
    """Return the folder of a topic's L1 objects."""
    return f"{L1_DATA}{topic.name}-{topic.revision}/"


class Cut:
    """Cuts the listings into ranges of keys, and assigns each to a task.

    Args:
        parts: about how many ranges each of the two listings is cut into.
    """

    def __init__(self, snapshot: ClusterSnapshot, parts: int, tasks: int) -> None:
        self.tasks = tasks
        ranges = [*of_shards(snapshot.layout, parts), *l1_ranges(snapshot.state, parts)]
        ends = {(r.folder, r.end or _LAST): r for r in ranges}
        self._ends = sorted(ends)
        self._ranges = [ends[end] for end in self._ends]

    def share(self, task: int) -> list[KeyRange]:
        """Return the ranges of keys that a task lists."""
        return self._ranges[task :: self.tasks]

    def task_of(self, folder: str, key: str) -> int:
        """Return the task that lists a key in a folder; an empty folder means an L0 object."""
        return bisect_left(self._ends, (folder, key)) % self.tasks


class References(NamedTuple):
    """References from journals to objects: the keys, and rows of `REFERENCE`, sent as columns of some thousands.

    For a deep reading, `needed` has the extents that a journal needs in each L0 object.
    """

    keys: list[str]
    rows: Rows
    needed: list[UnreconciledObject]

    def by_task(self, cut: Cut, folder: str) -> Iterator[tuple[int, References]]:
        """Yield the references for each task; all of them must be in one folder."""
        tasks = np.fromiter((cut.task_of(folder, k) for k in self.keys), np.int64, len(self.keys))
        for task in np.unique(tasks).tolist():
            numbers = np.flatnonzero(tasks == task)
            needed = [self.needed[n] for n in numbers] if self.needed else []
            yield task, References([self.keys[n] for n in numbers], self.rows[numbers], needed)


# -- the first stage: journals -------------------------------------------------------------------------------------------


def _read_journals(
    snapshot: ClusterSnapshot, cut: Cut, deep: bool, cluster: ClusterHandles, journals: Iterable[int]
) -> Iterator[tuple[int, Any]]:
    """Read the journals one after another, since each may be large. The first results are the ranges of each task."""
    for journal in journals:
        if journal == 0:
            yield from ((task, keys) for task in range(cut.tasks) for keys in cut.share(task))
        suspects: list[Suspect] = []
        try:
            copy = read_copy(cluster, journal, snapshot.published, deep=deep)
        except CorruptObjectError as e:
            suspects.append(unread_log(journal, e))
        else:
            suspects += check_journal(copy, snapshot)
            for topic, state in placed(copy, snapshot):
                for objects in in_chunks(state.objects, _REFERENCES_AT_ONCE):
                    rows = np.array([(journal, topic.revision, *first_needed(o), False) for o in objects], REFERENCE)
                    yield from References([o.key for o in objects], rows, objects if deep else []).by_task(cut, "")
                yield from _named(cut, journal, topic, state.l1)
                yield from _shared(cut, journal, topic, state, deep=deep)
                extents = sum(len(o.extents) for o in state.objects)
                seen = Counter(extents=extents, holes=state.totals().holes)
                yield journal % cut.tasks, Observations(seen)
        yield from ((journal % cut.tasks, s) for s in suspects)
        if any(s.kind in DOUBTFUL or s.kind == Kind.UNANSWERED for s in suspects):
            yield from ((task, journal) for task in range(cut.tasks))


def _named(cut: Cut, journal: int, topic: Topic, rows: Rows) -> Iterator[tuple[int, References]]:
    for start in range(0, len(rows), _REFERENCES_AT_ONCE):
        chunk = rows[start : start + _REFERENCES_AT_ONCE]
        rows = np.empty(len(chunk), REFERENCE)
        rows["journal"], rows["revision"], rows["l1"] = journal, topic.revision, True
        rows["partition"], rows["offset"], rows["expected"] = chunk["partition"], chunk["base"], chunk["bytes"]
        keys = [l1_key(topic.id(f.partition), f) for f in map(l1_file, chunk)]
        yield from References(keys, rows, []).by_task(cut, _topic_folder(topic))


def _shared(cut: Cut, journal: int, topic: Topic, state: TopicState, *, deep: bool) -> Iterator[tuple[int, References]]:
    for objects in in_chunks(state.shared_objects(topic.name, journal), _REFERENCES_AT_ONCE):
        sizes = (int(o.blocks["length"].sum(dtype=np.int64)) for o in objects)
        rows = [(journal, topic.revision, *first_needed(o)[:2], n, True) for o, n in zip(objects, sizes, strict=True)]
        references = References([o.key for o in objects], np.array(rows, REFERENCE), objects if deep else [])
        yield from references.by_task(cut, _topic_folder(topic))


# -- the second stage: listings ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Observations:
    """Counts of correct objects, and L0 keys above the cluster epoch, which may be many.

    `counts` is indexed by the names of the result's fields. For each epoch above the cluster epoch, `ahead` has the
    number of objects and their first key.
    """

    counts: Counter[str] = field(default_factory=Counter)
    ahead: dict[int, tuple[int, str]] = field(default_factory=dict)

    def add(self, other: Observations) -> None:
        self.counts.update(other.counts)
        for epoch, (objects, key) in other.ahead.items():
            self.add_ahead(epoch, objects, key)

    def add_ahead(self, epoch: int, objects: int, key: str) -> None:
        before, first = self.ahead.get(epoch, (0, key))
        self.ahead[epoch] = before + objects, min(first, key)


def _compare(
    snapshot: ClusterSnapshot, readers: int, deep: bool, cluster: ClusterHandles, sent: Iterable[Any]
) -> Iterator[tuple[int, Suspect | Observations]]:
    """List a task's share, and compare it with the references to it.

    Suspects are sent to the task of their journal. Counts are sent to one task, since all L0 keys at an epoch that is
    ahead form one suspect.

    Args:
        sent: the ranges that the task lists, the `References` to keys in them, the numbers of all journals that may
            have lost entries and thus names of objects, and the other results of the journals.
    """

    def addressed(item: Suspect | Observations) -> tuple[int, Suspect | Observations]:
        return item.journal % readers if isinstance(item, Suspect) else 0, item

    references: list[References] = []
    ranges: list[KeyRange] = []
    doubtful: set[int] = set()
    for item in sent:
        match item:
            case References():
                references.append(item)
            case KeyRange():
                ranges.append(item)
            case int():
                doubtful.add(item)
            case _:
                yield addressed(item)
    # All references have arrived, so the listing is newer than all of them.
    comparison = _Comparison(cluster, snapshot, references, doubtful)
    for suspects, seen in cluster.parallel.map(comparison.read, ranges):
        yield from map(addressed, suspects)
        yield addressed(seen)
    yield from map(addressed, comparison.missing())
    if deep:
        yield from map(addressed, comparison.contents())


class _Comparison:
    """Compares, by key, the objects that a task's ranges should have with those that they have.

    A listed object is removed from `_first`, so that the missing ones remain.
    """

    def __init__(
        self, cluster: ClusterHandles, snapshot: ClusterSnapshot, references: Sequence[References], doubtful: set[int]
    ) -> None:
        self._cluster, self._snapshot, self._layout, self._doubtful = cluster, snapshot, snapshot.layout, doubtful
        self._keys = [k for r in references for k in r.keys]
        self._rows: Rows = np.concatenate([np.empty(0, REFERENCE), *(r.rows for r in references)])
        self._expected: Rows = self._rows["expected"]
        self._needed: list[UnreconciledObject | None] = []
        for r in references:
            self._needed += r.needed or [None] * len(r.keys)
        self._first: dict[str, int] = {}
        self._more: dict[str, list[int]] = {}
        for n, key in enumerate(self._keys):
            if self._first.setdefault(key, n) != n:
                self._more.setdefault(key, []).append(n)

    def _take(self, key: str) -> list[int]:
        """Return the numbers of the references to a listed object."""
        n = self._first.pop(key, None)
        return [] if n is None else [n, *self._more.get(key, ())]

    def _suspect(self, n: int, kind: Kind) -> Suspect:
        """Return a suspect about the reference with that number."""
        journal, revision, partition, offset, expected, _ = self._rows[n].tolist()
        topic = self._snapshot.live[revision].name
        return Suspect(kind, journal, topic, revision, partition, self._keys[n], offset, expected)

    def missing(self) -> Iterator[Suspect]:
        """Yield suspects for objects that were not listed."""
        for key in list(self._first):
            for n in self._take(key):
                yield self._suspect(n, Kind.L1_MISSING if self._rows["l1"][n] else Kind.L0_MISSING)

    def read(self, part: KeyRange) -> tuple[list[Suspect], Observations]:
        """List a range. Several ranges may be read at once, since no key is in two ranges."""
        suspects, seen = list[Suspect](), Observations()
        look = self._l1 if part.folder else self._l0
        for page in RangeReader(self._cluster.store, self._layout, part).read():
            look(page, suspects, seen)
        return suspects, seen

    def _l0(self, page: ListedPage, suspects: list[Suspect], seen: Observations) -> None:
        snapshot, counts, expected = self._snapshot, seen.counts, self._expected
        for key, size, epoch in zip(page.keys, page.sizes, self._layout.epochs(page.keys), strict=True):
            refs = self._take(key)
            short = [n for n in refs if expected[n] > size]
            if short:
                suspects += [self._suspect(n, Kind.L0_SHORT) for n in short]
            elif epoch < 0:
                counts["unparsable_keys"] += 1
                continue
            elif epoch > snapshot.state.epoch:
                seen.add_ahead(epoch, 1, key)
            elif not refs:
                kind = "eligible" if epoch <= snapshot.watermark else "waiting"
                counts[f"{kind}_objects"] += 1
                counts[f"{kind}_bytes"] += size
            counts["l0_objects"] += 1

    def _l1(self, page: ListedPage, suspects: list[Suspect], seen: Observations) -> None:
        counts, expected = seen.counts, self._expected
        for key, size, modified_ms in zip(page.keys, page.sizes, page.modified_ms, strict=True):
            refs = self._take(key)
            suspects += [self._suspect(n, Kind.L1_SIZE) for n in refs if expected[n] != size]
            parsed = parse_level_one(key)
            owner, journal = self._snapshot.owner(parsed)
            if refs:
                pass
            elif parsed is None or owner == FOREIGN:
                counts["unparsable_keys"] += 1
                continue
            elif owner == DELETED:
                counts["deleted_topic_objects"] += 1
            elif owner == LATER or modified_ms > self._snapshot.young_after_ms or journal in self._doubtful:
                counts["young_l1_objects"] += 1
            else:
                p = parsed.id
                suspects.append(Suspect(Kind.L1_ORPHAN, journal, p.topic, p.revision, p.partition, key))
            counts["l1_objects"] += max(1, len(refs))

    def contents(self) -> Iterator[Suspect | Observations]:
        """Read the objects to which the journals refer, several at a time."""
        for chunk in in_chunks(range(len(self._keys)), _CONTENTS_AT_ONCE):
            read = self._cluster.parallel.map(self._check, chunk)
            yield from (s for s, _ in read if s is not None)
            yield Observations(Counter(bytes_read=sum(size for _, size in read)))

    def _check(self, n: int) -> tuple[Suspect | None, int]:
        """Return the fault in an object's contents, if any, and the number of bytes read."""
        try:
            return self._content(n, self._needed[n])
        except UnansweredObjectError as e:
            return _with(self._suspect(n, Kind.UNANSWERED), fault_of(e)), 0

    def _content(self, n: int, o: UnreconciledObject | None) -> tuple[Suspect | None, int]:
        if o is None:
            s = self._suspect(n, Kind.L1_CORRUPT)
            fault = l1_fault(self._cluster.store, s.key, s.expected)
            return _with(s, fault), 0 if fault is None else s.expected
        faults = block_faults(self._cluster.store, o)
        if faults is None:
            return None, 0
        size = sum(o.block(number).length for number in set(o.extents["block"].tolist()))
        if not faults:
            return None, size
        extent, text = faults[0]
        where: dict[str, Any] = {"partition": extent.partition, "offset": extent.base_offset, "detail": text}
        kind = Kind.L1_CORRUPT if self._rows["l1"][n] else Kind.L0_CORRUPT
        return msgspec.structs.replace(self._suspect(n, kind), **where, needed=o), size


# -- the third stage: the second reading ---------------------------------------------------------------------------------


def _read_again(
    snapshot: ClusterSnapshot,
    deep: bool,
    max_findings: int,
    cluster: ClusterHandles,
    sent: Iterable[Suspect | Observations],
) -> Iterator[tuple[Counter[str], Counter[Kind], list[Suspect]]]:
    """Yield a task's counts, the number of its findings of each kind, and its first findings."""
    suspects, seen = list[Suspect](), Observations()
    for item in sent:
        if isinstance(item, Suspect):
            suspects.append(item)
        else:
            seen.add(item)
    for epoch, (objects, key) in seen.ahead.items():
        number = count(objects, "object is", "objects are")
        text = f"{number} at epoch {epoch}, above the cluster epoch {snapshot.state.epoch}"
        suspects.append(Suspect(Kind.EPOCH_AHEAD, key=key, expected=epoch, detail=text))
    still = confirm(cluster, snapshot, suspects, deep=deep)
    first = heapq.nsmallest(max_findings, still, key=finding_order)
    yield seen.counts, Counter(s.kind for s in still), first


def finding_order(s: Suspect) -> tuple[Any, ...]:
    """Return the sort key of findings."""
    return s.topic, s.revision, s.partition, s.kind, s.offset, s.key, s.journal


def confirm(
    cluster: ClusterHandles, snapshot: ClusterSnapshot, suspects: Iterable[Suspect], *, deep: bool = False
) -> list[Suspect]:
    """Return the suspects that a second reading confirms, with the details of that reading.

    The bucket changes while it is read, so the listing, a journal and an object show different moments. The order of
    the second reading leaves only one explanation:

    1. The object is read by its key: it may be missing, short, or differ from the journal.
    2. The journal is replayed: does it still need that object? It does not need an object that was reconciled and swept
    in the meantime, and it lists an L1 object that was committed in the meantime. Objects never come back under an old
    key, so an object that the journal needs *after* it was found missing is missing.
    3. The controller is read: does the topic still exist, and has the epoch been reached? A topic is first deleted in
    the controller, and only then may M pass it and its objects be deleted.

    Args:
        deep: whether the first reading was deep; see `read_copy`.

    Raises:
        CorruptObjectError: the controller log cannot be read.
    """
    ordered = sorted(suspects, key=lambda s: (s.journal, s.revision, s.partition, s.kind, s.key, s.offset))
    still: list[Suspect] = []
    for journal, group in groupby(ordered, key=lambda s: s.journal):
        seen: list[Suspect] = []
        for chunk in in_chunks(group, _SUSPECTS_AT_ONCE):
            again = cluster.parallel.map(partial(_object_again_or_not, cluster, deep), chunk)
            seen += (s for s in again if s is not None)
        still += _journal_again(cluster, snapshot, journal, seen, deep=deep) if journal >= 0 and seen else seen
    if not still:
        return []
    state = cluster.controller.snapshot()
    topics = {t.revision for t in state.topics.values()}, {d.topic.revision for d in state.deleted}
    # Keep suspects whose topic is still live or still deleted, and whose epoch has still not been reached.
    of_live_topics = (s for s in still if not s.topic or s.revision in topics[s.kind == Kind.TOPIC_UNCLOSED])
    return [s for s in of_live_topics if s.kind != Kind.EPOCH_AHEAD or s.expected > state.epoch]


def _with(s: Suspect, detail: str | None) -> Suspect | None:
    """Return the suspect with its new detail; None if nothing is wrong."""
    return msgspec.structs.replace(s, detail=detail) if detail else None


def _object_again_or_not(cluster: ClusterHandles, deep: bool, s: Suspect) -> Suspect | None:
    """Return the result of `_object_again`, or a suspect that the store does not serve at present."""
    try:
        return _object_again(cluster, s, deep=deep)
    except UnansweredObjectError as e:
        return msgspec.structs.replace(s, kind=Kind.UNANSWERED, detail=fault_of(e))


def _object_again(cluster: ClusterHandles, s: Suspect, *, deep: bool) -> Suspect | None:
    """Return the suspect if its object still has the fault, or if its fault does not concern an object."""
    if s.kind in _BY_SIZE or s.kind == Kind.L1_ORPHAN:
        try:
            size = size_of(cluster.store, s.key)
        except RefusedObjectError as e:
            return _with(s, fault_of(e))
        if s.kind == Kind.L1_ORPHAN:
            return s if size is not None else None
        if size is None:
            return _with(s, "the object is missing")
        if s.kind == Kind.L0_SHORT and size < s.expected:
            return _with(s, f"it has {size} bytes, and the journal refers to bytes up to {s.expected}")
        if s.kind == Kind.L1_SIZE and size != s.expected:
            return _with(s, f"it has {size} bytes, and the journal records {s.expected}")
        return None
    match s.kind:
        case Kind.L0_CORRUPT | Kind.L1_CORRUPT if s.needed is not None:
            faults = block_faults(cluster.store, s.needed)
            return _with(s, faults[0][1]) if faults else None
        case Kind.L1_CORRUPT:
            return _with(s, l1_fault(cluster.store, s.key, s.expected))
    if s.key == CONTROLLER_LOG and s.kind in DOUBTFUL:
        return _with(s, dict(controller_faults(cluster, deep=deep)).get(s.kind))
    return s


def _journal_again(
    cluster: ClusterHandles, snapshot: ClusterSnapshot, journal: int, suspects: Sequence[Suspect], *, deep: bool
) -> list[Suspect]:
    """Return the suspects that their journal confirms. If entries of the journal may be lost, no orphan is confirmed."""
    still: list[Suspect | None] = [s for s in suspects if s.kind in _AS_SEEN]
    try:
        copy = read_copy(cluster, journal, snapshot.published, deep=deep)
    except UnansweredObjectError as e:
        log = unread_log(journal, e)
        return [s for s in still if s is not None and s.fault != log.fault] + [log]
    except CorruptObjectError as e:
        still += [_with(s, fault_of(e)) for s in suspects if s.kind == Kind.LOG_UNREADABLE]
        return [s for s in still if s is not None]
    again = check_journal(copy, snapshot)
    if any(s.kind in DOUBTFUL for s in again):
        suspects = [s for s in suspects if s.kind != Kind.L1_ORPHAN]
    faults = {s.fault for s in suspects}
    still += [s for s in again if s.fault in faults and s.kind not in _AS_SEEN]
    for revision, group in groupby((s for s in suspects if s.kind in _L0), key=lambda s: s.revision):
        still += _l0_again(copy, revision, list(group))
    for p, group in groupby((s for s in suspects if s.kind in _L1), key=_partition):
        still += _l1_again(copy, p, list(group))
    return [s for s in still if s is not None]


def _l0_again(copy: ReplayedJournal, revision: int, suspects: Sequence[Suspect]) -> Iterator[Suspect | None]:
    needed = needs(copy.state, revision, {s.key for s in suspects})
    for s in suspects:
        for o in needed.get(s.key, ()):
            row = o.extents[o.extents["partition"] == s.partition]
            if s.kind == Kind.L0_CORRUPT:
                if len(row) and row["base"][0] == s.offset:
                    yield s
            elif s.kind == Kind.L0_MISSING or needed_end(o) >= s.expected:
                yield _with(s, f"{s.detail}; {described(o)}")
                break


def _l1_again(copy: ReplayedJournal, p: PartitionId, suspects: Sequence[Suspect]) -> Iterator[Suspect | None]:
    if copy.state.closed(p.revision):
        return
    topic = copy.state.topic(p.revision)
    named = {l1_key(p, f): f.bytes for f in topic.files(p.partition)}
    named |= {shared_key(p.topic, p.revision, copy.journal, o): o.bytes for o in topic.shared}
    for s in suspects:
        if s.kind != Kind.L1_ORPHAN:
            if s.key in named and (s.kind != Kind.L1_SIZE or named[s.key] == s.expected):
                yield s
        elif s.key not in named and (key := parse_level_one(s.key)) is not None and _is_orphan(copy.state, key):
            yield _with(s, orphan_text(key.base, key.last, copy.state, p))


def _is_orphan(state: JournalState, key: L1Key) -> bool:
    """Return whether the journal has not dropped an object that it does not list.

    A vacuum deletes objects that the journal has dropped. If an object was stamped before the log was set back, a lost
    entry may have listed it.
    """
    dropped = name_bytes(key.name) in state.dropped_of(key.revision)["name"].tolist()
    return key.epoch >= state.kept_below and not dropped


def _partition(s: Suspect) -> PartitionId:
    return PartitionId(s.topic, s.revision, s.partition)
