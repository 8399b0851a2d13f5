"""Read the files of a system with an external log: its partitions and its reports, as Parquet, CSV or NDJSON.

An unreadable number is never guessed. A file is refused by name if a column is missing, if a value is empty or not a
whole number, or if its end looks cut off. A truncated list of partitions would make M too high. Therefore a folder has
to be finished, as Spark, Hive and Delta define it: its writer adds `_SUCCESS` last and removes it first. If the writer
does not do that, `--expect-partitions N` gives the number of partitions. A file of zero bytes may be an interrupted
copy, which `_SUCCESS` does not exclude, so it counts as a file without rows only if the number of partitions is given.
l0gc has no checksum of these files, so a file in a bucket is read twice, in case the store serves a wrong file once and
thus hides a partition (hazard 34).
"""

from __future__ import annotations

import gzip
import io
import posixpath
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from l0gc.errors import CorruptObjectError, NotFoundError, SafetyError, StoreError, UsageError
from l0gc.storage.objectstore import LocalFolder, ObjectStore, if_there
from l0gc.storage.workers import Stage, Workers, Workplace
from l0gc.watermark.external_log import ExternalExport, ExternalLog, SnapshotLimits, StoreAt
from l0gc.watermark.external_rows import (
    PARTITIONS,
    REPORTS,
    TYPES,
    ExternalSummary,
    add_up,
    known_columns,
    merged,
    spread,
)

_SUFFIX: Final = re.compile(r"\.(parquet|csv|ndjson|jsonl|json)(\.gz)?$")
_NULL: Final = re.compile(rb"^(?:\A\xef\xbb\xbf)?+[^\S\n]*+null", re.MULTILINE)
"""A line that begins with null, which crashes pyarrow at the start of a block. A file may begin with a byte order mark.
"""
_MARKER: Final = "_SUCCESS"
_HIDDEN: Final = re.compile(r"/(?:\.|_(?![^/]*=)|/|$)")
"""A key that is ignored: a path with a part that begins with `_` or `.` belongs to a writer, unless the part is a
column's folder (`_day=7`), and a key that ends with a slash is the marker of a folder.
"""
_FOLDER: Final = re.compile(r"([^/=]+)=([^/]*)/")
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_FORMATS: Final = {
    "a Delta": re.compile(r"_delta_log/"),
    "a Hudi": re.compile(r"\.hoodie/"),
    "an Iceberg": re.compile(r"metadata/[^/]+\.metadata\.json$"),
}
_UNPACKED_BYTES: Final = 1 << 30
"""The largest unpacked size of a .gz file: the rows of some ten million partitions. Without a limit, a small file could
fill the memory.
"""


@dataclass(frozen=True)
class ExternalFiles(SnapshotLimits):
    """The paths of the other system's files, and how to read them.

    Attributes:
        reports: a file or a folder, local or `s3://`, with the columns topic, partition and gc_epoch, and optionally
            revision, max_applied_epoch and cluster_id.
        partitions: a file or a folder with the columns topic and partition, and optionally revision, cluster_id and
            cluster_epoch.
        cluster_epoch: the cluster epoch; None to take it from the column cluster_epoch, which must have the same value
            in each row.
        expect_partitions: the required number of partitions; None if the folders must be finished instead.
    """

    reports: str
    partitions: str
    cluster_epoch: int | None = None
    expect_partitions: int | None = None

    def find(self, store: ObjectStore, store_at: StoreAt) -> ExternalExport:
        """Find the files, and check that they are finished.

        Raises:
            NotFoundError: the file does not exist.
            SafetyError: a folder is not finished.
            UsageError: a folder holds a table of another format.
        """
        finished = self.expect_partitions is None
        # The reports come first: a report made after the snapshot may be above its epoch.
        reports = _FileSet(store, store_at, self.reports, finished=finished)
        return _FoundFiles(self, reports, _FileSet(store, store_at, self.partitions, finished=finished), store_at)


