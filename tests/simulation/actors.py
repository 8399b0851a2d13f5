"""What honest processes do, over and over: the jobs of a real cluster, with the real code.

A process lives for one job, as a command does; uploaders live longer, and share their handles between two threads. What
a job is told as done, it tells the watch.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from l0gc.collect.local import LocalSweep
from l0gc.collect.plan import SweepOptions
from l0gc.errors import CorruptObjectError, L0gcError, NotFoundError, ObjectNotFoundError
from l0gc.keys import REPORTS, KeyLayout, PartitionId
from l0gc.storage.parallel import Inline, InlineExecutor
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest.inputs import Input
from l0gc.streamlog.ingest.partitioner import InTurn
from l0gc.streamlog.ingest.uploader import ProducerSession, Uploader, UploadResult
from l0gc.streamlog.level_one.commit import commit_run, plan_run
from l0gc.streamlog.reader import read_partition
from l0gc.streamlog.topics import create_topic, delete_topic
from l0gc.watermark import job
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.job import EpochRow
from l0gc.watermark.reports import publish_reports, read_report_file, report_of
from tests.simulation.world import Process, World
from tests.support.reconcile import write_plan

TOPICS = ("a", "b", "c")
"""Of which the last one does not exist at first."""
PARTITIONS = 2
Body = Callable[[Process], Callable[[], None]]


@dataclass(frozen=True)
class Job:
    """An upload that has to land once, whoever does it and however often."""

    producer: str
    number: int
    topic: str

    @property
    def lines(self) -> list[bytes]:
        return [f"{self.producer}-{self.number}-{i}".encode() for i in range(12)]


@dataclass
class Finished:
    """The jobs that somebody was told are done, and in which incarnation of their topic."""

    jobs: set[tuple[int, Job]] = field(default_factory=set)


def repeat(world: World, times: int, once: Callable[[Process], None]) -> Body:
    """Do it so many times; an error of l0gc's ends that one time, as it ends a command."""

    def of(process: Process) -> Callable[[], None]:
        done = [0]

        def run() -> None:
            while done[0] < times:
                done[0] += 1
                with suppress(L0gcError):
                    once(process)

        return run

    return of


# -- uploads --------------------------------------------------------------------------------------------------------------


def _report(cluster: Cluster, kind: str, ids: list[PartitionId]) -> None:
    cluster_id = cluster.controller.snapshot().cluster_id
    handles = [cluster.partition(p) for p in ids]
    reports = []
    for h in handles:
        with h.replica.lock:
            reports.append(report_of(cluster_id, h.partition, h.state, h.replica.offset))
    publish_reports(cluster.store, cluster.runtime, kind, reports)


def upload(
    world: World,
    cluster: Cluster,
    topic: str,
    lines: list[bytes],
    input_id: str = "",
    session: ProducerSession | None = None,
) -> UploadResult:
    """Upload the lines, and tell the watch what was acknowledged."""
    if world.thread is not None:
        world.thread.append_began = world.steps
    target = cluster.controller.snapshot().topic(topic)
    spread = InTurn(target.partitions)
    inline = InlineExecutor()
    uploader = Uploader(cluster, target, spread, packers=inline, committer=inline, batch_bytes=90, producer=session)
    source = Input(topic, input_id, lambda: io.BytesIO(b"".join(line + b"\n" for line in lines)))
    result = uploader.run([source])
    place = spread.start("x")
    by_partition: dict[int, list[bytes]] = {}
    for line in lines:
        by_partition.setdefault(place(line)[0], []).append(line)
    for p, mine in by_partition.items():
        landings = sorted((x for x in result.placeholders if x.partition == p), key=lambda x: x.base_offset)
        at = len(mine) - sum(x.last_offset - x.base_offset + 1 for x in landings)
        for x in landings:
            n = x.last_offset - x.base_offset + 1
            world.watch.acknowledge(PartitionId(topic, target.revision, p), x.base_offset, n, mine[at : at + n])
            at += n
    _report(cluster, "upload", list(uploader.touched))
    return result


