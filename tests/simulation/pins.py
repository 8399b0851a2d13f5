"""Creates and deletes pins, and replays as of one."""

from __future__ import annotations

from l0gc.errors import CorruptObjectError, StoreError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Pin
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.reconcile import reconcile
from l0gc.streamlog.pins import create_pin
from tests.simulation import jobs
from tests.simulation.actors import new_lines, repeated, upload
from tests.simulation.shadow_l1 import spans_of_files
from tests.simulation.weather import HOUR_MS
from tests.simulation.world import Process, World
from tests.support.merge import merge


@repeated
def pinner(world: World, process: Process) -> None:
    """Creates a pin, renews it in some seeds, and checks later that everything that it promises exists; or deletes a
    pin.
    """
    cluster, name = world.cluster(process), world.random.choice(["a", "b"])
    if world.random.random() < 0.2:
        cluster.controller.delete_pin(name)
        return
    ttl_ms = world.random.choice([2_000, 60_000, HOUR_MS])
    pin = create_pin(cluster, name, ttl_ms, level_one=world.random.random() < 0.3)
    world.happened["pins created"] += 1
    live = set(world.watch.topics())
    for _ in range(world.random.choice([1, 3]) if world.weather.renews_pins else 0):
        world.sleep(world.random.choice([0.5, 1.0, ttl_ms / 1000]))  # an entry may have ended it by then
        cluster.controller.renew_pin(name, pin.revision, ttl_ms)
        world.happened["pins renewed"] += 1
    world.sleep(world.random.choice([1.0, 10.0, 600.0]))
    _replay(world, cluster, pin, live)
    if world.random.random() < 0.5:
        cluster.controller.delete_pin(name, pin.revision)


def _replay(world: World, cluster: ClusterHandles, pin: Pin, live: set[str]) -> None:
    """Check that a replay as of a pin finds all that it names, while the pin lives."""
    misreads = world.answers.misreads
    for journal, as_of in pin.ends or ():
        try:
            state = cluster.journal_as_of(journal, as_of).catch_up()
        except StoreError:
            raise  # an expected fault
        except CorruptObjectError as e:
            if pin.revision in world.watch.promises.kept and world.answers.misreads == misreads:
                raise world.violation(f"journal {journal} cannot be replayed as of {pin}: {e}") from e
            return
        needed: set[str] = set()
        for t in state.topics.values():
            if t.topic_id in live:
                needed |= {key for key, _ in spans_of_files(world.watch.names[t.topic_id], t.revision, t.l1)}
                needed |= set() if pin.level_one else {o.key for o in t.objects}
        world.happened["replays as of a pin"] += 1
        lost = set[str]() if world.losses is None else world.losses.keys
        missing = needed - world.store.objects.keys() - lost
        if missing and pin.revision in world.watch.promises.kept:
            raise world.violation(
                f"{sorted(missing)} are gone, though {pin} lives, as of which journal {journal} needs them"
            )


def in_the_quiet(world: World, cluster: ClusterHandles) -> None:
    """Create a pin after the faults, while everything runs that can delete; every deleter then knows the pin."""
    if not world.weather.pins:
        return
    pin = create_pin(cluster, "quiet", HOUR_MS)
    live = set(world.watch.topics())
    for _ in range(2):
        for name in sorted(world.watch.controller.topics):
            upload(world, cluster, name, new_lines(world, "pinned"))
        reconcile(cluster)
        merge(cluster, rule=MergeRule(1 << 30, 2))
        for _ in range(3):
            world.clock.ms += int(world.weather.epoch_interval_s * 1000) + 1000
            housekeep(cluster)
        jobs.compute_watermark(world, cluster)
        jobs.sweep(cluster)
        jobs.vacuum(cluster, 0, 0)
    _replay(world, cluster, pin, live)


def pass_all(world: World) -> None:
    """Let time pass until the last pin has ended."""
    ends = [p.end_ms for p in world.watch.controller.pins.values()]
    world.clock.ms = max([world.clock.ms, *ends])
