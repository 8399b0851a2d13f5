"""`l0gc status`, `explain`, `report` and `doctor`: what people ask of a cluster. None of them changes it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import click

from l0gc.cli.files import whole_file
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import common_options, library, price_option
from l0gc.cli.output import Output, epoch, is_coloured, writing_stdout
from l0gc.cli.signals import exit_code_of
from l0gc.cli.units import Number
from l0gc.errors import UsageError
from l0gc.formatting import size
from l0gc.inspect.doctor.checkup import OK, DoctorResult
from l0gc.settings import Settings

WATCH_S: Final = 5.0


@click.command("status")
@click.option(
    "--watch", type=Number(min=0.1), is_flag=False, flag_value=WATCH_S, metavar="[SECONDS]",
    help="Look again every so many seconds (5), until Ctrl-C.",
)  # fmt: skip
@price_option
@common_options
@metrics_options
def status_command(settings: Settings, watch: float | None, price_gb_month: float) -> None:
    """Show M, how old it is, what holds it back and why, and what to do next. Changes nothing.

    \b
    Example:
      l0gc status
      l0gc status --watch
    """
    from l0gc.cli.status_text import folded, lines_of

    out = Output(settings)
    with library(settings) as cluster:

        def look() -> tuple[dict[str, Any], list[str]]:
            s = cluster.status(price_gb_month=price_gb_month)
            return s.to_json(), folded(lines_of(s, cluster.url), coloured=is_coloured())

        if watch is None:
            with out.progress("reading"):
                data, lines = look()
            out.result(data, lines, indent=None, styled=True)
            return
        try:
            with out.watching() as show:
                while True:
                    show(*look())
                    time.sleep(watch)
        except KeyboardInterrupt as e:
            click.get_current_context().exit(exit_code_of(e))


@click.command("explain")
@click.argument("key", required=False)
@click.option("--epoch", "epoch_", type=click.IntRange(0), metavar="E", help="What holds the objects of this epoch.")
@click.option("--partition", metavar="TOPIC/N", help="What this partition holds.")
@common_options
def explain_command(settings: Settings, key: str | None, epoch_: int | None, partition: str | None) -> None:
    """Explain why the object KEY is kept or may go, down to the placeholder, and which command moves it.

    KEY is relative to the URL, or a whole s3:// URL.

    \b
    Example:
      l0gc explain level_zero/data/042/000000000000000007/3f1c...
      l0gc explain --epoch 7
      l0gc explain --partition events/0
    """
    with library(settings) as cluster:
        Output(settings).finish(
            lambda: cluster.explain(key, epoch=epoch_, partition=partition),
            lambda e: [
                f"{e.subject}: {e.verdict}",
                f"M = {epoch(e.watermark)} is published; the cluster epoch is {e.cluster_epoch}",
                *e.sentences,
                f"next: {e.next_step}",
            ],
            progress="reading",
        )


_STDOUT: Final = "-"


@click.command("report")
@click.option(
    "-o", "--output", default="report.html", show_default=True, metavar="FILE", help="Where to write it; - for stdout."
)
@click.option(
    "--findings", type=click.Path(path_type=Path), metavar="FILE",
    help="Show what l0gc verify --json printed into this file, too.",
)  # fmt: skip
@price_option
@common_options
def report_command(settings: Settings, output: str, findings: Path | None, price_gb_month: float) -> None:
    """Write a page about the cluster: one HTML file that needs no network. Changes nothing in the bucket.

    \b
    Example:
      l0gc report -o report.html
      l0gc verify --json > findings.json; l0gc report --findings findings.json
    """
    out = Output(settings)
    if settings.json and output == _STDOUT:
        raise UsageError("-o - and --json both print to stdout; take one of them")
    with library(settings) as cluster, out.progress("reading"):
        report = cluster.report(findings=findings, price_gb_month=price_gb_month)
    if output == _STDOUT:
        with writing_stdout():
            click.echo(report.html, nl=False)
        return
    page = report.html.encode()
    with whole_file(Path(output)) as write:
        write(page)
    out.result({"output": output, **report.to_json()}, [f"{output}: {size(len(page))}; open it in a browser"])


@click.command("doctor")
@common_options
def doctor_command(settings: Settings) -> None:
    """Check the store, the credentials, this machine and the cluster, and name a remedy for each problem.

    Tries what the commands do, below l0gc/probe/ or with requests that cannot take effect, and leaves nothing behind.

    \b
    Example:
      l0gc doctor
      l0gc doctor --json
    """
    out = Output(settings)
    with library(settings) as cluster, out.progress("examining") as show:
        result = cluster.doctor(progress=show)
    print_result(out, result)


def print_result(out: Output, result: DoctorResult) -> None:
    """The doctor's findings; raises `CheckFailedError` if anything failed."""
    width = max(len(c.name) for c in result.checks)
    lines = []
    for c in result.checks:
        lines.append(f"{c.status:8} {c.name:{width}}  {c.text}")
        if c.status != OK:
            lines.append(f"{'':8} {'':{width}}  -> {c.remedy}")
    out.finish(lambda: result, lambda r: lines, indent=11 + width)
