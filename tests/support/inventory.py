"""S3 Inventories as AWS writes them: the files in the three formats, the manifest, its checksum and the Hive symlink."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq

TAKEN_MS = 1_763_600_400_000
FOLDER = "inv/data-bucket/daily/"
MANIFEST = f"{FOLDER}2025-11-20T01-00Z/manifest.json"
SYMLINK = f"{FOLDER}hive/dt=2025-11-20-01-00/symlink.txt"


@dataclass(frozen=True)
class Row:
    """One object version, or a delete marker."""

    key: str
    size: int | None
    modified_ms: int = 1_763_000_000_123
    latest: bool = True
    marker: bool = False


@dataclass
class Made:
    """An inventory: what lies at which key of its bucket."""

    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def data_keys(self) -> list[str]:
        return [k for k in self.objects if "/data/" in k]


def made(
    kind: str,
    rows: Sequence[Row],
    *,
    source: str = "data-bucket",
    destination: str = "inventories",
    versions: bool = False,
    files: int = 2,
) -> Made:
    """An inventory of `rows` in so many files of a format: CSV, Parquet or ORC."""
    result, listed = Made(), []
    for i in range(files):
        key = f"{FOLDER}data/{i:08}-ea8268b2.{ {'CSV': 'csv.gz', 'Parquet': 'parquet', 'ORC': 'orc'}[kind] }"
        body = _FORMATS[kind](source, rows[i::files], versions)
        result.objects[key] = body
        listed.append({"key": key, "size": len(body), "MD5checksum": hashlib.md5(body).hexdigest()})
    manifest = {
        "sourceBucket": source,
        "destinationBucket": f"arn:aws:s3:::{destination}",
        "version": "2016-11-30",
        "creationTimestamp": str(TAKEN_MS),
        "fileFormat": kind,
        "fileSchema": _schema(kind, versions),
        "files": listed,
    }
    put_manifest(result, json.dumps(manifest, indent=2).encode())
    result.objects[SYMLINK] = "\r\n".join(f"s3://{destination}/{f['key']}" for f in listed).encode()
    return result


def put_manifest(inventory: Made, body: bytes) -> None:
    """Put a manifest, with its checksum."""
    inventory.objects[MANIFEST] = body
    inventory.objects[MANIFEST.replace(".json", ".checksum")] = hashlib.md5(body).hexdigest().encode() + b"\n"


def _schema(kind: str, versions: bool) -> str:
    if kind == "CSV":
        return f"Bucket, Key,{' VersionId, IsLatest, IsDeleteMarker,' if versions else ''} Size, LastModifiedDate, ETag"
    if kind == "ORC":
        more = "version_id:string,is_latest:boolean,is_delete_marker:boolean," if versions else ""
        return f"struct<bucket:string,key:string,{more}size:bigint,last_modified_date:timestamp,e_tag:string>"
    more = "optional binary version_id (UTF8); optional boolean is_latest; optional boolean is_delete_marker; "
    return (
        f"message s3.inventory {{ required binary bucket (UTF8); required binary key (UTF8); {more if versions else ''}"
        "optional int64 size; optional int64 last_modified_date (TIMESTAMP_MILLIS); optional binary e_tag (UTF8);}"
    )


def _csv(source: str, rows: Sequence[Row], versions: bool) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for r in rows:
        when = datetime.fromtimestamp(r.modified_ms / 1000, UTC).isoformat(timespec="milliseconds")
        version = ["v1", str(r.latest).lower(), str(r.marker).lower()] if versions else []
        key = quote_plus(r.key, safe="/")
        writer.writerow([source, key, *version, "" if r.size is None else r.size, when.replace("+00:00", "Z"), "e"])
    return gzip.compress(text.getvalue().encode())


def _table(source: str, rows: Sequence[Row], versions: bool, when: pa.DataType) -> pa.Table:
    columns = {
        "bucket": pa.array([source] * len(rows), pa.string()),
        "key": pa.array([r.key for r in rows], pa.string()),
        "version_id": pa.array(["v1"] * len(rows), pa.string()),
        "is_latest": pa.array([r.latest for r in rows], pa.bool_()),
        "is_delete_marker": pa.array([r.marker for r in rows], pa.bool_()),
        "size": pa.array([r.size for r in rows], pa.int64()),
        "last_modified_date": pa.array([r.modified_ms for r in rows], pa.timestamp("ms", "UTC")).cast(when),
        "e_tag": pa.array(["e"] * len(rows), pa.string()),
    }
    left_out = set() if versions else {"version_id", "is_latest", "is_delete_marker"}
    return pa.table({name: column for name, column in columns.items() if name not in left_out})


def _parquet(source: str, rows: Sequence[Row], versions: bool) -> bytes:
    out = io.BytesIO()
    pq.write_table(_table(source, rows, versions, pa.timestamp("ms", "UTC")), out, compression="snappy")
    return out.getvalue()


def _orc(source: str, rows: Sequence[Row], versions: bool) -> bytes:
    out = io.BytesIO()
    pyarrow.orc.write_table(_table(source, rows, versions, pa.timestamp("ns")), out)
    return out.getvalue()


_FORMATS = {"CSV": _csv, "Parquet": _parquet, "ORC": _orc}
KINDS = sorted(_FORMATS)
