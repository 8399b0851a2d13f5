"""Decide a record's partition, key and create time. The partition is fixed, round-robin, or follows from a field.

The result depends only on the record and its position, so that a producer's repeated upload spreads the same input in the
same way. The one exception is round-robin without a producer, which begins each input at a random partition. The create
time comes from the record, and so from its writer's clock. It is unrelated to the log's time, which retention follows.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from l0gc.errors import UsageError
from l0gc.operations import TimestampUnit
from l0gc.streamlog.ingest.headers_and_times import (
    NO_PARTITION,
    NO_TIME,
    Headers,
    in_milliseconds,
    size_of_headers,
)
from l0gc.streamlog.ingest.records import Fields
from l0gc.streamlog.journal.rows import NUMBER, Rows

_CACHED_KEYS: Final = 100_000

_STRING: Final = msgspec.json.Decoder(str)
_TIMES: Final = "--timestamp-field"
_UNITS: Final = {None: "milliseconds", "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_NO_TIME: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""The errors of a record whose field is not a time."""
_ESCAPES: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_UNPLACED: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""The errors of a record that is not a JSON object with the field."""


class PlacedRecords(NamedTuple):
    """The partition and the key of each record, up to the first that cannot be placed; `error` has the reason. `times` and
    `headers` are their create times and headers, None if there are none. `more` has the bytes of each record in addition
    to its value.
    """

    partitions: Rows
    keys: Sequence[bytes | None]
    error: UsageError | None = None
    times: Rows | None = None
    headers: Sequence[Headers] | None = None
    more: Rows | None = None

    def at(self, indices: Rows) -> PlacedRecords:
        """Return some of the records, by their indices."""
        at: list[int] = indices.tolist()
        return PlacedRecords(
            self.partitions[indices],
            [*map(self.keys.__getitem__, at)],
            None,
            None if self.times is None else self.times[indices],
            None if self.headers is None else [*map(self.headers.__getitem__, at)],
            None if self.more is None else self.more[indices],
        )


@dataclass(frozen=True, slots=True)
class Partitioner:
    """Places records.

    Attributes:
        describe: the settings that the placement depends on besides the records; part of an input's identity.
        start: returns a function that places the records of the input with this name, one group after another.
        fixed: whether it alone decides the partition, even if a record names one or has a key.
    """

    describe: str
    start: Callable[[str], Callable[[Sequence[bytes]], PlacedRecords]]
    fixed: bool = False


def fixed_partition(partition: int, partitions: int) -> Partitioner:
    """Send everything to one partition, without keys."""
    if not 0 <= partition < partitions:
        raise UsageError(f"partition {partition} is out of range: the topic has partitions 0 to {partitions - 1}")

    def place(records: Sequence[bytes]) -> PlacedRecords:
        return PlacedRecords(np.full(len(records), partition, NUMBER), [None] * len(records))

    return Partitioner(f"partition={partition}", lambda name: place, fixed=True)


def in_turn(partitions: int, first: Callable[[], int] = lambda: 0) -> Partitioner:
    """Send one record to each partition, one after another, without keys.

    Args:
        first: chooses the partition at which an input begins. Many short inputs would otherwise fill the first partition.
    """

    def start(name: str) -> Callable[[Sequence[bytes]], PlacedRecords]:
        turn = first()

        def place(records: Sequence[bytes]) -> PlacedRecords:
            nonlocal turn
            turns = np.arange(turn, turn + len(records))
            turn += len(records)
            return PlacedRecords((turns % partitions).astype(NUMBER), [None] * len(records))

        return place

    return Partitioner(f"in-turn/{partitions}", start)


def by_field(field: str, partitions: int) -> Partitioner:
    """Place by the CRC32 of a field of the JSON record, which also becomes its key.

    The key is a string's text, or any other value's JSON.
    """
    as_text, as_json = _decoder(field, str | None), _decoder(field, msgspec.Raw)

    def start(name: str) -> Callable[[Sequence[bytes]], PlacedRecords]:
        of_texts, of_values = _PlacedKeys(partitions, _key_of_text), _PlacedKeys(partitions, _key_of_json)
        texts, number = True, 0

        def place(records: Sequence[bytes]) -> PlacedRecords:
            nonlocal texts, number
            before, number = number, number + len(records)
            if texts:
                try:
                    return of_texts.place([r.field for r in map(as_text.decode, records)])
                except _UNPLACED:
                    texts = False  # a value of the field is not a text, or an error must name its record
            values: list[bytes] = []
            try:
                for record in records:
                    key = bytes(_decoded(as_json, record).field)
                    of_values[key]
                    values.append(key)
            except _UNPLACED as e:
                line = f"{name} line {before + len(values) + 1}"
                return of_values.place(values)._replace(
                    error=_bad_record(line, "--key-field", field, records[len(values)], e)
                )
            return of_values.place(values)

        return place

    return Partitioner(f"field={field}/{partitions}", start)


def with_times(spread: Partitioner, field: str, unit: TimestampUnit | None = None) -> Partitioner:
    """Return the same placement with each record's create time, given as a number since 1970 or as ISO 8601, by default in
    UTC.

    The unit does not identify the input: an upload that was refused because it was missing can continue under the same
    producer.
    """
    decoder = _decoder(field, int | float | datetime)

    def start(name: str) -> Callable[[Sequence[bytes]], PlacedRecords]:
        place, number = spread.start(name), 0

        def timed(records: Sequence[bytes]) -> PlacedRecords:
            nonlocal number
            placed, before = place(records), number
            number += len(records)
            times: list[int] = []
            error = placed.error
            try:
                for record in records[: len(placed.partitions)]:
                    times.append(_milliseconds(_decoded(decoder, record).field, unit))
            except _NO_TIME as e:
                at = len(times)
                line = f"{name} line {before + at + 1}"
                if type(e) is ValueError or f"$.{field}`" in str(e):
                    takes = f"{_TIMES} takes {_UNITS[unit]} since 1970, or ISO 8601"
                    error = UsageError(f"{line} has a field {field!r} that is not a time ({e}): {takes}")
                else:
                    error = _bad_record(line, _TIMES, field, records[at], e)
            n = len(times)
            more = None if placed.more is None else placed.more[:n]
            return PlacedRecords(placed.partitions[:n], placed.keys[:n], error, np.array(times, np.int64), more=more)

        return timed

    return Partitioner(f"{spread.describe} timestamp={field}", start, spread.fixed)


def record_placer(spread: Partitioner, partitions: int, name: str) -> Callable[[Sequence[Fields]], PlacedRecords]:
    """Return a function that places records with their own key, headers, create time and partition.

    A record goes to the partition that it names, else to that of its key, else to the one for its value alone.
    """
    place, number = spread.start(name), 0

    def placed(records: Sequence[Fields]) -> PlacedRecords:
        nonlocal number
        others, before = place([r[0] for r in records]), number
        number += len(records)
        records, error, chosen = records[: len(others.partitions)], others.error, others.partitions.copy()
        keys = [other if r[1] is None else r[1] for r, other in zip(records, others.keys, strict=True)]
        times = np.array([r[3] for r in records], np.int64)
        if others.times is not None:
            times = np.where(times == NO_TIME, others.times, times)
        for n, (_, key, _, _, partition) in enumerate(records if not spread.fixed else ()):
            if partition >= partitions or partition < NO_PARTITION:
                error = UsageError(
                    f"{name} record {before + n + 1} names partition {partition}: the topic has partitions 0 to "
                    f"{partitions - 1}"
                )
                chosen, keys, times, records = chosen[:n], keys[:n], times[:n], records[:n]
                break
            if partition != NO_PARTITION:
                chosen[n] = partition
            elif key is not None:
                chosen[n] = partition_of_key(key, partitions)
        headers = [r[2] for r in records] if any(r[2] for r in records) else None
        more = [len(key or b"") + size_of_headers(r[2]) for r, key in zip(records, keys, strict=True)]
        return PlacedRecords(chosen, keys, error, times, headers, np.array(more, np.int64))

    return placed


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key, both for upload and for Spark's sink."""
    return zlib.crc32(key) % partitions


