"""What the decoders of what is stored raise for bytes that are something else, and that as one error of ours.

A decoder is built where its module is imported, by one thread. msgspec learns a type at its first use, and two threads that
make it learn one at the same time crash the process; a decoder that is built has learned its type.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from l0gc.errors import CorruptObjectError

T = TypeVar("T")

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises: for another type or form, for text that is not UTF-8, and for values within values without end."""


def decoded(decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T], body: bytes, wrong: str) -> T:
    """What `body` holds. Raises `CorruptObjectError`, which begins with `wrong`: it holds something else."""
    try:
        return decoder.decode(body)
    except UNDECODABLE as e:
        raise CorruptObjectError(f"{wrong}: {e}") from e
