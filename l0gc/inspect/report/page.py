"""The page: one HTML file with everything in it, no script, and nothing that a browser would fetch.

What comes from the bucket (names of topics, reasons, keys) is text that somebody else wrote. The template engine escapes
all of it, none is marked as safe, and the page's own policy lets a browser load and run nothing.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from l0gc import __version__
from l0gc.formatting import STANDARD_PRICE, Outcome, count, dollars, size, span
from l0gc.inspect.causes import NORMAL_LAG
from l0gc.inspect.report.charts import Chart, deleted_chart, epochs_chart, trend_chart
from l0gc.inspect.report.facts import ReportFacts
from l0gc.inspect.report.series import DeletedBar, EpochBar, TrendPoint, trend_points
from l0gc.inspect.report.verdict import HEALTHY, NEEDS_YOU, WAITING, commands_of, words_of

SHOWN_ERRORS: Final = 20

_UNITS: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_BINARY_UNITS: Final = ((1 << 40, " TiB"), (1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"), (1, " B"))


@dataclass(frozen=True, slots=True)
class Charts:
    """The charts of a page; None where there is nothing to show."""

    epochs: Chart | None
    garbage_objects: Chart | None
    garbage_bytes: Chart | None
    deleted: Chart | None


@dataclass(frozen=True, slots=True)
class Report(Outcome):
    """What is known of a cluster, and the page that shows it."""

    facts: ReportFacts
    html: str

    def to_json(self) -> dict[str, Any]:
        """The facts; the page is made of them."""
        return self.facts.to_json()


def render(facts: ReportFacts) -> str:
    """The page as HTML."""
    template = _ENVIRONMENT.get_template("page.html.j2")
    return template.render(
        f=facts,
        charts=_charts(facts),
        version=__version__,
        standard_price=STANDARD_PRICE,
        shown_errors=SHOWN_ERRORS,
        normal_lag=NORMAL_LAG,
        states={HEALTHY: ("good", "Healthy"), WAITING: ("warn", "Waiting"), NEEDS_YOU: ("bad", "Needs you")},
        export=f"export L0GC_URL={shlex.quote(facts.url)}",
    )


def _charts(f: ReportFacts) -> Charts:
    points = trend_points(f.trend, f.sweeps)
    return Charts(
        epochs_chart(f.epochs, f.watermark, _epoch_title, short_number) if f.epochs else None,
        trend_chart("Eligible objects over time", points, lambda p: p.objects, _objects_title, short_number)
        if points
        else None,
        trend_chart("Eligible bytes over time", points, lambda p: p.bytes, _bytes_title, short_size, binary=True)
        if points
        else None,
        deleted_chart(f.deleted, _deleted_title, short_number) if f.deleted else None,
    )


def _objects_title(p: TrendPoint) -> str:
    swept = f", {count(p.deleted_objects, 'object')} deleted" if p.deleted_objects else ""
    return f"{moment(p.ms)}: {count(p.objects, 'object')} eligible{swept}"


def _bytes_title(p: TrendPoint) -> str:
    return (
        f"{moment(p.ms)}: {size(p.bytes)} eligible{f', {size(p.deleted_bytes)} deleted' if p.deleted_objects else ''}"
    )


def _epoch_title(b: EpochBar) -> str:
    what = "eligible" if b.eligible else "held"
    if b.held_by:
        what += f" by {b.held_by}" + (f" and {b.holders - 1:,} more" if b.holders > 1 else "")
    return f"{epochs(b)}: {count(b.objects, 'object')}, {size(b.bytes)}, {what}"


def _deleted_title(b: DeletedBar) -> str:
    when = f"{moment(b.started_ms)[:10]}, {b.runs} runs" if b.is_day else moment(b.started_ms)
    return f"{when}: {count(b.objects, 'object')}, {size(b.bytes)}"


def epochs(b: EpochBar) -> str:
    """`epoch 7`, `epochs 7 to 9`."""
    return f"epoch {b.first_epoch}" if b.first_epoch == b.last_epoch else f"epochs {b.first_epoch} to {b.last_epoch}"


def number(n: int) -> str:
    """`1,234,567`."""
    return f"{n:,}"


def short_number(n: int) -> str:
    """`1.5M`, for an axis."""
    unit, name = next(((u, name) for u, name in _UNITS if n >= u), (1, ""))
    return f"{n / unit:g}{name}"


def short_size(n: int) -> str:
    """`1.5 MiB`, `2 MiB`, for an axis."""
    unit, name = next((u, name) for u, name in _BINARY_UNITS if n >= u or u == 1)
    return f"{n / unit:g}{name}"


def moment(ms: int) -> str:
    """`2026-01-31 23:59 UTC`."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("l0gc.inspect.report", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for shown in (number, size, moment, span, dollars, epochs, commands_of, words_of):
        environment.filters[shown.__name__] = shown
    return environment


_ENVIRONMENT: Final = _environment()
