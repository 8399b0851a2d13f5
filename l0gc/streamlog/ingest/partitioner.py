"""Which partition a record goes to, and what its key is: by a field, fixed, or round-robin.

Deterministic in the record and its position, so that a repeated upload spreads the same input in the same way. Records are
placed some hundred at a time: what is done for each of them is the cost of an upload.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np

from l0gc.decoding import json_decoder
from l0gc.errors import BadRecordError, UsageError
from l0gc.streamlog.journal.rows import NUMBER, Rows

_CACHED_KEYS: Final = 100_000

_STRING: Final = json_decoder(str)
_UNPLACED: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What a record raises if it is not a JSON object with the field."""


class PlacedRecords(NamedTuple):
    """The partition and the key of each record, up to the first that cannot be placed; `error` says why it cannot."""

    partitions: Rows
    keys: Sequence[bytes | None]
    error: BadRecordError | None = None


class Partitioner(Protocol):
    """Places records."""

    def describe(self) -> str:
        """What the placement depends on besides the records; part of an input's identity."""
        ...

    def start(self, name: str) -> Callable[[Sequence[bytes]], PlacedRecords]:
        """A function that places the records of the input `name`, some after others."""
        ...


class FixedPartition:
    """Everything to one partition, without keys."""

    def __init__(self, partition: int, partitions: int) -> None:
        if not 0 <= partition < partitions:
            raise UsageError(f"partition {partition} is out of range: the topic has partitions 0 to {partitions - 1}")
        self._partition = partition

    def describe(self) -> str:
        return f"partition={self._partition}"

    def start(self, name: str) -> Callable[[Sequence[bytes]], PlacedRecords]:
        return lambda records: PlacedRecords(np.full(len(records), self._partition, NUMBER), [None] * len(records))


class RoundRobin:
    """One record to each partition, one after another, without keys."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def describe(self) -> str:
        return f"in-turn/{self._partitions}"

    def start(self, name: str) -> Callable[[Sequence[bytes]], PlacedRecords]:
        turn = 0

        def place(records: Sequence[bytes]) -> PlacedRecords:
            nonlocal turn
            turns = np.arange(turn, turn + len(records))
            turn += len(records)
            return PlacedRecords((turns % self._partitions).astype(NUMBER), [None] * len(records))

        return place


class ByField:
    """By the CRC32 of a field of the JSON record, which also becomes its key (a string's text, any other value's JSON)."""

    def __init__(self, field: str, partitions: int) -> None:
        self._field, self._partitions = field, partitions
        self._texts, self._values = _decoder(field, str | None), _decoder(field, msgspec.Raw)

    def describe(self) -> str:
        return f"field={self._field}/{self._partitions}"

    def start(self, name: str) -> Callable[[Sequence[bytes]], PlacedRecords]:
        of_texts, of_values = _Places(self._partitions, _key_of_text), _Places(self._partitions, _key_of_json)
        texts, number = True, 0

        def place(records: Sequence[bytes]) -> PlacedRecords:
            nonlocal texts, number
            before, number = number, number + len(records)
            if texts:
                try:
                    return of_texts.place([r.key for r in map(self._texts.decode, records)])
                except _UNPLACED:
                    texts = False  # the field has other values than texts, or a record has to be named
            try:
                return of_values.place([bytes(r.key) for r in map(self._values.decode, records)])
            except _UNPLACED:
                return self._up_to_the_first_bad(name, before, records, of_values)

        return place

    def _up_to_the_first_bad(self, name: str, before: int, records: Sequence[bytes], places: _Places) -> PlacedRecords:
        values: list[bytes] = []
        for record in records:
            try:
                value = bytes(self._values.decode(record).key)
                _key_of_json(value)
            except _UNPLACED as e:
                return places.place(values)._replace(error=self._bad(name, before + len(values) + 1, e))
            values.append(value)
        raise AssertionError("unreachable")

    def _bad(self, name: str, number: int, e: Exception) -> BadRecordError:
        if isinstance(e, msgspec.ValidationError) and "missing required field" in str(e):
            return BadRecordError(f"{name} line {number} has no field {self._field!r}, which --key-field asks for")
        return BadRecordError(f"{name} line {number} is not a JSON object ({e}), which --key-field needs")


def _decoder(field: str, kind: Any) -> msgspec.json.Decoder[Any]:
    shape = msgspec.defstruct("Keyed", [("key", kind)], rename={"key": field}, gc=False)
    return msgspec.json.Decoder(shape)


class _Places(dict[Any, tuple[int, bytes]]):
    """The partition and the key of each value of the field that was met, up to so many."""

    def __init__(self, partitions: int, key_of: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._partitions, self._key_of = partitions, key_of

    def __missing__(self, value: Any) -> tuple[int, bytes]:
        key = self._key_of(value)
        placed = (zlib.crc32(key) % self._partitions, key)
        if len(self) >= _CACHED_KEYS:
            self.clear()
        self[value] = placed
        return placed

    def place(self, values: Sequence[Any]) -> PlacedRecords:
        if not values:
            return PlacedRecords(np.empty(0, NUMBER), [])
        partitions, keys = zip(*map(self.__getitem__, values), strict=True)
        return PlacedRecords(np.array(partitions, NUMBER), keys)


def _key_of_text(value: str | None) -> bytes:
    return b"null" if value is None else value.encode()


def _key_of_json(value: bytes) -> bytes:
    return _STRING.decode(value).encode() if value[:1] == b'"' else value
