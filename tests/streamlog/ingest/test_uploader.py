"""Uploads: in order, without loss or repetition; which objects land, which are stamped anew, and which errors end an
upload.

Several clusters on one store are several processes. Packers and committer run inline, so every store call has its
number.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from l0gc.errors import (
    EpochRegressionError,
    PartitionClosedError,
    ProtocolError,
    UsageError,
)
from l0gc.streamlog.ingest import inputs, landing
from l0gc.streamlog.ingest.placement import by_field
from l0gc.streamlog.ingest.result import Placeholder
from l0gc.streamlog.producers import begin_run
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.support.ingest import (
    SMALL,
    CrashError,
    journal_of,
    l0_objects,
    lines,
    objects_in_entries,
    round_robin,
    slide,
    stored_values,
    upload,
    write,
)
from tests.support.memory_store import Call, another_process, failing, lose_reply, once, store_of, topic_in_memory

T = TypeVar("T")

PARTITIONS = 2


# -- uploads -----------------------------------------------------------------------------------------------------------


def test_records_land_in_input_order_in_each_partition(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    records = lines(30)
    result = upload(cluster, "events", [write(tmp_path / "in", records)], batch_bytes=SMALL)
    assert stored_values(another_process(cluster), "events") == round_robin(records, partitions=PARTITIONS)
    assert (result.records, result.bytes, result.retries, result.skipped) == (30, 150, 0, 0)
    assert sorted(o.key for o in result.objects) == sorted(l0_objects(cluster))
    for o in result.objects:
        key = cluster.controller.layout().parse(o.key)
        assert key is not None
        assert key.epoch == o.epoch == cluster.controller.epoch()
        assert len(store_of(cluster).objects[o.key].body) == o.bytes


def test_what_is_reported_is_what_the_journal_holds(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    result = upload(cluster, "events", [write(tmp_path / "in", lines(11))], batch_bytes=SMALL)
    state, topic = journal_of(cluster).catch_up(), cluster.controller.snapshot().topic("events")
    logged = [
        Placeholder("events", p, e.base_offset, e.last_offset, e.epoch, e.key)
        for p in range(PARTITIONS)
        for e in state.topic(topic.revision).extents(p)
    ]
    reported = list(result.placeholders)
    assert sorted(reported, key=lambda x: (x.partition, x.base_offset)) == logged
    assert len(reported) == len(result.placeholders) == 6
    assert msgspec.json.decode(msgspec.json.encode(result.placeholders.json())) == msgspec.to_builtins(reported)


def test_an_upload_costs_one_put_per_object_and_entry(tmp_path: Path) -> None:
    """Requests grow with objects, never with partitions."""
    puts = []
    for partitions in (1, 500):
        cluster = topic_in_memory(partitions)
        before = store_of(cluster).requests.copy()
        upload(cluster, "events", [write(tmp_path / "in", lines(2000))], batch_bytes=21 * 1000)
        made = store_of(cluster).requests - before
        puts.append((made["put"], made["put_if_absent"]))
        assert stored_values(cluster, "events") == round_robin(lines(2000), partitions=partitions)
    assert puts == [(2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("records", "batch_bytes", "batches"), [(12, SMALL, 3), (13, SMALL, 4), (12, 1, 12), (12, 999, 1)]
)
def test_a_batch_holds_no_more_than_its_limit(tmp_path: Path, records: int, batch_bytes: int, batches: int) -> None:
    cluster = topic_in_memory(PARTITIONS)
    result = upload(cluster, "events", [write(tmp_path / "in", lines(records))], batch_bytes=batch_bytes)
    assert len(result.objects) == batches


def test_tiny_records_fill_a_batch_too(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    result = upload(cluster, "events", [write(tmp_path / "in", [b""] * 1000)], batch_bytes=1600)
    assert len(result.objects) == 10


@pytest.mark.parametrize("with_producer", [False, True])
def test_no_records_upload_nothing(tmp_path: Path, with_producer: bool) -> None:
    cluster = topic_in_memory(PARTITIONS)
    session = begin_run(cluster, "job") if with_producer else None
    result = upload(cluster, "events", [write(tmp_path / "in", [])], session=session)
    assert (result.records, result.objects, l0_objects(cluster)) == (0, [], [])
    assert msgspec.json.encode(result.placeholders.json()) == b"[]"


def test_records_are_kept_byte_for_byte(tmp_path: Path) -> None:
    cluster = topic_in_memory(1)
    path = tmp_path / "in"
    path.write_bytes(b"one\r\n\n\xff\x01\ntwo")
    upload(cluster, "events", [path], session=begin_run(cluster, "job"))
    assert stored_values(cluster, "events") == [[b"one\r", b"", b"\xff\x01", b"two"]]


def test_a_bad_record_stops_the_upload_and_is_named(tmp_path: Path) -> None:
    cluster = topic_in_memory(1)
    good = [b'{"k":%d}' % n for n in range(6)]
    path = write(tmp_path / "in", [*good, b"{}", *good])
    with pytest.raises(UsageError, match=f"^{path} line 7 has no field 'k'"):
        upload(cluster, "events", [path], partitioner=by_field("k", 1), batch_bytes=4 * 23)
    assert stored_values(cluster, "events") == [good[:4]]  # the batches before the bad record


def test_an_over_long_record_stops_the_upload_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_RECORD_BYTES", 10)
    cluster = topic_in_memory(1)
    path = write(tmp_path / "in", [b"short", b"x" * 11, b"short"])
    with pytest.raises(UsageError, match=f"^{path} line 2 is longer than 10 bytes"):
        upload(cluster, "events", [path])


def test_memory_grows_by_a_few_bytes_for_each_placeholder(tmp_path: Path) -> None:
    cluster = topic_in_memory(1000)
    path = write(tmp_path / "in", lines(40_000, "x"))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = upload(cluster, "events", [path], batch_bytes=21 * 2000)
        store_of(cluster).objects.clear()
        journal_of(cluster).state.topics.clear()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(result.placeholders) >= 20_000
    assert grown / len(result.placeholders) < 30


# -- epochs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_producer", [False, True])
def test_a_stale_batch_is_stamped_anew_and_order_holds(tmp_path: Path, with_producer: bool) -> None:
    """Another process slides the window past the second batch's epoch before that batch lands."""
    cluster = topic_in_memory(PARTITIONS)
    session = begin_run(cluster, "job") if with_producer else None
    first_epoch = cluster.controller.snapshot().epoch
    store_of(cluster).fault = once(lambda: slide(cluster, 2), "put", after=1)
    records = lines(20)
    result = upload(cluster, "events", [write(tmp_path / "in", records)], session=session, batch_bytes=SMALL)
    assert stored_values(another_process(cluster, 2), "events") == round_robin(records, partitions=PARTITIONS)
    assert (result.records, result.retries, len(result.objects)) == (20, 1, 6)
    stale, again = result.objects[1:3]
    assert [o.epoch for o in result.objects] == [first_epoch, first_epoch, *[first_epoch + 2] * 4]
    bodies = store_of(cluster).objects
    assert bodies[stale.key].body == bodies[again.key].body  # the body is not encoded again
    assert stale.key not in {p.key for p in result.placeholders}
    for e in journal_of(cluster).catch_up().topic(cluster.controller.snapshot().topic("events").revision).extents(0):
        key = cluster.controller.layout().parse(e.key)
        assert key is not None
        assert key.epoch == e.epoch  # the key's epoch is the epoch at which the object was admitted


