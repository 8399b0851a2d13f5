"""Run a reconcile: round after round, until all records that were there when it began are in L1.

Workers plan a round and lift it; they return only numbers for each journal and each lifted partition. Each round gets a
fresh stamp of the cluster epoch before its first L1 object is written, and is committed before the next one begins. It is
a flow of four stages (`Lift`), chained in this process, so a round is never in memory as a whole.

A task may run twice, or a run may be killed. So L1 objects have random names and count only once a journal names them,
records that were sent twice are written once, and a commit that has already landed is recognised.

A commit happens only when every object that it names is durable, and it deletes nothing. It may run again, because Spark
repeats its task or a reply was lost, with an expiry, a merge or a vacuum in between (hazard 28). One entry names all of a
partition's objects. So if the journal names one of them or has dropped it, the entry landed, and all of them count. Once
vacuum has deleted all of them, there is no proof any more, and the partition counts as lost.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from l0gc.epoch import MAX_EPOCH
from l0gc.errors import CorruptObjectError
from l0gc.events import Progress
from l0gc.formatting import Outcome, count
from l0gc.storage.workers import LOCAL, LocalWorkers, Stage, Workers
from l0gc.streamlog.cluster import Begin, ClusterHandles, committing
from l0gc.streamlog.journal.entries import RECONCILE
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import NO_L1_ROWS, NO_MISFITS, Rows, distinct, in_order
from l0gc.streamlog.journal.shared import SharedObject
from l0gc.streamlog.level_one.edit import Editor
from l0gc.streamlog.level_one.plan import (
    ROUND_BYTES,
    Fault,
    JournalPlan,
    ObjectRead,
    Round,
    Window,
    checked_windows,
    choose_steps,
    is_unreconciled,
    make_round,
    plan_journal,
    still_there,
    still_unreconciled,
    unreconciled,
    windows_of,
)
from l0gc.streamlog.level_one.read import StillNeeded, read_rows
from l0gc.streamlog.level_one.write import WrittenL1, write_l1
from l0gc.watermark.publication import refuse_if_set_back


class Files(NamedTuple):
    """L1 objects of a topic in a journal: rows of `L1_ROW`, and shared ones; `misfits` are rows of `MISFITS`."""

    journal: int
    revision: int
    files: Rows
    misfits: Rows
    shared: Sequence[SharedObject] = ()


_SHOWN: Final = 20
"""The number of causes that are reported for a journal, and of partitions for each; the others are counted."""


@dataclass(slots=True)
class ReconcileResult(Outcome):
    """The result of a reconcile.

    Attributes:
        records: How many records this run moved to L1.
        l1_objects: How many L1 objects were committed.
        bytes: The size of these L1 objects.
        partitions: How many partitions had records lifted.
        lost: How many partitions another reconciler advanced, or whose topic was deleted during the run, once for each
            round. This is not an error. No journal names the objects written for them; [vacuum](#l0gc-vacuum) removes
            them.
        rounds: How many rounds it took.
        limited: Whether `--max-bytes` left records that could have been lifted.
        misfits: How many records have a value of which a part does not fit their topic's value schema. The part is null,
            and `value_error` names it. This is not an error.
        errors: The journals that cannot be read, and the L0 objects that are missing or damaged, each with the reason and
            the partitions that it holds back. They are skipped. If there are any, the exit code is 3.
        engine: `local` or `spark`. If there is nothing to lift, it is `local`, since Spark is not started.
        engine_reason: Why this engine was used.
        seconds: How long it took, without Spark's start.
    """

    records: int = 0
    l1_objects: int = 0
    bytes: int = 0
    partitions: int = 0
    lost: int = 0
    rounds: int = 0
    limited: bool = False
    misfits: int = 0
    errors: list[str] = field(default_factory=list)
    engine: str = LOCAL
    engine_reason: str = ""
    seconds: float = 0.0
    lifted: dict[int, Rows] = field(default_factory=dict, compare=False)
    unfinished: ClassVar[str] = "not everything could be lifted"
    hidden: ClassVar[frozenset[str]] = frozenset({"lifted"})

    def count_in(self, lifted: Mapping[int, Rows]) -> None:
        """Count partitions that were lifted, given by revision: each once."""
        for revision, partitions in lifted.items():
            self.lifted[revision] = np.union1d(self.lifted.get(revision, partitions), partitions)
        self.partitions = sum(map(len, self.lifted.values()))


def reconcile(
    cluster: ClusterHandles,
    topic: str | None = None,
    *,
    round_bytes: int = ROUND_BYTES,
    up_to: int | None = None,
    max_bytes: int | None = None,
    workers: Workers[ClusterHandles] | None = None,
) -> ReconcileResult:
    """Lift all records that are now unreconciled, in one topic or in all, the oldest epochs first.

    Args:
        round_bytes: about how many bytes of L0 a round takes.
        up_to: lift only records at or below this epoch, and those before them in their partition.
        max_bytes: lift no more bytes of L0 than this, but at least one log entry's objects.
        workers: the workers; by default this process.

    Raises:
        NotFoundError: the topic does not exist.
        StoreError: the store does not answer, or refuses access. Earlier rounds are committed.
        EpochRegressionError: a published epoch is above the cluster epoch; nothing was written (hazard 10).
    """
    workers = workers or LocalWorkers(cluster)
    result = ReconcileResult(engine=workers.engine, engine_reason=workers.reason)
    began = cluster.runtime.clock.monotonic()
    unread = refuse_if_set_back(cluster, keep=False).unread
    state = cluster.controller.snapshot()
    windows = checked_windows(windows_of(state, topic, MAX_EPOCH if up_to is None else up_to), unread)
    result.errors += unread.values()
    taken, waiting = 0, dict[int, int]()
    workers.say("reading the journals")
    while windows:
        left = None if max_bytes is None else max_bytes - taken
        budget = round_bytes if left is None else max(1, min(round_bytes, left))
        planned = {p.journal: p for p in workers.map(functools.partial(_plan, budget), windows)}
        result.errors += [e for _, p in sorted(planned.items()) for e in p.errors]
        for p in planned.values():  # a journal is planned from its beginning until a round takes something from it
            waiting.setdefault(p.journal, p.records)
        chosen = choose_steps(planned.values(), budget, left if taken else None)
        if not chosen:
            result.limited = any(p.steps for p in planned.values())
            break
        partitions = sum(t.partitions for t in state.topics.values() if topic in (None, t.name))
        tables = frozenset(table.revision for table in state.tables.values())
        r = make_round(state.epoch, windows, chosen, workers.cores, partitions, tables)
        lifted = Lifted(workers.say, result.rounds + 1, result.records, sum(waiting.values()))
        lifted.show()
        try:
            with committing(cluster, workers) as begin:
                lift = Lift(r, begin, lifted if workers.engine == LOCAL else None)
                for committed in workers.flow(range(len(r.takes)), *lift.stages(workers.slots)):
                    result.add(committed, "records", "l1_objects", "bytes", "misfits", "lost", "errors")
                    result.count_in(committed.lifted)
        except KeyboardInterrupt:  # Spark's tasks are ended
            workers.say("", records=result.records, unnamed=workers.engine != LOCAL)
            raise
        result.rounds += 1
        taken += r.bytes
        windows = list(_left(windows, planned, {j: step.cut for j, step in chosen.items()}))
        if windows:
            state = cluster.controller.snapshot()
            live = {t.revision for t in state.topics.values()}
            windows = [
                msgspec.structs.replace(w, topics={r: t for r, t in w.topics.items() if r in live}) for w in windows
            ]
    result.seconds = cluster.runtime.clock.monotonic() - began
    return result


def _left(windows: Sequence[Window], planned: dict[int, JournalPlan], cuts: dict[int, int]) -> Iterator[Window]:
    """Yield the windows after a round's cuts, except those in which the run has nothing left to lift."""
    for w in windows:
        p = planned[w.journal]
        cut = cuts.get(w.journal, w.after)
        if p.more or any(step.cut > cut for step in p.steps):
            yield msgspec.structs.replace(w, after=cut, upto=min(w.upto, p.end))


# -- what workers do ------------------------------------------------------------------------------------------------------


def _plan(budget: int, cluster: ClusterHandles, window: Window) -> JournalPlan:
    return plan_journal(cluster.journal(window.journal), window, budget)


def still_needed(journal: Callable[[int], JournalHandle]) -> StillNeeded:
    """Return a function that reduces an unreadable object to the extents that its journal still needs.

    Another reconciler may have lifted the others, and a sweep may then have deleted the object (hazard 19).
    """

    def ask(read: ObjectRead) -> ObjectRead | None:
        try:
            handle = journal(read.journal)
            with handle.replica.lock:
                topic = handle.catch_up(whole=False).topics.get(read.revision)
                return None if topic is None else still_unreconciled(topic, read)
        except CorruptObjectError:
            return read

    return ask


@dataclass(frozen=True, slots=True)
class Packable:
    """Rows that a reader sends to a writer, packed only if they leave the process. So Spark handles thousands of records
    as one value, and sends a slice without the rest of its batch.
    """

    batch: pa.RecordBatch

    def __reduce__(self) -> tuple[Any, ...]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batch.schema) as stream:
            stream.write_batch(self.batch)
        return _unpacked, (sink.getvalue().to_pybytes(),)


