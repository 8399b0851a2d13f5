"""The files of a system with an external log: its partitions and its reports, as Parquet, CSV or NDJSON.

A number that cannot be read is never guessed: a file with a column that is missing, a value that is empty or no whole
number, or an end that looks cut off is refused by its name. A list of partitions that lost its end would put M too high. So
a folder has to be finished, as Spark, Hive and Delta mean it: its writer puts `_SUCCESS` there last and removes it first.
Where no writer does, `--expect-partitions N` says how many there have to be.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from l0gc.errors import CorruptObjectError, ExternalLogError, NotFoundError, ObjectNotFoundError, UsageError
from l0gc.formatting import count
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.watermark.external_log import SNAPSHOT_AGE_MS, ExternalLog, distinct

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
_PARTITIONS: Final = ("topic", "partition")
_REPORTS: Final = ("topic", "partition", "gc_epoch")
_MARKER: Final = "_SUCCESS"
_UNPACKED_BYTES: Final = 1 << 30
"""The most that a .gz file unpacks to: the rows of some ten million partitions. A small file could fill the memory."""

OpenStore = Callable[[str], ObjectStore]
"""A store whose prefix is this `s3://bucket/prefix`."""


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    read: Callable[[], bytes]


@dataclass(frozen=True)
class ExternalFiles:
    """Where the other system's files are, and what is meant by them.

    Attributes:
        reports: a file or a folder, local or `s3://`: the columns topic, partition, gc_epoch; if they are there also
            revision, max_applied_epoch and cluster_id.
        partitions: the same, with topic and partition; also revision, cluster_id and cluster_epoch.
        cluster_epoch: None to take it from the column of that name, which must say the same in each row.
        expect_partitions: how many partitions there have to be; None where folders have to be finished instead.
        allow_no_partitions, allow_fewer_partitions, allow_unlisted_reports, snapshot_age_ms: see `ExternalLog`.
    """

    reports: str
    partitions: str
    cluster_epoch: int | None = None
    expect_partitions: int | None = None
    allow_no_partitions: bool = False
    allow_fewer_partitions: bool = False
    allow_unlisted_reports: bool = False
    snapshot_age_ms: int = SNAPSHOT_AGE_MS

    def read(self, open_store: OpenStore, parallel: Parallel) -> ExternalLog:
        """What the other system exports.

        Raises:
            NotFoundError: there is no such file.
            ExternalLogError: a folder is not finished, or there are more or fewer partitions than expected.
            CorruptObjectError, UsageError: a file cannot be what it is given as.
        """
        finished = self.expect_partitions is None
        # The reports first: one that was made after the snapshot may be above its epoch.
        reported = _read(self.reports, _REPORTS, open_store, parallel, finished=finished)
        listed = _read(self.partitions, _PARTITIONS, open_store, parallel, finished=finished)
        partitions = _keys(self.partitions, listed)
        found = distinct(partitions).num_rows
        if self.expect_partitions is not None and found != self.expect_partitions:
            raise ExternalLogError(
                f"{self.partitions} lists {count(found, 'partition')}, and --expect-partitions says "
                f"{self.expect_partitions:,}: wait until it is whole, or correct the number"
            )
        return ExternalLog(
            _epoch(self.partitions, listed, self.cluster_epoch),
            partitions,
            _keys(self.reports, reported)
            .append_column("gc_epoch", reported["gc_epoch"])
            .append_column("max_applied_epoch", pc.coalesce(reported["max_applied_epoch"], reported["gc_epoch"])),
            frozenset(c for t in (reported, listed) for c in pc.unique(t["cluster_id"]).to_pylist() if c is not None),
            self.allow_no_partitions,
            self.allow_fewer_partitions,
            self.allow_unlisted_reports,
            self.snapshot_age_ms,
        )


def _epoch(source: str, listed: pa.Table, given: int | None) -> int:
    found = [e for e in pc.unique(listed["cluster_epoch"]).to_pylist() if e is not None]
    if len(found) > 1:
        raise UsageError(
            f"{source} has several cluster epochs ({min(found)} to {max(found)}): it is not of one snapshot"
        )
    if given is not None and found and found[0] != given:
        raise UsageError(
            f"{source} is of cluster epoch {found[0]}, and --cluster-epoch says {given}: give one of the two"
        )
    if given is None and not found:
        raise UsageError(f"the cluster epoch of {source} is not known: give --cluster-epoch, or a column cluster_epoch")
    return given if given is not None else int(found[0])


def _keys(source: str, table: pa.Table) -> pa.Table:
    try:
        numbers = table["partition"].cast(pa.int32())
    except pa.ArrowInvalid as e:
        raise UsageError(f"{source} has a partition that cannot be: {e}") from e
    return pa.table({"topic": table["topic"], "revision": table["revision"], "partition": numbers})


def _read(path: str, needed: tuple[str, ...], open_store: OpenStore, parallel: Parallel, *, finished: bool) -> pa.Table:
    """The rows of a file, or of all files in a folder, which has to stay finished while it is read."""
    place = _place(path, open_store)
    marker = place.marker()
    if finished and place.is_folder and marker is None:
        raise ExternalLogError(
            f"the folder {path} is not finished: it has no {_MARKER}, which its writer should put there last; or give the "
            "number of partitions as --expect-partitions"
        )
    files = place.files()
    if not files:
        raise NotFoundError(f"no file {path} exists, and no folder of that name with a .parquet, .csv or .ndjson in it")
    table = pa.concat_tables(parallel.map(lambda f: read_table(f.name, _body_of(f), needed), files))
    if finished and place.is_folder and place.marker() != marker:
        raise ExternalLogError(
            f"the folder {path} was written anew while it was read; run it again when it is finished"
        )
    return table


def _body_of(file: _File) -> bytes:
    try:
        return file.read()
    except OSError as e:  # of this machine: gone since it was listed, or not ours to read
        raise CorruptObjectError(f"{file.name} cannot be read: {e.strerror or e}") from e


class _Place(Protocol):
    """A file, or a folder of files."""

    is_folder: bool

    def marker(self) -> object | None:
        """What distinguishes the folder's `_SUCCESS` from another one of that name; None if it does not exist."""
        ...

    def files(self) -> list[_File]:
        """The file, or those in the folder; names that begin with `_` or `.` are a writer's own and left out."""
        ...