def test_a_slightly_stale_epoch_needs_no_second_upload(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    store_of(cluster).fault = once(lambda: slide(cluster, 1), "put")
    result = upload(cluster, "events", [write(tmp_path / "in", lines(4))])
    assert result.retries == 0


def test_a_batch_that_is_always_too_late_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "MAX_TRIES", 3)
    cluster = topic_in_memory(PARTITIONS)

    def fault(call: Call) -> None:
        if (call.kind, call.when) == ("put", "before"):
            slide(cluster, 2)

    store_of(cluster).fault = fault
    with pytest.raises(ProtocolError, match=r"refused by journal \d+ 3 times, each time stamped anew: .*"):
        upload(cluster, "events", [write(tmp_path / "in", lines(4))])
    assert len(l0_objects(cluster)) == 3


def test_a_restored_controller_admits_no_upload(tmp_path: Path) -> None:
    """Hazard 10: a published M and epoch above the cluster epoch show the restore."""
    cluster = topic_in_memory(PARTITIONS)
    state = cluster.controller.snapshot()
    ahead = PublishedWatermark(state.cluster_id, state.epoch + 3, state.epoch + 5, 0)
    publish(cluster.store, cluster.runtime, ahead)
    before = set(store_of(cluster).objects)
    path = write(tmp_path / "in", lines(4))
    for name in (None, "job"):
        process = another_process(cluster)
        with pytest.raises(EpochRegressionError):
            upload(process, "events", [path], session=begin_run(process, name) if name else None)
    assert set(store_of(cluster).objects) == before


