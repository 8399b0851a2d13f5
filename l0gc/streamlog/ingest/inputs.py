"""Inputs: newline-delimited records from files or stdin, read in bounded memory, and known by their content.

What makes a repeated upload safe: an input is identified by a hash over its content and over how its records are spread,
never by its name, so that other content is never skipped and the same content is never sent twice under one producer. The
hash has to be known before the first batch is sent; what can be read once only, stdin or a pipe, is therefore kept in a
temporary file when there is a producer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from l0gc.errors import BadRecordError, UsageError
from l0gc.streamlog.journal.producers import INPUTS_KEPT

MAX_RECORD_BYTES: Final = 16 << 20
"""A longer line is refused: it would not fit the memory that everything else is bounded to."""
_BLOCK_BYTES: Final = 256 << 10
STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class Input:
    """One file of an upload. `input_id` is empty where nobody has to recognise it."""

    name: str
    input_id: str
    open: Callable[[], BinaryIO]

    def lines(self) -> Iterator[bytes]:
        """The records, without their newline; the last one may lack it.

        Raises:
            BadRecordError: a record is longer than `MAX_RECORD_BYTES`.
        """
        with self.open() as f:
            number, rest = 0, b""
            while block := f.read1(_BLOCK_BYTES):  # type: ignore[attr-defined]  # of a buffered or in-memory file
                lines = block.split(b"\n")
                lines[0] = rest + lines[0]
                if len(rest) + len(block) > MAX_RECORD_BYTES:
                    for i, line in enumerate(lines, number + 1):
                        if len(line) > MAX_RECORD_BYTES:
                            raise BadRecordError(f"{self.name} line {i} is longer than {MAX_RECORD_BYTES} bytes")
                rest = lines.pop()
                number += len(lines)
                yield from lines
            if rest:
                yield rest


def open_inputs(names: Sequence[str], spread: str | None, stack: ExitStack) -> list[Input]:
    """The inputs of an upload, each checked to be readable before anything is sent.

    Args:
        names: paths, or `-` for stdin, once.
        spread: how records go to partitions, as text; None if nobody has to recognise the inputs.
        stack: closes what is opened here.

    Raises:
        UsageError: a file cannot be read, stdin is named twice, or there are more inputs than a partition remembers.
    """
    if list(names).count(STDIN) > 1:
        raise UsageError("stdin (-) can be read once only")
    if spread is not None and len(names) > INPUTS_KEPT:
        raise UsageError(
            f"{len(names):,} files in one upload with --producer are more than the {INPUTS_KEPT:,} that are remembered: "
            "send them in several uploads"
        )
    seen: Counter[str] = Counter()
    inputs: list[Input] = []
    for name in names:
        opener = _opener(name, stack, keep=spread is not None)
        input_id = ""
        if spread is not None:
            digest = _digest(opener, spread)
            input_id = f"{digest}.{seen[digest]}"  # the same content twice in one upload is meant twice
            seen[digest] += 1
        inputs.append(Input("stdin" if name == STDIN else name, input_id, opener))
    return inputs


def _opener(name: str, stack: ExitStack, *, keep: bool) -> Callable[[], BinaryIO]:
    """Opens an input as often as it is read: with `keep` also what gives its bytes once only (stdin, a pipe)."""
    if name == STDIN:
        return _once(sys.stdin.buffer, stack, keep=keep)
    path = Path(name)
    try:
        f = path.open("rb")
        try:
            f.peek(1)
            again = stat.S_ISREG(os.fstat(f.fileno()).st_mode)
        except OSError:
            f.close()
            raise
    except OSError as e:
        raise UsageError(f"cannot read {name}: {e.strerror}") from e
    if again:
        f.close()
        return lambda: path.open("rb")
    return _once(stack.enter_context(f), stack, keep=keep)  # this handle has the first of its bytes already


def _once(source: BinaryIO, stack: ExitStack, *, keep: bool) -> Callable[[], BinaryIO]:
    if not keep:
        return lambda: source
    kept = stack.enter_context(tempfile.NamedTemporaryFile(prefix="l0gc-input-"))  # noqa: SIM115
    shutil.copyfileobj(source, kept)
    kept.flush()
    path = Path(kept.name)
    return lambda: path.open("rb")


def _digest(opener: Callable[[], BinaryIO], spread: str) -> str:
    h = hashlib.blake2b(spread.encode() + b"\0", digest_size=16)
    with opener() as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()
