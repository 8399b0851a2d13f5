"""Reads tables with engines of other projects."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from l0gc.embedded.seaweedfs import SeaweedFS


def extension_file(name: str) -> Path:
    """Return the path at which the wheel of one of DuckDB's extensions has installed it."""
    (folder,) = importlib.import_module(f"duckdb_extension_{name}").__path__
    (file,) = Path(folder).rglob("*.duckdb_extension")
    return file


def a_duckdb(weed: SeaweedFS) -> duckdb.DuckDBPyConnection:
    """Return DuckDB with its extensions, which come from wheels."""
    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        connection.execute(f"LOAD '{extension_file(name)}'")
    connection.execute(
        f"""CREATE SECRET (TYPE s3, KEY_ID '{weed.access_key}', SECRET '{weed.secret_key}', REGION '{weed.region}',
        ENDPOINT '{weed.endpoint_url.removeprefix("http://")}', URL_STYLE 'path', USE_SSL false)"""
    )
    return connection


def access(weed: SeaweedFS) -> dict[str, str]:
    """Return the properties by which PyIceberg reaches the server."""
    return {
        "s3.endpoint": weed.endpoint_url,
        "s3.access-key-id": weed.access_key,
        "s3.secret-access-key": weed.secret_key,
        "s3.region": weed.region,
    }


def of_server(text: str, weed: SeaweedFS) -> str:
    """Return a document's text with the keys and endpoints that it shows replaced by the server's."""
    shown = {
        "ACCESS_KEY": weed.access_key,
        "SECRET_KEY": weed.secret_key,
        "us-east-1": weed.region,
        "127.0.0.1:8333": weed.endpoint_url.removeprefix("http://"),
        "http://127.0.0.1:8181": weed.catalog_url,
    }
    for there, here in shown.items():
        text = text.replace(there, here)
    return text


def rows_of(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows in order, with times in milliseconds."""
    ms = pl.col("timestamp").dt.cast_time_unit("ms").cast(pl.Int64)
    return sorted(frame.with_columns(ms).iter_rows())
