"""Decode stored bytes, and raise an error of l0gc if they do not decode.

Decoders are built by the thread that imports their module. msgspec learns a type when it is first used, and two threads
that learn the same type at once crash the process. A decoder learns its type when it is built.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from l0gc.errors import CorruptObjectError

T = TypeVar("T")

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that a decoder raises for a wrong type or form, text that is not UTF-8, or values nested too deeply."""


def decoded(decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T], body: bytes, wrong: str) -> T:
    """Return the value in `body`. Raises `CorruptObjectError`, with a message that begins with `wrong`, if `body` does
    not decode.
    """
    try:
        return decoder.decode(body)
    except UNDECODABLE as e:
        raise CorruptObjectError(f"{wrong}: {e}") from e
