"""Runs one seed from beginning to end: a cluster under faults, then quiet, then nothing may be left over or missing."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from l0gc.errors import L0gcError, NotFoundError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one.expire import expire
from l0gc.streamlog.level_one.reconcile import reconcile
from l0gc.streamlog.topics import delete_topic
from tests.simulation import actors, events, holds, hooks, jobs, losses, pins, readers, refusing, retention, sinks
from tests.simulation.holds import Holds
from tests.simulation.locks import instead_of_threads
from tests.simulation.losses import Losses
from tests.simulation.watch import LAYOUT
from tests.simulation.weather import Faults, Weather
from tests.simulation.world import LATEST_MS, Process, World

CRASHES = "processes crashed"
RECORDS = "records acknowledged"
SWEPT = "objects swept in the end"
MAX_STEPS = 1800
"""The steps of each of the two busy phases of a seed; the event between them has a third as many."""

SOME = {"pins": 0.3, "renewals of pins": 0.5, "schemas": 0.2, "shared objects": 0.4}
"""The share of seeds with pins, the share of these with renewals, and the shares with value schemas and with shared L1
objects; the other seeds take the same steps as without any.
"""

RETRIES = 8
"""How often an upload may be refused after the faults: a few times for each journal that moved on while its process
slept.
"""


@dataclass(frozen=True)
class Outcome:
    """What a seed did.

    `happened` counts events by name, `states` are the distinct states of the whole, `digest` is over all that is left.
    """

    seed: int
    steps: int
    happened: Counter[str]
    states: frozenset[int]
    digest: str


def simulate(seed: int, *, loses: bool = False) -> Outcome:
    """Run a seed, with or without losses of L0 objects. Raises `Violation` if an invariant does not hold."""
    chance = random.Random(seed)

    def has(what: str) -> bool:
        return random.Random(f"{what} of {seed}").random() < SOME[what]

    drawn = Weather.draw(chance)
    weather = replace(
        drawn,
        pins=has("pins"),
        renews_pins=has("renewals of pins"),
        schemas=has("schemas"),
        shares=has("shared objects"),
    )
    with world_of(seed, chance, weather.with_answers(seed), Holds.draw(seed)) as world:
        world.losses = Losses() if loses else None
        return to_the_end(world, _run)


@contextmanager
def world_of(seed: int, chance: random.Random, weather: Weather, holds: Holds) -> Iterator[World]:
    """Yield an empty world, in which l0gc's processes run until the block ends."""
    with instead_of_threads(), weather.applied(), holds.applied(), tempfile.TemporaryDirectory() as scratch:
        world = World(seed, chance, weather, Faults().times(weather.trouble), holds)
        world.scratch = scratch
        with hooks.installed(world):
            yield world


def to_the_end(world: World, run: Callable[[World], Outcome]) -> Outcome:
    """Run a seed in its world, once that is set up. Raises `Violation`."""
    try:
        return run(world)
    except L0gcError as e:  # the operator's own actions never fail
        raise world.violation(f"{type(e).__name__}: {e}") from e
    finally:
        if world.failed is not None:
            world.threads = []


def found(world: World) -> None:
    """Create a cluster with its first topics, and some foreign keys next to it."""
    cluster = world.cluster()
    cluster.controller.bootstrap(shards=LAYOUT.shards, journals=world.weather.journals)
    for name in actors.TOPICS[:-1]:
        actors.found_topic(world, cluster, name)
    for name in events.PRODUCERS:  # so that every backup knows them
        cluster.controller.init_producer(name)
    events.plant_foreign_keys(world)


