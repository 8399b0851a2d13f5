"""The create time of records that are JSON: a field of theirs.

It is what the record says, by the clock of whoever wrote it. The log's time, by which retention goes, is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np

from l0gc.errors import UsageError
from l0gc.streamlog.ingest.optional import MAX_TIME_MS
from l0gc.streamlog.ingest.partitioner import Partitioner, PlacedRecords, bad_record

_OPTION: Final = "--timestamp-field"
_WRONG: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""What a record raises whose field is not a time."""


def with_times(spread: Partitioner, field: str) -> Partitioner:
    """The same placement, and each record's create time: a number of milliseconds since 1970, or a time as ISO 8601 has it,
    in UTC where it names no zone."""
    shape = msgspec.defstruct("Timed", [("time", int | float | datetime)], rename={"time": field}, gc=False)
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(shape)

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
                    times.append(_milliseconds(decoder.decode(record).time))
            except _WRONG as e:
                at = len(times)
                error = _bad(f"{name} line {before + at + 1}", field, records[at], e)
            n = len(times)
            return PlacedRecords(placed.partitions[:n], placed.keys[:n], error, np.array(times, np.int64))

        return timed

    return Partitioner(f"{spread.describe} timestamp={field}", start)


def _milliseconds(time: Any) -> int:
    if isinstance(time, datetime):
        time = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000
        time = round(time)
    if not 0 <= time <= MAX_TIME_MS:
        raise ValueError(f"{time} is not in the years 1970 to 9999")
    return int(time)


def _bad(line: str, field: str, record: bytes, e: Exception) -> UsageError:
    if type(e) is ValueError or f"$.{field}`" in str(e):
        takes = f"{_OPTION} takes milliseconds since 1970, or ISO 8601"
        return UsageError(f"{line} has a field {field!r} that is not a time ({e}): {takes}")
    return bad_record(line, _OPTION, field, record, e)
