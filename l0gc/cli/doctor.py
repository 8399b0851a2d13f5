"""`l0gc doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from l0gc.cli.options import common_options, open_cluster
from l0gc.cli.output import Output
from l0gc.errors import CheckFailedError
from l0gc.inspect.doctor import machine
from l0gc.inspect.doctor import store as of_store
from l0gc.inspect.doctor.checkup import FAILURE, OK, WARNING, Check, guarded
from l0gc.inspect.doctor.cluster import cluster as of_cluster
from l0gc.settings import Settings


@click.command("doctor")
@common_options
def command(settings: Settings) -> None:
    """Check the store, the credentials, this machine and the cluster, and name a remedy for each problem.

    Tries what the commands do, below l0gc/probe/ or with requests that cannot take effect, and leaves nothing behind.

    \b
    Example:
      l0gc doctor
      l0gc doctor --json
    """
    out = Output(settings)
    checks: list[Check] = []
    with open_cluster(settings) as (cluster, store), out.progress("examining") as show:
        parts: list[tuple[str, Callable[[], Iterable[Check]], str]] = [
            ("java", machine.java, "install Java 17 or newer"),
            ("spark", machine.spark, "pip install l0gc"),
            ("versions", machine.versions, "pip install l0gc"),
            ("bucket", lambda: of_store.reachable(store, cluster.runtime), "check --url, --endpoint-url and --profile"),
            ("permissions", lambda: of_store.permissions(store, cluster.runtime), "check the credentials' policy"),
            ("settings", lambda: of_store.settings(store), "ask the owner of the bucket"),
            ("store", lambda: of_store.promises(store, cluster.runtime), "see what the store says above"),
            ("cluster", lambda: of_cluster(cluster), "see docs/operations.md, recovery"),
        ]
        for name, check, remedy in parts:
            show(name)
            found = guarded(name, check, remedy)
            checks += found
            if name == "bucket" and any(c.status == FAILURE for c in found):
                break  # without a bucket the rest says the same over and over
    print_result(out, checks)


def print_result(out: Output, checks: list[Check]) -> None:
    """The doctor's findings; raises `CheckFailedError` if anything failed."""
    width = max(len(c.name) for c in checks)
    lines = []
    for c in checks:
        lines.append(f"{c.status:8} {c.name:{width}}  {c.text}")
        if c.status != OK:
            lines.append(f"{'':8} {'':{width}}  -> {c.remedy}")
    failures = [c for c in checks if c.status == FAILURE]
    warnings = [c for c in checks if c.status == WARNING]
    out.result(
        {
            "checks": [{"name": c.name, "status": c.status, "text": c.text, "remedy": c.remedy} for c in checks],
            "failures": len(failures),
            "warnings": len(warnings),
        },
        lines,
        indent=11 + width,
    )
    if failures:
        raise CheckFailedError(f"{failures[0].name}: {failures[0].text}; {failures[0].remedy}", failures[0].exit_code)
