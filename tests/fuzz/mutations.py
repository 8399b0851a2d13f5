"""Draws bytes that a bucket may come to hold: valid ones changed, cut or spliced, and valid JSON or MessagePack with
other values.

`L0GC_FUZZ_EXAMPLES` sets how many examples each test tries, for a long run; those are drawn anew each time, the default
ones are always the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from l0gc.errors import CorruptObjectError

_EXAMPLES: Final = os.environ.get("L0GC_FUZZ_EXAMPLES", "")  # at import: a test's environment has no L0GC_ variables


def fuzzing(examples: int) -> settings:
    """Return the settings of a test that tries this many examples by default."""
    return settings(
        max_examples=int(_EXAMPLES or examples),
        derandomize=not _EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        print_blob=True,
    )


_HOSTILE: Final = [
    b"null", b"true", b"false", b'""', b'"x"', b'"-1"', b'"\\ud800"', b'"\\u0000"', b'"\xff\xfe"', b"[]", b"{}", b"[[]]",
    b"0", b"-0", b"1", b"-1", b"2", b"3", b"7", b"-2", b"1.5", b"1e3", b"1e400", b"-1e400", b"NaN", b"Infinity",
    b"9007199254740993", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"18446744073709551616",
    b"9" * 400,
    b'{"type":"barrier","epoch":9}', b'{"type":"closed"}',
]  # fmt: skip
_DEEP: Final = [b"[" * 50_000, b"[" * 50_000 + b"]" * 50_000, b'{"a":' * 50_000]
_MARK: Final = "\u0001here\u0001"


@st.composite
def changed(draw: st.DrawFn, body: bytes) -> bytes:
    """Draw `body` with one to three edits: a flipped bit, another byte, a part removed, a part inserted, or an end cut
    off.
    """
    data = bytearray(body)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "set", "cut", "put", "end", "copy"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if data:
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 40))]
            case "put":
                data[at:at] = draw(st.binary(min_size=1, max_size=20))
            case "end":
                del data[at:]
            case "copy":
                size, to = draw(st.integers(1, 64)), draw(st.integers(0, len(data)))
                data[to:to] = data[at : at + size]
    return bytes(data)


@st.composite
def spliced(draw: st.DrawFn, first: bytes, second: bytes) -> bytes:
    """Draw the beginning of one and the end of the other."""
    return first[: draw(st.integers(0, len(first)))] + second[draw(st.integers(0, len(second))) :]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, v in inside for p in _places(v, (*path, key)))]


def _with(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    if isinstance(value, dict):
        return {k: _with(v, path[1:], change) if k == path[0] else v for k, v in value.items()}
    return [_with(v, path[1:], change) if i == path[0] else v for i, v in enumerate(value)]


@st.composite
def other_json(draw: st.DrawFn, body: bytes, *, deep: bool = True) -> bytes:
    """Draw `body`, which is JSON, with a value changed, a field removed or repeated, or a field or an element more.

    Args:
        deep: also with values that are nested deeper than Python's stack.
    """
    tree = json.loads(body)
    path = draw(st.sampled_from(_places(tree)))
    values = [st.sampled_from(_HOSTILE), st.integers(-5, 40).map(lambda n: b"%d" % n)]
    raw = draw(st.one_of([*values, st.sampled_from(_DEEP)] if deep else values))

    def change(value: Any) -> Any:
        match draw(st.sampled_from(["value", "value", "value", "drop", "repeat", "add", "add"])):
            case "drop" if isinstance(value, dict) and value:
                gone = draw(st.sampled_from(sorted(value)))
                return {k: v for k, v in value.items() if k != gone}
            case "repeat" if isinstance(value, dict) and value:
                again = draw(st.sampled_from(sorted(value)))
                return {**value, f"{_MARK}{again}": 0}
            case "repeat" if isinstance(value, list):
                return value + value
            case "add" if isinstance(value, dict):
                return {**value, "more": _MARK}
            case "add" if isinstance(value, list):
                return [*value, _MARK]
        return _MARK

    text = json.dumps(_with(tree, path, change), separators=(",", ":"), ensure_ascii=False).encode()
    mark = json.dumps(_MARK)[1:-1].encode()
    return text.replace(b'"' + mark + b'"', raw).replace(mark, b"")


_NUMBERS: Final = [
    0,
    1,
    2,
    3,
    7,
    -1,
    -2,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**62 + 1,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
]
_PACKED: Final = [
    b"\xc0", b"\xc2", b"\xc3", b"\xa0", b"\xa1x", b"\xa2-1", b"\xa2\xff\xfe", b"\xc4\x00", b"\xc4\x01\xff",
    b"\xc4\x04\x00\x00\x00\x00", b"\xc4\x04\xff\xff\xff\xff", b"\x90", b"\x80", b"\x91\x90", b"\x81\xa0\x90",
    b"\xcb\x7f\xf8" + bytes(6),
    b"\xcb\x40\x08" + bytes(6), b"\xd6\xff\x00\x00\x00\x00", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
]  # fmt: skip
_DEEP_PACKED: Final = [b"\x91" * 50_000, b"\x91" * 50_000 + b"\xc0", b"\x81\xa1a" * 50_000]


@st.composite
def other_msgpack(draw: st.DrawFn, body: bytes, *, deep: bool = True) -> bytes:
    """Draw `body`, which is MessagePack, with a value changed, or an element removed, repeated or added; packed rows
    within it, too.

    Args:
        deep: also with values that are nested deeper than Python's stack.
    """
    tree = msgspec.msgpack.decode(body)
    path = draw(st.sampled_from(_places(tree)))
    numbers = st.one_of(st.sampled_from(_NUMBERS), st.integers(-5, 40)).map(msgspec.msgpack.encode)
    raws = [st.sampled_from(_PACKED), numbers, numbers]
    raw = msgspec.Raw(draw(st.one_of([*raws, st.sampled_from(_DEEP_PACKED)] if deep else raws)))

    def change(value: Any) -> Any:
        match draw(st.sampled_from(["inside", "inside", "value", "value", "drop", "repeat", "add"])):
            case "inside" if isinstance(value, bytes) and value:
                return draw(changed(value))
            case "drop" if isinstance(value, list) and value:
                at = draw(st.integers(0, len(value) - 1))
                return value[:at] + value[at + 1 :]
            case "drop" if isinstance(value, dict) and value:
                gone = draw(st.sampled_from(list(value)))
                return {k: v for k, v in value.items() if k != gone}
            case "repeat" if isinstance(value, list | bytes):
                return value * 2
            case "add" if isinstance(value, list):
                return [*value, raw]
            case "add" if isinstance(value, dict):
                return {**value, -1: raw}
        return raw

    return msgspec.msgpack.encode(_with(tree, path, change))


def refusal(act: Callable[[], object]) -> str:
    """Return the message by which `act` refuses its input as corrupt; '' if it does not refuse."""
    try:
        act()
    except CorruptObjectError as e:
        return str(e)
    return ""


JSON: Final = "json"
MSGPACK: Final = "msgpack"


def hostile(body: bytes, other: bytes, kind: str = "", *, deep: bool = True) -> st.SearchStrategy[bytes]:
    """Return a strategy for everything that `body` may have become.

    Args:
        other: a valid object of the same kind.
        kind: `JSON` or `MSGPACK` if it is one of these.
    """
    kinds = [changed(body), spliced(body, other), spliced(other, body), st.just(other), st.binary(max_size=300)]
    if kind:
        inside = other_json(body, deep=deep) if kind == JSON else other_msgpack(body, deep=deep)
        kinds += [inside, inside, inside]
    return st.one_of(kinds)
