"""Decode stored bytes, and raise one error of ours if they hold something else.

Decoders are built by the thread that imports their module. msgspec learns a type when it is first used, and two threads
that learn the same type at once crash the process. A decoder that has been built already has its type.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from l0gc.errors import CorruptObjectError

T = TypeVar("T")

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of a decoder for a wrong type or form, for text that is not UTF-8, and for values nested too deeply."""


def decoded(decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T], body: bytes, wrong: str) -> T:
    """Return the value in `body`. Raises `CorruptObjectError`, whose message begins with `wrong`, if it holds something
    else.
    """
    try:
        return decoder.decode(body)
    except UNDECODABLE as e:
        raise CorruptObjectError(f"{wrong}: {e}") from e