def _place(path: str, open_store: OpenStore) -> _Place:
    return _Stored(path, open_store) if path.startswith("s3://") else _Local(path)


class _Local:
    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.is_folder = self._path.is_dir()

    def marker(self) -> object | None:
        try:
            found = (self._path / _MARKER).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def files(self) -> list[_File]:
        if not self.is_folder:
            return [_File(str(self._path), self._path.read_bytes)] if self._path.is_file() else []
        found = sorted(f for f in self._path.rglob("*") if f.is_file())
        return [_File(str(f), f.read_bytes) for f in found if _counts(f.relative_to(self._path).as_posix())]


class _Stored:
    """In a bucket, a name is a folder's if there are keys below it."""

    def __init__(self, url: str, open_store: OpenStore) -> None:
        self._url = url.rstrip("/")
        self._open_store = open_store
        self._store = open_store(url)
        self.is_folder = next(iter(self._store.scan("")), None) is not None

    def marker(self) -> object | None:
        try:
            found = self._store.head(_MARKER)
        except ObjectNotFoundError:
            return None
        return found.etag, found.modified_ms

    def files(self) -> list[_File]:
        if self.is_folder:
            names = [n for n in self._store.list("").modified_ms if _counts(n)]
            return [_File(f"{self._url}/{n}", partial(_body, self._store, n)) for n in names]
        folder, _, name = self._url.rpartition("/")
        if folder.count("/") < 2:  # the bucket itself, which is empty
            return []
        return [_File(self._url, partial(_body, self._open_store(folder), name))]


def _body(store: ObjectStore, key: str) -> bytes:
    return store.get(key).body


def _counts(name: str) -> bool:
    """Whether a name in a folder is that of a file with rows, and not a writer's own or a marker of the folder."""
    return not name.endswith("/") and not any(part.startswith(("_", ".")) or not part for part in name.split("/"))


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
        _check_columns(name, table.schema)
        nothing = {c: pa.nulls(table.num_rows, t) for c, t in _TYPES.items()}
        table = pa.table({c: table[c].cast(t) if c in table.schema.names else nothing[c] for c, t in _TYPES.items()})
    except (pa.ArrowException, OSError, EOFError, ValueError, MemoryError, zlib.error) as e:
        raise CorruptObjectError(f"{name} cannot be read as {kind[1]}: {e}") from e
    for column in needed:
        if table[column].null_count:
            raise CorruptObjectError(f"{name} has rows whose {column} is empty")
    return table


def _check_columns(name: str, schema: pa.Schema) -> None:
    """Refuse values that are not numbers but that a cast would turn into them, and a column that occurs twice."""
    for column in (c for c in schema.names if c in _TYPES):
        if schema.names.count(column) > 1:
            raise UsageError(f"{name} has more than one column {column!r}")
        kind = schema.field(column).type
        if _TYPES[column] == pa.int64() and (pa.types.is_boolean(kind) or pa.types.is_temporal(kind)):
            raise CorruptObjectError(f"{name} has {kind} in the column {column!r}, which must hold whole numbers")


def _unpacked(name: str, body: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
        found = file.read(_UNPACKED_BYTES + 1)
    if len(found) > _UNPACKED_BYTES:
        raise UsageError(f"{name} unpacks to more than {_UNPACKED_BYTES:,} bytes: give its rows in several files")
    return found


def _parsed(kind: str, body: bytes, name: str) -> pa.Table:
    if kind == "parquet":
        return pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)
    if not body.endswith(b"\n"):
        raise CorruptObjectError(f"{name} does not end with a newline: it looks cut off")
    if kind == "csv":
        options = pyarrow.csv.ConvertOptions(column_types=_TYPES, null_values=[""], strings_can_be_null=True)
        return pyarrow.csv.read_csv(pa.BufferReader(body), convert_options=options)
    schema = pa.schema(list(_TYPES.items()))
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(pa.BufferReader(body), parse_options=options)
