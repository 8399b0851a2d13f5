"""Read the L1 objects that a table's snapshot names, commit the next snapshot, and delete old metadata files.

A snapshot names its objects in manifests, the oldest first. A manifest without dropped objects stays unchanged; a
manifest with dropped objects is rewritten in its place without them; small ones are sometimes combined. Objects of a
similar age are together, since merges drop new objects and retention drops old ones. A sync thus reads and writes about
as much as has changed, and the number of manifests stays bounded. This module does not copy, read or delete data
objects.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, product
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyiceberg.exceptions as failed
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots, _SnapshotProducer
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, PrimitiveType, StringType, StructType, TimestamptzType
from pyiceberg.utils.concurrent import ExecutorFactory

from l0gc.errors import CorruptObjectError, SafetyError
from l0gc.integrations.iceberg.catalog import metadata_folder
from l0gc.keys import L1_DATA, PartitionId, level_one, parse_level_one
from l0gc.storage.objectstore import read_again
from l0gc.streamlog.controller.value_schema import VALUE_ERROR_ID
from l0gc.streamlog.journal.rows import Rows, name_bytes, name_text
from l0gc.streamlog.level_one.parquet import FIELD_IDS

MANIFEST_FILES: Final = 2048
"""The largest number of objects in a manifest: some 300 KiB."""
READ_FIRST: Final = 4
"""How many manifests are read first to find dropped objects. Each further group has twice as many."""
SMALL_MANIFESTS: Final = 16
"""The number of small manifests at which they are combined. A small manifest has less than half of `MANIFEST_FILES`
objects.
"""
_BOUND_LENGTH: Final = 16
"""The number of characters of a text in a bound, as in Iceberg's default, `truncate(16)`."""
_SURROGATES: Final = 0xD800
_SURROGATES_END: Final = 0xE000
_METADATA: Final = re.compile(r"[^/]+(\.metadata\.json|-m[0-9]+\.avro)|snap-[^/]+\.avro")
"""The names of metadata files that PyIceberg and this module write."""

Entries = dict[str, ManifestEntry]
"""The entries of a manifest, by the path of the object."""


class Statistics(NamedTuple):
    """A manifest's facts about an object's columns, by their ids, in Iceberg's form."""

    lower_bounds: Mapping[int, bytes] = {}
    upper_bounds: Mapping[int, bytes] = {}
    value_counts: Mapping[int, int] = {}
    null_value_counts: Mapping[int, int] = {}


def path_of(url: str, p: PartitionId, row: Any) -> str:
    """Return the path under which a table names an L1 object, given its row of `L1_ROW`."""
    key = level_one(p, int(row["epoch"]), int(row["base"]), int(row["last"]), name_text(row["name"]))
    return f"{url}{key}"


def typed_statistics(schema: Schema) -> Callable[[Any], Statistics]:
    """Return a function that, for an L1 object's footer, returns the bounds and the null counts of its typed columns
    and of their fields outside of lists.

    Parquet omits the bounds of long texts, and PyIceberg uses those of the other row groups for all of them. Therefore
    a column gets bounds only if each row group with values has bounds.
    """
    from pyiceberg.io import pyarrow as io

    bounded = dict(leaf for top in schema.fields if top.field_id >= VALUE_ERROR_ID for leaf in _leaves(top))
    full, ignored = (io.match_metrics_mode(mode) for mode in ("full", "none"))
    plan = defaultdict(
        lambda: io.StatisticsCollector(
            -1, StringType(), ignored, ""
        ),  # also for columns that are no longer in the schema
        {field_id: io.StatisticsCollector(field_id, kind, full, "") for field_id, kind in bounded.items()},
    )

    def statistics(footer: Any) -> Statistics:
        ids = {path: field_id for f in footer.schema.to_arrow_schema() for path, field_id in _ids(f, f.name)}
        fields = io.data_file_statistics_from_parquet_metadata(footer, plan, ids).to_serialized_dict()
        lower, upper, *counts = (fields[name] for name in Statistics._fields)
        chunks = product(range(footer.num_row_groups), range(footer.num_columns))
        for column in (footer.row_group(group).column(n) for group, n in chunks):
            if column.is_stats_set and column.statistics.num_values and not column.statistics.has_min_max:
                lower.pop(ids[column.path_in_schema], None)
                upper.pop(ids[column.path_in_schema], None)
        for text in (field_id for field_id, kind in bounded.items() if isinstance(kind, StringType)):
            if text in lower:
                lower[text] = lower[text].decode()[:_BOUND_LENGTH].encode()
            if text in upper:
                upper |= _text_bound(text, upper.pop(text).decode())
        return Statistics(lower, upper, *counts)

    return statistics


