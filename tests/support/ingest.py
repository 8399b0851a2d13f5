"""Uploads in this process, one call after another, and what they left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path

from l0gc.storage.parallel import InlineExecutor
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.ingest.inputs import open_inputs
from l0gc.streamlog.ingest.partitioner import InTurn, Partitioner
from l0gc.streamlog.ingest.uploader import DEFAULT_BATCH_BYTES, ProducerSession, Uploader, UploadResult
from l0gc.streamlog.reader import read_partition


def producer_session(cluster: Cluster, name: str) -> ProducerSession:
    """A new run of the producer `name`, which fences the one before."""
    p = cluster.controller.init_producer(name)
    return ProducerSession(name, p.producer_id, p.epoch)


def upload(
    cluster: Cluster,
    topic: str,
    files: Sequence[Path],
    *,
    session: ProducerSession | None = None,
    partitioner: Partitioner | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    progress: Callable[[int, int], None] = lambda records, size: None,
    packers: Executor | None = None,
    committer: Executor | None = None,
) -> UploadResult:
    """Upload the files as `l0gc upload` does; in turn to the partitions, if not told otherwise."""
    target = cluster.controller.snapshot().topic(topic)
    spread = partitioner or InTurn(target.partitions)
    with ExitStack() as stack:
        inputs = open_inputs([str(f) for f in files], spread.describe() if session is not None else None, stack)
        return Uploader(
            cluster,
            target,
            spread,
            packers=packers or InlineExecutor(),
            committer=committer or InlineExecutor(),
            batch_bytes=batch_bytes,
            producer=session,
            progress=progress,
        ).run(inputs)


def stored_values(cluster: Cluster, topic: str) -> list[list[bytes]]:
    """The records of each partition, in order, each offset checked."""
    found = []
    for p in cluster.controller.snapshot().topic(topic).ids():
        records = list(read_partition(cluster.store, cluster.partition(p)))
        assert [r.offset for r in records] == list(range(len(records)))
        found.append([r.value for r in records])
    return found
