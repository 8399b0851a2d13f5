"""Option `pin`: a data frame reads the same records until its pin ends, whatever is deleted or truncated."""

from __future__ import annotations

import pytest

from l0gc.errors import AccessDeniedError, NotFoundError, UsageError
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.delete_records import HIGH_WATERMARK, delete_records
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.topics import delete_topic
from tests.support.memory_store import Call, another_process, store_of, topic_in_memory
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import batch_reader, on, read, rows_of, stream_reader, table
from tests.support.vacuum import tick, vacuum


@pytest.fixture
def cluster() -> Handles:
    """Records in L1, and others that are not."""
    cluster = topic_in_memory(2, 2)
    put(cluster, "events", {0: [b"a"], 1: [b"b"]})
    reconcile(cluster)
    put(cluster, "events", {0: [b"c"], 1: [b"d"]})
    return cluster


ROWS = [(0, 0, b"a"), (0, 1, b"c"), (1, 0, b"b"), (1, 1, b"d")]


def goes_away(cluster: Handles) -> None:
    """All that is there is reconciled, deleted, and gone if nothing keeps it; logs are truncated."""
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


def test_a_pinned_frame_reads_the_same_until_its_pin_ends(cluster: Handles) -> None:
    with on(cluster):
        reader = batch_reader(topic="events", pin="7d")
        slices = reader.partitions()
        goes_away(cluster)
        assert rows_of(table(reader, slices)) == ROWS
        (pin,) = cluster.controller.snapshot().pins.values()
        assert "reads events on Spark" in pin.why
        assert pin.end_ms - pin.created_ms == 7 * 86_400_000
        cluster.controller.delete_pin(pin.name)
        goes = another_process(cluster, seed=9)
        for _ in range(3):
            store_of(cluster).clock.ms += 20 * 60_000
            tick(goes, 3)
            housekeep(another_process(cluster, seed=10))
        vacuum(goes)
        with pytest.raises(
            NotFoundError, match=f"pin '{pin.name}', as of which records are read, has ended: call load"
        ):
            table(reader, slices)
        with pytest.raises(NotFoundError, match="topic"):
            read(cluster, topic="events")


def test_what_is_uploaded_after_the_pin_is_not_read(cluster: Handles) -> None:
    with on(cluster):
        reader = batch_reader(topic="events", pin="true")
        slices = reader.partitions()
        put(another_process(cluster), "events", {0: [b"later"]})
        assert rows_of(table(reader, slices)) == ROWS


@pytest.mark.parametrize("pin", ["soon", "-1d", "0s", "400d"])
def test_a_pin_that_cannot_be_is_refused(cluster: Handles, pin: str) -> None:
    with on(cluster), pytest.raises(UsageError):
        batch_reader(topic="events", pin=pin).partitions()


def test_a_stream_has_no_pin(cluster: Handles) -> None:
    with on(cluster), pytest.raises(UsageError, match="option pin is a batch's"):
        stream_reader(topic="events", pin="true")


def test_credentials_that_may_only_read_are_told_so(cluster: Handles) -> None:
    def read_only(call: Call) -> None:
        if call.kind.startswith("put"):
            raise AccessDeniedError("no")

    store_of(cluster).fault = read_only
    with on(cluster):
        assert read(cluster, topic="events") == ROWS
        with pytest.raises(
            AccessDeniedError, match="a reader that pins appends to the logs, and these credentials may not"
        ):
            read(cluster, topic="events", pin="true")
