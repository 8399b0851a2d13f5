"""Inputs: newline-delimited records from files or stdin, read in bounded memory, and known by their content.

What makes a repeated upload safe: an input is identified by a hash over its content (what `formats.py` makes of the file)
and over how its records are spread, never by its name. The hash has to be known before the first batch is sent; what can be
read once only, stdin or a pipe, is therefore kept in a temporary file with a producer. No more is read than was hashed:
what is added to a file later would be sent again by a repeat, which sees the longer file under another hash.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from l0gc.errors import UsageError
from l0gc.streamlog.ingest.formats import AUTO, RAW, as_lines, file_of
from l0gc.streamlog.journal.producers import INPUTS_KEPT

MAX_RECORD_BYTES: Final = 16 << 20
"""A longer line is refused: it would not fit the memory that everything else is bounded to."""
_BLOCK_BYTES: Final = 256 << 10
STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Input:
    """One file of an upload.

    Attributes:
        input_id: empty where nobody has to recognise it.
        open: opens it; more than once where it has an id.
        size: the bytes that the id stands for; None without an id.
    """

    name: str
    input_id: str
    open: Callable[[], BinaryIO]
    size: int | None = None

    def blocks(self) -> Iterator[list[bytes]]:
        """The records, some hundred at a time, without their newline; the last one may lack it.

        Raises:
            UsageError: a record is longer than `MAX_RECORD_BYTES`, or the input is shorter than when it got its id.
        """
        with self.open() as f:
            number, rest = 0, b""
            left = self.size
            while left != 0 and (block := f.read1(_BLOCK_BYTES if left is None else min(left, _BLOCK_BYTES))):  # type: ignore[attr-defined]  # of a buffered or in-memory file
                if left is not None:
                    left -= len(block)
                records = block.split(b"\n")
                records[0] = rest + records[0]
                if len(rest) + len(block) > MAX_RECORD_BYTES:
                    for i, record in enumerate(records, number + 1):
                        if len(record) > MAX_RECORD_BYTES:
                            raise UsageError(
                                f"{self.name} line {i} is longer than {MAX_RECORD_BYTES} bytes, the most that a record may "
                                "have: split it, or leave it out"
                            )
                rest = records.pop()
                number += len(records)
                if records:
                    yield records
            if left:
                raise UsageError(
                    f"{self.name} was cut by {left} bytes while it was uploaded; what was read before that is sent. "
                    "Upload it again once nobody changes it"
                )
            if rest:
                yield [rest]


Source = str | os.PathLike[str] | BinaryIO | Iterable[bytes]
"""What an input is read from: a path, `-` for stdin, a binary file that is open and stays so, or records."""


def open_inputs(sources: Sequence[Source], spread: str | None, stack: ExitStack, form: str = AUTO) -> list[Input]:
    """The inputs of an upload, each checked to be readable, and to be lines, before anything is sent.

    Args:
        spread: how records go to partitions, as text; None if nobody has to recognise the inputs.
        stack: closes what is opened here.
        form: what files hold, see `formats.py`; records of an iterable are what they are.

    Raises:
        UsageError: a file cannot be read, or is something else than lines; stdin is named twice; or there are more inputs
            than a journal remembers.
    """
    if list(sources).count(STDIN) > 1:
        raise UsageError("stdin (-) can be read once only")
    if spread is not None and len(sources) > INPUTS_KEPT:
        raise UsageError(
            f"{len(sources):,} files in one upload with --producer are more than the {INPUTS_KEPT:,} that are remembered: "
            "send them in several uploads"
        )
    seen: Counter[str] = Counter()
    inputs: list[Input] = []
    for source in sources:
        opener = _opener(source, stack, form, keep=spread is not None)
        input_id, length = "", None
        if spread is not None:
            digest, length = _digest(opener, spread)
            input_id = f"{digest}.{seen[digest]}"  # the same content twice in one upload is meant twice
            seen[digest] += 1
        inputs.append(Input(_name(source), input_id, opener, length))
    return inputs


def _name(source: Source) -> str:
    if isinstance(source, str | os.PathLike):
        return "stdin" if source == STDIN else str(source)
    return str(getattr(source, "name", "the open file" if hasattr(source, "read") else "the iterable"))


def _opener(source: Source, stack: ExitStack, form: str, *, keep: bool) -> Callable[[], BinaryIO]:
    """Opens an input each time it is read: with `keep` also one that gives its bytes only once (stdin, a pipe).

    It is checked here, so that a file without lines is found before anything is sent.
    """
    name = _name(source)
    if source == STDIN:
        return _once(sys.stdin.buffer, name, form, stack, keep=keep)
    if not isinstance(source, str | os.PathLike):
        is_file = hasattr(source, "read")
        pieces = file_of(_read_from(source) if is_file else _joined(source))
        return _once(pieces, name, form if is_file else RAW, stack, keep=keep)
    path = Path(source)
    try:
        f = path.open("rb")
        try:
            f.peek(1)
            again = stat.S_ISREG(os.fstat(f.fileno()).st_mode)
        except OSError:
            f.close()
            raise
    except OSError as e:
        raise UsageError(f"cannot read {source}: {e.strerror}") from e
    if again:
        as_lines(f, name, form).close()
        return lambda: as_lines(path.open("rb"), name, form)
    return _once(stack.enter_context(f), name, form, stack, keep=keep)  # this handle has the first of its bytes already


def _once(source: BinaryIO, name: str, form: str, stack: ExitStack, *, keep: bool) -> Callable[[], BinaryIO]:
    if not keep:
        file = as_lines(source, name, form)
        return lambda: file
    kept = stack.enter_context(tempfile.NamedTemporaryFile(prefix="l0gc-input-"))  # noqa: SIM115
    shutil.copyfileobj(source, kept)
    kept.flush()
    path = Path(kept.name)
    as_lines(path.open("rb"), name, form).close()
    return lambda: as_lines(path.open("rb"), name, form)


def _read_from(file: Any) -> Iterator[bytes]:
    read = getattr(file, "read1", file.read)
    while piece := read(_BLOCK_BYTES):
        if not isinstance(piece, bytes):
            raise UsageError(f"{_name(file)} gives text, and records are bytes: open it in binary mode ('rb')")
        yield piece


def _joined(records: Iterable[bytes]) -> Iterator[bytes]:
    """The records as lines, many at a time."""
    lines = bytearray()
    for number, record in enumerate(records, 1):
        if not isinstance(record, bytes):
            raise UsageError(f"record {number} is of type {type(record).__name__}, and records are bytes")
        line = record.removesuffix(b"\n")
        if b"\n" in line:
            raise UsageError(f"record {number} holds a newline, which is what ends a record")
        lines += line + b"\n"
        if len(lines) >= _BLOCK_BYTES:
            yield bytes(lines)
            lines.clear()
    if lines:
        yield bytes(lines)


def _digest(opener: Callable[[], BinaryIO], spread: str) -> tuple[str, int]:
    """A hash over an input, and how many bytes it stands for."""
    h, size = hashlib.blake2b(spread.encode() + b"\0", digest_size=16), 0
    with opener() as f:
        while block := f.read(1 << 20):
            h.update(block)
            size += len(block)
    return h.hexdigest(), size
