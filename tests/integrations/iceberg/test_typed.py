"""A topic's table has its typed columns, by the ids of L1 objects; engines of other projects read them."""

from __future__ import annotations

import io
import json
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

import l0gc
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import SafetyError
from l0gc.integrations.iceberg import sync as syncing
from l0gc.integrations.iceberg.catalog import VALUES
from l0gc.integrations.iceberg.commit import typed_statistics
from l0gc.keys import CONTROLLER_LOG
from l0gc.operations import Merge
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.decisions import NOT_GIVEN
from l0gc.streamlog.controller.value_schema import VALUE_ERROR_ID
from l0gc.streamlog.values.schema_formats import columns_of
from tests.support.engines import a_duckdb
from tests.support.memory_store import another_process, copy_of, put_back, store_of
from tests.support.reconcile import put, reconcile
from tests.support.tables import lift, names, sync, table

FIRST = {"fields": [{"name": "id", "type": "int"}, {"name": "key", "type": "string"}]}
MORE = [
    {"name": "tags", "type": {"type": "list", "element": "string"}},
    {"name": "place", "type": {"type": "struct", "fields": [{"name": "lat", "type": "double"}]}},
    {"name": "price", "type": "decimal(6, 2)"},
    {"name": "at", "type": "timestamptz"},
]
FILTERS = (
    "id = 3000000000", "id = 1", "price > 1.20", '"at" > \'2024-01-01T00:00:00+00:00\'', "value_error IS NOT NULL",
    "id < 2 OR value_key = 'a' OR value_error IS NOT NULL",
)  # fmt: skip
SECOND = {"fields": [{"name": "id", "type": "long"}, FIRST["fields"][1], *MORE]}


def test_the_next_sync_adds_the_topics_columns_by_id(cluster: ClusterHandles) -> None:
    lift(cluster)
    sync(cluster)
    alter = cluster.controller.alter_topic
    schema = alter("events", NOT_GIVEN, columns_of(FIRST))[0].value_schema
    assert schema is not None
    sync(cluster)
    schema = alter("events", NOT_GIVEN, columns_of(SECOND))[0].value_schema
    sync(cluster)
    there = table(cluster)
    assert schema is not None
    ids = {c.column: c.id for c in schema.columns}
    assert {f.name: f.field_id for f in there.schema().fields if f.field_id > 10_000} == ids
    assert there.schema().find_field("tags.element").field_id == ids["tags"] + 1
    assert str(there.schema().find_field("id").field_type) == "long"
    assert there.properties[VALUES] == "2"
    assert not sync(cluster).committed
    with there.update_schema() as update:
        update.add_column("more", there.schema().find_field("id").field_type)
    with pytest.raises(SafetyError, match="other columns than value schema 2"):
        sync(cluster)


def test_filters_skip_objects_by_bounds_and_null_counts(cluster: ClusterHandles) -> None:
    kinds = {
        "i": "int",
        "x": "float",
        "d": "date",
        "t": "timestamp",
        "z": "timestamptz",
        "c": "decimal(20, 3)",
        "w": "string",
    }
    nested = {"type": "struct", "fields": [{"name": "n", "type": "long"}]}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()] + [{"name": "s", "type": nested}]
    cluster.controller.alter_topic("events", NOT_GIVEN, columns_of({"fields": fields}))
    for n in (*range(1, 5), 0):
        day = f"2024-01-0{n}"
        times = {"d": day, "t": f"{day}T00:00:00", "z": f"{day}T00:00:00Z"}
        whole = json.dumps({"i": -n, "x": n / 2, "c": f"-{n}.5", "s": {"n": n}, "w": "a", **times}).encode()
        put(cluster, "events", {0: [whole, b"{}"] if n else [b"nonsense"]})
        reconcile(cluster)
    sync(cluster)
    first = ("i < -3", "x >= 2", "d = '2024-01-04'", "t > '2024-01-03T12:00:00'", "z = '2024-01-04T00:00:00+00:00'")
    filters = (*first, "c < -4", "value_error IS NOT NULL", "i IS NULL")
    untyped = 2  # objects without statistics
    assert [_planned(cluster, f) - untyped for f in filters] == [1] * 7 + [5]
    assert [_planned(cluster, f) - untyped for f in ("w = 'b'", "w = 'a'", "s.n > 3")] == [0, 4, 1]
    before = {*store_of(cluster).objects}
    put(cluster, "events", {0: [b'{"i": 7}']})
    reconcile(cluster)
    (key,) = (k for k in store_of(cluster).objects if k.startswith("level_one/") and k not in before)
    store_of(cluster).objects[key].body = bytes(len(store_of(cluster).objects[key].body))
    sync(cluster)  # an object with an unreadable footer is in every plan
    assert _planned(cluster, "i > 100") == untyped + 1


