"""What driver and executors tell each other: where the bucket is, the shape of rows, and what went wrong.

The bucket is named in data source options, which hold no secret.
Credentials are not sent: each executor resolves them as boto3 does, from its environment, profile or instance role.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from l0gc import errors
from l0gc.storage.config import StoreConfig
from l0gc.storage.s3 import S3Store

if TYPE_CHECKING:
    import pyarrow as pa

Part = TypeVar("Part")

_OPTION: Final = "store"
_ERROR_LINE: Final = re.compile(r"(?:([\w.]+)\.)?(\w+): (.*)")


def store_options(config: StoreConfig) -> dict[str, str]:
    """The options that `store_from_options` reads."""
    return {_OPTION: msgspec.json.encode(config).decode()}


def store_from_options(options: Mapping[str, str]) -> S3Store:
    """The store, on an executor; the same one for all tasks of a worker, since setting up its clients takes a while."""
    return _store(options[_OPTION])


@functools.cache
def _store(config: str) -> S3Store:
    return S3Store(msgspec.json.decode(config, type=StoreConfig))


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


def spread(
    spark: SparkSession, parts: Sequence[Part], read: Callable[[Part], Iterator[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    """What `read` gives for each part, each in a task of its own.

    A data source would do the same, but for each of those Spark starts three Python processes on the driver first.
    """

    def task(incoming: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in incoming:
            for number in batch.column(0).to_pylist():
                yield from read(parts[number])

    return spark.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(task, schema)


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
