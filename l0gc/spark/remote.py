"""What driver and executors tell each other: where the bucket is, the shape of rows, and what went wrong.

The bucket is named in data source options, which hold no secret.
Each executor resolves credentials as boto3 does: from its environment, where the driver may have put its own (see
`credentials.py`), from a profile, or from the role of its machine.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from l0gc import errors
from l0gc.spark.credentials import are_sent
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store

if TYPE_CHECKING:
    import pyarrow as pa

_OPTION: Final = "store"
_CONFIG: Final = msgspec.json.Decoder(StoreConfig)
_ERROR_LINE: Final = re.compile(r"(?:([\w.]+)\.)?(\w+): (.*)")


def store_options(config: StoreConfig) -> dict[str, str]:
    """The options that `store_from_options` reads."""
    return {_OPTION: msgspec.json.encode(config).decode()}


def store_from_options(options: Mapping[str, str]) -> S3Store:
    """The store, on an executor; the same one for all tasks of a worker, since setting up its clients takes a while."""
    return store_at(_CONFIG.decode(options[_OPTION]))


@functools.cache
def store_at(config: StoreConfig) -> S3Store:
    """The same, where the configuration itself was sent."""
    return S3Store(replace(config, profile=None) if are_sent() else config)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a data source with `schema`, nullability included."""
    import pyarrow as pa

    types: dict[type[DataType], pa.DataType] = {
        BinaryType: pa.binary(),
        IntegerType: pa.int32(),
        LongType: pa.int64(),
        StringType: pa.string(),
    }
    return pa.schema([pa.field(f.name, types[type(f.dataType)], f.nullable) for f in schema.fields])


def cause_of(error: PySparkException) -> errors.L0gcError:
    """What an executor's l0gc raised, as the same class; other failures of a job as an `L0gcError` that says which."""
    first = ""
    for line in reversed(str(error).splitlines()):
        m = _ERROR_LINE.fullmatch(line.strip())
        if m is None:
            continue
        kind = getattr(errors, m[2], None) if m[1] == errors.__name__ else None
        if isinstance(kind, type) and issubclass(kind, errors.L0gcError):
            return kind(m[3])
        first = first or line.strip()
    return errors.L0gcError(
        f"the Spark job failed: {first or 'Spark gave no reason'} (run it with -v for the traceback)"
    )
