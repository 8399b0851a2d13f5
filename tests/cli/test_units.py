"""Types of options: the same units everywhere, their limits, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest

from l0gc.cli.units import BYTES, as_size, duration, interval, quantity, size_within, span_of, starts, time_ms

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 1),  # not 0, which means the current time
        ("1970-01-02T01:00:00.250+01:00", 24 * HOUR + 250),
        ("90m", -90 * 60_000),
        ("7d", -7 * 24 * HOUR),
        ("0s", 0),
    ],
)
def test_times_are_rfc_3339_or_how_long_ago(text: str, ms: int) -> None:
    assert time_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-01-31", "2026-01-31T12:00:00", "1960-01-01T00:00:00Z", "-1d", "7 d"]
)
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        time_ms(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (duration, "0", 0),
        (duration, "2h", 7200),
        (interval, "0.5s", 0.5),
        (interval, "7d", 7 * 86_400),
        (size_within(2, 1 << 30), "1GiB", 1 << 30),
        (size_within(2, 1 << 30), "2", 2),
        (quantity(BYTES, "1GiB"), "-1", -1),
        (quantity(BYTES, "1GiB"), "default", None),
        (quantity(BYTES, "1GiB"), "0", 0),
        (starts, "1000", 1000),
        (starts, "0:23,1:5", {0: 23, 1: 5}),
        (span_of("epochs", "1-9"), "5", (5, 5)),
        (span_of("epochs", "1-9"), "5-5", (5, 5)),
    ],
)
def test_a_value_is_read_up_to_its_limit(kind: Callable[[Any], object], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (duration, "10"),
        (interval, "0.5"),
        (size_within(2, 1 << 30), "1073741825"),
        (size_within(2, 1 << 30), "1"),
        (size_within(2, 1 << 30), "0"),
        (quantity(BYTES, "1GiB"), "-2"),
        (starts, "0:23,1"),
        (span_of("epochs", "1-9"), "6-5"),
    ],
)
def test_a_value_beyond_its_limit_or_without_a_unit_is_refused(kind: Callable[[Any], object], text: str) -> None:
    with pytest.raises(click.BadParameter):
        kind(text)


@pytest.mark.parametrize("n", [1, 1023, 1024, 1536, 4 << 20, 1 << 30, 5 << 40])
def test_a_size_is_written_as_it_is_read(n: int) -> None:
    assert size_within(1, 1 << 60)(as_size(n)) == n


@pytest.mark.parametrize(
    ("text", "bound"), [("1", "less than 2; give at least"), ("1GiB", "more than 512MiB; give at most")]
)
def test_a_refused_size_is_shown_with_its_bound(text: str, bound: str) -> None:
    with pytest.raises(click.BadParameter, match=f"'{text}' is {bound} that"):
        size_within(2, 512 << 20)(text)