def _decoded(decoder: msgspec.json.Decoder[Any], record: bytes) -> Any:
    """Decode a record; half of a surrogate pair in another field, as Python's `json` writes it, does not matter. msgspec
    refuses it in any field. So the record is decoded twice, with two different characters in its place. If the results
    differ, the half pair is in the requested field.
    """
    try:
        return decoder.decode(record)
    except msgspec.DecodeError:
        one, other = (_ESCAPES.sub(partial(_whole, half), record) for half in (rb"\ufffd", rb"\ufffe"))
        if one == record:
            raise
    decoded = decoder.decode(one)
    if decoded != decoder.decode(other):
        raise UnicodeError("the field holds half of a surrogate pair, which is not text")
    return decoded


def _whole(half: bytes, escape: re.Match[bytes]) -> bytes:
    return half if escape[1] else escape[0]


def _milliseconds(time: Any, unit: TimestampUnit | None) -> int:
    if isinstance(time, datetime):
        time = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000
        return in_milliseconds(round(time), "ms")
    return in_milliseconds(time, unit)


def _bad_record(line: str, option: str, field: str, record: bytes, e: Exception) -> UsageError:
    """Return the error for a record without the field that an option requires."""
    if not record.strip():
        return UsageError(f"{line} is blank, and {option} needs a JSON object: leave such lines out")
    if isinstance(e, msgspec.ValidationError) and "missing required field" in str(e):
        return UsageError(f"{line} has no field {field!r}, which {option} requires")
    return UsageError(f"{line} is not a JSON object ({e}), which {option} needs")


def _decoder(field: str, kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder of records' `field`. Raises `UsageError` if the name is not valid for a JSON field."""
    try:
        shape = msgspec.defstruct("Asked", [("field", kind)], rename={"field": field}, gc=False)
    except ValueError as e:
        raise UsageError(
            f"field name {field!r} has a quote, backslash or control character, which l0gc does not support"
        ) from e
    return msgspec.json.Decoder(shape)


class _PlacedKeys(dict[Any, tuple[int, bytes]]):
    """The partition and the key of each value of the field seen so far, up to a limit."""

    def __init__(self, partitions: int, key_of: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._partitions, self._key_of = partitions, key_of

    def __missing__(self, value: Any) -> tuple[int, bytes]:
        key = self._key_of(value)
        placed = (partition_of_key(key, self._partitions), key)
        if len(self) >= _CACHED_KEYS:
            self.clear()
        self[value] = placed
        return placed

    def place(self, values: Sequence[Any]) -> PlacedRecords:
        if not values:
            return PlacedRecords(np.empty(0, NUMBER), [])
        placed = [*map(self.__getitem__, values)]
        keys = [key for _, key in placed]
        more = np.fromiter(map(len, keys), np.int64, len(keys))
        return PlacedRecords(np.fromiter((p for p, _ in placed), NUMBER, len(placed)), keys, more=more)


def _key_of_text(value: str | None) -> bytes:
    return b"null" if value is None else value.encode()


def _key_of_json(value: bytes) -> bytes:
    return _STRING.decode(value).encode() if value[:1] == b'"' else value
