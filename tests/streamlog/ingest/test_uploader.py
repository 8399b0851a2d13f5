"""Uploads: in order, nothing lost, nothing twice, whatever happens on the way.

Several clusters on one store are several processes. Packers and committer run inline, so every store call has its number.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from l0gc.errors import (
    AccessDeniedError,
    BadRecordError,
    InvalidProducerEpochError,
    L0gcError,
    PartitionClosedError,
    UnknownProducerError,
)
from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.ingest import inputs
from l0gc.streamlog.ingest.partitioner import ByField, FixedPartition
from l0gc.streamlog.ingest.uploader import ProducerSession, UploadResult
from l0gc.streamlog.journal.state import PartitionState
from tests.support.ingest import producer_session, stored_values, upload
from tests.support.memory_store import Call, MemoryStore, lose_reply, memory_cluster

T = TypeVar("T")

PARTITIONS = 2
PATIENCE_S = 20.0
"""Only a test that fails waits this long."""
SMALL = 4 * (5 + 16)
"""Four records of five bytes to a batch."""


class Crash(Exception):
    """The process dies."""


def new_cluster(partitions: int = PARTITIONS) -> Cluster:
    cluster = memory_cluster()
    cluster.controller.create_topic("events", partitions)
    return cluster


def another_process(cluster: Cluster, seed: int = 1) -> Cluster:
    return memory_cluster(store_of(cluster), seed=seed, bootstrap=False)


def store_of(cluster: Cluster) -> MemoryStore:
    assert isinstance(cluster.store, MemoryStore)
    return cluster.store


def lines(count: int, prefix: str = "r") -> list[bytes]:
    return [f"{prefix}{n:04}".encode() for n in range(count)]


def write(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(r + b"\n" for r in records))
    return path


def in_turn(*files: list[bytes], partitions: int = PARTITIONS) -> list[list[bytes]]:
    """What each partition must hold after these files were uploaded in turn."""
    return [[r for f in files for r in f[p::partitions]] for p in range(partitions)]


def state_of(cluster: Cluster, partition: int) -> PartitionState:
    return cluster.partition(ids(cluster)[partition]).catch_up()


def objects(cluster: Cluster) -> list[str]:
    return [k for k in store_of(cluster).objects if k.startswith("level_zero/")]


# -- what an upload is -------------------------------------------------------------------------------------------------


def test_records_land_in_input_order_in_each_partition(tmp_path: Path) -> None:
    cluster = new_cluster()
    records = lines(30)
    result = upload(cluster, "events", [write(tmp_path / "in", records)], batch_bytes=SMALL)
    assert stored_values(another_process(cluster), "events") == in_turn(records)
    assert (result.records, result.bytes, result.retries, result.skipped) == (30, 150, 0, 0)
    assert sorted(o.key for o in result.objects) == sorted(objects(cluster))
    for o in result.objects:
        key = cluster.controller.layout().parse(o.key)
        assert key is not None
        assert key.epoch == o.epoch == cluster.controller.epoch()
        assert len(store_of(cluster).objects[o.key].body) == o.bytes


def test_what_is_reported_is_what_the_log_holds(tmp_path: Path) -> None:
    cluster = new_cluster()
    result = upload(cluster, "events", [write(tmp_path / "in", lines(11))], batch_bytes=SMALL)
    reported = {(p.partition, p.base_offset, p.last_offset, p.epoch, p.key) for p in result.placeholders}
    logged = {
        (p, u.placeholder.base_offset, u.placeholder.last_offset, u.epoch, u.placeholder.key)
        for p in range(PARTITIONS)
        for u in state_of(cluster, p).placeholders
    }
    assert reported == logged
    assert len(reported) == len(result.placeholders)


@pytest.mark.parametrize(
    ("records", "batch_bytes", "batches"), [(12, SMALL, 3), (13, SMALL, 4), (12, 1, 12), (12, 999, 1)]
)
def test_a_batch_holds_no_more_than_it_is_told(tmp_path: Path, records: int, batch_bytes: int, batches: int) -> None:
    cluster = new_cluster()
    result = upload(cluster, "events", [write(tmp_path / "in", lines(records))], batch_bytes=batch_bytes)
    assert len(result.objects) == batches


def test_tiny_records_fill_a_batch_too(tmp_path: Path) -> None:
    cluster = new_cluster()
    result = upload(cluster, "events", [write(tmp_path / "in", [b""] * 1000)], batch_bytes=1600)
    assert len(result.objects) == 10


@pytest.mark.parametrize("with_producer", [False, True])
def test_no_records_upload_nothing(tmp_path: Path, with_producer: bool) -> None:
    cluster = new_cluster()
    session = producer_session(cluster, "job") if with_producer else None
    result = upload(cluster, "events", [write(tmp_path / "in", [])], session=session)
    assert (result.records, result.objects, objects(cluster)) == (0, [], [])


def test_records_are_kept_byte_for_byte(tmp_path: Path) -> None:
    cluster = new_cluster(1)
    path = tmp_path / "in"
    path.write_bytes(b"one\r\n\n\xff\x00\ntwo")
    upload(cluster, "events", [path], session=producer_session(cluster, "job"))
    assert stored_values(cluster, "events") == [[b"one\r", b"", b"\xff\x00", b"two"]]


def test_a_bad_record_stops_the_upload_and_is_named(tmp_path: Path) -> None:
    cluster = new_cluster(1)
    good = [b'{"k":%d}' % n for n in range(6)]
    path = write(tmp_path / "in", [*good, b"{}", *good])
    with pytest.raises(BadRecordError, match=f"^{path} line 7 has no field 'k'"):
        upload(cluster, "events", [path], partitioner=ByField("k", 1), batch_bytes=4 * 23)
    assert stored_values(cluster, "events") == [good[:4]]  # the batches before it


def test_an_over_long_record_stops_the_upload_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_RECORD_BYTES", 10)
    cluster = new_cluster(1)
    path = write(tmp_path / "in", [b"short", b"x" * 11, b"short"])
    with pytest.raises(BadRecordError, match=f"^{path} line 2 is longer than 10 bytes"):
        upload(cluster, "events", [path])


# -- epochs ------------------------------------------------------------------------------------------------------------


def at_object(cluster: Cluster, number: int, act: Callable[[], None]) -> None:
    """Let `act` happen once, just before the L0 object of that number (from 1) is written."""
    left = [number]

    def fault(call: Call) -> None:
        if (call.kind, call.when) == ("put", "before"):
            left[0] -= 1
            if left[0] == 0:
                act()

    store_of(cluster).fault = fault


@pytest.mark.parametrize("with_producer", [False, True])
def test_a_stale_batch_is_stamped_anew_and_order_holds(tmp_path: Path, with_producer: bool) -> None:
    """The second batch is on its way when another process moves one window past its epoch; so is every later one's."""
    cluster = new_cluster()
    other = another_process(cluster)

    def slide() -> None:
        for _ in range(2):
            other.partition(ids(other)[1]).advance(other.controller.advance())

    session = producer_session(cluster, "job") if with_producer else None
    first_epoch = cluster.controller.snapshot().epoch
    at_object(cluster, 2, slide)
    records = lines(20)
    result = upload(cluster, "events", [write(tmp_path / "in", records)], session=session, batch_bytes=SMALL)
    assert stored_values(another_process(cluster, 2), "events") == in_turn(records)
    assert (result.records, result.retries, len(result.objects)) == (20, 1, 6)
    stale, again = result.objects[1:3]
    assert [o.epoch for o in result.objects] == [first_epoch, first_epoch, *[first_epoch + 2] * 4]
    # Only what was refused was uploaded again.
    assert {p.partition for p in result.placeholders if p.key == stale.key} == {0}
    assert {p.partition for p in result.placeholders if p.key == again.key} == {1}
    for p in range(PARTITIONS):  # whatever landed lies in an object of the very epoch that it was admitted at
        for u in state_of(cluster, p).placeholders:
            key = cluster.controller.layout().parse(u.placeholder.key)
            assert key is not None
            assert key.epoch == u.epoch


