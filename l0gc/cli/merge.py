"""`l0gc merge`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.names import TOPIC
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.signals import telling_stop
from l0gc.cli.spark_options import OpenSpark, open_spark, spark_options, telling_tasks
from l0gc.cli.units import Size
from l0gc.collect.attempts import RecordedAttempt
from l0gc.formatting import count, size
from l0gc.settings import Settings
from l0gc.storage.config import StoreConfig
from l0gc.streamlog.cluster import Cluster

if TYPE_CHECKING:
    from l0gc.streamlog.level_one.merge import MergePlan
    from l0gc.streamlog.level_one.merge_commit import MergeResult
    from l0gc.streamlog.level_one.merge_plan import MergeRule

AUTO: Final = "auto"
LOCAL: Final = "local"
SPARK: Final = "spark"
SPARK_FROM: Final = 1 << 30
"""From so many bytes on `auto` takes Spark: below, one process is done before Spark has started."""
_MOST_BYTES: Final = 1 << 40


def rule_options(prefix: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options that say what is merged; it gets them as one `MergeRule`, `rule`.

    Args:
        prefix: what the options' names begin with, where it does more than merge.
    """
    target = click.option(
        f"--{prefix}target-bytes",
        "merge_target_bytes",
        type=Size(_MOST_BYTES),
        default="128MiB",
        show_default=True,
        envvar="L0GC_MERGE_TARGET_BYTES",
        help="The most that a merged object may have; one that has half of it is left alone.",
    )
    fan_in = click.option(
        f"--{prefix}fan-in",
        "merge_fan_in",
        type=click.IntRange(2),
        default=4,
        show_default=True,
        envvar="L0GC_MERGE_FAN_IN",
        help="A partition may keep one more small object each time that they have grown by this factor.",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(*args: Any, merge_target_bytes: int, merge_fan_in: int, **kwargs: Any) -> Any:
            from l0gc.streamlog.level_one.merge_plan import MergeRule

            return command(*args, rule=MergeRule(merge_target_bytes, merge_fan_in), **kwargs)

        return target(fan_in(wrapped))

    return decorate


@click.command("merge")
@click.argument("topic", required=False, type=TOPIC)
@click.option("--dry-run", is_flag=True, help="Merge nothing; print what there is to merge.")
@rule_options()
@click.option(
    "--engine",
    type=click.Choice([AUTO, LOCAL, SPARK]),
    default=AUTO,
    show_default=True,
    help="Where it runs; auto takes Spark for 1 GiB and more.",
)
@spark_options
@common_options
@metrics_options
def command(
    settings: Settings,
    topic: str | None,
    dry_run: bool,
    rule: MergeRule,
    engine: str,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Merge small consecutive L1 objects of each partition of TOPIC, or of all topics, into large ones.

    Replaced objects stay in the bucket for readers that have found them, until vacuum takes them.

    \b
    Example:
      l0gc merge --dry-run
      l0gc merge events --target-bytes 256MiB
    """
    with open_cluster(settings) as (cluster, store):
        spark = lambda defaults: open_spark(settings, "merge", master, (*defaults, *conf))  # noqa: E731
        run_merge(Output(settings), cluster, store.config, spark, topic, rule, dry_run=dry_run, engine=engine)


def run_merge(
    out: Output,
    cluster: Cluster,
    config: StoreConfig,
    open_session: OpenSpark,
    topic: str | None = None,
    rule: MergeRule | None = None,
    *,
    dry_run: bool = False,
    engine: str = AUTO,
) -> None:
    """Merge, and print the result; a session is opened if it is worth it. Raises as `print_result` does."""
    from l0gc.streamlog.level_one import merge as runs
    from l0gc.streamlog.level_one.merge_commit import MergeResult

    done = MergeResult()

    def stopped() -> str:
        known = f" ({count(done.objects_before, 'L1 object')} so far)" if done.objects_before else ""
        return f"what is merged stays{known}; l0gc merge continues from there"

    with telling_stop(stopped), RecordedAttempt(cluster, "merge", whole=topic is None and not dry_run):
        with out.progress("merging") as show:
            show("reading the journals")
            workers = runs.in_process(cluster)
            plan = runs.plan_merge(cluster, topic, rule or runs.DEFAULT_RULE, workers)

            def progress(result: MergeResult) -> None:
                nonlocal done
                done = result
                show(_done(result), done=result.bytes_read, total=plan.total.bytes_read)

            engine = choose_engine(engine, plan)
            if dry_run:
                result = plan.total
            elif engine == LOCAL:
                result = runs.run_merge(cluster, plan, workers, progress)
            else:
                from l0gc.spark.handles import ClusterAddress
                from l0gc.spark.workers import SparkWorkers

                with open_session(()) as spark, telling_tasks(spark, show) as say:
                    say(f"{count(plan.total.objects_before, 'L1 object')} to merge")
                    on_spark = SparkWorkers(spark, ClusterAddress(config))
                    result = runs.run_merge(cluster, plan, on_spark, lambda r: say(_done(r)))
        print_result(out, result, engine, dry_run=dry_run)


def choose_engine(wanted: str, plan: MergePlan) -> str:
    """Where it is worth to run; in this process if there is nothing to do."""
    if wanted == AUTO:
        return SPARK if plan.total.bytes_read >= SPARK_FROM else LOCAL
    return wanted if plan.total.objects_before else LOCAL


def _done(result: MergeResult) -> str:
    return f"{count(result.objects_before, 'L1 object')} merged into {result.objects_after:,}"


def print_result(out: Output, result: MergeResult, engine: str, *, dry_run: bool) -> None:
    """The result of a merge run; raises `PartialFailureError` if something was left out."""
    if not result.objects_before:
        text = "nothing to merge"
    else:
        text = f"{count(result.objects_before, 'L1 object')} of {count(result.partitions, 'partition')} "
        text += f"{'would become' if dry_run else 'became'} {result.objects_after:,} "
        sizes = [] if dry_run else [f"now {size(result.bytes)}"]
        text += f"({', '.join([count(result.records, 'record'), size(result.bytes_read), *sizes])})"
    if result.lost:
        text += f"; {count(result.lost, 'merge')} given up, because another run has changed those objects"
        text += " (l0gc vacuum removes what was written)"
    out.result(
        {
            "merged": {
                "objects_before": result.objects_before,
                "objects_after": result.objects_after,
                "records": result.records,
                "bytes": result.bytes,
                "bytes_read": result.bytes_read,
                "partitions": result.partitions,
            },
            "lost": result.lost,
            "errors": result.errors,
            "engine": engine,
            "dry_run": dry_run,
            "seconds": round(result.seconds, 3),
        },
        [text],
    )
    if result.problem is not None:
        raise result.problem
