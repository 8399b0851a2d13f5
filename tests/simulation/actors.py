"""What the actors of the simulation do, over and over: the jobs of a real cluster, with the real code.

An actor's process lives for one job, as a command does. What it is told as done, it tells the world.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress

import msgspec

from l0gc.cluster import Cluster
from l0gc.errors import CorruptObjectError, L0gcError, NotFoundError
from l0gc.ingest.inputs import Input
from l0gc.ingest.partitioner import InTurn
from l0gc.ingest.uploader import ProducerSession, Uploader, UploadResult
from l0gc.keys import REPORTS, KeyLayout, PartitionId
from l0gc.read.reader import read_partition
from l0gc.reconcile.commit import commit_run, plan_run
from l0gc.storage.parallel import Inline, InlineExecutor
from l0gc.sweep.local import LocalSweep
from l0gc.upkeep.housekeep import housekeep
from l0gc.watermark import job
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.job import EpochRow
from l0gc.watermark.reports import publish_reports, read_report_file, report_of
from tests.simulation.world import World
from tests.support.reconcile import write_plan

TOPICS = ("a", "b")
PARTITIONS = 2


def repeat(times: int, body: Callable[[int], None]) -> Callable[[], None]:
    """Do it so many times; an error of l0gc's ends that one time, as it ends a command."""
    done = [0]

    def run() -> None:
        while done[0] < times:
            done[0] += 1
            with suppress(L0gcError):
                body(done[0])

    return run


def _input(name: str, input_id: str, lines: list[bytes]) -> Input:
    return Input(name, input_id, lambda: io.BytesIO(b"".join(line + b"\n" for line in lines)))


def _report(cluster: Cluster, kind: str, ids: list[PartitionId]) -> None:
    cluster_id = cluster.controller.snapshot().cluster_id
    handles = [cluster.partition(p) for p in ids]
    reports = [report_of(cluster_id, h.partition, h.state, h.replica.offset) for h in handles]
    publish_reports(cluster.store, cluster.runtime, kind, reports)


def _upload(
    world: World, cluster: Cluster, topic: str, lines: list[bytes], input_id: str, session: ProducerSession | None
) -> UploadResult:
    target = cluster.controller.snapshot().topic(topic)
    spread = InTurn(target.partitions)
    inline = InlineExecutor()
    uploader = Uploader(cluster, target, spread, packers=inline, committer=inline, batch_bytes=90, producer=session)
    result = uploader.run([_input(topic, input_id, lines)])
    place = spread.start("x")
    by_partition: dict[int, list[bytes]] = {}
    for line in lines:
        by_partition.setdefault(place(line)[0], []).append(line)
    for p, mine in by_partition.items():
        landings = sorted((x for x in result.placeholders if x.partition == p), key=lambda x: x.base_offset)
        at = len(mine) - sum(x.last_offset - x.base_offset + 1 for x in landings)
        for x in landings:
            n = x.last_offset - x.base_offset + 1
            world.acknowledge(PartitionId(topic, target.revision, p), x.base_offset, mine[at : at + n])
            at += n
    _report(cluster, "upload", list(uploader.touched))
    return result


def uploader(world: World, name: str, cache_s: float) -> Callable[[int], None]:
    """Uploads a few records, each once, from a process whose epoch may be stale."""
    kept: list[Cluster] = []

    def body(n: int) -> None:
        if not kept or world.random.random() < 0.3:
            kept[:] = [world.cluster(epoch_cache_s=cache_s)]
        lines = [
            f"{name}-{world.random.getrandbits(32):08x}-{n}-{i}".encode() for i in range(world.random.randrange(1, 9))
        ]
        try:
            _upload(world, kept[0], world.random.choice(TOPICS), lines, "", None)
        except L0gcError:
            kept.clear()
            raise

    return body


def producer(world: World, name: str, finished: list[tuple[int, str, list[bytes]]]) -> Callable[[], None]:
    """Uploads each input again and again under one producer name until it is told that all of it landed."""
    jobs = iter(range(1, 4))
    current: list[tuple[int, str, list[bytes]]] = []

    def run() -> None:
        while True:
            if not current:
                number = next(jobs, None)
                if number is None:
                    return
                lines = [f"{name}-{number}-{i}".encode() for i in range(12)]
                current.append((number, world.random.choice(TOPICS), lines))
            number, topic, lines = current[0]
            try:
                cluster = world.cluster()
                revision = cluster.controller.snapshot().topic(topic).revision
                p = cluster.controller.init_producer(name)
                session = ProducerSession(name, p.producer_id, p.epoch)
                _upload(world, cluster, topic, lines, f"{name}-{number}.0", session)
            except NotFoundError:
                current.clear()
                continue
            except L0gcError:
                continue
            finished.append((revision, topic, lines))
            current.clear()

    return run


