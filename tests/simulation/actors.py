"""What honest processes do, over and over: the jobs of a real cluster, with the real code.

A process lives for one job, as a command does; uploaders live longer, and share their handles between two threads. What
a job is told as done, it tells the watch.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from l0gc.collect.local import LocalSweep
from l0gc.collect.plan import SweepOptions
from l0gc.errors import CorruptObjectError, L0gcError, NotFoundError, ObjectNotFoundError, PartitionClosedError
from l0gc.storage.fan_out import LocalFanOut
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Inline, InlineExecutor
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.ingest.inputs import Input
from l0gc.streamlog.ingest.partitioner import InTurn
from l0gc.streamlog.ingest.uploader import ProducerSession, Uploader
from l0gc.streamlog.level_one.reconcile import reconcile
from l0gc.streamlog.reader import read_topic
from l0gc.streamlog.topics import create_topic, delete_topic
from l0gc.watermark.listing import ListingScan
from l0gc.watermark.pipeline import Pipeline
from tests.simulation.weather import HOUR_MS, Shape
from tests.simulation.world import Process, World

TOPICS = ("a", "b", "c")
"""Of which the last one does not exist at first."""
JOB_RECORDS = 12
Body = Callable[[Process], Callable[[], None]]
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Job:
    """An upload that has to land once, whoever does it and however often."""

    producer: str
    number: int
    topic: str

    @property
    def lines(self) -> list[bytes]:
        return [f"{self.producer}-{self.number}-{i}".encode() for i in range(JOB_RECORDS)]


@dataclass
class Finished:
    """The jobs that somebody was told are done, and in which incarnation of their topic, by its id."""

    jobs: set[tuple[str, Job]] = field(default_factory=set)


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


def shape_of(world: World, topic: str) -> Shape:
    """A topic's partitions and journals, in this seed."""
    return world.weather.shapes[TOPICS.index(topic) if topic in TOPICS else 0]


def found_topic(world: World, cluster: Cluster, name: str) -> Topic:
    """The topic, created if there is none."""
    shape = shape_of(world, name)
    return create_topic(cluster, name, shape.partitions, shape.journals)[0]


# -- uploads --------------------------------------------------------------------------------------------------------------


