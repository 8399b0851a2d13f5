"""The formats of an input: plain lines and packed lines are read; others are refused with the command that reads them."""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, orc

from l0gc.errors import UsageError
from l0gc.streamlog.ingest.inputs import AUTO, RAW, Input, Source, open_inputs, plain_size

LINES = b"".join(b'{"n":%d}\n' % n for n in range(50_000))
BOM = b"\xef\xbb\xbf"


def zstd(body: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(body)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def gz(body: bytes) -> bytes:
    return gzip.compress(body)


PACKED = {"gzip": gz, "zstd": zstd}


def opened(source: Source, stack: ExitStack, spread: str | None = None, form: str = AUTO) -> Input:
    (found,) = open_inputs([source], spread, stack, form)
    return found


def content(source: Source, spread: str | None = None, form: str = AUTO) -> bytes:
    with ExitStack() as stack:
        return b"".join(r + b"\n" for block in opened(source, stack, spread, form).blocks() for r in block)


def write(path: Path, body: bytes) -> str:
    path.write_bytes(body)
    return str(path)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("spread", [None, "in-turn/1"])
@pytest.mark.parametrize("mark", [b"", BOM])
def test_packed_lines_are_unpacked_whatever_they_are_called(
    tmp_path: Path, kind: str, spread: str | None, mark: bytes
) -> None:
    packed = PACKED[kind](mark + LINES)
    assert content(write(tmp_path / "lines.ndjson", packed), spread) == LINES
    assert content(io.BytesIO(packed), spread) == LINES
    half = len(LINES) // 2
    assert content(write(tmp_path / "two", PACKED[kind](LINES[:half]) + PACKED[kind](LINES[half:])), spread) == LINES


@pytest.mark.parametrize("kind", PACKED)
def test_packed_lines_come_through_a_pipe(tmp_path: Path, kind: str) -> None:
    packed = write(tmp_path / "packed", PACKED[kind](LINES))
    for spread in (None, "in-turn/1"):
        with subprocess.Popen(["/bin/cat", packed], stdout=subprocess.PIPE) as cat:
            assert cat.stdout is not None
            assert content(f"/dev/fd/{cat.stdout.fileno()}", spread) == LINES


def test_packing_and_byte_order_marks_do_not_change_an_input(tmp_path: Path) -> None:
    forms = {"plain": LINES, "mark": BOM + LINES, "gzip": gzip.compress(LINES, 1), "best": gzip.compress(LINES, 9)}
    forms["zstd"] = zstd(LINES)
    with ExitStack() as stack:
        ids = {opened(write(tmp_path / n, b), stack, "in-turn/1").input_id for n, b in forms.items()}
        assert len(ids) == 1
        assert opened(write(tmp_path / "more", gzip.compress(LINES + b"x\n")), stack, "in-turn/1").input_id not in ids


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b + b"rubbish"], ids=["cut", "rubbish after"])
def test_a_damaged_packed_input_sends_nothing_under_a_producer(
    tmp_path: Path, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    path = write(tmp_path / "in.gz", damage(PACKED[kind](LINES)))
    with pytest.raises(UsageError, match=f"^{path} is {kind}, and damaged or cut short"):
        content(path)
    with ExitStack() as stack, pytest.raises(UsageError):
        opened(path, stack, "in-turn/1")  # hashed before the first batch is sent


def test_a_byte_order_mark_is_dropped_at_the_beginning_alone(tmp_path: Path) -> None:
    assert content(write(tmp_path / "in", BOM + b"a\n" + BOM + b"b\n")) == b"a\n" + BOM + b"b\n"
    assert content(write(tmp_path / "only", BOM)) == b""
    assert content(write(tmp_path / "in", BOM + b"a\n"), form=RAW) == BOM + b"a\n"


def a_file(kind: str, path: Path) -> str:
    table = pa.table({"n": [1, 2, 3]})
    match kind:
        case "Parquet":
            pq.write_table(table, path)
        case "ORC":
            orc.write_table(table, str(path))
        case "an Arrow file":
            feather.write_feather(table, str(path))
        case "CSV":
            path = path.with_suffix(".csv")
            path.write_text("n,m\n1,2\n")
        case "TSV":
            path = path.with_suffix(".TSV.gz")
            path.write_bytes(gzip.compress(b"n\tm\n"))
        case "UTF-16 text":
            path.write_text("one\n", encoding="utf-16")
        case "an SQLite database":
            path.write_bytes(b"SQLite format 3\0")
        case "bzip2":
            path.write_bytes(b"BZh91AY&SYxx")
        case "xz":
            path.write_bytes(b"\xfd7zXZ\0xx")
        case "Avro":
            path.write_bytes(b"Obj\x01\x04")
        case _:
            path.write_bytes(b"any\0thing\n")
    return str(path)


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("Parquet", "spark.read.parquet"),
        ("ORC", "spark.read.orc"),
        ("Avro", "spark.read.avro"),
        ("CSV", "spark.read.csv"),
        ("TSV", "spark.read.csv"),
        ("an Arrow file", "--format raw"),
        ("an SQLite database", "--format raw"),
        ("binary data", "--format raw"),
        ("UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
        ("bzip2", "bzip2 -dc"),
        ("xz", "xz -dc"),
    ],
)
def test_what_is_no_lines_is_refused_with_what_takes_it(tmp_path: Path, kind: str, way: str) -> None:
    path = a_file(kind, tmp_path / "in")
    fine = write(tmp_path / "fine", b"1\n")
    with ExitStack() as stack, pytest.raises(UsageError) as caught:
        open_inputs([fine, path], None, stack)
    said = str(caught.value)
    assert f"is {kind}, and upload takes newline-delimited records: " in said
    assert way in said
    assert "\n" not in said
    assert content(path, form=RAW)  # form=RAW accepts it


