"""Which partition a record goes to, and what its key is: by a field, fixed, or in turn.

Deterministic in the record and its position, so that a repeated upload spreads the same input in the same way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from l0gc.errors import BadRecordError, UsageError

_CACHED_KEYS: Final = 100_000

_STRING: Final = msgspec.json.Decoder(str)

Placed = tuple[int, bytes | None]
"""A partition, and the record's key."""


class Partitioner(Protocol):
    """Places records."""

    def describe(self) -> str:
        """What the placement depends on besides the records; part of an input's identity."""
        ...

    def start(self, name: str) -> Callable[[bytes], Placed]:
        """A function that places the records of the input `name`, one after another. It raises `BadRecordError`."""
        ...


class FixedPartition:
    """Everything to one partition, without keys."""

    def __init__(self, partition: int, partitions: int) -> None:
        if not 0 <= partition < partitions:
            raise UsageError(f"partition {partition} is out of range: the topic has partitions 0 to {partitions - 1}")
        self._partition = partition

    def describe(self) -> str:
        return f"partition={self._partition}"

    def start(self, name: str) -> Callable[[bytes], Placed]:
        placed: Placed = (self._partition, None)
        return lambda line: placed


class InTurn:
    """One record to each partition in turn, without keys."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def describe(self) -> str:
        return f"in-turn/{self._partitions}"

    def start(self, name: str) -> Callable[[bytes], Placed]:
        turn = iter(range(1 << 62))
        return lambda line: (next(turn) % self._partitions, None)


class ByField:
    """By the CRC32 of a field of the JSON record, which also becomes its key (a string's text, any other value's JSON)."""

    def __init__(self, field: str, partitions: int) -> None:
        self._field, self._partitions = field, partitions
        shape = msgspec.defstruct("Keyed", [("key", msgspec.Raw)], rename={"key": field})
        self._decoder = msgspec.json.Decoder(shape)

    def describe(self) -> str:
        return f"field={self._field}/{self._partitions}"

    def start(self, name: str) -> Callable[[bytes], Placed]:
        decode, cache = self._decoder.decode, dict[bytes, Placed]()
        number = 0

        def place(line: bytes) -> Placed:
            nonlocal number
            number += 1
            try:
                raw = bytes(decode(line).key)  # type: ignore[attr-defined]
                placed = cache.get(raw)
                if placed is None:
                    key = _text(raw)
                    placed = (zlib.crc32(key) % self._partitions, key)
                    if len(cache) < _CACHED_KEYS:
                        cache[raw] = placed
                return placed
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
                raise self._bad(name, number, e) from e

        return place

    def _bad(self, name: str, number: int, e: Exception) -> BadRecordError:
        if isinstance(e, msgspec.ValidationError) and "missing required field" in str(e):
            return BadRecordError(f"{name} line {number} has no field {self._field!r}, which --key-field asks for")
        return BadRecordError(f"{name} line {number} is not a JSON object ({e}), which --key-field needs")


def _text(raw: bytes) -> bytes:
    return _STRING.decode(raw).encode() if raw[:1] == b'"' else raw
