"""What a process that Spark starts keeps from one task to the next: clients, the cluster's handles, journals' states.

Setting those up takes a while, and a journal that was replayed only has to be caught up with. A planner's process lives as
long as its query, an executor's worker for many tasks. A worker keeps two journals, so that its memory does not grow with
their number. Reconcile, merge and `format("l0gc")` share what is kept here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from l0gc.runtime import Runtime
from l0gc.spark.remote import store_at
from l0gc.storage.config import StoreConfig
from l0gc.storage.parallel import Threads
from l0gc.streamlog.cluster import Cluster

_THREADS: Final = 8
"""For the requests of one task."""
_CLUSTERS_KEPT: Final = 2
_JOURNALS_KEPT: Final = 2


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where the bucket is, as the executors see it, and which cluster must be in it; None accepts any."""

    config: StoreConfig
    cluster_id: str | None = None


@lru_cache(maxsize=_CLUSTERS_KEPT)
def cluster_at(address: ClusterAddress) -> Cluster:
    """The cluster, for all tasks of a process."""
    store, threads = store_at(address.config), Threads(_THREADS)
    return Cluster(store, Runtime(), threads, expected_cluster_id=address.cluster_id, journals_kept=_JOURNALS_KEPT)
