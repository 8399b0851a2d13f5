"""Make text safe for a terminal, in one place for all output.

Keys, producer names, reasons of a pause and messages of a store can come from any writer of the bucket. If they were
printed unchanged, a newline could fake a line of l0gc, an escape sequence could rewrite earlier text, and a
bidirectional control could show a key in a different order. Therefore all output of commands passes through `escaped`,
which leaves one line of visible characters, or, as JSON, through `json_text`, which keeps the value. The exceptions are
`l0gc read` and `completion`, whose output is data for a program.
"""

from __future__ import annotations

import codecs
import json
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, Final, TextIO

import msgspec

_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BYTES: Final = range(0xDC80, 0xDD00)
"""The codes by which Python represents bytes of an argument or a file name that are not UTF-8."""
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters: C0, DEL, C1
    "\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, or changing the direction
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"  # surrogates, which are not characters
    "\U000e0000-\U000e0fff]"  # invisible tags
)


def escaped(text: str) -> str:
    r"""Return `text` on one line, with characters on which a terminal would act escaped as `\x1b`, `\n` or `\u202e`."""
    return _UNSAFE.sub(_visible, text)


def _visible(m: re.Match[str]) -> str:
    c = m[0]
    if c in _NAMED:
        return _NAMED[c]
    code = ord(c)
    if code in _BYTES:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def fitted(text: Sequence[str], indent: int, stream: TextIO) -> list[str]:
    """Break `text` between words at the terminal's width. If `stream` is redirected, leave the text unchanged, for
    grep.
    """
    if not stream.isatty():
        return list(text)
    width = max(40, shutil.get_terminal_size().columns)
    fold = textwrap.TextWrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [line for t in text for line in (fold.wrap(t) if len(t) > width else [t])]


def is_utf8(value: str) -> bool:
    """Return whether a text is valid UTF-8, as every stored name and reason must be."""
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in value)


def json_text(data: Any) -> str:
    r"""Return `data` as one line of JSON, in which characters on which a terminal would act are escaped as `\u001b`."""
    return json_escaped(json_bytes(data).decode())


def json_bytes(data: Any) -> bytes:
    """Return `data` as JSON. The method `json` of an object encodes the object."""
    try:
        return msgspec.json.encode(data, enc_hook=_late)
    except UnicodeEncodeError:  # a file name that is not UTF-8, for which JSON gets a question mark
        return json.dumps(msgspec.to_builtins(data, enc_hook=_late), ensure_ascii=False).encode(errors="replace")


def _late(late: Any) -> Any:
    return late.json()


def json_escaped(text: str) -> str:
    """Return JSON with the same value, in which these characters, which can occur only in strings, are escaped."""
    return _UNSAFE.sub(lambda m: _units(m[0]), text)


def _units(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _replaced(e: UnicodeError) -> tuple[str, int]:
    assert isinstance(e, UnicodeEncodeError)
    return _units(e.object[e.start : e.end]), e.end


UNENCODABLE: Final = "l0gc.unencodable"
r"""How stdout and stderr print characters that their encoding lacks (Latin-1, C): as `\u20ac`, which also keeps the
value in JSON.
"""
codecs.register_error(UNENCODABLE, _replaced)
