"""Read inputs: records from files, stdin or the program. They are read in bounded memory, and identified by their content.

An input's first bytes and its name determine whether it is lines, compressed lines, or something that upload must refuse.
gzip and zstd are decompressed while they are read. A UTF-8 byte order mark is dropped at the very beginning. A file
without lines, which may contain newlines by chance, is refused before anything is sent. `RAW` accepts any bytes unchanged:
they are cut at newlines, but not unpacked, and nothing is dropped.

Why a repeated upload is safe: an input is identified by a hash over its unpacked records and the way they are spread,
never by its name. So the same file, packed or not, is the same input, and nothing lands twice. The hash must be known
before the first batch is sent. With a producer, stdin or a pipe, which can be read only once, is therefore stored in a
temporary file. No more bytes are read than were hashed: if a file grew in between, a repeated upload would see it under
another hash, and would send the appended records again.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias, cast

from l0gc.errors import UsageError
from l0gc.limits import MAX_RECORD_BYTES
from l0gc.operations import LENGTH_BYTES
from l0gc.streamlog.journal.producers import INPUTS_KEPT

if TYPE_CHECKING:
    from l0gc.operations import TimestampUnit
    from l0gc.streamlog.controller.value_schema import ValueSchema
    from l0gc.streamlog.ingest.records import ArrowStream, RecordLike

AUTO: Final = "auto"
RAW: Final = "raw"
LENGTH_PREFIXED: Final = "length-prefixed"
LINES: Final = "lines"
VALUES: Final = "values"
RECORDS: Final = "records"

_HEAD_BYTES: Final = 8000
"""How many bytes are inspected to distinguish text from binary, as git does."""
_LONGEST_MAGIC: Final = 16
_BOM: Final = b"\xef\xbb\xbf"
_PACKED: Final = (
    (re.compile(rb"\x1f\x8b"), "gzip"),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL), "zstd"),
)
"""The formats to unpack, by their first bytes. A file of pzstd begins with a skippable frame. Arrow unpacks zstd, since it
detects a truncated stream.
"""
_GZIP: Final = 31
"""Makes zlib expect gzip, with the largest window."""
_ZSTD_WINDOW: Final = "too much memory"
"""Part of Arrow's message for a frame whose window is larger than its decoder allows, which is 128 MiB."""
_BLOCK_BYTES: Final = 256 << 10
"""How many bytes are read at once."""

