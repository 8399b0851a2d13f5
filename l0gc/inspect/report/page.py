"""The page: one HTML file with everything in it, no script, and nothing that a browser would fetch.

What comes from the bucket (names of topics, reasons, keys) is text that somebody else wrote. The template engine escapes
all of it, none is marked as safe, and the page's own policy lets a browser load and run nothing.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from l0gc import __version__
from l0gc.formatting import STANDARD_PRICE, Outcome, count, dollars, size, span
from l0gc.inspect.causes import NORMAL_LAG, NOTHING
from l0gc.inspect.report.charts import Chart, deleted_chart, epochs_chart, trend_chart
from l0gc.inspect.report.facts import HEALTHY, NEEDS_YOU, WAITING, ReportFacts
from l0gc.inspect.report.series import DeletedBar, EpochBar, TrendPoint, trend_points

SHOWN_ERRORS: Final = 20
_COMMANDS: Final = re.compile(r"l0gc [a-z-]+(?: [\w./-]+)*(?: && l0gc [a-z-]+(?: [\w./-]+)*)*$")


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
    where = {"export L0GC_URL": facts.url, "L0GC_ENDPOINT_URL": facts.endpoint_url}
    template = _ENVIRONMENT.get_template("page.html.j2")
    return template.render(
        f=facts,
        charts=_charts(facts),
        version=__version__,
        standard_price=STANDARD_PRICE,
        shown_errors=SHOWN_ERRORS,
        normal_lag=NORMAL_LAG,
        states={HEALTHY: ("good", "Healthy"), WAITING: ("warn", "Waiting"), NEEDS_YOU: ("bad", "Needs you")},
        export=" ".join(f"{name}={shlex.quote(value)}" for name, value in where.items() if value),
    )


def _charts(f: ReportFacts) -> dict[str, Chart | None]:
    """The charts of a page; None where there is nothing to show."""
    points = trend_points(f.trend, f.sweeps)
    charts: dict[str, Chart | None] = dict.fromkeys(("epochs", "garbage_objects", "garbage_bytes", "deleted"))
    if f.epochs:
        charts["epochs"] = epochs_chart(f.epochs, f.watermark, _epoch_title)
    if points:
        objects, bytes_ = "Eligible objects over time", "Eligible bytes over time"
        charts["garbage_objects"] = trend_chart(objects, points, lambda p: p.objects, _objects_title)
        charts["garbage_bytes"] = trend_chart(bytes_, points, lambda p: p.bytes, _bytes_title, binary=True)
    if f.deleted:
        charts["deleted"] = deleted_chart(f.deleted, _deleted_title)
    return charts


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


def moment(ms: int) -> str:
    """`2026-01-31 23:59 UTC`."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def commands_of(remedy: str) -> str:
    """The commands with which a remedy ends, to be copied; empty if it is words alone, or if nothing has to be done."""
    found = _COMMANDS.search(remedy)
    if found is None or remedy.startswith(NOTHING) or not (found.start() == 0 or remedy[found.start() - 1] == " "):
        return ""
    return found[0]


def words_of(remedy: str) -> str:
    """What stands before them: what a person has to do first."""
    return remedy.removesuffix(commands_of(remedy))


_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("l0gc.inspect.report", package_path=""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
for _shown in (number, size, moment, span, dollars, epochs, commands_of, words_of):
    _ENVIRONMENT.filters[_shown.__name__] = _shown
