"""What an input is, by its first bytes and its name: lines, compressed lines, or something that upload must not take.

gzip and zstd are known by their first bytes, and are decompressed as they are read. An input's identity (`inputs.py`) is
that of its records, after this: the same file packed again, or not at all, is the same input, and lands nothing twice. A
UTF-8 byte order mark is dropped at the very beginning. A file without lines, which may hold newlines by chance, is refused
before anything is sent. `RAW` takes any bytes as they are: cut at newlines, nothing dropped, nothing unpacked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePath
from typing import BinaryIO, Final

from l0gc.errors import UsageError

AUTO: Final = "auto"
RAW: Final = "raw"
FORMATS: Final = (AUTO, RAW)

_HEAD_BYTES: Final = 8000
"""So much is looked at to distinguish text from binary, as git does."""
_LONGEST_MAGIC: Final = 16
_BOM: Final = b"\xef\xbb\xbf"
_PACKED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""What is unpacked, by its first bytes. Arrow does it: unlike others it detects a stream that was cut short."""
BLOCK_BYTES: Final = 256 << 10
"""How much is read at once."""

_OTHERS: Final = (
    (b"PAR1\x15", "Parquet"),
    (b"Obj\x01", "Avro"),
    (b"ARROW1\0", "an Arrow file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh91AY&SY", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"%PDF-", "PDF"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\x00", "an SQLite database"),
)
"""The first bytes of files without lines, and their kind. Only PDF's could begin a line of text or JSON."""
_TABLES: Final = {".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet", ".orc": "ORC", ".avro": "Avro"}
"""What a name says where the bytes cannot: any CSV is also lines, its heading the first of them."""
_UNPACK: Final = {"bzip2": "bzip2 -dc", "xz": "xz -dc", "lz4": "lz4 -dc", "a zip archive": "unzip -p"}
_SPARK: Final = {"CSV": "csv", "TSV": "csv", "Parquet": "parquet", "ORC": "orc", "Avro": "avro"}


def as_lines(pieces: Iterator[bytes], name: str, form: str) -> Iterator[bytes]:
    """Return the records' bytes, piece by piece; the first pieces have been looked at by then.

    Args:
        pieces: an input's bytes as they are.
        name: of the input, for messages; its ending shows a table.
        form: `AUTO`, or `RAW` for the bytes as they are.

    Raises:
        UsageError: it is something else than lines. While it is read: it is compressed and damaged, or cut short.
    """
    if form == RAW:
        return pieces
    head = b""
    while len(head) < _LONGEST_MAGIC and (piece := next(pieces, b"")):
        head += piece
    suffix = PurePath(name).suffix.lower()
    kind = next((kind for magic, kind in _OTHERS if head.startswith(magic)), _TABLES.get(suffix))
    if kind:
        raise UsageError(_refusal(name, kind))
    packed = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), None)
    if packed is not None:
        stem = name[: -len(suffix)] if suffix in {".gz", ".zst", ".zstd"} else name
        return as_lines(_unpacked(chain([head], pieces), name, packed), stem, form)
    if b"\0" in head[:_HEAD_BYTES]:
        raise UsageError(_refusal(name, "ORC" if head.startswith(b"ORC") else "binary data"))
    return chain([head.removeprefix(_BOM)], pieces)


def file_pieces(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of an open file, from where it is."""
    read = getattr(file, "read1", file.read)
    while piece := read(BLOCK_BYTES):
        yield piece


def plain_size(path: object, form: str) -> int | None:
    """How many bytes a file's records have, for a share of them; None if only reading shows it: packed, or not a file."""
    if not isinstance(path, str | os.PathLike):
        return None
    try:
        if not Path(path).is_file():
            return None
        with Path(path).open("rb") as f:
            packed = form != RAW and f.read(4).startswith(tuple(_PACKED))
            return None if packed else os.fstat(f.fileno()).st_size
    except OSError:
        return None


def _refusal(name: str, kind: str) -> str:
    """One sentence: what it is, and what takes it."""
    what = f"{name} is {kind}, and upload takes newline-delimited records: "
    if kind in _UNPACK:
        return f"{what}{_UNPACK[kind]} {name} | l0gc upload TOPIC - unpacks it"
    if kind == "UTF-16 text":
        return f"{what}iconv -f UTF-16 -t UTF-8 {name} | l0gc upload TOPIC - converts it"
    if kind in _SPARK:
        return (
            f"{what}Spark takes it with spark.read.{_SPARK[kind]} and .write.format('l0gc') (docs/spark.md), "
            f"or --format {RAW} its bytes as they are"
        )
    return f"{what}write one record a line, or take its bytes as they are with --format {RAW}"


class _Pieces:
    """Pieces as Arrow reads a file."""

    closed = False

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def read(self, size: int) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        piece, self._rest = self._rest[:size], self._rest[size:]
        return bytes(piece)

    def close(self) -> None:
        self.closed = True


def _unpacked(pieces: Iterator[bytes], name: str, kind: str) -> Iterator[bytes]:
    """What is in it, piece by piece."""
    import pyarrow as pa  # here, since `l0gc upload --help` needs FORMATS alone

    with pa.CompressedInputStream(pa.PythonFile(_Pieces(pieces), mode="r"), kind) as stream:
        try:
            while piece := stream.read(BLOCK_BYTES):
                yield piece
        except OSError as e:
            raise UsageError(f"{name} is {kind}, and damaged or cut short ({e})") from e
