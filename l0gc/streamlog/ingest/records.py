"""Accept records in the forms that programs use: objects, Arrow tables and batches, pandas and Polars frames, and files
with such columns. Rows that have the topic's typed columns instead of a value are encoded by its schema.

Each record is preceded by its length, so that all of them form a stream of bytes, which `inputs.py` reads, stores and
identifies in the same way as lines. The stream depends only on the records. So a producer sees the same input whether they
come as objects or as a table, and however the table is cut into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from l0gc import columns
from l0gc.errors import UsageError
from l0gc.limits import MAX_RECORD_BYTES
from l0gc.operations import LENGTH_BYTES, TimestampUnit, checked_value
from l0gc.streamlog.controller.value_schema import ValueSchema
from l0gc.streamlog.ingest.headers_and_times import (
    NO_PARTITION,
    NO_TIME,
    Headers,
    Record,
    headers_list,
    in_milliseconds,
    optional_of,
    size_of_headers,
    times_of,
)
from l0gc.streamlog.values.encode import values_of
from l0gc.streamlog.values.parse import is_typed

PARQUET: Final = "parquet"

Fields = tuple[bytes, bytes | None, Headers, int, int]
"""A record's value, key, headers, create time and partition."""
_FIELDS: Final = msgspec.msgpack.Decoder(Fields)
_ROWS: Final = 4096
"""How many rows of a table are processed at once."""
_BLOCK_BYTES: Final = 256 << 10
_NAMES: Final = ("value", "key", "headers", "create_time_ms", "partition")
_TAKEN: Final = f"records are taken from the columns {', '.join(_NAMES)}"
_COLUMNS: Final = {*_NAMES, "create_time", "timestamp", "topic", "offset", "epoch"}
"""The fields of records that were read; the place where a record lands determines the additional ones."""
_INDEX: Final = "__index_level_"


class ArrowStream(Protocol):
    """A table of any library: Arrow, pandas, Polars, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


RecordLike = bytes | Record | tuple[Any, ...] | Mapping[str, Any] | ArrowStream
"""A record or several: a `Record`, its value, (key, value[, headers[, create time]]), its fields by name, or a table."""


def packed(records: Iterable[Fields]) -> Iterator[bytes]:
    """Yield packed records, several at once."""
    encoder, block = msgspec.msgpack.Encoder(), bytearray()
    for record in records:
        body = encoder.encode(record)
        block += len(body).to_bytes(LENGTH_BYTES, "big") + body
        if len(block) >= _BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def unpacked(records: Iterable[bytes]) -> list[Fields]:
    """Return the records that `packed` packed."""
    return [*map(_FIELDS.decode, records)]


def is_table(source: object) -> bool:
    """Return whether the source provides rows by Arrow's interface."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def records_of(source: Any, unit: TimestampUnit | None = None, schema: ValueSchema | None = None) -> Iterator[Fields]:
    """Yield the records of a table, or of an iterable of records and batches. Raises `UsageError` if one cannot be
    stored.

    Args:
        unit: see `Upload.timestamp_unit`. A number in an object is always in milliseconds.
        schema: the topic's value schema; rows may have its columns instead of a value.
    """
    if is_table(source):
        yield from _in_table("the table", source, unit, schema)
        return
    for number, given in enumerate(source, 1):
        if is_table(given):
            yield from _in_table(f"batch {number}", given, unit, schema)
        else:
            fields = _fields_of(f"record {number}", given)
            yield _checked(f"record {number}", *fields, exact=unit is not None or _was_read(given))


def records_in(
    path: Path, form: str, name: str, unit: TimestampUnit | None = None, schema: ValueSchema | None = None
) -> Iterator[Fields]:
    """Yield the records of a Parquet file, or of an Arrow file or stream. Raises `UsageError` if it is another kind of
    file.
    """
    try:
        if form == PARQUET:
            from pyarrow import parquet

            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, use_threads=False):
                    yield from _in_batch(name, batch, unit, schema)
            return
        options = pa.ipc.IpcReadOptions(use_threads=False)
        with pa.OSFile(str(path)) as arrow:
            is_file = arrow.read(6) == b"ARROW1"
            arrow.seek(0)
            opened = pa.ipc.open_file(arrow, options=options) if is_file else pa.ipc.open_stream(arrow, options=options)
            batches = map(opened.get_batch, range(opened.num_record_batches)) if is_file else iter(opened)
            for batch in batches:
                yield from _in_batch(name, batch, unit, schema)
    except (pa.ArrowException, OSError) as e:
        raise UsageError(f"{name} cannot be read as --format {form}: {' '.join(str(e).split())}") from e


def _in_table(name: str, source: Any, unit: TimestampUnit | None, schema: ValueSchema | None) -> Iterator[Fields]:
    try:
        if hasattr(source, "__arrow_c_stream__"):
            with pa.RecordBatchReader.from_stream(source) as reader:
                for batch in reader:
                    yield from _in_batch(name, batch, unit, schema)
        else:
            yield from _in_batch(name, pa.record_batch(source), unit, schema)
    except pa.ArrowException as e:
        raise UsageError(f"{name} cannot be read as records: {' '.join(str(e).split())}") from e