class _Part(NamedTuple):
    """A file: its folder, its key in the folder, whether it has reports or a list of partitions, and whether it may be
    empty.
    """

    folder: str
    key: str
    reports: bool
    may_be_empty: bool

    def read(self, store: ObjectStore, store_at: StoreAt) -> pa.Table:
        name = f"{self.folder}/{self.key}"
        body = _read_alike(_opened(store, store_at, self.folder), self.key, name)
        needed, folders = REPORTS if self.reports else PARTITIONS, dict(_FOLDER.findall(self.key))
        return read_table(name, body, needed, folders, may_be_empty=self.may_be_empty)


class _FileSet:
    """A file, or all files of a folder, which must stay complete while it is read.

    In a bucket, a name is a folder if it is a prefix of keys.
    """

    def __init__(self, store: ObjectStore, store_at: StoreAt, path: str, *, finished: bool) -> None:
        self._path, folder = path, path.rstrip("/")
        self._store = _opened(store, store_at, folder)
        self._marker = _marker(self._store)
        keys = self._store.list("").modified_ms
        self._finished = finished and bool(keys)
        if self._finished and self._marker is None:
            raise SafetyError(
                f"the folder {path} is not complete: it has no {_MARKER}, which its writer puts there last; wait for "
                f"it, or give the number of partitions as --expect-partitions"
            )
        for name, its_own in _FORMATS.items():
            if any(its_own.match(key) for key in keys):
                raise UsageError(
                    f"the folder {path} is {name} table, which also holds files whose rows were deleted: export its rows as "
                    "Parquet, or read it with Spark and give the data frame to compute_watermark(spark, reports=…, "
                    "partitions=…)"
                )
        self.files = [(folder, key) for key in keys if not _HIDDEN.search(f"/{key}")]
        parent, name = posixpath.split(folder)
        if not keys and parent != "s3:" and if_there(_opened(store, store_at, parent).head, name) is not None:
            self.files = [(parent, name)]  # an empty bucket has no folder above it
        if not self.files:
            raise NotFoundError(
                f"no file {path} exists, and no folder of that name with a .parquet, .csv or .ndjson in it"
            )

    def check_finished(self) -> None:
        """Raise `SafetyError` if the folder was rewritten since it was found."""
        if self._finished and _marker(self._store) != self._marker:
            raise SafetyError(
                f"the folder {self._path} was rewritten while it was read; run the command again when it is complete"
            )


class _FoundFiles:
    def __init__(self, request: ExternalFiles, reports: _FileSet, partitions: _FileSet, store_at: StoreAt) -> None:
        self._wanted, self._folders, self._store_at = request, (reports, partitions), store_at
        counted = request.expect_partitions is not None
        self._parts = [_Part(*f, folder is reports, counted) for folder in self._folders for f in folder.files]
        self.files = len(self._parts) if all(p.folder.startswith("s3://") for p in self._parts) else 0

    def read(self, workers: Workers[Any]) -> ExternalLog:
        """Read the files; see `ExternalExport.read`. Only workers of this process read local files."""
        tasks = workers.cores
        stages = Stage(workers.slots, partial(_read_parts, self._store_at, tasks)), Stage(tasks, _sum_up)
        summary = merged(workers.flow(self._parts, *stages))
        for folder in self._folders:
            folder.check_finished()
        w = self._wanted
        return ExternalLog.of(summary, w, w.partitions, epoch=w.cluster_epoch, expected=w.expect_partitions)


def _read_parts(
    store_at: StoreAt, tasks: int, workplace: Workplace, parts: Iterable[_Part]
) -> Iterator[tuple[int, tuple[bool, pa.Table]]]:
    """Read files, and send their rows to the tasks that sum them up."""
    ordered = list(parts)
    tables = workplace.parallel.map(lambda part: part.read(workplace.store, store_at), ordered)
    for part, table in zip(ordered, tables, strict=True):
        for task, rows in spread(table, tasks):
            yield task, (part.reports, rows)


def _read_alike(store: ObjectStore | LocalFolder, key: str, name: str) -> bytes:
    """Return a file's bytes. A file in a bucket is read twice, and both reads must agree (hazard 34)."""
    body = store.get(key).body
    if not isinstance(store, LocalFolder) and store.get(key).body != body:
        raise StoreError(
            f"{name} was read twice, and differs: it is being written, or the store gave out something else for it once; "
            "nothing was published, so run the command again"
        )
    return body


