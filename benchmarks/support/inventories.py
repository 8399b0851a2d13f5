"""A Parquet inventory of any size, the same each time, as S3 writes it: many files, a manifest, and its checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from l0gc.keys import KeyLayout

BUCKET: Final = "data-bucket"
PREFIX: Final = "prod/cluster-a/"
EPOCHS: Final = 2000
WATERMARK: Final = 1500
_TAKEN_MS: Final = 1_763_600_400_000
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_NAME: Final = "00000000-0000-0000-0000-000000000000"


def write_inventory(folder: Path, rows: int, files: int) -> Path:
    """Write the files and `manifest.json`, whose path it returns. Keys are in no order."""
    (folder / "data").mkdir(parents=True)
    listed = []
    for number in range(files):
        path = folder / "data" / f"{number:08}.parquet"
        pq.write_table(_table(number, rows * (number + 1) // files - rows * number // files), path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "md5").hexdigest()
        listed.append({"key": f"data/{path.name}", "size": path.stat().st_size, "MD5checksum": digest})
    manifest = {
        "sourceBucket": BUCKET,
        "destinationBucket": "arn:aws:s3:::inventories",
        "version": "2016-11-30",
        "creationTimestamp": str(_TAKEN_MS),
        "fileFormat": "Parquet",
        "fileSchema": "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); "
        "optional int64 size; optional int64 last_modified_date (TIMESTAMP_MILLIS);}",
        "files": listed,
    }
    body = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(body)
    (folder / "manifest.checksum").write_text(hashlib.md5(body, usedforsecurity=False).hexdigest())
    return folder / "manifest.json"


def _table(seed: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "bucket": pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [BUCKET]).cast(pa.string()),
            "key": _keys(rng, rows),
            "size": rng.integers(1, 4 << 20, rows),
            "last_modified_date": pa.array(_TAKEN_MS - rng.integers(0, 1 << 30, rows)).cast(pa.timestamp("ms", "UTC")),
        }
    )


def _keys(rng: np.random.Generator, rows: int) -> pa.Array:
    """Keys of random shards, epochs and names, written a column of characters at a time."""
    layout = KeyLayout()
    text = np.tile(np.frombuffer((PREFIX + layout.format(0, 0, _NAME)).encode(), np.uint8), (rows, 1))
    first, end, epoch, epoch_end = (len(PREFIX) + place for place in layout.places)
    for values, start, stop in (
        (rng.integers(0, layout.shards, rows), first, end),
        (rng.integers(1, EPOCHS + 1, rows), epoch, epoch_end),
    ):
        for place in range(stop - start):
            text[:, stop - 1 - place] += (values // 10**place % 10).astype(np.uint8)
    name = text.shape[1] - len(_NAME)
    places = [name + i for i, c in enumerate(_NAME) if c != "-"]
    text[:, places] = _HEX[rng.integers(0, 16, (rows, len(places)))]
    offsets = np.arange(0, text.size + 1, text.shape[1], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text.tobytes())])