def _in_batch(
    name: str, batch: pa.RecordBatch, unit: TimestampUnit | None, schema: ValueSchema | None
) -> Iterator[Fields]:
    if columns.named(batch, "value") is not None:
        _check_columns(name, batch)
    for at in range(0, batch.num_rows, _ROWS):
        rows = batch.slice(at, _ROWS)
        n, value, key = rows.num_rows, columns.binary_of(rows, "value"), columns.binary_of(rows, "key")
        if value is not None and value.null_count:
            raise UsageError(f"{name} has a row without a value: a record's value cannot be null")
        values = value.to_pylist() if value is not None else encoded(name, rows, schema)
        more = optional_of(rows, f"a row of {name}", unit)
        times = [NO_TIME] * n if "create_time" not in more else times_of(more["create_time"]).tolist()
        headers = headers_list(more["headers"]) if "headers" in more else [()] * n
        partition = columns.named(rows, "partition")
        partitions = [None] * n if partition is None else partition.cast(pa.int64()).to_pylist()
        keys = [None] * n if key is None else key.to_pylist()
        for record in zip(values, keys, headers, times, partitions, strict=True):
            yield _checked(f"a row of {name}", *record, exact=True)


def encoded(name: str, batch: pa.RecordBatch, schema: ValueSchema | None) -> list[bytes]:
    """Encode the values of rows that have a topic's typed columns. Raises `UsageError` for a column that records do not
    have.
    """
    names = set() if schema is None else {c.column for c in schema.columns}
    typed = _others(batch)
    if odd := next((f.name for f in typed if f.name not in names), None):
        of_topic = ": the topic has no value schema" if schema is None else " and those of the topic's value schema"
        raise UsageError(f"{name} has a column {odd!r}, and {_TAKEN}{of_topic}")
    if schema is None or not typed:
        raise UsageError(f"{name} has no column value, and {_TAKEN}")
    return values_of(batch.select([f.name for f in typed]), schema, name)


def _others(batch: pa.RecordBatch) -> list[pa.Field]:
    """Return the columns that are not fields of a record."""
    return [f for f in batch.schema if f.name.lower() not in _COLUMNS and not f.name.startswith(_INDEX)]


def _check_columns(name: str, batch: pa.RecordBatch) -> None:
    """Raise `UsageError` if rows have a value and a column that records do not have.

    Typed columns next to values, as `read_arrow` returns them, follow from the values. They are recognised by their field
    ids, and ignored.
    """
    if odd := next((f.name for f in _others(batch) if not is_typed(f)), None):
        raise UsageError(f"{name} has a column {odd!r}, and {_TAKEN}")


def _was_read(given: Any) -> bool:
    """Return whether a record was read from a log, so that its time is in milliseconds."""
    offset = given.offset if isinstance(given, Record) else given.get("offset") if isinstance(given, Mapping) else None
    return isinstance(offset, int) and offset >= 0


def _fields_of(which: str, given: Any) -> tuple[Any, ...]:
    """Return a record's value, key, headers, create time and partition, unchecked."""
    match given:
        case bytes():
            return given, None, (), None, None
        case Record():
            return tuple(getattr(given, name) for name in _NAMES)
        case tuple() if 2 <= len(given) <= 4:
            return given[1], given[0], *given[2:], *((), None, None)[len(given) - 2 :]
        case Mapping() if "value" in given and given.keys() <= _COLUMNS:
            return tuple(given.get(name) for name in _NAMES)
        case Mapping():
            odd = next((name for name in given if name not in _COLUMNS), None)
            wrong = "no value" if odd is None else f"a field {odd!r}"
            raise UsageError(
                f"{which} has {wrong}, and a record has the fields {', '.join(_NAMES)}: a JSON object's bytes can be "
                "its value"
            )
    raise UsageError(f"{which} is of type {type(given).__name__}: give bytes, an l0gc.Record, (key, value) or a dict")


def _checked(which: str, value: Any, key: Any, headers: Any, time: Any, partition: Any, *, exact: bool) -> Fields:
    """Return a record that can be stored. Raises `UsageError` if it cannot.

    Args:
        exact: whether its time is known to be in milliseconds.
    """
    for name, given in (("value", value), ("key", b"" if key is None else key)):
        if type(given) is not bytes:
            raise UsageError(f"{which} has a {name} of type {type(given).__name__}, but it must be bytes")
    pairs: Headers = ()
    if headers:
        try:
            pairs = tuple((k, v) for k, v in (headers.items() if isinstance(headers, Mapping) else headers))
            size = size_of_headers(pairs)
        except (TypeError, ValueError, AttributeError):
            pairs, size = (), -1
        if size < 0 or not all(type(v) in (bytes, type(None)) for _, v in pairs):
            raise UsageError(f"{which} has headers {headers!r:.60}: give pairs of a text and bytes, or None")
    else:
        size = 0
    if len(value) + len(key or b"") + size > MAX_RECORD_BYTES:
        raise UsageError(f"{which} is longer than {MAX_RECORD_BYTES} bytes with its key and headers")
    if type(time) is not int:
        if time is None:
            time = NO_TIME
        elif isinstance(time, datetime):
            time, exact = checked_value("create_time_ms", time, int), True
        else:
            raise UsageError(f"{which} has a create time of type {type(time).__name__}: give milliseconds since 1970")
    if time != NO_TIME:
        try:
            in_milliseconds(time, "ms" if exact else None)
        except ValueError as e:
            raise UsageError(f"{which} has a create time that cannot be stored: {e}") from e
    number = NO_PARTITION if partition is None else checked_value("partition", partition, int)
    return value, key, pairs, time, number
