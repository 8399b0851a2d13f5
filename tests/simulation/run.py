"""One seed from beginning to end: a cluster under faults, then quiet, then nothing may be left over or missing."""

from __future__ import annotations

from dataclasses import dataclass

from l0gc.storage.parallel import Inline
from l0gc.sweep.local import LocalSweep
from l0gc.upkeep.housekeep import housekeep
from tests.simulation import actors
from tests.simulation.world import LAYOUT, NONE, Faults, World
from tests.support.reconcile import reconcile

MAX_STEPS = 6000


@dataclass(frozen=True)
class Outcome:
    steps: int
    crashes: int
    acknowledged: int
    swept: int


def simulate(seed: int, faults: Faults | None = None, max_steps: int = MAX_STEPS) -> Outcome:
    """Run a seed. Raises `Violation` if an invariant does not hold."""
    world = World(seed, faults or Faults())
    first = world.cluster()
    first.controller.bootstrap(shards=LAYOUT.shards)
    for name in actors.TOPICS:
        first.controller.create_topic(name, actors.PARTITIONS)
    finished: list[tuple[int, str, list[bytes]]] = []
    r = actors.repeat
    world.spawn("uploader-1", r(12, actors.uploader(world, "u1", 1.0)))
    world.spawn("uploader-2", r(12, actors.uploader(world, "u2", 3600.0)))
    world.spawn("producer", actors.producer(world, "p1", finished))
    world.spawn("reconciler-1", r(8, actors.reconciler(world)))
    world.spawn("reconciler-2", r(8, actors.reconciler(world)))
    world.spawn("housekeeper", r(12, actors.housekeeper(world)))
    world.spawn("topics", r(3, actors.topic_keeper(world)))
    world.spawn("watermark-1", r(10, actors.watermark_job(world)))
    world.spawn("watermark-2", r(10, actors.watermark_job(world)))
    world.spawn("sweeper", r(12, actors.sweeper(world)))
    world.spawn("reader", r(5, actors.reader(world)))
    world.run(max_steps)
    world.finish()
    world.faults = NONE
    swept = _drain(world)
    _check_all(world, finished)
    return Outcome(world.steps, world.crashes, len(world.acknowledged), swept)


def _drain(world: World) -> int:
    """Liveness: once faults stop, an operator's drain leaves no L0 object behind."""
    cluster = world.cluster()
    world.clock.ms += 60 * 60_000
    housekeep(cluster, barrier=True, checkpoint_entries=3)
    reconcile(cluster)
    housekeep(cluster)
    actors.compute_watermark(cluster)
    result = LocalSweep(cluster).run(Inline(), ranges=2)
    left = [k for k in world.store.objects if k.startswith(LAYOUT.data_prefix)]
    if left:
        raise world.violation(f"{len(left)} L0 objects are left over, e.g. {left[0]}, at M = {result.watermark}")
    return result.deleted


def _check_all(world: World, finished: list[tuple[int, str, list[bytes]]]) -> None:
    """Every acknowledged record can be read; every finished job's records are there once, in order."""
    cluster = world.cluster()
    there = {}
    for p in cluster.controller.snapshot().partitions():
        there[p] = actors.check_partition(world, cluster, p, complete=True)
    for revision, topic, lines in finished:
        mine = {p: v for p, v in there.items() if (p.topic, p.revision) == (topic, revision)}
        if not mine:
            continue  # the topic was deleted since
        for p, values in mine.items():
            want = [line for i, line in enumerate(lines) if i % actors.PARTITIONS == p.partition]
            got = [v for v in values if v in set(want)]
            if got != want:
                raise world.violation(f"{p} has {got} of a finished job, not {want}")
