"""Events that affect the whole cluster in the middle of a seed, and the processes before, during and after them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial

from l0gc.errors import UsageError
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.entries import ControllerMachine
from l0gc.streamlog.controller.state import ControllerState, Producer, Topic
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one.reconcile import reconcile
from l0gc.streamlog.set_back import accept_set_back
from l0gc.streamlog.topics import close_unknown_topics, delete_topic
from l0gc.watermark.publication import PublishedWatermark, encode_published
from tests.simulation import actors, files, jobs, losses, pins, readers, strangers
from tests.simulation.actors import Finished, Job
from tests.simulation.external import Theirs
from tests.simulation.jobs import Rounds
from tests.simulation.sinks import Query, sink
from tests.simulation.watch import LAYOUT
from tests.simulation.weather import DAY_MS, FOR_GOOD, FOREIGN_WATERMARK, LONG_BREAK, NOTICED, OLD_BACKUP, TEN_DAYS
from tests.simulation.world import LATEST_MS, World
from tests.support.memory_store import _Object
from tests.support.topics import create_topic

ANOTHER = "another"
FOREIGN_KEYS = (
    "README",
    "000/000000000000000001/not-a-uuid",
    "000/0000000000000000001/00000000-0000-4000-8000-000000000000",
    "000/00000000000000001/00000000-0000-4000-8000-000000000000",
    "000/-00000000000000001/00000000-0000-4000-8000-000000000000",
    "001/00000000000000000x/00000000-0000-4000-8000-000000000000",
    "001/000000000000000001/00000000-0000-4000-8000-00000000000A",
    "001/000000000000000002/00000000-0000-4000-8000-000000000000.bak",
    "001/000000000000000002/copy/00000000-0000-4000-8000-000000000000",
    "002/000000000000000001/00000000-0000-4000-8000-000000000000\n",
    "007/000000000000000001/00000000-0000-4000-8000-000000000000",
    "03/000000000000000001/00000000-0000-4000-8000-000000000000",
)
"""Keys that resemble L0 keys, but are not L0 keys of this cluster."""
PRODUCERS = ("p", "q")


@dataclass
class Work:
    """Work that outlives its processes: producers' jobs, sessions that zombies continue, reconcilers' rounds."""

    finished: Finished = field(default_factory=Finished)
    jobs: dict[str, list[Job]] = field(default_factory=lambda: {name: [] for name in PRODUCERS})
    zombies: list[Producer] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    rounds: Rounds = field(default_factory=list)
    numbers: int = 0

    def more_jobs(self, world: World) -> None:
        """Add two more jobs for each producer."""
        for name in PRODUCERS:
            for _ in range(2):
                self.numbers += 1
                topics = world.random.sample(actors.TOPICS, world.random.choice([1, 2, 2]))
                self.jobs[name] += [Job(name, self.numbers, topic) for topic in topics]


class Backup:
    """An earlier copy of the controller log."""

    def __init__(self, world: World) -> None:
        self.objects = {k: o.body for k, o in world.store.objects.items() if k.startswith(CONTROLLER_LOG)}
        self.state: ControllerState = copy_of(world.watch.controller)

    def restore(self, world: World) -> None:
        """Replace the controller log by the copy."""
        objects = world.store.objects
        for key in [k for k in objects if k.startswith(CONTROLLER_LOG)]:
            del objects[key]
        for key, body in self.objects.items():
            plant(world, key, body)
        world.watch.controller = copy_of(self.state)


def copy_of(state: ControllerState) -> ControllerState:
    machine = ControllerMachine()
    return machine.decode(machine.encode(state), "a backup")


def plant(world: World, key: str, body: bytes) -> None:
    """Put an object that no process wrote."""
    world.store._version += 1
    world.store.objects[key] = _Object(body, f'"{world.store._version}"', world.clock.ms)


def plant_foreign_keys(world: World) -> None:
    for name in FOREIGN_KEYS:
        key = LAYOUT.data_prefix + name
        world.watch.foreign[key] = b"foreign"
        plant(world, key, b"foreign")


def usual(world: World, work: Work, phase: str) -> None:
    """Start all processes of an ordinary day, including strangers."""
    work.more_jobs(world)
    pair = actors.uploader(world, 3, 10.0)
    world.spawn(f"uploader-{phase}1", pair, actors.uploader(world, 3, 10.0), actors.uploader(world, 2, 10.0))
    world.spawn(f"uploader-{phase}2", actors.uploader(world, 3, 3600.0), actors.uploader(world, 3, 3600.0))
    world.spawn(f"uploader-{phase}3", actors.uploader(world, 4, 60.0))
    for name in PRODUCERS:
        for n in (1, 2):  # two runs of the same jobs
            world.spawn(f"producer-{phase}{name}{n}", files.producer(world, work.jobs[name], work.finished))
    for n in (1, 2):  # two drivers of one query
        world.spawn(f"sink-{phase}{n}", sink(world, 6, work.queries))
    world.spawn(f"duo-{phase}", actors.duo(world, 2), actors.duo(world, 2))
    world.spawn(f"reconciler-{phase}1", jobs.reconciler(world, 5, work.rounds))
    world.spawn(f"reconciler-{phase}2", jobs.reconciler(world, 5, work.rounds))
    world.spawn(f"lifter-{phase}", jobs.lifter(world, 8, work.rounds))
    world.spawn(f"straggler-{phase}", jobs.straggler(world, 5, work.rounds))
    world.spawn(f"merger-{phase}1", jobs.merger(world, 5))
    world.spawn(f"merger-{phase}2", jobs.merger(world, 5))
    world.spawn(f"vacuumer-{phase}1", jobs.vacuumer(world, 4))
    world.spawn(f"vacuumer-{phase}2", jobs.vacuumer(world, 4))
    if world.weather.expires:
        world.spawn(f"expirer-{phase}", jobs.expirer(world, 4))
        world.spawn(f"retainer-{phase}", jobs.retainer(world, 4))
    world.spawn(f"housekeeper-{phase}", jobs.housekeeper(world, 5))
    world.spawn(f"topics-{phase}", jobs.topic_keeper(world, world.random.choice([1, 2, 4])))
    world.spawn(f"watermark-{phase}1", jobs.watermark_job(world, 4))
    world.spawn(f"watermark-{phase}2", jobs.watermark_job(world, 4))
    world.spawn(f"sweeper-{phase}", jobs.sweeper(world, 6))
    world.spawn(f"cron-{phase}", jobs.cron(world, 2))
    world.spawn(f"reader-{phase}1", readers.reader(world, 4))
    world.spawn(f"reader-{phase}2", readers.reader(world, 4))
    world.spawn(f"zombie-{phase}", strangers.zombie(world, 3, work.zombies))
    world.spawn(f"repeater-{phase}", strangers.repeater(world, 2))
    world.spawn(f"poisoner-{phase}", strangers.poisoner(world, 1))
    world.spawn(f"stranger-{phase}", strangers.stranger(world, 1))
    world.spawn(f"elder-{phase}", strangers.elder(world, 1))
    world.spawn(f"twins-{phase}", strangers.twins(world, 1))
    world.spawn(f"bungler-{phase}", strangers.bungler(world, 2))
    if world.weather.pins:
        for n in (1, 2):
            world.spawn(f"pinner-{phase}{n}", pins.pinner(world, 10), pins.pinner(world, 10))
    if world.weather.schemas:
        world.spawn(f"evolver-{phase}", jobs.evolver(world, 4), jobs.evolver(world, 4))
    if world.losses is not None:
        world.spawn(f"loser-{phase}", actors.repeat(world, 4, partial(losses.loser, world)))
    if world.weather.external_log:
        theirs = Theirs(phase)
        world.spawn(f"lister-{phase}", theirs.lister(world, 4))
        world.spawn(f"watermark-{phase}3", theirs.watermark_job(world, 12))
    world.while_one_sleeps = lambda journal: world.spawn(
        f"life-{phase}{len(world.processes)}", jobs.life(world, 1, journal)
    )


def happen(world: World, event: str, steps: int, backup: Backup, work: Work) -> None:
    """Let an event happen to the cluster, while no processes or only some are active."""
    if event == TEN_DAYS:
        world.clock.ms += 10 * DAY_MS
    elif event == LONG_BREAK:
        world.clock.ms += 22 * DAY_MS
        for jobs in work.jobs.values():  # no job may rely on a journal's memory of its progress by then
            jobs.clear()
        for query in work.queries:
            query.stopped = True
    elif event == OLD_BACKUP:
        _restored_for_a_while(world, steps, backup)
    elif event in (FOR_GOOD, NOTICED):
        _restored_for_good(world, steps, backup, work, noticed=event == NOTICED)
    elif event == FOREIGN_WATERMARK:
        _beside_another_cluster(world, steps)


def _set_back(world: World, backup: Backup) -> Backup:
    """Set the controller log back, once all late writes have landed; return the newest one."""
    world.clock.ms += LATEST_MS + 1
    world.land_late(world.clock.ms)
    newest = Backup(world)
    backup.restore(world)
    world.watch.highest_epoch = max(world.watch.highest_epoch, newest.state.epoch)
    world.note(f"the controller log is set back from epoch {newest.state.epoch} to {backup.state.epoch}")
    return newest


def _restored_for_a_while(world: World, steps: int, backup: Backup) -> None:
    """Set the log back for a while. Processes that do not know this continue; uploads do not."""
    with world.quietly():
        cluster = world.cluster()
        if world.random.random() < 0.5:  # a topic that the backup does not know
            create_topic(cluster, "young", world.weather.journals, world.weather.journals)
            actors.upload(world, cluster, "young", actors.new_lines(world, "young"))
        if world.random.random() < 0.7:  # so that some topics, or even M, are above the epoch of the backup
            for name in sorted(world.watch.controller.topics):
                if world.random.random() < 0.7:
                    reconcile(cluster, name)
            for _ in range(2):
                world.clock.ms += 60_000
                housekeep(cluster)
            jobs.compute_watermark(world, cluster)
    newest = _set_back(world, backup)
    world.watch.newest = copy_of(newest.state)
    world.spawn("watermark-r1", jobs.watermark_job(world, 5))
    world.spawn("watermark-r2", jobs.watermark_job(world, 5))
    world.spawn("sweeper-r", jobs.sweeper(world, 3))
    world.spawn("reader-r", readers.reader(world, 1))
    world.spawn("housekeeper-r", jobs.housekeeper(world, 2))
    world.spawn("founder-r", strangers.founder(world, world.random.choice([0, 2])))
    world.spawn("advancer-r", strangers.advancer(world, world.random.choice([0, 1, 3])))
    world.run(steps)
    world.stop()
    newest.restore(world)
    world.watch.newest = None
    world.note("the newest controller log is back")
    with world.quietly():
        cluster = world.cluster()
        cluster.controller.advance_above(world.watch.epoch)
        for topic in _given_twice(world, cluster):
            if any(world.watch.acknowledged.get((topic.topic_id, p)) for p in range(topic.partitions)):
                raise world.violation(f"{topic.name} has records, and its revision was given to another topic")
            delete_topic(cluster, topic.name)
            world.happened["topics that were deleted because another one had their revision"] += 1
        for journal in sorted(cluster.controller.snapshot().journals_in_use()):
            with contextlib.suppress(UsageError):  # there is nothing to accept
                accept_set_back(cluster, journal)
                world.note(f"journal {journal} may take what M has released, and is accepted")


def _restored_for_good(world: World, steps: int, backup: Backup, work: Work, *, noticed: bool) -> None:
    """Set the log back for good. All continue until an operator notices and follows docs/work/operate-logs.md."""
    newest = _set_back(world, backup)
    for process in world.processes:  # no process may continue with state from the newer log
        process.crash()
    work.rounds.clear()
    watch = world.watch
    lost = [t for name, t in newest.state.topics.items() if backup.state.topics.get(name) != t]
    watch.forget([*lost, *(d.topic for d in newest.state.deleted)])
    for p in backup.state.producers.values():  # the run that superseded this one is lost, so this one continues
        watch.superseded.pop((p.producer_id, p.epoch, p.run), None)
    if not noticed:
        usual(world, work, "u")
        world.run(steps)
        world.stop()
        world.clock.ms += LATEST_MS + 1
        world.land_late(world.clock.ms)
    with world.quietly():
        recover(world)
    world.note("somebody has noticed, and the epoch is above all that there ever were")


def recover(world: World) -> None:
    """Follow the documents for a newer controller log that is gone for good."""
    cluster, watch = world.cluster(), world.watch
    cluster.controller.advance_above(watch.epoch)
    for topic in _given_twice(world, cluster):
        delete_topic(cluster, topic.name)
    close_unknown_topics(cluster)
    state = cluster.controller.snapshot()
    for name in actors.TOPICS[:-1]:
        if name not in state.topics:
            actors.found_topic(world, cluster, name)


def _given_twice(world: World, cluster: ClusterHandles) -> list[Topic]:
    """Return the listed topics that take no data: they were deleted before, or another topic has their revision in a
    journal.

    The documents advise deleting them. If an operator creates and deletes a topic on an old controller log, its
    revision is closed. A topic of the newest log without records may have the same revision, and nothing may show this.
    """

    def is_anothers(topic: Topic, journal: int) -> bool:
        shadow = world.watch.shadow(journal)
        there = shadow.topics.get(topic.revision)
        return shadow.state.closed(topic.revision) or (there is not None and there.topic_id != topic.topic_id)

    topics = sorted(cluster.controller.snapshot().topics.values(), key=lambda t: t.name)
    return [t for t in topics if t.topic_id in world.watch.gone or any(is_anothers(t, j) for j in t.journals)]


def _beside_another_cluster(world: World, steps: int) -> None:
    watch = world.watch
    epoch = watch.controller.epoch
    published = world.store.objects.get(PUBLISHED_WATERMARK)
    plant(world, PUBLISHED_WATERMARK, encode_published(PublishedWatermark(ANOTHER, epoch, epoch, 0)))
    watch.foreign_watermark = True
    world.note(FOREIGN_WATERMARK)
    world.spawn("watermark-f1", jobs.watermark_job(world, 3))
    world.spawn("watermark-f2", jobs.watermark_job(world, 3))
    world.spawn("sweeper-f", jobs.sweeper(world, 3))
    world.spawn("uploader-f", actors.uploader(world, 2, 10.0))
    world.spawn("housekeeper-f", jobs.housekeeper(world, 2))
    world.run(steps)
    world.stop()
    watch.foreign_watermark = False
    if published is None:
        world.store.objects.pop(PUBLISHED_WATERMARK, None)
    else:
        world.store.objects[PUBLISHED_WATERMARK] = published
