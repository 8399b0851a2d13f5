"""Handle the optional parts of a record: the time that its writer set, and headers, as in Kafka.

Most records have neither. So the columns are absent, and cost nothing, if no record of a block, a batch or an L1 object
has a value in them. An absent column means the same as nulls. No decision depends on the create time: retention follows
the log's time, since a writer's clock may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from l0gc import columns
from l0gc.errors import UsageError
from l0gc.operations import TimestampUnit, refuse_early
from l0gc.streamlog.journal.rows import NUMBER, Rows

HEADER: Final = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", HEADER, nullable=False))
OPTIONAL: Final = pa.schema([pa.field("create_time", pa.timestamp("ms", tz="UTC")), pa.field("headers", HEADERS)])
NO_TIME: Final = -1
"""The number for a missing time; Kafka uses the same."""
MAX_TIME_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that Python and Spark can show."""
Headers = tuple[tuple[str, bytes | None], ...]
"""A record's headers, in order; a key may occur several times."""
HEADER_OVERHEAD: Final = 8
"""The weight of a header in addition to its bytes, since the sizes of its key and value are stored, too."""
NO_PARTITION: Final = -1
_GIVEN: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""Headers from other libraries, whose columns may contain nulls."""
_TIME: Final = np.dtype("<i8")


_IN_MS: Final = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
"""The factor and the divisor that turn a number in each unit into milliseconds."""
_NAME_IT: Final = "name it with --timestamp-unit s, ms, us or ns"


class Record(msgspec.Struct, frozen=True):
    """A record to upload, or one that was read.

    Attributes:
        value: any bytes.
        key: it determines the record's partition, unless the record names one.
        headers: pairs of a key and a value, in order; a key may occur several times.
        create_time_ms: the time that its writer set; no decision depends on it.
        partition: where it is, or will be placed; -1 to place it by its key, or in turn.
        offset: its offset in the partition, here or in its source system. An upload trusts the create time of a record
            with an offset, but ignores the offset itself and the next field.
        timestamp_ms: the log's time at which it landed, in milliseconds since 1970.
    """

    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    create_time_ms: int | None = None
    partition: int = NO_PARTITION
    offset: int = -1
    timestamp_ms: int = -1


def with_optional(schema: pa.Schema, like: pa.Schema) -> pa.Schema:
    """Return a schema, extended by those fields of `OPTIONAL` that `like` has."""
    return pa.schema([*schema, *(f for f in OPTIONAL if f.name in like.names)])


def level(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same records, each batch with all optional columns that any of them has."""
    present = [f for f in OPTIONAL if any(f.name in b.schema.names for b in batches)]
    return [_with(b, present) for b in batches]


def size_of_headers(headers: Headers) -> int:
    """Return the same as `header_bytes` for one record. Raises `TypeError`, `AttributeError` or `ValueError` for other
    values.
    """
    return sum(len(k.encode()) + len(v or b"") + HEADER_OVERHEAD for k, v in headers)


def _with(batch: pa.RecordBatch, fields: Sequence[pa.Field]) -> pa.RecordBatch:
    others = [name for name in batch.schema.names if name not in OPTIONAL.names]
    for f in fields:
        if f.name not in batch.schema.names:
            batch = batch.append_column(f, pa.nulls(batch.num_rows, f.type))
    return batch.select([*others, *(f.name for f in fields)])


def column_of(batch: Any, field: pa.Field) -> Any:
    """Return a column of a batch or a table; an optional column that is absent is all null."""
    if field.name in OPTIONAL.names and field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    return batch.column(field.name)


def times_column(times_ms: Rows) -> pa.Array:
    return columns.valid_only(times_ms, times_ms != NO_TIME, OPTIONAL.field("create_time").type)


def times_of(column: pa.Array) -> Rows:
    times = np.frombuffer(columns.raw(column), _TIME)
    return times if not column.null_count else np.where(columns.is_valid(column), times, NO_TIME)


def times_list(column: pa.Array) -> list[int | None]:
    """Return the create time of each record, or None if it has none."""
    return [None if t == NO_TIME else t for t in times_of(column).tolist()]


