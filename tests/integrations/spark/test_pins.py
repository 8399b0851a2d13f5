"""Pinned data frames: each reads the same records until its pin ends, whatever is deleted or truncated."""

from __future__ import annotations

import pytest

from l0gc.errors import AccessDeniedError, NotFoundError, OffsetOutOfRangeError, UsageError
from l0gc.integrations.spark.readers import with_pin
from l0gc.operations import LEASE_S
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import HIGH_WATERMARK, delete_records
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.pins import create_pin
from l0gc.streamlog.topics import delete_topic
from l0gc.watermark.pipeline import run_pipeline
from tests.support.memory_store import Call, another_process, store_of, topic_in_memory
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import URL, Row, batch_reader, on, read, rows_of, stream_reader, table
from tests.support.vacuum import tick, vacuum
from tests.support.wrong_dates import DAY_MS


@pytest.fixture
def cluster() -> ClusterHandles:
    """Create a cluster with records in L1, and others only in L0."""
    cluster = topic_in_memory(2, 2)
    put(cluster, "events", {0: [b"a"], 1: [b"b"]})
    reconcile(cluster)
    put(cluster, "events", {0: [b"c"], 1: [b"d"]})
    return cluster


ROWS = [(0, 0, b"a"), (0, 1, b"c"), (1, 0, b"b"), (1, 1, b"d")]


def goes_away(cluster: ClusterHandles) -> None:
    """Reconcile and delete all records and their topic, vacuum whatever no pin keeps, and truncate logs."""
    other = another_process(cluster, seed=7)
    reconcile(other)
    for partition in (0, 1):
        delete_records(other, "events", partition, before_offset=HIGH_WATERMARK)
    delete_topic(other, "events")
    for _ in range(4):
        store_of(cluster).clock.ms += 20 * 60_000
        tick(other, 3)
        housekeep(another_process(cluster, seed=8))
    vacuum(other)


def watermark(cluster: ClusterHandles) -> int:
    return run_pipeline(cluster, JournalSource(cluster)).watermark


def later(cluster: ClusterHandles) -> None:
    """Truncate the logs, and purge what was dropped and no pin keeps."""
    other = another_process(cluster, seed=9)
    for _ in range(4):
        store_of(cluster).clock.ms += 20 * 60_000
        tick(other, 3)
        housekeep(another_process(cluster, seed=10))
    vacuum(other)


def test_a_pinned_frame_reads_the_same_until_its_pin_ends(
    cluster: ClusterHandles,
) -> None:
    """The topic, too, stays readable: a read is planned as of the pin, however late."""
    pin = create_pin(cluster, "audit", 7 * DAY_MS)
    with on(cluster):
        goes_away(cluster)
        reader = batch_reader(subscribePattern="e.*", pin="audit")
        slices = reader.partitions()
        assert rows_of(table(reader, slices)) == read(cluster, topic="events", pin="audit") == ROWS
        cluster.controller.delete_pin(pin.name)
        create_pin(another_process(cluster, seed=11), "audit", DAY_MS)
        later(cluster)
        with pytest.raises(NotFoundError, match="pin 'audit', as of which records are read, has ended: pin again"):
            table(reader, slices)
        with pytest.raises(NotFoundError, match="topic"):
            read(cluster, topic="events")


def test_a_frame_is_pinned_within_its_block(cluster: ClusterHandles) -> None:
    with on(cluster):
        with with_pin({"url": URL, "topic": "events", "minPartitions": 1}) as options:
            put(another_process(cluster), "events", {0: [b"later"]})
            (pin,) = cluster.controller.snapshot().pins.values()
            assert "reads events on Spark" in pin.why
            assert pin.end_ms - pin.created_ms == 1000 * LEASE_S
            assert options == {"url": URL, "topic": "events", "minPartitions": "1", "pin": pin.name}
            assert read(cluster, **options) == ROWS
        assert not cluster.controller.snapshot().pins


@pytest.mark.parametrize(
    ("options", "rows"), [({}, ROWS), ({"endingOffsets": '{"events":{"0":1,"1":1}}'}, [ROWS[0], ROWS[2]])]
)
def test_a_pin_holds_m_only_for_a_frame_that_reads_l0(
    cluster: ClusterHandles, options: dict[str, str], rows: list[Row]
) -> None:
    before = watermark(cluster)
    with on(cluster), with_pin({"url": URL, "topic": "events", **options}) as of_pin:
        (pin,) = cluster.controller.snapshot().pins.values()
        assert pin.level_one == (rows != ROWS)
        assert pin.topic == cluster.controller.snapshot().topic("events").revision
        reconcile(another_process(cluster))
        tick(cluster, 3)
        housekeep(cluster, barrier=True)
        assert (watermark(cluster) > before) == pin.level_one
        assert read(cluster, **of_pin) == rows


def test_a_frame_that_cannot_be_planned_leaves_no_pin(cluster: ClusterHandles) -> None:
    given = {"url": URL, "topic": "events", "endingOffsets": '{"events":{"0":9}}'}
    with on(cluster), pytest.raises(OffsetOutOfRangeError, match="asks for record 9"), with_pin(given):
        pass
    assert not cluster.controller.snapshot().pins


def test_a_pin_that_does_not_keep_what_a_frame_reads_is_refused(cluster: ClusterHandles) -> None:
    other, _ = cluster.controller.create_topic("other", 1)
    create_pin(cluster, "level-one", DAY_MS, level_one=True)
    create_pin(cluster, "of-another", DAY_MS, topic=other.revision)
    cluster.controller.create_pin("begun", DAY_MS)
    for name, sentence in (
        ("level-one", "keeps L1 only, and some records of topic 'events' were not in L1"),
        ("of-another", "is of another topic than 'events'"),
        ("begun", "has not taken effect"),
    ):
        with pytest.raises(UsageError, match=f"pin '{name}' {sentence}"):
            read(cluster, topic="events", pin=name)
    with pytest.raises(NotFoundError, match="pin 'true' does not exist, or has ended"):
        read(cluster, topic="events", pin="true")


def test_a_stream_has_no_pin(cluster: ClusterHandles) -> None:
    with on(cluster), pytest.raises(UsageError, match="option pin is for batches only"):
        stream_reader(topic="events", pin="true")


def test_credentials_that_may_only_read_are_told_so(cluster: ClusterHandles) -> None:
    def read_only(call: Call) -> None:
        if call.kind.startswith("put"):
            raise AccessDeniedError("no")

    store_of(cluster).fault = read_only
    with on(cluster):
        assert read(cluster, topic="events") == ROWS
        with (
            pytest.raises(AccessDeniedError, match="a pin appends to the logs and these credentials may not"),
            with_pin({"url": URL, "topic": "events"}),
        ):
            pass
