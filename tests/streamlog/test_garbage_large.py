"""Orphans among 100,000 L1 objects: one pass over the listing finds them, and memory does not grow with it.

The store generates the keys as it lists them. Every tenth object is an orphan, and the journal names the others. Each
worker replays the journal itself. `tests/flows/test_vacuum_spark.py` does the same on Spark.
"""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from l0gc.collect.vacuum import VacuumRun
from l0gc.operations import Vacuum
from l0gc.storage.objectstore import PAGE_SIZE
from l0gc.streamlog.garbage import JournalGarbage
from tests.support.elsewhere import Elsewhere
from tests.support.generated_l1 import ORPHANS, a_cluster, replay_mib

MOST_MIB = 4
"""The most memory that a scan may take, in MiB; the keys of the smallest listing alone take 7 MiB."""


@pytest.mark.parametrize(
    ("partitions", "elsewhere"),
    [
        pytest.param(40, False, id="here", marks=pytest.mark.thorough),
        pytest.param(100, True, id="on executors", marks=[pytest.mark.thorough, pytest.mark.slow]),
    ],
)
def test_a_scan_for_orphans_stays_within_memory_and_requests(partitions: int, elsewhere: bool) -> None:
    cluster, store = a_cluster(partitions)
    options = Vacuum(l1_grace_s=0, orphan_age_s=0, record=elsewhere)
    workers = Elsewhere(cluster) if elsewhere else None
    store.requests.clear()
    gc.collect()
    tracemalloc.start()
    done = VacuumRun(cluster, options, workers).run(JournalGarbage(cluster))
    peak = tracemalloc.get_traced_memory()[1] / (1 << 20)
    tracemalloc.stop()
    orphans = partitions * ORPHANS
    assert (done.deleted["orphaned_l1"].objects, store.gone, store.wronged) == (orphans, orphans, [])
    assert done.listed == store.generated.count
    assert store.requests["L1 pages"] <= -(-store.generated.count // PAGE_SIZE) + 8
    assert peak < MOST_MIB + (replay_mib(partitions) if elsewhere else 0), peak