def test_text_that_only_looks_like_a_file_of_another_kind_is_taken(tmp_path: Path) -> None:
    for text in (b"PAR1 is a line\n", b"ORCHID\n", b"BZh is not packed\n", b"ARROW1\n", b"PK\n", b"n,m\n1,2\n"):
        assert content(write(tmp_path / "in", text)) == text


def test_a_file_on_stdin_of_which_somebody_read_some_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(write(tmp_path / "in", b"heading\n1\n2\n")).open("rb") as file:
        os.lseek(file.fileno(), len(b"heading\n"), os.SEEK_SET)
        with io.TextIOWrapper(io.BufferedReader(io.FileIO(os.dup(file.fileno())))) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert content("-") == b"1\n2\n"


def test_many_files_are_not_held_open(tmp_path: Path) -> None:
    path = write(tmp_path / "in", b"1\n")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ExitStack() as stack:
        found = open_inputs([path] * 2_000, None, stack)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
        assert [r for block in found[-1].blocks() for r in block] == [b"1"]


def test_a_share_is_known_of_a_file_that_is_what_it_holds(tmp_path: Path) -> None:
    plain, packed = write(tmp_path / "plain", b"1\n22\n"), write(tmp_path / "packed", gzip.compress(b"1\n"))
    assert (plain_size(str(plain), AUTO), plain_size(str(packed), AUTO)) == (5, None)
    assert plain_size(str(packed), RAW) == Path(packed).stat().st_size
    assert [plain_size(p, AUTO) for p in ("-", "/dev/null", str(tmp_path), str(tmp_path / "none"))] == [None] * 4


SKIPPABLE = (0x184D2A50).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"size"
"""A frame with which files of pzstd begin, and which readers skip."""


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(LINES) + bytes(1_000_000),
        gzip.compress(LINES[:7]) + bytes(512) + gzip.compress(LINES[7:]),
        gzip.compress(b"") + gzip.compress(LINES),
        SKIPPABLE + zstd(LINES),
        SKIPPABLE + zstd(LINES[:7]) + SKIPPABLE + zstd(LINES[7:]) + SKIPPABLE,
    ],
    ids=["zeros", "zeros-between", "empty-member", "pzstd", "pzstd-frames"],
)
def test_padding_and_skippable_frames_are_passed_over(tmp_path: Path, body: bytes) -> None:
    assert content(write(tmp_path / "in", body)) == LINES


@pytest.mark.parametrize("end", [b"x", b"\x1f\x8b", gzip.compress(LINES)[:-1]], ids=["text", "head", "cut"])
def test_an_incomplete_gzip_member_behind_another_is_refused(tmp_path: Path, end: bytes) -> None:
    with ExitStack() as stack:
        found = opened(write(tmp_path / "in", gzip.compress(LINES) + end), stack)
        with pytest.raises(UsageError, match="is gzip, and damaged or cut short"):
            list(found.blocks())


def test_too_large_a_zstd_window_is_refused_with_the_unpacking_command(tmp_path: Path) -> None:
    window = [(exponent << 3).to_bytes(1, "little") for exponent in (17, 21)]  # 128 MiB and 2 GiB, as with --long=31
    lines = b"one\ntwo\n"
    block = (len(lines) << 3 | 1).to_bytes(3, "little") + lines
    fine, large = (b"\x28\xb5\x2f\xfd\0" + w + block for w in window)
    assert content(write(tmp_path / "fine", fine)) == lines
    with pytest.raises(UsageError, match=r"above 128 MiB: zstd -dc --long=31 \S+ \| l0gc upload TOPIC - unpacks"):
        content(write(tmp_path / "large", large))


@pytest.mark.parametrize(
    ("name", "head", "command"),
    [
        ("in", b"\x02\x21\x4c\x18", "lz4 -dc"),
        ("in.Z", b"\x1f\x9d\x90", "gzip -dc"),
        ("in.lz", b"LZIP\x01", "lzip -dc"),
        ("in.lzo", b"\x89LZO\0\r\n", "lzop -dc"),
        ("in.7z", b"7z\xbc\xaf\x27\x1c", "7z x -so"),
        ("in.rar", b"Rar!\x1a\x07\x01\0", "unrar p -inul"),
        ("in.sz", b"\xff\x06\0\0sNaPpY", "snzip -dc"),
        ("in.br", b"\x1b\x03\x08", "brotli -dc"),
        ("in.lzma", b"\x5d\0\0\x80\0", "xz --format=lzma -dc"),
    ],
)
def test_what_is_packed_is_never_to_be_uploaded_as_raw(tmp_path: Path, name: str, head: bytes, command: str) -> None:
    path = write(tmp_path / name, head + bytes(range(256)))
    with ExitStack() as stack, pytest.raises(UsageError, match=rf"{re.escape(command)} \S+ \| l0gc upload") as refused:
        list(opened(path, stack).blocks())
    assert "--format raw" not in str(refused.value)
