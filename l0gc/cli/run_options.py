"""What a sweep and a vacuum share: limits, the place of the record, and what is printed of versions."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from l0gc.cli.options import Number
from l0gc.collect.record_places import RecordOptions
from l0gc.storage.objectstore import ENABLED, SUSPENDED

ENGINES: Final = ("auto", "local", "spark")

max_objects_option: Final = click.option(
    "--max-objects", type=click.IntRange(1), metavar="N", help="Delete no more than N objects."
)
max_rate_option: Final = click.option(
    "--max-rate", type=Number(0, min_open=True), metavar="N", help="Delete no more than N objects a second."
)
record_dir_option: Final = click.option(
    "--record-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Keep the run record in this folder instead of the bucket, e.g. because the store is full.",
)  # fmt: skip
no_record_option: Final = click.option(
    "--no-record", is_flag=True, help="Keep no run record: nothing can then be shown or undeleted."
)


def bytes_that_stay(versioning: str, options: RecordOptions, run_id: str, or_what: str = "") -> list[str]:
    """Which bytes stay after a run that deleted from a bucket that keeps, or kept, versions.

    Args:
        run_id: the run, empty for a dry run, of which nothing can be brought back.
        or_what: what removes the bytes, next to a lifecycle rule.
    """
    undelete = ""
    if options.record and run_id:
        place = f" --record-dir {options.record_dir}" if options.record_dir is not None else ""
        undelete = f"; l0gc undelete --run {run_id}{place} brings them back until then"
    return {
        ENABLED: [f"the bucket keeps versions: the bytes stay until a lifecycle rule{or_what} removes them{undelete}"],
        SUSPENDED: [
            "the bucket's versioning is suspended: what was written since is gone for good; the bytes of what was written "
            f"before stay until a lifecycle rule{or_what} removes them{undelete}"
        ],
    }.get(versioning, [])
