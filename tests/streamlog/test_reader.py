"""Reading: L1 below the last reconciled offset, L0 above it, and each record once, whatever other jobs do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from l0gc.errors import OffsetOutOfRangeError, PartitionClosedError, UsageError
from l0gc.operations import Read
from l0gc.streamlog import reader
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.ingest import extents
from l0gc.streamlog.ingest.headers_and_times import Record
from l0gc.streamlog.ingest.placement import in_turn
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.parquet import RECORD
from l0gc.streamlog.reader import read_pieces, read_topic, slices_of
from l0gc.streamlog.topics import delete_topic
from tests.support.ingest import upload
from tests.support.memory_store import Call, another_process, store_of, topic_in_memory
from tests.support.processes import modules_after
from tests.support.reconcile import begin, files, reconcile
from tests.support.tries import sampled

T = 1_700_000_000_000
"""A time in milliseconds; l0gc refuses a small number, which would be in another unit."""

SIZES = [(1, 1), (6, 1), (7, 3)]
several = pytest.mark.parametrize(("partitions", "journals"), SIZES)


def put(cluster: ClusterHandles, tmp_path: Path, first: int, count: int) -> None:
    """Upload `count` records to each partition from offset `first` on, about five of each to an L0 object."""
    n = cluster.controller.snapshot().topic("events").partitions
    path = tmp_path / "in"
    path.write_bytes(b"".join(value(p, o) + b"\n" for o in range(first, first + count) for p in range(n)))
    upload(cluster, "events", [path], partitioner=in_turn(n), batch_bytes=5 * n * (8 + 16))


def value(partition: int, offset: int) -> bytes:
    return b"%03d/%04d" % (partition, offset)


def new_cluster(
    tmp_path: Path, *, partitions: int = 1, journals: int = 1, reconciled: int = 0, unreconciled: int = 0
) -> ClusterHandles:
    """Create a topic with `reconciled` and then `unreconciled` records in each partition."""
    cluster = topic_in_memory(partitions, journals)
    if reconciled:
        put(cluster, tmp_path, 0, reconciled)
        reconcile(cluster)
    if unreconciled:
        put(cluster, tmp_path, reconciled, unreconciled)
    return cluster


def state_of(cluster: ClusterHandles, partition: int = 0) -> TopicState:
    topic = cluster.controller.snapshot().topic("events")
    return cluster.journal(topic.journal_of(partition)).catch_up().topics[topic.revision]


def read(
    cluster: ClusterHandles, start: int | None = None, partition: int | None = None, **more: Any
) -> Iterator[Record]:
    topic = cluster.controller.snapshot().topic("events")
    return read_topic(cluster, topic, Read(partition=partition, start=start, **more))


def places(records: Iterator[Record]) -> Iterator[tuple[int, int]]:
    """Yield each record's partition and offset, after a check of its value."""
    for r in records:
        assert r.value == value(r.partition, r.offset)
        yield r.partition, r.offset


def all_of(partitions: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(p, o) for p in range(partitions) for o in range(start, end)]


def sweep(cluster: ClusterHandles) -> int:
    """Delete every L0 object that no journal names; return their number."""
    topics = cluster.controller.snapshot().topics.values()
    needed: set[str] = set()
    for topic in topics:
        for journal in topic.journals:
            known = cluster.journal(journal).catch_up().topics.get(topic.revision)
            needed |= {o.key for o in known.objects} if known is not None else set()
    gone = [k for k in store_of(cluster).objects if k.startswith("level_zero/") and k not in needed]
    cluster.store.delete(gone)
    return len(gone)


# -- records in L1 and L0 ----------------------------------------------------------------------------------------------


@several
@pytest.mark.parametrize(("reconciled", "unreconciled"), [(0, 0), (0, 12), (12, 0), (12, 13)])
def test_every_record_from_an_offset_on(
    tmp_path: Path, reconciled: int, unreconciled: int, partitions: int, journals: int
) -> None:
    cluster = new_cluster(
        tmp_path, partitions=partitions, journals=journals, reconciled=reconciled, unreconciled=unreconciled
    )
    for start in (s for s in (0, 1, 11, 12, 13, 24, 25) if s <= reconciled + unreconciled):
        expected = all_of(partitions, start, reconciled + unreconciled)
        assert list(places(read(another_process(cluster), start))) == expected
    assert list(places(read(cluster))) == all_of(partitions, 0, reconciled + unreconciled)


