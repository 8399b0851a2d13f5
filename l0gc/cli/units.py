"""Types of options: numbers, lengths of time, sizes and moments. Every option reads a unit in the same way."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click

from l0gc.streamlog.controller.entries import UNLIMITED

DEFAULT: Final = "default"
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
MS: Final = {"": 1, "ms": 1} | {unit: 1000 * n for unit, n in _SECONDS.items() if unit}
BYTES: Final = {"": 1} | {f"{u}{end}": 1 << 10 * n for n, u in enumerate("kmgt", 1) for end in ("", "b", "i", "ib")}
_AMOUNT: Final = re.compile(r"([0-9]+)([a-z]*)")
_AGO: Final = re.compile(r"[0-9]{1,9}[smhd]")
_MOST_BYTES: Final = 1 << 30


def _amount(text: str, units: Mapping[str, int]) -> int | None:
    """A number with one of the units, or without; None for anything else."""
    m = _AMOUNT.fullmatch(text.strip().lower())
    return int(m[1]) * units[m[2]] if m is not None and m[2] in units else None


class Number(click.FloatRange):
    """A number within bounds. `nan` would pass any of them, since it compares with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Duration(click.ParamType[int]):
    """`30s`, `15m`, `2h`, `7d`; seconds, as an int."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        seconds = _amount(str(value), _SECONDS)
        if seconds is None:
            self.fail(f"{value!r} is not a valid duration; use for example 30s, 15m, 2h or 7d", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """`4MiB`, `512KiB`, `1GiB` or bytes, as an int; at most 1 GiB by default, for what is held in memory at once."""

    name = "size"

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        size = _amount(str(value), BYTES)
        if not size:
            self.fail(f"{value!r} is not a valid size; use for example 4MiB, 512KiB or a number of bytes", param, ctx)
        if size > self._most:
            self.fail(f"{value!r} is more than {self._most >> 30}GiB", param, ctx)
        return size


class Quantity(click.ParamType[int | str]):
    """A number as Kafka has it, or one with a unit; -1 for unlimited, `default` for the cluster's setting."""

    name = "quantity"

    def __init__(self, units: Mapping[str, int], example: str) -> None:
        self._units, self._example = units, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value).strip().lower()
        if text in {DEFAULT, str(UNLIMITED)}:
            return DEFAULT if text == DEFAULT else UNLIMITED
        amount = _amount(text, self._units)
        if amount is None:
            self.fail(f"{value!r} is not valid; use {self._example}, -1 for unlimited, or {DEFAULT}", param, ctx)
        return amount


class Moment(click.ParamType[int]):
    """A time as RFC 3339 has it, with its zone: milliseconds since 1970; or how long ago: `7d`, as a negative number."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        if _AGO.fullmatch(text):
            return -(_amount(text, MS) or 0)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = datetime.min
        if moment.tzinfo is None or len(text) < len("2026-01-01T00:00Z"):
            self.fail(
                f"{value!r} is not a valid time; use 2026-01-31T12:00:00Z, or how long ago: 90m, 12h, 7d", param, ctx
            )
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
        if since.days < 0:
            self.fail(f"{value!r} is before 1970", param, ctx)
        return since.days * MS["d"] + since.seconds * 1000 + since.microseconds // 1000
