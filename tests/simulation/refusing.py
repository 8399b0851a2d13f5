"""A store that answers reads but takes no more writes: it is full, or write-protected.

Two rules must hold then. Every command ends, with or without an error. If the store still deletes, garbage can be
deleted, since that is how a full store gets room: the run's record is kept elsewhere, or not at all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from l0gc.collect.sweep import SweepRun
from l0gc.errors import AmbiguousWriteError, L0gcError, StoreError
from l0gc.operations import Sweep
from l0gc.streamlog.housekeep import housekeep
from tests.simulation import actors, jobs
from tests.simulation.actors import Body
from tests.simulation.watch import L0_KEY
from tests.simulation.world import Process, World
from tests.support.memory_store import Call

WRITES = ("put", "put_if_absent", "put_if_match")
STEPS = 1500
"""A command that has not ended after this many calls will not end: the longest commands make some hundred calls."""
COMMANDS: tuple[Callable[[World], Body], ...] = (
    lambda w: actors.uploader(w, 1, 10.0),
    lambda w: actors.duo(w, 1),
    lambda w: jobs.reconciler(w, 1, []),
    lambda w: jobs.merger(w, 1),
    lambda w: jobs.expirer(w, 1),
    lambda w: jobs.vacuumer(w, 1),
    lambda w: jobs.topic_keeper(w, 1),
    lambda w: jobs.watermark_job(w, 1),
    lambda w: jobs.sweeper(w, 1),
)
TRIED = "commands that met a store which takes no writes"
SWEPT_FULL = "sweeps of a full store"


def nothing_is_written(world: World) -> None:
    """Run housekeeping and some other commands, one after another, on a store that takes no writes: each must end."""
    some = world.random.sample(COMMANDS, 3)
    with world.quietly(), _refusing(world, lambda call: call.kind in (*WRITES, "delete")):
        for command in (lambda w: jobs.housekeeper(w, 1), *some):
            process = world.spawn(f"refused-{len(world.processes)}", command(world))
            world.run(STEPS)
            if world.threads:
                raise world.violation(
                    f"{process.name} goes on for ever on a store that answers reads and takes no writes"
                )
            world.happened[TRIED] += 1


def full(world: World) -> None:
    """Sweep a store that takes no writes but still deletes.

    What M allows is deleted with or without a record, unless the store's clock cannot be relied on.
    """
    misled: list[L0gcError] = []

    def body(process: Process) -> Callable[[], None]:
        def run() -> None:
            with tempfile.TemporaryDirectory() as folder:
                kept = {"record": False} if world.random.random() < 0.5 else {"record_dir": Path(folder)}
                try:
                    SweepRun(world.cluster(process), Sweep(**kept)).run(2)
                except StoreError as e:
                    raise world.violation(f"a full store could not be swept: {e}") from e
                except L0gcError as e:  # refused for safety, as anywhere
                    if "clock cannot be relied on" in str(e):
                        misled.append(e)

        return run

    if world.losses is not None:
        world.losses.withheld.clear()  # a sweep stops if it cannot be known whether a journal was set back
    with world.quietly():
        cluster = world.cluster()
        housekeep(cluster, barrier=True)
        jobs.compute_watermark(world, cluster)
    with world.quietly(), _refusing(world, lambda call: call.kind in WRITES):
        world.spawn("sweeper-full", body)
        world.run(STEPS)
    for key in [] if misled else world.store.objects:
        m = L0_KEY.fullmatch(key)
        if m is not None and int(m[1]) <= world.watch.watermark and not world.holds.keeps(key):
            raise world.violation(f"{key} is left in a full store, though M = {world.watch.watermark}")
    world.happened[SWEPT_FULL] += 1


@contextmanager
def _refusing(world: World, refused: Callable[[Call], bool]) -> Iterator[None]:
    """Let the store refuse these calls without a reason until the block ends; none of them ever lands."""

    def refuse(call: Call) -> None:
        if refused(call):
            if world.thread is not None:
                world.thread.failed_at = call.key
            conditional = call.kind.startswith("put_if")
            raise (AmbiguousWriteError if conditional else StoreError)(f"{call.key}: the store takes nothing more")

    world.refuse = refuse
    try:
        yield
    finally:
        world.refuse = None
