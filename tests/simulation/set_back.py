"""Puts parts of a bucket back to an older copy, and lets every command try to continue (hazard 38): `set_back(seed)`.

A cluster works under faults; a copy is taken at some moment, and work continues, so that what the copy names is merged,
swept and deleted. Then everything stops, and some parts are put back to the copy: logs of journals, boundaries,
`published.json`, L1 and L0 objects, the controller log. The commands run in random order. Each refuses, or does no harm:

- a log that went back does not change, and nothing that the newest logs need is deleted;
- once the newest state is put back, everything is there, and the cluster works as before;
- if the newest is gone for good, an operator follows docs/work/operate-logs.md. Then nothing is deleted that the lost part
  may have named, what the copy had is there, and the cluster works as before;
- if `published.json` went back with a log, this cannot be noticed. What the remaining logs name stays;
- if it is lost, and its copy is there, nothing is deleted until it is put back or an operator accepts the loss.

Only the seed decides what happens. These seeds are independent of those of `simulate`, and change none of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from l0gc.errors import L0gcError, SetBackError, UsageError
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK, journal_log
from l0gc.storage.entry import Place
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import HIGH_WATERMARK, delete_records
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one.expire import expire
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.reconcile import reconcile
from l0gc.streamlog.producers import begin_run
from l0gc.streamlog.set_back import accept_set_back
from l0gc.streamlog.topics import close_unknown_topics, delete_topic
from tests.simulation import actors, events, jobs
from tests.simulation.copies import CONTROLLER, LOST, Copy, Restore, ends
from tests.simulation.events import Work
from tests.simulation.holds import Holds
from tests.simulation.run import MAX_STEPS, Outcome, come_to_rest, found, to_the_end, world_of
from tests.simulation.sinks import sink
from tests.simulation.weather import DAY_MS, HOUR_MS, NOTHING, Faults, Weather
from tests.simulation.world import LATEST_MS, Process, World
from tests.support.merge import merge

Command = Callable[[World, Process, ClusterHandles], object]
REFUSED = "commands refused because a journal was set back"
ACCEPTED = "journals that an operator accepted as they were"
FOR_GOOD = "newest logs that are gone for good"
STEPS = 600
"""Steps of the busy phase before a copy is taken; at most half as many follow, and as many at the end."""
DAYS = 3
"""How many days work continues after the copy was taken."""


def set_back(seed: int) -> Outcome:
    """Run a seed. Raises `Violation` if an invariant does not hold."""
    chance = random.Random(f"set back {seed}")
    weather = replace(Weather.draw(chance), event=NOTHING).with_answers(seed)
    with world_of(seed, chance, weather, Holds(seed)) as world:
        return to_the_end(world, _run)


def _run(world: World) -> Outcome:
    found(world)
    work = Work()
    events.usual(world, work, "a")
    world.run(world.random.randrange(STEPS))
    copy = Copy.of(world, work)
    world.run(world.random.randrange(STEPS // 2))
    _everything_stops(world, work)
    with world.quietly():
        for _ in range(DAYS):
            _a_day(world)
        housekeep(world.cluster(), barrier=world.random.random() < 0.5)
        reconcile(world.cluster())
        jobs.compute_watermark(world, world.cluster())
    newest = Copy.of(world, work)
    restore = Restore.draw(world.random, copy, newest)
    _check_published(world, restore, newest)
    restore.happen(world, copy, newest)
    if restore.for_good:
        restore.lose(world, work, copy, newest)
    _everybody_tries(world, work, restore if restore.noticed else None)
    if restore.for_good:
        _recover(world, work, restore, copy)
    else:
        restore.undo(world, newest)
        if restore.published == LOST:
            _accept_or_put_back(world, newest)
    _check_all_is_there(world)
    for part in restore.parts:
        world.happened[f"put back: {part}"] += 1
    world.happened[f"{PUBLISHED_WATERMARK}: {restore.published}"] += bool(restore.published)
    world.happened[FOR_GOOD] += restore.for_good
    events.usual(world, work, "b")
    world.run(STEPS)
    world.stop()
    return come_to_rest(world, work)


def _everything_stops(world: World, work: Work) -> None:
    """End all processes, land late writes, and forget handles and sessions."""
    world.stop()
    world.while_one_sleeps = None
    world.clock.ms += LATEST_MS + 1
    world.land_late(world.clock.ms)
    for process in world.processes:
        process.crash()
    work.rounds.clear()
    work.zombies.clear()


def _a_day(world: World) -> None:
    """Lift, merge, expire, sweep and delete what a copy names, in any order."""
    world.clock.ms += world.random.choice([HOUR_MS, 12 * HOUR_MS, 2 * DAY_MS])
    world.cluster().controller.tick_if_due()
    doings: list[Callable[[ClusterHandles], object]] = [
        housekeep,
        reconcile,
        lambda c: merge(c, rule=MergeRule(1 << 30, 2)),
        lambda c: jobs.compute_watermark(world, c),
        jobs.sweep,
        lambda c: jobs.vacuum(c, 0, 0),
        lambda c: jobs.vacuum(c, HOUR_MS, DAY_MS),
        *[lambda c: _upload(world, c)] * 2,
    ]
    if world.random.random() < 0.4:
        doings.append(lambda c: _other_topics(world, c))
    if world.weather.expires:
        doings += [expire, lambda c: _delete_records(world, c)]
    world.random.shuffle(doings)
    for do in doings:
        do(world.cluster())


def _upload(world: World, cluster: ClusterHandles) -> None:
    for name in sorted(world.watch.controller.topics):
        actors.upload(world, cluster, name, actors.new_lines(world, "day"))


def _other_topics(world: World, cluster: ClusterHandles) -> None:
    name = world.random.choice(actors.TOPICS)
    if name in world.watch.controller.topics:
        delete_topic(cluster, name)
    if world.random.random() < 0.7:
        actors.found_topic(world, cluster, name)


def _delete_records(world: World, cluster: ClusterHandles) -> None:
    topics = cluster.controller.snapshot().topics
    if topics:
        delete_records(cluster, world.random.choice(sorted(topics)), before_offset=HIGH_WATERMARK)


# -- the commands that try ------------------------------------------------------------------------------------------------


def _gc(world: World, process: Process, cluster: ClusterHandles) -> None:
    """Run the steps of `l0gc gc` with its default ages. A failed step prevents no later one."""
    steps: list[Callable[[ClusterHandles], object]] = [
        housekeep,
        reconcile,
        merge,
        expire,
        lambda c: jobs.compute_watermark(world, c),
        jobs.sweep,
        lambda c: jobs.vacuum(c, HOUR_MS, DAY_MS),
    ]
    for step in steps:
        try:
            step(cluster)
        except L0gcError as e:
            _count(world, e)


def _produce(world: World, process: Process, cluster: ClusterHandles) -> None:
    lines = actors.new_lines(world, process.name)
    session = begin_run(cluster, f"name of {process.name}")
    actors.upload(world, cluster, world.random.choice(actors.TOPICS), lines, lines[0].decode(), session)


def _upload_anywhere(world: World, process: Process, cluster: ClusterHandles) -> None:
    actors.upload(world, cluster, world.random.choice(actors.TOPICS), actors.new_lines(world, process.name))


COMMANDS: dict[str, Command] = {
    "gc": _gc,
    "sweep": lambda world, process, cluster: jobs.sweep(cluster),
    "vacuum": lambda world, process, cluster: jobs.vacuum(cluster, HOUR_MS, DAY_MS),
    "vacuum at once": lambda world, process, cluster: jobs.vacuum(cluster, 0, 0),
    "compute-watermark": lambda world, process, cluster: jobs.compute_watermark(world, cluster),
    "reconcile": lambda world, process, cluster: reconcile(cluster),
    "merge": lambda world, process, cluster: merge(cluster, rule=MergeRule(1 << 30, 2)),
    "expire": lambda world, process, cluster: expire(cluster),
    "housekeep": lambda world, process, cluster: housekeep(cluster),
    "housekeep --barrier": lambda world, process, cluster: housekeep(cluster, barrier=True),
    "upload": _upload_anywhere,
    "upload --producer": _produce,
    "delete-records": lambda world, process, cluster: _delete_records(world, cluster),
    "topic": lambda world, process, cluster: _other_topics(world, cluster),
}


def _count(world: World, e: L0gcError) -> None:
    world.happened[REFUSED] += isinstance(e, SetBackError)
    world.happened[f"commands that ended with {type(e).__name__}"] += 1


def _everybody_tries(world: World, work: Work, refused: Restore | None) -> None:
    """Run each command in its own process, one after another; in some seeds, under faults.

    Args:
        refused: its logs must not change.
    """
    before, faults = _logs(world, refused), world.faults
    world.faults = faults if world.random.random() < 0.3 else Faults.none()
    world.clock.ms += world.random.choice([0, 0, 2 * DAY_MS])
    names = [*COMMANDS, "sink"]
    world.random.shuffle(names)
    for name in names:
        if name == "sink":
            world.spawn(name, sink(world, 1, work.queries))
        else:
            world.spawn(name, _once(world, name, COMMANDS[name]))
        world.run(MAX_STEPS)
        world.stop()
        if _logs(world, refused) != before:
            raise world.violation(f"{name} wrote to a log that was set back, or deleted some of it")
    world.clock.ms += LATEST_MS + 1
    world.land_late(world.clock.ms)
    if _logs(world, refused) != before:
        raise world.violation("somebody wrote to a log that was set back, or deleted some of it")
    world.faults = faults
    for process in world.processes:
        process.crash()


def _once(world: World, name: str, command: Command) -> actors.Body:
    def once(process: Process) -> None:
        try:
            command(world, process, world.cluster(process))
        except L0gcError as e:
            _count(world, e)
        else:
            world.happened["commands that were done"] += 1

    return actors.repeat(world, 1, once)


def _logs(world: World, restore: Restore | None) -> dict[str, bytes]:
    """Return the logs that were set back."""
    if restore is None:
        return {}
    folders: Iterable[str] = [journal_log(j) for j in restore.journals]
    if CONTROLLER in restore.parts:
        folders = [*folders, CONTROLLER_LOG]
    return {k: o.body for k, o in world.store.objects.items() if k.startswith(tuple(folders))}


# -- the operator's actions -----------------------------------------------------------------------------------------------


def _recover(world: World, work: Work, restore: Restore, copy: Copy) -> None:
    """Follow docs/work/operate-logs.md for newest logs that are gone for good."""
    cluster, watch, accepted = world.cluster(), world.watch, set[int]()
    for journal in sorted(restore.journals):
        copy.put_boundary_back(world, journal)
    copy.put_data_back(world)
    with world.quietly():
        if CONTROLLER in restore.parts:
            cluster.controller.advance_above(watch.epoch)
        for journal in range(world.weather.journals):
            with suppress(UsageError):  # nothing shows that it was set back
                accept_set_back(world.cluster(), journal)
                world.happened[ACCEPTED] += 1
                accepted.add(journal)
        if restore.noticed and not restore.journals <= accepted:
            raise world.violation(f"nobody noticed that of {restore.journals} only {accepted} were set back")
    if world.random.random() < 0.5:
        _everybody_tries(world, work, None)
    with world.quietly():
        events.recover(world)
        close_unknown_topics(world.cluster())
        housekeep(world.cluster())
        reconcile(world.cluster())
        watch.protected = frozenset()
        jobs.compute_watermark(world, world.cluster(), accept_lost=restore.published == LOST)
    watch.went_back = frozenset()
    world.note("somebody has done what the documents say")


def _accept_or_put_back(world: World, newest: Copy) -> None:
    """Follow docs/work/operate-logs.md for a lost `published.json`, once no log is set back any more."""
    with world.quietly():
        if world.random.random() < 0.5:
            newest.put_back(world, PUBLISHED_WATERMARK, newer_vanish=False)
        else:
            jobs.compute_watermark(world, world.cluster(), accept_lost=True)
    world.note("published.json is back")


# -- checks ---------------------------------------------------------------------------------------------------------------


def _check_published(world: World, restore: Restore, newest: Copy) -> None:
    """Check that the published watermark has the end of every journal and the epoch, which reveal older ones."""
    known = ends(newest.objects[PUBLISHED_WATERMARK])
    for journal in restore.journals:
        if known.get(f"journal {journal}", (0, Place()))[1].offset < newest.shadows[journal].offset:
            raise world.violation(f"what is published does not have where journal {journal} ended")
    if newest.published_epoch < newest.controller.epoch:
        raise world.violation("what is published does not have the epoch")


def _check_all_is_there(world: World) -> None:
    watch = world.watch
    for key in sorted(watch.live.keys() | watch.named()):
        if key not in world.store.objects:
            raise world.violation(f"{key} is gone, which the logs need")
