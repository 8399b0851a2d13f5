"""Reading a topic, a partition after another: each record once and in order.

`offset_reader.py` finds the records, and follows them if they move. Many partitions share the blocks of an
L0 object, and a small partition has small L1 objects. So consecutive partitions are read together, as many as fit the
memory: each block is fetched and decoded once, and small objects are fetched at once. A partition that is larger is read
alone, and its records are handed out as they come.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise, repeat
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from l0gc import columns
from l0gc.errors import CorruptObjectError, OffsetOutOfRangeError, RecordsLostError, UsageError
from l0gc.operations import Read
from l0gc.storage.parallel import CLOSED
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.controller.state import JournalRun, Pin, Topic
from l0gc.streamlog.ingest.headers_and_times import Record, headers_list, times_list
from l0gc.streamlog.ingest.inputs import LENGTH_BYTES
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import RANGE, Rows, places
from l0gc.streamlog.journal.topic import TopicState
from l0gc.streamlog.level_one.parquet import L1_FILE, RECORD, WHOLE_RECORD
from l0gc.streamlog.level_one.values import parser_of
from l0gc.streamlog.offset_reader import OffsetReader, Piece, as_rows, names_for
from l0gc.streamlog.topic_view import NEVER, TopicView, l0_bytes, look, topic_copy

WINDOW_BYTES: Final = 32 << 20
"""About so many bytes of records are held at once."""
ROWS: Final = 4096
"""The most records of a slice, of which Python objects are made."""
_MOST_BYTES: Final = 1 << 30
"""Partitions with more records than this are not read together: Arrow's offsets end at 2 GiB."""
_EXPANSION: Final = 8
"""Records take about so many times the bytes that they are stored in."""
_PARTITION_BYTES: Final = 512
"""What a partition takes however little is in it."""
_ALL: Final = Read()
_EXIT_S: Final = 10.0
"""How long Python's exit waits for a batch that is being read."""
_under_way: Final = WeakKeyDictionary[threading.Lock, int]()
"""A lock for each reader of batches, held while it reads one, and the process that has made it."""
_exiting: Final = threading.Event()


class RecordSlice(NamedTuple):
    """Consecutive records of a partition: the offset of the first, and the columns that were asked for."""

    partition: int
    base_offset: int
    batch: pa.RecordBatch


class RecordLines(NamedTuple):
    """Some consecutive records as lines, or each behind its length, and how many they are."""

    lines: bytes
    records: int


def read_topic(cluster: Handles, topic: Topic, wanted: Read = _ALL, *, pin: Pin | None = None) -> Iterator[Record]:
    """The records of a topic, one partition after another. See `read_pieces`."""
    for partition, base, batch in read_slices(cluster, topic, wanted, names=WHOLE_RECORD, pin=pin):
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
    cluster: Handles, topic: Topic, wanted: Read = _ALL, *, length_prefixed: bool = False, pin: Pin | None = None
) -> Iterator[RecordLines]:
    """The records of a topic as lines, or as an upload in format length-prefixed takes them. See `read_pieces`."""

    def together(values: Sequence[bytes]) -> RecordLines:
        if length_prefixed:
            parts = (part for v in values for part in (len(v).to_bytes(LENGTH_BYTES, "big"), v))
            return RecordLines(b"".join(parts), len(values))
        return RecordLines(b"\n".join(values) + b"\n", len(values))

    held = list[bytes]()
    for s in read_slices(cluster, topic, wanted, pin=pin):
        held += s.batch.column(2).to_pylist()
        if len(held) >= ROWS:
            yield together(held)
            held.clear()
    if held:
        yield together(held)


def schema_of(topic: Topic, names: Sequence[str] | None = None) -> pa.Schema:
    """The columns that a topic's records have, those of its value schema last; or only some, in the given order.

    Raises:
        UsageError: it does not have one of them.
    """
    typed = [] if topic.value_schema is None else parser_of(topic.value_schema).fields
    fields = {f.name: f for f in (*L1_FILE, *typed)}
    chosen = fields if names is None else dict.fromkeys(names or [""])
    for name in chosen:
        if name not in fields:
            raise UsageError(f"topic {topic.name!r} has no column {name!r}: name some of {', '.join(fields)}")
    return pa.schema([fields[name] for name in chosen])


