"""The columns of a topic's value schema in the source: they are parsed as they are read, by the schema of the plan."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from l0gc.errors import UsageError
from l0gc.integrations.spark.readers import StreamReader
from l0gc.integrations.spark.sink import commit
from l0gc.integrations.spark.source import SCHEMA, WRITTEN, L0gcDataSource
from l0gc.integrations.spark.stage import Stager
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import NOT_GIVEN
from l0gc.streamlog.reader import read_topic
from l0gc.streamlog.values.parse import parser_of
from l0gc.streamlog.values.schema_formats import columns_of
from tests.support.memory_store import memory_cluster
from tests.support.reconcile import put, reconcile
from tests.support.spark_source import batch_reader, data_source, on, stream_reader, table

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "int"},
    {"name": "key", "type": "string"},
    {"name": "price", "type": "decimal(6, 2)"},
    {"name": "at", "type": "timestamptz"},
    {"name": "local", "type": "timestamp"},
    {"name": "day", "type": "date"},
    {"name": "tags", "type": {"type": "list", "element": "string"}},
    {"name": "place", "type": {"type": "struct", "fields": [{"name": "lat", "type": "double"}]}},
]
WIDER = [{"name": "id", "type": "long"}, *FIELDS[1:]]
VALUE = (
    b'{"id": 1, "key": "a", "price": 1.25, "at": "2024-01-31T10:00:00+01:00", "local": "2024-01-31T10:00:00.5", '
    b'"day": "2024-01-31", "tags": ["x", null], "place": {"lat": 1.5}}'
)
ROW = (
    *(1, "a", Decimal("1.25"), datetime(2024, 1, 31, 9, tzinfo=UTC), datetime(2024, 1, 31, 10, 0, 0, 500_000)),
    *(date(2024, 1, 31), ["x", None], {"lat": 1.5}),
)
NAMES = ["id", "value_key", "price", "at", "local", "day", "tags", "place", "value_error"]
KINDS = [
    "int",
    "string",
    "decimal(6,2)",
    "timestamp",
    "timestamp_ntz",
    "date",
    "array<string>",
    "struct<lat:double>",
    "string",
]


def typed(fields: list[dict[str, Any]] = FIELDS) -> ClusterHandles:
    """Create a topic with a record in L1, one in L0, and one in L0 that does not fit."""
    cluster = memory_cluster()
    cluster.controller.create_topic("events", 1, columns=columns_of({"fields": fields}))
    put(cluster, "events", {0: [VALUE]})
    reconcile(cluster)
    put(cluster, "events", {0: [VALUE, b"nonsense"]})
    return cluster


def test_rows_with_typed_columns_are_staged_by_the_topics_schema() -> None:
    cluster = typed()
    schema = cluster.controller.snapshot().topic("events").value_schema
    assert schema is not None
    before = parser_of(schema)
    rows = pa.table(before.parse(pa.array([VALUE])), schema=before.fields).drop_columns("value_error")
    batch = rows.append_column("key", pa.array([b"k"])).combine_chunks().to_batches()[0]

    def staged(batch: pa.RecordBatch) -> list[Any]:
        with ThreadPoolExecutor(1) as pool:
            stager = Stager(cluster, "events", pool, turn=None, first=0, object_bytes=1 << 20)
            commit(cluster, stager.run([batch]))
        return [*read_topic(cluster, cluster.controller.snapshot().topic("events"))]

    record = staged(batch)[-1]
    assert record.key == b"k"
    assert (
        pa.table(before.parse(pa.array([record.value])), schema=before.fields).drop_columns("value_error").equals(rows)
    )
    with pytest.raises(UsageError, match="a row for topic 'events' has a column 'other', and records are taken from"):
        staged(batch.append_column("other", pa.array([1])))
    column = batch.schema.get_field_index("place")
    place = pa.array([{"lat": float("nan")}], batch.schema.field(column).type)
    with pytest.raises(UsageError, match="field 'lat' of column 'place' of a row for topic 'events' has NaN"):
        staged(batch.set_column(column, batch.schema.field(column), place))
    assert staged(batch)[-2] == record, "nothing of a refused batch landed"
    assert (
        L0gcDataSource({"topic": "events", "url": "s3://bucket"}).writer(StructType().add("id", "integer"), False)
        is not None
    )


def alter(cluster: ClusterHandles, fields: list[dict[str, Any]]) -> None:
    cluster.controller.alter_topic("events", NOT_GIVEN, columns_of({"fields": fields}))


def test_every_column_has_its_schemas_type_in_l1_and_l0() -> None:
    cluster = typed()
    with on(cluster):
        schema = data_source(topic="events", columns="*").schema()
        assert schema.names == [*SCHEMA.names, *WRITTEN.names, *NAMES]
        assert [schema[name].dataType.simpleString() for name in NAMES] == KINDS
        reader = batch_reader(schema, topic="events")
        found = table(reader, reader.partitions())
    found.validate(full=True)
    rows = [tuple(row.values()) for row in found.select(NAMES).to_pylist()]
    assert rows[:2] == [(*ROW, None)] * 2
    assert rows[2][:-1] == (None,) * 8
    assert "JSON is malformed" in rows[2][-1]
    assert found["value"].to_pylist() == [VALUE, VALUE, b"nonsense"]


def test_value_columns_are_read_alone_in_batch_and_stream() -> None:
    cluster = typed()
    with on(cluster):
        schema = data_source(topic="events", columns="tags,offset,id").schema()
        assert schema.simpleString() == "struct<tags:array<string>,offset:bigint,id:int>"
        named = StructType().add("id", "integer").add("value_error", "string")
        reader = batch_reader(named, topic="events")
        assert table(reader, reader.partitions())["id"].to_pylist() == [1, 1, None]
        stream = data_source(topic="events", startingOffsets="earliest").streamReader(schema)
        assert isinstance(stream, StreamReader)
        end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
        assert table(stream, stream.partitions(stream.initialOffset(), end))["id"].to_pylist() == [1, 1, None]


def test_a_plan_older_than_a_widened_schema_is_refused() -> None:
    cluster = typed()
    with on(cluster):
        schema = data_source(topic="events", columns="id,value_error").schema()
        reader = batch_reader(schema, topic="events")
        planned = reader.partitions()
        alter(cluster, WIDER)
        put(cluster, "events", {0: [b'{"id": 3000000000}']})
        assert table(reader, planned)["id"].to_pylist() == [1, 1, None]
        with pytest.raises(
            UsageError, match=r"has no column 'id' of type int32: its value schema was altered .* load again"
        ):
            table(reader, reader.partitions())
        with pytest.raises(UsageError, match="no column id of type int"):
            batch_reader(schema, topic="events")
        reader = batch_reader(data_source(topic="events", columns="id").schema(), topic="events")
        assert table(reader, reader.partitions())["id"].to_pylist() == [1, 1, None, 3_000_000_000]


def test_without_a_schema_only_the_records_own_columns_exist() -> None:
    cluster = typed()
    cluster.controller.create_topic("plain", 1)
    with on(cluster):
        assert data_source(topic="plain", columns="*").schema() == StructType([*SCHEMA, *WRITTEN])
        with pytest.raises(UsageError, match=r"option columns is 'nothing': name some of key, .*, place, value_error"):
            data_source(topic="events", columns="nothing").schema()
        with pytest.raises(UsageError, match="the options name 2 topics, and a value schema is of one"):
            data_source(subscribe="events,plain", columns="*").schema()
        stream = data_source(topic="events").streamReader(StructType().add("id", "string"))
        with pytest.raises(UsageError, match="has no column id of type string"):
            stream.initialOffset()
        assert stream_reader(topic="events").initialOffset()
