"""Uploads that are interrupted and repeated, and two runs of one job at once: each record lands exactly once (hazard
20).

Packers and committer run inline, so every store call has its number. Most tests try one journal and several.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from l0gc.errors import InputPositionMovedError, InvalidProducerEpochError, L0gcError, UnknownProducerError, UsageError
from l0gc.operations import Upload
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Producer
from l0gc.streamlog.ingest.landing import Landing, WrittenObject
from l0gc.streamlog.ingest.placement import fixed_partition
from l0gc.streamlog.ingest.result import UploadResult
from l0gc.streamlog.ingest.uploader import open_upload
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.producers import begin_run
from l0gc.streamlog.topics import delete_topic
from tests.support.ingest import (
    SMALL,
    Countdown,
    CrashError,
    job,
    lines,
    round_robin,
    stored_values,
    upload,
    write,
)
from tests.support.memory_store import (
    Call,
    another_process,
    copy_of,
    memory_cluster,
    put_back,
    store_of,
    topic_in_memory,
)
from tests.support.tries import sampled

PARTITIONS = 4
PATIENCE_S = 20.0
"""Only a failing test waits this long, in seconds."""

several = pytest.mark.parametrize("journals", [1, 3])


def journals_of(cluster: ClusterHandles) -> list[JournalHandle]:
    return [cluster.journal(j) for j in cluster.controller.snapshot().topic("events").journals]


def spread(*files: list[bytes]) -> list[list[bytes]]:
    return round_robin(*files, partitions=PARTITIONS)


# -- crashes -----------------------------------------------------------------------------------------------------------


@several
@pytest.mark.parametrize("when", sampled(["before", "after"], ["before"]))
def test_a_dead_job_resumes_where_it_stopped(tmp_path: Path, when: str, journals: int) -> None:
    a, b = lines(13, "a"), lines(6, "b")
    files = [write(tmp_path / "a", a), write(tmp_path / "b", b)]
    at = 0
    while True:
        at += 1
        cluster = topic_in_memory(PARTITIONS, journals)
        store = store_of(cluster)
        store.fault = fault = Countdown(at, when)
        with contextlib.suppress(CrashError):
            job(another_process(cluster, seed=at), files)
        store.fault = lambda call: None
        again = job(another_process(cluster, seed=1000 + at), files)
        assert stored_values(cluster, "events") == spread(a, b), f"died {when} call {at}"
        assert again.records + again.skipped == 19
        if fault.left > 0:
            break  # the upload makes fewer calls
    assert at > 15


@several
@pytest.mark.parametrize("seed", sampled(range(10), range(5)))
def test_a_job_that_dies_again_and_again_ends_up_whole(tmp_path: Path, seed: int, journals: int) -> None:
    a, b = lines(17, "a"), lines(9, "b")
    files = [write(tmp_path / "a", a), write(tmp_path / "b", b)]
    cluster = topic_in_memory(PARTITIONS, journals)
    store = store_of(cluster)
    for attempt in range(30):
        process = another_process(cluster, seed=100 * seed + attempt)
        store.fault = Countdown(3 + (7 * seed + 5 * attempt) % 23, "after" if attempt % 2 else "before")
        try:
            job(process, files)
            break
        except CrashError:
            store.fault = lambda call: None
            if attempt % 3 == 2:
                another_process(cluster, seed=5000 + attempt).controller.advance()
    store.fault = lambda call: None
    job(another_process(cluster, seed=6000), files)
    assert stored_values(cluster, "events") == spread(a, b)


@several
def test_a_run_that_goes_on_with_other_batches_lands_each_record_once(tmp_path: Path, journals: int) -> None:
    """The input's positions identify what landed, whatever the batches were."""
    records = lines(50)
    path = write(tmp_path / "in", records)
    for at in range(14, 40, 3):
        cluster = topic_in_memory(PARTITIONS, journals)
        store_of(cluster).fault = Countdown(at, "after")
        with contextlib.suppress(CrashError):
            job(another_process(cluster), [path])
        store_of(cluster).fault = lambda call: None
        again = job(another_process(cluster, 2), [path], batch_bytes=7 * 21)
        assert stored_values(cluster, "events") == spread(records)
        assert again.records + again.skipped == 50


# -- inputs by content -------------------------------------------------------------------------------------------------


@several
def test_a_repeated_job_skips_everything_whatever_the_file_is_called(tmp_path: Path, journals: int) -> None:
    cluster = topic_in_memory(PARTITIONS, journals)
    job(cluster, [write(tmp_path / "day-1", lines(9))])
    again = job(another_process(cluster), [write(tmp_path / "renamed", lines(9))])
    assert (again.records, again.skipped, again.objects) == (0, 9, [])
    assert stored_values(cluster, "events") == spread(lines(9))


