"""`l0gc table create|sync|list|drop` presents a topic's L1 as an Iceberg table, which every engine can read."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import click

from l0gc.api import Cluster
from l0gc.cli.globals import CommandGroup
from l0gc.cli.metrics_options import metrics_options
from l0gc.cli.options import TOPIC, cluster_options, operation_options
from l0gc.cli.output import Output
from l0gc.formatting import count, moment
from l0gc.operations import TableSync
from l0gc.streamlog.tables import TableSynced, TableSyncResult, TableView


@click.group("table", cls=CommandGroup)
def table_command() -> None:
    """Present a topic's L1 as an Iceberg table, for DuckDB, Spark, Trino and others.

    L1 objects are registered, never copied. The commands need the extra `iceberg` (pip install '.[iceberg]' in a
    checkout of l0gc). Catalogs are configured as for PyIceberg, in .pyiceberg.yaml or in the environment.

    \b
    Example:
      l0gc table create events --catalog lake
      l0gc table sync
    """


@table_command.command("create")
@click.argument("topic", shell_complete=TOPIC)
@click.option("--catalog", required=True, metavar="NAME", help="The catalog, by its name in PyIceberg's configuration.")
@click.option(
    "--table", metavar="NAMESPACE.NAME", help="The table's name; by default, the topic's name in the namespace l0gc."
)
@cluster_options()
def create(out: Output, cluster: Cluster, topic: str, catalog: str, table: str | None) -> None:
    """Create a topic's table, which the next sync or gc fills.

    \b
    Example:
      l0gc table create events --catalog lake
      l0gc table create events --catalog lake --table analytics.events
    """
    out.finish(
        lambda: cluster.tables.create(topic, catalog=catalog, table=table),
        lambda t: [f"topic {t.topic} has table {t.table} in catalog {t.catalog}; fill it with l0gc table sync"],
    )


@table_command.command("sync")
@click.argument("topic", required=False, shell_complete=TOPIC)
@operation_options(TableSync)
@cluster_options(metrics_options)
def sync(out: Output, cluster: Cluster, topic: str | None, **options: Any) -> None:
    """Update a topic's table, or all tables, so that they list the current L1 objects. One snapshot per table has all
    changes.

    \b
    Example:
      l0gc table sync
      l0gc table sync events --keep-snapshots 7d
    """
    run_table_sync(out, partial(cluster.tables.sync, topic, **options))


@table_command.command("list")
@cluster_options()
def list_tables(out: Output, cluster: Cluster) -> None:
    """List the tables, and how long readers can rely on their objects.

    \b
    Example:
      l0gc table list
    """
    none = "no topic has a table; create one with l0gc table create TOPIC --catalog NAME"
    out.finish(cluster.tables.list, lambda tables: [_line(t) for t in tables] or [none])


@table_command.command("drop")
@click.argument("topic", shell_complete=TOPIC)
@click.option("--forget", is_flag=True, help="Leave the catalog unchanged, and forget the table only in l0gc.")
@cluster_options()
def drop(out: Output, cluster: Cluster, topic: str, forget: bool) -> None:
    """Drop a topic's table: remove it from its catalog, and delete its metadata files. L1 objects stay.

    \b
    Example:
      l0gc table drop events
    """
    out.finish(
        lambda: cluster.tables.drop(topic, forget=forget),
        lambda t: [f"table {t.table} of topic {t.topic} {'forgotten' if forget else 'dropped'}"],
    )


def _line(t: TableView) -> str:
    kept = "not synced yet" if t.expires_ms < 0 else f"readable until {moment(t.expires_ms)} without another sync"
    return f"{t.topic}  {t.table} in catalog {t.catalog}, {kept}"


def _synced(result: TableSyncResult) -> list[str]:
    return [*map(_change, result.tables), *(f"warning: {w}" for w in result.warnings)] or ["no topic has a table"]


def _change(t: TableSynced) -> str:
    if not t.committed:
        return f"{t.table}: nothing to do, {count(t.files, 'L1 object')}"
    more = f", {count(t.expired, 'snapshot')} ended" if t.expired else ""
    return f"{t.table}: {t.added:,} added, {t.removed:,} removed, {count(t.files, 'L1 object')} now{more}"


run_table_sync: Final = partial(Output.finish, lines=_synced, title="syncing tables", reports=True)
"""Runs the step, shows its progress and prints its result, for the command and for `l0gc gc`."""
