"""What the files of an S3 Inventory amount to: objects and bytes at each epoch, a batch of rows at a time.

Only keys in the cluster's data prefix count; an inventory may be of the whole bucket. In one with all versions, what is
there now counts as objects, what a delete or another version covers counts apart, and delete markers are nothing.
Everything is done on columns: an inventory may have more rows than Python can read one by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from l0gc import columns
from l0gc.errors import CorruptObjectError, UsageError
from l0gc.key_columns import KeyColumns
from l0gc.watermark.histogram import EpochRow, schema_of
from l0gc.watermark.inventory import BUCKET, CSV, DELETE_MARKER, KEY, LATEST, MODIFIED, ORC, SIZE

ROWS: Final = schema_of(EpochRow)

_NOTHING: Final = pa.Table.from_arrays(
    [columns.strings([]) if pa.types.is_string(f.type) else columns.integers([]) for f in ROWS], schema=ROWS
)
_BATCH: Final = 1 << 17
_BLOCK: Final = 8 << 20
_TYPES: Final = {
    BUCKET: pa.string(),
    KEY: pa.string(),
    SIZE: pa.int64(),
    MODIFIED: pa.timestamp("ms", "UTC"),
    LATEST: pa.bool_(),
    DELETE_MARKER: pa.bool_(),
}
_SUMS: Final = ("objects", "bytes", "noncurrent_objects", "noncurrent_bytes")
_TOLD: Final = (pa.ArrowException, OSError, EOFError, zlib.error)
"""What pyarrow raises over a file that is not what it should be."""


def histogram_of(
    path: str, name: str, kind: str, csv_columns: Sequence[str], keys: KeyColumns, bucket: str
) -> pa.Table:
    """A row for each epoch in one inventory file, with null for keys that are not L0 keys.

    Args:
        path: where it is on this machine.
        name: what messages call it.
        bucket: the one that every row has to be of.

    Raises:
        CorruptObjectError: the file cannot be read.
        UsageError: it lacks a column, or is another bucket's.
    """
    parts: list[pa.Table] = []
    try:
        for batch in _batches(path, name, kind, csv_columns):
            _check_bucket(batch, name, bucket)
            parts += _counted(batch, name, keys, encoded=kind == CSV)
            if len(parts) > 64:
                parts = [merged(parts)]
    except _TOLD as e:
        raise CorruptObjectError(f"{name} cannot be read as {kind}: {' '.join(str(e).split())}") from e
    return merged(parts)


def merged(parts: Sequence[pa.Table]) -> pa.Table:
    """One row for each epoch, of tables that may have several."""
    parts = [p for p in parts if p.num_rows]
    if not parts:
        return _NOTHING
    rows = {name: pa.concat_arrays([c for p in parts for c in p[name].chunks]) for name in ROWS.names}
    groups = columns.Groups(rows["epoch"])
    found = {name: groups.sums(rows[name]) for name in _SUMS} | {
        "epoch": groups.values,
        "sample_key": rows["sample_key"].take(groups.first()),
        "oldest_ms": groups.least(rows["oldest_ms"]),
    }
    return pa.Table.from_arrays([found[name] for name in ROWS.names], schema=ROWS)


# -- one batch ------------------------------------------------------------------------------------------------------------


def _counted(batch: pa.RecordBatch, name: str, keys: KeyColumns, *, encoded: bool) -> Iterator[pa.Table]:
    """The current objects of a batch, and the noncurrent ones."""
    if batch[KEY].null_count:
        raise CorruptObjectError(f"{name} has rows without a key")
    if encoded:
        batch = batch.set_column(batch.schema.get_field_index(KEY), KEY, decoded(batch[KEY]))
    wanted = keys.below(batch[KEY])
    if DELETE_MARKER in batch.schema.names:
        marker = batch[DELETE_MARKER]
        wanted = pc.and_not(wanted, pc.and_kleene(marker, pc.is_valid(marker)))  # null means not a marker
    if not pc.all(wanted).as_py():
        batch = batch.filter(wanted)
    if batch[SIZE].null_count:
        raise CorruptObjectError(f"{name} has objects without a size")
    if LATEST not in batch.schema.names or pc.all(batch[LATEST]).as_py():
        yield _grouped(batch, keys, current=True)
        return
    latest = pc.or_kleene(batch[LATEST], pc.is_null(batch[LATEST]))  # an unknown one is current
    yield _grouped(batch.filter(latest), keys, current=True)
    yield _grouped(batch.filter(pc.invert(latest)), keys, current=False)


def _grouped(batch: pa.RecordBatch, keys: KeyColumns, *, current: bool) -> pa.Table:
    groups = columns.Groups(keys.epochs(batch[KEY]))
    n = len(groups.values)
    none = columns.repeated(0, n)
    counts, nothing = (groups.counts(), groups.sums(batch[SIZE])), (none, none)
    oldest = none
    if MODIFIED in batch.schema.names:
        oldest = groups.least(pc.coalesce(batch[MODIFIED].cast(pa.int64()), columns.scalar(0)))
    objects, noncurrent = (counts, nothing) if current else (nothing, counts)
    samples = pc.utf8_slice_codeunits(batch[KEY].take(groups.first()), len(keys.prefix))
    return pa.Table.from_arrays([groups.values, *objects, samples, oldest, *noncurrent], schema=ROWS)


def decoded(keys: pa.Array) -> pa.Array:
    """What URL-encoded keys stand for: `+` is a space, `%XX` a byte of UTF-8."""
    escaped = pc.match_substring_regex(keys, "[%+]")
    if not pc.any(escaped).as_py():
        return keys
    plain = columns.strings([unquote_plus(k) for k in keys.filter(escaped).to_pylist()])
    return pc.replace_with_mask(keys, escaped, plain)


def _check_bucket(batch: pa.RecordBatch, name: str, bucket: str) -> None:
    for found in pc.unique(batch[BUCKET]).to_pylist():
        if found != bucket:
            raise UsageError(f"{name} is of an inventory of bucket {found!r}, and the cluster is in {bucket!r}")


# -- formats --------------------------------------------------------------------------------------------------------------


def _batches(path: str, name: str, kind: str, csv_columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns that count, in the types that they count in."""
    reader = {CSV: _csv, ORC: _orc}.get(kind, _parquet)
    for batch in reader(path, name, csv_columns):
        here = batch.schema.names
        arrays = [batch[c] if c == BUCKET else batch[c].cast(_TYPES[c], safe=False) for c in here]
        yield pa.RecordBatch.from_arrays(arrays, names=here)


