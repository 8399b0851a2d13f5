"""What happens to the whole cluster in the middle of a seed, and who is at work before, meanwhile and after."""

from __future__ import annotations

from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK, REPORTS
from l0gc.streamlog.controller.state import ControllerMachine, ControllerState
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.topics import create_topic
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.publication import PublishedWatermark, encode_published
from l0gc.watermark.reports import publish_reports
from tests.simulation import actors, strangers
from tests.simulation.actors import Finished, Job
from tests.simulation.watch import LAYOUT
from tests.simulation.weather import DAY_MS, FOREIGN_REPORT, FOREIGN_WATERMARK, LONG_BREAK, OLD_BACKUP
from tests.simulation.world import World
from tests.support.memory_store import _Object
from tests.support.reconcile import reconcile

ANOTHER = "another"
_REPORT = f"{REPORTS}housekeep/foreign.parquet"
FOREIGN_KEYS = (
    "README",
    "000/000000000000000001/not-a-uuid",
    "000/0000000000000001/00000000-0000-4000-8000-000000000000",
    "000/0000000000000000001/00000000-0000-4000-8000-000000000000",
    "000/-00000000000000001/00000000-0000-4000-8000-000000000000",
    "001/00000000000000000x/00000000-0000-4000-8000-000000000000",
    "001/000000000000000001/00000000-0000-4000-8000-00000000000A",
    "001/000000000000000002/00000000-0000-4000-8000-000000000000.bak",
    "001/000000000000000002/copy/00000000-0000-4000-8000-000000000000",
    "002/000000000000000001/00000000-0000-4000-8000-000000000000\n",
    "007/000000000000000001/00000000-0000-4000-8000-000000000000",
    "03/000000000000000001/00000000-0000-4000-8000-000000000000",
)
"""Keys that look like L0 keys, more or less, and are none of this cluster's."""


class Backup:
    """The controller log as it was."""

    def __init__(self, world: World) -> None:
        self.objects = {k: o.body for k, o in world.store.objects.items() if k.startswith(CONTROLLER_LOG)}
        self.state: ControllerState = copy_of(world.watch.controller)

    def restore(self, world: World) -> None:
        """Put it in the place of whatever the controller log has come to."""
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
    """Put an object there behind everybody's back."""
    world.store._version += 1
    world.store.objects[key] = _Object(body, f'"{world.store._version}"', world.clock.ms)


def plant_foreign_keys(world: World) -> None:
    for name in FOREIGN_KEYS:
        key = LAYOUT.data_prefix + name
        world.watch.foreign[key] = b"foreign"
        plant(world, key, b"foreign")


def usual(world: World, finished: Finished, phase: str, zombies: list[tuple[int, int]]) -> None:
    """Everybody who is at work on any day, strangers included."""
    jobs = [Job(f"p{phase}", n, world.random.choice(actors.TOPICS)) for n in range(2)]
    pair = actors.uploader(world, 3, 10.0)
    world.spawn(f"uploader-{phase}1", pair, actors.uploader(world, 3, 10.0))
    world.spawn(f"uploader-{phase}2", actors.uploader(world, 3, 3600.0), actors.uploader(world, 3, 3600.0))
    world.spawn(f"uploader-{phase}3", actors.uploader(world, 4, 60.0))
    world.spawn(f"producer-{phase}1", actors.producer(world, jobs, finished))
    world.spawn(f"producer-{phase}2", actors.producer(world, jobs, finished))
    world.spawn(f"reconciler-{phase}1", actors.reconciler(world, 3))
    world.spawn(f"reconciler-{phase}2", actors.reconciler(world, 3))
    world.spawn(f"housekeeper-{phase}", actors.housekeeper(world, 5))
    world.spawn(f"topics-{phase}", actors.topic_keeper(world, world.random.choice([1, 2, 4])))
    world.spawn(f"watermark-{phase}1", actors.watermark_job(world, 4))
    world.spawn(f"watermark-{phase}2", actors.watermark_job(world, 4))
    world.spawn(f"sweeper-{phase}", actors.sweeper(world, 6))
    world.spawn(f"cron-{phase}", actors.cron(world, 2))
    world.spawn(f"reader-{phase}", actors.reader(world, 3))
    world.spawn(f"zombie-{phase}", strangers.zombie(world, 3, zombies))
    world.spawn(f"repeater-{phase}", strangers.repeater(world, 2))
    world.spawn(f"poisoner-{phase}", strangers.poisoner(world, 1))
    world.spawn(f"stranger-{phase}", strangers.stranger(world, 1))


