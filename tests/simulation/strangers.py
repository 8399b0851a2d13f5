"""Processes that misbehave: each must be refused, and none may do harm."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from l0gc.errors import ClusterMismatchError, L0gcError, StoreError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Producer, Topic
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.entries import RECONCILE, Edit, EditedTopic, ObjectExtents
from l0gc.streamlog.journal.producers import ProducerBatch
from l0gc.streamlog.journal.rows import L1_ROW, NUMBER
from l0gc.streamlog.topics import delete_topic
from tests.simulation.actors import TOPICS, check_fences, new_lines, repeated, upload
from tests.simulation.world import Process, World
from tests.support.reconcile import stored
from tests.support.topics import create_topic

FAR_ABOVE = (1_000, 10**6, 10**17)


@repeated
def poisoner(world: World, process: Process) -> None:
    """Offers journals epochs that the cluster has not reached."""
    cluster = world.cluster(process)
    epoch = cluster.controller.epoch()
    topic = cluster.controller.snapshot().topic(world.random.choice(TOPICS))
    above = epoch + world.random.choice(FAR_ABOVE)
    for journal in topic.journals:
        handle = cluster.journal(journal)
        if world.random.random() < 0.3:
            with suppress(L0gcError):
                (handle.advance if world.random.random() < 0.5 else handle.barrier)(above)
    parts = stored(cluster, topic, {p: [b"poison"] for p in range(topic.partitions)})
    for journal, part in parts.items():
        with suppress(L0gcError):
            cluster.journal(journal).append([msgspec.structs.replace(part, epoch=above)])


@repeated
def zombie(world: World, process: Process, sessions: list[Producer]) -> None:
    """Continues as a producer under a superseded run; `sessions` outlive the process and every break."""
    cluster = world.cluster(process)
    for _ in range(2):
        sessions.append(cluster.controller.init_producer("zombie"))
    session = sessions.pop(world.random.randrange(len(sessions)))  # a sequence is never used twice
    lines = new_lines(world, process.name)
    upload(world, cluster, world.random.choice(TOPICS), lines, lines[0].decode(), session)


@repeated
def repeater(world: World, process: Process) -> None:
    """Sends a landed object again at a newer epoch: it gets an answer, and no other process is shut out."""
    if process.kept is None:
        process.kept = world.cluster(process, epoch_cache_s=1.0)
    cluster = process.kept
    run = cluster.controller.init_producer("repeater")
    topic = cluster.controller.snapshot().topic(world.random.choice(TOPICS))
    value = new_lines(world, process.name)[0]
    ((journal, part),) = stored(cluster, topic, {world.random.randrange(topic.partitions): [value]}).items()
    part = msgspec.structs.replace(part, producer=ProducerBatch(run.producer_id, run.epoch, run.run, 0))
    handle = cluster.journal(journal)
    first = handle.append([part])
    if first.error is not None:
        raise first.error
    world.sleep(world.weather.epoch_interval_s)
    again = handle.append([msgspec.structs.replace(part, epoch=cluster.controller.epoch())])
    if again.error is not None:
        raise again.error
    if again.landed[0].log_offset != first.landed[0].log_offset:
        raise world.violation(f"journal {journal}: a repeated object was not answered with where it landed")
    check_fences(world, cluster)


@repeated
def twins(world: World, process: Process) -> None:
    """Offers objects of two runs of one producer together, and an object twice: each is admitted after the one before
    it.
    """
    cluster = world.cluster(process)
    topic = cluster.controller.snapshot().topic(world.random.choice(TOPICS))
    partition = world.random.randrange(topic.partitions)
    handle = cluster.journal(topic.journal_of(partition))

    def an_object(run: Producer, sequence: int, value: bytes) -> ObjectExtents:
        (part,) = stored(cluster, topic, {partition: [value]}).values()
        batch = ProducerBatch(run.producer_id, run.epoch, run.run, sequence)
        return msgspec.structs.replace(part, producer=batch)

    first = cluster.controller.init_producer("twins")
    values = [f"{process.name}-{world.random.getrandbits(48):012x}".encode() for _ in range(3)]
    handle.append([an_object(first, 0, values[0])])
    second = cluster.controller.init_producer("twins")
    handle.append([an_object(second, 0, values[1]), an_object(first, 1, b"of a run that was fenced just before")])
    handle.append([an_object(second, 1, values[2]), an_object(second, 1, values[2])])


@repeated
def elder(world: World, process: Process) -> None:
    """Offers a topic objects that are older than the topic, but not below its journal's window."""
    cluster = world.cluster(process)
    epoch, name = cluster.controller.snapshot().epoch, f"young-{world.random.getrandbits(32):08x}"
    journals = world.random.randint(1, world.weather.journals)
    topic = create_topic(cluster, name, journals, journals)
    value = new_lines(world, process.name)[0]
    for _ in range(2):
        parts = stored(cluster, topic, {world.random.randrange(topic.partitions): [value]}, epoch=epoch)
        for journal, part in parts.items():
            cluster.journal(journal).append([part])
        world.sleep(world.weather.epoch_interval_s)
    check_fences(world, cluster)
    delete_topic(cluster, name)


