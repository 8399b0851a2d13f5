"""Decoders of what is stored, and what they raise for bytes that are something else.

A decoder is built where its module is imported, by one thread. msgspec learns a type at its first use, and two threads that
make it learn one at the same time crash the process; a decoder that is built has learned its type.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, overload

import msgspec

T = TypeVar("T")

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises: for another type or form, for text that is not UTF-8, and for values within values without end."""


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """A decoder of JSON; `kind` may be a union, too."""
    return msgspec.json.Decoder(kind)


@overload
def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder of MessagePack; `kind` may be a union, too."""
    return msgspec.msgpack.Decoder(kind)
