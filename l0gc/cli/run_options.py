"""The options that a sweep and a vacuum share: how much a run deletes, how fast, and where its record goes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from l0gc.cli.options import Duration, Number
from l0gc.collect.runs import KEEP_RUNS_S

ENGINES: Final = ("auto", "local", "spark")

max_objects_option: Final = click.option(
    "--max-objects", type=click.IntRange(1), metavar="N", help="Delete no more than N objects."
)
max_rate_option: Final = click.option(
    "--max-rate", type=Number(0, min_open=True), metavar="N", help="Delete no more than N objects a second."
)
keep_runs_option: Final = click.option(
    "--keep-runs", type=Duration(), default=f"{KEEP_RUNS_S // 86400}d", show_default=True,
    help="Remove records of runs older than this.",
)  # fmt: skip
record_dir_option: Final = click.option(
    "--record-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Keep the run record in this folder instead of the bucket, e.g. because the store is full.",
)  # fmt: skip
no_record_option: Final = click.option(
    "--no-record", is_flag=True, help="Keep no run record: nothing can then be shown or undeleted."
)