def test_a_slightly_stale_epoch_needs_no_second_upload(tmp_path: Path) -> None:
    cluster = new_cluster()
    other = another_process(cluster)

    def slide_once() -> None:
        other.partition(ids(other)[0]).advance(other.controller.advance())

    at_object(cluster, 1, slide_once)
    result = upload(cluster, "events", [write(tmp_path / "in", lines(4))])
    assert result.retries == 0


def ids(cluster: Cluster) -> list[PartitionId]:
    return cluster.controller.snapshot().topic("events").ids()


# -- crashes -----------------------------------------------------------------------------------------------------------


class Countdown:
    """A fault: the process dies at its `at`-th store call, before or after that takes effect."""

    def __init__(self, at: int, when: str) -> None:
        self.left, self._when = at, when

    def __call__(self, call: Call) -> None:
        if self.left > 0 and call.when == self._when:
            self.left -= 1
        if self.left == 0:
            self.left = -1
        if self.left < 0:
            raise Crash


def job(cluster: Cluster, files: list[Path]) -> UploadResult:
    return upload(cluster, "events", files, session=producer_session(cluster, "job"), batch_bytes=SMALL)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_that_dies_at_any_store_call_goes_on_where_it_was(tmp_path: Path, when: str) -> None:
    a, b = lines(13, "a"), lines(6, "b")
    files = [write(tmp_path / "a", a), write(tmp_path / "b", b)]
    at = 0
    while True:
        at += 1
        cluster = new_cluster()
        store = store_of(cluster)
        store.fault = fault = Countdown(at, when)
        with contextlib.suppress(Crash):
            job(another_process(cluster, seed=at), files)
        store.fault = lambda call: None
        again = job(another_process(cluster, seed=1000 + at), files)
        assert stored_values(cluster, "events") == in_turn(a, b), f"died {when} call {at}"
        assert again.records + again.skipped == 19
        if fault.left > 0:
            break  # it did not come to that many calls
    assert at > 20


