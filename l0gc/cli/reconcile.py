"""`l0gc reconcile` and `l0gc merge`, which write L1."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.api import Cluster, Engine
from l0gc.cli import logs
from l0gc.cli.globals import cli_command
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import TOPIC, cluster_options, engine_options, operation_options
from l0gc.cli.output import Output
from l0gc.formatting import count, size
from l0gc.operations import Merge, Reconcile

if TYPE_CHECKING:
    from l0gc.streamlog.level_one.merge import MergeResult
    from l0gc.streamlog.level_one.reconcile import ReconcileResult


@cli_command("reconcile")
@click.argument("topic", required=False, shell_complete=TOPIC)
@operation_options(Reconcile)
@cluster_options(engine_options(), metrics_options)
def reconcile_command(out: Output, cluster: Cluster, engine: Engine, topic: str | None, **options: Any) -> None:
    """Lift the unreconciled records of TOPIC, or of all topics, from L0 to L1 Parquet, the oldest epochs first.

    \b
    Example:
      l0gc reconcile
      l0gc reconcile --up-to 4100 --max-bytes 10GiB     # what lags and holds M
      l0gc reconcile events --master spark://host:7077
    """
    run_reconcile(out, partial(cluster.reconcile, engine, topic, **options))


def _reconciled(result: ReconcileResult) -> list[str]:
    text = f"{count(result.records, 'record')} of {count(result.partitions, 'partition')} in "
    text += f"{count(result.l1_objects, 'L1 object')} ({size(result.bytes)})"
    if result.rounds > 1:
        text += f", in {count(result.rounds, 'round')}"
    if result.limited:
        text += "; --max-bytes left the rest"
    if result.misfits:
        text += f"; {count(result.misfits, 'record')} without typed columns; value_error gives the reason"
    if result.lost:
        text += f"; {count(result.lost, 'partition')} left to another reconciler, which was first"
    return [text]


@cli_command("merge")
@click.argument("topic", required=False, shell_complete=TOPIC)
@operation_options(Merge)
@cluster_options(engine_options(), metrics_options)
def merge_command(out: Output, cluster: Cluster, engine: Engine, topic: str | None, **options: Any) -> None:
    """Merge small consecutive L1 objects in each partition of TOPIC, or of all topics, into large ones.

    Replaced objects stay in the bucket, for readers that have found them, until a vacuum deletes them.

    \b
    Example:
      l0gc merge --dry-run
      l0gc merge events --target-bytes 256MiB
    """
    run_merge(out, partial(cluster.merge, engine, topic, **options))


def _merged(result: MergeResult) -> list[str]:
    if not result.objects_before:
        text = "nothing to merge"
    else:
        text = f"{count(result.objects_before, 'L1 object')} of {count(result.partitions, 'partition')} "
        text += f"{'would become' if result.dry_run else 'became'} {result.objects_after:,} "
        sizes = [] if result.dry_run else [f"now {size(result.bytes)}"]
        text += f"({', '.join([count(result.records, 'record'), size(result.bytes_read), *sizes])})"
    if result.lost:
        text += f"; {count(result.lost, 'merge')} given up, because another run has changed those objects"
        text += " (l0gc vacuum removes what was written)"
    return [text]


def _so_far(n: int, noun: str) -> str:
    return f" ({count(n, noun)} so far)" if n else ""


def _continues(step: str, reported: dict[str, Any]) -> str:
    rest = "; l0gc vacuum deletes what was written and not committed" if reported.get("unnamed") else ""
    return f"l0gc {logs.running(step)} continues from there{rest}"


def _lifted(reported: dict[str, Any]) -> str:
    progress = _so_far(reported.get("records", 0), "record")
    return f"what is in L1 stays{progress}; {_continues('reconcile', reported)}"


def _replaced(reported: dict[str, Any]) -> str:
    progress = _so_far(reported.get("objects", 0), "L1 object")
    return f"what is merged stays{progress}; {_continues('merge', reported)}"


run_reconcile: Final = partial(Output.finish, lines=_reconciled, title="reconciling", reports=True, stays=_lifted)
run_merge: Final = partial(Output.finish, lines=_merged, title="merging", reports=True, stays=_replaced)
"""Runs the step, shows its progress and prints its result, for its command and for `l0gc gc`."""
