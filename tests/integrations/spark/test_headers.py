"""Headers and create times pass unchanged through the sink and the source, and belong to the rows' identity."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from l0gc.errors import BatchMismatchError, UsageError
from l0gc.integrations.spark.source import SCHEMA, WRITTEN
from l0gc.integrations.spark.stage import digest_of
from l0gc.streamlog.ingest.headers_and_times import NO_TIME, Headers, as_headers, headers_column
from l0gc.streamlog.reader import read_topic
from tests.support.memory_store import topic_in_memory
from tests.support.reconcile import reconcile
from tests.support.spark_source import Rows, batch_reader, data_source, on, read, table, write_batch

TIME = datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
TIME_MS = 1704067200123
HEADERS = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "é", "value": b"\xff"}]
ROWS: Rows = {
    "value": [b"0", b"1", b"2", b"3"],
    "partition": [0, 0, 0, 0],
    "create_time": [TIME, None, TIME + timedelta(seconds=1), None],
    "headers": [HEADERS, None, [], HEADERS[1:2]],
}
DIGEST = 9982803304630018122
"""The digest of the rows below, in a version that supported neither headers nor create times."""
EXPECTED: list[tuple[int | None, Headers]] = [
    (TIME_MS, (("a", b"1"), ("a", None), ("é", b"\xff"))),
    (None, ()),
    (TIME_MS + 1000, ()),
    (None, (("a", None),)),
]


def written(**changed: Any) -> list[tuple[int | None, Headers]]:
    cluster = topic_in_memory(1)
    write_batch(cluster, {**ROWS, **changed}, topic="events")
    return [(r.create_time_ms, r.headers) for r in read_topic(cluster, cluster.controller.snapshot().topic("events"))]


def test_what_a_sink_gets_a_source_gives_from_l0_and_from_l1() -> None:
    cluster = topic_in_memory(1)
    write_batch(cluster, ROWS, topic="events")
    write_batch(cluster, {"value": [b"plain"]}, topic="events")
    topic = cluster.controller.snapshot().topic("events")
    for lifted in (False, True):
        if lifted:
            reconcile(cluster)
        assert [(r.create_time_ms, r.headers) for r in read_topic(cluster, topic)] == [*EXPECTED, (None, ())]
        with on(cluster):
            schema = data_source(topic="events", includeHeaders="true").schema()
            assert schema == StructType([*SCHEMA, *WRITTEN])
            reader = batch_reader(schema, topic="events", includeHeaders="true")
            found = table(reader, reader.partitions())
        found.validate(full=True)
        rest = [{"key": "a", "value": None}]
        assert found.column("headers").to_pylist() == [HEADERS, None, None, rest, None]
        millis = timedelta(microseconds=456)
        assert found.column("create_time").to_pylist() == [
            *(TIME - millis, None, TIME - millis + timedelta(seconds=1), None, None)
        ]


def test_a_source_has_kafkas_columns_by_default() -> None:
    cluster = topic_in_memory(1)
    write_batch(cluster, ROWS, topic="events")
    assert data_source(topic="events").schema() == SCHEMA
    assert data_source(topic="events", columns="offset,headers").schema().names == ["offset", "headers"]
    with on(cluster):
        reader = batch_reader(StructType([WRITTEN["headers"]]), topic="events")
        assert table(reader, reader.partitions()).column("headers").to_pylist()[0] == HEADERS
    with pytest.raises(UsageError, match="no column headers of type string"):
        data_source(topic="events").reader(StructType().add("headers", "string"))
    assert [value for _, _, value in read(cluster, topic="events", includeHeaders="true")] == ROWS["value"]


def test_a_sink_uses_kafkas_timestamp_as_create_time() -> None:
    times = [TIME, None, TIME + timedelta(seconds=1), None]
    without = {name: column for name, column in ROWS.items() if name != "create_time"}
    cluster = topic_in_memory(1)
    write_batch(cluster, {**without, "timestamp": times}, topic="events")
    topic = cluster.controller.snapshot().topic("events")
    assert [(r.create_time_ms, r.headers) for r in read_topic(cluster, topic)] == EXPECTED
    assert written(timestamp=[TIME + timedelta(days=1)] * 4) == EXPECTED


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"create_time": [datetime(1969, 1, 1, tzinfo=UTC)] * 4}, "has a time that is not in the years 1970 to 9999"),
        ({"headers": [[{"key": None, "value": b"v"}]] * 4}, "has a header without a key"),
        ({"headers": [[None]] * 4}, "has a header without a key"),
        (
            {"headers": [[{"key": "k", "value": bytes(16 << 20)}], None, None, None]},
            "with its key and headers is longer than the 16777216",
        ),
    ],
)
def test_a_row_with_an_unstorable_header_or_time_stops_its_task(changed: Rows, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        written(**changed)


def test_headers_in_arrows_large_types_are_the_same_headers() -> None:
    """Spark sends these types with `spark.sql.execution.arrow.useLargeVarTypes`."""
    pair = pa.struct([pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())])
    found = as_headers(pa.array([HEADERS, None], pa.list_(pair)))
    assert found.equals(as_headers(pa.array([HEADERS, None], headers_column([]).type)))


def test_a_batch_that_comes_again_with_other_headers_or_times_is_refused() -> None:
    cluster = topic_in_memory(1)
    batch = {"topic": "events", "producerName": "p", "batchId": "1"}
    write_batch(cluster, ROWS, **batch)
    write_batch(cluster, ROWS, **batch)
    assert len(read(cluster, topic="events")) == 4
    for changed in (
        {"create_time": [TIME] * 4},
        {"headers": [HEADERS] * 4},
        {"headers": [HEADERS[::-1], None, None, None]},
    ):
        with pytest.raises(BatchMismatchError):
            write_batch(cluster, {**ROWS, **changed}, **batch)


def digest(times: list[int] | None, headers: list[Headers] | None) -> int:
    values, keys = pa.array([b"ab", b"", b"0123456789", b"x"]), pa.array([b"k", None, b"", b"12345678"])
    return digest_of(
        "events",
        values,
        keys,
        None if times is None else np.array(times),
        None if headers is None else headers_column(headers),
    )


def test_the_digest_of_rows_without_them_is_that_of_an_older_version() -> None:
    """The older version stored its digest in the journal, and a replay after an upgrade must be recognised."""
    assert digest(None, None) == digest([NO_TIME] * 4, [()] * 4) == DIGEST


def test_the_digest_covers_each_time_and_each_header_with_its_place() -> None:
    a, b, c = ("a", b"1"), ("a", None), ("a", b"")
    all_headers: list[list[Headers]] = [
        [(a, b), (), (), ()],
        [(b, a), (), (), ()],
        [(a, c), (), (), ()],
        [(a,), (b,), (), ()],
        [(), (a, b), (), ()],
        [(("a1", b""), b), (), (), ()],
        [(a, b, b), (), (), ()],
    ]
    all_times = [[0, NO_TIME, NO_TIME, NO_TIME], [NO_TIME, 0, NO_TIME, NO_TIME], [1, NO_TIME, NO_TIME, NO_TIME]]
    found = [digest(None, h) for h in all_headers] + [digest(t, None) for t in all_times] + [DIGEST]
    assert len(set(found)) == len(found)
