"""Which rows of a source a query's filters leave, as far as they say it by topic, partition, offset or timestamp.

Filters on topic, partition and offset are done by the plan, exactly, so Spark need not look at their rows again. One on the
timestamp leaves out row groups of L1 that cannot have a row, and Spark looks at the others. Whatever is not understood stays
with Spark: a filter that is ignored here costs time, never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from l0gc.streamlog.level_one.parquet import Times

_NEVER_NULL: Final = {"topic", "partition", "offset", "timestamp", "value", "epoch"}
_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_HIGHEST: Final = 2**62


@dataclass(slots=True)
class PushedFilters:
    """What the filters leave. `topics` and `partitions` are None for all; both ends of a span are included."""

    topics: set[str] | None = None
    partitions: set[int] | None = None
    partition_span: tuple[int, int] = (0, _HIGHEST)
    offsets: tuple[int, int] = (0, _HIGHEST)
    times: Times = field(default_factory=Times)

    def has(self, topic: str) -> bool:
        """Whether rows of a topic are left."""
        return self.topics is None or topic in self.topics

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take what is understood; returns what Spark still has to apply."""
        return [f for f in filters if not self._take(f)]

    def _take(self, f: Filter) -> bool:
        """Take a filter; whether it is done with."""
        column: tuple[str, ...] = getattr(f, "attribute", ())
        name = column[0].lower() if len(column) == 1 else ""
        if isinstance(f, IsNotNull):
            return name in _NEVER_NULL
        values = _values(f, str if name == "topic" else int)
        span = _span(f, _milliseconds if name == "timestamp" else _whole)
        match name:
            case "topic" if values:
                self.topics = values if self.topics is None else self.topics & values
            case "partition" if values:
                self.partitions = values if self.partitions is None else self.partitions & values
            case "partition" if span:
                self.partition_span = _both(self.partition_span, span)
            case "offset" if values:
                self.offsets = _both(self.offsets, (min(values), max(values)))
                return len(values) == 1
            case "offset" if span:
                self.offsets = _both(self.offsets, span)
            case "timestamp" if span:
                self.times = Times(*_both((self.times.first, self.times.last), span))
                return False  # by row groups only
            case _:
                return False
        return True


def _whole(value: Any) -> tuple[int, int] | None:
    return (value, value) if type(value) is int else None


def _milliseconds(value: Any) -> tuple[int, int] | None:
    """The last millisecond before or at a time with its zone, and the first one at or after it."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - _1970
    return since // _MS, -(-since // _MS)


def _values(f: Filter, kind: type) -> set[Any] | None:
    if isinstance(f, EqualTo | EqualNullSafe):
        values = [f.value]
    elif isinstance(f, In):
        values = [v for v in f.value if v is not None]  # no row equals null
    else:
        return None
    return set(values) if values and all(type(v) is kind for v in values) else None


def _span(f: Filter, ends_of: Callable[[Any], tuple[int, int] | None]) -> tuple[int, int] | None:
    """The span that a comparison leaves, given the whole numbers on both sides of a value."""
    leaves = _SPANS.get(type(f))
    ends = None if leaves is None else ends_of(f.value)  # type: ignore[attr-defined]  # every comparison has one
    return None if leaves is None or ends is None else leaves(*ends)


_SPANS: Final[dict[type[Filter], Callable[[int, int], tuple[int, int]]]] = {
    EqualTo: lambda before, after: (after, before),
    EqualNullSafe: lambda before, after: (after, before),
    GreaterThan: lambda before, after: (before + 1, _HIGHEST),
    GreaterThanOrEqual: lambda before, after: (after, _HIGHEST),
    LessThan: lambda before, after: (-_HIGHEST, after - 1),
    LessThanOrEqual: lambda before, after: (-_HIGHEST, before),
}


def _both(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), min(a[1], b[1])