@pytest.mark.parametrize("window_bytes", [1, 3000, 60_000, 1 << 25], indirect=True)
@pytest.mark.parametrize("block_bytes", [1, 150, 1 << 18])
def test_a_read_gives_the_same_however_much_it_holds_at_once(
    tmp_path: Path, window_bytes: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "BLOCK_BYTES", block_bytes)
    cluster = new_cluster(tmp_path, partitions=9, journals=2, reconciled=12, unreconciled=13)
    assert list(places(read(cluster))) == all_of(9, 0, 25)
    assert list(places(read(cluster, 17))) == all_of(9, 17, 25)
    assert list(places(read(cluster, 11, 7, before_offset=24))) == [(7, o) for o in range(11, 24)]


def test_only_the_partition_that_was_requested_and_only_its_journal(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=6, journals=3, unreconciled=4)
    process = another_process(cluster)
    assert list(places(read(process, None, 4))) == [(4, o) for o in range(4)]
    assert list(process._journals) == [cluster.controller.snapshot().topic("events").journal_of(4)]


def test_a_record_has_its_partition_time_key_and_value(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path)
    now = store_of(cluster).clock.ms
    path = tmp_path / "in"
    path.write_bytes(b"a\nb\n")
    upload(cluster, "events", [path])
    reconcile(cluster)
    upload(cluster, "events", [path])
    records = list(read(cluster))
    times = [r.timestamp_ms for r in records]
    assert records == [Record(v, partition=0, offset=n, timestamp_ms=times[n]) for n, v in enumerate([b"a", b"b"] * 2)]
    assert now <= times[0] == times[1] <= times[2] == times[3] <= store_of(cluster).clock.ms


def test_slices_are_what_the_records_are(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=3, reconciled=7, unreconciled=8)
    topic = cluster.controller.snapshot().topic("events")
    found = [
        (s.partition, offset, v)
        for s in slices_of(read_pieces(cluster, topic, Read(start=3), names=RECORD), RECORD)
        for offset, v in enumerate(s.batch.column("value").to_pylist(), s.base_offset)
    ]
    assert found == [(r.partition, r.offset, r.value) for r in read(cluster, 3)]


@several
@pytest.mark.parametrize("window_bytes", [1, 1 << 25], indirect=True)
def test_reading_begins_and_ends_at_a_time_or_before_an_offset(
    tmp_path: Path, window_bytes: int, partitions: int, journals: int
) -> None:
    cluster = new_cluster(tmp_path, partitions=partitions, journals=journals, reconciled=5)
    times = list[int]()
    for first in (5, 10, 15):
        store_of(cluster).clock.ms += 3_600_000
        times.append(store_of(cluster).clock.ms)
        put(cluster, tmp_path, first, 5)
        if first == 5:
            reconcile(cluster)  # so that one time is in L1 and the others are in L0
    for n, at in enumerate(times, 1):
        assert list(places(read(cluster, from_time_ms=at))) == all_of(partitions, 5 * n, 20)
        assert list(places(read(cluster, before_time_ms=at))) == all_of(partitions, 0, 5 * n)
        for end, before in enumerate(times[n - 1 :], n):
            found = list(places(read(cluster, from_time_ms=at, before_time_ms=before)))
            assert found == all_of(partitions, 5 * n, 5 * end)
    assert list(places(read(cluster, 3, before_offset=8))) == all_of(partitions, 3, 8)
    assert list(places(read(cluster, 0, 0, before_time_ms=times[0]))) == [(0, o) for o in range(5)]
    assert list(read(cluster, 7, before_offset=7)) == list(read(cluster, from_time_ms=times[-1] + 10**6)) == []
    delete_records(cluster, "events", before_offset=7)
    assert list(places(read(cluster, from_time_ms=0, before_offset=9))) == all_of(partitions, 7, 9)


@pytest.mark.parametrize("partition", [None, 1])
def test_reading_beyond_the_next_offset_is_refused_and_at_it_is_empty(tmp_path: Path, partition: int | None) -> None:
    cluster = new_cluster(tmp_path, partitions=2, reconciled=5, unreconciled=2)
    assert list(read(cluster, 7, partition)) == []
    with pytest.raises(
        OffsetOutOfRangeError, match=r"events/[01] has no record 8 yet: its next one will have offset 7"
    ):
        read(cluster, 8, partition).__next__()
    with pytest.raises(OffsetOutOfRangeError, match="no record 8 yet"):
        list(read(cluster, 8, partition, before_offset=20))
    with pytest.raises(OffsetOutOfRangeError, match=r"no record 1 yet: .* offset 0;"):
        list(read(new_cluster(tmp_path), 1, 0))


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"start": 1, "from_time_ms": T}, "--from and --from-time exclude each other"),
        ({"before_offset": 1, "before_time_ms": T}, "--before-offset and --before-time exclude each other"),
        ({"start": 5, "before_offset": 4}, "--before-offset 4 is below --from 5"),
        ({"from_time_ms": T + 1, "before_time_ms": T}, f"--before-time {T} is before --from-time {T + 1}"),
    ],
)
def test_bounds_that_exclude_each_other_are_refused(options: dict[str, Any], refused: str) -> None:
    with pytest.raises(UsageError, match=refused):
        Read(**options)


