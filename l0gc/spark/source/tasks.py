"""What a process that Spark starts keeps from one task to the next: clients, the cluster's handles, journals' states.

Setting those up takes a while, and a journal that was replayed only has to be caught up with. A planner's process lives as
long as its query, an executor's worker for many tasks; a worker keeps two journals, so that memory does not grow with
them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from l0gc.runtime import Runtime
from l0gc.spark.remote import store_at
from l0gc.spark.source.options import Place
from l0gc.storage.parallel import Threads
from l0gc.streamlog.cluster import Cluster
from l0gc.streamlog.journal.handle import JournalHandle

_THREADS: Final = 8
"""For the requests of one task."""
_JOURNALS_KEPT: Final = 2


@lru_cache(maxsize=2)
def cluster_at(place: Place) -> Cluster:
    """The cluster, for all tasks of a process."""
    store = store_at(place.config)
    return Cluster(store, Runtime(), Threads(_THREADS), expected_cluster_id=place.cluster_id)


@lru_cache(maxsize=_JOURNALS_KEPT)
def journal_at(place: Place, journal: int) -> JournalHandle:
    """A handle on a journal, of which a process keeps a few."""
    return unkept_journal(cluster_at(place), journal)


def unkept_journal(cluster: Cluster, journal: int) -> JournalHandle:
    """A handle on a journal that its caller owns: no cluster keeps it."""
    return JournalHandle(journal, cluster.store, cluster.controller, cluster.runtime, parallel=cluster.parallel)
