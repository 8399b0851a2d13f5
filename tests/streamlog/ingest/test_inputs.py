"""Inputs: records byte for byte, identified by their content."""

from __future__ import annotations

import io
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from l0gc.errors import UsageError
from l0gc.streamlog.ingest import inputs
from l0gc.streamlog.ingest.inputs import Input, Source, open_inputs
from l0gc.streamlog.ingest.records import unpacked


def all_of(source: Input) -> list[bytes]:
    return [record for block in source.blocks() for record in block]


def records(path: Path) -> list[bytes]:
    with ExitStack() as stack:
        return all_of(open_inputs([str(path)], None, stack)[0])


def ids(paths: list[Path], spread: str = "in-turn/2") -> list[str]:
    with ExitStack() as stack:
        return [i.input_id for i in open_inputs([str(p) for p in paths], spread, stack)]


def write(path: Path, body: bytes) -> Path:
    path.write_bytes(body)
    return path


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", []),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\ntwo", [b"one", b"two"]),  # no newline at the end
        (b"\n", [b""]),
        (b"one\n\n\ntwo\n", [b"one", b"", b"", b"two"]),
        (b"one\r\ntwo\r\n", [b"one\r", b"two\r"]),  # the carriage return belongs to the record
        (b"a\rb\x0bc\x0cd\x1ce\xe2\x80\xa8f\n\xff\x01\n", [b"a\rb\x0bc\x0cd\x1ce\xe2\x80\xa8f", b"\xff\x01"]),
    ],
)
def test_records_are_what_lies_between_newlines_byte_for_byte(
    tmp_path: Path, body: bytes, expected: list[bytes]
) -> None:
    assert records(write(tmp_path / "in", body)) == expected


@pytest.mark.parametrize("end", [b"\n", b"", b"\nmore\n"])
def test_a_record_above_the_greatest_length_is_named(
    tmp_path: Path, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_RECORD_BYTES", 100)
    assert records(write(tmp_path / "in", b"x\n" + b"y" * 100 + end))[1] == b"y" * 100
    long = write(tmp_path / "long", b"x\n" + b"y" * 101 + end)
    with pytest.raises(UsageError, match=f"^{long} line 2 is longer than 100 bytes"):
        records(long)


def test_an_input_is_known_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    a, b, c = (write(tmp_path / n, body) for n, body in [("a", b"1\n2\n"), ("b", b"1\n2\n"), ("c", b"1\n2\n3\n")])
    assert ids([a]) == ids([b])
    assert ids([a]) != ids([c])
    before = ids([a])
    write(a, b"1\n3\n")
    assert ids([a]) != before


def test_the_same_content_spread_otherwise_is_another_input(tmp_path: Path) -> None:
    a = write(tmp_path / "a", b"1\n2\n")
    assert ids([a], "in-turn/2") != ids([a], "partition=0")


def test_repeated_content_in_one_upload_counts_twice(tmp_path: Path) -> None:
    a, b, c = (write(tmp_path / n, body) for n, body in [("a", b"1\n"), ("b", b"1\n"), ("c", b"2\n")])
    assert len(set(ids([a, b, c]))) == 3
    assert len(set(ids([a, a]))) == 2
    assert ids([b, c, a]) == [ids([a])[0], ids([c])[0], ids([a, b])[1]]


def test_nobody_has_to_recognise_an_input_without_a_producer(tmp_path: Path) -> None:
    a = write(tmp_path / "a", b"1\n")
    with ExitStack() as stack:
        assert open_inputs([str(a)], None, stack)[0].input_id == ""


def test_an_input_that_cannot_be_read_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    a = write(tmp_path / "a", b"1\n")
    for wrong in (tmp_path / "missing", tmp_path):
        with ExitStack() as stack, pytest.raises(UsageError, match=f"cannot read {wrong}: "):
            open_inputs([str(a), str(wrong)], None, stack)


class Stdin:
    """A stand-in for `sys.stdin`."""

    def __init__(self, body: bytes) -> None:
        self.buffer = io.BytesIO(body)


@pytest.mark.parametrize("spread", [None, "in-turn/1"])
def test_stdin_is_read_once_and_known_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: str | None
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"1\n2"))
    with ExitStack() as stack:
        (source,) = open_inputs(["-"], spread, stack)
        assert source.name == "stdin"
        assert all_of(source) == [b"1", b"2"]
        if spread is not None:
            assert [source.input_id] == ids([write(tmp_path / "same", b"1\n2")], spread)


