"""Inputs: newline-delimited records from files or stdin, read in bounded memory, and known by their content.

What makes a repeated upload safe: an input is identified by a hash over its content (what `formats.py` makes of the file)
and over how its records are spread, never by its name. The hash has to be known before the first batch is sent; what can be
read once only, stdin or a pipe, is therefore kept in a temporary file with a producer. No more is read than was hashed:
what is added to a file later would be sent again by a repeat, which sees the longer file under another hash.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, cast

from l0gc.errors import UsageError
from l0gc.streamlog.ingest.formats import AUTO, BLOCK_BYTES, RAW, as_lines, file_pieces
from l0gc.streamlog.journal.producers import INPUTS_KEPT

MAX_RECORD_BYTES: Final = 16 << 20
"""A longer line is refused: it would not fit the memory that everything else is bounded to."""
STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Input:
    """One file of an upload.

    Attributes:
        input_id: empty where nobody has to recognise it.
        pieces: gives its bytes; more than once where it has an id.
        size: the bytes that the id stands for; None without an id.
    """

    name: str
    input_id: str
    pieces: Callable[[], Iterator[bytes]]
    size: int | None = None

    def blocks(self) -> Iterator[list[bytes]]:
        """The records, some hundred at a time, without their newline; the last one may lack it.

        Raises:
            UsageError: a record is longer than `MAX_RECORD_BYTES`, or the input is shorter than when it got its id.
        """
        number, rest, left = 0, b"", self.size
        for piece in self.pieces():
            block = piece[:left]
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
            if left == 0:
                break
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
        pieces = _reader(source, stack, form, keep=spread is not None)
        input_id, length = "", None
        if spread is not None:
            digest, length = _digest(pieces(), spread)
            input_id = f"{digest}.{seen[digest]}"  # the same content twice in one upload is meant twice
            seen[digest] += 1
        inputs.append(Input(_name(source), input_id, pieces, length))
    return inputs


def _name(source: Source) -> str:
    if isinstance(source, str | os.PathLike):
        return "stdin" if source == STDIN else str(source)
    return str(getattr(source, "name", "the open file" if hasattr(source, "read") else "the iterable"))


def _reader(source: Source, stack: ExitStack, form: str, *, keep: bool) -> Callable[[], Iterator[bytes]]:
    """Reads an input each time it is called: with `keep` also one that gives its bytes only once (stdin, a pipe).

    It is checked here, so that a file without lines is found before anything is sent.
    """
    name = _name(source)
    if isinstance(source, str | os.PathLike) and source != STDIN:
        path = Path(source)
        try:
            if path.is_file():
                as_lines(_file(path), name, form)
                return lambda: as_lines(_file(path), name, form)
            pieces = file_pieces(stack.enter_context(path.open("rb")))
            first = next(pieces, b"")
        except OSError as e:
            raise UsageError(f"cannot read {source}: {e.strerror}") from e
        pieces = chain([first], pieces)
    elif source == STDIN:
        pieces = file_pieces(sys.stdin.buffer)
    elif hasattr(source, "read"):
        pieces = map(_binary, file_pieces(cast(BinaryIO, source)))
    else:
        pieces, form = _joined(cast(Iterable[bytes], source)), RAW
    if not keep:
        lines = as_lines(pieces, name, form)
        return lambda: lines
    kept = stack.enter_context(tempfile.NamedTemporaryFile(prefix="l0gc-input-"))  # noqa: SIM115
    kept.writelines(pieces)
    kept.flush()
    as_lines(_file(Path(kept.name)), name, form)
    return lambda: as_lines(_file(Path(kept.name)), name, form)


def _file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as f:
        yield from file_pieces(f)


def _binary(piece: object) -> bytes:
    if not isinstance(piece, bytes):
        raise UsageError("an open file gives text, and records are bytes: open it in binary mode ('rb')")
    return piece


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
        if len(lines) >= BLOCK_BYTES:
            yield bytes(lines)
            lines.clear()
    if lines:
        yield bytes(lines)


def _digest(pieces: Iterable[bytes], spread: str) -> tuple[str, int]:
    """A hash over an input, and how many bytes it stands for."""
    h, size = hashlib.blake2b(spread.encode() + b"\0", digest_size=16), 0
    for piece in pieces:
        h.update(piece)
        size += len(piece)
    return h.hexdigest(), size
