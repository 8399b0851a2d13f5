"""Select the L0 objects that a reconcile lifts, round by round.

A run lifts the records that were there when it began. It works in rounds, each committed before the next, so that a killed
run keeps the lifted records. A round takes the oldest epochs first, over all journals, so that M moves as early as
possible. It takes whole log entries of a journal: those after the last round's cut, up to its own. It skips a partition
that still has extents at or below the last cut (a damaged block, or another reconciler was first); the journal's state
alone shows this. Where the commit lands, the journal checks that it begins right after the partition's last reconciled
offset (hazard 9).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from l0gc.epoch import MAX_EPOCH
from l0gc.errors import CorruptObjectError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import ControllerState, Topic, by_journal
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import MAX_OFFSET, Rows, distinct, indices_in
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject
from l0gc.watermark.publication import refuse_if_set_back

A = TypeVar("A")
B = TypeVar("B")

ROUND_BYTES: Final = 4 << 30
"""How many bytes of L0 a round takes: some minutes of work for a small cluster, which a killed run can lose."""
TASK_BYTES: Final = 32 << 20
"""How many bytes of L0 a task reads, and about how many it writes: some hundred MiB of records."""
SMALL_TASK_BYTES: Final = 1 << 20
"""Below this size, a task costs more than it saves."""
MAX_WRITERS: Final = 200
"""The most tasks that write, since each reader sends records to each of them."""
TOGETHER: Final = 256
"""If partitions are small, at least this many consecutive ones go to the same writer, since those of a writer share
objects.
"""
NOT_TOGETHER: Final[Mapping[int, int]] = {}
_SMALL_BYTES: Final = 256 << 10
"""Partitions with less L0 than this in a round, on average, count as small."""
_CUTS: Final = 16
"""The number of points at which a round may be cut within one journal."""
_SPREAD: Final = 0x9E3779B1
"""Mixes a revision (Knuth's multiplicative hash), so that topics of one partition each go to different writers."""
_LOOK_AT: Final = 8
"""The number of journals that are read and held at once to determine whether there is work."""


class Window(msgspec.Struct, frozen=True):
    """The part of a journal from which a round may take: entries above `after`, up to `upto`, of these topics by revision.

    In each partition, it takes the extents at or below `epoch`, and all before them, since a partition is lifted in order.
    `begins` is how many bytes the round takes from the windows before this one.
    """

    journal: int
    topics: Mapping[int, Topic]
    after: int = -1
    upto: int = MAX_OFFSET
    epoch: int = MAX_EPOCH
    begins: int = 0


class Step(NamedTuple):
    """Consecutive entries up to the log offset `cut`: the numbers of objects and bytes to read, and their lowest epoch."""

    cut: int
    epoch: int
    objects: int
    bytes: int


class JournalPlan(msgspec.Struct, frozen=True):
    """The objects that a round can take from a journal, oldest first, and whether there is `more` after them.

    `end` is the log's last offset at that moment. `errors` are the reasons why nothing, or a topic, cannot be taken.
    `records` is how many records the window has, if it is a journal's first window.
    """

    journal: int
    end: int
    steps: list[Step] = []
    more: bool = False
    errors: list[str] = []
    records: int = 0


class Round(msgspec.Struct, frozen=True):
    """One round: the windows that it takes, the epoch stamped on its L1 objects, and its numbers of tasks.

    `alone` are the revisions of topics whose partitions do not share objects, since a table needs objects of single
    partitions. `together` has, by revision, how many consecutive partitions of a topic go to one writer.
    """

    epoch: int
    takes: Sequence[Window]
    bytes: int
    readers: int
    writers: int
    alone: frozenset[int] = frozenset()
    together: Mapping[int, int] = {}

    def reader_of(self, take: Window, before: int) -> int:
        """Return the reader of an object that has `before` bytes before it in its window."""
        return min(self.readers - 1, (take.begins + before) * self.readers // max(1, self.bytes))

    def topics(self) -> dict[int, Topic]:
        return {revision: t for take in self.takes for revision, t in take.topics.items()}


class ObjectRead(NamedTuple):
    """An L0 object of a topic, with the blocks to read for its extents."""

    journal: int
    revision: int
    object: UnreconciledObject


class Fault(msgspec.Struct, frozen=True):
    """The reason why records could not be lifted: in each of `partitions`, those from its offset in `bases` on.

    Attributes:
        may_return: whether the store merely does not answer for the object at present, so that nothing is known to be
            lost.
    """

    journal: int
    revision: int
    message: str
    partitions: Rows
    bases: Rows
    may_return: bool = False


# -- what waits ----------------------------------------------------------------------------------------------------------


def windows_of(state: ControllerState, topic: str | None, up_to: int = MAX_EPOCH) -> list[Window]:
    """Return the journals from which a run may take one topic, or all, up to the epoch `up_to`. Raises `NotFoundError`."""
    by_number = by_journal(state.topics.values() if topic is None else [state.topic(topic)])
    return [Window(journal, {t.revision: t for t in topics}, epoch=up_to) for journal, topics in by_number.items()]


def checked_windows(windows: Sequence[Window], unread: Mapping[str, str]) -> list[Window]:
    """Return the journals that are known not to have been set back (hazard 38)."""
    return [w for w in windows if f"journal {w.journal}" not in unread]


def plan_journal(handle: JournalHandle, window: Window, budget: int) -> JournalPlan:
    """Return the objects that a round may take from a journal, up to about `budget` bytes, or why it cannot be read."""
    try:
        with handle.replica.lock:
            state = handle.catch_up(whole=False)
            steps, more = steps_of(state, window, budget)
            plan = JournalPlan(window.journal, handle.replica.offset, steps, more)
            if window.after >= 0:
                return plan
            records = sum(int(o.extents["records"].sum()) for _, o in unreconciled(state, window))
            return msgspec.structs.replace(plan, errors=strangers(state, window), records=records)
    except CorruptObjectError as e:
        return JournalPlan(window.journal, -1, errors=[str(e)])


def has_work(
    cluster: ClusterHandles, topic: str | None = None, *, up_to: int = MAX_EPOCH, looked: bool = False
) -> bool:
    """Return whether there are records to lift, or a journal that cannot be read; see `waiting_bytes`."""
    return waiting_bytes(cluster, topic, 1, up_to=up_to, looked=looked) > 0


def waiting_bytes(
    cluster: ClusterHandles, topic: str | None, enough: int, *, up_to: int = MAX_EPOCH, looked: bool = False
) -> int:
    """Return how many bytes of L0 there are to lift; above `enough`, the number is not exact. Errors to report count as
    one byte.

    This reads the journals, a few at a time, and drops those that the process does not keep, since the result only helps
    to choose an engine.

    Args:
        up_to: see `windows_of`.
        looked: whether this process has just found that no log was set back; a run checks again before it lifts anything.

    Raises:
        NotFoundError: the topic does not exist.
        EpochRegressionError: lifting is not allowed, see `reconcile`.
    """

    def look(window: Window) -> int:
        plan = plan_journal(cluster.passing_journal(window.journal), window, enough)
        return sum(max(1, step.bytes) for step in plan.steps) + len(plan.errors)

    total = 0 if looked else len(refuse_if_set_back(cluster, keep=False).unread)
    for size in few_at_once(cluster, look, windows_of(cluster.controller.snapshot(), topic, up_to)):
        total += size
        if total > enough:
            break
    return total


def few_at_once(cluster: ClusterHandles, look: Callable[[A], B], journals: Sequence[A]) -> Iterator[B]:
    """Yield the result of `look` for each journal, in order. Few journals are in memory at once, and none is read before
    it is requested.
    """
    for at in range(0, len(journals), _LOOK_AT):
        yield from cluster.parallel.map(look, journals[at : at + _LOOK_AT])


# -- what to take -------------------------------------------------------------------------------------------------------


def strangers(state: JournalState, window: Window) -> list[str]:
    """Return the topics that differ between the journal and the controller's log, which was then restored from a backup."""
    return [
        f"topic {expected.name!r} (revision {revision}) is not the one in journal {window.journal}: the controller log "
        "looks restored from a backup, and has assigned the revision again; the topic is left as it is"
        for revision, expected in sorted(window.topics.items())
        if (topic := state.topics.get(revision)) is not None and topic.topic_id not in ("", expected.topic_id)
    ]


def unreconciled(state: JournalState, window: Window) -> Iterator[tuple[int, UnreconciledObject]]:
    """Yield the objects of a window, with the extents that can be lifted, as (revision, object), in order of the log."""
    by_topic = (
        _of_topic(revision, topic, window)
        for revision, expected in sorted(window.topics.items())
        if (topic := state.topics.get(revision)) is not None and topic.topic_id == expected.topic_id
    )
    return heapq.merge(*by_topic, key=lambda o: o[1].log_offset)


def _of_topic(revision: int, topic: TopicState, window: Window) -> Iterator[tuple[int, UnreconciledObject]]:
    left = [o.extents["partition"] for o in topic.objects if o.log_offset <= window.after]
    waiting = distinct(np.concatenate(left)) if left else None
    ends = _ends(topic, window.epoch)
    for o in topic.objects:
        if not window.after < o.log_offset <= window.upto:
            continue
        if waiting is not None:
            free = o.extents[~np.isin(o.extents["partition"], waiting)]
            o = msgspec.structs.replace(o, extents=free)  # noqa: PLW2901
        if ends is not None:
            o = msgspec.structs.replace(o, extents=o.extents[ends[o.extents["partition"]] >= o.log_offset])  # noqa: PLW2901
        if len(o.extents):
            yield revision, o


def _ends(topic: TopicState, epoch: int) -> Rows | None:
    """Return, for each partition, the log offset of its last extent at or below `epoch`; None if all extents are that
    old.
    """
    if all(o.epoch <= epoch for o in topic.objects):
        return None
    ends = np.full(int(topic.partitions[-1]) + 1, -1, np.int64)
    for o in topic.objects:
        if o.epoch <= epoch:
            ends[o.extents["partition"]] = o.log_offset
    return ends


def steps_of(state: JournalState, window: Window, budget: int) -> tuple[list[Step], bool]:
    """Return a window's oldest objects, up to about `budget` bytes, in about `_CUTS` steps, and whether there are more."""
    steps: list[Step] = []
    total = 0
    for cut, entry in groupby(unreconciled(state, window), key=lambda o: o[1].log_offset):
        if total >= budget:
            return steps, True
        objects = [o for _, o in entry]
        step = Step(cut, min(o.epoch for o in objects), len(objects), sum(o.bytes for o in objects))
        total += step.bytes
        if steps and steps[-1].bytes + step.bytes <= budget // _CUTS:
            step = _together(steps.pop(), step)
        steps.append(step)
    return steps, False


def _together(a: Step, b: Step) -> Step:
    return Step(b.cut, min(a.epoch, b.epoch), a.objects + b.objects, a.bytes + b.bytes)


def choose_steps(plans: Iterable[JournalPlan], budget: int, first: int | None = None) -> dict[int, Step]:
    """Return how far a round proceeds in each journal, with the lowest epochs first.

    A step ranks by the lowest epoch of itself and the steps after it, since a journal is taken in order.

    Args:
        budget: the most bytes to take; at least one step is always taken.
        first: if given, take no step if the first one has more bytes than this.
    """
    rest = {p.journal: p.steps for p in plans if p.steps}
    lowest_epochs = {
        journal: [*accumulate((s.epoch for s in reversed(steps)), min)][::-1] for journal, steps in rest.items()
    }
    chosen: dict[int, Step] = {}
    heap = [(epochs[0], journal, 0) for journal, epochs in lowest_epochs.items()]
    heapq.heapify(heap)
    total = 0
    while heap:
        _, journal, number = heapq.heappop(heap)
        step, most = rest[journal][number], budget if chosen else first
        if most is not None and total + step.bytes > most:
            break
        total += step.bytes
        chosen[journal] = _together(chosen[journal], step) if journal in chosen else step
        if number + 1 < len(rest[journal]):
            heapq.heappush(heap, (lowest_epochs[journal][number + 1], journal, number + 1))
    return chosen


def make_round(
    epoch: int,
    windows: Sequence[Window],
    chosen: Mapping[int, Step],
    cores: int,
    partitions: int,
    alone: frozenset[int] = frozenset(),
) -> Round:
    """Return the round that takes the chosen steps, with as many tasks as are worthwhile.

    Args:
        windows: the planned windows.
        cores: how many tasks run at once.
        partitions: how many partitions the topics have, which limits the number of useful writers.
        alone: see `Round`.
    """
    takes: list[Window] = []
    total = 0
    for w in windows:
        step = chosen.get(w.journal)
        if step is not None:
            takes.append(msgspec.structs.replace(w, upto=step.cut, begins=total))
            total += step.bytes
    objects = sum(step.objects for step in chosen.values())
    together: dict[int, int] = {}
    if total < partitions * _SMALL_BYTES:
        topics = {t.revision: t.partitions // len(t.journals) for take in takes for t in take.topics.values()}
        many = {revision: n for revision, n in topics.items() if n >= TOGETHER and revision not in alone}
        together = {revision: -(-n // (n // TOGETHER)) for revision, n in many.items()}
    return Round(epoch, takes, total, *task_counts(total, objects, cores, partitions), alone, together)


def task_counts(size: int, objects: int, cores: int, partitions: int) -> tuple[int, int]:
    """Return how many readers and writers are worthwhile for these numbers of bytes, objects and partitions. With one
    core, one reader and one writer do everything.
    """
    if cores == 1:
        return 1, 1
    tasks = max(-(-size // TASK_BYTES), min(cores, -(-size // SMALL_TASK_BYTES)), 1)
    writers = max(1, min(max(tasks, cores if tasks > 1 else 1), MAX_WRITERS, partitions))
    return max(1, min(tasks, objects)), writers


def still_unreconciled(topic: TopicState, read: ObjectRead) -> ObjectRead | None:
    """Return the part of an object that still has to be read; None if all of it was lifted, expired or given up."""
    extents = read.object.extents
    for o in topic.objects:
        if (o.key, o.start) == (read.object.key, read.object.start):
            at, is_there = indices_in(extents["partition"], o.extents["partition"])
            same = is_there & (extents["base"][at] == o.extents["base"])
            return read._replace(object=msgspec.structs.replace(o, extents=o.extents[same])) if same.any() else None
    return None


def writers_of(revision: int, partitions: Rows, writers: int, together: Mapping[int, int] = NOT_TOGETHER) -> Rows:
    """Return the writer of each partition, which gets all its records; see `Round` for `together`."""
    groups = partitions.astype(np.int64) // together.get(revision, 1)
    mixed: Rows = (groups + ((revision * _SPREAD >> 12) & 0xFFFFF)) % writers
    return mixed


def still_there(state: JournalState, fault: Fault) -> Fault | None:
    """Return a fault without the records that were reconciled in the meantime; None if no record is left."""
    topic = state.topics.get(fault.revision)
    if topic is None:
        return None
    open_ = is_unreconciled(topic, fault.partitions, fault.bases)
    if not open_.any():
        return None
    return msgspec.structs.replace(fault, partitions=fault.partitions[open_], bases=fault.bases[open_])


def is_unreconciled(topic: TopicState, partitions: Rows, bases: Rows) -> Rows:
    """Return, for each (partition, offset), whether that record is not in L1."""
    unreconciled: Rows = topic.values(topic.reconciled, partitions, MAX_OFFSET) < bases
    return unreconciled
