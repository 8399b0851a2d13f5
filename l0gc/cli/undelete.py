"""`l0gc undelete`."""

from __future__ import annotations

from pathlib import Path

import click

from l0gc.cli.names import RUN
from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.cli.runs import record_option, records_in
from l0gc.collect.record import SWEEP
from l0gc.collect.runs import UndeleteResult, undelete
from l0gc.errors import PartialFailureError
from l0gc.formatting import count
from l0gc.settings import Settings


@click.command("undelete")
@click.option("--run", "run_id", required=True, type=RUN, metavar="RUN", help="The run to take back (l0gc runs list).")
@record_option
@common_options
def command(settings: Settings, run_id: str, record_dir: Path | None) -> None:
    """Bring back what a sweep or a vacuum deleted from a versioned bucket.

    It removes the delete markers that the run made, while the versions behind them are still there. The objects are given
    up, so the next sweep or vacuum deletes them again.

    \b
    Example:
      l0gc undelete --run 20260131T235959Z-0123abcd
    """
    out = Output(settings)
    with open_cluster(settings) as (cluster, store):
        cluster.identity()
        with out.progress("bringing back"):
            result = undelete(cluster, run_id, records=records_in(record_dir, store))
    out.result(
        {
            "run_id": run_id,
            "restored": result.restored,
            "gone": result.gone,
            "already": result.already,
            "again": [{"run_id": run, "objects": objects} for run, objects in sorted(result.again.items())],
            "failed": len(result.failures),
            "failures": [{"key": f.key, "code": f.code, "message": f.message} for f in result.failures[:20]],
        },
        _lines(result, run_id),
    )
    if result.failures:
        first = result.failures[0]
        raise PartialFailureError(
            f"{count(len(result.failures), 'marker')} could not be removed; the first is of {first.key}: "
            f"{first.code} {first.message}"
        )


def _lines(result: UndeleteResult, run_id: str) -> list[str]:
    lines = [f"{count(result.restored, 'object')} of run {run_id} brought back"]
    if result.already:
        lines.append(f"{count(result.already, 'object was', 'objects were')} back before")
    for run, objects in sorted(result.again.items()):
        lines.append(
            f"{count(objects, 'object')} did not come back: run {run} deleted {'it' if objects == 1 else 'them'} again; "
            f"l0gc undelete --run {run}"
        )
    if result.gone:
        lines.append(
            f"{count(result.gone, 'object')} did not come back: their versions are gone, the store kept the markers, or a "
            "run that is no longer on record deleted them again"
        )
    if result.restored:
        why = "it is at or below M" if result.command == SWEEP else "no journal names it"
        lines.append(f"the next {result.command} deletes what is back again: {why}")
    return lines
