"""An upload from its beginning: what commands and the library share.

Check first, write after: nothing is appended to the controller's log or to a journal before both were compared with what is
published. Inputs are read once, for their ids, before a producer's run begins: a file that cannot be read must not fence the
run before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from l0gc.errors import UsageError
from l0gc.storage.parallel import WorkerThreads
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.ingest.formats import AUTO
from l0gc.streamlog.ingest.inputs import Input, Source, open_inputs
from l0gc.streamlog.ingest.partitioner import ByField, FixedPartition, Partitioner, RoundRobin
from l0gc.streamlog.ingest.uploader import DEFAULT_BATCH_BYTES, ProducerSession, Uploader
from l0gc.watermark.publication import refuse_if_set_back

_PACKERS: Final = 2
"""Threads that encode and write: one can compress while another waits for the store."""


def open_upload(
    cluster: Cluster,
    topic: str,
    sources: Sequence[Source],
    stack: ExitStack,
    *,
    partition: int | None = None,
    key_field: str | None = None,
    producer: str | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    form: str = AUTO,
    progress: Callable[[int, int], None] = lambda records, size: None,
) -> tuple[Uploader, list[Input]]:
    """An uploader, and what it is to run on.

    Without `partition` and `key_field`, records are spread round-robin over the partitions.

    Args:
        stack: ends the threads and closes the inputs.
        producer: the name under which a repeated upload lands nothing twice.
        form: what files hold, see `formats.py`.
        progress: see `Uploader`.

    Raises:
        UsageError: the arguments exclude each other, or an input cannot be read.
        TopicNotFoundError: there is no such topic.
        EpochRegressionError: what is published is above the cluster epoch; nothing was written.
        SetBackError: a journal of the topic was set back; nothing was written.
    """
    if partition is not None and key_field is not None:
        raise UsageError("--partition and --key-field exclude each other")
    target = cluster.controller.snapshot().topic(topic)
    refuse_if_set_back(cluster, target.journals)
    cluster.controller.tick_if_due()
    spread: Partitioner = RoundRobin(target.partitions)
    if partition is not None:
        spread = FixedPartition(partition, target.partitions)
    elif key_field is not None:
        spread = ByField(key_field, target.partitions)
    # A journal keeps an input's progress for all of its topics: the same file in another topic is another input.
    place = f"{target.topic_id} {spread.describe()}" if producer is not None else None
    inputs = open_inputs(sources, place, stack, form)
    session = None
    if producer is not None:
        session = ProducerSession.begin(cluster, producer, [cluster.journal(r.journal) for r in target.runs()])
    uploader = Uploader(
        cluster,
        target,
        spread,
        packers=stack.enter_context(WorkerThreads(_PACKERS, "pack")),
        committer=stack.enter_context(WorkerThreads(1, "commit")),
        batch_bytes=batch_bytes,
        producer=session,
        progress=progress,
    )
    return uploader, inputs
