"""Honest processes that repeat the jobs of a real cluster, with the real code.

A process lives for one job, as a command does; uploaders live longer, and share their handles between two threads. What
is reported to a job as done, the job reports to the watch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from l0gc.errors import L0gcError
from l0gc.storage.parallel import InlineExecutor
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Producer, Topic
from l0gc.streamlog.ingest.inputs import Input
from l0gc.streamlog.ingest.placement import in_turn
from l0gc.streamlog.ingest.uploader import Uploader
from l0gc.streamlog.journal.rows import NUMBER, unpack
from l0gc.streamlog.producers import begin_run
from l0gc.watermark.publication import refuse_if_set_back
from tests.simulation.weather import Shape
from tests.simulation.world import Process, World
from tests.support.topics import create_topic

TOPICS = ("a", "b", "c")
"""The last of these topics does not exist at first."""
JOB_RECORDS = 12
Body = Callable[[Process], Callable[[], None]]
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Job:
    """An upload that has to land once, whichever process runs it and however often."""

    producer: str
    number: int
    topic: str

    @property
    def lines(self) -> list[bytes]:
        return [f"{self.producer}-{self.number}-{i}".encode() for i in range(JOB_RECORDS)]


@dataclass
class Finished:
    """The jobs that were reported as done, each with the id of its topic's incarnation."""

    jobs: set[tuple[str, Job]] = field(default_factory=set)


def repeat(world: World, times: int, once: Callable[[Process], None]) -> Body:
    """Run `once` this many times; an error of l0gc's ends one of them, as it ends a command."""

    def of(process: Process) -> Callable[[], None]:
        done = [0]

        def run() -> None:
            while done[0] < times:
                done[0] += 1
                with suppress(L0gcError):
                    once(process)

        return run

    return of


Rest = ParamSpec("Rest")


def repeated(once: Callable[Concatenate[World, Process, Rest], None]) -> Callable[Concatenate[World, int, Rest], Body]:
    """Make an actor that repeats `once`."""

    def actor(world: World, times: int, /, *args: Rest.args, **options: Rest.kwargs) -> Body:
        return repeat(world, times, lambda process: once(world, process, *args, **options))

    return actor


def shape_of(world: World, topic: str) -> Shape:
    """Return a topic's partitions and journals in this seed."""
    return world.weather.shapes[TOPICS.index(topic) if topic in TOPICS else 0]


def found_topic(world: World, cluster: ClusterHandles, name: str) -> Topic:
    """Return the topic, and create it if it does not exist."""
    shape = shape_of(world, name)
    return create_topic(cluster, name, shape.partitions, shape.journals)


# -- uploads --------------------------------------------------------------------------------------------------------------


class Batched(Executor):
    """Runs submitted tasks once `size` of them have been collected, or once a result is requested."""

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
            except Exception as e:  # noqa: BLE001 - passed on with the result
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
    cluster: ClusterHandles,
    topic: str,
    lines: list[bytes],
    input_id: str = "",
    session: Producer | None = None,
) -> Topic:
    """Upload the lines, and report to the watch what was acknowledged, even if the upload then failed."""
    target = cluster.controller.snapshot().topic(topic)
    refuse_if_set_back(cluster, target.journals)
    spread = in_turn(target.partitions)
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
    source = Input(topic, input_id, lambda: iter([b"".join(line + b"\n" for line in lines)]))
    done = False
    try:
        uploader.run([source])
        done = True
    finally:
        if done or session is None:
            acknowledge(world, target, lines, uploader, done=done)
    return target


def acknowledge(world: World, target: Topic, lines: list[bytes], uploader: Uploader, *, done: bool) -> None:
    """Report the landed records to the watch, in order: the last of `lines` if the upload is done, and else the first
    ones.
    """
    landed: dict[int, list[tuple[int | None, int]]] = {}
    for _, o, found in uploader.result.placeholders.objects:
        partitions, records = unpack(o.partitions, NUMBER).tolist(), unpack(o.records, NUMBER).tolist()
        bases: Sequence[int | None] = [None] * len(partitions) if found is None else found.tolist()
        for p, base, n in zip(partitions, bases, records, strict=True):
            landed.setdefault(p, []).append((base, n))
    for p, batches in landed.items():
        mine = lines[p :: target.partitions]
        at = len(mine) - sum(n for _, n in batches) if done else 0
        for base, n in batches:
            if base is not None:
                world.watch.acknowledge(target, p, base, n, mine[at : at + n])
            at += n


def line_of(name: str, i: int) -> bytes:
    """Return a value that fits all value schemas of `typed.py`, or only those from the second on, or none of them."""
    n = i if i % 3 else 3_000_000_000
    return (
        b"%s[%d" % (name.encode(), i)
        if i % 4 == 3
        else json.dumps({"who": f"{name}-{i}", "n": n, "tags": ["a", None], "x": i}).encode()
    )


def new_lines(world: World, name: str) -> list[bytes]:
    """Return a few new records."""
    n = world.random.randrange(1, 9)
    names = [f"{name}-{world.random.getrandbits(48):012x}" for _ in range(n)]
    return [line_of(w, i) if world.weather.schemas else f"{w}-{i}".encode() for i, w in enumerate(names)]


@contextmanager
def in_flight(process: Process) -> Iterator[None]:
    """Count the process as having an append in progress until the block ends."""
    generation = process.generation
    process.in_flight += 1
    try:
        yield
    finally:
        if generation == process.generation:
            process.in_flight -= 1


@repeated
def uploader(world: World, process: Process, cache_s: float) -> None:
    """Uploads a few records, each once, from a process whose epoch may be stale and whose threads share its handles."""
    if process.kept is None or (process.in_flight == 0 and world.random.random() < 0.2):
        process.kept = world.cluster(process, epoch_cache_s=cache_s)
    cluster = process.kept
    try:
        with in_flight(process):
            upload(world, cluster, world.random.choice(TOPICS), new_lines(world, process.name))
    finally:
        if process.in_flight == 0 and process.kept is cluster:
            check_fences(world, cluster)


def check_fences(world: World, cluster: ClusterHandles) -> None:
    """Check that a fence refuses nothing that the log would take, while no append is in progress."""
    for handle in cluster._journals.values():
        shadow = world.watch.shadow(handle.journal)
        oldest = handle.fence.window.oldest
        if oldest > shadow.previous:
            raise world.violation(
                f"journal {handle.journal}: a fence refuses what is below {oldest}, its log [{shadow.previous}, "
                f"{shadow.newest}] does not"
            )
        known = handle.replica.peek().window.oldest
        if oldest < known:
            raise world.violation(
                f"journal {handle.journal}: a fence admits {oldest}, though its process knows {known}"
            )


@repeated
def duo(world: World, process: Process) -> None:
    """Uploads under a producer's name that another thread of this process also uses: each run fences the other's."""
    if process.kept is None:
        process.kept = world.cluster(process, epoch_cache_s=5.0)
    cluster = process.kept
    name = f"duo-{process.name}"
    for _ in range(2):
        with in_flight(process):
            session = begin_run(cluster, name)
            lines = new_lines(world, process.name)
            upload(world, cluster, world.random.choice(TOPICS), lines, lines[0].decode(), session)