def read_batches(
    cluster: Handles, topic: Topic, wanted: Read = _ALL, *, schema: pa.Schema, pin: Pin | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a topic with the columns of a schema, which `schema_of` gave. See `read_pieces`.

    Arrow's C++ code asks for each batch. A daemon thread that is below it when Python ends would abort the process, so
    Python's exit waits for the batch, and the next one is refused.
    """
    pieces = read_pieces(cluster, topic, wanted, names=names_for(schema), pin=pin)
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


def read_slices(
    cluster: Handles, topic: Topic, wanted: Read = _ALL, *, names: Sequence[str] = RECORD, pin: Pin | None = None
) -> Iterator[RecordSlice]:
    """The records of a topic, at most `ROWS` of one partition at once. See `read_pieces`."""
    for partitions, batch in read_pieces(cluster, topic, wanted, names=names, pin=pin):
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
    cluster: Handles, topic: Topic, wanted: Read = _ALL, *, names: Sequence[str], pin: Pin | None = None
) -> Iterator[Piece]:
    """The records of a topic in order of partition and offset, as far as its journals went when reading began; none is
    empty.

    Args:
        names: which columns of L1 are wanted, apart from the offset; an optional one is null if it is absent.
        pin: read as of it, whatever is deleted since.

    Raises:
        CorruptObjectError: an object does not hold what the journal says, or is missing while the journal still needs it.
        OffsetOutOfRangeError: the first offset is below a log start offset, or records were deleted before they could be
            read.
        PartitionClosedError: the topic was deleted.
        RecordsLostError: records were given up; those before them in their partition have come.
    """
    for reader in _readers(cluster, topic, wanted, pin):
        yield from reader.read(names)


def count_records(cluster: Handles, topic: Topic, wanted: Read = _ALL) -> int:
    """How many records `read_pieces` would read now, without reading them. Raises as it does."""
    return sum(reader.records for reader in _readers(cluster, topic, wanted))


def _readers(cluster: Handles, topic: Topic, wanted: Read, pin: Pin | None = None) -> list[_RunReader]:
    def caught_up(run: JournalRun) -> JournalHandle:
        number = run.journal
        journal = cluster.journal(number) if pin is None else cluster.journal_as_of(number, pin.end(number))
        journal.catch_up()
        return journal

    runs = [run for run in topic.runs() if wanted.partition is None or 0 <= wanted.partition - run.first < run.count]
    journals = cluster.parallel.map(caught_up, runs)
    return [_RunReader(cluster, topic, run, journal, wanted) for run, journal in zip(runs, journals, strict=True)]


def _at_time(view: TopicView, partitions: Rows, time_ms: int) -> Rows:
    """For each of some partitions the first record that is not older."""
    times = np.full(view.run.count, NEVER)
    times[partitions - view.run.first] = time_ms
    found: Rows = view.at_time(times)[partitions - view.run.first]
    return found


class _RunReader:
    """Reads those partitions of a topic that one journal keeps, up to where they end now."""

    def __init__(self, cluster: Handles, topic: Topic, run: JournalRun, journal: JournalHandle, wanted: Read) -> None:
        self._without_holes = "" if wanted.skip_holes else "--skip-holes"
        self._cluster, self._topic, self._start = cluster, topic, wanted.start
        self._journal = journal
        known = topic_copy(self._journal, topic)
        chosen = known.partitions[(known.partitions >= run.first) & (known.partitions < run.first + run.count)]
        chosen = chosen[(chosen == wanted.partition) | (wanted.partition is None)].astype(np.int64)

        def at_time(time_ms: int) -> Rows:
            return look(cluster, journal, topic, run, partial(_at_time, partitions=chosen, time_ms=time_ms))

        log_starts = starts = known.values(known.log_start, chosen, 0)
        if wanted.start is not None:
            starts = np.full(len(chosen), wanted.start, np.int64)
        if wanted.from_time_ms is not None:
            starts = np.maximum(at_time(wanted.from_time_ms), log_starts)
        for at in np.flatnonzero(starts < log_starts).tolist():
            raise self._out_of_range(int(chosen[at]), int(starts[at]), int(log_starts[at]))
        ends = known.values(known.next_offsets, chosen, 0)
        if wanted.before_offset is not None:
            ends = np.minimum(ends, wanted.before_offset)
        if wanted.before_time_ms is not None:
            ends = np.minimum(ends, at_time(wanted.before_time_ms))
        self._ranges = np.empty(int((ends > starts).sum()), RANGE)
        for name, column in (("partition", chosen), ("base", starts), ("last", ends - 1)):
            self._ranges[name] = column[ends > starts]
        self._costs = self._costs_of(known)

    @property
    def records(self) -> int:
        return int((self._ranges["last"] + 1 - self._ranges["base"]).sum())

    def _costs_of(self, known: TopicState) -> Rows:
        """About how much memory the records of each partition take."""
        partitions, starts, ends = self._ranges["partition"], self._ranges["base"], self._ranges["last"] + 1
        stored = l0_bytes(known, partitions, starts, ends)
        for rows in (known.l1, known.index) if len(partitions) else ():
            at, there = places(partitions, rows["partition"])
            mine = there & (rows["last"] >= starts[at]) & (rows["base"] < ends[at])
            np.add.at(stored, at[mine], rows["bytes"][mine].astype(np.float64))
        return _PARTITION_BYTES + _EXPANSION * stored

    def read(self, names: Sequence[str]) -> Iterator[Piece]:
        """The records, each once and in order, even if objects are moved or deleted during the read."""
        total = np.concatenate(([0.0], np.cumsum(self._costs)))
        first = 0
        while first < len(self._ranges):
            end = max(int(np.searchsorted(total, total[first] + WINDOW_BYTES, "right")) - 1, first + 1)
            yield from self._read(first, end, names)
            first = end

    def _read(self, first: int, end: int, names: Sequence[str]) -> Iterator[Piece]:
        """The records of some partitions: of one as they come, of several once all of them are here."""
        if end - first == 1:
            yield from self._pieces(first, end, names)
            return
        held = self._held(first, end, names)
        if held is not None:
            if held:
                yield _in_order(held)
            return
        middle = (first + end) // 2
        yield from self._read(first, middle, names)
        yield from self._read(middle, end, names)

    def _held(self, first: int, end: int, names: Sequence[str]) -> list[Piece] | None:
        """The records of some partitions; None if they are too many, or if something is wrong with one of them: what lies
        before it is read first."""
        held, size = list[Piece](), 0
        with suppress(CorruptObjectError, OffsetOutOfRangeError, RecordsLostError):
            for piece in self._pieces(first, end, names):
                held.append(piece)
                size += piece.batch.nbytes
                if size > _MOST_BYTES:
                    return None
            return held
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
        if begun or self._start is not None:
            raise self._out_of_range(partition, offset, log_start)

    def _out_of_range(self, partition: int, offset: int, log_start: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"record {offset} of partition {self._topic.name}/{partition} was deleted; the first one that is there has "
            f"offset {log_start}"
        )


def _in_order(pieces: Sequence[Piece]) -> Piece:
    """All records in order of partition and offset."""
    partitions = np.concatenate([np.broadcast_to(p.partition, p.batch.num_rows) for p in pieces])
    batch = pieces[0].batch
    if len(pieces) > 1:
        batch = pa.Table.from_batches([p.batch for p in pieces]).combine_chunks().to_batches()[0]
    if (partitions[1:] < partitions[:-1]).any():
        order = np.argsort(partitions, kind="stable")  # those of one partition come in the order of their offsets
        partitions, batch = partitions[order], batch.take(columns.numbers(order))
    return Piece(partitions, batch)