def _unpacked(body: bytes) -> Packable:
    return Packable(pa.ipc.open_stream(body).read_next_batch())


@dataclass(slots=True)
class Lifted:
    """Reports the progress of a run that has lifted `before` of `waiting` records and is in round `round`."""

    say: Progress
    round: int
    before: int
    waiting: int
    read: int = 0
    wrote: int = 0

    def show(self, *, read: int = 0, wrote: int = 0) -> None:
        """Add records that the round has read or written since the last call. A record counts as half done once it is
        read.
        """
        self.read += read
        self.wrote += wrote
        text = f"round {self.round}, {self.before:,} of {count(self.waiting, 'record')} in L1"
        if self.read:
            text += f"; {self.read:,} more read, {self.wrote:,} written"
        self.say(text, done=self.before + (self.read + self.wrote) / 2, total=self.waiting, records=self.before)


@dataclass(frozen=True)
class Lift:
    """The work of a round in four stages; each yields values, with the task of the next stage that gets them."""

    round: Round
    begin: Begin = threading.Event
    lifted: Lifted | None = None
    drains: ClassVar[bool] = False

    def still_needed(self, cluster: ClusterHandles) -> StillNeeded:
        return still_needed(cluster.journal)

    def stages(self, slots: int) -> list[Stage]:
        """Return the stages. One task for each journal, or for several, hands out the work, and commits it at the end."""
        r, journals = self.round, max(1, min(len(self.round.takes), slots))
        return [
            Stage(journals, self.hand_out),
            Stage(r.readers, self.read),
            Stage(r.writers, self.write),
            Stage(journals, self.commit),
        ]

    def hand_out(self, cluster: ClusterHandles, takes: Iterable[int]) -> Iterator[tuple[int, ObjectRead]]:
        for number in takes:
            take, before = self.round.takes[number], 0
            handle = cluster.journal(take.journal)
            with handle.replica.lock:
                objects = list(unreconciled(handle.catch_up(whole=False), take))
            for revision, o in objects:
                yield self.round.reader_of(take, before), ObjectRead(take.journal, revision, o)
                before += o.bytes

    def read(self, cluster: ClusterHandles, reads: Iterable[ObjectRead]) -> Iterator[tuple[int, Packable | Fault]]:
        needed = self.still_needed(cluster)
        r = self.round
        for writer, row in read_rows(cluster.store, reads, r.writers, needed, cluster.parallel, r.together):
            if isinstance(row, Fault):
                yield writer, row
                continue
            if self.lifted is not None:
                self.lifted.show(read=row.num_rows)
            yield writer, Packable(row)

    def write(self, cluster: ClusterHandles, rows: Iterable[Packable | Fault]) -> Iterator[tuple[int, Files | Fault]]:
        """Yield the L1 objects, durable but not committed, each with the task that commits them."""
        number = {take.journal: i for i, take in enumerate(self.round.takes)}
        arriving = (row if isinstance(row, Fault) else row.batch for row in rows)
        r, c = self.round, cluster
        written = write_l1(
            c.store, r.topics(), r.epoch, arriving, c.runtime, c.parallel, alone=r.alone, drains=self.drains,
            wrote=self._wrote, begin=self.begin,
        )  # fmt: skip
        yield from handed_on(written, number)

    def _wrote(self, records: int) -> None:
        if self.lifted is not None:
            self.lifted.show(wrote=records)

    def commit(self, cluster: ClusterHandles, parts: Iterable[Files | Fault]) -> Iterator[Outcome]:
        yield from commit_round(cluster, self.round, gathered(parts)).values()


