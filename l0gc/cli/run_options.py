"""The options of sweep and vacuum, named as the library's methods take them, and what both print of versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from l0gc.cli import logs
from l0gc.cli.units import Duration, Number
from l0gc.collect.plan import L1_GRACE_MS, ORPHAN_AGE_MS, Removal, run_id
from l0gc.collect.runs import KEEP_RUNS_S
from l0gc.storage.objectstore import ENABLED, SUSPENDED
from l0gc.watermark.source import ClusterHandle

_Option = Callable[[Callable[..., Any]], Callable[..., Any]]
_LIMITS: Final[list[_Option]] = [
    click.option("--max-objects", type=click.IntRange(1), metavar="N", help="Delete no more than N objects."),
    click.option(
        "--max-rate", type=Number(0, min_open=True), metavar="N", help="Delete no more than N objects a second."
    ),
]
_RECORD: Final[list[_Option]] = [
    click.option(
        "--record-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
        help="Keep the run record in this folder instead of the bucket, e.g. because the store is full.",
    ),
    click.option(
        "--no-record", "record", is_flag=True, callback=lambda context, option, given: not given,
        help="Keep no run record: nothing can then be shown or undeleted.",
    ),
]  # fmt: skip
_VACUUM_AGES: Final[list[_Option]] = [
    click.option(
        "--l1-grace", "l1_grace_s", type=Duration(), default=f"{L1_GRACE_MS // 3_600_000}h", show_default=True,
        help="How long readers may go on with L1 objects that were merged or dropped.",
    ),
    click.option(
        "--orphan-age", "orphan_age_s", type=Duration(), default=f"{ORPHAN_AGE_MS // 3_600_000}h", show_default=True,
        help="Refuse what runs stamped so long ago and have not committed, and delete it.",
    ),
    click.option(
        "--keep-runs", "keep_runs_s", type=Duration(), default=f"{KEEP_RUNS_S // 86400}d", show_default=True,
        help="Remove records of runs older than this.",
    ),
]  # fmt: skip


_SWEEP: Final[list[_Option]] = [
    click.option(
        "--min-age", "min_age_s", type=Duration(), default="0s", show_default=True, help="Leave objects younger than this.",
    ),
    *_LIMITS,
    click.option(
        "--max-delete-ratio", type=Number(0, 1), metavar="R",
        help="Stop before deleting more than this share of the bucket, e.g. 0.5.",
    ),
    *_RECORD,
]  # fmt: skip
_VACUUM: Final = [*_VACUUM_AGES, *_LIMITS, *_RECORD]
_DRY_RUN: Final = click.option(
    "--dry-run", is_flag=True, help="Delete nothing; print the numbers that the run would print."
)
_REMOVAL: Final[dict[str, list[_Option]]] = {
    "sweep": [_DRY_RUN, *_SWEEP],
    "vacuum": [_DRY_RUN, *_VACUUM],
    "gc": [*_SWEEP, *_VACUUM_AGES],
}


def removal_options(step: str) -> _Option:
    """Give a command the options of `sweep`, `vacuum` or `gc`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(_REMOVAL[step]):
            command = option(command)
        return command

    return decorate


def new_run(cluster: ClusterHandle) -> str:
    """A name for a run, which the events of its log get."""
    name = run_id(cluster.now_ms(), cluster.runtime.new_id())
    logs.set_run_id(name)
    return name


def bytes_that_stay(plan: Removal, or_what: str = "") -> list[str]:
    """Which bytes stay after a run that deleted from a bucket that keeps, or kept, versions.

    Args:
        plan: of a dry run, nothing can be brought back.
        or_what: what removes the bytes, next to a lifecycle rule.
    """
    undelete = ""
    if plan.record and not plan.dry_run:
        place = f" --record-dir {plan.record_dir}" if plan.record_dir is not None else ""
        undelete = f"; l0gc undelete --run {plan.run_id}{place} brings them back until then"
    return {
        ENABLED: [f"the bucket keeps versions: the bytes stay until a lifecycle rule{or_what} removes them{undelete}"],
        SUSPENDED: [
            "the bucket's versioning is suspended: what was written since is gone for good; the bytes of what was written "
            f"before stay until a lifecycle rule{or_what} removes them{undelete}"
        ],
    }.get(plan.versioning, [])
