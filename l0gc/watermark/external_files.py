"""The files of a system with an external log: its partitions and its reports, as Parquet, CSV or NDJSON.

A number that cannot be read is never guessed: a file with a column that is missing, a value that is empty or no whole
number, or an end that looks cut off is refused by its name. A list of partitions that lost its end would put M too high. So
a folder has to be finished, as Spark, Hive and Delta mean it: its writer puts `_SUCCESS` there last and removes it first.
Where no writer does, `--expect-partitions N` says how many there have to be.
"""

from __future__ import annotations

import gzip
import io
import posixpath
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from l0gc.errors import CorruptObjectError, NotFoundError, ObjectNotFoundError, SafetyError, UsageError
from l0gc.formatting import count
from l0gc.storage.objectstore import LocalFolder, ObjectStore, if_there
from l0gc.storage.parallel import Parallel
from l0gc.watermark.external_log import ExternalLog, ListedPartition, OpenStore, PartitionReport, SnapshotLimits

_TYPES: Final = {
    "cluster_id": pa.string(),
    "topic": pa.string(),
    "revision": pa.int64(),
    "partition": pa.int64(),
    "gc_epoch": pa.int64(),
    "max_applied_epoch": pa.int64(),
    "cluster_epoch": pa.int64(),
}
_SUFFIX: Final = re.compile(r"\.(parquet|csv|ndjson|jsonl)(\.gz)?$")
_NULL: Final = re.compile(rb"^(?:\A\xef\xbb\xbf)?+[^\S\n]*+null", re.MULTILINE)
"""A line that begins with null, which pyarrow crashes on at the head of a block; a file may begin with a byte order mark."""
_PARTITIONS: Final = ("topic", "partition")
_REPORTS: Final = ("topic", "partition", "gc_epoch")
_MARKER: Final = "_SUCCESS"
_UNPACKED_BYTES: Final = 1 << 30
"""The most that a .gz file unpacks to: the rows of some ten million partitions. A small file could fill the memory."""


@dataclass(frozen=True)
class ExternalFiles(SnapshotLimits):
    """Where the other system's files are, and what is meant by them.

    Attributes:
        reports: a file or a folder, local or `s3://`: the columns topic, partition, gc_epoch; if they are there also
            revision, max_applied_epoch and cluster_id.
        partitions: the same, with topic and partition; also revision, cluster_id and cluster_epoch.
        cluster_epoch: None to take it from the column of that name, which must say the same in each row.
        expect_partitions: how many partitions there have to be; None where folders have to be finished instead.
    """

    reports: str
    partitions: str
    cluster_epoch: int | None = None
    expect_partitions: int | None = None

    def read(self, open_store: OpenStore, parallel: Parallel) -> ExternalLog:
        """What the other system exports.

        Raises:
            NotFoundError: there is no such file.
            SafetyError: a folder is not finished, or there are more or fewer partitions than expected.
            CorruptObjectError, UsageError: a file cannot be what it is given as.
        """
        finished = self.expect_partitions is None
        # The reports first: one that was made after the snapshot may be above its epoch.
        reported = _read(self.reports, _REPORTS, open_store, parallel, finished=finished)
        listed = _read(self.partitions, _PARTITIONS, open_store, parallel, finished=finished)
        partitions = {ListedPartition(*row) for row in _rows(listed, "topic", "revision", "partition")}
        if self.expect_partitions is not None and len(partitions) != self.expect_partitions:
            raise SafetyError(
                f"{self.partitions} lists {count(len(partitions), 'partition')}, and --expect-partitions says "
                f"{self.expect_partitions:,}: wait until it is whole, or correct the number"
            )
        applied = pc.coalesce(reported["max_applied_epoch"], reported["gc_epoch"])
        reported = reported.drop_columns(["max_applied_epoch"]).append_column("max_applied_epoch", applied)
        return ExternalLog(
            _epoch(self.partitions, listed, self.cluster_epoch),
            partitions,
            [PartitionReport(*row) for row in _rows(reported, *PartitionReport._fields)],
            self,
            frozenset(c for t in (reported, listed) for c in pc.unique(t["cluster_id"]).to_pylist() if c is not None),
        )


def _epoch(source: str, listed: pa.Table, given: int | None) -> int:
    epochs = [e for e in pc.unique(listed["cluster_epoch"]).to_pylist() if e is not None]
    if len(epochs) > 1:
        raise UsageError(
            f"{source} has several cluster epochs ({min(epochs)} to {max(epochs)}): it is not of one snapshot"
        )
    if given is not None and epochs and epochs[0] != given:
        raise UsageError(
            f"{source} is of cluster epoch {epochs[0]}, and --cluster-epoch says {given}: give one of the two"
        )
    if given is None and not epochs:
        raise UsageError(f"the cluster epoch of {source} is not known: give --cluster-epoch, or a column cluster_epoch")
    return given if given is not None else int(epochs[0])


