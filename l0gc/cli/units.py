"""The types of options: numbers, durations, sizes and times. All options read units in the same way."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click
from msgspec import UNSET, UnsetType

from l0gc.formatting import SECONDS, amount, seconds_of
from l0gc.streamlog.controller.state import UNLIMITED

DEFAULT: Final = "default"
MS: Final = {"ms": 1} | {unit: 1000 * n for unit, n in SECONDS.items()}
BYTES: Final = {"": 1} | {f"{u}{end}": 1 << 10 * n for n, u in enumerate("kmgt", 1) for end in ("", "b", "i", "ib")}
_AGO: Final = re.compile(r"[0-9]{1,9}[smhd]")
HELD: Final = 1 << 30
"""The most bytes that an option may allow in memory at once."""


class Whole(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"


class Number(click.FloatRange):
    """A number within bounds. `nan`, which is never out of bounds in a comparison, is refused."""

    name = "number, such as 0.5"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def duration(value: object) -> int:
    """Return a duration such as `30s`, `15m`, `2h` or `7d` in seconds."""
    seconds = seconds_of(str(value))
    if seconds is None:
        units = f"{value}s, {value}m or {value}h" if str(value).isdecimal() else "for example 30s, 15m, 2h or 7d"
        raise click.BadParameter(f"{value!r} is not a valid duration; use {units}")
    return seconds


def interval(value: object) -> float:
    """Return a duration such as `30s`, `15m`, `2h` or `7d`, or seconds with a fraction such as `0.5s`, in seconds."""
    text = str(value).strip()
    return float(text[:-1]) if re.fullmatch(r"[0-9]+\.[0-9]+s", text) else duration(text)


def as_size(n: int) -> str:
    """Return a number of bytes in the form that `size_within` reads."""
    unit = next((u for u in ("GiB", "MiB", "KiB") if n % BYTES[u.lower()] == 0), "")
    return f"{n // BYTES[unit.lower()]}{unit}"


def size_within(least: int, most: int) -> Callable[[object], int]:
    """Return the type of an option for sizes: `4MiB`, `512KiB`, `1GiB` or a number of bytes."""

    def size(value: object) -> int:
        n = amount(str(value), BYTES)
        if not n:
            raise click.BadParameter(
                f"{value!r} is not a valid size; use for example 4MiB, 512KiB or a number of bytes"
            )
        if not least <= n <= most:
            bound = (
                f"less than {as_size(least)}; give at least"
                if n < least
                else f"more than {as_size(most)}; give at most"
            )
            raise click.BadParameter(f"{value!r} is {bound} that")
        return n

    return size


def quantity(units: Mapping[str, int], example: str) -> Callable[[object], int | UnsetType | None]:
    """Return the type of an option for a number with one of the units; -1 means unlimited, and `default`, the cluster's
    setting, becomes None.
    """

    def convert(value: object) -> int | UnsetType | None:
        text = str(value).strip().lower()
        if value is UNSET or text == DEFAULT:
            return UNSET if value is UNSET else None
        if text == str(UNLIMITED):
            return UNLIMITED
        n = amount(text, units)
        if n is None:
            raise click.BadParameter(f"{value!r} is not valid; use {example}, -1 for unlimited, or {DEFAULT}")
        return n

    return convert


def starts(value: object) -> int | dict[int, int]:
    """Return an offset (`1000`), or the offsets of partitions (`0:23,1:5`)."""
    text = str(value).strip()
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    if not re.fullmatch(r"[0-9]{1,9}:[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18})*", text):
        raise click.BadParameter(
            f"{value!r} is not an offset, and not offsets of partitions; use for example 1000, or 0:23,1:5"
        )
    return {int(p): int(offset) for p, _, offset in (part.partition(":") for part in text.split(","))}


def time_ms(value: object) -> int:
    """Return an RFC 3339 time with a time zone in milliseconds since 1970, or an age such as `7d` as a negative number."""
    text = str(value).strip()
    if _AGO.fullmatch(text):
        return -(amount(text, MS) or 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min
    if moment.tzinfo is None or len(text) < len("2026-01-01T00:00Z"):
        raise click.BadParameter(
            f"{value!r} is not a valid time; use 2026-01-31T12:00:00Z, or how long ago: 90m, 12h, 7d"
        )
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    if since.days < 0:
        raise click.BadParameter(f"{value!r} is before 1970")
    return max(since.days * MS["d"] + since.seconds * 1000 + since.microseconds // 1000, 1)  # 0 would mean now


def span_of(what: str, example: str) -> Callable[[str], tuple[int, int]]:
    """Return the type of an option for a range of numbers, given as `FIRST-LAST` or as one number."""

    def span(value: str) -> tuple[int, int]:
        m = re.fullmatch(r"([0-9]{1,19})(?:-([0-9]{1,19}))?", value.strip())
        if m is None or int(m[2] or m[1]) < int(m[1]):
            raise click.BadParameter(f"{value!r} is not a range of {what}; use for example {example}")
        return int(m[1]), int(m[2] or m[1])

    return span
