"""`l0gc status`, `explain`, `report`, `doctor` and `verify`, which inspect a cluster and change nothing."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from l0gc.api import Cluster, Engine
from l0gc.cli.globals import cli_command, epoch_interval_option
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import cluster_options, engine_options, operation_options, price_option
from l0gc.cli.output import Output, atomic_file, epoch, held_back, is_coloured, misfits_text, writing_stdout
from l0gc.cli.runs import run_outcome
from l0gc.cli.signals import exit_code_of
from l0gc.cli.terminal import escaped
from l0gc.cli.units import Whole, duration
from l0gc.collect.gc_steps import EXTERNAL_STEPS, STEPS
from l0gc.errors import UsageError
from l0gc.formatting import STANDARD_PRICE, count, dollars, moment, size, span
from l0gc.inspect.causes import NOTHING
from l0gc.inspect.overview import DatedHolder, Overview, PinCost
from l0gc.operations import Verify
from l0gc.watermark.source import Holder

if TYPE_CHECKING:
    from l0gc.inspect.doctor import DoctorResult
    from l0gc.inspect.verify.findings import ShadowProof, VerifyResult

WATCH: Final = "5s"
INDENT: Final = 11
LEAST_WIDTH: Final = 40
PIPED_WIDTH: Final = 80
_CAUSES: Final = 5
_TOGETHER: Final = "\N{NO-BREAK SPACE}"
"""A space at which lines are not broken."""


@cli_command("status")
@click.option(
    "--watch", type=duration, is_flag=False, flag_value=WATCH, metavar="[DURATION]",
    help="Refresh at this interval (5s) until Ctrl-C.",
)  # fmt: skip
@price_option
@cluster_options(metrics_options, epoch_interval_option)
def status_command(out: Output, cluster: Cluster, watch: int | None, price_gb_month: float) -> None:
    """Show M, its age, what holds it back and why, and the next step. Nothing is changed.

    \b
    Example:
      l0gc status
      l0gc status --watch
    """

    def look() -> tuple[dict[str, Any], list[str]]:
        s = cluster.status(price_gb_month=price_gb_month)
        out.saw(s)
        return s.to_json(), folded(lines_of(s, cluster.url), coloured=is_coloured())

    if watch is None:
        with out.progress("reading"):
            data, lines = look()
        out.result(
            data,
            lines,
            indent=None,
            styled=True,
            needed=any(data[name] for name in ("causes", "warnings", "errors", "paused")),
        )
        return
    try:
        with out.watching() as show:
            while True:
                show(*look())
                time.sleep(max(1, watch))
    except KeyboardInterrupt as e:
        click.get_current_context().exit(exit_code_of(e))


class Line(msgspec.Struct, frozen=True):
    """A line of the status: a label, which is empty if the line belongs to the one above, its `colour`, and a text."""

    label: str
    text: str
    colour: str = ""
    bold: bool = False


def lines_of(s: Overview, url: str) -> list[Line]:
    """Return the status as labelled lines, the next step last."""
    lines = [Line("cluster", url), Line("", f"{s.cluster_id}, {moment(s.as_of_ms)}")]
    lines += _epoch_and_m(s)
    lines.append(Line("garbage", _garbage(s)))
    lines += _labelled("held by", _held(s))
    if s.laggards is not None and s.laggards.partitions:
        lines.append(Line("lagging", s.laggards.sentence))
    lines += _labelled("pins", (_pin(s, p) for p in s.pins if not p.table))
    lines += _labelled("tables", (t.sentence for t in s.tables if not t.overdue))
    lines += _labelled("broken", s.errors, "red")
    lines += _labelled("not shown", s.notes, "yellow")
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
    """Fold lines to the terminal's width, or to 80 columns without a terminal. Escape them, and colour them if
    requested.
    """
    width = max(LEAST_WIDTH, shutil.get_terminal_size((PIPED_WIDTH, 24)).columns)
    fold = textwrap.TextWrapper(width - INDENT, break_long_words=False, break_on_hyphens=False)
    out = []
    for line in lines:
        for number, wrapped in enumerate(fold.wrap(escaped(line.text)) or [""]):
            part = wrapped.replace(_TOGETHER, " ")
            indent = min(
                INDENT, max(0, width - len(part))
            )  # a long key gets its own line, so that it can be copied whole
            label = f"{line.label:{INDENT}}" if number == 0 else " " * indent
            out.append(_coloured(label, part, line) if coloured else f"{label}{part}")
    return out


def _coloured(label: str, part: str, line: Line) -> str:
    beside = click.style(label, fg=line.colour or None, dim=not line.colour) if label.strip() else label
    return beside + (click.style(part, bold=True) if line.bold else part)


def _ago(s: Overview, ms: int) -> str:
    return f"{span(s.as_of_ms - ms)} ago"


def _epoch_and_m(s: Overview) -> Iterator[Line]:
    if s.external_log:
        newest = f"{s.cluster_epoch} when M was published" if s.cluster_epoch >= 0 else "not known yet"
        yield Line("epoch", f"another system's: {newest}")
    else:
        topics, partitions, journals = (
            count(n, noun) for n, noun in ((s.topics, "topic"), (s.partitions, "partition"), (s.journals, "journal"))
        )
        in_all = f"{topics}, {partitions} in {journals}" if s.topics else topics
        yield Line("epoch", f"{s.cluster_epoch}, begun {_ago(s, s.epoch_ms)}; {in_all}")
    published = f"{s.watermark}, published {_ago(s, s.published_ms)}" if s.published_ms >= 0 else "not published yet"
    now = f"; {epoch(s.computable_watermark)} if it were computed now" if s.computable_watermark is not None else ""
    yield Line("M", published + now)
    if s.external_log:
        if s.published_ms >= 0:
            yield Line("lag", f"{count(s.lag_epochs, 'epoch')} behind the epoch that was published with it")
        return
    lag = count(s.lag_epochs, "epoch")
    if s.lag_ms:
        more = " (or longer)" if s.lag_at_least else ""
        lag += f"; what was uploaded in the last {span(s.lag_ms)}{more} cannot be deleted yet"
    yield Line("lag", lag)
    lost = f", {count(s.lost_records, 'record')} given up" if s.holes else ""
    unread = f"; not counted: {count(len(s.errors), 'journal')} that cannot be read" if s.errors else ""
    dead = f", {size(s.l1.dead_bytes)} in L1 that no partition lists" if s.l1.dead_bytes else ""
    yield Line("records", f"{s.records:,}, of which {s.unreconciled_records:,} unreconciled in L0{lost}{dead}{unread}")
    if s.misfits:
        yield Line("misfits", misfits_text(s.misfits), "yellow")


def _garbage(s: Overview) -> str:
    g, price = s.garbage, s.price_gb_month
    if g is None:
        return "unknown: the bucket has not been listed yet"
    eligible, as_of = f"{count(g.eligible_objects, 'object')} ({size(g.eligible_bytes)})", _ago(s, g.taken_ms)
    if not g.eligible_objects and not g.left_objects:
        return f"none as of {as_of}"
    name = " (S3 standard)" if price == STANDARD_PRICE else ""
    deleted = f"; since then {g.deleted_objects:,} ({size(g.deleted_bytes)}) deleted" if g.deleted_objects else ""
    if not g.left_objects:
        return f"none: {eligible} of {as_of} {'was' if g.eligible_objects == 1 else 'were'} deleted by the last sweeps"
    left = ", what is left of it" if g.deleted_objects else ","
    if g.left_objects > g.eligible_objects:
        left = f"; since then {g.left_objects - g.eligible_objects:,} brought back, all of it"
    return f"{eligible} as of {as_of}{deleted}{left} {dollars(g.dollars_month)} a month at ${price:g} a GB-month{name}"


def _held(s: Overview) -> list[str]:
    def age(group: Sequence[Holder]) -> str:
        dates = [h.oldest_ms for h in group if isinstance(h, DatedHolder) and h.oldest_ms >= 0]
        return f" (the oldest written {_ago(s, min(dates))})" if dates else ""

    return held_back(s.held_back_by, total=s.held_partitions, beside=age)


def _pin(s: Overview, p: PinCost) -> str:
    l0 = "L0 not known" if p.l0_bytes < 0 else f"{size(p.l0_bytes)} of L0"
    kept = f"{size(p.l1_bytes)} of dropped L1" if p.watermark is None else f"{l0} and {size(p.l1_bytes)} of dropped L1"
    why = f" ({p.why})" if p.why else ""
    return f"{p.name}{why}, {_ago(s, p.created_ms)}, until {moment(p.expires_ms)}: holds {kept}"


def _labelled(label: str, texts: Iterable[str], colour: str = "") -> list[Line]:
    return [Line("" if number else label, text, colour) for number, text in enumerate(texts)]


def _jobs(s: Overview) -> str:
    ended = {a.command: a for a in s.attempts}
    shown = []
    for step in EXTERNAL_STEPS if s.external_log else STEPS:
        a = ended.get(step)
        how = "" if a is None or a.ok else f"{a.ended} "
        none = "not known" if step in s.refused_attempts else "never"
        when = none if a is None else f"{_ago(s, a.ended_ms)}{' (a part)' if a.part else ''}"
        shadow = " (shadow)" if a is not None and a.shadow else ""
        shown.append(f"{step}{shadow} {how}{when}")
    return ", ".join(text.replace(" ", _TOGETHER) for text in shown)


def _sweeps(s: Overview) -> list[Line]:
    paused = "it is not known whether they are paused" if s.pause_unknown else "not paused"
    if s.paused is not None:
        paused = f"paused {_ago(s, s.paused.since_ms)} by {s.paused.by}: {s.paused.why}"
    runs = [f"{r.run_id}  {run_outcome(r)}" for r in reversed(s.runs)]
    return [
        Line("sweeps", paused, "yellow" if s.paused is not None or s.pause_unknown else ""),
        *(Line("", run) for run in runs),
    ]


@cli_command("explain")
@click.argument("key", required=False)
@click.option("--epoch", "epoch_", type=Whole(0), metavar="E", help="Explain why the objects of this epoch are held.")
@click.option("--partition", metavar="TOPIC/N", help="Explain which epochs this partition holds.")
@cluster_options(epoch_interval_option)
def explain_command(out: Output, cluster: Cluster, key: str | None, epoch_: int | None, partition: str | None) -> None:
    """Explain why the object KEY is kept or may be deleted, down to the placeholder, and which command changes that.

    KEY is a key relative to the URL, or a whole s3:// URL.

    \b
    Example:
      l0gc explain level_zero/data/042/000000000000000007/3f1c...
      l0gc explain --epoch 7
      l0gc explain --partition events/0
    """
    out.finish(
        lambda: cluster.explain(key, epoch=epoch_, partition=partition),
        lambda e: [
            f"{e.subject}: {e.verdict}",
            f"M = {epoch(e.watermark)} is published; the cluster epoch is {e.cluster_epoch}",
            *e.explanation,
            f"next: {e.next}",
        ],
        title="reading",
    )


_STDOUT: Final = "-"


@cli_command("report")
@click.option(
    "-o",
    "--output",
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="The file for the page; - for stdout.",
)
@click.option(
    "--findings", type=click.Path(path_type=Path), metavar="FILE",
    help="Also show the findings in this file, which l0gc verify --json printed.",
)  # fmt: skip
@price_option
@cluster_options(epoch_interval_option)
def report_command(out: Output, cluster: Cluster, output: str, findings: Path | None, price_gb_month: float) -> None:
    """Write a page about the cluster: one HTML file that needs no network. The bucket is not changed.

    \b
    Example:
      l0gc report -o report.html
      l0gc verify --json > findings.json; l0gc report --findings findings.json
    """
    if out.json and output == _STDOUT:
        raise UsageError("-o - and --json both print to stdout; give one of them")
    with out.progress("reading"):
        report = cluster.report(findings=findings, price_gb_month=price_gb_month)
    if output == _STDOUT:
        with writing_stdout():
            click.echo(report.html, nl=False)
        return
    page = report.html.encode()
    with atomic_file(Path(output)) as write:
        write(page)
    out.result({"output": output, **report.to_json()}, [f"{output}: {size(len(page))}; open it in a browser"])


@cli_command("doctor")
@cluster_options(epoch_interval_option)
def doctor_command(out: Output, cluster: Cluster) -> None:
    """Check the store, the credentials, this machine and the cluster, and name a remedy for each problem.

    It tries the requests of all commands, in l0gc/probe/ or without an effect, and leaves nothing behind.

    \b
    Example:
      l0gc doctor
      l0gc doctor --json
    """
    with out.progress("examining") as show:
        result = cluster.doctor(progress=show)
    print_result(out, result)


def print_result(out: Output, result: DoctorResult) -> None:
    """Print the result of the checks. Raises `EndedError` if a check failed."""
    width = max(len(c.name) for c in result.checks)
    lines = []
    for c in result.checks:
        lines.append(f"{c.status:8} {c.name:{width}}  {c.text}")
        if c.remedy:
            lines.append(f"{'':8} {'':{width}}  -> {c.remedy}")
    out.finish(lambda: result, lambda r: lines, indent=11 + width)


@cli_command("verify")
@operation_options(Verify)
@cluster_options(engine_options(), metrics_options)
def verify_command(out: Output, cluster: Cluster, engine: Engine, **options: Any) -> None:
    """Check that the bucket has the objects that the journals name, and that nothing live is at or below M. Nothing is
    changed.

    \b
    Example:
      l0gc verify
      l0gc verify --deep --json
      l0gc verify --shadow --access-logs s3://my-logs/access
    """
    out.finish(
        partial(cluster.verify, engine, **options),
        verified,
        title="verifying",
        reports=True,
        stays=lambda reported: "nothing was changed, and the check is incomplete; run l0gc verify again",
    )


def verified(result: VerifyResult) -> list[str]:
    """Return the result of a run as text."""
    checked = result.checked
    lines = [f.line for f in result.findings]
    if result.total > len(lines):
        lines.append(f"{count(result.total - len(lines), 'more finding')} like these")
    if result.shadow is not None:
        return lines + _shadow_verified(result, result.shadow)
    verdict = count(result.total, "finding") if result.total else "nothing is wrong"
    lines.append(
        f"{verdict}: {count(checked.journals, 'journal')}, {count(checked.partitions, 'partition')}, "
        f"{count(checked.extents, 'unreconciled extent')}, {count(checked.l0_objects, 'L0 object')}, "
        f"{count(checked.l1_objects, 'L1 object')}"
        + (f"; {size(checked.bytes_read)} read and checked" if result.deep else "")
    )
    lines.append(
        f"M = {epoch(result.watermark)}, cluster epoch {result.cluster_epoch}; L0 objects that no journal needs: "
        f"{result.waiting_objects:,} waiting for M, {result.eligible_objects:,} for the next sweep"
    )
    if result.young_l1_objects:
        lines.append(f"{count(result.young_l1_objects, 'L1 object')} that a running job commits or a vacuum deletes")
    if result.deleted_topic_objects:
        lines.append(f"{count(result.deleted_topic_objects, 'L1 object')} of deleted topics")
    if result.unparsable_keys:
        where = "in the data folders"
        lines.append(count(result.unparsable_keys, f"key {where} is not l0gc's", f"keys {where} are not l0gc's"))
    return lines


def _shadow_verified(result: VerifyResult, s: ShadowProof) -> list[str]:
    lines = [
        s.sentence,
        f"{count(result.checked.journals, 'journal')} and {count(s.entries, 'entry', 'entries')} since then were read"
        + (f"; {count(s.entries_gone, 'older entry', 'older entries')} had been truncated" if s.entries_gone else ""),
    ]
    if s.log_lines is not None:
        lines.append(
            f"{count(s.log_lines, 'line')} of access logs, {moment(s.logs_from_ms)} to {moment(s.logs_until_ms)}"
        )
    return lines