def _sum_up(workplace: Workplace, items: Iterable[tuple[bool, pa.Table]]) -> Iterator[ExternalSummary]:
    by_kind: dict[bool, list[pa.Table]] = {False: [], True: []}
    for reports, rows in items:
        by_kind[reports].append(rows)
    yield add_up(by_kind[False], by_kind[True])


def _opened(store: ObjectStore, store_at: StoreAt, folder: str) -> ObjectStore | LocalFolder:
    return store_at(store, folder) if folder.startswith("s3://") else LocalFolder(Path(folder))


def _marker(store: ObjectStore | LocalFolder) -> object | None:
    """Return an identity of a folder's `_SUCCESS` that changes if the file is rewritten; None if it does not exist."""
    marker = if_there(store.head, _MARKER)
    return None if marker is None else (marker.etag, marker.modified_ms)


def read_table(
    name: str,
    body: bytes,
    needed: Sequence[str],
    folders: Mapping[str, str] = MappingProxyType({}),
    *,
    may_be_empty: bool = False,
) -> pa.Table:
    """Return the `known_columns` of a file.

    Args:
        folders: the columns whose values the names of the file's folders give, as Spark and Hive write them.
        may_be_empty: whether a CSV or NDJSON file of zero bytes counts as a file without rows.

    Raises:
        UsageError, CorruptObjectError: the file is refused; see the module.
    """
    kind = _SUFFIX.search(name)
    if kind is None:
        raise UsageError(f"{name} has an unknown file type; use .parquet, .csv, .csv.gz, .ndjson or .ndjson.gz")
    try:
        rows = _unpacked(name, body) if kind[2] else body
        # An empty .gz file still has a trailer, so it was not cut off.
        if not rows and kind[1] != "parquet" and (body or may_be_empty):
            return known_columns(name, pa.table({c: pa.nulls(0, t) for c, t in TYPES.items()}), needed)
        table = _parsed(kind[1], rows, name)
        table.validate(full=True)  # pyarrow accepts text that is not UTF-8, and fails later
        for column, value in folders.items():
            if kind[1] not in ("parquet", "csv") and column in TYPES and table[column].null_count == table.num_rows:
                table = table.drop_columns([column])  # a JSON file is read with all known columns
            text = None if value == _HIVE_NULL else unquote(value, errors="strict")
            table = table.append_column(column, pa.array([text] * table.num_rows, pa.string()))
        return known_columns(name, table, needed)
    except (pa.ArrowException, OSError, EOFError, ValueError, MemoryError, zlib.error) as e:
        raise CorruptObjectError(f"{name} cannot be read as {kind[1]}: {e}") from e


def _unpacked(name: str, body: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
        rows = file.read(_UNPACKED_BYTES + 1)
    if len(rows) > _UNPACKED_BYTES:
        raise UsageError(f"{name} unpacks to more than {_UNPACKED_BYTES:,} bytes: split its rows into several files")
    return rows


def _parsed(kind: str, body: bytes, name: str) -> pa.Table:
    if kind == "parquet":
        return pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)
    if not body:
        raise CorruptObjectError(
            f"{name} has zero bytes, as if it was cut off: write it again, or give the number of partitions as "
            "--expect-partitions, and it counts as a file without rows"
        )
    if not body.endswith(b"\n"):
        raise CorruptObjectError(f"{name} does not end with a newline: it looks cut off")
    if kind == "csv":
        options = pyarrow.csv.ConvertOptions(column_types=TYPES, null_values=[""], strings_can_be_null=True)
        return pyarrow.csv.read_csv(pa.BufferReader(body), convert_options=options)
    if (null := _NULL.search(body)) is not None:
        line = body.count(b"\n", 0, null.start()) + 1
        raise CorruptObjectError(f"line {line} of {name} is null, which is not a row")
    schema = pa.schema(list(TYPES.items()))
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(pa.BufferReader(body), parse_options=options)