class Batched(Executor):
    """Does what is submitted when so many tasks have come together, or when somebody asks for a result."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., B], /, *args: Any, **kwargs: Any) -> Future[B]:
        future: Future[B] = _Asked(self)
        self._tasks.append((future, lambda: fn(*args, **kwargs)))
        if len(self._tasks) >= self._size:
            self.work()
        return future

    def work(self) -> None:
        while self._tasks:
            future, task = self._tasks.pop(0)
            try:
                future.set_result(task())
            except Exception as e:  # noqa: BLE001 - handed to whoever asks for the result
                future.set_exception(e)
            except BaseException as e:  # the process dies
                for left, _ in [(future, task), *self._tasks]:
                    left.set_exception(e)
                self._tasks.clear()
                raise


class _Asked(Future[B]):
    def __init__(self, executor: Batched) -> None:
        super().__init__()
        self._executor = executor

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._executor.work()
        return super().exception(timeout)


def upload(
    world: World,
    cluster: Cluster,
    topic: str,
    lines: list[bytes],
    input_id: str = "",
    session: ProducerSession | None = None,
) -> Topic:
    """Upload the lines, and tell the watch what was acknowledged, also by an upload that then failed."""
    target = cluster.controller.snapshot().topic(topic)
    spread = InTurn(target.partitions)
    committer = Batched(world.random.randrange(1, 5))
    uploader = Uploader(
        cluster,
        target,
        spread,
        packers=InlineExecutor(),
        committer=committer,
        batch_bytes=world.random.choice([90, 90, 200]),
        producer=session,
    )
    source = Input(topic, input_id, lambda: io.BytesIO(b"".join(line + b"\n" for line in lines)))
    done = False
    try:
        uploader.run([source])
        done = True
    finally:
        if done or session is None:
            _acknowledge(world, target, lines, uploader, done=done)
    return target


def _acknowledge(world: World, target: Topic, lines: list[bytes], uploader: Uploader, *, done: bool) -> None:
    """What landed is in order; all but what had landed before if it is done, and the first records if it is not."""
    landed: dict[int, list[tuple[int | None, int]]] = {}
    for e in uploader.result.placeholders._extents:
        bases: Sequence[int | None] = [None] * len(e.partitions) if e.bases is None else e.bases.tolist()
        for p, base, n in zip(e.partitions.tolist(), bases, e.records.tolist(), strict=True):
            landed.setdefault(p, []).append((base, n))
    for p, batches in landed.items():
        mine = lines[p :: target.partitions]
        at = len(mine) - sum(n for _, n in batches) if done else 0
        for base, n in batches:
            if base is not None:
                world.watch.acknowledge(target, p, base, n, mine[at : at + n])
            at += n


def new_lines(world: World, name: str) -> list[bytes]:
    """A few records that nobody has uploaded before."""
    n = world.random.randrange(1, 9)
    return [f"{name}-{world.random.getrandbits(48):012x}-{i}".encode() for i in range(n)]


@contextmanager
def in_flight(process: Process) -> Iterator[None]:
    """While this holds, the process has something under way."""
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
            with in_flight(process):
                upload(world, cluster, world.random.choice(TOPICS), new_lines(world, process.name))
        finally:
            if process.in_flight == 0 and process.kept is cluster:
                check_fences(world, cluster)

    return repeat(world, times, once)


def check_fences(world: World, cluster: Cluster) -> None:
    """With no append under way, a fence refuses nothing that the log would take."""
    for handle in cluster.touched():
        shadow = world.watch.shadow(handle.journal)
        oldest = handle.fence.window.oldest
        if oldest > shadow.previous:
            raise world.violation(
                f"journal {handle.journal}: a fence refuses what is below {oldest}, its log [{shadow.previous}, "
                f"{shadow.newest}] does not"
            )


def producer(world: World, jobs: list[Job], finished: Finished) -> Body:
    """Uploads each job's input again and again under its producer's name until it is told that all of it landed."""

    def of(process: Process) -> Callable[[], None]:
        def run() -> None:
            while jobs:
                doing = jobs[0]
                with suppress(L0gcError):
                    cluster = world.cluster(process)
                    try:
                        session = ProducerSession.begin(cluster, doing.producer)
                        topic = cluster.controller.snapshot().topic(doing.topic)
                        # What identifies it: its content, and where it goes, as `open_upload` has it.
                        input_id = f"{doing.producer}-{doing.number}-{topic.topic_id}.0"
                        topic = upload(world, cluster, doing.topic, doing.lines, input_id, session)
                        finished.jobs.add((topic.topic_id, doing))
                    except NotFoundError:
                        pass  # the topic is gone, and with it the job
                    if jobs and jobs[0] == doing:
                        jobs.pop(0)
                        continue
                world.sleep(world.weather.epoch_interval_s)

        return run

    return of


def duo(world: World, times: int) -> Body:
    """Uploads under a producer's name that another thread of this process uses, too: each run fences the other's."""

    def once(process: Process) -> None:
        if process.kept is None:
            process.kept = world.cluster(process, epoch_cache_s=5.0)
        cluster = process.kept
        name = f"duo-{process.name}"
        for _ in range(2):
            with in_flight(process):
                session = ProducerSession.begin(cluster, name)
                lines = new_lines(world, process.name)
                upload(world, cluster, world.random.choice(TOPICS), lines, lines[0].decode(), session)

    return repeat(world, times, once)


# -- upkeep ---------------------------------------------------------------------------------------------------------------


def reconciler(world: World, times: int) -> Body:
    """Lifts everything, in rounds that are large or tiny."""

    def once(process: Process) -> None:
        reconcile(world.cluster(process), round_bytes=world.random.choice([1, 2_000, 1 << 20]))

    return repeat(world, times, once)


def housekeeper(world: World, times: int) -> Body:
    def once(process: Process) -> None:
        housekeep(world.cluster(process), barrier=world.random.random() < 0.15)

    return repeat(world, times, once)


def topic_keeper(world: World, times: int) -> Body:
    """Deletes topics and creates them again under their old names."""

    def once(process: Process) -> None:
        cluster = world.cluster(process)
        name = world.random.choice(TOPICS)
        if world.random.random() < 0.4:
            delete_topic(cluster, name)
        else:
            found_topic(world, cluster, name)

    return repeat(world, times, once)


class _Executors(LocalFanOut):
    """Spark without Spark: it takes its time between its tasks."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        super().__init__(cluster.store, Inline(), 2)
        self._world, self._store_of = world, cluster.store

    def map(self, work: Callable[[ObjectStore, A], B], items: Sequence[A]) -> list[B]:
        done: list[B] = []
        for item in items:
            if self._world.thread is not None and self._world.random.random() < (0.2 if done else 0.5):
                self._world.sleep(self._world.random.choice([2.0, 8.0, 32.0, 120.0]))
            done.append(work(self._store_of, item))
        return done