@pytest.mark.parametrize(
    ("texts", "bounds"),
    [
        (["b", "a"], ("a", "b")),
        (["x" * 16], ("x" * 16, "x" * 16)),
        (["x" * 17], ("x" * 16, "x" * 15 + "y")),
        (["é" * 15 + "\ud7ff" + "z"], ("é" * 15 + "\ud7ff", "é" * 15 + "\ue000")),
        (["ab" + "\U0010ffff" * 20], ("ab" + "\U0010ffff" * 14, "ac")),
        (["\U0010ffff" * 17], ("\U0010ffff" * 16, None)),
        (["a", "x" * 5000], (None, None)),
        ([None], (None, None)),
    ],
)
def test_bounds_of_texts_are_short_and_never_within_the_texts(
    texts: list[str | None], bounds: tuple[str | None, str | None]
) -> None:
    """One row group has these texts, and another one has 'k'. Parquet has no bounds of a row group with a long text."""
    field = NestedField(VALUE_ERROR_ID, "w", StringType())
    column = pa.field("w", pa.string(), metadata={"PARQUET:field_id": str(VALUE_ERROR_ID)})
    for rows in (texts, [*texts, *["k"] * len(texts)]):
        body = io.BytesIO()
        pq.write_table(pa.table([pa.array(rows, pa.string())], pa.schema([column])), body, row_group_size=len(texts))
        found = typed_statistics(Schema(field))(pq.ParquetFile(body).metadata)
        lower, upper = (of.get(VALUE_ERROR_ID) for of in (found.lower_bounds, found.upper_bounds))
        if rows == texts:
            assert (lower and lower.decode(), upper and upper.decode()) == bounds
        for text in (text.encode() for text in rows if text is not None):
            assert lower is None or lower <= text
            assert upper is None or text <= upper


def test_bounds_and_nulls_of_a_replaced_column_are_not_the_new_ones(cluster: ClusterHandles) -> None:
    """Both are stored in four bytes under the same name; older objects also have a dropped column."""
    fields = [{"name": "n", "type": "int"}, {"name": "gone", "type": "string"}]
    cluster.controller.alter_topic("events", NOT_GIVEN, columns_of({"fields": fields}))
    put(cluster, "events", {0: [b'{"n": 7, "gone": "x"}']})
    reconcile(cluster)
    cluster.controller.alter_topic("events", NOT_GIVEN, columns_of({"fields": [{"name": "n", "type": "date"}]}))
    sync(cluster)
    assert [f.name for f in table(cluster).schema().fields if f.field_id > VALUE_ERROR_ID] == ["n"]
    assert _planned(cluster, "n IS NULL") == 3


