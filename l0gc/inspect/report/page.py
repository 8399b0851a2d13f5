"""Render the page: one self-contained HTML file, without scripts and without anything that a browser would fetch.

Text from the bucket (names of topics, reasons, keys) is not trusted. The template engine escapes all of it, none is
marked as safe, and the page's policy prevents a browser from loading or running anything.

`charts.html.j2` draws the charts as SVG from coordinates that are computed here. Coordinates are per cent of the
chart's width and height, from the top left, between 0 and 100, so a chart is as wide as the screen and its text keeps
its size.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from l0gc import __version__
from l0gc.formatting import STANDARD_PRICE, count, dollars, epochs, size, span
from l0gc.inspect.causes import NORMAL_LAG, NOTHING
from l0gc.inspect.report.facts import HEALTHY, NEEDS_YOU, WAITING, DeletedBar, EpochBar, Report, TrendPoint

SHOWN_ERRORS: Final = 20
_COMMANDS: Final = re.compile(r"l0gc [a-z-]+(?: [\w./-]+)*(?: && l0gc [a-z-]+(?: [\w./-]+)*)*$")

_LEAST_HEIGHT: Final = 1.5
"""The least height of a bar, so that every number above zero is visible."""
_TICKS: Final = 5
_DAYS_NAMED: Final = 8
"""The number of labels that fit below bars, for days and for times, which are longer."""
_GAP: Final = 0.15
"""The gap between bars, as a share of a bar's slot."""
_WIDEST: Final = 9.0
"""The widest bar, in per cent of the chart, so that a single bar does not fill it."""
_CHARACTER: Final = 1.1
"""About half the width of a label's character, in per cent of the chart, on the narrowest screen."""
_UNITS: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_BINARY_UNITS: Final = ((1 << 40, " TiB"), (1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"), (1, " B"))
_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_STEPS: Final = [
    _MINUTE,
    *(n * _MINUTE for n in (2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 5, 10, 20, 50, 100)),
]


def render(report: Report) -> str:
    """Return the page as HTML."""
    o, points = report.overview, report.trend
    charts: dict[str, Chart | None] = dict.fromkeys(("epochs", "garbage_objects", "garbage_bytes", "deleted"))
    if report.epochs:
        charts["epochs"] = epochs_chart(report.epochs, o.watermark, _epoch_title)
    if points:
        objects, bytes_ = "Eligible objects over time", "Eligible bytes over time"
        charts["garbage_objects"] = trend_chart(objects, points, lambda p: p.objects, _objects_title)
        charts["garbage_bytes"] = trend_chart(bytes_, points, lambda p: p.bytes, _bytes_title, binary=True)
    if report.deleted:
        charts["deleted"] = deleted_chart(report.deleted, _deleted_title)
    where = {"export L0GC_URL": report.url, "L0GC_ENDPOINT_URL": report.endpoint_url}
    return _ENVIRONMENT.get_template("page.html.j2").render(
        r=report,
        o=o,
        charts=charts,
        version=__version__,
        standard_price=STANDARD_PRICE,
        shown_errors=SHOWN_ERRORS,
        normal_lag=NORMAL_LAG,
        states={HEALTHY: ("good", "Healthy"), WAITING: ("warn", "Waiting"), NEEDS_YOU: ("bad", "Needs you")},
        export=" ".join(f"{name}={shlex.quote(value)}" for name, value in where.items() if value),
    )


# -- charts -------------------------------------------------------------------------------------------------------------


class AxisTick(NamedTuple):
    """A tick on an axis. `anchor` is SVG's text-anchor. Every other tick is `minor`, and a phone does not show it."""

    at: float
    label: str
    anchor: str = "middle"
    minor: bool = False


class Bar(NamedTuple):
    """A bar, whose `kind` is a class of the style sheet: `eligible`, `held` or `deleted`."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


class Point(NamedTuple):
    """A point of a line, whose `kind` is a class of the style sheet: `dot` for a scan, `swept` for the end of a sweep."""

    x: float
    y: float
    title: str
    kind: str = "dot"


class Chart(NamedTuple):
    """A chart, which `label` describes for screen readers; `line` marks M."""

    label: str
    y_ticks: list[AxisTick]
    x_ticks: list[AxisTick]
    bars: Sequence[Bar] = ()
    points: Sequence[Point] = ()
    line: AxisTick | None = None


class Scale(NamedTuple):
    """A mapping from values to per cent: `low` is at 0, `high` at 100. `high` is above `low`."""

    low: float
    high: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)


def nice_step(span: float, most: int = _TICKS, *, binary: bool = False) -> int:
    """Return the smallest step, out of 1, 2 and 5 times a power of ten, or out of the powers of two, with which at most
    `most` steps cover `span`.
    """
    power = 1
    while True:
        for factor in (1,) if binary else (1, 2, 5):
            if factor * power * most >= span:
                return factor * power
        power *= 2 if binary else 10


def height_scale(values: Sequence[float], *, binary: bool = False) -> tuple[Scale, list[AxisTick]]:
    """Return a scale from 0 to at least the highest value, and its ticks, the lowest first."""
    top = max(values, default=0)
    step = nice_step(top, binary=binary)
    steps = max(1, math.ceil(top / step))
    scale, label = Scale(0, steps * step), short_size if binary else short_number
    return scale, [AxisTick(100 - scale.at(n * step), label(n * step), "end") for n in range(steps + 1)]


def short_number(n: int) -> str:
    """Return a number as `1.5M`, for an axis."""
    unit, name = next(((u, name) for u, name in _UNITS if n >= u), (1, ""))
    return f"{n / unit:g}{name}"


def short_size(n: int) -> str:
    """Return a size as `1.5 MiB`, `2 MiB`, for an axis."""
    unit, name = next((u, name) for u, name in _BINARY_UNITS if n >= u or u == 1)
    return f"{n / unit:g}{name}"


def _placed(labels: Sequence[tuple[float, str]]) -> list[AxisTick]:
    """Return labels below an axis. Labels near its ends are shifted into the chart, longer ones further."""
    ticks = []
    for i, (at, label) in enumerate(labels):
        room = _CHARACTER * len(label)
        anchor = "start" if at < room else "end" if at > 100 - room else "middle"
        ticks.append(AxisTick(at, label, anchor, minor=bool(i % 2)))
    return ticks


def _bar(x: float, width: float, scale: Scale, value: int, kind: str, title: str) -> Bar:
    height = max(_LEAST_HEIGHT, scale.at(value)) if value > 0 else 0.0
    return Bar(
        round(x + width * _GAP / 2, 3), round(100 - height, 3), round(width * (1 - _GAP), 3), height, kind, title
    )


def epochs_chart(bars: Sequence[EpochBar], watermark: int, title: Callable[[EpochBar], str]) -> Chart:
    """Return a chart of objects at each epoch, in which M separates eligible objects from the others."""
    low, high = bars[0].first_epoch, bars[-1].last_epoch
    across = Scale(low, high + 1)
    up, y_ticks = height_scale([b.objects for b in bars])
    marks = []
    for b in bars:
        x = across.at(b.first_epoch)
        width = across.at(b.last_epoch + 1) - x
        marks.append(_bar(x, width, up, b.objects, "eligible" if b.eligible else "held", title(b)))
    step = nice_step(high - low)
    first = -(-low // step) * step
    x_ticks = _placed([(across.at(e + 0.5), str(e)) for e in range(first, high + 1, step)])
    return Chart("L0 objects at each epoch", y_ticks, x_ticks, bars=marks, line=_m_line(across, low, high, watermark))


def _m_line(across: Scale, low: int, high: int, watermark: int) -> AxisTick:
    """Return the mark of M: after its epoch or, if that lies outside the chart, an arrow at the edge."""
    if watermark < 0:
        return AxisTick(0.0, "\N{LEFTWARDS ARROW} no M is published", "start")
    at = across.at(watermark + 1)
    if watermark + 1 < low:
        return AxisTick(at, f"\N{LEFTWARDS ARROW} M = {watermark}", "start")
    if watermark > high:
        return AxisTick(at, f"M = {watermark} \N{RIGHTWARDS ARROW}", "end")
    return AxisTick(at, f"M = {watermark}", "start" if at < 50 else "end")


def deleted_chart(bars: Sequence[DeletedBar], title: Callable[[DeletedBar], str]) -> Chart:
    """Return a bar chart of the objects deleted by each run or on each day. The newest bar always has a label."""
    up, y_ticks = height_scale([b.objects for b in bars])
    slot = 100 / len(bars)
    width = min(slot, _WIDEST)
    marks = [_bar(i * slot + (slot - width) / 2, width, up, b.objects, "deleted", title(b)) for i, b in enumerate(bars)]
    step = -(-len(bars) // (_DAYS_NAMED if bars[0].is_day else _TICKS))
    last = len(bars) - 1
    labels = [
        ((i + 0.5) * slot, _axis_moment(b.started_ms, b.is_day)) for i, b in enumerate(bars) if (last - i) % step == 0
    ]
    unit = "day" if bars[0].is_day else "run"
    return Chart(f"L0 objects deleted by each {unit}", y_ticks, _placed(labels), bars=marks)


def trend_chart(
    label: str,
    points: Sequence[TrendPoint],
    value: Callable[[TrendPoint], int],
    title: Callable[[TrendPoint], str],
    *,
    binary: bool = False,
) -> Chart:
    """Return a line over time, oldest first, with a mark at each sweep."""
    low, high = points[0].ms, points[-1].ms
    if low == high:
        low, high = low - _HOUR, high + _HOUR
    across = Scale(low, high)
    up, y_ticks = height_scale([value(p) for p in points], binary=binary)
    marks = [
        Point(across.at(p.ms), round(100 - up.at(value(p)), 3), title(p), "swept" if p.deleted_objects else "dot")
        for p in points
    ]
    return Chart(label, y_ticks, time_ticks(across), points=marks)


def time_ticks(across: Scale) -> list[AxisTick]:
    """Return ticks at round times (UTC) between the ends of a scale of milliseconds; if there are none, a tick at its
    start.
    """
    low, high = int(across.low), int(across.high)
    step = next((s for s in _STEPS if (high - low) / s <= _TICKS), nice_step((high - low) / _DAY) * _DAY)
    first = -(-low // step) * step
    moments = list(range(first, high + 1, step)) or [low]
    return _placed([(across.at(ms), _axis_moment(ms, step >= _DAY)) for ms in moments])


def _axis_moment(ms: int, is_day: bool) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):{'%-d %b' if is_day else '%-d %b %H:%M'}}"


# -- text ---------------------------------------------------------------------------------------------------------------


def _objects_title(p: TrendPoint) -> str:
    swept = f", {count(p.deleted_objects, 'object')} deleted" if p.deleted_objects else ""
    return f"{moment(p.ms)}: {count(p.objects, 'object')} eligible{swept}"


def _bytes_title(p: TrendPoint) -> str:
    return (
        f"{moment(p.ms)}: {size(p.bytes)} eligible{f', {size(p.deleted_bytes)} deleted' if p.deleted_objects else ''}"
    )


def _epoch_title(b: EpochBar) -> str:
    fate = "eligible" if b.eligible else "held"
    if b.held_by:
        fate += f" by {b.held_by}" + (f" and {b.holders - 1:,} more" if b.holders > 1 else "")
    return f"{epochs_of(b)}: {count(b.objects, 'object')}, {size(b.bytes)}, {fate}"


def _deleted_title(b: DeletedBar) -> str:
    when = f"{moment(b.started_ms)[:10]}, {count(b.runs, 'run')}" if b.is_day else moment(b.started_ms)
    return f"{when}: {count(b.objects, 'object')}, {size(b.bytes)}"


def epochs_of(b: EpochBar) -> str:
    return epochs(b.first_epoch, b.last_epoch)


def number(n: int) -> str:
    """Return `1,234,567`."""
    return f"{n:,}"


def moment(ms: int) -> str:
    """Return `2026-01-31 23:59 UTC`."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def commands_of(remedy: str) -> str:
    """Return the commands at the end of a remedy, for copying; empty if it has none, or if an operator must act first."""
    m = _COMMANDS.search(remedy)
    before = remedy[: m.start()] if m is not None else ""
    if m is None or remedy.startswith(NOTHING) or before.endswith("then ") or (before and before[-1] != " "):
        return ""
    return m[0]


def words_of(remedy: str) -> str:
    """Return the text before the commands of a remedy."""
    return remedy.removesuffix(commands_of(remedy))


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("l0gc.inspect.report", package_path=""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
for _shown in (number, size, moment, span, dollars, epochs_of, commands_of, words_of):
    _ENVIRONMENT.filters[_shown.__name__] = _shown
