"""reconcile on Spark: executors plan, read, write and commit; the driver gets a few numbers for each journal.

A round is one job of four stages. A task for each journal replays it and hands out what is to be read; readers fetch and
check it; writers bring each partition's records together and write L1; a task for each journal commits. What goes between
them is packed: thousands of records are one value to Spark, which neither looks into it nor sorts it.

A task may run twice, or a run may die: L1 objects have random names and count only when a journal names them, the same
records sent twice are written once, and a commit that landed before is recognised (`level_one/`). The work itself is done
by the functions there, which do not depend on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from l0gc.spark.handles import ClusterAddress, cluster_at
from l0gc.spark.remote import collected
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.rows import Rows
from l0gc.streamlog.level_one.commit import Committed
from l0gc.streamlog.level_one.plan import ROUND_BYTES, Fault, JournalPlan, ObjectRead, Round, Window, reads_of
from l0gc.streamlog.level_one.read import ROWS, Row, read_rows
from l0gc.streamlog.level_one.reconcile import (
    ReconcileResult,
    commit_journal,
    plan_journal,
    run_rounds,
    still_needed,
)
from l0gc.streamlog.level_one.write import WrittenL1, write_l1

_TASKS_PER_CORE: Final = 4
"""At the most, of those that go through the journals."""

Packed = tuple[int, "bytes | Fault"]
"""What a reader sends: the number of the writer, and a batch as an Arrow stream or a fault."""
Files = tuple[int, "tuple[int, Rows] | Fault"]
"""What a writer sends: the journal, and the rows of one revision's L1 objects or a fault."""


def run(
    spark: SparkSession,
    cluster: Cluster,
    config: StoreConfig,
    topic: str | None = None,
    *,
    round_bytes: int = ROUND_BYTES,
    progress: Callable[[ReconcileResult], None] = lambda result: None,
) -> ReconcileResult:
    """Lift everything that is unreconciled now, in one topic or in all of them; see `run_rounds`.

    Args:
        config: where the bucket is, as the executors will look for it.
    """
    return run_rounds(cluster, OnSpark(spark, config), topic, round_bytes=round_bytes, progress=progress)


class OnSpark:
    """Does the work of rounds on a Spark session's executors."""

    def __init__(self, spark: SparkSession, config: StoreConfig) -> None:
        self._context, self._address = spark.sparkContext, ClusterAddress(config)

    @property
    def cores(self) -> int:
        return self._context.defaultParallelism

    def plan(self, windows: Sequence[Window], budget: int) -> list[JournalPlan]:
        tasks = self._context.parallelize(windows, self._tasks(windows))
        return collected(tasks.mapPartitions(_planner(self._address, budget)))

    def lift(self, r: Round) -> list[Committed]:
        tasks = _Tasks(self._address, r)
        number = {take.window.journal: i for i, take in enumerate(r.takes)}
        commits = self._tasks(r.takes)
        reads = self._context.parallelize(range(len(r.takes)), commits).mapPartitions(tasks.hand_out)
        rows = reads.partitionBy(r.readers, _itself).mapPartitions(tasks.read)
        files = rows.partitionBy(r.writers, _itself).mapPartitions(tasks.write)
        by_journal = files.partitionBy(commits, lambda journal: number[journal])
        return collected(by_journal.mapPartitions(tasks.commit))

    def _tasks(self, journals: Sequence[object]) -> int:
        return max(1, min(len(journals), _TASKS_PER_CORE * self.cores))


def _itself(number: int) -> int:
    return number


def _planner(address: ClusterAddress, budget: int) -> Callable[[Iterable[Window]], Iterator[JournalPlan]]:
    def plan(windows: Iterable[Window]) -> Iterator[JournalPlan]:
        for window in windows:
            yield plan_journal(cluster_at(address).journal(window.journal), window, budget)

    return plan


@dataclass(frozen=True)
class _Tasks:
    """The four kinds of tasks of a round, as they are sent to the executors."""

    address: ClusterAddress
    round: Round

    def hand_out(self, takes: Iterable[int]) -> Iterator[tuple[int, ObjectRead]]:
        """What is to be read, and by which reader."""
        for number in takes:
            take, before = self.round.takes[number], 0
            state = cluster_at(self.address).journal(take.window.journal).catch_up()
            for read in reads_of(state, take.window):
                yield self.round.reader_of(take, before), read
                before += read.bytes

    def read(self, reads: Iterable[tuple[int, ObjectRead]]) -> Iterator[Packed]:
        """The records, and which writer gets them."""
        cluster = cluster_at(self.address)
        needed = still_needed(cluster.journal)
        objects = (read for _, read in reads)
        for writer, row in read_rows(cluster.store, objects, self.round.writers, needed, cluster.parallel):
            if isinstance(row, Fault):
                yield writer, row
                continue
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, ROWS) as stream:
                stream.write_batch(row)
            yield writer, sink.getvalue().to_pybytes()

    def write(self, packed: Iterable[Packed]) -> Iterator[Files]:
        """The L1 objects, durable and not committed."""

        def arriving() -> Iterator[Row]:
            for _, row in packed:
                if isinstance(row, Fault):
                    yield row
                else:
                    yield from pa.ipc.open_stream(row)

        cluster, r = cluster_at(self.address), self.round
        written = write_l1(cluster.store, r.topics(), r.epoch, arriving(), cluster.runtime, cluster.parallel)
        for (journal, revision), rows in written.files.items():
            yield journal, (revision, rows)
        for fault in written.faults:
            yield fault.journal, fault

    def commit(self, found: Iterable[Files]) -> Iterator[Committed]:
        """What became of it, journal by journal."""
        parts: dict[tuple[int, int], list[Rows]] = {}
        faults: list[Fault] = []
        for journal, what in found:
            if isinstance(what, Fault):
                faults.append(what)
            else:
                parts.setdefault((journal, what[0]), []).append(what[1])
        written = WrittenL1({topic: np.concatenate(rows) for topic, rows in parts.items()}, faults)
        journals = {journal for journal, _ in parts} | {f.journal for f in faults}
        for take in self.round.takes:
            if (journal := take.window.journal) in journals:
                handle = cluster_at(self.address).journal(journal)
                yield commit_journal(cluster_at(self.address), handle, take.window, self.round.epoch, written)
