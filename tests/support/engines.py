"""Engines that nobody here wrote, as readers of tables."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from l0gc.embedded.seaweedfs import SeaweedFS


def a_duckdb(weed: SeaweedFS) -> duckdb.DuckDBPyConnection:
    """DuckDB with its extensions, from their wheels."""
    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        (folder,) = importlib.import_module(f"duckdb_extension_{name}").__path__
        (file,) = Path(folder).rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    connection.execute(
        f"""CREATE SECRET (TYPE s3, KEY_ID '{weed.access_key}', SECRET '{weed.secret_key}', REGION '{weed.region}',
        ENDPOINT '{weed.endpoint_url.removeprefix("http://")}', URL_STYLE 'path', USE_SSL false)"""
    )
    return connection


def access(weed: SeaweedFS) -> dict[str, str]:
    """What PyIceberg has to know of the server."""
    return {
        "s3.endpoint": weed.endpoint_url,
        "s3.access-key-id": weed.access_key,
        "s3.secret-access-key": weed.secret_key,
        "s3.region": weed.region,
    }


def rows_of(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """The rows with times in milliseconds, in order."""
    ms = pl.col("timestamp").dt.cast_time_unit("ms").cast(pl.Int64)
    return sorted(frame.with_columns(ms).iter_rows())
