"""Sum up the rows that a system with an external log exports.

Files, data frames and a program's own numbers are all converted to these columns, and one function sums them up, on
Spark's executors or in this process. Rows of one partition must be summed up together; `spread` ensures that. A summary
is small, merges with others in any order, and records every refusal with its subject, so the result does not depend on
how rows were spread.

A revision distinguishes the incarnations of a partition. A report counts for the incarnation that it names. If a report
or a listed row of a name lacks its revision, all reports of that name count for its only partition, and two listed
revisions are refused. That is safe, because a report of a former incarnation is below the revision of the new one, so M
is lower, never higher.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.watermark.source import HELD_BACK_SHOWN, REPORTED, UNREPORTED, Holder

TYPES: Final = {
    "cluster_id": pa.string(),
    "topic": pa.string(),
    "revision": pa.int64(),
    "partition": pa.int64(),
    "gc_epoch": pa.int64(),
    "max_applied_epoch": pa.int64(),
    "cluster_epoch": pa.int64(),
}
"""The columns that are read from reports and from lists of partitions; others are ignored."""
PARTITIONS: Final = ("topic", "partition")
REPORTS: Final = ("topic", "partition", "gc_epoch")
"""The columns that must exist and have a value in each row."""

_OF_THE_LIST: Final = ("cluster_epoch", "cluster_id")
_OF_REPORTS: Final = ("cluster_id",)
"""The columns that identify a snapshot. Either all rows have a value in such a column, or none has."""
_NUMBER_BITS: Final = 31
_LARGEST: Final = (1 << _NUMBER_BITS) - 1
"""The highest possible number of a partition."""
_UNKNOWN: Final = -1
"""An unknown revision."""
_REASONS: Final = {
    REPORTED: "by its report; it moves when that system reports a higher gc epoch",
    UNREPORTED: "no report: it counts with the epoch before its creation, or holds everything if that is not known",
}


def known_columns(name: str, table: pa.Table, needed: Sequence[str]) -> pa.Table:
    """Return the columns that are read; a column that the table lacks is all null.

    Args:
        name: what messages call the table.
        needed: the columns that must exist and have a value in each row.

    Raises:
        UsageError: a column is missing or occurs twice.
        CorruptObjectError: a column has another type, or rows without a value.
        pa.ArrowException: a value is not a whole number.
    """
    columns = table.schema.names
    if missing := [c for c in needed if c not in columns]:
        raise UsageError(f"{name} has no column {missing[0]!r}; it has {', '.join(columns)}")
    for column in (c for c in columns if c in TYPES):
        if columns.count(column) > 1:
            raise UsageError(f"{name} has more than one column {column!r}")
        kind = table.schema.field(column).type  # a cast would convert these to numbers
        if TYPES[column] == pa.int64() and (pa.types.is_boolean(kind) or pa.types.is_temporal(kind)):
            raise CorruptObjectError(f"{name} has {kind} in the column {column!r}, which must hold whole numbers")
    nothing = {c: pa.nulls(table.num_rows, t) for c, t in TYPES.items()}
    cast_table = pa.table({c: table[c].cast(t) if c in columns else nothing[c] for c, t in TYPES.items()})
    for column in needed:
        if cast_table[column].null_count:
            raise CorruptObjectError(f"{name} has rows whose {column} is empty")
    return cast_table


def spread(table: pa.Table, parts: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield rows of `known_columns`, with the part to which they belong. All rows of a partition are in the same part."""
    if parts == 1 or not table.num_rows:
        yield 0, table
        return
    code, words = _coded([table["topic"]])
    sums = np.array([zlib.crc32(w.encode()) for w in words.to_pylist()], dtype=np.int64)
    part = (sums[code] + table["partition"].to_numpy()) % parts
    for n in np.unique(part).tolist():
        yield n, table.filter(pa.array(part == n))


class ExternalSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of rows. One summary contains all rows of a partition; `merged` combines summaries of different
    partitions.

    Attributes:
        partitions: the number of listed partitions.
        gc_epochs: the number of partitions at each M(p).
        lowest: the partitions with the lowest M(p), at most `HELD_BACK_SHOWN`, in order of M(p), topic and partition.
        highest: the highest epoch in a report, negated, with its topic and partition; None without reports.
        unlisted: the number of reports of partitions that are not listed.
        first_unlisted: the first of these partitions by name.
        ambiguous: the first partition that is listed with two revisions and has a row without a revision.
        impossible: a message about an impossible number, the first in alphabetical order; empty if all numbers are
            possible.
        cluster_ids: the clusters that the rows name: the first two by name.
        cluster_epochs: the lowest and the highest listed cluster epoch; empty if no row has one.
        filled: for each column that identifies a snapshot, such as `cluster_id of the reports`, the numbers of rows
            with and without a value.
    """

    partitions: int = 0
    gc_epochs: dict[int, int] = {}
    lowest: list[Holder] = []
    highest: tuple[int, str, int] | None = None
    unlisted: int = 0
    first_unlisted: tuple[str, int] | None = None
    ambiguous: tuple[str, int] | None = None
    impossible: str = ""
    cluster_ids: list[str] = []
    cluster_epochs: list[int] = []
    filled: dict[str, tuple[int, int]] = {}


def merged(summaries: Sequence[ExternalSummary]) -> ExternalSummary:
    """Return the sum of several summaries, which does not depend on their order."""
    gc_epochs: Counter[int] = Counter()
    filled: dict[str, tuple[int, int]] = {}
    for s in summaries:
        gc_epochs.update(s.gc_epochs)
        for column, (given, empty) in s.filled.items():
            before = filled.get(column, (0, 0))
            filled[column] = before[0] + given, before[1] + empty
    epochs = [e for s in summaries for e in s.cluster_epochs]
    lowest = (h for s in summaries for h in s.lowest)
    return ExternalSummary(
        partitions=sum(s.partitions for s in summaries),
        gc_epochs=dict(gc_epochs),
        lowest=sorted(lowest, key=lambda h: (h.gc_epoch, h.topic, h.partition))[:HELD_BACK_SHOWN],
        highest=min((s.highest for s in summaries if s.highest is not None), default=None),
        unlisted=sum(s.unlisted for s in summaries),
        first_unlisted=min((s.first_unlisted for s in summaries if s.first_unlisted is not None), default=None),
        ambiguous=min((s.ambiguous for s in summaries if s.ambiguous is not None), default=None),
        impossible=min((s.impossible for s in summaries if s.impossible), default=""),
        cluster_ids=sorted({c for s in summaries for c in s.cluster_ids})[:2],
        cluster_epochs=[min(epochs), max(epochs)] if epochs else [],
        filled=filled,
    )


def add_up(listed: Sequence[pa.Table], reported: Sequence[pa.Table]) -> ExternalSummary:
    """Sum up lists of partitions and reports, given as rows of `known_columns`."""
    tables = [*listed, *reported]
    rows = sum(t.num_rows for t in listed)  # the listed rows come first
    ids = {c for t in tables for c in pc.unique(t["cluster_id"]).to_pylist() if c is not None}
    epochs = {e for t in listed for e in pc.unique(t["cluster_epoch"]).to_pylist() if e is not None}
    facts = ExternalSummary(
        cluster_ids=sorted(ids)[:2],
        cluster_epochs=[min(epochs), max(epochs)] if epochs else [],
        filled={
            f"{column} of the {kind}": (given, sum(t.num_rows for t in of_kind) - given)
            for kind, of_kind, columns in (("partitions", listed, _OF_THE_LIST), ("reports", reported, _OF_REPORTS))
            for column in columns
            for given in [sum(t.num_rows - t[column].null_count for t in of_kind)]
        },
    )
    partition, revision = _numbers(tables, "partition"), _numbers(tables, "revision", _UNKNOWN)
    gc_epoch = _numbers(reported, "gc_epoch")
    code, words = _coded([t["topic"] for t in tables])
    if wrong := _impossible(tables, partition, gc_epoch):
        return msgspec.structs.replace(facts, impossible=wrong)

    # Names get numbers in alphabetical order, and so do pairs of a name and the revision by which its rows match.
    order = pc.sort_indices(words).to_numpy()
    rank = np.empty(len(words), dtype=np.int64)
    rank[order] = np.arange(len(words))
    key = rank[code] << _NUMBER_BITS | partition
    in_order = np.lexsort((revision, key))
    key = key[in_order]
    begins = np.diff(key, prepend=-1) != 0
    names = key[begins]
    name, pair = np.empty_like(key), np.empty_like(key)
    name[in_order] = np.cumsum(begins) - 1
    by_name = np.zeros(len(names), dtype=bool)
    by_name[name[revision == _UNKNOWN]] = True
    begins |= (np.diff(revision[in_order], prepend=_UNKNOWN) != 0) & ~by_name[name[in_order]]
    pair[in_order] = np.cumsum(begins) - 1
    name_of_pair = name[in_order[begins]]

    def name_of(number: int) -> tuple[str, int]:
        topic, partition = divmod(int(names[number]), 1 << _NUMBER_BITS)
        return words[int(order[topic])].as_py(), partition

    oldest, newest = np.full(len(names), np.iinfo(np.int64).max), np.full(len(names), NO_WATERMARK - 1)
    np.minimum.at(oldest, name[:rows], revision[:rows])
    np.maximum.at(newest, name[:rows], revision[:rows])
    ambiguous = np.flatnonzero(by_name & (oldest < newest))
    of_report, r = name[rows:], revision[rows:]
    has_row = newest[of_report] >= NO_WATERMARK
    current = (r == _UNKNOWN) | (oldest[of_report] == _UNKNOWN) | (r <= newest[of_report])
    unlisted = of_report[~(has_row & current)]

    best, created = np.full(len(name_of_pair), NO_WATERMARK - 1), np.full(len(name_of_pair), NO_WATERMARK - 1)
    np.maximum.at(best, pair[rows:], gc_epoch)
    np.maximum.at(created, pair[:rows], revision[:rows])
    listed_rows = np.flatnonzero(created >= NO_WATERMARK)
    is_reported = best[listed_rows] >= NO_WATERMARK
    # A partition without a report counts with its creation; if that is also unknown, it holds everything.
    at = np.where(is_reported, best[listed_rows], np.maximum(created[listed_rows], 0) - 1)
    low = np.argsort(at, kind="stable")[:HELD_BACK_SHOWN].tolist()
    kinds = [REPORTED if is_reported[i] else UNREPORTED for i in low]
    highest = np.maximum(gc_epoch, _numbers(reported, "max_applied_epoch", NO_WATERMARK))
    top = int(highest.max()) if len(highest) else 0
    return msgspec.structs.replace(
        facts,
        partitions=len(listed_rows),
        gc_epochs=dict(zip(*(x.tolist() for x in np.unique(at, return_counts=True)), strict=True)),
        lowest=[
            Holder(*name_of(name_of_pair[listed_rows[i]]), int(at[i]), k, _REASONS[k])
            for i, k in zip(low, kinds, strict=True)
        ],
        highest=(-top, *name_of(of_report[highest == top].min())) if len(highest) else None,
        unlisted=len(unlisted),
        first_unlisted=name_of(unlisted.min()) if len(unlisted) else None,
        ambiguous=name_of(ambiguous[0]) if len(ambiguous) else None,
    )


def _impossible(tables: Sequence[pa.Table], partition: npt.NDArray[np.int64], gc_epoch: npt.NDArray[np.int64]) -> str:
    """Return a message about an impossible number, the first in alphabetical order."""
    faults = []
    if len(partition) and partition.min() < 0:
        faults.append("a partition cannot be below 0")
    if any((pc.min(t["revision"]).as_py() or 0) < 0 for t in tables):
        faults.append("a revision cannot be below 0")
    if len(partition) and partition.max() > _LARGEST:
        faults.append(f"a partition cannot be above {_LARGEST}: {partition.max()}")
    if len(gc_epoch) and gc_epoch.min() < NO_WATERMARK:
        faults.append(f"a gc_epoch cannot be below {NO_WATERMARK}, which means that the partition needs everything")
    return min(faults, default="")


def _numbers(tables: Sequence[pa.Table], column: str, empty: int = 0) -> npt.NDArray[np.int64]:
    """Return a column of all tables, with `empty` for null."""
    chunks = [pc.fill_null(chunk, empty).to_numpy() for t in tables for chunk in t[column].chunks]
    return np.concatenate(chunks) if chunks else np.empty(0, dtype=np.int64)


def _coded(columns: Sequence[pa.ChunkedArray]) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Encode texts as numbers, and return the text of each number."""
    chunks = [chunk for column in columns for chunk in column.chunks if len(chunk)]
    if not chunks:
        return np.empty(0, dtype=np.int64), pa.array([], pa.string())
    coded = pa.chunked_array(chunks).dictionary_encode().unify_dictionaries()
    return np.concatenate([c.indices.to_numpy() for c in coded.chunks]), coded.chunk(0).dictionary
