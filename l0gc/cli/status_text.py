"""What `l0gc status` shows people: labelled lines, folded to the terminal, with a little colour where there is any."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import click

from l0gc.cli.output import epoch, held_back
from l0gc.cli.runs import run_outcome
from l0gc.cli.terminal import escaped
from l0gc.collect.gc_steps import STEPS
from l0gc.formatting import STANDARD_PRICE, count, dollars, moment, size, span
from l0gc.inspect.causes import NOTHING
from l0gc.inspect.status import Status
from l0gc.watermark.source import Holder

INDENT: Final = 11
LEAST_WIDTH: Final = 40
PIPED_WIDTH: Final = 80
_CAUSES: Final = 5
_TOGETHER: Final = "\N{NO-BREAK SPACE}"
"""Stands for a space at which no line ends."""


@dataclass(frozen=True, slots=True)
class Line:
    """A label, empty if the line belongs to the one above, and the text next to it; `colour` of the label."""

    label: str
    text: str
    colour: str = ""
    bold: bool = False


def lines_of(s: Status, url: str) -> list[Line]:
    """The whole block, the next step last."""
    lines = [Line("cluster", url), Line("", f"{s.cluster_id}, {moment(s.as_of_ms)}")]
    lines += _epoch_and_m(s)
    lines.append(Line("garbage", _garbage(s)))
    lines += _labelled("held by", _held(s))
    lines += _labelled("broken", s.errors, "red")
    lines.append(Line("jobs", _jobs(s)))
    lines += _sweeps(s)
    for number, cause in enumerate(s.causes[:_CAUSES]):
        lines.append(Line("why" if number == 0 else "and", f"{cause.cause}: {cause.detail}", "red"))
        if cause.remedy != s.next:
            lines.append(Line("", f"-> {cause.remedy}"))
    if len(s.causes) > _CAUSES:
        lines.append(Line("", f"and {count(len(s.causes) - _CAUSES, 'more cause')} (--json)", "red"))
    for warning in s.warnings:
        lines.append(Line("warning", f"{warning.cause}: {warning.detail}", "yellow"))
        lines.append(Line("", f"-> {warning.remedy}"))
    idle = s.next.startswith(NOTHING)
    text = f"{NOTHING} to do: M follows the epoch" if s.next == NOTHING else s.next
    lines.append(Line("next", text, "green" if idle else "", bold=not idle))
    return lines


def folded(lines: Iterable[Line], *, coloured: bool) -> list[str]:
    """As wide as the terminal, or 80 columns without one; escaped, and coloured if that is wanted."""
    width = max(LEAST_WIDTH, shutil.get_terminal_size((PIPED_WIDTH, 24)).columns)
    fold = textwrap.TextWrapper(width - INDENT, break_long_words=False, break_on_hyphens=False)
    out = []
    for line in lines:
        for number, wrapped in enumerate(fold.wrap(escaped(line.text)) or [""]):
            part = wrapped.replace(_TOGETHER, " ")
            indent = min(INDENT, max(0, width - len(part)))  # a long key has its own line, to be copied whole
            label = f"{line.label:{INDENT}}" if number == 0 else " " * indent
            out.append(_coloured(label, part, line) if coloured else f"{label}{part}")
    return out


def _coloured(label: str, part: str, line: Line) -> str:
    beside = click.style(label, fg=line.colour or None, dim=not line.colour) if label.strip() else label
    return beside + (click.style(part, bold=True) if line.bold else part)


def _ago(s: Status, ms: int) -> str:
    return f"{span(s.as_of_ms - ms)} ago"


def _epoch_and_m(s: Status) -> Iterator[Line]:
    if s.external_log:
        known = f"{s.cluster_epoch} when M was published" if s.cluster_epoch >= 0 else "not known yet"
        yield Line("epoch", f"another system's: {known}")
    else:
        topics, partitions, journals = (
            count(n, noun) for n, noun in ((s.topics, "topic"), (s.partitions, "partition"), (s.journals, "journal"))
        )
        in_all = f"{topics}, {partitions} in {journals}" if s.topics else topics
        yield Line("epoch", f"{s.cluster_epoch}, begun {_ago(s, s.epoch_ms)}; {in_all}")
    published = f"{s.watermark}, published {_ago(s, s.published_ms)}" if s.published_ms >= 0 else "none is published"
    now = f"; {epoch(s.computable_watermark)} if it were computed now" if s.computable_watermark is not None else ""
    yield Line("M", published + now)
    if s.external_log:
        if s.published_ms >= 0:
            yield Line("lag", f"{count(s.lag_epochs, 'epoch')} behind the epoch that was published with it")
        return
    lag = count(s.lag_epochs, "epoch")
    if s.lag_ms:
        more = " (or longer)" if s.lag_at_least else ""
        lag += f"; what was uploaded in the last {span(s.lag_ms)}{more} cannot go yet"
    yield Line("lag", lag)
    yield Line("records", f"{s.records:,}, of which {s.unreconciled_records:,} unreconciled in L0")


def _garbage(s: Status) -> str:
    g, amount, price = s.garbage, s.dollars_month, s.price_gb_month
    if amount is None:
        return "not known: no listing was read when M was published" if s.published_ms >= 0 else "not known yet"
    if not g.objects:
        return f"none as of {_ago(s, g.as_of_ms)}"
    name = " (S3 standard)" if price == STANDARD_PRICE else ""
    gone = f"; since then {g.deleted_objects:,} ({size(g.deleted_bytes)}) deleted" if g.deleted_objects else ""
    if g.deleted_objects >= g.objects:
        return (
            f"none: the last sweeps deleted all {count(g.objects, 'object')} ({size(g.bytes)}) of {_ago(s, g.as_of_ms)}"
        )
    left = ", what is left of it" if g.deleted_objects else ","
    return (
        f"{count(g.objects, 'object')} ({size(g.bytes)}) as of {_ago(s, g.as_of_ms)}{gone}{left} {dollars(amount)} "
        f"a month at ${price:g} a GB-month{name}"
    )


def _held(s: Status) -> list[str]:
    written = {h.holder: h.oldest_ms for h in s.held if h.oldest_ms >= 0}

    def age(group: Sequence[Holder]) -> str:
        known = [written[h] for h in group if h in written]
        return f" (the oldest written {_ago(s, min(known))})" if known else ""

    return held_back([h.holder for h in s.held], total=s.held_partitions, beside=age)


def _labelled(label: str, texts: Iterable[str], colour: str = "") -> list[Line]:
    return [Line("" if number else label, text, colour) for number, text in enumerate(texts)]


def _jobs(s: Status) -> str:
    ended = {a.command: a for a in s.attempts}
    shown = []
    for step in STEPS:
        a = ended.get(step)
        shown.append(f"{step} never" if a is None else f"{step} {'' if a.ok else 'failed '}{_ago(s, a.ended_ms)}")
    return ", ".join(text.replace(" ", _TOGETHER) for text in shown)


def _sweeps(s: Status) -> list[Line]:
    paused = "not paused"
    if s.paused is not None:
        paused = f"paused {_ago(s, s.paused.since_ms)} by {s.paused.by}: {s.paused.why}"
    runs = [f"{r.run_id}  {run_outcome(r)}" for r in reversed(s.runs)]
    return [Line("sweeps", paused, "yellow" if s.paused is not None else ""), *(Line("", run) for run in runs)]
