"""The jobs of a cluster: reconcile, merge, expire, housekeep, compute M, sweep, vacuum, and changes of topics by users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from l0gc.collect.sweep import SweepRun
from l0gc.collect.vacuum import VacuumRun
from l0gc.errors import L0gcError, StoreError
from l0gc.keys import JOURNALS
from l0gc.operations import Sweep, Vacuum
from l0gc.storage.workers import LocalWorkers, Stage
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import NOT_GIVEN, RetentionSettings
from l0gc.streamlog.delete_records import HIGH_WATERMARK, delete_records
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.entries import EditedTopic
from l0gc.streamlog.level_one.expire import expire
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.level_one.plan import Round
from l0gc.streamlog.level_one.reconcile import ReconcileResult, commit_round, gathered, reconcile
from l0gc.streamlog.level_one.write import WrittenL1
from l0gc.streamlog.topics import delete_topic
from l0gc.streamlog.values.schema_formats import columns_of
from l0gc.watermark.histogram import read_listing
from l0gc.watermark.pipeline import run_pipeline
from tests.simulation import typed
from tests.simulation.actors import TOPICS, found_topic, new_lines, repeated, upload
from tests.simulation.shadow_l1 import spans_of_files
from tests.simulation.weather import HOUR_MS
from tests.simulation.world import Process, World
from tests.support.merge import merge
from tests.support.topics import create_topic

A = TypeVar("A")
B = TypeVar("B")


Rounds = list[tuple[Round, WrittenL1]]
"""Rounds of reconcilers whose L1 objects are durable; any process may commit each of them, any number of times."""


class _Repeating(LocalWorkers[ClusterHandles]):
    """Repeats some commits, as Spark repeats a task whose answer was lost; other processes may repeat any of them."""

    def __init__(self, world: World, cluster: ClusterHandles, rounds: Rounds) -> None:
        super().__init__(cluster)
        self._cluster, self._world, self._rounds = cluster, world, rounds
        self.done: list[Round] = []

    def flow(self, parts: Sequence[Any], *stages: Stage) -> list[ReconcileResult]:
        found = super().flow(parts, *stages[:-1])
        r, written = stages[0].work.__self__.round, gathered(what for _, what in found)  # type: ignore[attr-defined]
        self._rounds.append((r, written))
        self.done.append(r)
        done = commit_round(self._cluster, r, written)
        if self._world.random.random() < 0.3:
            self._world.sleep(self._world.random.choice([1.0, 10.0, 60.0]))
            done = commit_again(self._world, self._cluster, r, written)
        return list(done.values())


def commit_again(world: World, cluster: ClusterHandles, r: Round, written: WrittenL1) -> dict[int, ReconcileResult]:
    """Commit a round again that may have been committed before, and check that the result counts what is known to have
    landed.
    """
    before = _what_landed(world, r, written)
    done = commit_round(cluster, r, written)
    after = _what_landed(world, r, written)
    counted = {(j, revision, p) for j, c in done.items() for revision, rows in c.lifted.items() for p in rows.tolist()}
    unsure = {journal for journal, c in done.items() if c.errors}
    shown = {place for place in before if after[place] and place[0] not in unsure}
    world.happened["commits done again"] += 1
    world.happened["partitions of these that had landed before"] += len(before)
    if wrong := (counted - after.keys()) | (shown - counted):
        raise world.violation(f"a commit that is done again counts {sorted(counted)}; wrong is {sorted(wrong)}")
    return done


def _what_landed(world: World, r: Round, written: WrittenL1) -> dict[tuple[int, int, int], bool]:
    """Return the partitions of a round, as (journal, revision, partition), for which a commit has landed, and whether
    its journal still names one of the objects or has dropped it.
    """
    landed: dict[tuple[int, int, int], bool] = {}
    for (journal, revision), rows in written.files.items():
        l1 = world.watch.shadow(journal).l1
        for key, (partition, _) in spans_of_files(r.topics()[revision].name, revision, rows):
            if (key, partition) in l1.ever:
                place = journal, revision, partition
                shows = key in l1.named or key in l1.dropped
                landed[place] = landed.get(place, False) or shows
    for (journal, revision), objects in written.shared.items():
        l1, name = world.watch.shadow(journal).l1, r.topics()[revision].name
        for key, (partition, _) in l1.spans_of_shared(name, EditedTopic.of(revision, "", objects)):
            if (key, partition) in l1.ever:
                landed[journal, revision, partition] = key in l1.named
    return landed


@repeated
def reconciler(world: World, process: Process, rounds: Rounds) -> None:
    """Lifts everything, in rounds that are large or tiny."""
    cluster = world.cluster(process)
    workers = _Repeating(world, cluster, rounds)
    reconcile(cluster, round_bytes=world.random.choice([1, 2_000, 1 << 20]), workers=workers)


@repeated
def lifter(world: World, process: Process, rounds: Rounds) -> None:
    """Lifts laggards: up to an epoch, or up to a number of bytes."""
    cluster = world.cluster(process)
    up_to = cluster.controller.snapshot().epoch - world.random.choice([0, 1, 1, 2])
    max_bytes = world.random.choice([None, 1, 500, 5_000])
    workers = _Repeating(world, cluster, rounds)
    result = reconcile(cluster, round_bytes=2_000, up_to=up_to, max_bytes=max_bytes, workers=workers)
    world.happened["runs that a limit ended"] += result.limited
    if max_bytes is not None and result.rounds > 1:
        read = sum(r.bytes for r in workers.done)
        if read > max(max_bytes, workers.done[0].bytes):
            raise world.violation(f"a run read {read} bytes of L0, more than {max_bytes}")


@repeated
def straggler(world: World, process: Process, rounds: Rounds) -> None:
    """Commits other processes' rounds again, at any later time."""
    world.sleep(world.random.choice([1.0, 10.0, 60.0]))
    if rounds:
        commit_again(world, world.cluster(process), *world.random.choice(rounds))


