"""Independent engines read from a table what `read` returns, on a server; the examples of docs/work/tables.md run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import l0gc
from l0gc.api import Record
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.storage.config import StoreConfig
from tests.docs.test_blocks import found
from tests.support.engines import a_duckdb, extension_file, of_server, rows_of

DOCUMENT = "docs/work/tables.md"


@pytest.mark.weed
@pytest.mark.thorough
def test_every_engine_reads_what_read_gives(documented_catalog: StoreConfig, weed: SeaweedFS) -> None:
    with l0gc.open(documented_catalog.url) as cluster:
        cluster.init(create_bucket=True, journals=2)
        cluster.topics.create("events", partitions=3, journals=2)
        cluster.tables.create("events", catalog="lake")
        for n in range(4):
            cluster.upload("events", [b'{"user":"ann","n":%d}' % n, b'{"user":"bob"}'] * 20, key_field="user")
            cluster.upload("events", [b'{"user":"cid"}'] * 3)
            if n == 1:  # other objects lack both columns
                with cluster.producers.sender("events", "another system") as sender:
                    sender.send(
                        [Record(b'{"user":"dan"}', None, (("a", b"1"), ("a", None)), 1_700_000_000_005, partition=0)],
                        {0: 1},
                    )
            cluster.reconcile()
            cluster.tables.sync()
        merged = cluster.merge()
        synced = cluster.gc().table_sync
        assert synced is not None
        assert synced.tables[0].removed == merged.objects_before > 0
        records = list(cluster.read("events"))
    wanted = sorted((r.partition, r.offset, r.timestamp_ms, r.key, r.value) for r in records)
    optional = sorted((r.partition, r.offset, r.create_time_ms, r.headers) for r in records)
    users = Counter(value.split(b'"')[3].decode() for *_, value in wanted)

    names = ["partition", "offset", "timestamp", "key", "value"]
    given: dict[str, Any] = {}
    table = load_catalog("lake").load_table("l0gc.events")
    arrow = table.scan().to_arrow()
    assert arrow.schema.names == [f.name for f in table.schema().fields]
    assert rows_of(pl.DataFrame(arrow.select(names))) == wanted
    assert rows_of(pl.scan_iceberg(table).select(names).collect()) == wanted
    duck = a_duckdb(weed)
    select = ", ".join(f'"{n}"' for n in names)
    assert rows_of(duck.sql(f"SELECT {select} FROM iceberg_scan('{table.metadata_location}')").pl()) == wanted
    of_two = sorted(value for p, *_, value in wanted if p == 2)
    for only in (
        table.scan(row_filter="partition = 2", selected_fields=("value",)).to_arrow(),
        pl.scan_iceberg(table).filter(pl.col("partition") == 2).select("value").collect(),
        duck.sql(f"SELECT value FROM iceberg_scan('{table.metadata_location}') WHERE partition = 2").to_arrow_table(),
    ):
        assert sorted(only["value"].to_pylist() if isinstance(only, pa.Table) else only["value"]) == of_two != []

    more = ["partition", "offset", "create_time", "headers"]
    for found_by in (
        pl.DataFrame(arrow.select(more)),
        pl.scan_iceberg(table).select(more).collect(),
        duck.sql(f"SELECT * FROM iceberg_scan('{table.metadata_location}')").pl().select(more),
    ):
        assert _optional(found_by) == optional

    exec(found(DOCUMENT, "from pyiceberg").text, given)
    assert given["rows"].num_rows == sum(1 for p, *_ in wanted if p == 0)
    exec(found(DOCUMENT, "import polars").text, given)
    assert dict(given["rows"].iter_rows()) == users
    install = 'f"INSTALL {extension}; LOAD {extension}"'  # the tests have the extensions as wheels
    by_duckdb = of_server(found(DOCUMENT, "import duckdb").text, weed)
    assert install in by_duckdb
    given["extension_file"] = extension_file
    exec(by_duckdb.replace(install, """f"LOAD '{extension_file(extension)}'\""""), given)
    assert dict(given["rows"].fetchall()) == users


def _optional(found: pl.DataFrame) -> list[tuple[Any, ...]]:
    rows = found.with_columns(pl.col("create_time").dt.epoch("ms")).iter_rows()
    return sorted((p, o, t, tuple((h["key"], h["value"]) for h in headers or ())) for p, o, t, headers in rows)