_OTHERS: Final = (
    (b"PAR1\x15", "Parquet"),
    (b"Obj\x01", "Avro"),
    (b"ARROW1\0", "an Arrow file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh91AY&SY", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\x02\x21\x4c\x18", "lz4"),
    (b"\x1f\x9d", "a compress file"),
    (b"LZIP\x01", "lzip"),
    (b"\x89LZO\0", "lzop"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\xff\x06\0\0sNaPpY", "snappy"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"%PDF-", "PDF"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3\x00", "an SQLite database"),
)
"""The first bytes of files without lines, and their kind. Only PDF's could begin a line of text or JSON."""
_TABLES: Final = {
    ".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet", ".orc": "ORC", ".avro": "Avro", ".br": "brotli", ".lzma": "lzma"
}  # fmt: skip
"""Kinds that only a file's name shows: any CSV also consists of lines, with its heading as the first."""
_TABLE_FORMATS: Final = ("parquet", "arrow")
_KINDS: Final = {LENGTH_PREFIXED: VALUES, **dict.fromkeys(_TABLE_FORMATS, RECORDS)}
_UNPACK: Final = {
    "bzip2": "bzip2 -dc",
    "xz": "xz -dc",
    "lz4": "lz4 -dc",
    "a zip archive": "unzip -p",
    "a compress file": "gzip -dc",
    "lzip": "lzip -dc",
    "lzop": "lzop -dc",
    "a 7-Zip archive": "7z x -so",
    "a RAR archive": "unrar p -inul",
    "snappy": "snzip -dc",
    "brotli": "brotli -dc",
    "lzma": "xz --format=lzma -dc",
}
"""How to unpack other packed formats, whose bytes are not records as they are."""
_SPARK: Final = {"CSV": "csv", "TSV": "csv", "Parquet": "parquet", "ORC": "orc", "Avro": "avro"}

_FRAME_BYTES: Final = 1 << 20
"""The largest overhead of a packed record, without the lengths of header keys."""
STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Input:
    """One file of an upload.

    Attributes:
        input_id: empty if it need not be recognised.
        pieces: returns its bytes; can be called again if it has an id.
        size: the bytes that the id covers; None without an id.
        kind: `LINES`, `VALUES`, each preceded by its length, or `RECORDS`, packed by `records.py`.
    """

    name: str
    input_id: str
    pieces: Callable[[], Iterator[bytes]]
    size: int | None = None
    kind: str = LINES

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield the records, several hundred at a time; lines come without their newline, which the last one may lack.

        Raises:
            UsageError: a record is longer than `MAX_RECORD_BYTES`, or the input is shorter than when its id was computed.
        """
        return _lines(self._bounded(), self.name) if self.kind == LINES else _frames(self._bounded(), self.name)

    def _bounded(self) -> Iterator[bytes]:
        """Yield no more of its bytes than were hashed. Raises `UsageError` if there are fewer."""
        left = self.size
        for piece in self.pieces():
            yield piece[:left]
            if left is not None:
                left -= len(piece[:left])
                if left == 0:
                    break
        if left:
            raise UsageError(
                f"{self.name} was truncated by {left} bytes while it was uploaded; the records before that are "
                f"uploaded. Upload it again once it no longer changes"
            )


def _lines(pieces: Iterator[bytes], name: str) -> Iterator[list[bytes]]:
    number, rest = 0, b""
    for block in pieces:
        records = block.split(b"\n")
        records[0] = rest + records[0]
        if len(rest) + len(block) > MAX_RECORD_BYTES:
            for i, record in enumerate(records, number + 1):
                if len(record) > MAX_RECORD_BYTES:
                    raise UsageError(
                        f"{name} line {i} is longer than {MAX_RECORD_BYTES} bytes, the most that a record may "
                        "have: split it, or leave it out"
                    )
        rest = records.pop()
        number += len(records)
        if records:
            yield records
    if rest:
        yield [rest]


def _frames(pieces: Iterator[bytes], name: str) -> Iterator[list[bytes]]:
    """Yield records that are each preceded by their length."""
    number, rest = 0, b""
    for piece in pieces:
        block, records, at = rest + piece, list[bytes](), 0
        while at + LENGTH_BYTES <= len(block):
            begin = at + LENGTH_BYTES
            end = begin + int.from_bytes(block[at:begin], "big")
            if end - begin > MAX_RECORD_BYTES + _FRAME_BYTES:
                raise UsageError(
                    f"{name} record {number + len(records) + 1} would have {end - begin} bytes, more than the "
                    f"{MAX_RECORD_BYTES} of a record: a length has {LENGTH_BYTES} bytes, the highest first"
                )
            if end > len(block):
                break
            records.append(block[begin:end])
            at = end
        rest = block[at:]
        number += len(records)
        if records:
            yield records
    if rest:
        raise UsageError(f"{name} ends within record {number + 1}: its length, or the file, is wrong")


Source: TypeAlias = "str | os.PathLike[str] | BinaryIO | Iterable[RecordLike] | ArrowStream"
"""The source of an input: a path, `-` for stdin, an open binary file, which stays open, records, or a table."""


def open_inputs(
    sources: Sequence[Source],
    spread: str | None,
    stack: ExitStack,
    form: str = AUTO,
    unit: TimestampUnit | None = None,
    schema: ValueSchema | None = None,
) -> list[Input]:
    """Return the inputs of an upload, each checked to be readable and to hold lines, before anything is sent.

    Args:
        spread: describes how records are spread over partitions; None if the inputs need not be recognised.
        stack: will close the files that are opened here.
        form: the format of files, see `Upload.format`; it does not apply to records of an iterable.
        unit: the unit of their times, see `Upload.timestamp_unit`.
        schema: the topic's value schema; rows may have its columns instead of a value.

    Raises:
        UsageError: a file cannot be read, or does not consist of lines; stdin is named twice; or there are more inputs
            than a journal remembers.
    """
    if sum(isinstance(s, str) and s == STDIN for s in sources) > 1:
        raise UsageError("stdin (-) can be read once only")
    if spread is not None and len(sources) > INPUTS_KEPT:
        raise UsageError(
            f"{len(sources):,} files in one upload with --producer are more than the {INPUTS_KEPT:,} that are remembered: "
            "send them in several uploads"
        )
    seen: Counter[str] = Counter()
    inputs: list[Input] = []
    for source in sources:
        pieces, kind = _reader(source, stack, form, unit, schema, keep=spread is not None)
        input_id, length = "", None
        if spread is not None:
            digest, length = _digest(pieces(), spread if kind == LINES else f"{spread}\0{kind}")
            input_id = f"{digest}.{seen[digest]}"  # the same content twice in one upload is intended
            seen[digest] += 1
        inputs.append(Input(_name(source), input_id, pieces, length, kind))
    return inputs


def _name(source: Source) -> str:
    if isinstance(source, str | os.PathLike):
        return "stdin" if source == STDIN else str(source)
    return str(getattr(source, "name", "the open file" if hasattr(source, "read") else "the iterable"))


def _reader(
    source: Source,
    stack: ExitStack,
    form: str,
    unit: TimestampUnit | None,
    schema: ValueSchema | None,
    *,
    keep: bool,
) -> tuple[Callable[[], Iterator[bytes]], str]:
    """Return a function that reads an input each time it is called, and the kind of its bytes.

    With `keep`, this also holds for inputs that can be read only once (stdin, a pipe). The input is checked here, so that
    a file of another kind is detected before anything is sent.
    """
    name, kind = _name(source), _KINDS.get(form, LINES)
    if isinstance(source, str | os.PathLike) and source != STDIN:
        path = Path(source)
        try:
            if path.is_file():
                return _again(path, name, form, unit, schema), kind
            pieces = _file_pieces(stack.enter_context(path.open("rb")))
            first = next(pieces, b"")
        except (OSError, ValueError) as e:  # a ValueError: the name has a null byte
            raise UsageError(f"cannot read {source}: {getattr(e, 'strerror', e)}") from e
        pieces = chain([first], pieces)
    elif isinstance(source, str):
        pieces = _file_pieces(sys.stdin.buffer)
    elif hasattr(source, "read"):
        pieces = map(_binary, _file_pieces(cast(BinaryIO, source)))
    else:
        from l0gc.streamlog.ingest import records  # imported here, like Arrow below

        if not records.is_table(source) and not isinstance(source, Iterable):
            raise UsageError(
                f"cannot upload {source!r:.60}: give a path, an open binary file, records, or a table of them"
            )
        pieces, form, kind = records.packed(records.records_of(source, unit, schema)), RAW, RECORDS
    if not keep and form not in _TABLE_FORMATS:
        lines = _as_lines(pieces, name, form)
        return lambda: lines, kind
    kept = stack.enter_context(tempfile.NamedTemporaryFile(prefix="l0gc-input-"))  # noqa: SIM115
    kept.writelines(pieces)
    kept.flush()
    return _again(Path(kept.name), name, form, unit, schema), kind


def _again(
    path: Path, name: str, form: str, unit: TimestampUnit | None, schema: ValueSchema | None
) -> Callable[[], Iterator[bytes]]:
    """Return a function that reads a file each time it is called. Raises `UsageError` if it begins like a file of another
    kind.
    """

    def read() -> Iterator[bytes]:
        if form not in _TABLE_FORMATS:
            return _as_lines(_file(path), name, form)

        from l0gc.streamlog.ingest import records

        pieces = records.packed(records.records_in(path, form, name, unit, schema))
        return chain([next(pieces, b"")], pieces)

    read()
    return read


def _file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as f:
        yield from _file_pieces(f)


def _binary(piece: object) -> bytes:
    if not isinstance(piece, bytes):
        raise UsageError("the file is open in text mode, but records are bytes: open it in binary mode ('rb')")
    return piece


def _digest(pieces: Iterable[bytes], spread: str) -> tuple[str, int]:
    """Return a hash over an input, and how many bytes it covers."""
    h, size = hashlib.blake2b(spread.encode() + b"\0", digest_size=16), 0
    for piece in pieces:
        h.update(piece)
        size += len(piece)
    return h.hexdigest(), size


# -- what an input is -------------------------------------------------------------------------------------------------------


def _as_lines(pieces: Iterator[bytes], name: str, form: str) -> Iterator[bytes]:
    """Yield the records' bytes, piece by piece, after inspecting the first pieces.

    Args:
        pieces: an input's bytes as they are.
        name: the input's name, for messages; its ending can reveal a table.
        form: `AUTO`, or another format to yield the bytes unchanged.

    Raises:
        UsageError: it does not consist of lines. While it is read: it is compressed and damaged, or cut short.
    """
    if form != AUTO:
        return pieces
    head = b""
    while len(head) < _LONGEST_MAGIC and (piece := next(pieces, b"")):
        head += piece
    suffix = PurePath(name).suffix.lower()
    kind = next((kind for magic, kind in _OTHERS if head.startswith(magic)), _TABLES.get(suffix))
    if kind:
        raise UsageError(_refusal(name, kind))
    packed = _packed_as(head)
    if packed is not None:
        stem = name[: -len(suffix)] if suffix in {".gz", ".zst", ".zstd"} else name
        unpacked = _gunzipped if packed == "gzip" else _unzstd
        return _as_lines(unpacked(chain([head], pieces), name), stem, form)
    if b"\0" in head[:_HEAD_BYTES]:
        raise UsageError(_refusal(name, "ORC" if head.startswith(b"ORC") else "binary data"))
    return chain([head.removeprefix(_BOM)], pieces)


def _packed_as(head: bytes) -> str | None:
    return next((kind for magic, kind in _PACKED if magic.match(head)), None)


def _file_pieces(file: BinaryIO) -> Iterator[bytes]:
    read = getattr(file, "read1", file.read)
    while piece := read(_BLOCK_BYTES):
        yield piece


def plain_size(path: object, form: str) -> int | None:
    """Return the bytes of a file's records, to compute progress; None if it is packed or not a file, so that only reading
    shows them.
    """
    if not isinstance(path, str | os.PathLike) or form not in (AUTO, RAW):
        return None
    try:
        if not Path(path).is_file():
            return None
        with Path(path).open("rb") as f:
            packed = form == AUTO and _packed_as(f.read(4)) is not None
            return None if packed else os.fstat(f.fileno()).st_size
    except OSError:
        return None


def _refusal(name: str, kind: str) -> str:
    refusal = f"{name} is {kind}, and upload takes newline-delimited records: "
    if kind in _UNPACK:
        return f"{refusal}{_UNPACK[kind]} {name} | l0gc upload TOPIC - unpacks it"
    if kind == "UTF-16 text":
        return f"{refusal}iconv -f UTF-16 -t UTF-8 {name} | l0gc upload TOPIC - converts it"
    if kind in _SPARK:
        given = " or --format parquet, if it has a column value," if kind == "Parquet" else ""
        return (
            f"{refusal}Spark takes it with spark.read.{_SPARK[kind]} and .write.format('l0gc') (l0gc help spark),{given} "
            f"or --format {RAW} its bytes as they are"
        )
    return f"{refusal}write one record a line, or take its bytes as they are with --format {RAW}"


class _Pieces:
    """Presents pieces to Arrow as a file."""

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


def _gunzipped(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Unpack one or more members. Zeros after a member are padding, as in gzip."""
    member, is_whole = zlib.decompressobj(_GZIP), False
    try:
        for piece in pieces:
            rest = piece.lstrip(b"\0") if is_whole else piece
            while rest:
                if is_whole:
                    member = zlib.decompressobj(_GZIP)
                if data := member.decompress(rest, _BLOCK_BYTES):
                    yield data
                is_whole = member.eof
                rest = member.unused_data.lstrip(b"\0") if is_whole else member.unconsumed_tail
        if data := member.flush():
            yield data
        is_whole = member.eof
    except zlib.error as e:
        raise UsageError(f"{name} is gzip, and damaged or cut short ({e})") from e
    if not is_whole:
        raise UsageError(f"{name} is gzip, and damaged or cut short (it ends in the middle)")


def _unzstd(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    import pyarrow as pa  # here, since `l0gc upload --help` does not need it

    with pa.CompressedInputStream(pa.PythonFile(_Pieces(pieces), mode="r"), "zstd") as stream:
        try:
            while piece := stream.read(_BLOCK_BYTES):
                yield piece
        except OSError as e:
            if _ZSTD_WINDOW in str(e):
                raise UsageError(
                    f"{name} is zstd with a window above 128 MiB: zstd -dc --long=31 {name} | l0gc upload TOPIC - unpacks it"
                ) from e
            raise UsageError(f"{name} is zstd, and damaged or cut short ({e})") from e
