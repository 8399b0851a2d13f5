"""Read a topic, one partition after another: each record once and in order.

`offset_reader.py` finds the records, and follows objects that are replaced. Partitions share the blocks of L0 objects, and
small ones have small L1 objects. So consecutive partitions are read together, as many as fit the memory: each block is
fetched and decoded once, and small objects are fetched at once. A larger partition is read alone, as a stream.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise, repeat
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from l0gc import columns
from l0gc.errors import CorruptObjectError, NotFoundError, OffsetOutOfRangeError, RecordsLostError, UsageError
from l0gc.operations import LENGTH_BYTES, Read
from l0gc.storage.parallel import CLOSED
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import PartitionRange, Pin, Topic
from l0gc.streamlog.ingest.headers_and_times import Record, headers_list, times_list
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import RANGE, Rows, indices_in
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.parquet import L1_FILE, WHOLE_RECORD
from l0gc.streamlog.offset_reader import OffsetReader, Piece, as_rows
from l0gc.streamlog.topic_view import NEVER, TopicView, l0_bytes, look, topic_copy
from l0gc.streamlog.values.parse import parser_of

WINDOW_BYTES: Final = 32 << 20
"""About how many bytes of records are held in memory at once."""
ROWS: Final = 4096
"""The most records of a slice; they become Python objects."""
_MOST_BYTES: Final = 1 << 30
"""Partitions with more records than this are not read together: Arrow's offsets end at 2 GiB."""
_EXPANSION: Final = 8
"""Records in memory take about this many times their stored bytes."""
_PARTITION_BYTES: Final = 512
"""The fewest bytes that a partition takes in memory, however few records it has."""
_ALL: Final = Read()
_NOTHING: Final = columns.scalar(b"")
_NEWLINE: Final = columns.scalar(b"\n")
_EXIT_S: Final = 10.0
"""How long Python's exit waits for a batch that is being read."""
_under_way: Final = WeakKeyDictionary[threading.Lock, int]()
"""The lock of each reader of batches, held while it reads one, and the process that created it."""
_exiting: Final = threading.Event()


class RecordSlice(NamedTuple):
    """Consecutive records of a partition: the first one's offset, and the requested columns."""

    partition: int
    base_offset: int
    batch: pa.RecordBatch


class RecordLines(NamedTuple):
    """Some consecutive records, as lines or each preceded by its length, and their number."""

    lines: bytes
    records: int


def read_topic(
    cluster: ClusterHandles, topic: Topic, options: Read = _ALL, *, pin: Pin | None = None
) -> Iterator[Record]:
    """Yield a topic's records, one partition after another. See `read_pieces`."""
    return as_records(read_pieces(cluster, topic, options, names=WHOLE_RECORD, pin=pin))


def as_records(pieces: Iterable[Piece]) -> Iterator[Record]:
    """Yield each record of pieces that have the columns of `WHOLE_RECORD`."""
    for partition, base, batch in slices_of(pieces, WHOLE_RECORD):
        n, (times, keys, values, created, headers) = batch.num_rows, (batch.column(name) for name in WHOLE_RECORD)
        rows = zip(
            values.to_pylist(),
            keys.to_pylist(),
            repeat((), n) if headers.null_count == n else headers_list(headers),
            repeat(None, n) if created.null_count == n else times_list(created),
            columns.raw(times).cast("q"),
            strict=True,
        )
        for offset, (value, key, of_record, time_ms, at_ms) in enumerate(rows, base):
            yield Record(value, key, of_record, time_ms, partition, offset, at_ms)


def read_record_lines(
    cluster: ClusterHandles,
    topic: Topic,
    options: Read = _ALL,
    *,
    length_prefixed: bool = False,
    pin: Pin | None = None,
) -> Iterator[RecordLines]:
    """Yield the records of a topic as lines, or in the form that an upload in format length-prefixed accepts. See
    `read_pieces`.
    """

    def lines_of(piece: Piece) -> RecordLines:
        return RecordLines(framed(piece.batch.column("value"), length_prefixed=length_prefixed), piece.batch.num_rows)

    lines, records = list[bytes](), 0
    pieces = read_pieces(cluster, topic, options, names=("value",), pin=pin)
    for part in cluster.parallel.compute_ahead(lines_of, pieces, lambda piece: piece.batch.num_rows >= ROWS):
        lines.append(part.lines)
        records += part.records
        if records >= ROWS:
            yield RecordLines(b"".join(lines), records)
            lines, records = [], 0
    if lines:
        yield RecordLines(b"".join(lines), records)


