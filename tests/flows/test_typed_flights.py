"""Flights in typed columns, from their upload to a vacuum, read by engines of other projects."""

from __future__ import annotations

import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pytest
from pyiceberg.catalog import load_catalog

import l0gc
from l0gc.embedded.sample import flights
from l0gc.embedded.seaweedfs import SeaweedFS
from l0gc.keys import L1_DATA
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store
from tests.support.engines import a_duckdb, access
from tests.support.tables import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
FILES = 4
"""The files of each partition; the schema evolves when half of them are uploaded."""
RECORDS = 125_000
"""The records of each file."""
MISFITS = 50
LATE = b'"dep_delay":"late"'
NEW = ("air_time", "distance")
"""The fields that the first schema lacks; `flight` is widened."""
SUMS = """SELECT "partition", carrier, count(*), count(value_error), sum(dep_delay), sum(arr_delay), sum(flight),
    count(DISTINCT tailnum), count(DISTINCT dest), sum(distance), sum(air_time), count(DISTINCT time_hour),
    sum({us})
    FROM there GROUP BY "partition", carrier"""


def _files(folder: Path) -> list[list[Path]]:
    """Write the flights repeatedly into the files of each partition; some of the last ones have a text as their delay."""
    lines = cycle(list(flights()))
    made = []
    for p in range(PARTITIONS):
        made.append([folder / f"{p}-{n}.ndjson" for n in range(FILES)])
        for n, path in enumerate(made[-1]):
            some = list(islice(lines, RECORDS))
            for at in range(MISFITS // PARTITIONS if n == FILES - 1 else 0):
                before, delay = some[at * 100].split(b'"dep_delay":')
                some[at * 100] = before + LATE + delay[delay.index(b",") :]
            path.write_bytes(b"\n".join(some) + b"\n")
    return made


def _of_files(files: list[list[Path]]) -> duckdb.DuckDBPyConnection:
    """Return what DuckDB reads from the files, by partition and offset; a delay that does not fit is null, with an
    error.
    """
    duck = duckdb.connect()
    columns = duck.sql(f"SELECT column_name, column_type FROM (DESCRIBE FROM read_json('{files[0][0]}'))").fetchall()
    kinds = {name: "VARCHAR" if name == "dep_delay" else kind for name, kind in columns}
    values = ", ".join(
        f"{'if(misfit, NULL, dep_delay)' if name == 'dep_delay' else name}::{kind} AS {name}" for name, kind in columns
    )
    parts = " UNION ALL ".join(
        f"""SELECT {p} AS "partition", row_number() OVER () - 1 AS "offset",
            dep_delay IS NOT DISTINCT FROM 'late' AS misfit, *
        FROM read_json({[str(f) for f in of]}, columns = {kinds})"""
        for p, of in enumerate(files)
    )
    duck.sql(
        f"""CREATE TABLE there AS SELECT "partition", "offset", if(misfit, 'late', NULL) AS value_error, {values}
        FROM ({parts})"""
    )
    return duck


def _table(weed: SeaweedFS) -> duckdb.DuckDBPyConnection:
    """Return what DuckDB reads from the topic's table."""
    duck = a_duckdb(weed)
    at = load_catalog("lake").load_table("l0gc.flights").metadata_location
    duck.sql(f"CREATE VIEW there AS FROM iceberg_scan('{at}')")
    return duck


def _over(rows: Any) -> duckdb.DuckDBPyConnection:
    duck = duckdb.connect()
    duck.register("there", rows)
    return duck


def _sums(duck: duckdb.DuckDBPyConnection, instead: str = "FROM there") -> list[tuple[Any, ...]]:
    sums = SUMS.format(us="epoch_us(time_hour)").replace("FROM there", f"FROM ({instead})")
    return _rows(duck.sql(sums).fetchall())


def _named(store: S3Store) -> list[str]:
    """Return the L1 objects in the table."""
    files = load_catalog("lake").load_table("l0gc.flights").scan().plan_files()
    return sorted(task.file.file_path.removeprefix(store.url) for task in files)


def _rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in found), key=lambda row: (row[0], row[1] or ""))


