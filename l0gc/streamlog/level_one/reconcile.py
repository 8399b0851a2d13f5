"""A reconcile run: round after round, until all is in L1 that was there when it began.

An engine plans a round and lifts it: Spark's executors for real, or this process, by the same functions. This module keeps a
few numbers for each journal, and at the end one for each partition that was lifted, so that each counts once:
neither a plan nor an extent nor an L1 object's name passes through.
Each round is stamped with the cluster epoch anew, before its first L1 object is written, and committed before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np

from l0gc.errors import CorruptObjectError, PartialFailureError
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.level_one.commit import Commit, Committed
from l0gc.streamlog.level_one.plan import (
    ROUND_BYTES,
    Fault,
    JournalPlan,
    ObjectRead,
    Round,
    Wanted,
    Window,
    choose,
    is_unreconciled,
    make_round,
    reads_of,
    steps_of,
    strangers,
)
from l0gc.streamlog.level_one.read import Row, StillNeeded, read_rows
from l0gc.streamlog.level_one.write import WrittenL1, write_l1
from l0gc.watermark.publication import refuse_if_set_back

_LOOK_AT: Final = 8
"""So many journals are read at once, and are in memory, to see whether there is work."""

_NAMED: Final = 3
"""So many errors are in the sentence that says what went wrong; the result has them all."""


class Engine(Protocol):
    """Who does the work of a round."""

    @property
    def cores(self) -> int:
        """How many tasks run at once."""
        ...

    def plan(self, windows: Sequence[Window], budget: int) -> Iterable[JournalPlan]:
        """See `plan_journal`, for each window."""
        ...

    def lift(self, r: Round) -> Iterable[Committed]:
        """Read, write and commit what a round takes; see `Commit`, for each journal."""
        ...


@dataclass(slots=True)
class ReconcileResult:
    """What a run did.

    `lost` counts partitions at which another reconciler was first, or whose topic was deleted, once for each round; see
    `Committed`.
    `errors` says what could not be lifted, and why.
    """

    records: int = 0
    l1_objects: int = 0
    bytes: int = 0
    lost: int = 0
    rounds: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _lifted: dict[int, Rows] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """How many partitions have been lifted, each counted once."""
        return sum(map(len, self._lifted.values()))

    @property
    def problem(self) -> PartialFailureError | None:
        """What went wrong, in one sentence."""
        if not self.errors:
            return None
        more = f" (and {len(self.errors) - _NAMED} more)" if len(self.errors) > _NAMED else ""
        return PartialFailureError(f"not everything could be lifted: {'; '.join(self.errors[:_NAMED])}{more}")

    def add(self, c: Committed) -> None:
        """Count what a round did in one journal."""
        self.records += c.records
        self.l1_objects += c.l1_objects
        self.bytes += c.bytes
        self.lost += c.lost
        self.errors += c.errors
        for revision, partitions in c.partitions.items():
            known = self._lifted.get(revision)
            self._lifted[revision] = partitions if known is None else np.union1d(known, partitions)


def run_rounds(
    cluster: Cluster,
    engine: Engine,
    topic: str | None = None,
    *,
    round_bytes: int = ROUND_BYTES,
    progress: Callable[[ReconcileResult], None] = lambda result: None,
) -> ReconcileResult:
    """Lift everything that is unreconciled now, in one topic or in all of them.

    Args:
        round_bytes: about how much of L0 a round takes.
        progress: called with what is done whenever a round begins.

    Raises:
        TopicNotFoundError: there is no such topic.
        StoreError: the store does not answer, or does not let us. The rounds before are committed.
        EpochRegressionError: what is published is above the cluster epoch; nothing was written (hazard 10).
    """
    result = ReconcileResult()
    began = cluster.runtime.clock.monotonic()
    unread = refuse_if_set_back(cluster, keep=False).unread
    state = cluster.controller.snapshot()
    windows = judged(windows_of(state, topic), unread)
    result.errors += unread.values()
    while windows:
        progress(result)
        planned = {p.journal: p for p in engine.plan(windows, round_bytes)}
        result.errors += [e for _, p in sorted(planned.items()) for e in p.errors]
        chosen = choose(planned.values(), round_bytes)
        if not chosen:
            break
        partitions = sum(t.partitions for t in state.topics.values() if topic in (None, t.name))
        for committed in engine.lift(make_round(state.epoch, windows, chosen, engine.cores, partitions)):
            result.add(committed)
        result.rounds += 1
        windows = list(_left(windows, planned, {j: step.cut for j, step in chosen.items()}))
        if windows:
            state = cluster.controller.snapshot()
            windows = [_of_live_topics(w, state) for w in windows]
    result.seconds = cluster.runtime.clock.monotonic() - began
    return result


def windows_of(state: ControllerState, topic: str | None) -> list[Window]:
    """What a run may take: all of one topic, or of all of them. Raises `TopicNotFoundError`."""
    topics = list(state.topics.values()) if topic is None else [state.topic(topic)]
    wanted: dict[int, dict[int, Wanted]] = {}
    for t in topics:
        for journal in t.journals:
            wanted.setdefault(journal, {})[t.revision] = Wanted(t.name, t.topic_id)
    return [Window(journal, of_journal) for journal, of_journal in sorted(wanted.items())]


def judged(windows: Sequence[Window], unread: Mapping[str, str]) -> list[Window]:
    """Those of the journals of which it is known that they were not set back (hazard 38)."""
    return [w for w in windows if f"journal {w.journal}" not in unread]


def _left(windows: Sequence[Window], planned: dict[int, JournalPlan], cuts: dict[int, int]) -> Iterator[Window]:
    """The windows without what a round took, but for those in which nothing is left of what was there at the beginning."""
    for w in windows:
        p = planned[w.journal]
        cut = cuts.get(w.journal, w.after)
        if p.more or any(step.cut > cut for step in p.steps):
            yield replace(w, after=cut, upto=min(w.upto, p.end))


def _of_live_topics(window: Window, state: ControllerState) -> Window:
    live = {t.revision for t in state.topics.values()}
    return replace(window, topics={revision: t for revision, t in window.topics.items() if revision in live})


def has_work(cluster: Cluster, topic: str | None = None) -> bool:
    """Whether there is anything to lift, or a journal that cannot be read.

    The journals are read here, a few at a time, and forgotten: this is for saving the start of Spark on an idle cluster.

    Raises:
        TopicNotFoundError: there is no such topic.
        EpochRegressionError: nothing may be lifted, see `run_rounds`.
    """
    if refuse_if_set_back(cluster, keep=False).unread:
        return True
    windows = windows_of(cluster.controller.snapshot(), topic)

    def look(window: Window) -> bool:
        handle = JournalHandle(
            window.journal, cluster.store, cluster.controller, cluster.runtime, parallel=cluster.parallel
        )
        plan = plan_journal(handle, window, 1)
        return bool(plan.steps or plan.errors)

    return any(any(cluster.parallel.map(look, windows[at : at + _LOOK_AT])) for at in range(0, len(windows), _LOOK_AT))


# -- what an engine does for each journal ---------------------------------------------------------------------------------


def plan_journal(handle: JournalHandle, window: Window, budget: int) -> JournalPlan:
    """What a round may take from a journal, up to about `budget` bytes; if it cannot be read, the plan says so."""
    try:
        with handle.replica.lock:
            state = handle.catch_up()
            steps, more = steps_of(state, window, budget)
            errors = strangers(state, window) if window.after < 0 else []  # reported once
            return JournalPlan(window.journal, handle.replica.offset, steps, more, errors)
    except CorruptObjectError as e:
        return JournalPlan(window.journal, -1, errors=[str(e)])


def reads_in(handle: JournalHandle, window: Window) -> list[ObjectRead]:
    """What is to be read of a journal for a round."""
    with handle.replica.lock:
        return list(reads_of(handle.catch_up(), window))


def still_needed(journal: Callable[[int], JournalHandle]) -> StillNeeded:
    """Asks the journals whether extents whose object is gone are not in L1 yet: another reconciler may have lifted them,
    and a sweep taken the object (hazard 19)."""

    def ask(number: int, revision: int, extents: Rows) -> Rows:
        try:
            handle = journal(number)
            with handle.replica.lock:
                topic = handle.catch_up().topics.get(revision)
                if topic is None:
                    return np.zeros(len(extents), bool)
                return is_unreconciled(topic, extents["partition"], extents["base"])
        except CorruptObjectError:
            return np.ones(len(extents), bool)

    return ask


# -- this process as an engine --------------------------------------------------------------------------------------------


class Local:
    """Does a run's work in this process, one thing after another, by the functions that the executors run."""

    cores: Final = 1

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def plan(self, windows: Sequence[Window], budget: int) -> list[JournalPlan]:
        return self._cluster.parallel.map(lambda w: plan_journal(self._cluster.journal(w.journal), w, budget), windows)

    def lift(self, r: Round) -> list[Committed]:
        return self.commit(r, self.write(r))

    def write(self, r: Round) -> WrittenL1:
        """What a round takes as L1 objects, durable and not committed."""
        c = self._cluster
        return write_l1(c.store, r.topics(), r.epoch, self._rows(r), c.runtime, c.parallel)

    def _rows(self, r: Round) -> Iterator[Row]:
        c = self._cluster
        reads = (o for take in r.takes for o in reads_in(c.journal(take.window.journal), take.window))
        return (row for _, row in read_rows(c.store, reads, 1, still_needed(c.journal), c.parallel))

    def commit(self, r: Round, written: WrittenL1) -> list[Committed]:
        """Commit what was written for a round, journal by journal."""
        c = self._cluster
        return [commit_journal(c, c.journal(take.window.journal), take.window, r.epoch, written) for take in r.takes]


def commit_journal(
    cluster: Cluster, handle: JournalHandle, window: Window, epoch: int, written: WrittenL1
) -> Committed:
    """Commit what was written of one journal; see `Commit.run`."""
    files = {revision: rows for (journal, revision), rows in written.files.items() if journal == window.journal}
    faults: list[Fault] = [f for f in written.faults if f.journal == window.journal]
    return Commit(cluster.store, handle, cluster.runtime, cluster.parallel, window, epoch).run(files, faults)


def reconcile(cluster: Cluster, topic: str | None = None, *, round_bytes: int = ROUND_BYTES) -> ReconcileResult:
    """Lift everything that is unreconciled now, in this process; see `run_rounds`."""
    return run_rounds(cluster, Local(cluster), topic, round_bytes=round_bytes)