def _leaves(field: NestedField) -> Iterator[tuple[int, PrimitiveType]]:
    """Yield the ids and types of the fields that have one value per record."""
    if isinstance(field.field_type, StructType):
        for inner in field.field_type.fields:
            yield from _leaves(inner)
    elif isinstance(field.field_type, PrimitiveType):
        yield field.field_id, field.field_type


def _ids(field: pa.Field, path: str) -> Iterator[tuple[str, int]]:
    """Yield the paths of a field's leaves in Parquet, with the ids with which the object was written. A name alone may
    now belong to a different column.
    """
    if pa.types.is_struct(field.type):
        for inner in field.type:
            yield from _ids(inner, f"{path}.{inner.name}")
    elif pa.types.is_list(field.type):
        yield from _ids(field.type.value_field, f"{path}.list.element")
    else:
        yield path, int((field.metadata or {}).get(b"PARQUET:field_id", -1))


def _text_bound(field_id: int, text: str) -> dict[int, bytes]:
    """Return a short upper bound of a text, by the field's id; empty if no short text is above it."""
    if len(text) <= _BOUND_LENGTH:
        return {field_id: text.encode()}
    for last in reversed(range(_BOUND_LENGTH)):
        code = ord(text[last]) + 1
        if code <= sys.maxunicode:  # surrogates, which are not characters, are skipped
            return {field_id: (text[:last] + chr(code if code != _SURROGATES else _SURROGATES_END)).encode()}
    return {}


def data_file(path: str, row: Any, older: int | None, spec_id: int, typed: Statistics) -> DataFile:
    """Return a manifest's record of an L1 object. All of it is in the journal, except the statistics of typed columns.

    Args:
        older: the newest timestamp of the records before it in its partition. None of its records is older, since the
            log's time never decreases.
    """
    base, last = int(row["base"]), int(row["last"])
    lower, upper = {FIELD_IDS["offset"]: _long(base)}, {FIELD_IDS["offset"]: _long(last)}
    upper[FIELD_IDS["timestamp"]] = _time(int(row["max_timestamp"]))
    if older is not None:
        lower[FIELD_IDS["timestamp"]] = _time(older)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(int(row["partition"])),
        record_count=last - base + 1,
        file_size_in_bytes=int(row["bytes"]),
        column_sizes=None,
        value_counts=typed.value_counts or None,
        null_value_counts=typed.null_value_counts or None,
        nan_value_counts=None,
        lower_bounds={**lower, **typed.lower_bounds},
        upper_bounds={**upper, **typed.upper_bounds},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = spec_id
    return file


def _long(value: int) -> bytes:
    return to_bytes(LongType(), value)


def _time(ms: int) -> bytes:
    return to_bytes(TimestamptzType(), ms * 1000)


def data_files(
    rows: Rows, indices: Rows, path: Callable[[Any], str], spec_id: int, typed: Sequence[Statistics]
) -> list[DataFile]:
    """Return the manifest records of the objects at these indices of a topic's L1 rows, with the statistics of each
    object's typed columns. The rows include holes and are ordered by partition and offset.
    """
    same = rows["partition"][1:] == rows["partition"][:-1]
    files = []
    for i, statistics in zip(indices.tolist(), typed, strict=True):
        older = int(rows["max_timestamp"][i - 1]) if i and same[i - 1] else None
        files.append(data_file(path(rows[i]), rows[i], older, spec_id, statistics))
    return files


# -- reading --------------------------------------------------------------------------------------------------------------