@pytest.mark.parametrize(
    "other", [lines(9, "s"), lines(10), lines(8), lines(9)[::-1]], ids=["other", "longer", "cut", "turned"]
)
def test_other_input_under_the_same_names_is_never_skipped(tmp_path: Path, other: list[bytes]) -> None:
    """Hazard 20: a part that equals the earlier input is not skipped either."""
    cluster = topic_in_memory(PARTITIONS)
    path = tmp_path / "in"
    job(cluster, [write(path, lines(9))])
    result = job(another_process(cluster), [write(path, other)])
    assert (result.records, result.skipped) == (len(other), 0)
    assert stored_values(cluster, "events") == spread(lines(9), other)


def test_a_file_in_another_or_recreated_topic_is_new_input(tmp_path: Path) -> None:
    """A journal keeps the progress of a producer's inputs for all its topics together."""
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, journals=1)
    path = write(tmp_path / "in", lines(9))

    def send(topic: str) -> UploadResult:
        with contextlib.ExitStack() as stack:
            uploader, inputs = open_upload(cluster, topic, [str(path)], stack, Upload(producer="job"))
            return uploader.run(inputs)

    for topic in ("events", "others"):
        cluster.controller.create_topic(topic, PARTITIONS)
        assert (send(topic).records, send(topic).skipped) == (9, 9)
    delete_topic(cluster, "events")
    cluster.controller.create_topic("events", PARTITIONS)
    assert send("events").records == 9


