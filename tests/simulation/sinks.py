"""Queries that write a stream into a topic as Spark's do: drivers with a checkpoint, replays, and checkpoints that go
back.

Tasks and drivers run the real code (`stage.py`, `sink.py`). A driver records the end of a micro-batch before it writes
it, and its completion afterwards; if it dies in between, the next driver writes the same rows again, cut differently. A
checkpoint that goes back loses its newest records, and the source has more rows by then, so that a number returns with
a larger range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from l0gc.errors import BatchMismatchError, NotFoundError
from l0gc.integrations.spark.sink import BatchId, commit
from l0gc.integrations.spark.stage import Stager
from l0gc.storage.parallel import InlineExecutor
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest.landing import WrittenObject
from tests.simulation.actors import TOPICS, repeated
from tests.simulation.world import Process, World

WENT_BACK = "checkpoints that went back"
REFUSED = "micro-batches with other rows that were refused"
REPEATED = "micro-batches that were repeated and skipped"


@dataclass
class Checkpoint:
    """The ends of micro-batches in the source, and the number of the last one that has ended."""

    ends: dict[int, int] = field(default_factory=dict)
    ended: int = -1

    def copy(self) -> Checkpoint:
        return replace(self, ends=dict(self.ends))


@dataclass
class Query:
    """A query and its source, which outlive its drivers. `written` are the rows that Spark counts as written."""

    id: str
    topic: Topic
    rows: list[bytes] = field(default_factory=list)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    older: Checkpoint | None = None
    written: set[bytes] = field(default_factory=set)
    went_back: bool = False
    stopped: bool = False


@repeated
def sink(world: World, process: Process, queries: list[Query]) -> None:
    """Runs one micro-batch as a driver of a query; the query may have another driver at the same time."""
    cluster = world.cluster(process)
    query = _query(world, cluster, queries, process.name)
    if world.random.random() < 0.3:
        _go_back(world, query)
    query.rows += [
        f"{query.id}-{n}".encode() for n in range(len(query.rows), len(query.rows) + world.random.randrange(1, 6))
    ]
    checkpoint = query.checkpoint
    number = checkpoint.ended + 1
    first = checkpoint.ends.get(number - 1, 0)
    rows = query.rows[first : checkpoint.ends.setdefault(number, len(query.rows))]
    staged = _staged(world, cluster, query.topic, rows, first, number)
    producer = f"spark-{query.id}"
    try:
        result = commit(cluster, staged, BatchId(producer, query.id, number, query.topic.name))
    except BatchMismatchError as e:
        _refused(world, query, checkpoint, number, e)
        return
    except NotFoundError:
        query.stopped = True  # the topic is gone, or an object was swept
        raise
    world.happened[REPEATED] += result.skipped > 0
    query.written.update(rows)
    checkpoint.ended = max(checkpoint.ended, number)
    if world.random.random() < 0.3:
        query.older = checkpoint.copy()


def _query(world: World, cluster: ClusterHandles, queries: list[Query], driver: str) -> Query:
    """Return the newest query if its topic still exists; else begin another one."""
    topics = cluster.controller.snapshot().topics
    if queries and not queries[-1].stopped:
        topic = topics.get(queries[-1].topic.name)
        if topic is not None and topic.topic_id == queries[-1].topic.topic_id:
            return queries[-1]
        queries[-1].stopped = True
    known = [topics[name] for name in TOPICS if name in topics]
    if not known:
        raise NotFoundError("the cluster has no topic to write into")
    queries.append(Query(f"query{len(queries)}-of-{driver}", world.random.choice(known)))
    return queries[-1]


def _go_back(world: World, query: Query) -> None:
    """Restore an older copy of the checkpoint, or remove its newest files."""
    back = query.checkpoint.copy()
    if query.older is not None and world.random.random() < 0.5:
        back = query.older.copy()
    elif back.ends:
        newest = max(back.ends)
        del back.ends[newest]
        back.ended = min(back.ended, newest - 1)
    query.checkpoint, query.older, query.went_back = back, None, True  # running drivers keep the previous one
    world.happened[WENT_BACK] += 1


def _staged(
    world: World, cluster: ClusterHandles, topic: Topic, rows: Sequence[bytes], first: int, number: int
) -> list[WrittenObject]:
    """Return what the tasks of a micro-batch write, cut at random. A third of the rows name their partition, and
    another third have a key.
    """
    staged: list[WrittenObject] = []
    tasks = world.random.randrange(1, 4)
    for task in range(tasks):
        mine = [(n, row) for n, row in enumerate(rows, first) if n % tasks == task]
        columns = {
            "value": pa.array([row for _, row in mine], pa.binary()),
            "key": pa.array([row if n % 3 == 1 else None for n, row in mine], pa.binary()),
            "partition": pa.array([n % topic.partitions if n % 3 == 0 else None for n, _ in mine], pa.int32()),
        }
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        size = world.random.choice([1 << 10, 40])
        stager = Stager(cluster, topic.name, InlineExecutor(), turn=number, first=task, object_bytes=size)
        staged += stager.run([batch])
    return staged


def _refused(world: World, query: Query, checkpoint: Checkpoint, number: int, error: BatchMismatchError) -> None:
    """Check that a refusal is justified: the checkpoint went back, or another driver is further with it."""
    world.happened[REFUSED] += 1
    if query.went_back:
        query.stopped = True  # stopped until an operator follows the error message, see `check`
    elif checkpoint.ended < number:
        raise world.violation(f"{query.id}: batch {number} was refused, and no other rows had its number: {error}")


def check(world: World, query: Query, there: Mapping[int, Sequence[bytes]], deleted: bool) -> None:
    """Check that each row that counts as written is in the topic, and that none is in it twice."""
    found = Counter(v for values in there.values() for v in values)
    for row in query.rows:
        if found[row] > 1:
            raise world.violation(f"{query.topic.name} has {row!r} of a query {found[row]} times")
        if row in query.written and not found[row] and not deleted:
            raise world.violation(f"{query.topic.name} does not have {row!r}, which a query has written")