@pytest.mark.parametrize("seed", range(10))
def test_a_job_that_dies_again_and_again_ends_up_whole(tmp_path: Path, seed: int) -> None:
    a, b = lines(17, "a"), lines(9, "b")
    files = [write(tmp_path / "a", a), write(tmp_path / "b", b)]
    cluster = new_cluster()
    store = store_of(cluster)
    for attempt in range(30):
        process = another_process(cluster, seed=100 * seed + attempt)
        store.fault = Countdown(3 + (7 * seed + 5 * attempt) % 23, "after" if attempt % 2 else "before")
        try:
            job(process, files)
            break
        except Crash:
            store.fault = lambda call: None
            if attempt % 3 == 2:
                another_process(cluster, seed=7).controller.advance()
    store.fault = lambda call: None
    job(another_process(cluster, seed=9), files)
    assert stored_values(cluster, "events") == in_turn(a, b)


def test_lost_replies_on_the_way_change_nothing(tmp_path: Path) -> None:
    """Hazard 8, in an upload."""
    cluster = new_cluster()
    records = lines(12)
    for partition in range(PARTITIONS):
        for offset in range(3):
            cluster = new_cluster()
            path = f"/{partition:05}/log/{offset:020}.json"
            store_of(cluster).fault = lose_reply(path)
            result = upload(cluster, "events", [write(tmp_path / "in", records)], batch_bytes=SMALL)
            assert result.retries == 0
            assert stored_values(cluster, "events") == in_turn(records)


def test_without_a_producer_what_is_uploaded_twice_lands_twice(tmp_path: Path) -> None:
    cluster = new_cluster()
    path = write(tmp_path / "in", lines(4))
    upload(cluster, "events", [path])
    upload(cluster, "events", [path])
    assert stored_values(cluster, "events") == in_turn(lines(4), lines(4))


# -- inputs by content -------------------------------------------------------------------------------------------------


def test_a_repeated_job_skips_everything_whatever_the_file_is_called(tmp_path: Path) -> None:
    cluster = new_cluster()
    job(cluster, [write(tmp_path / "day-1", lines(9))])
    again = job(another_process(cluster), [write(tmp_path / "renamed", lines(9))])
    assert (again.records, again.skipped, again.objects) == (0, 9, [])
    assert stored_values(cluster, "events") == in_turn(lines(9))


