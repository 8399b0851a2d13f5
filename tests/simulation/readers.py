"""Reads topics while everything changes, and checks the records."""

from __future__ import annotations

from contextlib import suppress

from l0gc.errors import CorruptObjectError, L0gcError, ObjectNotFoundError, PartitionClosedError, StoreError
from l0gc.operations import Read
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.reader import read_topic
from tests.simulation.actors import repeated
from tests.simulation.files import ADDED
from tests.simulation.jobs import run_all
from tests.simulation.losses import given_up
from tests.simulation.world import Process, World


@repeated
def reader(world: World, process: Process) -> None:
    """Reads everything; no record is read twice, and none is read in place of an acknowledged one."""
    cluster = world.cluster(process)
    for topic in cluster.controller.snapshot().topics.values():
        check_topic(world, cluster, topic, complete=False)


def _meanwhile(world: World) -> None:
    """Slow the reader down, and move the records that it has yet to read."""
    if world.random.random() < 0.7:
        world.sleep(5.0)
        return
    with suppress(L0gcError):
        run_all(world, world.cluster())


def _beyond(world: World, topic: Topic, partition: int, offset: int, at_most: int = 1 << 62) -> int:
    """Return the first offset from this one on, but not above `at_most`, that was not given up."""
    while offset < at_most and offset in given_up(world, topic, partition):
        offset += 1
    return offset


def check_topic(world: World, cluster: ClusterHandles, topic: Topic, *, complete: bool) -> dict[int, list[bytes]]:
    """Read a topic, and compare it with what was acknowledged before the reading began."""
    acknowledged = {p: dict(world.watch.acknowledged.get((topic.topic_id, p), {})) for p in range(topic.partitions)}
    starts = [world.watch.log_start(topic, p) for p in range(topic.partitions)]
    values: dict[int, list[bytes]] = {p: [] for p in range(topic.partitions)}
    firsts: dict[int, int] = {}
    ends: dict[int, int] = {}
    misreads = world.answers.misreads
    try:
        for r in read_topic(cluster, topic, Read(skip_holes=True)):
            mine = values[r.partition]
            first = firsts.setdefault(r.partition, r.offset)
            due = _beyond(world, topic, r.partition, ends.get(r.partition, first), r.offset)
            if r.offset != due and (world.losses is None or world.watch.is_live(topic)):  # a closed topic has no holes
                raise world.violation(
                    f"{topic.name}/{r.partition}: record {r.offset} came where {due} was due, {len(mine)} after {first}"
                )
            ends[r.partition] = r.offset + 1
            if acknowledged[r.partition].get(r.offset, r.value) != r.value:
                raise world.violation(
                    f"{topic.name}/{r.partition}: record {r.offset} is {r.value!r}, not the acknowledged one"
                )
            mine.append(r.value)
            if world.thread is not None and world.random.random() < 0.15:
                _meanwhile(world)
    except StoreError:
        raise  # an expected fault
    except (CorruptObjectError, ObjectNotFoundError, PartitionClosedError) as e:
        if isinstance(e, CorruptObjectError) and world.losses is not None and not complete:
            return values  # it is lost, but not yet given up
        if not world.watch.is_live(topic) or world.answers.misreads > misreads:
            raise  # its objects may be deleted before its journals are closed; or the store has misled it
        raise world.violation(f"{topic.name}: {e}") from e
    for p in values:
        now = _beyond(world, topic, p, world.watch.log_start(topic, p))
        if p in firsts and world.watch.is_live(topic) and not starts[p] <= firsts[p] <= now:
            raise world.violation(
                f"{topic.name}/{p}: it was read from {firsts[p]} on, and begins at {starts[p]} or {now}"
            )
        end = _beyond(world, topic, p, ends.get(p, now))
        if (complete or world.watch.is_live(topic)) and acknowledged[p] and max(acknowledged[p]) >= end:
            raise world.violation(f"{topic.name}/{p}: acknowledged record {max(acknowledged[p])} is not there")
    every = [v for mine in values.values() for v in mine]
    if ADDED in every:
        raise world.violation(f"{topic.name}: what was {ADDED.decode()} was sent, and a repeat would send it again")
    if len(set(every)) != len(every):
        twice = sorted(v for v in set(every) if every.count(v) > 1)
        raise world.violation(f"{topic.name}: {twice[0]!r} is there twice")
    return values
