"""What processes do that should not be there, or not like that: each must be refused, and none may do harm."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from l0gc.errors import ClusterMismatchError, L0gcError, StoreError
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.ingest.extents import Chunk
from l0gc.streamlog.ingest.uploader import ProducerSession
from l0gc.streamlog.journal.entries import ProducerBatch
from l0gc.streamlog.topics import create_topic
from tests.simulation.actors import TOPICS, Body, check_fences, new_lines, repeat, upload
from tests.simulation.world import Process, World

FAR_ABOVE = (1_000, 10**6, 10**17)


def poisoner(world: World, times: int) -> Body:
    """Offers partitions epochs that the cluster has not reached."""

    def once(process: Process) -> None:
        cluster = world.cluster(process)
        epoch = cluster.controller.epoch()
        layout = cluster.controller.layout()
        for p in cluster.controller.snapshot().topic(world.random.choice(TOPICS)).ids():
            handle = cluster.partition(p)
            above = epoch + world.random.choice(FAR_ABOVE)
            if world.random.random() < 0.3:
                with suppress(L0gcError):
                    (handle.advance if world.random.random() < 0.5 else handle.barrier)(above)
                continue
            name = cluster.runtime.new_id()
            key = layout.format(layout.shard_of(name), epoch, name)
            body, (extent,) = extents.pack([Chunk(p.partition, 0, [b"poison"], [None])], key)
            cluster.store.put(key, body)
            handle.append_placeholder(extent, above)

    return repeat(world, times, once)


def zombie(world: World, times: int, sessions: list[tuple[int, int]]) -> Body:
    """A producer that goes on under a run which another one has superseded; `sessions` outlive it, and every break."""

    def once(process: Process) -> None:
        cluster = world.cluster(process)
        for _ in range(2):
            p = cluster.controller.init_producer("zombie")
            sessions.append((p.producer_id, p.epoch))
        producer_id, epoch = sessions.pop(world.random.randrange(len(sessions)))  # a sequence is never used twice
        lines = new_lines(world, process.name)
        session = ProducerSession("zombie", producer_id, epoch)
        upload(world, cluster, world.random.choice(TOPICS), lines, lines[0].decode(), session)

    return repeat(world, times, once)


def repeater(world: World, times: int) -> Body:
    """Sends a batch again that has landed, at a newer epoch: it is answered, and shuts nobody out."""

    def once(process: Process) -> None:
        if process.kept is None:
            process.kept = world.cluster(process, epoch_cache_s=1.0)
        cluster = process.kept
        layout = cluster.controller.layout()
        run = cluster.controller.init_producer("repeater")
        p = world.random.choice(cluster.controller.snapshot().topic(world.random.choice(TOPICS)).ids())
        handle = cluster.partition(p)
        epoch = cluster.controller.epoch()
        name, value = cluster.runtime.new_id(), new_lines(world, process.name)[0]
        key = layout.format(layout.shard_of(name), epoch, name)
        body, (extent,) = extents.pack([Chunk(p.partition, 0, [value], [None])], key)
        extent = msgspec.structs.replace(extent, producer=ProducerBatch(run.producer_id, run.epoch, 0))
        cluster.store.put(key, body)
        landed = handle.append_placeholder(extent, epoch)
        world.watch.acknowledge(p, landed.base_offset, 1, [value])
        world.sleep(world.weather.epoch_interval_s)
        if handle.append_placeholder(extent, cluster.controller.epoch()) != landed:
            raise world.violation(f"{p}: a repeated batch was not answered with where it landed")
        check_fences(world, cluster)

    return repeat(world, times, once)


def stranger(world: World, times: int) -> Body:
    """Takes the bucket for another cluster's."""

    def once(process: Process) -> None:
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

    return repeat(world, times, once)


def founder(world: World, times: int) -> Body:
    """Creates new topics, and nothing else: what somebody does who has not noticed that the controller log is old."""

    def once(process: Process) -> None:
        create_topic(world.cluster(process), f"new-{world.random.getrandbits(32):08x}", 1)

    return repeat(world, times, once)


def advancer(world: World, times: int) -> Body:
    """Advances the epoch behind an old controller log: far enough, as an operator is told to, or not."""

    def once(process: Process) -> None:
        cluster = world.cluster(process)
        least = world.watch.epoch if world.random.random() < 0.7 else 0
        while cluster.controller.advance() < least:
            pass

    return repeat(world, times, once)