def test_l1_is_read_in_pieces_and_over_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "ROWS", 3)
    for window_bytes in (1, 1 << 25):
        monkeypatch.setattr(reader, "WINDOW_BYTES", window_bytes)
        cluster = new_cluster(tmp_path, partitions=2)
        for first, count in ((0, 8), (8, 20), (28, 12)):
            put(cluster, tmp_path, first, count)
            reconcile(cluster)
        put(cluster, tmp_path, 40, 3)
        assert len(files(cluster, "events", 1)) == 3
        for start in (0, 7, 17, 39):
            assert list(places(read(cluster, start))) == all_of(2, start, 43)


def test_reading_ends_where_the_journal_was_when_it_began(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=2, unreconciled=10)
    records = places(read(cluster))
    first = next(records)
    put(another_process(cluster), tmp_path, 10, 10)
    assert [first, *records] == all_of(2, 0, 10)


def test_reading_ends_there_also_where_later_records_are_lifted_meanwhile(tmp_path: Path, window_bytes: int) -> None:
    cluster = new_cluster(tmp_path, partitions=2, unreconciled=10)
    records = places(read(cluster))
    first = next(records)
    put(another_process(cluster), tmp_path, 10, 10)
    reconcile(cluster)
    sweep(cluster)
    assert [first, *records] == all_of(2, 0, 10)


def test_neighbours_in_a_block_cost_one_request_for_each_object(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=500)
    path = tmp_path / "in"
    path.write_bytes(b"".join(b"%06d\n" % n for n in range(6000)))
    upload(cluster, "events", [path], batch_bytes=22 * 2000)
    process = another_process(cluster)
    topic = process.controller.snapshot().topic("events")
    process.journal(topic.journals[0]).catch_up()
    before = store_of(cluster).requests["get"]
    assert sum(1 for _ in read_topic(process, topic)) == 6000
    assert store_of(cluster).requests["get"] - before <= 3 + 1


# -- while other jobs run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("same_process", "window_bytes", "partitions", "journals"),
    sampled(
        [(same, window, *size) for same in (False, True) for window in (1, 9000, 1 << 25) for size in SIZES],
        [(False, 1, 1, 1), (False, 9000, 7, 3), (True, 1 << 25, 6, 1)],
    ),
    indirect=["window_bytes"],
)
def test_what_is_reconciled_and_swept_meanwhile_is_read_from_l1(
    tmp_path: Path, same_process: bool, window_bytes: int, partitions: int, journals: int
) -> None:
    """Hazard 19: the object is deleted after the journal names it and before the reader reads it."""
    for after in (1, 5, 12, 17):
        cluster = new_cluster(tmp_path, partitions=partitions, journals=journals, reconciled=10, unreconciled=15)
        worker = cluster if same_process else another_process(cluster)
        before = len([k for k in store_of(cluster).objects if k.startswith("level_zero/")])
        records = places(read(cluster))
        found = [next(records) for _ in range(after)]  # the reader has read the journal
        reconcile(worker)
        assert sweep(worker) == before == 5
        assert [*found, *records] == all_of(partitions, 0, 25)


@pytest.mark.parametrize("same_process", [False, True])
def test_what_is_partly_reconciled_meanwhile_leaves_no_hole(
    tmp_path: Path, same_process: bool, window_bytes: int
) -> None:
    """Hazard 19: a run that planned before the last upload commits while the reader reads L1."""
    cluster = new_cluster(tmp_path, partitions=3, reconciled=10, unreconciled=10)
    worker = cluster if same_process else another_process(cluster)
    run = begin(worker)
    put(another_process(cluster), tmp_path, 20, 5)
    records = places(read(cluster))
    first = next(records)
    run.commit()
    sweep(worker)
    assert [first, *records] == all_of(3, 0, 25)


