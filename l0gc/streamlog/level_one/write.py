"""Turn records in columns into L1 objects, for the writers of a reconcile.

A writer gets all records that the round took from its partitions, in any order, and twice if Spark repeated a task. It
writes consecutive records; at the first missing or damaged record, a partition is finished for this round. An object is
checked for consecutive offsets, uploaded as a whole, and named only after that, so all objects that a writer returns are
durable (hazard 9).
"""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby, pairwise, takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from l0gc import columns
from l0gc.errors import CorruptObjectError
from l0gc.keys import PartitionId, level_one
from l0gc.runtime import Runtime, temporary_folder
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel, grouped
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.controller.value_schema import VALUE_ERROR, ValueSchema
from l0gc.streamlog.ingest.extents import RECORD_OVERHEAD
from l0gc.streamlog.ingest.headers_and_times import OPTIONAL, column_of, header_bytes, level, with_optional
from l0gc.streamlog.journal.rows import L1_ROW, MAX_OFFSET, MISFITS, NUMBER, Rows, distinct, in_order, name_bytes
from l0gc.streamlog.journal.shared import SharedObject
from l0gc.streamlog.journal.topic import l1_file, shared_key
from l0gc.streamlog.level_one.hashes import Hashes
from l0gc.streamlog.level_one.parquet import (
    KEY_METADATA,
    L1_FILE,
    L1_SCHEMA,
    PARTITION,
    SCHEMA_METADATA,
    read_body,
    seal_footer,
)
from l0gc.streamlog.level_one.plan import Fault
from l0gc.streamlog.level_one.read import ROWS, Row
from l0gc.streamlog.level_one.share import MOST_BYTES, MOST_PARTITIONS, shared_object, which_share
from l0gc.streamlog.values.parse import ValueParser, parser_of

FILE_BYTES: Final = 128 << 20
"""The uncompressed size of its records at which an L1 object is closed and the next one begun."""
HELD_BYTES: Final = 64 << 20
"""How many bytes of records are held in memory; the others are in mapped files on local disk."""
_ROW_GROUP_BYTES: Final = 4 << 20
"""The uncompressed bytes of a row group. A reader of a few records reads a whole group, and each group costs 0.5 KiB of
footer.
"""
_TOGETHER: Final = 4
"""How many row groups are written at once. An L1 object with fewer is built in memory, any other on local disk."""
_TASK_BYTES: Final = 4 << 20
"""About how many bytes of small partitions' records are written one after another on one core."""
_PART_BYTES: Final = 8 << 20
"""The most bytes of a file that its upload holds in memory."""
_SHARED: Final = frozenset({"timestamp", "key", "value", "epoch", *OPTIONAL.names})
"""The columns of the records of a shared object."""
_OF_HEADERS: Final = ("headers.list.element.key", "headers.list.element.value")
_PARQUET: Final[Mapping[str, Any]] = {
    # Consecutive numbers take a few bytes as differences, and a reader needs time to begin each compressed page.
    "compression": {c: "none" if c == "offset" else "zstd" for c in (*L1_SCHEMA.names, "create_time", *_OF_HEADERS)},
    "column_encoding": {"offset": "DELTA_BINARY_PACKED"},
    "use_dictionary": ["key", "epoch", "partition", "timestamp", *_OF_HEADERS],
    "write_statistics": [
        "offset",
        "timestamp",
        "epoch",
        "create_time",
    ],  # statistics of these columns would repeat whole records
    "store_schema": False,  # Parquet's own schema suffices
    "write_page_checksum": True,
}


def _parquet(values: ValueParser | None) -> Mapping[str, Any]:
    """Return the settings for writing a file: typed columns have a dictionary, statistics and compression."""
    if values is None:
        return _PARQUET
    compression = _PARQUET["compression"] | dict.fromkeys(values.paths, "zstd")
    lists = {name: [*_PARQUET[name], *values.paths] for name in ("use_dictionary", "write_statistics")}
    return {**_PARQUET, "compression": compression, **lists}


