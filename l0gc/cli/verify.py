"""`l0gc verify`."""

from __future__ import annotations

import click

from l0gc.api.engine import Engine
from l0gc.cli.options import common_options, library
from l0gc.cli.output import Output, epoch
from l0gc.cli.signals import telling_stop
from l0gc.cli.spark_options import engine_options
from l0gc.cli.units import Duration
from l0gc.formatting import count, size
from l0gc.inspect.verify.findings import VerifyResult
from l0gc.settings import Settings


@click.command("verify")
@click.option(
    "--deep", is_flag=True, help="Read every block that a journal needs and every L1 object, and check what they hold."
)
@click.option(
    "--min-age", type=Duration(), default="1h", show_default=True,
    help="An L1 object that no journal names is a finding when it is older than this, e.g. 30m or 2h.",
)  # fmt: skip
@common_options
@engine_options()
def command(settings: Settings, deep: bool, min_age: int, engine: Engine) -> None:
    """Check that the bucket holds what the journals say, and that nothing live is at or below M. Changes nothing.

    \b
    Example:
      l0gc verify
      l0gc verify --deep --json
    """
    out = Output(settings)
    with (
        library(settings) as cluster,
        telling_stop(lambda: "nothing was changed, and nothing is known; run l0gc verify again"),
        out.progress("verifying") as show,
    ):
        result = cluster.verify(engine, deep=deep, min_age_s=min_age, progress=show)
    print_result(out, result)


def print_result(out: Output, result: VerifyResult) -> None:
    """The result of a verify run; raises `SafetyError` if anything is wrong."""
    out.finish(lambda: result, _lines)


def _lines(result: VerifyResult) -> list[str]:
    checked = result.checked
    lines = [f.line for f in result.findings]
    if result.total > len(lines):
        lines.append(f"{count(result.total - len(lines), 'more finding')} like these")
    verdict = count(result.total, "finding") if result.total else "nothing is wrong"
    lines.append(
        f"{verdict}: {count(checked.journals, 'journal')}, {count(checked.partitions, 'partition')}, "
        f"{count(checked.extents, 'unreconciled extent')}, {count(checked.l0_objects, 'L0 object')}, "
        f"{count(checked.l1_objects, 'L1 object')}"
        + (f"; {size(checked.bytes_read)} read and checked" if result.deep else "")
    )
    lines.append(
        f"M = {epoch(result.watermark)}, cluster epoch {result.cluster_epoch}; L0 objects that no journal needs: "
        f"{result.waiting_objects:,} waiting for M, {result.eligible_objects:,} for the next sweep"
    )
    if result.young_l1_objects:
        lines.append(f"{count(result.young_l1_objects, 'L1 object')} named by no journal yet")
    if result.deleted_topic_objects:
        lines.append(f"{count(result.deleted_topic_objects, 'L1 object')} of deleted topics")
    if result.unparsable_keys:
        where = "in the data folders"
        lines.append(count(result.unparsable_keys, f"key {where} is not l0gc's", f"keys {where} are not l0gc's"))
    return lines