def manifests_of(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    """Return the manifests of a snapshot that name at least one object."""
    if snapshot is None:
        return []
    return [m for m in snapshot.manifests(table.io) if m.has_added_files() or m.has_existing_files()]


def entries_of(table: Table, manifests: Sequence[ManifestFile]) -> list[Entries]:
    return list(ExecutorFactory.get_or_create().map(lambda m: _entries(table.io, m), manifests))


def _entries(io: FileIO, m: ManifestFile) -> Entries:
    """Return the entries of a manifest. Raises `CorruptObjectError` if they do not match its list and their own paths.
    Avro has no checksum, and a sync would copy damaged entries.
    """

    def read() -> Entries:
        entries = {e.data_file.file_path: e for e in m.fetch_manifest_entry(io, discard_deleted=True)}
        if len(entries) != _files(m):
            raise CorruptObjectError(
                f"{m.manifest_path} names {len(entries)} objects, and its list says {_files(m)}; sync again, or restore it"
            )
        for path, e in entries.items():
            key = parse_level_one(path[max(path.find(L1_DATA), 0) :])
            said = e.data_file.record_count, e.data_file.partition[0]
            if key is not None and said != (key.last + 1 - key.base, key.partition):
                raise CorruptObjectError(
                    f"{m.manifest_path} says that {path} has {said[0]} records of partition {said[1]}; sync again, or "
                    "restore it"
                )
        return entries

    return read_again(read)


def ends_first(manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Yield all manifests in growing groups, from both ends, since merges and retention drop objects there."""
    left, number = deque(manifests), READ_FIRST
    while left:
        yield [left.pop() if n % 2 else left.popleft() for n in range(min(number, len(left)))]
        number *= 2


def name_in(path: str, url: str, table: str) -> bytes:
    """Return the UUID in the path of an L1 object of this cluster. Raises `SafetyError` for any other path."""
    key = parse_level_one(path.removeprefix(url)) if path.startswith(url) else None
    if key is None or key.base < 0:
        raise SafetyError(
            f"table {table} names {path}, which is not an L1 object of this cluster: another program wrote it"
        )
    return name_bytes(key.name)


# -- writing --------------------------------------------------------------------------------------------------------------


class Replacement(_SnapshotProducer["Replacement"]):
    """The next snapshot, with some objects added and some removed.

    Args:
        manifests: the manifests of the current snapshot.
        read: the entries of the manifests that were read, by the manifests' paths. It must contain each manifest that
            names a dropped object.
    """

    def __init__(
        self,
        transaction: Any,
        io: FileIO,
        summary: Mapping[str, str],
        manifests: Sequence[ManifestFile],
        read: Mapping[str, Entries],
    ) -> None:
        operation = Operation.OVERWRITE if manifests else Operation.APPEND
        super().__init__(operation, transaction, io, snapshot_properties=dict(summary))
        self._known, self._read = manifests, dict(read)

    def _deleted_entries(self) -> list[ManifestEntry]:
        gone = {f.file_path for f in self._deleted_data_files}
        return [
            _as(e, ManifestEntryStatus.DELETED, self._snapshot_id)
            for m in self._read.values()
            for p, e in m.items()
            if p in gone
        ]

    def _existing_manifests(self) -> list[ManifestFile]:
        """Return the manifests that stay, and the new ones that replace the others."""
        gone = {f.file_path for f in self._deleted_data_files}

        def left(m: ManifestFile) -> Iterator[ManifestEntry]:
            entries = self._read.get(m.manifest_path) or _entries(self._io, m)
            return (_as(e, ManifestEntryStatus.EXISTING, e.snapshot_id) for p, e in entries.items() if p not in gone)

        small = [m for m in self._known if _files(m) < MANIFEST_FILES // 2]
        joined = small if len(small) >= SMALL_MANIFESTS else []
        kept: list[ManifestFile] = []
        for m in self._known:
            if m not in joined:
                untouched = gone.isdisjoint(self._read.get(m.manifest_path, ()))
                kept += [m] if untouched else self._write(left(m))
        return [*kept, *self._write(chain.from_iterable(map(left, joined)))]

    def _manifests(self) -> list[ManifestFile]:
        added = (
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=f,
            )
            for f in self._added_data_files
        )
        return [*self._existing_manifests(), *self._write(added), *self._write(self._deleted_entries())]

    def _write(self, entries: Iterable[ManifestEntry]) -> list[ManifestFile]:
        written, rest = [], iter(entries)
        while batch := list(islice(rest, MANIFEST_FILES)):
            with self.new_manifest_writer(self._transaction.table_metadata.spec()) as writer:
                for e in batch:
                    writer.add_entry(e)
            written.append(writer.to_manifest_file())
        return written

    def _refresh_for_retry(self) -> None:
        """Refuse to continue from a changed table, as PyIceberg would; everything is decided anew instead."""
        raise failed.CommitFailedException("the table was changed by another commit")


def _files(m: ManifestFile) -> int:
    return (m.added_files_count or 0) + (m.existing_files_count or 0)


def _as(e: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=e.sequence_number,
        file_sequence_number=e.file_sequence_number,
        data_file=e.data_file,
    )


def commit_snapshot(
    table: Table,
    summary: Mapping[str, str] | None,
    manifests: Sequence[ManifestFile] = (),
    read: Mapping[str, Entries] = {},
    added: Sequence[DataFile] = (),
    dropped: Collection[str] = (),
    expired: Collection[int] = (),
) -> None:
    """Commit the next snapshot and the removal of old ones together.

    Args:
        summary: the next snapshot's summary; None to only remove snapshots.
        manifests, read: see `Replacement`.
        added: the new objects; `dropped` has the paths of the removed ones.
        expired: the ids of the snapshots to remove.

    Raises:
        CommitFailedException: the table was changed since it was loaded; nothing was committed.
    """
    with table.transaction() as transaction:
        if summary is not None:
            producer = Replacement(transaction, table.io, summary, manifests, read)
            for f in added:
                producer.append_data_file(f)
            for entries in read.values():
                for path in entries.keys() & set(dropped):
                    producer.delete_data_file(entries[path].data_file)
            producer.commit()
        if expired:
            ExpireSnapshots(transaction).by_ids(sorted(expired)).commit()


# -- old metadata ---------------------------------------------------------------------------------------------------------


def named_by(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the paths of the manifest lists of snapshots, and of the manifests that these lists name."""
    all_snapshots = list(snapshots)
    manifest_paths = ExecutorFactory.get_or_create().map(
        lambda s: [m.manifest_path for m in s.manifests(table.io)], all_snapshots
    )
    return {s.manifest_list for s in all_snapshots}.union(*manifest_paths)


def metadata_files(table: Table) -> set[str]:
    """Return the metadata files that a table names: the current one, and those in its log."""
    log = {old.metadata_file for old in table.metadata.metadata_log}
    return named_by(table, table.metadata.snapshots) | {table.metadata_location} | log


def end_metadata(table: Table, paths: Collection[str], url: str) -> int:
    """Delete metadata files of the table that are no longer named, and return their number.

    Raises:
        SafetyError: one of the files is not a metadata file of this table, or lies in a folder of l0gc's own objects.
    """
    folder = metadata_folder(table)
    for path in paths:
        inside = path.startswith(folder) and _METADATA.fullmatch(path[len(folder) :])
        if not inside or any(path.startswith(f"{url}{own}") for own in OWN):
            raise SafetyError(f"{path} is not a metadata file of the table at {table.location()}, and was not deleted")
    io, deleted = table.io, 0
    for path in paths:
        with suppress(FileNotFoundError):  # the catalog or another sync has already deleted it
            io.delete(path)
            deleted += 1
    return deleted


OWN: Final = ("level_zero/", "level_one/", "l0gc/")
"""The folders of a cluster's own objects, relative to its URL."""


def unnamed(table: Table, age_ms: int | None = None) -> Iterator[str]:
    """Yield metadata files in the table's folder that the table does not name, which a killed run left behind.

    The table is loaded again after the listing, so that it then names files that another commit has written (hazard
    32).

    Args:
        age_ms: yield only files that were written this long before the table's current metadata, both by the
            warehouse's clock.
    """
    from pyarrow.fs import FileSelector
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(table.io, PyArrowFileIO):
        return
    folder = metadata_folder(table)
    scheme, host, path = PyArrowFileIO.parse_location(folder.rstrip("/"), table.io.properties)
    listed = table.io.fs_by_scheme(scheme, host).get_file_info(FileSelector(path, allow_not_found=True))
    written = {f"{folder}{info.base_name}": info.mtime for info in listed if info.is_file}
    named = set[str]()
    for state in (table, table.catalog.load_table(table.name())):
        named |= metadata_files(state) | {
            s.statistics_path for s in (*state.metadata.statistics, *state.metadata.partition_statistics)
        }
    now = written.get(table.metadata_location)
    for at, mtime in written.items():
        old = age_ms is None or (
            now is not None and mtime is not None and (now - mtime).total_seconds() * 1000 > age_ms
        )
        if old and at not in named and _METADATA.fullmatch(at.removeprefix(folder)):
            yield at
