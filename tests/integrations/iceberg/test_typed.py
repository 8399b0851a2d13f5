"""A topic's table has its typed columns, by the ids of L1 objects, as engines that nobody here wrote read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.catalog import load_catalog

import l0gc
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.errors import SafetyError
from l0gc.integrations.iceberg.catalog import VALUES
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.decisions import NOT_GIVEN
from l0gc.streamlog.controller.value_schema import columns_of
from tests.docs.test_blocks import found
from tests.support.cli import l0gc as l0gc_cli
from tests.support.engines import a_duckdb
from tests.support.tables import lift, sync, table

DOCUMENT = "docs/tables.md"
FIRST = {"fields": [{"name": "id", "type": "int"}, {"name": "key", "type": "string"}]}
MORE = [
    {"name": "tags", "type": {"type": "list", "element": "string"}},
    {"name": "place", "type": {"type": "struct", "fields": [{"name": "lat", "type": "double"}]}},
    {"name": "price", "type": "decimal(6, 2)"},
    {"name": "at", "type": "timestamptz"},
]
SECOND = {"fields": [{"name": "id", "type": "long"}, FIRST["fields"][1], *MORE]}


def test_a_table_gets_the_columns_of_its_topic_by_their_ids_with_the_next_sync(cluster: Handles) -> None:
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


@pytest.mark.weed
def test_every_engine_reads_typed_columns(documented_catalog: StoreConfig, weed: SeaweedFS, tmp_path: Path) -> None:
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
            if schema is FIRST:
                infer, alter = (line.split()[1:] for line in found(DOCUMENT, "l0gc topic infer").text.splitlines())
                proposed = l0gc_cli(*infer[: infer.index(">")])
                (tmp_path / "schema.json").write_text(json.dumps(FIRST))
                assert {f["name"] for f in proposed["fields"]} == {"id", "key"}
                assert l0gc_cli(*alter[:-1], str(tmp_path / alter[-1]))["altered"]
            elif schema is not None:
                cluster.topics.alter("events", value_schema=schema)
            cluster.upload("events", values)
            assert cluster.reconcile().misfits == values.count(b"nonsense")
            cluster.tables.sync()
        found_before = _by_engines(weed)
        for n in range(4):
            cluster.upload("events", [b'{"id": %d}' % n])
            cluster.reconcile()
        assert cluster.merge().objects_after == 1
        cluster.tables.sync()
        found_after = _by_engines(weed)
    new = (3_000_000_000, None, ["a", None], 1.5, "1.25", 1_706_695_200_000_000, False)
    old = (1, "a", None, None, None, None, False)
    assert found_before == [(None,) * 6 + (False,), old, (None,) * 6 + (True,), new]
    parsed = [(n, None, None, None, None, None, False) for n in range(4)]
    assert found_after == [(0, "none", None, None, None, None, False), old, (None,) * 6 + (True,), new, *parsed]


def _by_engines(weed: SeaweedFS) -> list[tuple[Any, ...]]:
    """The typed columns of all records, which PyIceberg, Polars and DuckDB give alike."""
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
