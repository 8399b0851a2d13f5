"""Runs uploads in this process, one call after another, and reads what they stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path

from l0gc.storage.parallel import InlineExecutor
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Producer
from l0gc.streamlog.ingest.inputs import open_inputs
from l0gc.streamlog.ingest.placement import Partitioner, in_turn
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.ingest.uploader import DEFAULT_BATCH_BYTES, Uploader
from l0gc.streamlog.journal.entries import Objects, decode_journal_entry
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.producers import begin_run
from l0gc.streamlog.reader import read_topic
from l0gc.watermark.publication import refuse_if_set_back
from tests.support.memory_store import Call, another_process, store_of


def upload(
    cluster: ClusterHandles,
    topic: str,
    files: Sequence[Path],
    *,
    session: Producer | None = None,
    partitioner: Partitioner | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    progress: Callable[[int, int], None] = lambda records, size: None,
    packers: Executor | None = None,
    committer: Executor | None = None,
) -> UploadResult:
    """Upload the files as `l0gc upload` does; round robin over the partitions unless `partitioner` is given."""
    target = cluster.controller.snapshot().topic(topic)
    refuse_if_set_back(cluster, target.journals)
    spread = partitioner or in_turn(target.partitions)
    with ExitStack() as stack:
        inputs = open_inputs([str(f) for f in files], spread.describe if session is not None else None, stack)
        uploader = Uploader(
            cluster,
            target,
            spread,
            packers=packers or InlineExecutor(),
            committer=committer or InlineExecutor(),
            batch_bytes=batch_bytes,
            producer=session,
        )
        uploader.landing.progress = progress
        return uploader.run(inputs)


def stored_values(cluster: ClusterHandles, topic: str) -> list[list[bytes]]:
    """Return the records of each partition, in order, after checking each offset."""
    target = cluster.controller.snapshot().topic(topic)
    found: list[list[bytes]] = [[] for _ in range(target.partitions)]
    for r in read_topic(cluster, target):
        assert r.offset == len(found[r.partition])
        found[r.partition].append(r.value)
    return found


# -- small inputs and processes ------------------------------------------------------------------------------------------

SMALL = 4 * (5 + 16)
"""The bytes of a batch of four records of five bytes."""


class CrashError(Exception):
    """The simulated death of a process."""


class Countdown:
    """A fault that ends the process at its `at`-th store call, before or after the call takes effect."""

    def __init__(self, at: int, when: str) -> None:
        self.left, self._when = at, when

    def __call__(self, call: Call) -> None:
        if self.left > 0 and call.when == self._when:
            self.left -= 1
        if self.left == 0:
            self.left = -1
        if self.left < 0:
            raise CrashError


def lines(count: int, prefix: str = "r") -> list[bytes]:
    """Return records of five bytes."""
    return [f"{prefix}{n:04}".encode() for n in range(count)]


def write(path: Path, records: Sequence[bytes]) -> Path:
    path.write_bytes(b"".join(r + b"\n" for r in records))
    return path


def round_robin(*files: Sequence[bytes], partitions: int) -> list[list[bytes]]:
    """Return the records that each partition must hold after these files were uploaded round robin."""
    return [[r for f in files for r in f[p::partitions]] for p in range(partitions)]


def l0_objects(cluster: ClusterHandles) -> list[str]:
    return [k for k in store_of(cluster).objects if k.startswith("level_zero/")]


def job(cluster: ClusterHandles, files: Sequence[Path], batch_bytes: int = SMALL) -> UploadResult:
    """Run the upload job `job`."""
    return upload(cluster, "events", files, session=begin_run(cluster, "job"), batch_bytes=batch_bytes)


def journal_of(cluster: ClusterHandles) -> JournalHandle:
    """Return the handle of the first journal of the topic `events`."""
    return cluster.journal(cluster.controller.snapshot().topic("events").journals[0])


def objects_in_entries(cluster: ClusterHandles) -> list[int]:
    """Return how many objects each entry of the topic's journal holds."""
    journal = journal_of(cluster)
    journal.catch_up()
    log = journal.replica.log
    entries = [decode_journal_entry(log.get(n).payload, "an entry") for n in range(journal.replica.offset + 1)]
    return [len(e.objects) for e in entries if isinstance(e, Objects)]


def slide(cluster: ClusterHandles, times: int) -> None:
    """Move the window of the topic's journal from another process."""
    other = another_process(cluster, 77)
    for _ in range(times):
        journal_of(other).advance(other.controller.advance())