_PIECE: Final = np.dtype(
    [
        ("revision", "<i8"),
        ("base", "<i8"),
        ("journal", "<i4"),
        ("partition", "<i4"),
        ("records", "<i4"),
        ("batch", "<i4"),
        ("row", "<i4"),
    ]
)
"""Records at consecutive offsets of a partition, from a row of a batch on. A round may have millions of such pieces."""


Made: TypeAlias = tuple[str, bytes | Path]
"""The key of an L1 object to upload, and its content, which is a file on local disk if it is large."""


@dataclass(slots=True)
class WrittenL1:
    """A writer's objects, all durable, by (journal, revision).

    Attributes:
        files: rows of `L1_ROW`, in order of partition and offset.
        faults: the records that could not be written, and why.
        misfits: rows of `MISFITS` for the records whose values do not fit their topic's schema, in order of partition.
        shared: shared objects.
    """

    files: dict[tuple[int, int], Rows] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    misfits: dict[tuple[int, int], Rows] = field(default_factory=dict)
    shared: dict[tuple[int, int], list[SharedObject]] = field(default_factory=dict)


@dataclass(slots=True)
class _Written:
    """The results of a task for one topic in one journal; `made` are the objects to upload."""

    topic: tuple[int, int]
    records: int
    made: list[Made] = field(default_factory=list)
    files: list[tuple[object, ...]] = field(default_factory=list)
    shared: list[SharedObject] = field(default_factory=list)
    misfits: list[tuple[int, int]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def write_l1(
    store: ObjectStore,
    topics: Mapping[int, Topic],
    epoch: int,
    arriving: Iterable[Row],
    runtime: Runtime,
    parallel: Parallel,
    held_bytes: int = HELD_BYTES,
    *,
    alone: Container[int] = (),
    drains: bool = False,
    wrote: Callable[[int], object] = lambda _: None,
    begin: Callable[[], threading.Event] = threading.Event,
) -> WrittenL1:
    """Write the records that all readers' `read_rows` sent to this writer as L1 objects.

    Args:
        alone: the revisions of topics whose partitions do not share objects.
        drains: whether the records come from shared objects. If so, no partition shares objects, each run of consecutive
            records gets separate objects, and these are read back before they are uploaded.
        wrote: called with the number of records that were added to objects, most of which are durable.
        begin: called before the first object is written. Once the event that it returns is set, no more partitions are
            begun; those already written can be committed without the others.

    Raises:
        StoreError: the store does not answer, or refuses access.
        CorruptObjectError: a partition's records are not consecutive.
    """
    with temporary_folder("l1") as directory, _BatchStore(directory, held_bytes) as stored:
        faults: list[Fault] = []
        arrived = [np.empty(0, _PIECE)]
        for batch in arriving:
            if isinstance(batch, Fault):
                faults.append(batch)
            elif batch.num_rows:
                arrived.append(pieces_of(batch, stored.add(batch)))
        batches = stored.all()
        work = _Work(
            topics, epoch, runtime, directory, batches, np.array(stored.widths), _limits(faults),
            topics.keys() if drains else alone, drains,
        )  # fmt: skip
        done: list[_Written] = []
        stop = begin()

        def made() -> Iterator[Made]:
            tasks = takewhile(lambda _: not stop.is_set(), work.tasks(arrived))
            for group in parallel.compute_ahead(work.run, tasks):
                for written in group:
                    yield from written.made
                    written.made = []
                    done.append(written)
                wrote(sum(written.records for written in group))

        upload_l1(store, made(), parallel)
    return _joined(done, faults)


class _Task(NamedTuple):
    """Pieces of some partitions of a topic in one journal, in order, and whether they share an object."""

    pieces: Rows
    shares: bool


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of one writer, which its tasks do on all cores; see `write_l1`."""

    topics: Mapping[int, Topic]
    epoch: int
    runtime: Runtime
    directory: Path
    batches: Sequence[pa.RecordBatch]
    widths: Rows
    limits: Mapping[tuple[int, int], int]
    alone: Container[int]
    drains: bool

    def tasks(self, arrived: list[Rows]) -> Iterator[_Task]:
        """Yield the work on the pieces that arrived, and empty their list, since they take much memory."""
        pieces = np.concatenate(arrived)
        arrived.clear()
        if not len(pieces):
            return
        ordered = pieces[np.lexsort((pieces["base"], pieces["partition"], pieces["revision"]))]
        del pieces
        changes = (ordered[name][1:] != ordered[name][:-1] for name in ("revision", "partition"))
        firsts = np.flatnonzero(np.r_[True, np.logical_or(*changes)])
        weights = np.add.reduceat(ordered["records"] * self.widths[ordered["batch"]], firsts).astype(np.int64)
        journals, revisions = ordered["journal"][firsts], ordered["revision"][firsts]
        shares = which_share(journals, revisions, weights, self.alone)
        ends = np.r_[firsts[1:], len(ordered)]
        for together, most in ((True, (MOST_BYTES, MOST_PARTITIONS)), (False, (_TASK_BYTES, len(firsts)))):
            limits = (lambda n: int(weights[n]), most[0]), (lambda _: 1, most[1])
            kind = np.flatnonzero(shares == together).tolist()
            for _, numbers in groupby(kind, lambda n: (journals[n], revisions[n])):
                for group in grouped(numbers, *limits):
                    yield _Task(np.concatenate([ordered[firsts[n] : ends[n]] for n in group], dtype=_PIECE), together)

    def run(self, task: _Task) -> list[_Written]:
        return [self._together(task.pieces)] if task.shares else [*map(self._alone, _partitions(task.pieces))]

    def _written(self, pieces: Rows) -> tuple[Topic, _Written]:
        journal, revision = int(pieces["journal"][0]), int(pieces["revision"][0])
        return self.topics[revision], _Written((journal, revision), int(pieces["records"].sum()))

    def _alone(self, pieces: Rows) -> _Written:
        """Write the objects of a partition."""
        topic, written = self._written(pieces)
        p = topic.id(int(pieces["partition"][0]))
        limit = self.limits.get((p.revision, p.partition))
        if self.drains:
            spans = list(_spans(pieces, limit))
        else:
            span, gap = _consecutive(pieces, limit)
            spans = [span] if len(span) else []
            written.faults += [] if gap is None else [gap.of(p, written.topic[0])]
        for span in spans:
            writer = L1Writer(
                p, self.epoch, int(span["base"][0]), self.runtime, self.directory, FILE_BYTES,
                topic.value_schema, checks=self.drains,
            )  # fmt: skip
            for _, _, _, _, records, batch, row in span.tolist():
                writer.write(self.batches[batch].slice(row, records), self.widths[batch])
            try:
                writer.finish()
            except CorruptObjectError as e:
                if not self.drains:
                    raise
                at = np.array([p.partition], NUMBER), span["base"][:1]
                written.faults.append(Fault(written.topic[0], p.revision, str(e), *at))
                continue
            written.made += writer.made
            written.files += writer.files
            written.misfits += [(p.partition, writer.misfits)] if writer.misfits else []
        return written

    def _together(self, pieces: Rows) -> _Written:
        """Pack the records of many partitions into a shared object."""
        topic, written = self._written(pieces)
        pieces, gaps = self._all_consecutive(pieces)
        written.faults += [gap.of(topic.id(partition), written.topic[0]) for partition, gap in gaps]
        if not len(pieces):
            return written
        firsts = np.flatnonzero(np.r_[True, pieces["partition"][1:] != pieces["partition"][:-1]])
        partitions, counts = pieces["partition"][firsts], np.add.reduceat(pieces["records"], firsts)
        records = _gathered(self.batches, pieces)
        name = self.runtime.new_id()
        o, body = shared_object(records, partitions, pieces["base"][firsts], counts, self.epoch, name)
        written.shared.append(o)
        written.made.append((shared_key(topic.name, topic.revision, written.topic[0], o), body))
        if topic.value_schema is not None:
            parser = parser_of(topic.value_schema)
            errors = parser.parse(records.column("value"))[parser.fields.names.index(VALUE_ERROR)]
            misfits = np.add.reduceat(columns.is_valid(errors).astype(np.int64), np.cumsum(counts) - counts)
            written.misfits += [(p, n) for p, n in zip(partitions.tolist(), misfits.tolist(), strict=True) if n]
        return written

    def _all_consecutive(self, pieces: Rows) -> tuple[Rows, list[tuple[int, _Gap]]]:
        """Return the consecutive records of each partition, and the gaps with their partitions."""
        same = pieces["partition"][1:] == pieces["partition"][:-1]
        follows = pieces["base"][1:] == (pieces["base"] + pieces["records"])[:-1]
        if not self.limits and (follows | ~same).all():
            return pieces, []
        revision, kept_parts, gaps = int(pieces["revision"][0]), list[Rows](), list[tuple[int, _Gap]]()
        for of_partition in _partitions(pieces):
            partition = int(of_partition["partition"][0])
            kept, gap = _consecutive(of_partition, self.limits.get((revision, partition)))
            kept_parts.append(kept)
            gaps += [] if gap is None else [(partition, gap)]
        return np.concatenate(kept_parts), gaps


def _joined(done: Iterable[_Written], faults: list[Fault]) -> WrittenL1:
    files: dict[tuple[int, int], list[tuple[object, ...]]] = {}
    misfits: dict[tuple[int, int], list[tuple[int, int]]] = {}
    whole = WrittenL1(faults=faults)
    for w in done:
        whole.faults += w.faults
        if w.files:
            files.setdefault(w.topic, []).extend(w.files)
        if w.shared:
            whole.shared.setdefault(w.topic, []).extend(w.shared)
        if w.misfits:
            misfits.setdefault(w.topic, []).extend(w.misfits)
    whole.files = {topic: in_order(np.array(rows, L1_ROW)) for topic, rows in files.items()}
    whole.misfits = {topic: np.array(sorted(rows), MISFITS) for topic, rows in misfits.items()}
    return whole


def upload_l1(store: ObjectStore, objects: Iterable[Made], parallel: Parallel) -> None:
    """Upload L1 objects, several at once and while the next ones are made; return when all are durable."""

    for _ in parallel.fetch_ahead(lambda made: upload_object(store, made), objects, upload_weight):
        pass


def upload_object(store: ObjectStore, made: Made) -> None:
    """Upload an L1 object, which makes it durable; then delete its file."""
    key, content = made
    if isinstance(content, bytes):
        store.put_bulk(key, content)
        return
    if content.stat().st_size > _PART_BYTES:
        store.put_file(key, content)
    else:  # without boto3, whose import takes 0.1 s
        store.put_bulk(key, content.read_bytes())
    content.unlink()


def upload_weight(made: Made) -> int:
    """Return about how many bytes of an object its upload holds."""
    _, content = made
    return min(content.stat().st_size if isinstance(content, Path) else len(content), _PART_BYTES)


class _Gap(NamedTuple):
    """Records of a partition, from `base` to `end`, end excluded, that no reader has sent or reported."""

    base: int
    end: int

    def of(self, p: PartitionId, journal: int) -> Fault:
        text = f"the records {self.base} to {self.end - 1} of {p} did not arrive at their writer"
        return Fault(journal, p.revision, text, np.array([p.partition], NUMBER), np.array([self.base], np.int64))


def _consecutive(pieces: Rows, limit: int | None) -> tuple[Rows, _Gap | None]:
    """Return the consecutive records of a partition's pieces up to `limit`, each once, and the gap that ends them early."""
    ends = pieces["base"] + pieces["records"]
    if limit is None and (pieces["base"][1:] == ends[:-1]).all():
        return pieces, None
    kept_pieces: list[Rows] = []
    following = int(pieces["base"][0])
    for piece, end in zip(pieces, ends.tolist(), strict=True):
        base = int(piece["base"])
        if limit is not None and following >= limit:
            break
        if base > following:
            return np.array(kept_pieces, _PIECE), _Gap(following, base)
        last = end if limit is None else min(end, limit)
        if last > following:  # rows that Spark sent twice are equal
            kept = piece.copy()
            kept["base"], kept["row"] = following, piece["row"] + following - base
            kept["records"] = last - following
            kept_pieces.append(kept)
            following = last
    return np.array(kept_pieces, _PIECE), None


def _spans(pieces: Rows, limit: int | None) -> Iterator[Rows]:
    """Yield the spans of consecutive records of a partition's pieces up to `limit`. A drain does not write the records
    between them, which are already in the partition's own objects.
    """
    while len(pieces):
        span, gap = _consecutive(pieces, limit)
        if len(span):
            yield span
        if gap is None:
            return
        pieces = pieces[pieces["base"] >= gap.end]


def _gathered(batches: Sequence[pa.RecordBatch], pieces: Rows) -> pa.RecordBatch:
    """Return the records of pieces, one piece after another, with the columns of a block of a shared object."""
    order = np.argsort(pieces["batch"], kind="stable")
    by_batch = pieces[order]
    changes = np.flatnonzero(by_batch["batch"][1:] != by_batch["batch"][:-1]) + 1
    parts = [
        batches[int(part["batch"][0])].take(_rows(part["row"], part["records"])) for part in np.split(by_batch, changes)
    ]
    leveled = level(parts)
    names = [name for name in leveled[0].schema.names if name in _SHARED]
    whole = pa.RecordBatch.from_arrays([pa.concat_arrays([b.column(n) for b in leveled]) for n in names], names=names)
    if len(parts) == 1:
        return whole
    begins = np.empty(len(pieces), np.int64)
    begins[order] = np.cumsum(by_batch["records"]) - by_batch["records"]
    return whole.take(_rows(begins, pieces["records"]))


def _rows(begins: Rows, counts: Rows) -> pa.Array:
    """Return the numbers of the rows that begin at `begins`, `counts` of them each."""
    at = np.cumsum(counts) - counts
    return columns.numbers(np.repeat(begins - at, counts) + np.arange(int(counts.sum())))


def _limits(faults: Iterable[Fault]) -> dict[tuple[int, int], int]:
    """Return the first offset of each (revision, partition) that cannot be lifted."""
    limits: dict[tuple[int, int], int] = {}
    for fault in faults:
        for partition, base in zip(fault.partitions.tolist(), fault.bases.tolist(), strict=True):
            at = fault.revision, partition
            limits[at] = min(base, limits.get(at, base))
    return limits


def pieces_of(batch: pa.RecordBatch, number: int) -> Rows:
    """Return the pieces of a batch of `ROWS`; a piece begins where the partition changes or the offset jumps."""
    journal, revision, partition, offset = (_numbers(batch.column(i)) for i in range(4))
    jumps = (revision[1:] != revision[:-1]) | (partition[1:] != partition[:-1]) | (offset[1:] != offset[:-1] + 1)
    rows = np.flatnonzero(np.r_[True, jumps])
    pieces = np.empty(len(rows), _PIECE)
    pieces["journal"], pieces["revision"], pieces["partition"] = journal[rows], revision[rows], partition[rows]
    pieces["base"], pieces["records"] = offset[rows], np.diff(np.r_[rows, batch.num_rows])
    pieces["batch"], pieces["row"] = number, rows
    return pieces


def _partitions(pieces: Rows) -> Iterator[Rows]:
    """Yield the pieces of each partition, given the pieces of one topic in order."""
    changes = np.flatnonzero(pieces["partition"][1:] != pieces["partition"][:-1]) + 1
    for first, end in zip([0, *changes.tolist()], [*changes.tolist(), len(pieces)], strict=True):
        yield pieces[first:end]


def _numbers(column: pa.Array) -> Rows:
    return np.frombuffer(columns.raw(column), np.int64)


def _table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return batches as a table with the columns of L1, and the optional ones that occur."""
    table = pa.Table.from_batches(level(batches))
    empty = [f.name for f in OPTIONAL if f.name in table.column_names and table[f.name].null_count == len(table)]
    return table.select(with_optional(L1_SCHEMA, table.drop_columns(empty).schema).names)


def _group_cuts(table: pa.Table, groups: int) -> list[int]:
    """Return the rows at which about this many row groups begin, and the end.

    Groups are cut by bytes, since a group cut by rows could unpack to more than a reader accepts if its records are long.
    """
    weights = np.full(len(table), RECORD_OVERHEAD, np.int64)
    for name in ("value", "key"):
        weights += np.concatenate([columns.lengths(c) for c in table.column(name).chunks])
    if "headers" in table.column_names:
        weights += np.concatenate([header_bytes(c) for c in table.column("headers").chunks])
    ends = np.cumsum(weights)
    total = int(ends[-1])
    number = max(groups, total // (2 * _ROW_GROUP_BYTES), 1)
    inside = np.searchsorted(ends, np.arange(1, number) * total // number) + 1
    return [0, *distinct(inside[inside < len(table)]).tolist(), len(table)]


class _BatchStore:
    """Batches of `ROWS` by number: the first ones in memory, the others in mapped files, one for each schema."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self._room = directory, limit
        self._batches: list[pa.RecordBatch] = []
        self.widths: list[float] = []
        self._on_disk: list[tuple[str, int]] = []  # the file of each batch after those in memory, and its index there
        self._writers: dict[str, pa.RecordBatchFileWriter] = {}
        self._counts: Counter[str] = Counter()
        self._stack = ExitStack()

    def __enter__(self) -> _BatchStore:
        return self

    def __exit__(self, *raised: object) -> None:
        self._batches = []
        self._stack.close()

    def add(self, batch: pa.RecordBatch) -> int:
        """Store a batch and return its number."""
        self.widths.append(batch.nbytes / batch.num_rows)
        if not self._writers and self._room >= batch.nbytes:
            self._room -= batch.nbytes
            self._batches.append(batch)
        else:
            name = "-".join(["held", *batch.schema.names[len(ROWS) :]])
            if name not in self._writers:
                new = pa.ipc.new_file(self._directory / name, batch.schema)
                self._writers[name] = self._stack.enter_context(new)
            self._writers[name].write_batch(batch)
            self._on_disk.append((name, self._counts[name]))
            self._counts[name] += 1
        return len(self.widths) - 1

    def all(self) -> Sequence[pa.RecordBatch]:
        """Return the batches by number, for any thread. After this, no more can be added."""
        readers = {}
        for name, writer in self._writers.items():
            writer.close()
            mapped = self._stack.enter_context(pa.memory_map(str(self._directory / name)))
            readers[name] = pa.ipc.open_file(mapped)
        self._batches += [readers[name].get_batch(at) for name, at in self._on_disk]
        return self._batches


class L1Writer:
    """Writes the records of one partition, from offset `base` on, in order, as one or more L1 objects; see `FILE_BYTES`.

    Attributes:
        next: the offset of the next record.
        files: the objects, as rows of `L1_ROW`.
        made: the objects for the caller to upload.

    Args:
        checks: whether `finish` reads the objects back and compares them with the records.
    """

    def __init__(
        self,
        p: PartitionId,
        epoch: int,
        base: int,
        runtime: Runtime,
        directory: Path,
        file_bytes: float,
        schema: ValueSchema | None = None,
        *,
        checks: bool = False,
    ) -> None:
        self.partition = p
        self._expected = Hashes() if checks else None
        self._found = Hashes() if checks else None
        self.next = base
        self.misfits = 0
        self._values = None if schema is None else parser_of(schema)
        self._file_bytes = file_bytes
        self._epoch, self._runtime, self._directory = epoch, runtime, directory
        self._base = base
        self._writer: Any = None  # a Parquet writer, once a file is begun
        self._schema = L1_SCHEMA
        self._sink: Path | pa.BufferOutputStream = directory
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0.0
        self._bytes = 0.0
        self._max_timestamp = -MAX_OFFSET
        self.files: list[tuple[object, ...]] = []
        self.made: list[Made] = []

    @property
    def schema_number(self) -> int:
        """Return the number of the value schema with which it writes; 0 if there is none."""
        return 0 if self._values is None else self._values.number

    def write(self, batch: pa.RecordBatch, width: float) -> None:
        """Write the next records: a batch with the columns of `L1_SCHEMA`, or more, each of about `width` bytes. Raises as
        `finish`.
        """
        self.next += batch.num_rows
        if self._expected is not None:
            self._expected.add(batch)
        self._held.append(batch)
        self._held_bytes += width * batch.num_rows
        if self._held_bytes >= _TOGETHER * _ROW_GROUP_BYTES:
            self._flush()
        if self._bytes >= self._file_bytes:
            self._close()

    def finish(self) -> None:
        """Close the open file. Raises `CorruptObjectError` if the records are not consecutive, or differ from those that
        were written.
        """
        self._flush()
        self._close()
        if self._expected is not None and self._found is not None and self._expected.digest() != self._found.digest():
            raise CorruptObjectError(
                f"partition {self.partition}: an L1 object would not hold the records written to it"
            )

    def _flush(self) -> None:
        if not self._held:
            return
        table = _table(self._held)
        offsets = np.concatenate([_numbers(c) for c in table.column("offset").chunks])
        first = self.next - len(offsets)
        if (offsets != np.arange(first, self.next)).any():
            raise CorruptObjectError(
                f"partition {self.partition}: records {offsets[0]} to {offsets[-1]} came instead of {first}"
            )
        if self._writer is None:
            self._begin(table.column_names, small=self._held_bytes < _TOGETHER * _ROW_GROUP_BYTES)
        self._widen(table.column_names)
        times = (_numbers(c) for c in table.column("timestamp").chunks if len(c))
        self._max_timestamp = max(self._max_timestamp, *(int(t.max()) for t in times))
        self._add(table, round(self._held_bytes / _ROW_GROUP_BYTES))
        self._bytes += self._held_bytes
        self._held, self._held_bytes = [], 0.0

    def _begin(self, names: Sequence[str], *, small: bool) -> None:
        """Begin a file with these columns, in memory if it is small."""
        self._sink = pa.BufferOutputStream() if small else self._directory / f"{self._runtime.new_id()}.parquet"
        typed = [] if self._values is None else self._values.fields
        self._schema = pa.schema([*(f for f in L1_FILE if f.name in (*names, PARTITION.name)), *typed])
        self._writer = pq.ParquetWriter(self._sink, self._schema, **_parquet(self._values))

    def _widen(self, names: Sequence[str]) -> None:
        """Begin the file again with more columns if it lacks any of these, keeping its row groups."""
        new = set(names) - set(self._schema.names)
        if not new or self._writer is None:
            return
        self._writer.close()
        written, small = self._sink, not isinstance(self._sink, Path)
        source: Any = pa.BufferReader(written.getvalue()) if not isinstance(written, Path) else written
        with pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True) as file:
            self._begin([*self._schema.names, *new], small=small)
            for number in range(file.num_row_groups):
                self._add(file.read_row_group(number, use_threads=False))
        if isinstance(written, Path):
            written.unlink()

    def _add(self, table: pa.Table, groups: int = 1) -> None:
        """Write about this many row groups of similar size; missing columns are null."""
        made = {PARTITION.name: columns.repeated(self.partition.partition, len(table), PARTITION.type)}
        if self._values is not None and VALUE_ERROR not in table.column_names:
            made |= zip(
                self._values.fields.names, self._values.parse(table.column("value").combine_chunks()), strict=True
            )
            self.misfits += len(table) - made[VALUE_ERROR].null_count
        arrays = [made[f.name] if f.name in made else column_of(table, f) for f in self._schema]
        made_table = pa.table(arrays, schema=self._schema)
        for first, end in pairwise(_group_cuts(table, groups)):
            self._writer.write_table(made_table.slice(first, end - first), row_group_size=end - first)

    def _close(self) -> None:
        if self._writer is None:
            return
        last, name = self.next - 1, self._runtime.new_id()
        key = level_one(self.partition, self._epoch, self._base, last, name)
        number = {SCHEMA_METADATA: str(self.schema_number)} if self._values is not None else {}
        self._writer.add_key_value_metadata({KEY_METADATA: key, **number})
        self._writer.close()
        if isinstance(self._sink, Path):
            with self._sink.open("r+b") as file:
                size = seal_footer(file)
            content = self._sink.read_bytes() if self._found is not None else b""
            self.made.append((key, self._sink))
        else:
            buffer = io.BytesIO(self._sink.getvalue())
            size = seal_footer(buffer)
            content = buffer.getvalue()
            self.made.append((key, content))
        times = min(self._max_timestamp, MAX_OFFSET)
        row = (self.partition.partition, self._base, last, size, times, self._epoch, name_bytes(name), 0)
        self.files.append(row)
        if self._found is not None:
            for batch in read_body(key, content, l1_file(row)):
                self._found.add(batch)
        self._writer, self._base, self._bytes, self._max_timestamp = None, self.next, 0.0, -MAX_OFFSET