def framed(values: pa.Array, *, length_prefixed: bool) -> bytes:
    """Return some values, none of them null, as lines or each preceded by its length, without a Python object for each."""
    if length_prefixed:
        sizes = columns.lengths(values).astype(f">u{LENGTH_BYTES}")
        lengths = pa.Array.from_buffers(pa.binary(LENGTH_BYTES), len(sizes), [None, pa.py_buffer(sizes)])
        joined = pc.binary_join_element_wise(lengths.cast(pa.binary()), values, _NOTHING)
    else:
        joined = pc.binary_join_element_wise(values, _NOTHING, _NEWLINE)
    return bytes(columns.uncut(joined)[1])


def schema_of(topic: Topic, names: Sequence[str] | None = None) -> pa.Schema:
    """Return the columns of a topic's records, those of its value schema last, or only the named ones, in the given order.

    Raises:
        UsageError: the topic has no such column.
    """
    typed = [] if topic.value_schema is None else parser_of(topic.value_schema).fields
    fields = {f.name: f for f in (*L1_FILE, *typed)}
    chosen = fields if names is None else dict.fromkeys(names or [""])
    for name in chosen:
        if name not in fields:
            raise UsageError(f"topic {topic.name!r} has no column {name!r}: name some of {', '.join(fields)}")
    return pa.schema([fields[name] for name in chosen])