@repeated
def housekeeper(world: World, process: Process) -> None:
    """Maintains all logs; a failure at one journal prevents nothing at the others, and is named."""
    thread = world.thread
    assert thread is not None
    thread.failed_at = ""
    try:
        housekeep(world.cluster(process), barrier=world.random.random() < 0.15)
    except StoreError as e:
        if thread.failed_at.startswith(JOURNALS):
            raise world.violation(f"what failed at {thread.failed_at} ended the housekeeping of all: {e}") from e
        raise


@repeated
def life(world: World, process: Process, journal: int | None) -> None:
    """Continues while another process sleeps: uploads records, in one journal or anywhere, and truncates them by
    housekeeping.
    """
    cluster = world.cluster(process)
    state = cluster.controller.snapshot()
    there = sorted(name for name in TOPICS if name in state.topics and journal in state.topics[name].journals)
    for _ in range(3):
        upload(world, cluster, world.random.choice(there or TOPICS), new_lines(world, process.name))
    if world.random.random() < 0.5:
        reconcile(cluster)
    world.sleep(world.weather.truncate_min_age_ms / 1000 + 1)
    housekeep(world.cluster(process))  # a new process lists anew


@repeated
def merger(world: World, process: Process) -> None:
    """Merges L1 objects: small ones or all of them."""
    cluster = world.cluster(process)
    merge(cluster, rule=MergeRule(world.random.choice([6_000, 1 << 30]), 2))


@repeated
def expirer(world: World, process: Process) -> None:
    """Deletes records by hand, all of them or up to some offset."""
    cluster = world.cluster(process)
    topic = cluster.controller.snapshot().topic(world.random.choice(TOPICS))
    partition = world.random.randrange(topic.partitions)
    following = (
        cluster.journal(topic.journal_of(partition)).catch_up().topic(topic.revision).view(partition).next_offset
    )
    before = world.random.choice(
        [HIGH_WATERMARK, world.random.randint(0, following), world.random.randint(0, following)]
    )
    delete_records(cluster, topic.name, partition, before_offset=before)


@repeated
def retainer(world: World, process: Process) -> None:
    """Changes topics' retention, and expires by the new settings."""
    cluster, name = world.cluster(process), world.random.choice(TOPICS)
    if world.random.random() < 0.7:
        ms = world.random.choice([-1, -1, 1, 60_000, HOUR_MS])
        cluster.controller.alter_topic(name, RetentionSettings(ms, world.random.choice([-1, 0, 2_000, 6_000])))
    thread = world.thread
    assert thread is not None
    thread.retains = world.watch.retentions()
    try:
        expire(cluster, world.random.choice([None, name]))
    finally:
        thread.retains = None