def _rows(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _read(path: str, needed: tuple[str, ...], open_store: OpenStore, parallel: Parallel, *, finished: bool) -> pa.Table:
    """The rows of a file, or of all files in a folder, which has to stay finished while it is read.

    In a bucket, a name is a folder's if there are keys below it.
    """
    place = path.rstrip("/")
    store = _opened(place, open_store)
    marker = _marker(store)
    there = store.list("").modified_ms
    if finished and there and marker is None:
        raise SafetyError(
            f"the folder {path} is not finished: it has no {_MARKER}, which its writer should put there last; or give the "
            "number of partitions as --expect-partitions"
        )
    # A name below a `_` or a `.` is a writer's own, and one that ends with a slash the marker of a folder.
    rows = (n for n in there if not any(part.startswith(("_", ".")) or not part for part in n.split("/")))
    files = {f"{place}/{name}": partial(store.get, name) for name in rows}
    folder, name = posixpath.split(place)
    if not there and folder != "s3:":  # which is above a bucket that is empty
        files = {place: partial(_opened(folder, open_store).get, name)}
    try:
        tables = parallel.map(lambda name: read_table(name, files[name]().body, needed), files)
    except ObjectNotFoundError:
        if there:
            raise
        tables = []
    if not tables:
        raise NotFoundError(f"no file {path} exists, and no folder of that name with a .parquet, .csv or .ndjson in it")
    if finished and there and _marker(store) != marker:
        raise SafetyError(f"the folder {path} was written anew while it was read; run it again when it is finished")
    return pa.concat_tables(tables)


def _opened(place: str, open_store: OpenStore) -> ObjectStore | LocalFolder:
    return open_store(place) if place.startswith("s3://") else LocalFolder(Path(place))


def _marker(store: ObjectStore | LocalFolder) -> object | None:
    """What distinguishes a folder's `_SUCCESS` from another one of that name; None if it does not exist."""
    marker = if_there(store.head, _MARKER)
    return None if marker is None else (marker.etag, marker.modified_ms)


def read_table(name: str, body: bytes, needed: tuple[str, ...]) -> pa.Table:
    """The columns that l0gc knows, null where the file has none; `needed` are there and nowhere empty.

    Raises:
        UsageError, CorruptObjectError: see the module.
    """
    kind = _SUFFIX.search(name)
    if kind is None:
        raise UsageError(f"{name} is not of a known kind: .parquet, .csv, .csv.gz, .ndjson or .ndjson.gz")
    try:
        table = _parsed(kind[1], _unpacked(name, body) if kind[2] else body, name)
        table.validate(full=True)  # pyarrow accepts text that is not UTF-8, and fails over it later
        missing = [c for c in needed if c not in table.schema.names]
        if missing:
            raise UsageError(f"{name} has no column {missing[0]!r}; it has {', '.join(table.schema.names)}")
        for column in (c for c in table.schema.names if c in _TYPES):
            if table.schema.names.count(column) > 1:
                raise UsageError(f"{name} has more than one column {column!r}")
            column_type = table.schema.field(column).type  # a cast would turn these into numbers
            if _TYPES[column] == pa.int64() and (pa.types.is_boolean(column_type) or pa.types.is_temporal(column_type)):
                raise CorruptObjectError(
                    f"{name} has {column_type} in the column {column!r}, which must hold whole numbers"
                )
        nothing = {c: pa.nulls(table.num_rows, t) for c, t in _TYPES.items()}
        table = pa.table({c: table[c].cast(t) if c in table.schema.names else nothing[c] for c, t in _TYPES.items()})
    except (pa.ArrowException, OSError, EOFError, ValueError, MemoryError, zlib.error) as e:
        raise CorruptObjectError(f"{name} cannot be read as {kind[1]}: {e}") from e
    for column in needed:
        if table[column].null_count:
            raise CorruptObjectError(f"{name} has rows whose {column} is empty")
    return table


def _unpacked(name: str, body: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
        rows = file.read(_UNPACKED_BYTES + 1)
    if len(rows) > _UNPACKED_BYTES:
        raise UsageError(f"{name} unpacks to more than {_UNPACKED_BYTES:,} bytes: give its rows in several files")
    return rows


def _parsed(kind: str, body: bytes, name: str) -> pa.Table:
    if kind == "parquet":
        return pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)
    if not body.endswith(b"\n"):
        raise CorruptObjectError(f"{name} does not end with a newline: it looks cut off")
    if kind == "csv":
        options = pyarrow.csv.ConvertOptions(column_types=_TYPES, null_values=[""], strings_can_be_null=True)
        return pyarrow.csv.read_csv(pa.BufferReader(body), convert_options=options)
    if (null := _NULL.search(body)) is not None:
        line = body.count(b"\n", 0, null.start()) + 1
        raise CorruptObjectError(f"line {line} of {name} is null, which is not a row")
    schema = pa.schema(list(_TYPES.items()))
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(pa.BufferReader(body), parse_options=options)
