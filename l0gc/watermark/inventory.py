"""An S3 Inventory: what its manifest says, and whether it is the one of this bucket.

An inventory stands in for the live listing and is days old. It decides nothing: M comes from the journals and the
controller's snapshot as always, and what the inventory adds is what the bucket held, so an epoch above the cluster epoch is
found in it as in a listing (hazard 10). A sweep never uses one.

Anything uncertain is refused: a manifest that does not match its checksum, another bucket's, a CSV file without column
names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from l0gc.errors import CorruptObjectError, NotFoundError, UsageError

CSV: Final = "csv"
PARQUET: Final = "parquet"
ORC: Final = "orc"

KEY: Final = "key"
SIZE: Final = "size"
BUCKET: Final = "bucket"
MODIFIED: Final = "last_modified_date"
LATEST: Final = "is_latest"
DELETE_MARKER: Final = "is_delete_marker"
CSV_NAMES: Final = {
    "Bucket": BUCKET,
    "Key": KEY,
    "Size": SIZE,
    "LastModifiedDate": MODIFIED,
    "IsLatest": LATEST,
    "IsDeleteMarker": DELETE_MARKER,
}
"""What CSV inventories call the columns that count here; Parquet and ORC have the names on the right."""

_SYMLINK: Final = "symlink.txt"
_CHECKSUM: Final = "manifest.checksum"
_MANIFEST: Final = "manifest.json"
_ARN: Final = re.compile(r"arn:[^:]+:s3:::")
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_SUFFIXES: Final = {".csv.gz": CSV, ".csv": CSV, ".parquet": PARQUET, ".orc": ORC}
_HIVE: Final = re.compile(r"(.*/)?hive/dt=(\d{4}-\d{2}-\d{2})-(\d{2}-\d{2})/$")

Read = Callable[[str], "bytes | None"]
"""The bytes of an `s3://` URL or a local path, None where there is nothing."""


class InventoryFile(msgspec.Struct, frozen=True):
    """A file of an inventory, at an `s3://` URL or a local path; `size` is -1 and `md5` empty where they are not known."""

    url: str
    size: int = -1
    md5: str = ""


class Inventory(msgspec.Struct, frozen=True):
    """What the bucket `source_bucket` held at `taken_ms`; each is None if the manifest does not state it.

    `columns` names those of a CSV file, in order; files of the other formats name their own.
    """

    format: str
    files: list[InventoryFile]
    source_bucket: str | None
    taken_ms: int | None
    columns: list[str] = []


class _ListedFile(msgspec.Struct, frozen=True, rename={"md5": "MD5checksum"}):
    key: str
    size: int = -1
    md5: str = ""


class _Manifest(msgspec.Struct, frozen=True, rename="camel"):
    source_bucket: str
    destination_bucket: str
    file_format: str
    file_schema: str
    creation_timestamp: str | int
    files: list[_ListedFile]


_MANIFESTS: Final = msgspec.json.Decoder(_Manifest)


def read_inventory(url: str, bucket: str, read: Read) -> Inventory:
    """The inventory whose `manifest.json` or `symlink.txt` lies at `url`, an `s3://` URL or a local path.

    Args:
        bucket: the one that it has to be of.

    Raises:
        NotFoundError: nothing exists there.
        CorruptObjectError: it does not match its checksum, or is not a manifest.
        UsageError: it is another bucket's, or of an unknown format.
    """
    body = read(url)
    if body is None:
        raise NotFoundError(f"the inventory manifest {url} does not exist")
    folder, _, name = url.rpartition("/")
    folder = f"{folder}/" if folder or url.startswith("/") else "./"
    inventory = (_linked if name == _SYMLINK else _listed)(url, body, folder, read)
    if inventory.source_bucket not in {None, bucket}:
        raise UsageError(
            f"{url} is an inventory of bucket {inventory.source_bucket!r}, and the cluster is in {bucket!r}: give the "
            "manifest of that bucket's inventory"
        )
    return inventory


def _listed(url: str, body: bytes, folder: str, read: Read) -> Inventory:
    """What `manifest.json` says."""
    _check_body(url, body, read(folder + _CHECKSUM))
    try:
        manifest = _MANIFESTS.decode(body)
        taken_ms = int(manifest.creation_timestamp)
    except (msgspec.DecodeError, ValueError) as e:
        raise CorruptObjectError(f"{url} is not a manifest of an S3 Inventory: {e}") from e
    kind = manifest.file_format.lower()
    if kind not in _SUFFIXES.values():
        raise UsageError(f"{url} has files of format {manifest.file_format!r}; CSV, ORC and Parquet can be read")
    wrong = [f for f in manifest.files if f.md5 and not _MD5.fullmatch(f.md5.lower())]
    if wrong:
        raise CorruptObjectError(f"{url} gives {wrong[0].md5!r} for {wrong[0].key}, which is not an MD5 checksum")
    base = f"s3://{_ARN.sub('', manifest.destination_bucket, count=1)}/"
    files = [
        InventoryFile(base + f.key if folder.startswith("s3://") else _copied(f.key, folder), f.size, f.md5.lower())
        for f in manifest.files
    ]
    columns = [n.strip() for n in manifest.file_schema.split(",")] if kind == CSV else []
    return Inventory(kind, files, manifest.source_bucket, taken_ms, [CSV_NAMES.get(n, n) for n in columns])


def _linked(url: str, body: bytes, folder: str, read: Read) -> Inventory:
    """What `symlink.txt` says, and more if the manifest of the same inventory is found: it names the same files."""
    lines = (line.strip() for line in body.decode(errors="replace").split("\n"))
    files = [InventoryFile(line) for line in lines if line]
    strange = [f.url for f in files if not f.url.startswith("s3://") or _format(f.url) is None]
    if strange:
        raise CorruptObjectError(f"{url} names {strange[0]!r}, which is not an s3:// URL of a CSV, ORC or Parquet file")
    hive = _HIVE.match(folder)
    taken_ms = None
    folders = [folder]
    if hive is not None:
        with suppress(ValueError):  # digits that are not a time: it is unknown then
            taken = datetime.strptime(f"{hive[2]}-{hive[3]}", "%Y-%m-%d-%H-%M").replace(tzinfo=UTC)
            taken_ms = int(taken.timestamp() * 1000)
        folders.append(f"{hive[1] or ''}{hive[2]}T{hive[3]}Z/")
    for beside in folders:
        manifest = read(beside + _MANIFEST)
        if manifest is not None:
            listed = _listed(beside + _MANIFEST, manifest, beside, read)
            names, linked = (sorted(f.url.rpartition("/")[2] for f in some) for some in (listed.files, files))
            if names != linked:
                raise CorruptObjectError(f"{url} and {beside}{_MANIFEST} name different files")
            return listed
    _check_body(url, body, read(folder + _CHECKSUM))
    kinds = {_format(f.url) for f in files}
    if len(kinds) > 1 or CSV in kinds:
        raise UsageError(
            f"{url} names files whose columns only a manifest names, but no manifest lies next to it: give manifest.json"
        )
    return Inventory(next(iter(kinds), None) or PARQUET, files, None, taken_ms)


def _check_body(url: str, body: bytes, checksum: bytes | None) -> None:
    """Compare with the MD5 in `manifest.checksum`, if there is one."""
    if checksum is None:
        return
    expected = checksum.decode(errors="replace").strip().strip('"').lower()
    if expected != hashlib.md5(body, usedforsecurity=False).hexdigest():
        raise CorruptObjectError(f"{url} does not match its {_CHECKSUM}; take another inventory, or copy it again")


def _format(url: str) -> str | None:
    return next((kind for suffix, kind in _SUFFIXES.items() if url.endswith(suffix)), None)


def _copied(key: str, folder: str) -> str:
    """Where a file lies whose manifest was copied to a local folder: there or one above, under the end of its key."""
    parts, here = key.split("/"), Path(folder).absolute()
    tries = [base.joinpath(*parts[i:]) for i in range(len(parts)) for base in (here, here.parent)]
    return str(next((t for t in tries if t.is_file()), tries[-2]))
