"""Which rows of a source a query's filters leave, as far as they say it by topic, partition, offset or timestamp.

Filters on topic, partition and offset are done by the plan, exactly, so Spark need not look at their rows again. One on the
timestamp leaves out row groups of L1 that cannot have a row, and Spark looks at the others. Whatever is not understood stays
with Spark: a filter that is ignored here costs time, never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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

from l0gc.streamlog.level_one.chunks import Times

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

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Take what is understood; yields what Spark still has to apply."""
        for f in filters:
            if not self._take(f):
                yield f

    def _take(self, f: Filter) -> bool:
        """Take a filter; whether it is done with."""
        column: tuple[str, ...] = getattr(f, "attribute", ())
        if len(column) != 1:
            return False
        name = column[0].lower()
        if isinstance(f, IsNotNull):
            return name in _NEVER_NULL
        taker = _TAKERS.get(name)
        return taker is not None and taker(self, f)

    def _take_topic(self, f: Filter) -> bool:
        values = _values(f, str)
        if values is None:
            return False
        self.topics = values if self.topics is None else self.topics & values
        return True

    def _take_partition(self, f: Filter) -> bool:
        values, span = _values(f, int), _span(f, _whole)
        if values is not None:
            self.partitions = values if self.partitions is None else self.partitions & values
        elif span is not None:
            self.partition_span = _both(self.partition_span, span)
        return values is not None or span is not None

    def _take_offset(self, f: Filter) -> bool:
        values = _values(f, int)
        span = _span(f, _whole) if values is None else (min(values), max(values))
        if span is None:
            return False
        self.offsets = _both(self.offsets, span)
        return values is None or len(values) == 1

    def _take_timestamp(self, f: Filter) -> bool:
        span = _span(f, _milliseconds)
        if span is not None:
            self.times = Times(*_both((self.times.first, self.times.last), span))
        return False  # by row groups only


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
    if not isinstance(f, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    ends = ends_of(f.value)
    if ends is None:
        return None
    before, after = ends
    match f:
        case GreaterThan():
            return before + 1, _HIGHEST
        case GreaterThanOrEqual():
            return after, _HIGHEST
        case LessThan():
            return -_HIGHEST, after - 1
        case LessThanOrEqual():
            return -_HIGHEST, before
        case _:
            return after, before


def _both(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), min(a[1], b[1])


_TAKERS: Final[dict[str, Callable[[PushedFilters, Filter], bool]]] = {
    "topic": PushedFilters._take_topic,
    "partition": PushedFilters._take_partition,
    "offset": PushedFilters._take_offset,
    "timestamp": PushedFilters._take_timestamp,
}
