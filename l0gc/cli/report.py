"""`l0gc report`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from l0gc.cli.options import common_options, library, price_option
from l0gc.cli.output import Output, writing_stdout
from l0gc.cli.whole_file import whole_file
from l0gc.errors import UsageError
from l0gc.formatting import size
from l0gc.settings import Settings

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
def command(settings: Settings, output: str, findings: Path | None, price_gb_month: float) -> None:
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
