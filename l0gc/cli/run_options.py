"""The options of sweep and vacuum, which become one `Removal`, and what both print of versions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from l0gc.cli.units import Duration, Number
from l0gc.collect.plan import L1_GRACE_MS, ORPHAN_AGE_MS, Removal
from l0gc.collect.runs import KEEP_RUNS_S
from l0gc.storage.objectstore import ENABLED, SUSPENDED

ENGINES: Final = ("auto", "local", "spark")

_Option = Callable[[Callable[..., Any]], Callable[..., Any]]
_AGES: Final = ("min_age", "l1_grace", "orphan_age", "keep_runs")
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
    click.option("--no-record", is_flag=True, help="Keep no run record: nothing can then be shown or undeleted."),
]  # fmt: skip
_VACUUM_AGES: Final[list[_Option]] = [
    click.option(
        "--l1-grace", type=Duration(), default=f"{L1_GRACE_MS // 3_600_000}h", show_default=True,
        help="How long readers may go on with L1 objects that were merged or dropped.",
    ),
    click.option(
        "--orphan-age", type=Duration(), default=f"{ORPHAN_AGE_MS // 3_600_000}h", show_default=True,
        help="Refuse what runs stamped so long ago and have not committed, and delete it.",
    ),
    click.option(
        "--keep-runs", type=Duration(), default=f"{KEEP_RUNS_S // 86400}d", show_default=True,
        help="Remove records of runs older than this.",
    ),
]  # fmt: skip


def _engine(what: str) -> _Option:
    where = f"{what}; auto takes a Spark cluster, if one is given, for a million objects and more."
    return click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True, help=where)


_SWEEP: Final[list[_Option]] = [
    click.option("--min-age", type=Duration(), default="0s", show_default=True, help="Leave objects younger than this."),
    *_LIMITS,
    click.option(
        "--max-delete-ratio", type=Number(0, 1), metavar="R",
        help="Stop before deleting more than this share of the bucket, e.g. 0.5.",
    ),
    _engine("Where it runs"),
    *_RECORD,
]  # fmt: skip
_REMOVAL: Final[dict[str, list[_Option]]] = {
    "sweep": _SWEEP,
    "vacuum": [*_VACUUM_AGES, *_LIMITS, _engine("Where orphans are searched for"), *_RECORD],
    "gc": [*_SWEEP, *_VACUUM_AGES],
}


def removal_options(step: str) -> _Option:
    """Give a command the options of `sweep`, `vacuum` or `gc`.

    It gets them as one `Removal`, with its own options that are fields of one, and `engine`.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(*args: Any, no_record: bool, **kwargs: Any) -> Any:
            given = {name: kwargs.pop(name) for name in Removal.__struct_fields__ if name in kwargs}
            given |= {f"{name}_ms": kwargs.pop(name) * 1000 for name in _AGES if name in kwargs}
            return command(*args, removal=Removal(record=not no_record, **given), **kwargs)

        made: Callable[..., Any] = wrapped
        for option in reversed(_REMOVAL[step]):
            made = option(made)
        return made

    return decorate


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