@repeated
def evolver(world: World, process: Process) -> None:
    """Gives a topic its next value schema; another process may do so at the same time."""
    cluster, name = world.cluster(process), world.random.choice(TOPICS)
    known = cluster.controller.snapshot().topic(name).value_schema
    number = typed.place_of(known)
    if number < len(typed.SCHEMAS):
        cluster.controller.alter_topic(name, NOT_GIVEN, columns_of({"fields": typed.SCHEMAS[number]}))
        world.happened[typed.ALTERED] += 1


@repeated
def vacuumer(world: World, process: Process) -> None:
    """Deletes dropped and orphaned objects early, long before slow runs have ended."""
    world.sleep(world.weather.epoch_interval_s)
    grace_ms = world.random.choice([1_000, 60_000])
    thread = world.thread
    assert thread is not None
    thread.min_age_ms = grace_ms
    vacuum(world.cluster(process), grace_ms, world.random.choice([1_000, 60_000]))


def vacuum(cluster: ClusterHandles, grace_ms: int, orphan_age_ms: int) -> None:
    options = Vacuum(l1_grace_s=grace_ms / 1000, orphan_age_s=orphan_age_ms / 1000)
    VacuumRun(cluster, options).run(JournalGarbage(cluster))


@repeated
def topic_keeper(world: World, process: Process) -> None:
    """Deletes topics, and recreates them under their old names."""
    cluster = world.cluster(process)
    name = world.random.choice(TOPICS)
    if world.random.random() < 0.4:
        delete_topic(cluster, name)
    else:
        found_topic(world, cluster, name)


class _Executors(LocalWorkers[ClusterHandles]):
    """Spark's executors without Spark: it pauses between tasks."""

    def __init__(self, world: World, cluster: ClusterHandles) -> None:
        super().__init__(cluster, 2)
        self._world = world

    def map(self, work: Callable[[ClusterHandles, A], B], parts: Sequence[A]) -> list[B]:
        done: list[B] = []
        for part in parts:
            if self._world.thread is not None and not done:
                _found_meanwhile(self._world)
            if self._world.thread is not None and self._world.random.random() < (0.2 if done else 0.5):
                self._world.sleep(self._world.random.choice([2.0, 8.0, 32.0, 120.0]))
            done.append(work(self._workplace, part))
        return done


def _found_meanwhile(world: World) -> None:
    """Create a topic while M is computed without it; all journals except its own advance (hazard 5)."""
    in_use = world.watch.controller.journals_in_use()
    if len(in_use) == world.weather.journals or world.random.random() > 0.3:
        return
    with suppress(L0gcError):
        cluster = world.cluster()
        create_topic(cluster, f"young-{world.random.getrandbits(32):08x}", 1)
        epoch = cluster.controller.advance()
        for journal in in_use:
            cluster.journal(journal).barrier(epoch)
        reconcile(cluster)


@repeated
def watermark_job(world: World, process: Process) -> None:
    compute_watermark(world, world.cluster(process))


def compute_watermark(world: World, cluster: ClusterHandles, *, accept_lost: bool = False) -> int:
    """Compute and publish M by the pipeline that the command runs."""
    executors = _Executors(world, cluster)
    listing = partial(read_listing, executors, first_pages=2)
    return run_pipeline(cluster, JournalSource(cluster, executors), listing, accept_lost=accept_lost).watermark


@repeated
def sweeper(world: World, process: Process) -> None:
    min_age_ms = world.random.choice([0, 60_000, 7 * HOUR_MS, 7 * HOUR_MS])
    thread = world.thread
    assert thread is not None
    thread.min_age_ms = min_age_ms
    thread.grace_ms = world.random.choice([0, 60_000, HOUR_MS]) if world.weather.late_dates else 0
    sweep(world.cluster(process), min_age_ms, thread.grace_ms)


def sweep(cluster: ClusterHandles, min_age_ms: int = 0, grace_ms: int = 0) -> int:
    """Sweep, and return how many objects were deleted."""
    return SweepRun(cluster, Sweep(min_age_s=min_age_ms / 1000, grace_s=grace_ms / 1000)).run(2).deleted


@repeated
def cron(world: World, process: Process) -> None:
    """Runs the whole loop, as an operator does: reconciled objects are soon deleted."""
    run_all(world, world.cluster(process))


def run_all(world: World, cluster: ClusterHandles) -> None:
    """Reconcile, close every window, compute M, sweep."""
    reconcile(cluster)
    housekeep(cluster, barrier=True)
    compute_watermark(world, cluster)
    sweep(cluster)
