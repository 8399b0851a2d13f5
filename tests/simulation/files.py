"""Uploads files as `l0gc upload --producer` does: one name for everything that is uploaded, and files that grow at the
same time.

An input is identified by its content and its topic. So a name that is used again skips nothing, the same content in two
topics lands in both, and what is added to a file during its upload does not belong to that upload.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from pathlib import Path

from l0gc.errors import L0gcError, NotFoundError
from l0gc.operations import Upload
from l0gc.storage.parallel import InlineExecutor
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.ingest.uploader import open_upload
from tests.simulation.actors import Batched, Body, Finished, Job, acknowledge
from tests.simulation.world import Process, World

ADDED = b"added to a file while it was uploaded"
GROWN = "files that grew while they were uploaded"


def producer(world: World, jobs: list[Job], finished: Finished) -> Body:
    """Return an actor that repeats each job's upload under its producer's name until the whole input is reported as
    landed.
    """

    def of(process: Process) -> Callable[[], None]:
        def run() -> None:
            while jobs:
                doing = jobs[0]
                with suppress(L0gcError):
                    cluster = world.cluster(process)
                    try:
                        topic = upload_file(world, process, cluster, doing)
                        finished.jobs.add((topic.topic_id, doing))
                    except NotFoundError:
                        pass  # the topic is gone, and with it the job
                    if jobs and jobs[0] == doing:
                        jobs.pop(0)
                        continue
                world.sleep(world.weather.epoch_interval_s)

        return run

    return of


def upload_file(world: World, process: Process, cluster: ClusterHandles, job: Job) -> Topic:
    """Upload a job's input from the file of its process, and report to the watch what was acknowledged."""
    path = Path(world.scratch) / process.name
    path.write_bytes(b"".join(line + b"\n" for line in job.lines))
    with ExitStack() as stack:
        size = world.random.choice([90, 90, 200])
        uploader, inputs = open_upload(
            cluster, job.topic, [str(path)], stack, Upload(producer=job.producer, batch_bytes=size)
        )
        if world.random.random() < 0.2:
            world.happened[GROWN] += 1
            with path.open("ab") as f:
                f.write(ADDED + b"\n")
        uploader.run(inputs)
        acknowledge(world, uploader._topic, job.lines, uploader, done=True)
        return uploader._topic


def executor(world: World, workers: int, name: str) -> Executor:
    """Return an upload's replacement for a pool of threads: it packs at once, and commits several batches together."""
    return InlineExecutor() if name == "pack" else Batched(world.random.randrange(1, 5))
