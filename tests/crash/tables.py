"""Checks the table of `TOPIC`, which PyIceberg keeps outside of the checked bucket."""

from __future__ import annotations

import os
from typing import Final

from pyiceberg.table import Table

import l0gc
from l0gc.integrations.iceberg.catalog import open_catalog
from l0gc.integrations.iceberg.plan import note_of
from l0gc.storage.config import StoreConfig, first_of
from l0gc.storage.s3 import S3Store
from tests.crash.checks import BrokenError, View
from tests.crash.scenes import TOPIC, Scene
from tests.support.reconcile import named

CATALOG: Final = "lake"
SYNC: Final = ["table", "sync", "--keep-snapshots", "0s"]
"""A sync that takes a new pin, commits, and removes what the last but one left: its snapshot, metadata files, and pin.
"""


def environment(scratch: str, bucket: str, number: int) -> dict[str, str]:
    """Return the variables that name a catalog without tables, with a longer timeout than Arrow's 3 s."""
    known = {
        "TYPE": "sql",
        "URI": f"sqlite:///{scratch}/catalog-{number}.db",
        "WAREHOUSE": f"s3://{bucket}/tables-{number}",
        "S3__REQUEST_TIMEOUT": "60",
    }
    return {f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name}": value for name, value in known.items()}


def table_is_readable(view: View) -> None:
    """Raise `BrokenError` if a snapshot names an object that does not exist, or names one twice."""
    there = _table()
    for snapshot in there.metadata.snapshots:
        names = _names(there, snapshot.snapshot_id)
        if len(set(names)) < len(names) or not set(names) <= view.keys:
            raise BrokenError(
                f"snapshot {snapshot.snapshot_id} names {sorted(names)}; gone are {set(names) - view.keys}"
            )


def table_is_synced(view: View, scene: Scene) -> None:
    """Raise `BrokenError` if the table does not name what the journals list, or if earlier syncs left anything over."""
    table_is_readable(view)
    there = _table()
    head = there.current_snapshot()
    names, wanted = _names(there, None if head is None else head.snapshot_id), named(view.cluster, TOPIC)
    if sorted(names) != sorted(wanted):
        raise BrokenError(f"the table names {sorted(names)}, and the journals list {sorted(wanted)}")
    notes = [note_of(s.summary.additional_properties) for s in there.metadata.snapshots if s.summary is not None]
    left = view.state.pins.keys() - {note.pin for note in notes if note is not None}  # of the killed run, for an hour
    if len(notes) > 2 or len(left) > 1:
        raise BrokenError(f"left are {len(notes)} snapshots, and the pins {sorted(left)}, which none of them names")


def others_merge_sync_and_vacuum() -> None:
    """Merge, sync and vacuum, as another process may while a sync runs."""
    with l0gc.open(os.environ["L0GC_URL"]) as cluster:
        cluster.merge(fan_in=2)
        cluster.tables.sync(keep_snapshots_s=0)
        for _ in range(4):
            cluster.advance_epoch()
        cluster.housekeep(barrier=True)
        cluster.vacuum(l1_grace_s=0, orphan_age_s=0)


def _table() -> Table:
    endpoint = first_of(os.environ, ["AWS_ENDPOINT_URL_S3"])
    store = S3Store(StoreConfig.from_url(os.environ["L0GC_URL"], endpoint_url=endpoint, region="us-east-1"))
    found: Table = open_catalog(CATALOG, store).load_table(f"l0gc.{TOPIC}")
    return found


def _names(there: Table, snapshot_id: int | None) -> list[str]:
    url = os.environ["L0GC_URL"].rstrip("/") + "/"
    return [t.file.file_path.removeprefix(url) for t in there.scan(snapshot_id=snapshot_id).plan_files()]
