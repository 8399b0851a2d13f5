"""Many reports, as uploads and housekeeping leave them: for tests, and for measuring how long M takes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from l0gc.keys import PartitionId
from l0gc.streamlog.cluster import Cluster
from l0gc.watermark.compute import PartitionReport
from l0gc.watermark.reports import publish_reports


def a_report(cluster_id: str, p: PartitionId, gc_epoch: int) -> PartitionReport:
    """A report that says this gc epoch."""
    window = gc_epoch + 1
    return PartitionReport(
        cluster_id, p.topic, p.revision, p.partition, gc_epoch, window, window, 0, -1, None, gc_epoch, 0
    )


def best_reports(reports: list[PartitionReport]) -> dict[PartitionId, PartitionReport]:
    """The report with the highest gc epoch of each partition, found one by one."""
    best: dict[PartitionId, PartitionReport] = {}
    for r in reports:
        if r.id not in best or r.gc_epoch > best[r.id].gc_epoch:
            best[r.id] = r
    return best


def some_reports(
    rng: random.Random, cluster_id: str, partitions: Sequence[PartitionId], highest: int
) -> Iterator[PartitionReport]:
    """A report of each partition, with a gc epoch between its revision - 1 and `highest`."""
    for p in partitions:
        yield a_report(cluster_id, p, rng.randint(p.revision - 1, max(p.revision - 1, highest)))


def fill(cluster: Cluster, *, partitions: int, files: int, seed: int = 0) -> int:
    """Create topic `many`, and so many report files that name each of its partitions once; returns the lowest M(p)."""
    rng = random.Random(seed)
    state = cluster.controller.snapshot()
    topic, _ = cluster.controller.create_topic("many", partitions)
    for _ in range(20):
        cluster.controller.advance()
    highest = cluster.controller.snapshot().epoch - 1
    ids = topic.ids()
    rng.shuffle(ids)
    reports = list(some_reports(rng, state.cluster_id, ids, highest))
    cluster.parallel.map(
        lambda i: publish_reports(cluster.store, cluster.runtime, "upload", reports[i::files]), range(files)
    )
    return min(r.gc_epoch for r in reports)
