"""Define the source and the sink of `format("l0gc")`, batch and streaming, with their columns.

Spark starts several Python processes on the driver: to create the data source, to plan, and to read or write. The first
needs only this module, so the code of the others (`readers.py`, `sink.py`) is imported on use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from l0gc.errors import L0gcError, UsageError
from l0gc.integrations.spark.options import (
    ReadOptions,
    WriteOptions,
    columns_wanted,
    creates_table,
    read_options,
    write_options,
)
from l0gc.spark.handles import CORES, leave_out_of_collections

if TYPE_CHECKING:
    from l0gc.integrations.spark.readers import BatchReader, RefusingStreamReader, StreamReader
    from l0gc.integrations.spark.sink import BatchWriter, StreamWriter

FORMAT: Final = "l0gc"
SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType(), True),
        StructField("value", BinaryType(), False),
        StructField("topic", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("offset", LongType(), False),
        StructField("timestamp", TimestampType(), False),
        StructField("epoch", LongType(), False),
    ]
)
"""The columns of a source: those of Spark's Kafka connector, and the epoch of the L0 object in which a record came."""
WRITTEN: Final = StructType(
    [
        StructField("create_time", TimestampType(), True),
        StructField("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())), True),
    ]
)
"""The optional columns of a record, which are present with the option `includeHeaders` or in a schema."""
_ALL: Final = StructType([*SCHEMA, *WRITTEN])
EVERY: Final = "*"
"""The value of the option `columns` for all columns, including those of the topic's value schema."""
_WRITABLE: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "partition": (IntegerType, LongType),
    "topic": (StringType,),
    "create_time": (TimestampType,),
    "timestamp": (TimestampType,),
}


class L0gcDataSource(DataSource):
    """`format("l0gc")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns. Here, `load()` refuses options that are not valid for a batch or a stream."""
        if creates_table(self.options):
            return SCHEMA
        options = read_options(self.options, streaming=None)
        requested = columns_wanted(self.options) or (_ALL if options.include_headers else SCHEMA).names
        available = _columns(options, requested)
        requested = available.names if requested == [EVERY] else requested
        if CORES in os.environ:  # Spark keeps the process that calls this
            leave_out_of_collections()
        if not {*requested} <= {*available.names}:
            names = ", ".join(available.names)
            raise UsageError(f"option columns is {','.join(requested)!r}: name some of {names}, with commas between")
        return StructType([available[name] for name in requested])

    def reader(self, schema: StructType) -> BatchReader:
        from l0gc.integrations.spark.readers import BatchReader

        options = read_options(self.options, streaming=False)
        return BatchReader(options, _checked(schema, options))

    def streamReader(self, schema: StructType) -> StreamReader | RefusingStreamReader:
        from l0gc.integrations.spark.readers import RefusingStreamReader, StreamReader

        try:
            options = read_options(self.options, streaming=True)
            return StreamReader(options, _checked(schema, options))
        except L0gcError as e:
            return RefusingStreamReader(e.with_traceback(None))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from l0gc.integrations.spark.sink import BatchWriter

        return BatchWriter(self._write_options(schema, overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from l0gc.integrations.spark.sink import StreamWriter

        return StreamWriter(self._write_options(schema, overwrite, streaming=True))

    def _write_options(self, schema: StructType, overwrite: bool, *, streaming: bool) -> WriteOptions:
        if overwrite:
            how = 'outputMode("append")' if streaming else 'mode("append")'
            raise UsageError(f"a topic can only be appended to: write with {how}")
        columns = {f.name.lower(): f for f in schema.fields}
        options = write_options(self.options, topic_column="topic" in columns, streaming=streaming)
        for name, types in _WRITABLE.items():
            f = columns.get(name)
            if f is not None and not isinstance(f.dataType, types):
                required = " or ".join(t.typeName() for t in types)
                raise UsageError(f"column {f.name!r} is of type {f.dataType.simpleString()} and must be {required}")
        headers = columns.get("headers")
        if headers is not None and headers.dataType.simpleString() != WRITTEN["headers"].dataType.simpleString():
            required = WRITTEN["headers"].dataType.simpleString()
            raise UsageError(
                f"column {headers.name!r} is of type {headers.dataType.simpleString()} and must be {required}"
            )
        if "value" not in columns and columns.keys() <= {*_ALL.names}:
            raise UsageError(
                "column value is missing: it holds the records, unless rows have the topic's typed columns"
            )
        return options


def _columns(options: ReadOptions, names: Sequence[str]) -> StructType:
    """Return the available columns. Those of a value schema are included only if they may be needed, since they take a
    read of the log.
    """
    if {*names} <= {*_ALL.names}:
        return _ALL
    from l0gc.integrations.spark.readers import typed_columns

    return StructType([*_ALL, *typed_columns(options)])


def _checked(schema: StructType, options: ReadOptions) -> StructType:
    """Return a user's schema, if all its columns are columns of the source."""
    columns = _columns(options, schema.names)
    types = {f.name: f.dataType for f in columns.fields}
    for f in schema.fields:
        if types.get(f.name) != f.dataType:
            raise UsageError(
                f"a topic has no column {f.name} of type {f.dataType.simpleString()}: {columns.simpleString()}"
            )
    return schema