def test_every_plan_includes_an_object_of_a_newer_schema(
    cluster: ClusterHandles, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.controller.alter_topic("events", NOT_GIVEN, columns_of(FIRST))
    l1_rows = syncing.l1_rows

    def altered(*of: Any) -> Any:
        cluster.controller.alter_topic("events", NOT_GIVEN, columns_of(SECOND))
        put(cluster, "events", {0: [b'{"id": 7}']})
        reconcile(cluster)
        return l1_rows(*of)

    monkeypatch.setattr(syncing, "l1_rows", altered)
    sync(cluster)
    assert _planned(cluster, "id > 100") == 3


def _planned(cluster: ClusterHandles, wanted: str) -> int:
    """Return how many objects a query with this filter reads."""
    return len([*table(cluster).scan(row_filter=wanted).plan_files()])


@pytest.mark.weed
@pytest.mark.thorough
def test_every_engine_reads_typed_columns(documented_catalog: StoreConfig, weed: SeaweedFS) -> None:
    late = (
        b'{"id": 3000000000, "tags": ["a", null], "place": {"lat": 1.5}, "price": 1.25, "at": "2024-01-31T10:00:00Z"}'
    )
    with l0gc.open(documented_catalog.url) as cluster:
        cluster.init(create_bucket=True, journals=1)
        cluster.topics.create("events", partitions=1)
        cluster.tables.create("events", catalog="lake")
        for values, schema in (
            ([b'{"id": 0, "key": "none"}'], None),
            ([b'{"id": 1, "key": "a"}', b"nonsense"], FIRST),
            ([late], SECOND),
        ):
            if schema is not None:
                cluster.topics.alter("events", value_schema=schema)
            cluster.upload("events", values)
            assert cluster.reconcile().misfits == values.count(b"nonsense")
            cluster.tables.sync()
        found_before = _by_engines(weed)
        assert [_filtered(weed, wanted) for wanted in FILTERS] == [(1, 2), (1, 2), (1, 3), (1, 3), (1, 2), (2, 2)]
        for n in range(4):
            cluster.upload("events", [b'{"id": %d}' % n])
            cluster.reconcile()
        assert cluster.merge().objects_after == 1
        cluster.tables.sync()
        found_after = _by_engines(weed)
        assert [_filtered(weed, wanted)[0] for wanted in FILTERS] == [1, 2, 1, 1, 1, 5]
    new = (3_000_000_000, None, ["a", None], 1.5, "1.25", 1_706_695_200_000_000, False)
    old = (1, "a", None, None, None, None, False)
    assert found_before == [(None,) * 6 + (False,), old, (None,) * 6 + (True,), new]
    parsed = [(n, None, None, None, None, None, False) for n in range(4)]
    assert found_after == [(0, "none", None, None, None, None, False), old, (None,) * 6 + (True,), new, *parsed]


@pytest.mark.weed
def test_gc_alone_brings_older_records_into_the_table_typed(documented_catalog: StoreConfig) -> None:
    older, limit = 100_000, 200 << 10
    with l0gc.open(documented_catalog.url) as cluster:
        cluster.init(create_bucket=True, journals=2)
        cluster.topics.create("events", partitions=4, journals=2)
        for first in range(0, older, older // 2):
            some = range(first, first + older // 2)
            cluster.upload("events", [b'{"id": %d, "name": "%d"}' % (n, n * n) for n in some])
            cluster.reconcile()
        cluster.tables.create("events", catalog="lake")
        cluster.topics.alter("events", value_schema=FIRST)
        left = [cluster.topics.describe("events")]
        while left[-1].outdated_records:
            cluster.gc(merge=Merge(max_bytes=limit))
            left.append(cluster.topics.describe("events"))
            assert left[-1].outdated_records < left[-2].outdated_records
            assert left[-2].outdated_bytes - left[-1].outdated_bytes <= limit
        assert left[0].outdated_records == older
        assert 2 < len(left) <= 2 + left[0].outdated_bytes // (limit // 4)
        rows = load_catalog("lake").load_table("l0gc.events").scan(selected_fields=("id", "value_error")).to_arrow()
    assert sorted(rows["id"].to_pylist()) == [*range(older)]
    assert rows["value_error"].null_count == older


def _filtered(weed: SeaweedFS, wanted: str) -> tuple[int, int]:
    """Return how many records the filter finds, in PyIceberg and in DuckDB, and how many objects may contain them."""
    there = load_catalog("lake").load_table("l0gc.events")
    scan = there.scan(row_filter=wanted)
    found = a_duckdb(weed).sql(f"SELECT * FROM iceberg_scan('{there.metadata_location}') WHERE {wanted}")
    assert len(found.fetchall()) == scan.to_arrow().num_rows
    return scan.to_arrow().num_rows, len([*scan.plan_files()])


def _by_engines(weed: SeaweedFS) -> list[tuple[Any, ...]]:
    """Return the typed columns of all records, in which PyIceberg, Polars and DuckDB agree."""
    there = load_catalog("lake").load_table("l0gc.events")
    duck = a_duckdb(weed).sql(f"SELECT * FROM iceberg_scan('{there.metadata_location}')").pl()
    by_pyiceberg, *others = (
        _rows(rows) for rows in (pl.DataFrame(there.scan().to_arrow()), pl.scan_iceberg(there).collect(), duck)
    )
    assert others == [by_pyiceberg, by_pyiceberg]
    return by_pyiceberg


def _rows(rows: pl.DataFrame) -> list[tuple[Any, ...]]:
    place, at = pl.col("place").struct.field("lat"), pl.col("at").dt.epoch("us")
    wanted = [
        "id",
        "value_key",
        "tags",
        place,
        pl.col("price").cast(pl.String),
        at,
        pl.col("value_error").is_not_null(),
    ]
    return [*rows.sort("offset").select(wanted).iter_rows()]


def test_a_restored_controller_log_swaps_no_columns_of_a_table(cluster: ClusterHandles) -> None:
    """Objects of the lost schema stay in the table, and none of their columns is mistaken for another."""
    store = store_of(cluster)
    cluster.controller.alter_topic("events", NOT_GIVEN, columns_of({"fields": [{"name": "id", "type": "int"}]}))
    copy = copy_of(store, CONTROLLER_LOG)
    lost = {"fields": [{"name": n, "type": "string"} for n in ("id", "a", "b")]}
    lost["fields"][0]["type"] = "int"
    cluster.controller.alter_topic("events", NOT_GIVEN, columns_of(lost))
    put(cluster, "events", {0: [b'{"id": 1, "a": "of a", "b": "of b"}']})
    reconcile(cluster)
    put_back(store, CONTROLLER_LOG, copy)
    restored = another_process(cluster)
    restored.controller.advance_above(100)
    other = {"fields": [lost["fields"][0], {"name": "b", "type": "string"}, {"name": "a", "type": "string"}]}
    restored.controller.alter_topic("events", NOT_GIVEN, columns_of(other))
    put(restored, "events", {1: [b'{"id": 2, "a": "of a", "b": "of b"}']})
    reconcile(restored)
    sync(restored)
    ids = {f.name: f.field_id for f in table(restored).schema().fields}
    for key in names(restored):
        footer = pq.read_schema(io.BytesIO(store.get(key).body))
        of_file = {int(f.metadata[b"PARQUET:field_id"]): f.name for f in footer}
        assert all(of_file.get(i, name) == name for name, i in ids.items()), key