def _needed(name: str, there: Sequence[str]) -> list[str]:
    """Those of the columns that count that are there."""
    for column in (BUCKET, KEY, SIZE):
        if column not in there:
            raise UsageError(f"{name} has no column {column!r}: have the inventory configured with it")
    return [c for c in _TYPES if c in there]


def _parquet(path: str, name: str, _: Sequence[str]) -> Iterator[pa.RecordBatch]:
    metadata = pq.read_metadata(path)
    wanted = _needed(name, metadata.schema.to_arrow_schema().names)
    with pq.ParquetFile(path, metadata=metadata, memory_map=True, read_dictionary=[BUCKET]) as file:
        yield from file.iter_batches(_BATCH, columns=wanted, use_threads=False)


def _orc(path: str, name: str, _: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow.orc import ORCFile  # slow to load, and rarely needed

    file = ORCFile(path)
    wanted = _needed(name, file.schema.names)
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe, columns=wanted)


def _csv(path: str, name: str, csv_columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    wanted = _needed(name, csv_columns)
    packed = "gzip" if name.endswith(".gz") else None
    with pa.input_stream(path, compression=packed) as peek:
        if not peek.read(1):
            return
    with pa.input_stream(path, compression=packed) as rows:
        yield from pyarrow.csv.open_csv(
            rows,
            pyarrow.csv.ReadOptions(column_names=list(csv_columns), block_size=_BLOCK, use_threads=False),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=wanted, column_types=_TYPES, null_values=[""], quoted_strings_can_be_null=True
            ),
        )