# -- the end of an upload ----------------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_meanwhile_ends_the_upload(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    other = another_process(cluster)
    revision = cluster.controller.snapshot().topic("events").revision

    def delete(records: int, size: int) -> None:
        journal_of(other).close(revision)

    with pytest.raises(PartitionClosedError, match="'events'"):
        upload(cluster, "events", [write(tmp_path / "in", lines(12))], batch_bytes=SMALL, progress=delete)
    assert objects_in_entries(cluster) == [1]


class InPairs(Executor):
    """Runs submitted work in pairs, one after the other, so that the second was submitted before the first ended."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except CrashError as e:
                future.set_exception(e)

        self._waiting.append(run)
        if len(self._waiting) == 2:
            for waiting in self._waiting:
                waiting()
            self._waiting = []
        return future


def test_a_batch_after_one_that_failed_is_not_committed(tmp_path: Path) -> None:
    """If a record fails, every later record fails, too, even if its batch is already submitted."""
    cluster = topic_in_memory(PARTITIONS)
    store_of(cluster).fault = failing(CrashError, "put_if_absent", times=1)
    with pytest.raises(CrashError):
        upload(cluster, "events", [write(tmp_path / "in", lines(20))], batch_bytes=SMALL, committer=InPairs())
    assert len(l0_objects(cluster)) == 2
    assert stored_values(cluster, "events") == [[], []]


def test_batches_that_overlap_land_in_order(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    records = lines(200)
    path = write(tmp_path / "in", records)
    session = begin_run(cluster, "job")
    with ThreadPoolExecutor(2) as packers, ThreadPoolExecutor(1) as committer:
        result = upload(
            cluster, "events", [path], session=session, batch_bytes=SMALL, packers=packers, committer=committer
        )
    assert len(result.objects) == 50
    assert stored_values(another_process(cluster), "events") == round_robin(records, partitions=PARTITIONS)


@pytest.mark.parametrize("committer", [None, InPairs()], ids=["alone", "in a group"])
def test_after_an_error_nothing_more_is_sent(tmp_path: Path, committer: Executor | None) -> None:
    """If a record fails, every later record fails, too; the batches packed before it land."""
    cluster = topic_in_memory(PARTITIONS)
    batch: list[str] = []

    def fault(call: Call) -> None:
        if call.kind == "put" and call.when == "before":
            batch.append(call.key)
            if len(batch) == 2:
                raise CrashError

    store_of(cluster).fault = fault
    with pytest.raises(CrashError):
        upload(cluster, "events", [write(tmp_path / "in", lines(20))], batch_bytes=SMALL, committer=committer)
    store_of(cluster).fault = lambda call: None
    assert len(batch) == 2
    assert stored_values(cluster, "events") == round_robin(lines(4), partitions=PARTITIONS)


def test_a_lost_reply_changes_nothing(tmp_path: Path) -> None:
    """Hazard 8: an entry without a reply is neither repeated nor taken for lost."""
    records = lines(12)
    for offset in range(3):
        cluster = topic_in_memory(PARTITIONS)
        store_of(cluster).fault = lose_reply(f"log/{offset:020}")
        result = upload(cluster, "events", [write(tmp_path / "in", records)], batch_bytes=SMALL)
        assert result.retries == 0
        assert stored_values(cluster, "events") == round_robin(records, partitions=PARTITIONS)


def test_without_a_producer_what_is_uploaded_twice_lands_twice(tmp_path: Path) -> None:
    cluster = topic_in_memory(PARTITIONS)
    path = write(tmp_path / "in", lines(4))
    upload(cluster, "events", [path])
    upload(cluster, "events", [path])
    assert stored_values(cluster, "events") == round_robin(lines(4), lines(4), partitions=PARTITIONS)
