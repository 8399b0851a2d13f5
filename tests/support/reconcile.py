"""Makes L0 objects by hand, runs reconcile without Spark, step by step if a test needs it, and reads what is in L1."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from l0gc.keys import PartitionId
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest.headers_and_times import NO_TIME, Headers, column_of
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.topic import L1File, l1_file, l1_key, shared_key
from l0gc.streamlog.level_one import reconcile as runs
from l0gc.streamlog.level_one.parquet import L1_COLUMNS, RECORD, WantedFile, open_l1, read_l1
from l0gc.streamlog.level_one.plan import ROUND_BYTES, Fault, Round, choose_steps, make_round, plan_journal, windows_of
from l0gc.streamlog.level_one.read import Row, read_rows
from l0gc.streamlog.level_one.write import WrittenL1
from tests.support.blocks import Chunk, pack

Records = Mapping[int, Sequence[bytes]]
"""The values of each partition's records."""


class Written(bytes):
    """A value; its record has as create time the number after an @, and as headers the text after a #."""


def create_time_of(value: bytes) -> int:
    time = value.partition(b"#")[0].partition(b"@")[2] if isinstance(value, Written) else b""
    return int(time) if time else NO_TIME


def headers_of_value(value: bytes) -> Headers:
    mark, header = value.partition(b"#")[1:] if isinstance(value, Written) else (b"", b"")
    return (("h", header), ("h", None)) if mark else ()


def stored(
    cluster: ClusterHandles, topic: Topic, records: Records, *, epoch: int | None = None
) -> dict[int, ObjectExtents]:
    """Store an L0 object with these records, and return its extents for each journal.

    A record's key is its value up to a colon; without a colon it has no key.
    """
    groups: dict[int, list[Chunk]] = {}
    for partition, values in sorted(records.items()):
        keys = [v.split(b":")[0] if b":" in v else None for v in values]
        times, headers = [create_time_of(v) for v in values], [headers_of_value(v) for v in values]
        groups.setdefault(topic.journal_of(partition), []).append(Chunk(partition, values, keys, times, headers))
    packed = pack(list(groups.values()), topic.revision, topic.topic_id)
    parts = zip(groups, packed.parts.values(), strict=True)
    layout, name = cluster.controller.layout(), cluster.runtime.new_id()
    at = cluster.controller.epoch() if epoch is None else epoch
    key = layout.format(layout.shard_of(name), at, name)
    cluster.store.put(key, packed.body)
    return {journal: msgspec.structs.replace(part.extents, key=key, epoch=at) for journal, part in parts}


def put(cluster: ClusterHandles, topic: str, *objects: Records) -> list[str]:
    """Upload L0 objects, those of one call in one entry of each journal; return their keys."""
    target = cluster.controller.snapshot().topic(topic)
    of_journal: dict[int, list[ObjectExtents]] = {}
    keys = []
    for records in objects:
        parts = stored(cluster, target, records)
        keys.append(next(iter(parts.values())).key)
        for journal, part in parts.items():
            of_journal.setdefault(journal, []).append(part)
    for journal, parts_of in of_journal.items():
        appended = cluster.journal(journal).append(parts_of)
        assert appended.error is None, appended.error
    return keys


# -- runs -----------------------------------------------------------------------------------------------------------------


def reconcile(
    cluster: ClusterHandles, topic: str | None = None, *, round_bytes: int = ROUND_BYTES, **limits: Any
) -> runs.ReconcileResult:
    """Reconcile everything, or what the limits allow; every partition and every removal is expected to succeed."""
    result = runs.reconcile(cluster, topic, round_bytes=round_bytes, **limits)
    assert not result.errors
    return result