@pytest.mark.parametrize(
    "other", [lines(9, "s"), lines(10), lines(8), lines(9)[::-1]], ids=["other", "longer", "cut", "turned"]
)
def test_other_input_under_the_same_names_is_never_skipped(tmp_path: Path, other: list[bytes]) -> None:
    """Hazard 20: neither all of it nor the part that looks the same."""
    cluster = new_cluster()
    path = tmp_path / "in"
    job(cluster, [write(path, lines(9))])
    result = job(another_process(cluster), [write(path, other)])
    assert (result.records, result.skipped) == (len(other), 0)
    assert stored_values(cluster, "events") == in_turn(lines(9), other)


def test_the_same_content_twice_in_one_upload_lands_twice_and_is_resumed_as_two(tmp_path: Path) -> None:
    cluster = new_cluster()
    files = [write(tmp_path / "a", lines(7)), write(tmp_path / "b", lines(7))]
    store_of(cluster).fault = Countdown(12, "after")
    with pytest.raises(Crash):
        job(another_process(cluster, 3), files)
    store_of(cluster).fault = lambda call: None
    before = [len(v) for v in stored_values(cluster, "events")]
    assert 0 < sum(before) < 14
    job(another_process(cluster, 4), files)
    assert stored_values(cluster, "events") == in_turn(lines(7), lines(7))


def test_a_job_with_another_spread_is_other_input(tmp_path: Path) -> None:
    cluster = new_cluster()
    path = write(tmp_path / "in", lines(4))
    job(cluster, [path])
    process = another_process(cluster)
    fixed = FixedPartition(0, PARTITIONS)
    upload(process, "events", [path], session=producer_session(process, "job"), partitioner=fixed)
    assert stored_values(cluster, "events") == [lines(4)[::2] + lines(4), lines(4)[1::2]]


# -- two at once -------------------------------------------------------------------------------------------------------


def test_a_second_run_takes_over_from_one_that_is_halfway(tmp_path: Path) -> None:
    """Hazard 20: A lands a batch, B starts and ends, A goes on and is fenced."""
    cluster = new_cluster()
    records = lines(16)
    path = write(tmp_path / "in", records)
    results: list[UploadResult] = []

    def second(count: int, size: int) -> None:
        if not results:
            results.append(UploadResult())
            results.append(job(another_process(cluster), [path]))

    with pytest.raises(InvalidProducerEpochError, match="another run took over"):
        upload(
            cluster,
            "events",
            [path],
            session=producer_session(cluster, "job"),
            batch_bytes=SMALL,
            progress=second,
        )
    assert results[1].records + results[1].skipped == 16
    assert stored_values(cluster, "events") == in_turn(records)


def test_a_run_that_was_overtaken_before_it_began_is_refused(tmp_path: Path) -> None:
    cluster = new_cluster()
    path = write(tmp_path / "in", lines(8))
    late = producer_session(cluster, "job")
    job(another_process(cluster), [])
    with pytest.raises(UnknownProducerError):
        upload(cluster, "events", [path], session=late)
    assert stored_values(cluster, "events") == [[], []]


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_second_run_finds_out_at_the_landing_what_the_first_landed_meanwhile(tmp_path: Path, batches: int) -> None:
    """Hazard 20: B has looked where to go on and packed its first batch; before it lands, A lands more of the same."""
    cluster = new_cluster()
    records = lines(20)
    path = write(tmp_path / "in", records)
    a, b = another_process(cluster, 1), another_process(cluster, 2)
    turns = Turns()
    first = threading.Thread(target=turns.run, args=(a, path), daemon=True)
    session_a = producer_session(a, "job")
    turns.session = session_a
    first.start()
    turns.until_paused()  # A has landed its first batch
    packed: list[str] = []

    def fault(call: Call) -> None:
        mine = threading.current_thread() is threading.main_thread()
        if mine and call.kind == "put" and call.when == "after" and not packed:
            packed.append(call.key)
            for _ in range(batches):
                turns.one_more()

    session_b = producer_session(b, "job")
    store_of(cluster).fault = fault
    result = upload(b, "events", [path], session=session_b, batch_bytes=SMALL)
    store_of(cluster).fault = lambda call: None
    turns.finish(first)
    assert packed
    assert stored_values(cluster, "events") == in_turn(records)
    assert result.skipped == 4 + 4 * batches
    assert result.records == 20 - result.skipped
    assert isinstance(turns.error, InvalidProducerEpochError)


