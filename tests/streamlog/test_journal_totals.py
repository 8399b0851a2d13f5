"""The journals' totals: they show how far M could move after another process's work, and whether records have landed."""

from __future__ import annotations

from l0gc.inspect.overview_reader import read_overview
from l0gc.keys import journal_log
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.epoch_source import journal_totals
from l0gc.streamlog.housekeep import housekeep
from tests.support.memory_store import memory_cluster, store_of
from tests.support.merge import a_cluster
from tests.support.reconcile import put, reconcile


def test_what_another_process_has_reconciled_no_longer_holds_m() -> None:
    """Executors reconcile like this, while `gc` continues in the driver."""
    cluster = a_cluster()
    put(cluster, "events", {0: [b"x"]})
    held = cluster.controller.snapshot().epoch - 1
    for _ in range(3):
        cluster.controller.advance()
    housekeep(cluster, barrier=True)
    before = journal_totals(cluster)
    assert before.lowest == held
    reconcile(memory_cluster(store_of(cluster), seed=9, bootstrap=False))
    after = journal_totals(cluster)
    assert after.lowest is not None
    assert after.lowest > held
    assert after.landed == before.landed


def test_what_has_landed_shows_and_an_idle_tick_does_not() -> None:
    cluster = a_cluster()
    put(cluster, "events", {0: [b"x"]})
    first = journal_totals(cluster)
    cluster.controller.advance()
    housekeep(cluster)
    assert journal_totals(cluster).landed == first.landed
    put(memory_cluster(store_of(cluster), seed=9, bootstrap=False), "events", {3: [b"x"]})
    assert journal_totals(cluster).landed != first.landed


def test_what_has_landed_shows_where_as_many_records_were_deleted() -> None:
    cluster = a_cluster()
    put(cluster, "events", {0: [b"x"] * 3})
    first, records = journal_totals(cluster).landed, read_overview(cluster).records
    delete_records(cluster, "events", 0, before_offset=-1)
    assert (journal_totals(cluster).landed, read_overview(cluster).records) == (first, records)
    put(cluster, "events", {0: [b"y"] * 3})
    assert journal_totals(cluster).landed != first
    assert read_overview(cluster).records == 2 * records


def test_a_journal_that_cannot_be_read_leaves_it_open() -> None:
    cluster = a_cluster()
    put(cluster, "events", {0: [b"x"]})
    store = store_of(cluster)
    for key in [k for k in store.objects if k.startswith(f"{journal_log(0)}log/")]:
        store.put(key, b"damaged")
    assert journal_totals(memory_cluster(store, seed=9, bootstrap=False)).lowest is None
