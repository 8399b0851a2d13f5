"""Sweeps and listings of 10^6, 10^8 and 10^9 keys make the requests that the formulas give, and stay below the bound.

The keys are generated as they are listed; everything else is l0gc's own code.
"""

from __future__ import annotations

from functools import partial

import pytest

from docs.programs import scaling as model
from docs.programs.scaling import Log
from l0gc.collect.plan import run_id
from l0gc.collect.record import recorded_attempt
from l0gc.collect.sweep import SweepResult, SweepRun
from l0gc.operations import Sweep
from l0gc.storage.workers import LOCAL, LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.watermark.histogram import read_listing
from l0gc.watermark.pipeline import WatermarkResult, run_pipeline
from tests.scaling.case import SWEEPS, SweepCase
from tests.scaling.counted import counted
from tests.support.generated_store import EPOCH, WATERMARK, GeneratedStore
from tests.support.memory_store import memory_cluster, publish_m

CONTROLLER = Log(uncovered=EPOCH + 1)
READERS = 8


def a_bucket(keys: int, garbage: int, shards: int) -> GeneratedStore:
    """Create a bucket with a cluster at epoch 10, and M = 5 published."""
    store = GeneratedStore(keys, garbage, shards)
    founder = memory_cluster(store, bootstrap=False)
    founder.controller.bootstrap(shards=shards)
    for _ in range(EPOCH):
        founder.controller.advance()
    publish_m(founder, WATERMARK)
    return store


def a_process(store: GeneratedStore) -> ClusterHandles:
    return memory_cluster(store, seed=1, bootstrap=False)


def run_sweep(cluster: ClusterHandles, *, dry_run: bool) -> SweepResult:
    """Do what `l0gc sweep` does."""
    with recorded_attempt(cluster, "sweep", dry_run=dry_run):
        name = run_id(cluster.store.now_ms(), cluster.runtime.new_id())
        return SweepRun(cluster, Sweep(dry_run=dry_run), run_id=name).run()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.name, marks=[pytest.mark.thorough, pytest.mark.slow] if c.thorough else [])
        for c in SWEEPS
        if c.run
    ],
)
def test_a_sweep(case: SweepCase) -> None:
    store = a_bucket(case.keys, case.garbage, case.shards)
    cluster = a_process(store)
    results: list[SweepResult] = []
    found = counted(store, lambda: results.append(run_sweep(cluster, dry_run=case.dry_run)))
    assert results[0].deleted == case.garbage
    lists = results[0].requests["list"] - 1  # one request lists unfinished uploads
    assert lists <= model.sweep_lists_bound(case.keys, case.garbage, case.shards)
    assert lists == case.lists
    if case.dry_run:
        assert found.puts == found.deletes == 0
    else:
        journals = cluster.controller.snapshot().journals
        assert found == model.sweep(CONTROLLER, Log(0), journals=journals, garbage=case.garbage, lists=lists)
        assert (store.gone, store.wronged) == (case.garbage, [])


def test_a_full_listing_to_compute_m() -> None:
    keys = 2 * 10**5
    store = a_bucket(keys, 2 * 10**4, 1000)
    cluster = a_process(store)
    results: list[WatermarkResult] = []

    def run() -> None:
        with recorded_attempt(cluster, "compute-watermark"):
            scan = partial(read_listing, LocalWorkers(cluster, READERS))
            results.append(run_pipeline(cluster, JournalSource(cluster), scan))

    found = counted(store, run)
    journals = cluster.controller.snapshot().journals
    without = model.compute_watermark(CONTROLLER, Log(0), journals=journals)
    lists = found.lists - without.lists - model.ONCE["scan snapshot"].lists
    assert model.pages(keys) <= lists <= model.listing(keys, READERS, LOCAL)
    rounds = found.gets - without.gets
    assert 0 < rounds <= model.listing_rounds(keys, LOCAL)
    assert found == model.compute_watermark(CONTROLLER, Log(0), journals=journals, listing=lists, rounds=rounds)
    scan = results[0].listing
    assert scan is not None
    assert scan.objects == keys