def reconcile_but(
    cluster: ClusterHandles, partitions: Collection[int], topic: str | None = None
) -> runs.ReconcileResult:
    """Reconcile all topics, or one, without some partitions, as if these had their own reconciler, which is down."""

    def without(*arguments: Any) -> Iterator[tuple[int, Row]]:
        lagging = pa.array(sorted(partitions), pa.int64())
        for writer, row in read_rows(*arguments):
            yield writer, row if isinstance(row, Fault) else row.filter(pc.invert(pc.is_in(row["partition"], lagging)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "read_rows", without)
        return reconcile(cluster, topic)


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that has written its L1 objects, but not committed them."""

    cluster: ClusterHandles
    round: Round
    written: WrittenL1

    def commit(self) -> list[runs.ReconcileResult]:
        """Commit, and return the result for each journal."""
        return list(runs.commit_round(self.cluster, self.round, self.written).values())

    @property
    def keys(self) -> set[str]:
        """Return the keys of its L1 objects."""
        topics = self.round.topics()
        return {
            l1_key(topics[revision].id(f.partition), f)
            for (_, revision), rows in self.written.files.items()
            for f in map(l1_file, rows)
        } | {
            shared_key(topics[revision].name, revision, journal, o)
            for (journal, revision), objects in self.written.shared.items()
            for o in objects
        }


def planned(cluster: ClusterHandles, topic: str | None = None, *, cores: int = 1) -> Round:
    """Return the round that takes all records."""
    state = cluster.controller.snapshot()
    windows = windows_of(state, topic)
    plans = [plan_journal(cluster.journal(w.journal), w, ROUND_BYTES) for w in windows]
    assert not [e for p in plans for e in p.errors]
    return make_round(state.epoch, windows, choose_steps(plans, ROUND_BYTES), cores, state.partition_count)


def begin(cluster: ClusterHandles, topic: str | None = None) -> Begun:
    """Plan, read and write all records."""
    r = planned(cluster, topic)
    found = LocalWorkers(cluster).flow(range(len(r.takes)), *runs.Lift(r).stages(1)[:-1])
    return Begun(cluster, r, runs.gathered(what for _, what in found))


# -- contents -------------------------------------------------------------------------------------------------------------


def partition_of(cluster: ClusterHandles, topic: str, partition: int) -> PartitionId:
    return cluster.controller.snapshot().topic(topic).id(partition)


def files(cluster: ClusterHandles, topic: str, partition: int) -> list[L1File]:
    """Return the L1 objects of a partition that its journal names."""
    known = cluster.controller.snapshot().topic(topic)
    return cluster.journal(known.journal_of(partition)).catch_up().topic(known.revision).files(partition)


def named(cluster: ClusterHandles, topic: str) -> set[str]:
    """Return the keys of all L1 objects that a topic's journals name."""
    t = cluster.controller.snapshot().topic(topic)
    shared = {
        o.key
        for journal in t.journals
        for o in cluster.journal(journal).catch_up().topic(t.revision).shared_objects(topic, journal)
    }
    return {l1_key(t.id(p), f) for p in range(t.partitions) for f in files(cluster, topic, p)} | shared


def l1_records(
    store: ObjectStore, key: str, file: L1File, start: int = 0, names: Sequence[str] = RECORD
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the records of an L1 object from the row group with `start` on, as (offset of the first, batch)."""
    opened = open_l1(store, WantedFile(key, file, start, file.last_offset + 1), whole_bytes=0)
    for base, batch in read_l1(store, opened, list(dict.fromkeys(["offset", *names]))):
        yield (
            base,
            pa.RecordBatch.from_arrays([column_of(batch, L1_COLUMNS.field(n)) for n in names], names=list(names)),
        )


def lifted(cluster: ClusterHandles, topic: str, partition: int) -> list[bytes]:
    """Return the values of a partition's records in L1, in order, after checking each offset."""
    p = partition_of(cluster, topic, partition)
    values: list[bytes] = []
    for f in files(cluster, topic, partition):
        for base, batch in l1_records(cluster.store, l1_key(p, f), f):
            assert base == len(values)
            values += batch.column("value").to_pylist()
    return values


def unreconciled(cluster: ClusterHandles, topic: str, partition: int) -> int:
    """Return how many of a partition's records are not in L1."""
    t = cluster.controller.snapshot().topic(topic)
    state = cluster.journal(t.journal_of(partition)).catch_up()
    return state.topic(t.revision).view(partition).unreconciled_records