def new_lines(world: World, name: str) -> list[bytes]:
    """A few records that nobody has uploaded before."""
    n = world.random.randrange(1, 9)
    return [f"{name}-{world.random.getrandbits(48):012x}-{i}".encode() for i in range(n)]


@contextmanager
def _in_flight(process: Process) -> Iterator[None]:
    generation = process.generation
    process.in_flight += 1
    try:
        yield
    finally:
        if generation == process.generation:
            process.in_flight -= 1


def uploader(world: World, times: int, cache_s: float) -> Body:
    """Uploads a few records, each once, from a process whose epoch may be stale and whose threads share its handles."""

    def once(process: Process) -> None:
        if process.kept is None or (process.in_flight == 0 and world.random.random() < 0.2):
            process.kept = world.cluster(process, epoch_cache_s=cache_s)
        cluster = process.kept
        try:
            with _in_flight(process):
                upload(world, cluster, world.random.choice(TOPICS), new_lines(world, process.name))
        finally:
            if process.in_flight == 0 and process.kept is cluster:
                check_fences(world, cluster)

    return repeat(world, times, once)


def check_fences(world: World, cluster: Cluster) -> None:
    """With no append under way, a fence refuses nothing that the log would take."""
    for p, shadow in world.watch.shadows.items():
        oldest = cluster.partition(p).fence.window.oldest
        if not shadow.state.closed and oldest > shadow.state.previous_applied_epoch:
            raise world.violation(
                f"{p}: a fence refuses what is below {oldest}, its log {shadow.state.window} does not"
            )


def producer(world: World, jobs: list[Job], finished: Finished) -> Body:
    """Uploads each job's input again and again under its producer's name until it is told that all of it landed."""

    def of(process: Process) -> Callable[[], None]:
        todo = list(jobs)

        def run() -> None:
            while todo:
                doing = todo[0]
                with suppress(L0gcError):
                    cluster = world.cluster(process)
                    try:
                        revision = cluster.controller.snapshot().topic(doing.topic).revision
                        p = cluster.controller.init_producer(doing.producer)
                        session = ProducerSession(doing.producer, p.producer_id, p.epoch)
                        upload(world, cluster, doing.topic, doing.lines, f"{doing.producer}-{doing.number}.0", session)
                    except NotFoundError:
                        todo.pop(0)
                        continue
                    finished.jobs.add((revision, doing))
                    todo.pop(0)

        return run

    return of


# -- upkeep ---------------------------------------------------------------------------------------------------------------


def reconciler(world: World, times: int) -> Body:
    def once(process: Process) -> None:
        cluster = world.cluster(process)
        plan, _ = plan_run(cluster, None)
        if plan.partitions:
            commit_run(cluster, plan, write_plan(cluster, plan), lambda text: None)
            _report(cluster, "reconcile", [p.id for p in plan.partitions])

    return repeat(world, times, once)


def housekeeper(world: World, times: int) -> Body:
    """Truncates hard: a checkpoint every three entries."""

    def once(process: Process) -> None:
        housekeep(world.cluster(process), barrier=world.random.random() < 0.15, checkpoint_entries=3)

    return repeat(world, times, once)


def topic_keeper(world: World, times: int) -> Body:
    """Deletes topics and creates them again under their old names."""

    def once(process: Process) -> None:
        cluster = world.cluster(process)
        name = world.random.choice(TOPICS)
        if world.random.random() < 0.4:
            delete_topic(cluster, name)
        else:
            create_topic(cluster, name, PARTITIONS)

    return repeat(world, times, once)


def watermark_job(world: World, times: int, *, whole: bool = False) -> Body:
    """compute-watermark without Spark; sometimes it reads only some of the reports, as if they were not there yet."""

    def once(process: Process) -> None:
        share = 1.0 if whole else world.random.choice([1.0, 0.5])
        compute_watermark(world, world.cluster(process), share=share)

    return repeat(world, times, once)


