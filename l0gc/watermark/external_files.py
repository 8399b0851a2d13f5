"""The files of a system that keeps its own log: its partitions and its reports, as Parquet, CSV or NDJSON.

A number that cannot be read is never guessed: a file with a column that is missing, a value that is empty or no whole
number, or an end that looks cut off is refused by its name. A list of partitions that lost its end would put M too high.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from l0gc.errors import CorruptObjectError, NotFoundError, UsageError
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Parallel
from l0gc.watermark.external_log import ExternalLog

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

OpenStore = Callable[[str], ObjectStore]
"""A store whose prefix is this `s3://bucket/prefix`."""


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    read: Callable[[], bytes]


def read_external_log(
    reports: str,
    partitions: str,
    cluster_epoch: int | None,
    open_store: OpenStore,
    parallel: Parallel,
    *,
    allow_no_partitions: bool = False,
    snapshot_age_ms: int,
) -> ExternalLog:
    """What the other system tells, from its files.

    Args:
        reports: a file or a folder, local or `s3://`: the columns topic, partition, gc_epoch; if they are there also
            revision, max_applied_epoch and cluster_id.
        partitions: the same, with topic and partition; also revision, cluster_id and cluster_epoch.
        cluster_epoch: None to take it from the column of that name, which must say the same in each row.

    Raises:
        NotFoundError: there is no such file.
        CorruptObjectError, UsageError: one cannot be what it is given as.
    """
    # The reports first: one that was made meanwhile may be above the snapshot's epoch.
    told = _read(reports, _REPORTS, open_store, parallel)
    listed = _read(partitions, _PARTITIONS, open_store, parallel)
    return ExternalLog(
        _epoch(partitions, listed, cluster_epoch),
        _keys(partitions, listed),
        _keys(reports, told)
        .append_column("gc_epoch", told["gc_epoch"])
        .append_column("max_applied_epoch", pc.coalesce(told["max_applied_epoch"], told["gc_epoch"])),
        frozenset(c for t in (told, listed) for c in pc.unique(t["cluster_id"]).to_pylist() if c is not None),
        allow_no_partitions,
        snapshot_age_ms,
    )


def _epoch(source: str, listed: pa.Table, given: int | None) -> int:
    told = [e for e in pc.unique(listed["cluster_epoch"]).to_pylist() if e is not None]
    if len(told) > 1:
        raise UsageError(
            f"{source} tells several cluster epochs ({min(told)} to {max(told)}): it is not of one snapshot"
        )
    if given is not None and told and told[0] != given:
        raise UsageError(
            f"{source} is of cluster epoch {told[0]}, and --cluster-epoch says {given}: give one of the two"
        )
    if given is None and not told:
        raise UsageError(f"the cluster epoch of {source} is not known: give --cluster-epoch, or a column cluster_epoch")
    return given if given is not None else int(told[0])


def _keys(source: str, table: pa.Table) -> pa.Table:
    try:
        numbers = table["partition"].cast(pa.int32())
    except pa.ArrowInvalid as e:
        raise UsageError(f"{source} has a partition that cannot be: {e}") from e
    return pa.table({"topic": table["topic"], "revision": table["revision"], "partition": numbers})


def _read(path: str, needed: tuple[str, ...], open_store: OpenStore, parallel: Parallel) -> pa.Table:
    files = list(_files(path, open_store))
    if not files:
        raise NotFoundError(f"there is no file {path}, nor any .parquet, .csv or .ndjson in a folder of that name")
    return pa.concat_tables(parallel.map(lambda f: read_table(f.name, _body_of(f), needed), files))


def _body_of(file: _File) -> bytes:
    try:
        return file.read()
    except OSError as e:  # of this machine: gone since it was listed, or not ours to read
        raise CorruptObjectError(f"{file.name} cannot be read: {e.strerror or e}") from e


def _files(path: str, open_store: OpenStore) -> Iterable[_File]:
    """The file, or those in the folder; names that begin with `_` or `.` are a writer's own and left out."""
    if path.startswith("s3://"):
        yield from _stored(path, open_store)
        return
    place = Path(path)
    if place.is_file():
        yield _File(path, place.read_bytes)
    for file in sorted(place.rglob("*")) if place.is_dir() else ():
        if file.is_file() and _counts(file.relative_to(place).as_posix()):
            yield _File(str(file), file.read_bytes)


def _stored(url: str, open_store: OpenStore) -> Iterable[_File]:
    store = open_store(url)
    names = list(store.list("").modified_ms)
    folder, _, name = url.rstrip("/").rpartition("/")
    if not names and folder.count("/") >= 2:
        parent = open_store(folder)
        yield _File(url, lambda: parent.get(name).body)
    for key in names:
        if _counts(key):
            yield _File(f"{url.rstrip('/')}/{key}", partial(_body, store, key))


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
        raise UsageError(
            f"{name} is of no kind that is known: .parquet, .csv or .ndjson, the latter two perhaps with .gz"
        )
    try:
        table = _parsed(kind[1], gzip.decompress(body) if kind[2] else body, name)
        missing = [c for c in needed if c not in table.schema.names]
        if missing:
            raise UsageError(f"{name} has no column {missing[0]!r}, but {', '.join(table.schema.names)}")
        _check_columns(name, table.schema)
        nothing = {c: pa.nulls(table.num_rows, t) for c, t in _TYPES.items()}
        table = pa.table({c: table[c].cast(t) if c in table.schema.names else nothing[c] for c, t in _TYPES.items()})
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError, zlib.error) as e:
        raise CorruptObjectError(f"{name} cannot be read as {kind[1]}: {e}") from e
    for column in needed:
        if table[column].null_count:
            raise CorruptObjectError(f"{name} has rows whose {column} is empty")
    return table


def _check_columns(name: str, schema: pa.Schema) -> None:
    """Refuse what a cast would make a number of, though nobody meant one, and a column that is there twice."""
    for column in (c for c in schema.names if c in _TYPES):
        if schema.names.count(column) > 1:
            raise UsageError(f"{name} has more than one column {column!r}")
        kind = schema.field(column).type
        if _TYPES[column] == pa.int64() and (pa.types.is_boolean(kind) or pa.types.is_temporal(kind)):
            raise CorruptObjectError(f"{name} has {kind} in the column {column!r}, where whole numbers belong")


def _parsed(kind: str, body: bytes, name: str) -> pa.Table:
    if kind == "parquet":
        return pq.ParquetFile(pa.BufferReader(body)).read()
    if not body.endswith(b"\n"):
        raise CorruptObjectError(f"{name} does not end with a newline: it looks cut off")
    if kind == "csv":
        options = pyarrow.csv.ConvertOptions(column_types=_TYPES, null_values=[""], strings_can_be_null=True)
        return pyarrow.csv.read_csv(pa.BufferReader(body), convert_options=options)
    schema = pa.schema(list(_TYPES.items()))
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(pa.BufferReader(body), parse_options=options)