def headers_column(of_records: Iterable[Headers]) -> pa.Array:
    """Return a column of headers, from those of each record. Raises `UnicodeEncodeError` if a key cannot be stored."""
    counts, keys, values = list[int](), list[str](), list[bytes | None]()
    for headers in of_records:
        counts.append(len(headers))
        for key, value in headers:
            keys.append(key)
            values.append(value)
    return _listed(np.array(counts, np.int64), columns.strings(keys), columns.binary(values))


def headers_of(column: pa.Array) -> tuple[Rows, pa.Array, pa.Array]:
    """Return how many headers each record has, and the keys and values of all of them."""
    keys, values = column.flatten().flatten()
    return (
        np.diff(np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column) + 1])
        * (columns.is_valid(column)),
        keys,
        values,
    )


def header_bytes(column: pa.Array) -> Rows:
    """Return the size of each record's headers, including the numbers that are stored with them."""
    counts, keys, values = headers_of(column)
    sizes = columns.uncut(keys)[0].astype(np.int64) + np.maximum(columns.uncut(values)[0], 0) + HEADER_OVERHEAD
    total: Rows = sums_of(sizes, counts)
    return total


def sums_of(numbers: Any, counts: Rows) -> Any:
    """Return, for each record, the sum of its numbers, of which `counts` has the count."""
    totals = np.concatenate(([0], np.cumsum(numbers, dtype=numbers.dtype))).astype(numbers.dtype)
    ends = np.cumsum(counts)
    return totals[ends] - totals[ends - counts]


def as_headers(column: pa.Array) -> pa.Array:
    """Return a column of lists of keys and values as this module's headers. Raises `ValueError` if a key is null."""
    counts, keys, values = headers_of(column)
    if keys.null_count:
        raise ValueError("a header has no key")
    return _listed(counts, keys.cast(pa.string()), values.cast(pa.binary()))  # Spark's may have the large types


