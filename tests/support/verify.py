"""Creates a journal with records in L1 and in L0, without uploader and reconciler, for tests that read and damage it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from l0gc import columns
from l0gc.keys import PartitionId
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.journal import rows
from l0gc.streamlog.journal.entries import RECONCILE, Edit, EditedTopic
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import L1_ROW
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import L1File, TopicState, UnreconciledObject, l1_key
from l0gc.streamlog.level_one.parquet import L1_SCHEMA
from l0gc.watermark.histogram import read_listing
from l0gc.watermark.pipeline import WatermarkResult, run_pipeline
from tests.support.l1_files import l1_body
from tests.support.memory_store import topic_in_memory
from tests.support.reconcile import stored

RECORDS = {0: 10, 2: 6}


def loaded_cluster() -> ClusterHandles:
    """Create the topic events with three partitions in one journal: the `RECORDS` in L1, and as many again in an L0
    object.
    """
    cluster = topic_in_memory(3)
    put(cluster, RECORDS)
    lift(cluster)
    put(cluster, RECORDS)
    return cluster


def put(cluster: ClusterHandles, records: Mapping[int, int], name: str = "events") -> str:
    """Upload an L0 object with this many records for each partition and return its key, or raise why it did not land."""
    values = {p: [b"record-%05d" % i for i in range(n)] for p, n in records.items()}
    parts = stored(cluster, topic_of(cluster, name), values, epoch=cluster.controller.snapshot().epoch)
    for journal, extents in parts.items():
        appended = cluster.journal(journal).append([extents])
        if appended.error is not None:
            raise appended.error
    return next(iter(parts.values())).key


def lift(cluster: ClusterHandles, name: str = "events", *, per_file: int = 1_000_000) -> None:
    """Reconcile all records of the topic, at most this many into an L1 object."""
    topic = topic_of(cluster, name)
    epoch = cluster.controller.epoch()
    for partition_range in topic.partition_ranges():
        handle = cluster.journal(partition_range.journal)
        state = handle.catch_up().topics.get(topic.revision)
        if state is None:
            continue  # nothing has landed there yet
        files = []
        for partition in state.partitions.tolist():
            view, p = state.view(partition), topic.id(partition)
            if not view.unreconciled_records:
                continue
            first, end = view.last_reconciled_offset + 1, view.next_offset
            for base in range(first, end, per_file):
                file = L1File(partition, base, min(base + per_file, end) - 1, 0, 0, epoch, cluster.runtime.new_id())
                size = put_l1(cluster.store, p, file)
                row = (partition, base, file.last_offset, size, 0, epoch, rows.name_bytes(file.name), 0)
                files.append(np.array([row], L1_ROW))
        if files:
            lifted = EditedTopic.of(topic.revision, topic.topic_id, added=np.concatenate(files))
            assert handle.land(Edit(RECONCILE, epoch, [lifted])).refused == {}


def put_l1(store: ObjectStore, p: PartitionId, file: L1File) -> int:
    """Write an L1 object with the records that its name lists; return its size."""
    n = file.last_offset - file.base_offset + 1
    arrays = [
        columns.numbers(np.arange(file.base_offset, file.base_offset + n)),
        columns.repeated(0, n, L1_SCHEMA.field("timestamp").type),
        pa.nulls(n, pa.binary()),
        columns.binary([b"record-%05d" % i for i in range(file.base_offset, file.last_offset + 1)]),
        columns.repeated(file.epoch, n),
    ]
    body = l1_body(pa.Table.from_arrays(arrays, schema=L1_SCHEMA), l1_key(p, file), compression="zstd")
    store.put(l1_key(p, file), body)
    return len(body)


def compute_and_publish(cluster: ClusterHandles) -> int:
    """Compute M from the journals, and publish it."""
    return run_pipeline(cluster, JournalSource(cluster)).watermark


def scan_and_publish(cluster: ClusterHandles, *, accept_lost: bool = False) -> WatermarkResult:
    """Run what `l0gc compute-watermark` runs."""
    workers = LocalWorkers(cluster)
    return run_pipeline(
        cluster, JournalSource(cluster, workers), partial(read_listing, workers), accept_lost=accept_lost
    )


def topic_of(cluster: ClusterHandles, name: str = "events") -> Topic:
    return cluster.controller.snapshot().topic(name)


def handle_of(cluster: ClusterHandles, name: str = "events", partition: int = 0) -> JournalHandle:
    return cluster.journal(topic_of(cluster, name).journal_of(partition))


def state_of(cluster: ClusterHandles) -> JournalState:
    return handle_of(cluster).catch_up()


def events_of(cluster: ClusterHandles) -> TopicState:
    return state_of(cluster).topics[topic_of(cluster).revision]


def object_of(cluster: ClusterHandles, index: int = 0, name: str = "events") -> UnreconciledObject:
    """Return an unreconciled object, as the journal of the topic's first partition lists it."""
    return handle_of(cluster, name).catch_up().topics[topic_of(cluster, name).revision].objects[index]


def l1_of(cluster: ClusterHandles, partition: int = 0) -> tuple[str, L1File]:
    """Return the newest L1 object of a partition of events, with its key."""
    file = events_of(cluster).files(partition)[-1]
    return l1_key(topic_of(cluster).id(partition), file), file
