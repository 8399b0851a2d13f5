"""What an input is, by its first bytes and its name: lines, compressed lines, or something that upload must not take.

gzip and zstd are known by their first bytes, and are decompressed as they are read. An input's identity (`inputs.py`) is
that of its records, after this: the same file packed again, or not at all, is the same input, and lands nothing twice. A
UTF-8 byte order mark is dropped at the very beginning. A file without lines, which may hold newlines by chance, is refused
before anything is sent. `RAW` takes any bytes as they are: cut at newlines, nothing dropped, nothing unpacked.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Final

from l0gc.errors import UsageError

AUTO: Final = "auto"
RAW: Final = "raw"
FORMATS: Final = (AUTO, RAW)

_HEAD_BYTES: Final = 8000
"""So much is read to distinguish text from binary, as git does."""
_BOM: Final = b"\xef\xbb\xbf"
_PACKED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""What is unpacked, by its first bytes. Arrow does it: unlike others it detects a stream that was cut short."""
_BLOCK_BYTES: Final = 256 << 10

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


class DamagedInputError(UsageError):
    """A compressed input that cannot be decompressed to its end."""


def as_lines(file: BinaryIO, name: str, form: str) -> BinaryIO:
    """The records' bytes of an open input, which closes with it.

    Args:
        name: of the input, for messages; its ending shows a table.
        form: `AUTO`, or `RAW` for the bytes as they are.

    Raises:
        UsageError: it is something else than lines.
        DamagedInputError: when it is read: it is compressed and damaged, or cut short.
    """
    if form == RAW:
        return file
    try:
        return _decoded(file, name)
    except BaseException:
        file.close()
        raise


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


def _decoded(file: BinaryIO, name: str) -> BinaryIO:
    begin = file.tell() if file.seekable() else None  # stdin may be a file of which somebody has read some
    head = _head(file)
    kind = next((kind for magic, kind in _OTHERS if head.startswith(magic)), _table(name))
    if kind:
        raise UsageError(_refusal(name, kind))
    packed = next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), None)
    if packed is not None:
        return _decoded(_unpacked(_from(begin, head, file), name, packed), _stem(name))
    if b"\0" in head:
        raise UsageError(_refusal(name, "ORC" if head.startswith(b"ORC") else "binary data"))
    return _from(begin, head, file, skip=len(_BOM) if head.startswith(_BOM) else 0)


def _table(name: str) -> str:
    return _TABLES.get(PurePath(name).suffix.lower(), "")


def _stem(name: str) -> str:
    """`day.csv.gz` is `day.csv`, once it is unpacked."""
    return name[: -len(suffix)] if (suffix := PurePath(name).suffix).lower() in {".gz", ".zst", ".zstd"} else name


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


def _head(file: BinaryIO) -> bytes:
    """The first bytes, as many as the first read gives, and enough for every magic number."""
    head = b""
    while len(head) < 16 and (piece := file.read1(_HEAD_BYTES)):  # type: ignore[attr-defined]  # of a buffered file
        head += piece
    return head


def _from(begin: int | None, head: bytes, file: BinaryIO, skip: int = 0) -> BinaryIO:
    """The file from where it began, but for `skip` bytes, though `head` has been read."""
    if begin is not None:
        file.seek(begin + skip)
        return file
    return file_of(_pieces(head[skip:], file), file.close)


def _pieces(head: bytes, file: Any) -> Iterator[bytes]:
    if head:
        yield head
    while piece := file.read1(_BLOCK_BYTES):
        yield piece


def _unpacked(file: BinaryIO, name: str, kind: str) -> BinaryIO:
    """What is in it, piece by piece. It is not seekable: a second reading opens the input again."""
    import pyarrow as pa  # here, since `l0gc upload --help` needs FORMATS alone

    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), kind)

    def pieces() -> Iterator[bytes]:
        try:
            while piece := stream.read(_BLOCK_BYTES):
                yield piece
        except OSError as e:
            raise DamagedInputError(f"{name} is {kind}, and damaged or cut short ({e})") from e

    def close() -> None:
        stream.close()
        file.close()

    return file_of(pieces(), close)


def file_of(pieces: Iterator[bytes], close: Callable[[], object] = lambda: None) -> BinaryIO:
    """Bytes that come piece by piece, as a file.

    Args:
        close: called when the file is closed. Without it, what the pieces come from stays open, and is the caller's.
    """
    return io.BufferedReader(_Pieces(pieces, close), _BLOCK_BYTES)


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes], close: Callable[[], object]) -> None:
        self._pieces, self._close, self._rest = pieces, close, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        n = min(len(buffer), len(self._rest))
        buffer[:n], self._rest = self._rest[:n], self._rest[n:]
        return n

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._close()