def handed_on(written: WrittenL1, number: Mapping[int, int]) -> Iterator[tuple[int, Files | Fault]]:
    """Yield a writer's results, each with the task that commits it, given by journal."""
    for journal, revision in written.files | written.shared:
        at = journal, revision
        rows = written.files.get(at, NO_L1_ROWS), written.misfits.get(at, NO_MISFITS)
        yield number[journal], Files(*at, *rows, written.shared.get(at, ()))
    for fault in written.faults:
        yield number[fault.journal], fault


def gathered(parts: Iterable[Files | Fault]) -> WrittenL1:
    written = WrittenL1()
    for part in parts:
        if isinstance(part, Fault):
            written.faults.append(part)
            continue
        at = part.journal, part.revision
        written.files[at] = np.concatenate([written.files.get(at, NO_L1_ROWS), part.files])
        written.misfits[at] = np.concatenate([written.misfits.get(at, NO_MISFITS), part.misfits])
        written.shared.setdefault(at, []).extend(part.shared)
    return written


def commit_round(cluster: ClusterHandles, r: Round, written: WrittenL1) -> dict[int, ReconcileResult]:
    """Commit a round's objects in their journals; return the results by journal.

    A partition is `lost` if the journal refused it and has none of this commit's objects: another reconciler was first, the
    topic is gone, or vacuum has deleted the objects since an earlier try landed.
    """
    done: dict[int, ReconcileResult] = {}
    for take in r.takes:
        journal = take.journal
        files, misfits = (
            {revision: rows for (of, revision), rows in by_topic.items() if of == journal}
            for by_topic in (written.files, written.misfits)
        )
        shared = {revision: objects for (of, revision), objects in written.shared.items() if of == journal}
        faults = [f for f in written.faults if f.journal == journal]
        if files or shared or faults:
            done[journal] = Commit(cluster, take, r.epoch).run(files, faults, misfits, shared)
    return done