def _run(world: World) -> Outcome:
    found(world)
    work = events.Work()
    events.usual(world, work, "a")
    world.run(world.random.randrange(MAX_STEPS))
    backup = events.Backup(world)
    world.run(world.random.randrange(MAX_STEPS // 2))
    world.stop()
    world.while_one_sleeps = None
    events.happen(world, world.weather.event, MAX_STEPS // 3, backup, work)
    events.usual(world, work, "b")
    world.run(MAX_STEPS)
    world.stop()
    if world.weather.no_writes:
        refusing.nothing_is_written(world)
        refusing.full(world)
    world.happened[world.weather.event] += 1
    return come_to_rest(world, work)


def come_to_rest(world: World, work: events.Work) -> Outcome:
    """Stop the faults, delete all garbage, and check everything."""
    survivors = _survivors(world)
    world.faults = Faults.none()
    swept = _drain(world, survivors)
    _check_all(world, work)
    world.happened[CRASHES] += world.crashes
    world.happened[RECORDS] += sum(map(len, world.watch.acknowledged.values()))
    world.happened[SWEPT] += swept
    return Outcome(
        world.seed,
        world.steps,
        world.happened,
        frozenset(world.watch.states),
        hashlib.md5("\n".join(sorted(world.store.objects)).encode(), usedforsecurity=False).hexdigest(),
    )


def _survivors(world: World) -> list[Process]:
    """Return the uploaders that have ended without a crash, with their present handles."""
    return [p for p in world.processes if p.kept is not None]


def _drain(world: World, survivors: list[Process]) -> int:
    """Check liveness: once faults stop, every process can upload, and no garbage is left, without a barrier."""
    cluster = world.cluster()
    world.clock.ms += LATEST_MS + 1
    world.land_late(world.clock.ms)
    world.holds.lifted = True
    for process in survivors:
        assert process.kept is not None
        for topic in actors.TOPICS:
            _uploads(world, process, process.kept, topic)
    if world.weather.all_topics_go:
        for name in sorted(world.watch.controller.topics):
            delete_topic(cluster, name)
    pins.in_the_quiet(world, cluster)
    pins.pass_all(world)
    holds.a_deleter_dies(world, cluster)
    _later(world, lambda: housekeep(cluster))
    if world.losses is not None:
        losses.give_all_up(world, cluster)
    reconcile(cluster)
    _later(world, lambda: housekeep(cluster))
    needed = set(world.store.objects)
    for _ in range(4):
        for name in sorted(world.watch.controller.topics):
            actors.upload(world, cluster, name, actors.new_lines(world, "late"))
    needed = set(world.store.objects) - needed
    while expire(cluster).partitions:
        pass  # an object kept by size may have kept later ones from leaving by time, as in Kafka
    if left := retention.left_over(world.watch, world.clock.ms):
        raise world.violation(left)
    m = jobs.compute_watermark(world, cluster)
    swept = jobs.sweep(cluster)
    for _ in range(3):  # epochs of grace
        _later(world, cluster.controller.advance)
    for _ in range(2):  # a dropped shared object is deleted once the fence of an earlier vacuum has passed its stamp
        jobs.vacuum(cluster, 0, 0)
    holds.check_vacuumed(world)
    for key in sorted(world.store.objects):
        kept = key in world.watch.foreign or key in needed or world.holds.for_good(key)
        if key.startswith(LAYOUT.data_prefix) and not kept:
            raise world.violation(f"{key}, which nothing needs, is left over at M = {m}")
    for key in sorted(world.watch.foreign.keys() | world.watch.live.keys() | world.watch.named()):
        if key not in world.store.objects:
            raise world.violation(f"{key} is gone")
    return swept


def _uploads(world: World, process: Process, cluster: ClusterHandles, topic: str) -> None:
    for _ in range(RETRIES):
        try:
            actors.upload(world, cluster, topic, actors.new_lines(world, process.name))
            return
        except NotFoundError:
            return  # the topic is gone
        except L0gcError as e:
            error = e
    raise world.violation(f"{process.name} is shut out of {topic!r}: {error}") from error


def _later(world: World, do: Callable[[], object]) -> None:
    """Do it after the epoch interval has passed."""
    world.clock.ms += int(world.weather.epoch_interval_s * 1000) + 1000
    do()


def _check_all(world: World, work: events.Work) -> None:
    """Check that every acknowledged record can be read, and that what jobs and queries wrote is there once, that of
    jobs in order.
    """
    cluster = world.cluster()
    lost = set[bytes]() if world.losses is None else world.losses.values
    for topic in sorted(cluster.controller.snapshot().topics.values(), key=lambda t: t.name):
        there = readers.check_topic(world, cluster, topic, complete=True)
        jobs = [job for topic_id, job in work.finished.jobs if topic_id == topic.topic_id]
        begun_later = any(world.watch.log_start(topic, p) > 0 for p in there)
        for query in (q for q in work.queries if q.topic.topic_id == topic.topic_id):
            sinks.check(world, query, there, begun_later or world.losses is not None)
        for job in sorted(jobs, key=lambda j: (j.producer, j.number)):
            for p, values in there.items():
                want = [v for v in job.lines[p :: topic.partitions] if v not in lost]
                deleted = world.watch.log_start(topic, p) > 0
                got = [v for v in values if v in set(want)]
                if got != (want[len(want) - len(got) :] if deleted else want):
                    raise world.violation(f"{topic.name}/{p} has {got} of a finished job, not {want}")