def watermark_job(world: World, times: int) -> Body:
    def once(process: Process) -> None:
        compute_watermark(world, world.cluster(process))

    return repeat(world, times, once)


def compute_watermark(world: World, cluster: Cluster) -> int:
    """M, computed and published by the pipeline that the command runs."""
    executors = _Executors(world, cluster)
    pipeline = Pipeline(cluster, JournalSource(cluster, executors), ListingScan(executors, first_pages=2))
    return pipeline.run().watermark


def sweeper(world: World, times: int) -> Body:
    def once(process: Process) -> None:
        min_age_ms = world.random.choice([0, 60_000, 7 * HOUR_MS, 7 * HOUR_MS])
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
        run_all(world, world.cluster(process))

    return repeat(world, times, once)


def run_all(world: World, cluster: Cluster) -> None:
    """Reconcile, close every window, compute M, sweep."""
    reconcile(cluster)
    housekeep(cluster, barrier=True)
    compute_watermark(world, cluster)
    sweep(cluster)


# -- readers --------------------------------------------------------------------------------------------------------------


def reader(world: World, times: int) -> Body:
    """Reads everything; a record is never seen twice, nor another one where an acknowledged one is."""

    def once(process: Process) -> None:
        cluster = world.cluster(process)
        for topic in cluster.controller.snapshot().topics.values():
            check_topic(world, cluster, topic, complete=False)

    return repeat(world, times, once)


def _meanwhile(world: World) -> None:
    """A slow reader: what it has yet to read moves."""
    if world.random.random() < 0.7:
        world.sleep(5.0)
        return
    with suppress(L0gcError):
        run_all(world, world.cluster())


def check_topic(world: World, cluster: Cluster, topic: Topic, *, complete: bool) -> dict[int, list[bytes]]:
    """Read a topic, and hold it against what was acknowledged before the reading began."""
    told = {p: dict(world.watch.acknowledged.get((topic.topic_id, p), {})) for p in range(topic.partitions)}
    values: dict[int, list[bytes]] = {p: [] for p in range(topic.partitions)}
    try:
        for r in read_topic(cluster, topic):
            mine = values[r.partition]
            if r.offset != len(mine):
                raise world.violation(f"{topic.name}/{r.partition}: record {r.offset} came where {len(mine)} is next")
            if told[r.partition].get(r.offset, r.value) != r.value:
                raise world.violation(
                    f"{topic.name}/{r.partition}: record {r.offset} is {r.value!r}, not the acknowledged one"
                )
            mine.append(r.value)
            if world.thread is not None and world.random.random() < 0.15:
                _meanwhile(world)
    except (CorruptObjectError, ObjectNotFoundError, PartitionClosedError) as e:
        if not world.watch.is_live(topic):
            raise  # its objects may go before its journals are closed
        raise world.violation(f"{topic.name}: {e}") from e
    for p, mine in values.items():
        if (complete or world.watch.is_live(topic)) and told[p] and max(told[p]) >= len(mine):
            raise world.violation(f"{topic.name}/{p}: acknowledged record {max(told[p])} is not there")
    every = [v for mine in values.values() for v in mine]
    if len(set(every)) != len(every):
        twice = sorted(v for v in set(every) if every.count(v) > 1)
        raise world.violation(f"{topic.name}: {twice[0]!r} is there twice")
    return values