def reconciler(world: World) -> Callable[[int], None]:
    def body(n: int) -> None:
        cluster = world.cluster()
        plan, _ = plan_run(cluster, None)
        if plan.partitions:
            commit_run(cluster, plan, write_plan(cluster, plan), lambda text: None)
            _report(cluster, "reconcile", [p.id for p in plan.partitions])

    return body


def housekeeper(world: World) -> Callable[[int], None]:
    """Truncates hard: a checkpoint every three entries, and no minimum age."""

    def body(n: int) -> None:
        housekeep(world.cluster(), barrier=world.random.random() < 0.2, checkpoint_entries=3)

    return body


def topic_keeper(world: World) -> Callable[[int], None]:
    def body(n: int) -> None:
        cluster = world.cluster()
        name = world.random.choice(TOPICS)
        if world.random.random() < 0.3:
            topic = cluster.controller.delete_topic(name)
            for p in topic.ids():
                cluster.partition(p).close()
        else:
            cluster.controller.create_topic(name, PARTITIONS)

    return body


def watermark_job(world: World) -> Callable[[int], None]:
    """compute-watermark without Spark; sometimes it reads only some of the reports, as if they were not there yet."""

    def body(n: int) -> None:
        compute_watermark(world.cluster(), share=world.random.choice([1.0, 0.5]), world=world)

    return body


def compute_watermark(cluster: Cluster, *, share: float = 1.0, world: World | None = None) -> int:
    def reports() -> list[PartitionReport]:
        rows = []
        for key in cluster.store.list(REPORTS).modified_ms:
            if world is None or share == 1.0 or world.random.random() < share:
                table = read_report_file(cluster.store.get(key).body, key)
                rows += [msgspec.convert(row, PartitionReport) for row in table.to_pylist()]
        return rows

    return job.run(cluster, reports, lambda layout: histogram(cluster, layout)).watermark.watermark


def histogram(cluster: Cluster, layout: KeyLayout) -> list[EpochRow]:
    rows: dict[int | None, list[str]] = {}
    for page in cluster.store.scan(layout.data_prefix):
        for key in page.keys:
            parsed = layout.parse(key)
            rows.setdefault(None if parsed is None else parsed.epoch, []).append(key)
    return [EpochRow(epoch, len(keys), 0, min(keys)) for epoch, keys in rows.items()]


def sweeper(world: World) -> Callable[[int], None]:
    def body(n: int) -> None:
        LocalSweep(world.cluster()).run(Inline(), ranges=2)

    return body


def reader(world: World) -> Callable[[int], None]:
    """Reads everything; a record is never seen twice, nor another one where an acknowledged one is."""

    def body(n: int) -> None:
        cluster = world.cluster()
        for p in cluster.controller.snapshot().partitions():
            check_partition(world, cluster, p, complete=False)

    return body


def check_partition(world: World, cluster: Cluster, p: PartitionId, *, complete: bool) -> list[bytes]:
    handle = cluster.partition(p)
    acknowledged = {o: v for (q, o), v in world.acknowledged.items() if q == p}
    values: list[bytes] = []
    try:
        for r in read_partition(cluster.store, handle):
            if r.offset != len(values):
                raise world.violation(f"{p}: record {r.offset} came where {len(values)} is next")
            if acknowledged.get(r.offset, r.value) != r.value:
                raise world.violation(f"{p}: record {r.offset} is {r.value!r}, not the acknowledged one")
            values.append(r.value)
    except CorruptObjectError as e:
        if (p.topic, p.revision) in world.deleted_topics:
            raise  # its objects may go before its logs are closed
        raise world.violation(f"{p}: {e}") from e
    if complete and acknowledged and max(acknowledged) >= len(values):
        raise world.violation(f"{p}: acknowledged record {max(acknowledged)} is not there")
    if len(set(values)) != len(values):
        raise world.violation(f"{p}: a record is there twice")
    return values
