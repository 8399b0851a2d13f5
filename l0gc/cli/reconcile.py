"""`l0gc reconcile`."""

from __future__ import annotations

import click

from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.spark_options import OpenSpark, open_spark, spark_options
from l0gc.collect.attempts import Noted
from l0gc.errors import PartialFailureError
from l0gc.figures import count, size
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.level_one.commit import plan_run


@click.command("reconcile")
@click.argument("topic", required=False)
@spark_options
@common_options
@metrics_options
def command(settings: Settings, topic: str | None, master: str | None, conf: tuple[str, ...]) -> None:
    """Lift the unreconciled records of TOPIC, or of all topics, from L0 into L1 Parquet, on Spark.

    \b
    Example:
      l0gc reconcile
      l0gc reconcile events --master spark://host:7077
    """
    with open_cluster(settings) as (cluster, store):
        spark = lambda defaults: open_spark(settings, "reconcile", master, (*defaults, *conf))  # noqa: E731
        run_reconcile(Output(settings), cluster, store.config, spark, topic)


def run_reconcile(
    out: Output, cluster: Cluster, config: StoreConfig, open_session: OpenSpark, topic: str | None = None
) -> None:
    """Reconcile, and tell the result; a session is opened if there is work. Raises as `print_result` does."""
    with Noted(cluster, "reconcile", whole=topic is None):
        state = cluster.controller.snapshot()  # what is wrong with the arguments is said before Spark starts
        if topic is not None:
            state.topic(topic)
        from l0gc.spark import reconcile_job

        with out.progress("reconciling"):
            plan, errors = plan_run(cluster, topic)
            if not plan.partitions:
                result = reconcile_job.ReconcileResult(errors=errors)
            else:
                with open_session(()) as spark:
                    result = reconcile_job.run(spark, cluster, config, topic)
        print_result(out, result)


def print_result(out: Output, result) -> None:  # type: ignore[no-untyped-def]  # ReconcileResult, whose module needs Spark
    """The result of a reconcile run; raises `PartialFailureError` if a partition could not be read."""
    lost = [c for c in result.partitions if c.lost]
    out.result(
        {
            "records": result.records,
            "l1_objects": len(result.l1_files),
            "bytes": sum(f.bytes for f in result.l1_files),
            "partitions": [
                {
                    "topic": c.plan.topic,
                    "partition": c.plan.partition,
                    "base_offset": c.plan.base_offset,
                    "last_offset": c.plan.last_offset,
                    "l1_objects": len(c.files),
                    "lost": c.lost,
                }
                for c in result.partitions
            ],
            "lost": len(lost),
            "errors": result.errors,
            "seconds": round(result.seconds, 3),
        },
        [
            f"{count(result.records, 'record')} of {count(len(result.partitions) - len(lost), 'partition')} in "
            f"{count(len(result.l1_files), 'L1 object')} ({size(sum(f.bytes for f in result.l1_files))})"
            + (f"; {count(len(lost), 'partition')} left to another reconciler, which was first" if lost else "")
        ],
    )
    if result.errors:
        raise PartialFailureError(f"not everything could be done: {'; '.join(result.errors[:3])}")