@repeated
def bungler(world: World, process: Process) -> None:
    """Offers objects that cannot be applied, and commits of L1 objects with the wrong records."""
    cluster = world.cluster(process)
    topic = cluster.controller.snapshot().topic(world.random.choice(TOPICS))
    partition = world.random.randrange(topic.partitions)
    (part,) = stored(cluster, topic, {partition: [b"bungled"]}).values()
    none, wrong = np.zeros(1, NUMBER).tobytes(), np.array([1, 1], NUMBER).tobytes()
    choices: list[dict[str, Any]] = [
        {"records": none},
        {"records": wrong},
        {"start": -1},
        {"key": ""},
        {"blocks": b""},
    ]
    bad = world.random.choice(choices)
    cluster.journal(topic.journal_of(partition)).append([msgspec.structs.replace(part, **bad)])
    commit_too_little(world, cluster, topic, partition)


def commit_too_little(world: World, cluster: ClusterHandles, topic: Topic, partition: int) -> None:
    """Commit only the first record of a partition's oldest object, with an L1 object that does not exist."""
    handle = cluster.journal(topic.journal_of(partition))
    state = handle.catch_up()
    extents = state.topic(topic.revision).extents(partition)
    if not extents or extents[0].records == 1:
        return
    first = extents[0].base_offset
    files = np.zeros(1, L1_ROW)
    files["partition"], files["base"], files["last"], files["epoch"] = partition, first, first, state.max_applied_epoch
    files["name"] = world.random.randbytes(16)
    edited = EditedTopic.of(topic.revision, topic.topic_id, added=files)
    handle.land(Edit(RECONCILE, state.max_applied_epoch, [edited]))


@repeated
def stranger(world: World, process: Process) -> None:
    """Mistakes the bucket for another cluster's."""
    cluster = world.cluster(process, cluster_id="another")
    world.note("expects another cluster")
    try:
        if world.random.random() < 0.5:
            upload(world, cluster, world.random.choice(TOPICS), new_lines(world, process.name))
        else:
            housekeep(cluster)
    except (ClusterMismatchError, StoreError):
        return
    raise world.violation("a process that expects another cluster was served")


@repeated
def founder(world: World, process: Process) -> None:
    """Creates new topics, and may delete them, as an operator does who has not noticed that the controller log is old."""
    cluster, name = world.cluster(process), f"new-{world.random.getrandbits(32):08x}"
    create_topic(cluster, name, world.weather.journals, world.weather.journals)
    if world.random.random() < 0.5:
        delete_topic(cluster, name)


@repeated
def advancer(world: World, process: Process) -> None:
    """Advances the epoch of an old controller log, either far enough, as the documents advise, or not."""
    cluster = world.cluster(process)
    process.recovers = world.random.random() < 0.5
    if process.recovers:
        cluster.controller.advance_above(world.watch.epoch)
    else:
        cluster.controller.advance()