def happen(world: World, event: str, steps: int, backup: Backup | None) -> None:
    """Something happens to the cluster, while nobody or only some are at work."""
    if event == LONG_BREAK:
        world.clock.ms += 8 * DAY_MS
    elif event == OLD_BACKUP and backup is not None:
        _restored(world, steps, backup)
    elif event in (FOREIGN_WATERMARK, FOREIGN_REPORT):
        _beside_another_cluster(world, event, steps)


def _restored(world: World, steps: int, backup: Backup) -> None:
    """Housekeeping has reported everything, then the log is set back. Who does not know goes on; uploads do not."""
    with world.quietly():
        cluster = world.cluster()
        if world.random.random() < 0.5:  # a topic that the backup does not know
            create_topic(cluster, "young", actors.PARTITIONS)
            actors.upload(world, cluster, "young", actors.new_lines(world, "young"))
        housekeep(cluster, checkpoint_entries=3)
        if world.random.random() < 0.7:  # so that some topics, or even M, are above the epoch of the backup
            for name in sorted(world.watch.controller.topics):
                if world.random.random() < 0.7:
                    reconcile(cluster, name)
            for _ in range(2):
                world.clock.ms += 60_000
                housekeep(cluster, checkpoint_entries=3)
            actors.compute_watermark(world, cluster)
    newest = Backup(world)
    world.watch.truth = copy_of(newest.state)
    backup.restore(world)
    world.note(f"the controller log is set back from epoch {newest.state.epoch} to {backup.state.epoch}")
    world.spawn("watermark-r1", actors.watermark_job(world, 5, whole=True))
    world.spawn("watermark-r2", actors.watermark_job(world, 5, whole=True))
    world.spawn("sweeper-r", actors.sweeper(world, 3))
    world.spawn("reader-r", actors.reader(world, 1))
    world.spawn("founder-r", strangers.founder(world, world.random.choice([0, 2])))
    world.spawn("advancer-r", strangers.advancer(world, world.random.choice([0, 1, 3])))
    world.run(steps)
    world.stop()
    newest.restore(world)
    world.watch.truth = None
    world.note("the newest controller log is back")
    with world.quietly():
        controller = world.cluster().controller
        while controller.advance() <= world.watch.watermark:
            pass


def _beside_another_cluster(world: World, event: str, steps: int) -> None:
    watch = world.watch
    epoch = watch.controller.epoch
    published = world.store.objects.get(PUBLISHED_WATERMARK)
    if event == FOREIGN_WATERMARK:
        plant(world, PUBLISHED_WATERMARK, encode_published(PublishedWatermark(ANOTHER, epoch, epoch, 0)))
    else:
        rows = [
            PartitionReport(ANOTHER, p.topic, p.revision, p.partition, epoch, epoch, epoch, 0, -1, None, 0, 0)
            for p in watch.controller.partitions()
        ]
        if not rows:
            return
        watch.looking = False
        with world.quietly():
            key = publish_reports(world.store, world.cluster().runtime, "housekeep", rows)
        watch.looking = True
        assert key is not None
        world.store.objects[_REPORT] = world.store.objects.pop(key)
    watch.foreign_watermark, watch.foreign_report = event == FOREIGN_WATERMARK, event == FOREIGN_REPORT
    world.note(event)
    world.spawn("watermark-f1", actors.watermark_job(world, 3, whole=True))
    world.spawn("watermark-f2", actors.watermark_job(world, 3, whole=True))
    world.spawn("sweeper-f", actors.sweeper(world, 3))
    world.spawn("uploader-f", actors.uploader(world, 2, 10.0))
    world.spawn("housekeeper-f", actors.housekeeper(world, 2))
    world.run(steps)
    world.stop()
    watch.foreign_watermark = watch.foreign_report = False
    if event == FOREIGN_REPORT:
        del world.store.objects[_REPORT]
    elif published is None:
        world.store.objects.pop(PUBLISHED_WATERMARK, None)
    else:
        world.store.objects[PUBLISHED_WATERMARK] = published
