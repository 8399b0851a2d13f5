"""`l0gc init` creates a cluster; `l0gc epoch`, `l0gc housekeep`, `l0gc pause` and `l0gc resume` act on a whole cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api import Cluster
from l0gc.cli.globals import CommandGroup, cli_command, epoch_interval_option
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import asked, cluster_options, operation_options, yes_option
from l0gc.cli.output import Output
from l0gc.cli.units import Whole
from l0gc.collect.deletion import describe_pause
from l0gc.formatting import count
from l0gc.operations import Housekeep, Init
from l0gc.streamlog.topics import AdvancedEpoch

if TYPE_CHECKING:
    from l0gc.streamlog.housekeep import HousekeepResult


@cli_command("init")
@operation_options(Init)
@cluster_options()
def init_command(out: Output, cluster: Cluster, **options: Any) -> None:
    """Probe the store and create a cluster. A repeated run changes nothing.

    \b
    Example:
      l0gc init --url s3://bucket/prefix --create-bucket
    """
    out.finish(
        lambda: cluster.init(**options),
        lambda made: [
            f"cluster {made.cluster_id} {'founded' if made.created else 'already exists'} at {cluster.url}",
            f"epoch {made.cluster_epoch}, {count(made.shards, 'shard')}, {count(made.journals, 'journal')}; "
            f"the store passed: {', '.join(made.probed)}",
        ],
    )


_FAR: Final = 10_000
"""The number of epochs above which a jump needs confirmation: 10 weeks of ticks."""


@click.group("epoch", cls=CommandGroup)
def epoch_command() -> None:
    """Show or advance the cluster epoch.

    \b
    Example:
      l0gc epoch show
      l0gc epoch advance --expect 41
    """


@epoch_command.command("show")
@cluster_options()
def show(out: Output, cluster: Cluster) -> None:
    """Show the cluster epoch.

    \b
    Example:
      l0gc epoch show
    """
    out.finish(lambda: AdvancedEpoch(cluster.epoch), _lines)


@epoch_command.command("advance")
@click.option("--expect", type=Whole(0), metavar="E", help="Advance only if the epoch is E; safe to repeat.")
@click.option(
    "--above", type=Whole(0), metavar="E",
    help="Advance to the epoch after E, even if the controller log is older than the published epoch.",
)  # fmt: skip
@click.option(
    "--close-unknown-topics", is_flag=True,
    help="With --above, give up topics that journals have but the restored controller log lacks.",
)  # fmt: skip
@yes_option
@cluster_options()
def advance(out: Output, cluster: Cluster, above: int | None, yes: bool, **options: Any) -> None:
    """Advance the cluster epoch by one.

    With --expect, the command can be repeated after a lost reply and still advances the epoch only once. With --above,
    one entry raises the epoch above E, for a controller log that was restored from a backup; a repeated run changes
    nothing. A jump of more than 10,000 epochs asks for confirmation.

    \b
    Example:
      l0gc epoch advance --expect 41
    """
    if above is not None and not yes and above - (current := cluster.epoch) > _FAR:
        asked(out, cluster, "advance", f"the cluster epoch from {current} to {above + 1}, which can never be undone")
    out.finish(lambda: cluster.advance_epoch(above=above, **options), _lines)


def _lines(now: AdvancedEpoch) -> list[str]:
    closed = [f"closed in journal {t.journal}: the topic of revision {t.revision}" for t in now.closed or ()]
    return [str(now.epoch), *closed]


@cli_command("housekeep")
@operation_options(Housekeep)
@click.option(
    "--accept-set-back", type=Whole(0), metavar="JOURNAL",
    help="First accept a journal that was set back to an older copy because its newest log is permanently lost.",
)  # fmt: skip
@yes_option
@cluster_options(metrics_options, epoch_interval_option)
def housekeep_command(out: Output, cluster: Cluster, barrier: bool, accept_set_back: int | None, yes: bool) -> None:
    """Tick if a tick is due, slide idle windows, close deleted topics, and checkpoint and truncate the logs.

    \b
    Example:
      l0gc housekeep
      l0gc housekeep --barrier     # to drain a quiet cluster
    """
    if accept_set_back is not None:
        _accept(out, cluster, accept_set_back, yes=yes)
    run_housekeep(out, partial(cluster.housekeep, barrier=barrier), barrier=barrier)


def _accept(out: Output, cluster: Cluster, journal: int, *, yes: bool) -> None:
    """Accept a journal as it is. Raises `UsageError` if the user does not confirm, or if there is nothing to accept."""
    from l0gc.streamlog.set_back import set_back

    if not yes:
        why = set_back(cluster.handles(), journal)
        asked(
            out,
            cluster,
            "accept",
            f"journal {journal} as it is, though {why}. Whatever only its lost entries named is then lost",
        )
    epoch = cluster.accept_set_back(journal)
    out.note(f"journal {journal} is accepted as it is, at epoch {epoch}: run l0gc reconcile next", "set_back_accepted")


def run_housekeep(out: Output, housekeep: Callable[[], HousekeepResult], *, barrier: bool) -> None:
    """Run housekeeping, and print the result. Raises `PartialFailureError` if it failed for a log."""

    def lines(r: HousekeepResult) -> list[str]:
        moved = f"{count(r.barriers, 'window')} closed" if barrier else f"{count(r.advanced, 'window')} advanced"
        where = f"{count(r.journals, 'journal')} ({count(r.partitions, 'partition')})"
        truncated = count(r.truncated_entries, "log entry", "log entries")
        return [
            f"epoch {r.cluster_epoch}{' (new)' if r.ticked else ''}: {moved} in {where}, "
            f"{count(r.checkpoints, 'checkpoint')}, {truncated} truncated"
        ]

    out.finish(housekeep, lines, title="housekeeping")


@cli_command("pause")
@click.option("--why", required=True, metavar="TEXT", help="The reason, which every sweep reports during the pause.")
@click.option("--by", metavar="NAME", help="The name of the person or job that pauses.  [default: user@host]")
@cluster_options()
def pause_command(out: Output, cluster: Cluster, why: str, by: str | None) -> None:
    """Pause all sweeps of this cluster, wherever they run: until l0gc resume, they report the reason and exit with 4.

    A sweep in progress ends in an orderly way, after at most 40,000 more objects and some 5 s (on Spark, per task).
    Uploads, reconcile, housekeep and compute-watermark continue.

    \b
    Example:
      l0gc pause --why "restoring a backup"
    """
    out.finish(
        lambda: cluster.pause(why, by),
        lambda pause: [f"sweeps are paused{'' if pause.new else ' already'}: {describe_pause(pause)}"],
    )


@cli_command("resume")
@cluster_options()
def resume_command(out: Output, cluster: Cluster) -> None:
    """Let sweeps continue after l0gc pause.

    \b
    Example:
      l0gc resume
    """
    pause = cluster.resume()
    out.result(
        {"was_paused": pause is not None, "why": pause.why if pause else None, "by": pause.by if pause else None},
        [f"sweeps continue; they were paused for: {describe_pause(pause)}" if pause else "sweeps were not paused"],
    )