@pytest.mark.weed
@pytest.mark.spark
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_flights_have_the_types_and_sums_of_their_files(
    bucket: StoreConfig, weed: SeaweedFS, one_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(
        monkeypatch,
        type="sql",
        uri=f"sqlite:///{tmp_path / 'catalog.db'}",
        warehouse=f"file://{tmp_path}/lake",
        **access(weed),
    )
    files, misfits, store = _files(tmp_path), 0, S3Store(bucket)
    with l0gc.open(bucket.url) as cluster:
        cluster.init(create_bucket=True, journals=1)
        cluster.topics.create("sample", partitions=1)
        cluster.upload("sample", [*islice(flights(), 1_000)])
        fields = [{"name": f["name"], "type": f["type"]} for f in cluster.topics.infer("sample").fields]
        first = [{**f, "type": "int"} if f["name"] == "flight" else f for f in fields if f["name"] not in NEW]
        cluster.topics.create("flights", partitions=PARTITIONS)
        cluster.tables.create("flights", catalog="lake")
        for n in range(FILES):
            if n in (0, FILES // 2):
                cluster.topics.alter("flights", value_schema={"fields": fields if n else first})
            for p in range(PARTITIONS):
                cluster.upload("flights", files[p][n], partition=p)
            misfits += cluster.reconcile(topic="flights").misfits
            cluster.tables.sync()
        assert misfits == MISFITS
        of_files = _of_files(files)
        before = _table(weed)
        early = ", ".join(f'if("offset" < {RECORDS * FILES // 2}, NULL, {name}) AS {name}' for name in NEW)
        assert _sums(before) == _sums(of_files, f"SELECT * REPLACE ({early}) FROM there")

        merged = cluster.merge(fan_in=2)
        assert merged.objects_after == PARTITIONS < merged.objects_before
        cluster.tables.sync()
        after = _table(weed)
        assert _sums(after) == _sums(of_files)
        types = "SELECT column_name, column_type FROM (DESCRIBE there)"
        guessed = dict(of_files.sql(types).fetchall())  # wider if there are negative numbers; a time with a zone is UTC
        wanted = {name: kind.replace("HUGEINT", "BIGINT") for name, kind in guessed.items()}
        wanted |= {"partition": "INTEGER", "time_hour": "TIMESTAMP WITH TIME ZONE"}
        found = dict(after.sql(types).fetchall())
        assert {name: found[name] for name in wanted} == wanted
        table = load_catalog("lake").load_table("l0gc.flights")
        for rows in (table.scan().to_arrow(), pl.scan_iceberg(table).collect().to_arrow()):
            assert _sums(_over(rows)) == _sums(of_files)
        (tmp_path / "l1").mkdir()
        for n, key in enumerate(_named(store)):
            (tmp_path / "l1" / f"{n}.parquet").write_bytes(store.get(key).body)
        one_spark.read.parquet(str(tmp_path / "l1")).createOrReplaceTempView("there")
        sums = SUMS.replace('"', "`").format(us="CAST(unix_micros(time_hour) AS DECIMAL(20, 0))")
        assert _rows(one_spark.sql(sums).collect()) == _sums(of_files)

        cluster.upload("flights", files[0][0], partition=0)
        newest = cluster.reconcile(topic="flights").bytes
        cluster.topics.alter("flights", retention_bytes=newest)
        assert cluster.expire("flights").records == FILES * RECORDS  # all older records of that partition
        cluster.tables.sync(keep_snapshots_s=1)
        time.sleep(1.1)
        cluster.tables.sync(keep_snapshots_s=1)
        cluster.housekeep(barrier=True)
        for _ in range(3):
            cluster.advance_epoch()
        cluster.housekeep(barrier=True)
        cluster.vacuum(l1_grace_s=0)
        there = (key for page in store.scan(L1_DATA) for key in page.keys if "/flights-" in key)
        assert [*there] == _named(store)
        assert len(_named(store)) == PARTITIONS