@pytest.mark.parametrize("spread", [None, "in-turn/1"])
def test_an_open_file_is_read_as_a_file_is(spread: str | None) -> None:
    with ExitStack() as stack:
        (source,) = open_inputs([io.BytesIO(b"1\n2\n")], spread, stack)
        assert all_of(source) == [b"1", b"2"]
        if spread is not None:
            assert all_of(source) == [b"1", b"2"]  # a second read comes from the kept copy


def test_no_more_is_read_than_was_hashed(tmp_path: Path) -> None:
    a = write(tmp_path / "a", b"1\n2\nthr")
    with ExitStack() as stack:
        (source,) = open_inputs([str(a)], "in-turn/1", stack)
        write(a, b"1\n2\nthree\nfour\n")
        assert all_of(source) == [b"1", b"2", b"thr"]
        write(a, b"1\n2")
        with pytest.raises(UsageError, match=f"^{a} was truncated by 4 bytes while it was uploaded"):
            all_of(source)


@pytest.mark.parametrize("spread", [None, "in-turn/1"])
def test_a_pipe_is_read_once_and_as_a_whole(tmp_path: Path, spread: str | None) -> None:
    body = b"".join(b"record %d\n" % n for n in range(2000))  # larger than a peek, smaller than a pipe's buffer
    end, begin = os.pipe()
    os.write(begin, body)
    os.close(begin)
    with ExitStack() as stack:
        stack.callback(os.close, end)
        (source,) = open_inputs([f"/dev/fd/{end}"], spread, stack)  # the shell's name for <(command)
        assert all_of(source) == body.splitlines()
        if spread is not None:
            assert [source.input_id] == ids([write(tmp_path / "same", body)], spread)


def test_stdin_twice_is_refused() -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="once only"):
        open_inputs(["-", "-"], None, stack)


def test_a_resumable_upload_refuses_more_inputs_than_journals_remember(tmp_path: Path) -> None:
    a = str(write(tmp_path / "a", b"1\n"))
    with ExitStack() as stack, pytest.raises(UsageError, match="several uploads"):
        open_inputs([a] * 10_001, "in-turn/1", stack)
    with ExitStack() as stack:
        assert len(open_inputs([a] * 10_001, None, stack)) == 10_001


def of(source: Source, spread: str | None = None) -> list[bytes]:
    with ExitStack() as stack:
        return all_of(open_inputs([source], spread, stack)[0])


@pytest.mark.parametrize("spread", [None, "in-turn/1"])
def test_an_iterable_gives_its_records_byte_for_byte(spread: str | None) -> None:
    records = [b"%d" % n for n in range(50_000)]  # more than one block
    for some in (records, [b"one\n", b"", b"two\nlines", b"PAR1\x15", b"\0"], []):
        assert [r[0] for r in unpacked(of((r for r in some), spread))] == some


@pytest.mark.parametrize("spread", [None, "in-turn/1"])
def test_a_file_that_the_caller_opened_is_read_and_stays_open(tmp_path: Path, spread: str | None) -> None:
    body = b"".join(b"record %d\n" % n for n in range(100_000))
    with write(tmp_path / "in", body).open("rb", buffering=0) as raw:  # a raw file has no read1
        assert of(raw, spread) == body.splitlines()
        assert not raw.closed
    memory = io.BytesIO(body)
    assert of(memory, spread) == body.splitlines()
    assert not memory.closed


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (["text"], "record 1 is of type str"),
        (b"one\ntwo\n", "record 1 is of type int"),
        (io.StringIO("text\n"), "binary mode"),
    ],
)
def test_what_is_no_bytes_or_no_single_record_is_named(source: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        of(source)
