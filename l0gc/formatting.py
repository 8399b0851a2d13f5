"""Format numbers, in the same way for the terminal and the report, results as JSON, and the cost of garbage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import msgspec

from l0gc.errors import L0gcError, PartialFailureError

STANDARD_PRICE: Final = 0.023
"""Dollars per GB and month: the price of S3 Standard in us-east-1 for the first 50 TB."""
GB: Final = 1 << 30
"""The bytes of a GB on S3's bill."""

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""The units in which durations are written."""
_AMOUNT: Final = re.compile(r"([0-9]+)([a-z]*)")
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


class Outcome:
    """The result of a command. Its fields are the command's JSON; docs/reference/json.md explains them."""

    __slots__ = ()
    hidden: ClassVar[frozenset[str]] = frozenset()
    """The fields that the JSON omits."""
    derived: ClassVar[tuple[str, ...]] = ()
    """The properties that the JSON includes."""
    unfinished: ClassVar[str] = ""
    """The message of a run that has `errors`."""

    @property
    def problem(self) -> L0gcError | None:
        """Return the error with which the command ends if it left work undone or found a problem; otherwise None."""
        return PartialFailureError.of(self.unfinished, getattr(self, "errors", [])) if self.unfinished else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the derived values, as `--json` prints them."""
        fields: dict[str, Any] = {}
        this: Any = self
        names: Iterable[str] = getattr(self, "__struct_fields__", ())
        if is_dataclass(this):
            names = [f.name for f in dataclass_fields(this)]  # without class variables
        for name in (*names, *self.derived):
            if name not in self.hidden:
                match getattr(self, name):
                    case Outcome() as one:
                        fields[name] = one.to_json()
                    case [Outcome(), *_] as several:
                        fields[name] = [one.to_json() for one in several]
                    case value:
                        fields[name] = msgspec.to_builtins(value, enc_hook=str)
        if isinstance(seconds := fields.get("seconds"), dict):
            fields["seconds"] = {name: round(s, 3) for name, s in seconds.items()}
        elif seconds is not None:
            fields["seconds"] = round(seconds, 3)
        return fields

    def add(self, other: Any, *names: str) -> None:
        """Add another result's numbers and lists to this one."""
        for name in names:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def measures(self) -> dict[str, Any]:
        """Return numbers that the metrics have and the JSON omits."""
        return {}


def count(n: int, noun: str, plural: str | None = None) -> str:
    """Return `1 object`, `1,234 objects`."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def epochs(first: int, last: int) -> str:
    """Return `epoch 7`, `epochs 7 to 9`."""
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def size(n: float) -> str:
    """Return a number of bytes as `12.3 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:,.1f} TiB"


def span(ms: float) -> str:
    """Return a duration in the largest unit that it has at least two of: `90 s`, `3 min`, `47 h`, `2 d`."""
    seconds = int(max(0, ms) // 1000)
    unit, name = next(((u, name) for u, name in _SPANS if seconds >= 2 * u), (1, "s"))
    return f"{seconds // unit} {name}"


def moment(ms: int, between: str = " ") -> str:
    """Return a time in milliseconds since 1970 as `2026-01-31 23:59:59Z`."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d{between}%H:%M:%S}Z"


def amount(text: str, units: Mapping[str, int]) -> int | None:
    """Return the amount that a number with one of the units means; None for other text. A number without a unit is
    accepted if `units` contains the empty unit.
    """
    m = _AMOUNT.fullmatch(text.strip().lower())
    return int(m[1]) * units[m[2]] if m is not None and m[2] in units else None


def seconds_of(text: str) -> int | None:
    """Return the seconds of a duration such as `30s`, `15m`, `2h`, `7d` or `0`; None for other text.

    A number without a unit could mean minutes or days, so it is not accepted.
    """
    return 0 if text.strip() == "0" else amount(text, SECONDS)


def as_duration(seconds: float) -> str:
    """Return seconds in the form that `seconds_of` reads, in the largest unit that fits."""
    unit = next((u for u in "dhm" if seconds and seconds % SECONDS[u] == 0), "s")
    return f"{seconds / SECONDS[unit]:.0f}{unit}"


def dollars(amount: float) -> str:
    """Return an amount as `$1.50`."""
    return f"${amount:,.2f}" if amount >= 0.005 or amount == 0 else "under $0.01"


def dollars_month(size: int, price: float) -> float:
    """Return the cost of `size` bytes per month, at `price` dollars per GB and month."""
    return size / GB * price
