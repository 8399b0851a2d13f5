"""`l0gc delete-records`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import click

from l0gc.cli.expire import SHOWN
from l0gc.cli.names import TOPIC
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.retention import tell
from l0gc.errors import UsageError
from l0gc.settings import Settings

_AGO: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Moment(click.ParamType[int]):
    """A time as RFC 3339 has it, with its zone: milliseconds since 1970; or how long ago: `7d`, as a negative number."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        if (ago := _AGO.fullmatch(text)) is not None:
            return -int(ago[1]) * _UNITS_MS[ago[2]]
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = datetime.min
        if moment.tzinfo is None or len(text) < len("2026-01-01T00:00Z"):
            self.fail(f"{value!r} is no time; write 2026-01-31T12:00:00Z, or how long ago: 90m, 12h, 7d", param, ctx)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
        if since.days < 0:
            self.fail(f"{value!r} is before 1970", param, ctx)
        return since.days * _UNITS_MS["d"] + since.seconds * 1000 + since.microseconds // 1000


@click.command("delete-records")
@click.argument("topic", type=TOPIC)
@click.option("--partition", type=int, metavar="N", help="Only of partition N.  [default: of all]")
@click.option(
    "--before-offset",
    type=click.IntRange(-1),
    metavar="N",
    help="The first offset that stays. -1: delete all that there is now.",
)
@click.option(
    "--before-time",
    type=Moment(),
    metavar="TIME",
    help="Delete what lies before the first record of this time or later: 2026-01-31T12:00:00Z, or 7d ago.",
)
@click.option("--dry-run", is_flag=True, help="Delete nothing; say what a run would delete.")
@common_options
def command(
    settings: Settings,
    topic: str,
    partition: int | None,
    before_offset: int | None,
    before_time: int | None,
    dry_run: bool,
) -> None:
    """Delete TOPIC's oldest records: its partitions begin at another offset then.

    They are gone for readers at once, and for good. An L1 object goes when all of its records are deleted, by the next
    l0gc vacuum; what was never reconciled no longer holds M back.

    \b
    Example:
      l0gc delete-records events --partition 3 --before-offset 1000
      l0gc delete-records events --before-time 7d --dry-run
    """
    from l0gc.streamlog.delete_records import delete_records

    if (before_offset is None) == (before_time is None):
        raise UsageError("say before what records are to be deleted: --before-offset or --before-time, one of the two")
    out = Output(settings)
    with open_cluster(settings) as (cluster, _):
        if before_time is not None and before_time <= 0:
            before_time = cluster.now_ms() + before_time
        result = delete_records(
            cluster,
            topic,
            partition,
            before_offset=before_offset,
            before_time_ms=before_time,
            dry_run=dry_run,
            shown=SHOWN,
        )
    tell(out, result, dry_run=dry_run)