# -- the commit ----------------------------------------------------------------------------------------------------------


class Commit(Editor):
    """Commits one round, with its epoch, in one journal, from which it took `window`."""

    def __init__(self, cluster: ClusterHandles, window: Window, epoch: int) -> None:
        self._epoch, self._result = epoch, ReconcileResult()
        super().__init__(cluster.journal(window.journal), window.topics, self._result.errors)

    def run(
        self,
        files: Mapping[int, Rows],
        faults: Sequence[Fault] = (),
        misfits: Mapping[int, Rows] = {},
        shared: Mapping[int, Sequence[SharedObject]] = {},
    ) -> ReconcileResult:
        """Commit L1 objects. The result's errors contain failures of this journal alone.

        Args:
            files: rows of `L1_ROW` of each topic, by revision, without a gap within a partition; all durable.
            faults: records that could not be lifted; they are reported unless another reconciler has lifted them.
            misfits: rows of `MISFITS` of each topic, by revision; the state counts those of the partitions that land.
            shared: the shared objects of each topic, by revision; all of them are durable.

        Raises:
            StoreError: the store does not answer, or refuses access.
        """
        with self.recording_errors():
            revisions = sorted(r for r in {**files, **shared} if len(files.get(r, ())) or shared.get(r))
            ordered = {r: in_order(files.get(r, NO_L1_ROWS)) for r in revisions}
            self.handle.catch_up()
            counts = {r: np.sort(misfits.get(r, NO_MISFITS), order="partition") for r in ordered}
            changes = [(r, {"added": rows, "misfits": counts[r]}) for r, rows in ordered.items()]
            landed = self.land(RECONCILE, self._epoch, changes, shared=shared)
            for revision, rows in ordered.items():
                refused = {p: why for (r, p), why in landed.refused.items() if r == revision}
                self._count(revision, rows, shared.get(revision, ()), counts[revision], refused)
            with self.handle.replica.lock:
                left = [f for f in (still_there(self.handle.state, f) for f in faults) if f is not None]
            self._report(left)
        return self._result

    # -- what became of it --------------------------------------------------------------------------------------------

    def _count(
        self,
        revision: int,
        files: Rows,
        shared: Sequence[SharedObject],
        misfits: Rows,
        refused: Mapping[int, str],
    ) -> None:
        """Add up the objects that landed, now or at an earlier try, and report those that did not because vacuum has
        fenced them off.
        """
        rows = np.concatenate([files, *(o.listed() for o in shared)])
        refused_rows = rows[np.isin(rows["partition"], list(refused))]
        with self.handle.replica.lock:  # a single object proves that an earlier try landed
            landed = set(refused_rows["partition"][self.handle.state.has_named(revision, refused_rows)].tolist())
            for o in shared if len(refused_rows) else ():
                landed |= set(self.handle.state.has_landed(revision, o).tolist()) & refused.keys()
        counted = rows[~np.isin(rows["partition"], list(refused.keys() - landed))]
        if len(counted):
            self._result.count_in({revision: distinct(counted["partition"])})
        self._result.records += int((counted["last"] - counted["base"] + 1).sum())
        named = [o.as_row() for o in shared if np.isin(o.partitions, counted["partition"]).any()]
        objects = np.concatenate([files[np.isin(files["partition"], counted["partition"])], *named])
        self._result.l1_objects += len(objects)
        self._result.bytes += int(objects["bytes"].sum())
        self._result.misfits += int(misfits["records"][np.isin(misfits["partition"], counted["partition"])].sum())
        rest = refused_rows[~np.isin(refused_rows["partition"], list(landed))]
        partitions, firsts = np.unique(rest["partition"], return_index=True)
        with self.handle.replica.lock:
            state = self.handle.state
            topic = state.topics.get(revision)
            waits = np.zeros(len(partitions), bool)
            if topic is not None and self._epoch < state.l1_fence:
                waits = is_unreconciled(topic, partitions, rest["base"][firsts])
        self._result.lost += int((~waits).sum())
        whys = dict.fromkeys(refused[p] for p in partitions[waits].tolist())
        self.errors += [f"journal {self.handle.journal}: {why}" for why in whys]

    def _report(self, faults: Iterable[Fault]) -> None:
        """Add the records that could not be lifted to the errors, each cause once, with its partitions."""
        partitions_by_text: dict[str, list[str]] = {}
        ways: dict[str, str] = {}
        for f in faults:
            name = self.topics[f.revision].name
            partitions_by_text.setdefault(f.message, []).extend(f"{name}/{p}" for p in f.partitions.tolist())
            with self.handle.replica.lock:
                topic = self.handle.state.topic(f.revision)
                giving_up = topic.how_to_give_up(int(f.partitions[0]), int(f.bases[0]))
            way = f"; without a copy, give its records up: {giving_up}" if giving_up and not f.may_return else ""
            ways.setdefault(f.message, way)
        sentences = [
            f"{text}; it holds {named_partitions(names)}{ways[text]}"
            for text, names in sorted(partitions_by_text.items())
        ]
        self.errors += sentences[:_SHOWN]
        if len(sentences) > _SHOWN:
            self.errors.append(f"and {len(sentences) - _SHOWN} more of that kind in journal {self.handle.journal}")


def named_partitions(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others, as text."""
    if len(names) <= _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])} and {count(len(names) - _SHOWN, 'more partition')}"