def compute_watermark(world: World, cluster: Cluster, *, share: float = 1.0) -> int:
    def reports() -> list[PartitionReport]:
        rows: list[PartitionReport] = []
        if world.thread is not None and world.random.random() < 0.3:
            world.sleep(world.random.choice([2.0, 8.0, 32.0]))  # Spark takes its time
        for key in cluster.store.list(REPORTS).modified_ms:
            if share == 1.0 or world.random.random() < share:
                body = cluster.store.get(key).body
                known = world.watch.rows.get(key)  # what is in a file was read when it was written
                rows += (
                    known
                    if known is not None
                    else msgspec.convert(read_report_file(body, key).to_pylist(), list[PartitionReport])
                )
        return rows

    return job.run(cluster, reports, lambda layout: _histogram(cluster, layout)).watermark.watermark


def _histogram(cluster: Cluster, layout: KeyLayout) -> list[EpochRow]:
    rows: dict[int | None, list[str]] = {}
    for page in cluster.store.scan(layout.data_prefix):
        for key in page.keys:
            parsed = layout.parse(key)
            rows.setdefault(None if parsed is None else parsed.epoch, []).append(key)
    return [EpochRow(epoch, len(keys), 0, min(keys)) for epoch, keys in rows.items()]


def sweeper(world: World, times: int) -> Body:
    def once(process: Process) -> None:
        min_age_ms = world.random.choice([0, 0, 60_000, 3_600_000])
        thread = world.thread
        assert thread is not None
        thread.min_age_ms = min_age_ms
        sweep(world.cluster(process), min_age_ms)

    return repeat(world, times, once)


def sweep(cluster: Cluster, min_age_ms: int = 0) -> int:
    """How many objects went."""
    return LocalSweep(cluster, SweepOptions(min_age_ms=min_age_ms)).run(Inline(), ranges=2).deleted


def cron(world: World, times: int) -> Body:
    """The whole loop, as an operator has it run: what is reconciled goes soon."""

    def once(process: Process) -> None:
        cluster = world.cluster(process)
        plan, _ = plan_run(cluster, None)
        commit_run(cluster, plan, write_plan(cluster, plan), lambda text: None)
        housekeep(cluster, barrier=True)
        compute_watermark(world, cluster)
        sweep(cluster)

    return repeat(world, times, once)


# -- readers --------------------------------------------------------------------------------------------------------------


def reader(world: World, times: int) -> Body:
    """Reads everything; a record is never seen twice, nor another one where an acknowledged one is."""

    def once(process: Process) -> None:
        cluster = world.cluster(process)
        for p in cluster.controller.snapshot().partitions():
            check_partition(world, cluster, p, complete=False)

    return repeat(world, times, once)


def check_partition(world: World, cluster: Cluster, p: PartitionId, *, complete: bool) -> list[bytes]:
    """Read a partition, and hold it against what was acknowledged before the reading began."""
    handle = cluster.partition(p)
    told = dict(world.watch.acknowledged.get(p, {}))
    values: list[bytes] = []
    try:
        for r in read_partition(cluster.store, handle):
            if r.offset != len(values):
                raise world.violation(f"{p}: record {r.offset} came where {len(values)} is next")
            if told.get(r.offset, r.value) != r.value:
                raise world.violation(f"{p}: record {r.offset} is {r.value!r}, not the acknowledged one")
            values.append(r.value)
            if world.thread is not None and world.random.random() < 0.15:
                world.sleep(5.0)  # a slow reader: what it has yet to read may move meanwhile
    except (CorruptObjectError, ObjectNotFoundError) as e:
        if p not in world.watch.partitions():
            raise  # its objects may go before its logs are closed
        raise world.violation(f"{p}: {e}") from e
    if (complete or p in world.watch.partitions()) and told and max(told) >= len(values):
        raise world.violation(f"{p}: acknowledged record {max(told)} is not there")
    if len(set(values)) != len(values):
        raise world.violation(f"{p}: a record is there twice")
    return values