@pytest.mark.parametrize("window_bytes", [1, 9000, 1 << 25], indirect=True)
def test_each_of_many_moves_under_the_reader_is_survived(tmp_path: Path, window_bytes: int) -> None:
    """Hazard 19: at every request for an L0 object, all records are first reconciled and swept."""
    cluster = new_cluster(tmp_path, partitions=3)
    worker = another_process(cluster)
    for first in range(0, 40, 10):
        put(worker, tmp_path, first, 10)
    topic = cluster.controller.snapshot().topic("events")
    busy: list[bool] = []

    def fault(call: Call) -> None:
        if not busy and call.key.startswith("level_zero/") and (call.kind, call.when) == ("get", "before"):
            busy.append(True)
            begin(worker).commit()
            sweep(worker)
            busy.clear()

    store_of(cluster).fault = fault
    records = read_topic(cluster, topic)
    found = []
    for n, place in enumerate(places(records)):
        found.append(place)
        if n % 7 == 0 and n < 60:
            put(another_process(cluster, n + 5), tmp_path, 40 + n // 7, 1)
    assert found == all_of(3, 0, 40)


def test_a_topic_that_is_deleted_and_swept_meanwhile_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW_BYTES", 1)
    for closed in (False, True):
        cluster = new_cluster(tmp_path, partitions=2, reconciled=3, unreconciled=15)
        worker = another_process(cluster)
        records = read(cluster)
        next(records)
        if closed:
            delete_topic(worker, "events")
        else:
            worker.controller.delete_topic("events")  # the deleter dies before it closes the topic
        store_of(cluster).discard("level_")
        with pytest.raises(PartitionClosedError, match="'events'"):
            list(records)


# -- the log start offset ----------------------------------------------------------------------------------------------


def expire(cluster: ClusterHandles, partition: int, offset: int) -> None:
    """Move a partition's log start offset in another process."""
    delete_records(another_process(cluster), "events", partition, before_offset=offset)


def test_without_an_offset_reading_begins_at_the_first_record_that_is_there(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=3, reconciled=10, unreconciled=5)
    expire(cluster, 1, 7)
    assert list(places(read(cluster))) == [(p, o) for p in range(3) for o in range(7 if p == 1 else 0, 15)]
    expire(cluster, 1, 15)
    assert list(places(read(cluster))) == [(p, o) for p in (0, 2) for o in range(15)]


def test_a_read_below_the_log_start_is_out_of_range(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=3, reconciled=10, unreconciled=5)
    expire(cluster, 1, 7)
    with pytest.raises(OffsetOutOfRangeError, match=r"record 6 of partition events/1 was deleted; .* offset 7") as e:
        list(read(cluster, 6))
    assert e.value.exit_code == 5
    assert list(places(read(cluster, 7))) == all_of(3, 7, 15)
    for p in (0, 2):
        assert list(places(read(cluster, 6, p))) == [(p, o) for o in range(6, 15)]


def test_records_that_are_deleted_before_they_could_be_read_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW_BYTES", 1)
    for partition, refused in [(0, True), (1, False)]:
        cluster = new_cluster(tmp_path, partitions=2, reconciled=5, unreconciled=10)
        records = places(read(cluster))
        found = [next(records) for _ in range(6)]
        expire(cluster, partition, 12)
        reconcile(cluster)
        sweep(cluster)
        if refused:  # partition 0 has been begun
            with pytest.raises(OffsetOutOfRangeError, match="partition events/0"):
                list(records)
        else:
            assert [*found, *records] == [(0, o) for o in range(15)] + [(1, o) for o in range(12, 15)]


def test_partitions_whose_records_are_all_deleted_meanwhile_are_passed_over(tmp_path: Path) -> None:
    cluster = new_cluster(tmp_path, partitions=4, journals=2, unreconciled=5)
    records = places(read(cluster))
    found = [next(records)]
    for partition in (2, 3):  # both are in the second journal, and are read together
        delete_records(cluster, "events", partition, before_offset=5)
    assert [*found, *records] == [(p, o) for p in (0, 1) for o in range(5)]


WITHOUT_PANDAS = """
from l0gc.columns import binary
from l0gc.streamlog.reader import framed
for length_prefixed in (False, True):
    assert len(framed(binary([b"one", b"two"]), length_prefixed=length_prefixed)) == (14 if length_prefixed else 8)
"""


def test_lines_are_made_without_pandas_which_takes_long_to_import() -> None:
    assert "pandas" not in modules_after(WITHOUT_PANDAS)