def read_batches(
    cluster: ClusterHandles, topic: Topic, options: Read = _ALL, *, schema: pa.Schema, pin: Pin | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a topic's records in batches with the columns of a schema from `schema_of`. See `read_pieces`.

    Arrow's C++ code asks for each batch. A daemon thread in that code would abort the process when Python ends, so
    Python's exit waits for the current batch, and the next one is refused.
    """
    pieces = read_pieces(cluster, topic, options, names=schema.names, pin=pin)
    lock = threading.Lock()
    _under_way[lock] = os.getpid()
    while True:
        with lock:
            if _exiting.is_set():
                raise UsageError(CLOSED)
            piece = next(pieces, None)
        if piece is None:
            return
        yield as_rows(topic, piece, schema)


@atexit.register
def _await_batches() -> None:
    _exiting.set()
    for lock, process in list(_under_way.items()):
        if process == os.getpid() and lock.acquire(timeout=_EXIT_S):
            lock.release()


def slices_of(pieces: Iterable[Piece], names: Sequence[str]) -> Iterator[RecordSlice]:
    """Yield the records of pieces with these columns, at most `ROWS` of one partition at once."""
    for partitions, batch in pieces:
        partition_of = np.broadcast_to(partitions, batch.num_rows)
        offsets = np.frombuffer(columns.raw(batch.column("offset")), np.int64)
        records = batch.select(names)
        jumps = (partition_of[1:] != partition_of[:-1]) | (offsets[1:] != offsets[:-1] + 1)
        firsts = np.flatnonzero(np.concatenate(([True], jumps))).tolist()
        for first, end in pairwise([*firsts, batch.num_rows]):
            for at in range(first, end, ROWS):
                part = records.slice(at, min(ROWS, end - at))
                yield RecordSlice(int(partition_of[at]), int(offsets[at]), part)


def read_pieces(
    cluster: ClusterHandles, topic: Topic, options: Read = _ALL, *, names: Sequence[str], pin: Pin | None = None
) -> Iterator[Piece]:
    """Yield a topic's records in order of partition and offset, up to the ends of its journals at the beginning; no piece
    is empty.

    Args:
        names: the requested columns of L1 besides the offset; an absent optional one is null.
        pin: read as of this pin, including records that were deleted after it.

    Raises:
        CorruptObjectError: an object differs from the journal's record, or is missing while the journal still needs it.
        NotFoundError: the topic's id differs from the requested one.
        OffsetOutOfRangeError: the first offset is below a log start offset or above a next offset, or records were deleted
            before they could be read.
        PartitionClosedError: the topic was deleted.
        RecordsLostError: records were given up; those before them in their partition were yielded.
    """
    for reader in journal_readers(cluster, topic, options, pin):
        yield from reader.read(names)


def count_records(cluster: ClusterHandles, topic: Topic, options: Read = _ALL) -> int:
    """Return how many records `read_pieces` would read now, without reading them. Raises the same errors."""
    return sum(reader.records for reader in journal_readers(cluster, topic, options))


def journal_readers(
    cluster: ClusterHandles, topic: Topic, options: Read, pin: Pin | None = None
) -> list[JournalReader]:
    """Look at each journal of a topic once, and return a reader of the requested partitions that it keeps.

    Raises as `read_pieces`.
    """
    if options.topic_id not in (None, topic.topic_id):
        raise NotFoundError(
            f"topic {topic.name!r} has the id {topic.topic_id}, not {options.topic_id}: it was deleted and created again, "
            "so earlier offsets mean other records; begin at its first record, with the new id"
        )

    def caught_up(partition_range: PartitionRange) -> JournalHandle:
        number = partition_range.journal
        journal = cluster.journal(number) if pin is None else cluster.journal_as_of(number, pin.end(number))
        journal.catch_up()
        return journal

    partition, ranges = options.partition, topic.partition_ranges()
    ranges = [r for r in ranges if partition is None or r.first <= partition < r.end]
    journals = cluster.parallel.map(caught_up, ranges)
    return [JournalReader(cluster, topic, r, journal, options) for r, journal in zip(ranges, journals, strict=True)]


def _at_time(view: TopicView, partitions: Rows, time_ms: int, *, is_end: bool) -> Rows:
    """Return, for each of some partitions, the first record of this time or later."""
    times = np.full(view.range.count, NEVER)
    times[partitions - view.range.first] = time_ms
    offsets: Rows = view.at_time(times, after_hole=is_end)[partitions - view.range.first]
    return offsets


def _given_starts(options: Read, partitions: Rows) -> Rows:
    """Return the requested first offset of each partition; -1 if none was given."""
    if isinstance(options.start, dict):
        return np.fromiter((options.start.get(p, -1) for p in partitions.tolist()), np.int64, len(partitions))
    return np.full(len(partitions), -1 if options.start is None else options.start, np.int64)


class JournalReader:
    """Reads the requested partitions of a topic that one journal keeps, up to their present ends.

    Attributes:
        partitions: the requested partitions, including those without records.
        starts, ends: the offset of each partition's first record, and the offset after its last record.
    """

    def __init__(
        self,
        cluster: ClusterHandles,
        topic: Topic,
        partition_range: PartitionRange,
        journal: JournalHandle,
        options: Read,
    ) -> None:
        self._without_holes = "" if options.skip_holes else "--skip-holes"
        self._cluster, self._topic, self._journal = cluster, topic, journal
        copy = topic_copy(self._journal, topic)
        chosen = np.arange(partition_range.first, partition_range.end)
        chosen = chosen[(chosen == options.partition) | (options.partition is None)]

        def at_time(time_ms: int, *, is_end: bool) -> Rows:
            ask = partial(_at_time, partitions=chosen, time_ms=time_ms, is_end=is_end)
            return look(cluster, journal, topic, partition_range, ask)

        log_starts, given = copy.values(copy.log_start, chosen, 0), _given_starts(options, chosen)
        starts = np.where(given < 0, log_starts, given)
        if options.from_time_ms is not None:
            starts = np.maximum(at_time(options.from_time_ms, is_end=False), log_starts)
        for at in np.flatnonzero(starts < log_starts).tolist():
            raise self._out_of_range(int(chosen[at]), int(starts[at]), int(log_starts[at]))
        ends = copy.values(copy.next_offsets, chosen, 0)
        for at in np.flatnonzero(ends < given).tolist():
            raise OffsetOutOfRangeError(
                f"partition {topic.name}/{chosen[at]} has no record {given[at]} yet: its next one will have offset "
                f"{ends[at]}; begin at an offset up to that or, if the topic was created again, at its first record"
            )
        self._begins_as_asked = {*chosen[given >= 0].tolist()}
        if options.before_offset is not None:
            ends = np.minimum(ends, options.before_offset)
        if options.before_time_ms is not None:
            ends = np.minimum(ends, at_time(options.before_time_ms, is_end=True))
        self.partitions, self.starts, self.ends = chosen, starts, np.maximum(starts, ends)
        self._ranges = np.empty(int((ends > starts).sum()), RANGE)
        for name, column in (("partition", chosen), ("base", starts), ("last", ends - 1)):
            self._ranges[name] = column[ends > starts]
        self._costs = self._costs_of(copy)

    @property
    def records(self) -> int:
        return int((self._ranges["last"] + 1 - self._ranges["base"]).sum())

    def _costs_of(self, copy: TopicState) -> Rows:
        """Estimate how much memory each partition's records take."""
        partitions, starts, ends = self._ranges["partition"], self._ranges["base"], self._ranges["last"] + 1
        stored = l0_bytes(copy, partitions, starts, ends)
        if len(partitions):
            rows = copy.all_rows()
            at, is_chosen = indices_in(partitions, rows["partition"])
            in_range = is_chosen & (rows["last"] >= starts[at]) & (rows["base"] < ends[at])
            np.add.at(stored, at[in_range], rows["bytes"][in_range].astype(np.float64))
        return _PARTITION_BYTES + _EXPANSION * stored

    def read(self, names: Sequence[str]) -> Iterator[Piece]:
        """Yield the records, each once and in order, even if objects are moved or deleted during the read."""
        total = np.concatenate(([0.0], np.cumsum(self._costs)))
        first = 0
        while first < len(self._ranges):
            end = max(int(np.searchsorted(total, total[first] + WINDOW_BYTES, "right")) - 1, first + 1)
            yield from self._read(first, end, names)
            first = end

    def _read(self, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        """Yield the records of some partitions: those of one as a stream, those of several once all are in memory."""
        if end - first == 1:
            yield from self._pieces(first, end, names)
            return
        pieces = self._held(first, end, names)
        if pieces is not None:
            if pieces:
                yield _in_order(pieces)
            return
        middle = (first + end) // 2
        yield from self._read(first, middle, names)
        yield from self._read(middle, end, names)

    def _held(self, first: int, end: int, names: Sequence[str]) -> list[Piece] | None:
        """Return the records of some partitions; None if there are too many, or if one fails; fewer are then read at
        once.
        """
        pieces, size = list[Piece](), 0
        with suppress(CorruptObjectError, OffsetOutOfRangeError, RecordsLostError):
            for piece in self._pieces(first, end, names):
                pieces.append(piece)
                size += piece.batch.nbytes
                if size > _MOST_BYTES:
                    return None
            return pieces
        return None

    def _pieces(self, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        return OffsetReader(
            self._cluster,
            self._journal,
            self._topic,
            self._ranges[first:end],
            self._on_deleted,
            names=names,
            parallel=self._cluster.parallel,
            without_holes=self._without_holes,
        ).read()

    def _on_deleted(self, partition: int, offset: int, end: int, log_start: int, *, begun: bool) -> None:
        if begun or partition in self._begins_as_asked:
            raise self._out_of_range(partition, offset, log_start)

    def _out_of_range(self, partition: int, offset: int, log_start: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"record {offset} of partition {self._topic.name}/{partition} was deleted; the first record that is left has "
            f"offset {log_start}"
        )


def _in_order(pieces: Sequence[Piece]) -> Piece:
    """Return all records in order of partition and offset."""
    partitions = np.concatenate([np.broadcast_to(p.partition, p.batch.num_rows) for p in pieces])
    batch = pieces[0].batch
    if len(pieces) > 1:
        batch = pa.Table.from_batches([p.batch for p in pieces]).combine_chunks().to_batches()[0]
    if (partitions[1:] < partitions[:-1]).any():
        order = np.argsort(partitions, kind="stable")  # the records of one partition already are in order of offset
        partitions, batch = partitions[order], batch.take(columns.numbers(order))
    return Piece(partitions, batch)
