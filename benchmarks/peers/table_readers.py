"""Reads a table's records through PyIceberg or DuckDB, or its Parquet files plainly: `table_readers.py ENGINE HOW
FILE...`.

ENGINE is `pyiceberg` or `duckdb`, HOW `table` or `plain`; FILE is the table's metadata file, or the FILEs are all its
data files. Each reads every column of every record. Connections are made before the clock starts.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(engine: str, how: str, files: list[str]) -> dict[str, Any]:
    """Read everything; return the number of records."""
    read = {"pyiceberg": _pyiceberg, "duckdb": _duckdb}[engine](how, files)
    started = time.monotonic()
    records = read()
    return {"job_seconds": time.monotonic() - started, "records": records}


def _pyiceberg(how: str, files: list[str]) -> Callable[[], int]:
    import pyarrow.dataset as ds
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.table import StaticTable

    access = {
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
        "s3.region": os.environ["AWS_REGION"],
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    if how == "table":
        return lambda: StaticTable.from_metadata(files[0], access).scan().to_arrow().num_rows
    scheme, host, _ = PyArrowFileIO.parse_location(files[0])
    paths = [file.removeprefix(f"{scheme}://") for file in files]
    store = PyArrowFileIO(access).fs_by_scheme(scheme, host)
    return lambda: ds.dataset(paths, filesystem=store, format="parquet").to_table().num_rows


def a_duckdb() -> Any:
    """Return a connection with the extensions and the keys for the store."""
    import duckdb

    connection = duckdb.connect(config={"threads": 2})
    for name in ("avro", "httpfs", "iceberg"):
        (folder,) = importlib.import_module(f"duckdb_extension_{name}").__path__
        (extension,) = Path(folder).rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    connection.execute(
        "CREATE SECRET (TYPE s3, KEY_ID '{AWS_ACCESS_KEY_ID}', SECRET '{AWS_SECRET_ACCESS_KEY}', REGION '{AWS_REGION}', "
        "ENDPOINT '{}', URL_STYLE 'path', USE_SSL false)".format(
            os.environ["AWS_ENDPOINT_URL_S3"].removeprefix("http://"), **os.environ
        )
    )
    return connection


def _duckdb(how: str, files: list[str]) -> Callable[[], int]:
    connection = a_duckdb()
    source = f"iceberg_scan('{files[0]}')" if how == "table" else f"read_parquet({files})"
    columns = 'count(*), max("offset"), max("timestamp"), max(key), sum(octet_length("value")), max(epoch)'
    return lambda: int(connection.execute(f"SELECT {columns} FROM {source}").fetchall()[0][0])


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3:])))
