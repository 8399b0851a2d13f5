"""`l0gc status`."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import common_options, library, price_option
from l0gc.cli.output import Output, is_coloured
from l0gc.cli.signals import code_of
from l0gc.cli.units import Number
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
def command(settings: Settings, watch: float | None, price_gb_month: float) -> None:
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
            click.get_current_context().exit(code_of(e))
