"""`l0gc reconcile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from l0gc.cli import logs
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.names import TOPIC
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.signals import telling_stop
from l0gc.cli.spark_options import OpenSpark, open_spark, spark_options, telling_tasks
from l0gc.cli.units import Size
from l0gc.collect.attempts import LastRun
from l0gc.formatting import count, size
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from l0gc.storage.workers import LOCAL, SPARK
from l0gc.streamlog.cluster import Cluster

if TYPE_CHECKING:
    from l0gc.streamlog.level_one.reconcile import ReconcileResult

_MOST_ROUND_BYTES: Final = 1 << 40


@click.command("reconcile")
@click.argument("topic", required=False, type=TOPIC)
@click.option(
    "--round-bytes",
    type=Size(_MOST_ROUND_BYTES),
    default="4GiB",
    show_default=True,
    help="L0 that is lifted and committed at once.",
)
@click.option(
    "--engine", type=click.Choice([SPARK, LOCAL]), default=SPARK, show_default=True,
    help="Where it runs; local: in this process, without Java, for small buckets.",
)  # fmt: skip
@spark_options
@common_options
@metrics_options
def command(
    settings: Settings, topic: str | None, round_bytes: int, engine: str, master: str | None, conf: tuple[str, ...]
) -> None:
    """Lift the unreconciled records of TOPIC, or of all topics, from L0 into L1 Parquet, on Spark.

    \b
    Example:
      l0gc reconcile
      l0gc reconcile events --master spark://host:7077
      l0gc reconcile --engine local
    """
    with open_cluster(settings) as (cluster, store):
        spark = lambda defaults: open_spark(settings, "reconcile", master, (*defaults, *conf))  # noqa: E731
        run_reconcile(Output(settings), cluster, store.config, spark, topic, round_bytes, engine)


def run_reconcile(
    out: Output,
    cluster: Cluster,
    config: StoreConfig,
    open_session: OpenSpark,
    topic: str | None = None,
    round_bytes: int | None = None,
    engine: str = SPARK,
) -> None:
    """Reconcile, and print the result; a session is opened if it has work. Raises as `print_result` does."""
    from l0gc.streamlog.level_one.plan import ROUND_BYTES
    from l0gc.streamlog.level_one.reconcile import Local, ReconcileResult, has_work, run_rounds

    lifted = 0

    def stopped() -> str:
        known = f" ({count(lifted, 'record')} so far)" if lifted else ""
        return f"what is in L1 stays{known}; l0gc {logs.running('reconcile')} continues from there"

    with telling_stop(stopped), LastRun(cluster, "reconcile", whole=topic is None):
        with out.progress("reconciling") as show:
            show("reading the journals")
            size_of_round = round_bytes or ROUND_BYTES
            say: Callable[[str], None] = show

            def progress(done: ReconcileResult) -> None:
                nonlocal lifted
                lifted = done.records
                say(f"round {done.rounds + 1}, {count(done.records, 'record')} in L1")

            if not has_work(cluster, topic):  # what is wrong with the arguments is said before Spark starts
                result = ReconcileResult()
            elif engine == LOCAL:
                result = run_rounds(cluster, Local(cluster), topic, round_bytes=size_of_round, progress=progress)
            else:
                from l0gc.spark import reconcile_job

                with open_session(()) as spark, telling_tasks(spark, show) as say:
                    result = reconcile_job.run(
                        spark, cluster, config, topic, round_bytes=size_of_round, progress=progress
                    )
        print_result(out, result)


def print_result(out: Output, result: ReconcileResult) -> None:
    """The result of a reconcile run; raises `PartialFailureError` if something was left out."""
    text = f"{count(result.records, 'record')} of {count(result.partitions, 'partition')} in "
    text += f"{count(result.l1_objects, 'L1 object')} ({size(result.bytes)})"
    if result.rounds > 1:
        text += f", in {count(result.rounds, 'round')}"
    if result.lost:
        text += f"; {count(result.lost, 'partition')} left to another reconciler, which was first"
    out.result(
        {
            "records": result.records,
            "l1_objects": result.l1_objects,
            "bytes": result.bytes,
            "partitions": result.partitions,
            "lost": result.lost,
            "rounds": result.rounds,
            "errors": result.errors,
            "seconds": round(result.seconds, 3),
        },
        [text],
    )
    if result.problem is not None:
        raise result.problem