def test_an_upload_of_repeated_content_resumes_both_copies(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    files = [write(tmp_path / "a", lines(7)), write(tmp_path / "b", lines(7))]
    store_of(cluster).fault = Countdown(12, "after")
    with pytest.raises(CrashError):
        job(another_process(cluster, 3), files)
    store_of(cluster).fault = lambda call: None
    before = [len(v) for v in stored_values(cluster, "events")]
    assert 0 < sum(before) < 14
    job(another_process(cluster, 4), files)
    assert stored_values(cluster, "events") == spread(lines(7), lines(7))


def test_a_job_with_another_spread_is_other_input(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    path = write(tmp_path / "in", lines(4))
    job(cluster, [path])
    process = another_process(cluster)
    fixed = fixed_partition(0, PARTITIONS)
    upload(process, "events", [path], session=begin_run(process, "job"), partitioner=fixed)
    assert stored_values(cluster, "events")[0] == [lines(4)[0], *lines(4)]


@several
def test_bytes_appended_during_an_upload_wait_for_the_next(tmp_path: Path, journals: int) -> None:
    """A repeat would identify the longer file by a different hash, and send the added bytes again."""
    cluster = topic_in_memory(PARTITIONS, journals)
    path = write(tmp_path / "in", lines(20))

    def grow(records: int, size: int) -> None:
        with path.open("ab") as f:
            f.write(b"added\n")

    session = begin_run(cluster, "job")
    result = upload(cluster, "events", [path], session=session, batch_bytes=SMALL, progress=grow)
    assert result.records == 20
    assert stored_values(cluster, "events") == spread(lines(20))


def test_a_file_that_is_cut_while_it_is_uploaded_is_named(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    path = write(tmp_path / "in", lines(200_000))

    def cut(records: int, size: int) -> None:
        with path.open("r+b") as f:
            f.truncate(600)

    session = begin_run(cluster, "job")
    with pytest.raises(UsageError, match=f"^{path} was truncated by .* while it was uploaded"):
        upload(cluster, "events", [path], session=session, batch_bytes=SMALL * 5000, progress=cut)


# -- two runs at once --------------------------------------------------------------------------------------------------


@several
def test_a_second_run_takes_over_from_one_that_is_halfway(tmp_path: Path, journals: int) -> None:
    """Hazard 20: A lands a batch, B starts and ends, and A is fenced when it continues."""
    cluster = topic_in_memory(PARTITIONS, journals)
    records = lines(16)
    path = write(tmp_path / "in", records)
    results: list[UploadResult] = []

    def second(count: int, size: int) -> None:
        if not results:
            results.append(UploadResult(placeholders=None))  # type: ignore[arg-type]  # B has begun
            results.append(job(another_process(cluster), [path]))

    with pytest.raises(InvalidProducerEpochError, match="another run took over"):
        upload(
            cluster,
            "events",
            [path],
            session=begin_run(cluster, "job"),
            batch_bytes=SMALL,
            progress=second,
        )
    assert results[1].records + results[1].skipped == 16
    assert stored_values(cluster, "events") == spread(records)


def test_a_run_that_was_overtaken_before_it_began_is_refused(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    path = write(tmp_path / "in", lines(8))
    late = begin_run(cluster, "job")
    job(another_process(cluster), [])
    with pytest.raises(UnknownProducerError):
        upload(cluster, "events", [path], session=late)
    assert stored_values(cluster, "events") == [[]] * PARTITIONS


@several
@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_second_run_sees_the_firsts_landings_when_landing(tmp_path: Path, batches: int, journals: int) -> None:
    """Hazard 20: B reads how far A got and packs its first batch; before that batch lands, A lands more of the same
    input.

    B then reads the input again from A's new position.
    """
    cluster = topic_in_memory(PARTITIONS, journals)
    records = lines(20)
    path = write(tmp_path / "in", records)
    a, b = another_process(cluster, 1), another_process(cluster, 2)
    turns = Turns(begin_run(a, "job"))
    first = threading.Thread(target=turns.run, args=(a, path), daemon=True)
    first.start()
    turns.until_paused()  # A has landed its first batch
    packed: list[str] = []

    def fault(call: Call) -> None:
        mine = threading.current_thread() is threading.main_thread()
        if mine and call.kind == "put" and call.when == "after" and not packed:
            packed.append(call.key)
            for _ in range(batches):
                turns.one_more()

    session_b = begin_run(b, "job")
    store_of(cluster).fault = fault
    result = upload(b, "events", [path], session=session_b, batch_bytes=SMALL)
    store_of(cluster).fault = lambda call: None
    turns.finish(first)
    assert packed
    assert packed[0] not in {p.key for p in result.placeholders}
    assert stored_values(cluster, "events") == spread(records)
    assert result.skipped == 4 + 4 * batches
    assert result.records == 20 - result.skipped
    assert isinstance(turns.error, InvalidProducerEpochError)


def test_what_a_run_landed_before_it_began_again_is_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = topic_in_memory(PARTITIONS)
    land, moved = Landing.land, list[int]()

    def lands_and_begins_again(self: Landing, objects: Iterable[WrittenObject]) -> None:
        land(self, objects)
        if not moved:
            moved.append(1)
            raise InputPositionMovedError("another run landed more", landed=0)

    monkeypatch.setattr(Landing, "land", lands_and_begins_again)
    records = lines(20)
    path = write(tmp_path / "in", records)
    result = upload(cluster, "events", [path], session=begin_run(cluster, "job"), batch_bytes=SMALL)
    assert (moved, result.records, result.skipped) == ([1], 20, 0)
    assert stored_values(cluster, "events") == spread(records)


class Turns:
    """A run of the job on another thread, which stops after each batch until the test lets it land the next one."""

    def __init__(self, session: Producer) -> None:
        self._session = session
        self.error: L0gcError | None = None
        self._paused = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self._landed = 0
        self._free = False

    def run(self, cluster: ClusterHandles, path: Path) -> None:
        try:
            upload(cluster, "events", [path], session=self._session, batch_bytes=SMALL, progress=self._progress)
        except L0gcError as e:
            self.error = e

    def _progress(self, records: int, size: int) -> None:
        self._landed += records
        if self._landed % 4 == 0 and not self._free:
            self._paused.release()
            assert self._go_on.acquire(timeout=PATIENCE_S)

    def until_paused(self) -> None:
        assert self._paused.acquire(timeout=PATIENCE_S)

    def one_more(self) -> None:
        self._go_on.release()
        self.until_paused()

    def finish(self, thread: threading.Thread) -> None:
        self._free = True
        self._go_on.release()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


# -- a controller that was restored ------------------------------------------------------------------------------------


def test_a_run_with_a_reissued_epoch_is_refused(tmp_path: Path) -> None:
    """Producer id and epoch are the same, but the run differs, so its batches are not taken for the old run's."""
    cluster = topic_in_memory(PARTITIONS)
    path = write(tmp_path / "in", lines(8))
    store = store_of(cluster)
    first = begin_run(cluster, "job")
    backup = copy_of(store, "l0gc/controller/")
    second = begin_run(cluster, "job")
    upload(cluster, "events", [path], session=second)
    put_back(store, "l0gc/controller/", backup)
    process = another_process(cluster, 6)
    again = begin_run(process, "job")
    assert (again.producer_id, again.epoch) == (second.producer_id, second.epoch)
    assert again.run not in (first.run, second.run)
    other = write(tmp_path / "other", lines(8, "s"))
    with pytest.raises(InvalidProducerEpochError, match="restored"):
        upload(process, "events", [other], session=again)
    assert stored_values(process, "events") == spread(lines(8))
    third = job(another_process(cluster, 7), [other])  # its run bumps the epoch
    assert third.records == 8
    assert stored_values(process, "events") == spread(lines(8), lines(8, "s"))
