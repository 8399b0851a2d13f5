"""`l0gc doctor`."""

from __future__ import annotations

import click

from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output
from l0gc.inspect.doctor.checkup import OK, DoctorResult
from l0gc.settings import Settings


@click.command("doctor")
@common_options
def command(settings: Settings) -> None:
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
