"""Decide which records go into one L0 object, and which records of a repeated input have already landed.

A journal counts an input's records for its own partitions, in the order of the input. Those that have landed are always
the first ones, since nothing lands after a record that has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np
import pyarrow as pa

from l0gc import columns
from l0gc.streamlog.ingest.extents import RECORD_OVERHEAD, Records, check_records
from l0gc.streamlog.ingest.headers_and_times import NO_TIME, Headers, headers_column
from l0gc.streamlog.ingest.placement import PlacedRecords
from l0gc.streamlog.journal.producers import InputSpan
from l0gc.streamlog.journal.rows import Rows


class JournalIndex:
    """Finds the journal of each partition, as an index into the topic's journals. `ends` has, for each journal, the
    partition after its last one.
    """

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends = np.array(ends, np.int64)

    def of(self, partitions: Rows) -> Rows:
        return np.searchsorted(self.ends, partitions, "right")

    def counts(self, partitions: Rows) -> list[int]:
        """Return, for records in these partitions, how many belong to each journal."""
        if len(self.ends) == 1:
            return [len(partitions)]
        counts: list[int] = np.bincount(self.of(partitions), minlength=len(self.ends)).tolist()
        return counts


class Position:
    """How far an identified input has been read, by journal. `landed` is how many of its records had already landed in
    each journal.
    """

    def __init__(self, input_id: str, journals: JournalIndex, landed: Sequence[int]) -> None:
        self._input_id, self._journals = input_id, journals
        self._landed = list(landed)
        self._seen = [0] * len(landed)
        self._next = list(landed)

    def not_landed(self, partitions: Rows) -> Rows | None:
        """Return the indices of the input's next records that have not landed before; None means all."""
        counts = self._journals.counts(partitions)
        before, self._seen = self._seen, [a + b for a, b in zip(self._seen, counts, strict=True)]
        if all(seen >= landed for seen, landed in zip(before, self._landed, strict=True)):
            return None
        new = np.zeros(len(partitions), np.bool_)
        journals = self._journals.of(partitions)
        for journal, (seen, landed) in enumerate(zip(before, self._landed, strict=True)):
            new[np.flatnonzero(journals == journal)[max(0, landed - seen) :]] = True
        return np.flatnonzero(new)

    def spans(self, partitions: Rows) -> list[InputSpan | None]:
        """Return the span of these records in each journal; they are the next ones that have not landed before."""
        spans: list[InputSpan | None] = []
        for journal, n in enumerate(self._journals.counts(partitions)):
            start = self._next[journal]
            self._next[journal] = start + n
            spans.append(InputSpan(self._input_id, start, start + n) if n else None)
        return spans


@dataclass(slots=True)
class Batch:
    """Records of one L0 object, in the order of the input, and the spans of inputs that they cover in each journal."""

    spans: list[list[InputSpan]]
    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    partitions: list[Rows] = field(default_factory=list)
    sizes: list[Rows] = field(default_factory=list)
    times: list[Rows | None] = field(default_factory=list)
    headers: list[Sequence[Headers] | None] = field(default_factory=list)
    """Create times and headers, if the records have them."""
    size: int = 0

    def add_spans(self, spans: Sequence[InputSpan | None]) -> None:
        """Set the spans of the records that are added next."""
        for merged, span in zip(self.spans, spans, strict=True):
            if span is None:
                continue
            if merged and merged[-1].input_id == span.input_id:
                merged[-1] = InputSpan(span.input_id, merged[-1].start, span.end)
            else:
                merged.append(span)

    def sorted(self) -> Records:
        """Return the records sorted by partition, in input order within each."""
        partitions = np.concatenate(self.partitions)
        order = np.argsort(partitions, kind="stable")
        in_order = columns.cut(np.concatenate(self.sizes), pa.py_buffer(b"".join(self.values)))
        sizes, values = columns.uncut(in_order.take(columns.numbers(order)))
        at: list[int] = order.tolist()
        keys = [*map(self.keys.__getitem__, at)]
        times = headers = None
        if any(t is not None for t in self.times):
            every = [np.full(len(s), NO_TIME) if t is None else t for t, s in zip(self.times, self.sizes, strict=True)]
            times = np.concatenate(every)[order]
        if any(h is not None for h in self.headers):
            by_batch = (repeat((), len(s)) if h is None else h for h, s in zip(self.headers, self.sizes, strict=True))
            headers = headers_column(map([*chain.from_iterable(by_batch)].__getitem__, at))
        return Records(partitions[order], sizes, values, keys, times, headers)


class BatchBuilder:
    """Fills batches with records, up to `batch_bytes` each."""

    def __init__(self, journals: JournalIndex, batch_bytes: int) -> None:
        self._journals, self._batch_bytes = journals, batch_bytes
        self.batch = self._empty()

    def _empty(self) -> Batch:
        return Batch([[] for _ in self._journals.ends])

    def add(self, values: Sequence[bytes], placed: PlacedRecords, position: Position | None) -> Iterator[Batch]:
        """Add records; yield the batches that they fill. Raises `UsageError` if one of them is too long."""
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        whole = sizes if placed.more is None else sizes + placed.more
        check_records(whole)
        ends = np.cumsum(whole + RECORD_OVERHEAD)
        first, before = 0, 0
        while first < len(values):
            batch = self.batch
            reached = int(np.searchsorted(ends, before + self._batch_bytes - batch.size)) + 1
            end = min(reached, len(values))
            partitions = placed.partitions[first:end]
            batch.values += values[first:end]
            batch.keys += placed.keys[first:end]
            batch.partitions.append(partitions)
            batch.sizes.append(sizes[first:end])
            batch.times.append(None if placed.times is None else placed.times[first:end])
            batch.headers.append(None if placed.headers is None else placed.headers[first:end])
            if position is not None:
                batch.add_spans(position.spans(partitions))
            batch.size += int(ends[end - 1]) - before
            first, before = end, int(ends[end - 1])
            if reached == end:
                yield self.take()

    def take(self) -> Batch:
        batch, self.batch = self.batch, self._empty()
        return batch