def in_milliseconds(time: float, unit: TimestampUnit | None) -> int:
    """Convert a time in a unit, by default milliseconds, to milliseconds since 1970.

    Raises:
        ValueError: it is not in the years 1970 to 9999, or no unit is named and it is before 1990.
    """
    times, parts = _IN_MS[unit or "ms"]
    if not 0 <= time <= MAX_TIME_MS * parts / times:
        raise ValueError(f"{time} is not in the years 1970 to 9999")
    if unit is None:
        refuse_early(time, _NAME_IT)
    return int(time * times // parts)


def _milliseconds(times: pa.Array) -> Rows:
    """Return timestamps or dates as milliseconds, or all -2 if one is too large for 64 bits.

    No time is multiplied without a check, since an overflow would turn it into another time.
    """
    finer = {"us": 1_000, "ns": 1_000_000}.get(getattr(times.type, "unit", ""), 0)
    if finer and pa.types.is_timestamp(times.type):
        return np.frombuffer(columns.raw(times), np.int64) // finer
    try:
        return np.frombuffer(columns.raw(times.cast(pa.timestamp("ms", tz="UTC"))), np.int64)
    except pa.ArrowInvalid:
        return np.full(len(times), -2)


def optional_of(batch: pa.RecordBatch, row: str, unit: TimestampUnit | None = None) -> dict[str, pa.Array]:
    """Return the columns of `OPTIONAL` that rows have, under any of their names. Spark's Kafka sink has the create time in
    `timestamp`.

    Args:
        unit: the unit of whole numbers in the column `create_time`.

    Raises:
        UsageError: one of them cannot be stored; the message names it by `row`.
    """
    optional: dict[str, pa.Array] = {}
    times = ((columns.named(batch, name), name) for name in ("create_time", "create_time_ms", "timestamp"))
    time, name = next((t for t in times if t[0] is not None), (None, ""))
    headers = columns.named(batch, "headers")
    if time is not None:
        has_time = columns.is_valid(time)
        if pa.types.is_integer(time.type):
            try:
                numbers = np.where(has_time, np.frombuffer(columns.raw(time.cast(pa.int64())), np.int64), 0)
            except pa.ArrowInvalid as e:
                raise UsageError(f"{row} has a time that is not in the years 1970 to 9999") from e
            of_name: TimestampUnit | None = "ms" if unit and name.endswith("_ms") else unit
            try:
                for group in (numbers, numbers[numbers > 0]):
                    for bound in (group.min(), group.max()) if len(group) else ():
                        in_milliseconds(int(bound), of_name)
            except ValueError as e:
                raise UsageError(f"{row} has a time that cannot be stored: {e}") from e
            factor, parts = _IN_MS[of_name or "ms"]
            given = numbers * factor // parts
        else:
            given = _milliseconds(time)
            if (has_time & ((given < 0) | (given > MAX_TIME_MS))).any():
                raise UsageError(f"{row} has a time that is not in the years 1970 to 9999")
        optional["create_time"] = times_column(np.where(has_time, given, NO_TIME))
    if headers is not None:
        try:
            optional["headers"] = as_headers(headers if headers.type.equals(HEADERS) else headers.cast(_GIVEN))
        except pa.ArrowException as e:
            raise UsageError(f"{row} has headers that are not lists of a key and a value ({headers.type})") from e
        except ValueError as e:
            raise UsageError(f"{row} has a header without a key") from e
    return optional


def headers_list(column: pa.Array) -> list[Headers]:
    counts, keys, values = headers_of(column)
    pairs, ends = tuple(zip(keys.to_pylist(), values.to_pylist(), strict=True)), np.cumsum(counts)
    return [pairs[first:end] for first, end in zip((ends - counts).tolist(), ends.tolist(), strict=True)]


def _listed(counts: Rows, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return a column of headers; it is null for records without headers."""
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER))
    return pa.Array.from_buffers(
        HEADERS, len(counts), [columns.bitmap(counts > 0), pa.py_buffer(ends)], children=[pairs]
    )


# -- in a block ------------------------------------------------------------------------------------------------------------


def pack_optional(times_ms: Rows | None, headers: pa.Array | None, count: int) -> list[bytes | memoryview]:
    """Return the bytes that follow the values in a block of `count` records; none if no record has a create time or
    headers.
    """
    no_time = times_ms is None or not (times_ms != NO_TIME).any()
    no_headers = headers is None or headers.null_count == count
    if no_time and no_headers:
        return []
    times = np.full(count, NO_TIME) if times_ms is None else times_ms
    if headers is None or no_headers:
        return [times.astype(_TIME).tobytes(), bytes(NUMBER.itemsize * count)]
    counts, keys, values = headers_of(headers)
    key_sizes, key_bytes = columns.uncut(keys)
    value_sizes, value_bytes = columns.uncut(values)
    numbers = (counts, key_sizes, value_sizes)
    return [times.astype(_TIME).tobytes(), *(n.astype(NUMBER).tobytes() for n in numbers), key_bytes, value_bytes]


def unpack_optional(content: pa.Buffer, count: int) -> list[pa.Array]:
    """Return the columns of `OPTIONAL` that `pack_optional` packed for `count` records. Raises `ValueError` for any other
    bytes.
    """
    at = 0

    def numbers(kind: np.dtype[np.signedinteger], n: int, least: int, most: int) -> Rows:
        nonlocal at
        values = np.frombuffer(content, kind, n, at).astype(np.int64)  # raises if there are fewer
        at += kind.itemsize * n
        if n and (values.min() < least or values.max() > most):
            raise ValueError("a number is out of its range")
        return values

    times = numbers(_TIME, count, NO_TIME, MAX_TIME_MS)
    counts = numbers(NUMBER, count, 0, content.size)
    total = int(counts.sum())
    key_sizes = numbers(NUMBER, total, 0, content.size)
    value_sizes = numbers(NUMBER, total, -1, content.size)
    key_bytes = int(key_sizes.sum())
    if at + key_bytes + int(value_sizes.sum(where=value_sizes > 0)) != content.size:
        raise ValueError("the sizes do not add up")
    keys = columns.cut(key_sizes, content.slice(at, key_bytes), pa.string())
    keys.validate(full=True)
    return [times_column(times), _listed(counts, keys, columns.cut(value_sizes, content.slice(at + key_bytes)))]
