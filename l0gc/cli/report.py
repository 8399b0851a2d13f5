"""`l0gc report`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec

from l0gc.cli.options import common_options, open_cluster, price_option
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
@click.option("--findings", metavar="FILE", help="Show what l0gc verify --json printed into this file, too.")
@price_option
@common_options
def command(settings: Settings, output: str, findings: str | None, price_gb_month: float) -> None:
    """Write a page about the cluster: one HTML file that needs no network. Changes nothing in the bucket.

    \b
    Example:
      l0gc report -o report.html
      l0gc verify --json > findings.json; l0gc report --findings findings.json
    """
    from l0gc.inspect.report.facts import findings_of, gather
    from l0gc.inspect.report.page import render

    out = Output(settings)
    if settings.json and output == _STDOUT:
        raise UsageError("-o - and --json both print to stdout; take one of them")
    found = None if findings is None else findings_of(_read(findings), findings)
    with open_cluster(settings) as (cluster, store), out.progress("reading"):
        facts = gather(cluster, store.config.url, price_gb_month=price_gb_month, findings=found)
    page = render(facts)
    if output == _STDOUT:
        with writing_stdout():
            click.echo(page, nl=False)
        return
    with whole_file(Path(output)) as write:
        write(page.encode())
    data = {"output": output, **msgspec.to_builtins(facts)}
    out.result(data, [f"{output}: {size(len(page.encode()))}; open it in a browser"])


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise UsageError(f"cannot read the findings in {path}: {e.strerror}") from e