class Turns:
    """A run of the job on another thread, which waits after each batch until it is told to land one more."""

    def __init__(self) -> None:
        self.session: ProducerSession | None = None
        self.error: L0gcError | None = None
        self._paused = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self._landed = 0
        self._free = False

    def run(self, cluster: Cluster, path: Path) -> None:
        try:
            upload(cluster, "events", [path], session=self.session, batch_bytes=SMALL, progress=self._progress)
        except L0gcError as e:
            self.error = e

    def _progress(self, records: int, size: int) -> None:
        self._landed += 1
        if self._landed % PARTITIONS == 0 and not self._free:
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


# -- the topic goes ----------------------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_meanwhile_ends_the_upload(tmp_path: Path) -> None:
    cluster = new_cluster()
    other = another_process(cluster)

    def delete(records: int, size: int) -> None:
        for p in ids(cluster):
            other.partition(p).close()

    with pytest.raises(PartitionClosedError, match="'events'"):
        upload(cluster, "events", [write(tmp_path / "in", lines(12))], batch_bytes=SMALL, progress=delete)
    assert len(state_of(cluster, 0).placeholders) == 1


class InPairs(Executor):
    """Runs what is submitted when there are two of it, one after the other: the second was under way all along."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Crash as e:
                future.set_exception(e)

        self._waiting.append(run)
        if len(self._waiting) == 2:
            for waiting in self._waiting:
                waiting()
            self._waiting = []
        return future


def test_a_batch_behind_one_that_failed_is_not_committed(tmp_path: Path) -> None:
    """If a record fails, so do all that follow it, those included that are on their way."""
    cluster = new_cluster()
    failed: list[Call] = []

    def fault(call: Call) -> None:
        if call.kind == "put_if_absent" and not failed:
            failed.append(call)
            raise Crash

    store_of(cluster).fault = fault
    with pytest.raises(Crash):
        upload(cluster, "events", [write(tmp_path / "in", lines(20))], batch_bytes=SMALL, committer=InPairs())
    assert len(objects(cluster)) == 2
    assert stored_values(cluster, "events") == [[], []]


def test_batches_that_overlap_land_in_order(tmp_path: Path) -> None:
    cluster = new_cluster()
    records = lines(200)
    path = write(tmp_path / "in", records)
    session = producer_session(cluster, "job")
    with ThreadPoolExecutor(2) as packers, ThreadPoolExecutor(1) as committer:
        result = upload(
            cluster, "events", [path], session=session, batch_bytes=SMALL, packers=packers, committer=committer
        )
    assert len(result.objects) == 50
    assert stored_values(another_process(cluster), "events") == in_turn(records)


def test_after_an_error_nothing_more_is_sent(tmp_path: Path) -> None:
    """If a record fails, so do all that follow it."""
    cluster = new_cluster()
    batch: list[str] = []

    def fault(call: Call) -> None:
        if call.kind == "put" and call.when == "before":
            batch.append(call.key)
            if len(batch) == 2:
                raise Crash

    store_of(cluster).fault = fault
    with pytest.raises(Crash):
        upload(cluster, "events", [write(tmp_path / "in", lines(20))], batch_bytes=SMALL)
    store_of(cluster).fault = lambda call: None
    assert len(batch) == 2
    assert stored_values(cluster, "events") == in_turn(lines(4))


def test_what_landed_of_a_batch_that_failed_is_told(tmp_path: Path) -> None:
    """Without a producer it lands again if the upload is repeated, so whoever repeats it has to know."""
    cluster = new_cluster()
    told: list[int] = []

    def fault(call: Call) -> None:
        if call.kind == "put_if_absent" and "/00001/" in call.key:
            raise AccessDeniedError("no")

    store_of(cluster).fault = fault
    path = write(tmp_path / "in", lines(4))
    with pytest.raises(AccessDeniedError):
        upload(cluster, "events", [path], progress=lambda records, size: told.append(records))
    store_of(cluster).fault = lambda call: None
    assert [len(values) for values in stored_values(cluster, "events")] == [2, 0]
    assert told == [2]
