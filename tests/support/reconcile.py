"""A reconcile run without Spark: planned, read, written and committed in this process, by the functions that Spark calls."""

from __future__ import annotations

import pyarrow as pa

from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.entries import L1File
from l0gc.streamlog.level_one.commit import Committed, commit_run, plan_run
from l0gc.streamlog.level_one.parquet import read_object, write_l1
from l0gc.streamlog.level_one.plan import Plan


def l1_rows(cluster: Cluster, plan: Plan) -> list[pa.RecordBatch]:
    """The records of the plan, sorted by plan and offset, in the columns that `write_l1` takes."""
    extents = [(index, batch) for read in plan.objects for index, batch in read_object(cluster.store, read)]
    extents.sort(key=lambda e: (e[0], e[1].column("offset")[0].as_py()))
    rows = []
    for index, batch in extents:
        offset, timestamp, key, value, epoch = batch.columns
        columns = [
            pa.array([index] * batch.num_rows, pa.int32()),
            offset,
            timestamp.cast(pa.int64()),
            key,
            value,
            epoch,
        ]
        rows.append(pa.record_batch(columns, ["plan", "offset", "timestamp_ms", "key", "value", "epoch"]))
    return rows


def write_plan(cluster: Cluster, plan: Plan) -> dict[int, list[L1File]]:
    """What the executors do: the L1 objects of each plan, durable and not committed."""
    plans = {p.index: p for p in plan.partitions}
    files: dict[int, list[L1File]] = {}
    for index, file in write_l1(cluster.store, plans, l1_rows(cluster, plan), cluster.runtime):
        files.setdefault(index, []).append(file)
    return files


def reconcile(cluster: Cluster, topic: str | None = None) -> list[Committed]:
    """Reconcile all there is; every partition and every removal is expected to go well."""
    plan, errors = plan_run(cluster, topic)
    warnings: list[str] = []
    committed = commit_run(cluster, plan, write_plan(cluster, plan), warnings.append)
    assert not errors
    assert not warnings
    return committed
