"""A reconcile run: round after round, until all is in L1 that was there when it began.

Workers plan a round and lift it; only numbers for each journal, and for each partition that was lifted, come back. Each
round is stamped with the cluster epoch anew, before its first L1 object is written, and committed before the next one. It
is a flow of four stages (`Lift`), which are chained in this process, so a round is never in memory as a whole.

A task may run twice, or a run may die: L1 objects have random names and count only when a journal names them, the same
records sent twice are written once, and a commit that landed before is recognised (`commit.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from l0gc.epoch import MAX_EPOCH
from l0gc.errors import CorruptObjectError
from l0gc.formatting import Outcome, count
from l0gc.storage.workers import LocalWorkers, Stage, Workers
from l0gc.streamlog.cluster import Handles
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
    Window,
    choose_steps,
    judged,
    make_round,
    plan_journal,
    still_unreconciled,
    unreconciled,
    windows_of,
)
from l0gc.streamlog.level_one.read import StillNeeded, read_rows
from l0gc.streamlog.level_one.write import WrittenL1, write_l1
from l0gc.watermark.publication import refuse_if_set_back


@dataclass(slots=True)
class ReconcileResult(Outcome):
    """What a run did.

    Attributes:
        records: Records that are in L1 now and were not before.
        l1_objects: L1 objects that count.
        bytes: Their size.
        partitions: How many partitions had records lifted.
        lost: Partitions that another reconciler advanced, or whose topic was deleted during the run, once for each
            round. Not an error. No journal names what was written for them; [vacuum](#l0gc-vacuum) removes it.
        rounds: How many rounds it took.
        limited: Whether `--max-bytes` left something that could have been lifted.
        errors: What was left out and why: journals that cannot be read, L0 objects that are missing or damaged, each
            with the partitions that it holds. With any, exit code 3.
        seconds: How long it took, without Spark's start.
    """

    records: int = 0
    l1_objects: int = 0
    bytes: int = 0
    partitions: int = 0
    lost: int = 0
    rounds: int = 0
    limited: bool = False
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    unfinished: ClassVar[str] = "not everything could be lifted"


def reconcile(
    cluster: Handles,
    topic: str | None = None,
    *,
    round_bytes: int = ROUND_BYTES,
    up_to: int | None = None,
    max_bytes: int | None = None,
    workers: Workers[Handles] | None = None,
) -> ReconcileResult:
    """Lift everything that is unreconciled now, in one topic or in all of them, the oldest epochs first.

    Args:
        round_bytes: about how much of L0 a round takes.
        up_to: lift of each partition what lies at or below this epoch and what lies before that, and no more.
        max_bytes: lift no more of L0 than this, but one log entry's objects at least.
        workers: who does it; by default this process.

    Raises:
        NotFoundError: there is no such topic.
        StoreError: the store does not answer, or does not let us. The rounds before are committed.
        EpochRegressionError: what is published is above the cluster epoch; nothing was written (hazard 10).
    """
    workers = workers or LocalWorkers(cluster)
    result = ReconcileResult()
    began = cluster.runtime.clock.monotonic()
    unread = refuse_if_set_back(cluster, keep=False).unread
    state = cluster.controller.snapshot()
    windows = judged(windows_of(state, topic, MAX_EPOCH if up_to is None else up_to), unread)
    result.errors += unread.values()
    lifted, taken = dict[int, Rows](), 0
    while windows:
        workers.say(f"round {result.rounds + 1}, {count(result.records, 'record')} in L1", records=result.records)
        left = None if max_bytes is None else max_bytes - taken
        budget = round_bytes if left is None else max(1, min(round_bytes, left))
        planned = {p.journal: p for p in workers.map(functools.partial(_plan, budget), windows)}
        result.errors += [e for _, p in sorted(planned.items()) for e in p.errors]
        chosen = choose_steps(planned.values(), budget, left if taken else None)
        if not chosen:
            result.limited = any(p.steps for p in planned.values())
            break
        partitions = sum(t.partitions for t in state.topics.values() if topic in (None, t.name))
        r = make_round(state.epoch, windows, chosen, workers.cores, partitions)
        for committed in workers.flow(range(len(r.takes)), *Lift(r).stages(workers.slots)):
            result.add(committed, "records", "l1_objects", "bytes", "lost", "errors")
            for revision, of_topic in committed.partitions.items():
                lifted[revision] = np.union1d(lifted.get(revision, of_topic), of_topic)
        result.rounds += 1
        taken += r.bytes
        windows = list(_left(windows, planned, {j: step.cut for j, step in chosen.items()}))
        if windows:
            state = cluster.controller.snapshot()
            windows = [_of_live_topics(w, state) for w in windows]
    result.partitions = sum(map(len, lifted.values()))
    result.seconds = cluster.runtime.clock.monotonic() - began
    return result


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


# -- what workers do ------------------------------------------------------------------------------------------------------


def _plan(budget: int, cluster: Handles, window: Window) -> JournalPlan:
    return plan_journal(cluster.journal(window.journal), window, budget)


def reads_in(handle: JournalHandle, window: Window) -> list[ObjectRead]:
    """What is to be read of a journal for a round, in order of the log."""
    with handle.replica.lock:
        return [ObjectRead(window.journal, *found) for found in unreconciled(handle.catch_up(), window)]


def still_needed(journal: Callable[[int], JournalHandle]) -> StillNeeded:
    """Asks the journals about what could not be read: another reconciler may have lifted it, and a sweep taken the object
    (hazard 19)."""

    def ask(read: ObjectRead) -> ObjectRead | None:
        try:
            handle = journal(read.journal)
            with handle.replica.lock:
                topic = handle.catch_up().topics.get(read.revision)
                return None if topic is None else still_unreconciled(topic, read)
        except CorruptObjectError:
            return read

    return ask


@dataclass(frozen=True, slots=True)
class Packable:
    """Rows that a reader sends to a writer: packed if they leave the process, and only then. So thousands of records are
    one value to Spark, and of a slice no more is sent than that slice."""

    batch: pa.RecordBatch

    def __reduce__(self) -> tuple[Any, ...]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batch.schema) as stream:
            stream.write_batch(self.batch)
        return _unpacked, (sink.getvalue().to_pybytes(),)


def _unpacked(body: bytes) -> Packable:
    return Packable(pa.ipc.open_stream(body).read_next_batch())


@dataclass(frozen=True)
class Lift:
    """What the workers do in a round, in four stages; what each yields goes to the task of the next that it names."""

    round: Round

    def stages(self, slots: int) -> list[Stage]:
        """The stages. A task for each journal, or for several, hands out, and at the end commits."""
        r, journals = self.round, max(1, min(len(self.round.takes), slots))
        return [
            Stage(journals, self.hand_out),
            Stage(r.readers, self.read),
            Stage(r.writers, self.write),
            Stage(journals, self.commit),
        ]

    def hand_out(self, cluster: Handles, takes: Iterable[int]) -> Iterator[tuple[int, ObjectRead]]:
        """What is to be read, and by which reader."""
        for number in takes:
            take, before = self.round.takes[number], 0
            for read in reads_in(cluster.journal(take.window.journal), take.window):
                yield self.round.reader_of(take, before), read
                before += read.object.bytes

    def read(self, cluster: Handles, reads: Iterable[ObjectRead]) -> Iterator[tuple[int, Packable | Fault]]:
        """The records, and which writer gets them."""
        needed = still_needed(cluster.journal)
        for writer, row in read_rows(cluster.store, reads, self.round.writers, needed, cluster.parallel):
            yield writer, row if isinstance(row, Fault) else Packable(row)

    def write(
        self, cluster: Handles, rows: Iterable[Packable | Fault]
    ) -> Iterator[tuple[int, tuple[int, int, Rows] | Fault]]:
        """The L1 objects, as (journal, revision, rows), durable and not committed; and which task commits them."""
        number = {take.window.journal: i for i, take in enumerate(self.round.takes)}
        arriving = (row if isinstance(row, Fault) else row.batch for row in rows)
        r = self.round
        written = write_l1(cluster.store, r.topics(), r.epoch, arriving, cluster.runtime, cluster.parallel)
        for (journal, revision), files in written.files.items():
            yield number[journal], (journal, revision, files)
        for fault in written.faults:
            yield number[fault.journal], fault

    def commit(self, cluster: Handles, found: Iterable[tuple[int, int, Rows] | Fault]) -> Iterator[Committed]:
        """What became of it, journal by journal."""
        yield from commit_round(cluster, self.round, gathered(found))


def gathered(found: Iterable[tuple[int, int, Rows] | Fault]) -> WrittenL1:
    """What several writers made."""
    parts: dict[tuple[int, int], list[Rows]] = {}
    faults: list[Fault] = []
    for what in found:
        if isinstance(what, Fault):
            faults.append(what)
        else:
            parts.setdefault(what[:2], []).append(what[2])
    return WrittenL1({topic: np.concatenate(rows) for topic, rows in parts.items()}, faults)


def commit_round(cluster: Handles, r: Round, written: WrittenL1) -> Iterator[Committed]:
    """Commit what was written for a round, in each journal that it is of."""
    for take in r.takes:
        journal = take.window.journal
        files = {revision: rows for (of, revision), rows in written.files.items() if of == journal}
        faults = [f for f in written.faults if f.journal == journal]
        if files or faults:
            yield Commit(cluster, take.window, r.epoch).run(files, faults)
