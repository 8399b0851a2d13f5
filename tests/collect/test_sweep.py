"""The sweeper: listing and deleting overlap, few segments are in progress, and a stop or failure ends it in good order."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.plan import plan_sweep
from l0gc.collect.record import DELETED, FAILED, LEFT
from l0gc.collect.run import SEGMENTS_IN_HAND, DeletionQueue
from l0gc.collect.skip_scan import FAILURES_KEPT, RunCounts
from l0gc.collect.sweep import SweepRun, sweep_ranges
from l0gc.errors import StoreError
from l0gc.events import quiet
from l0gc.operations import Sweep
from l0gc.storage.objectstore import DeleteFailure, ListedPage, UnfinishedUpload
from l0gc.storage.parallel import Parallel
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from tests.collect.test_sweep_local import (
    Disordered,
    a_cluster,
    by_threads,
    expected_garbage,
    level_zero,
    on_record,
    pages_of,
    swept_by_many,
)
from tests.support.l0_buckets import name_of
from tests.support.memory_store import Call, MemoryStore, failing, once, publish_m, store_of
from tests.support.tries import tries


class Unruly(Disordered):
    """A store that lists in its own order if `disorder` is set, and fails chosen keys, permanently or once.

    Each page of at least two keys shows the disorder, as a page of 1,000 keys does in any disordered store.
    """

    disorder = False
    locked: frozenset[int] = frozenset()
    once: frozenset[int] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.failed_once: set[str] = set()

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        if not self.disorder:
            yield from MemoryStore.scan(self, prefix, start_after)
            return
        for number, page in enumerate(super().scan(prefix, start_after)):
            if number < self.ordered_pages:
                yield page
            else:
                rows = sorted(zip(page.keys, page.sizes, page.modified_ms, strict=True), reverse=True)
                yield ListedPage([r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows])

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        failures = []
        for k in keys:
            number = int(k.rsplit("/", 1)[1][:8], 16)
            if number in self.locked:
                failures.append(DeleteFailure(k, "AccessDenied", "protected by object lock"))
            elif number in self.once and k not in self.failed_once:
                self.failed_once.add(k)
                failures.append(DeleteFailure(k, "SlowDown", "later"))
        lost = {f.key for f in failures}
        super().delete([k for k in keys if k not in lost])
        return failures


@given(
    objects=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8), st.integers(0, 15)), max_size=50),
    watermark=st.integers(-1, 8),
    page=st.integers(1, 6),
    segment=st.integers(1, 12),
    ranges=st.integers(1, 5),
    disorder=st.booleans(),
    ordered_pages=st.integers(0, 3),
    locked=st.frozensets(st.integers(0, 15), max_size=2),
    once=st.frozensets(st.integers(0, 15), max_size=4),
    threads=st.booleans(),
)
@tries(50)
def test_any_bucket_on_any_store_loses_what_is_eligible_and_can_go(
    objects: list[tuple[int, int, int]],
    watermark: int,
    page: int,
    segment: int,
    ranges: int,
    disorder: bool,
    ordered_pages: int,
    locked: frozenset[int],
    once: frozenset[int],
    threads: bool,
) -> None:
    page = max(page, 2) if disorder else page
    store = Unruly()
    store.locked, store.once, store.disorder, store.ordered_pages = locked, once, disorder, ordered_pages
    cluster = a_cluster(store, watermark=None, objects=0)
    publish_m(cluster, watermark)
    layout = cluster.controller.layout()
    for shard, epoch, n in objects:
        store.put(layout.format(shard, epoch, name_of(n)), b"x" * (n + 1))
    store.page_size = page
    before, garbage = level_zero(cluster), expected_garbage(cluster, watermark)
    stuck = {k for k in garbage if int(k.rsplit("/", 1)[1][:8], 16) in locked}
    with pytest.MonkeyPatch.context() as patch:
        pages_of(patch, page, segment)
        dry = SweepRun(cluster, Sweep(dry_run=True)).run(ranges)
        assert level_zero(cluster) == before
        result = swept_by_many(cluster, ranges=ranges) if threads else SweepRun(cluster).run(ranges)
    assert level_zero(cluster) == before - garbage | stuck
    assert (result.deleted, result.failed) == (len(garbage - stuck), len(stuck))
    assert {f.key for f in result.failures} <= stuck
    assert len(result.failures) == min(len(stuck), FAILURES_KEPT)
    assert dry.deleted == result.eligible == len(garbage)
    assert result.bytes == sum(int(k.rsplit("/", 1)[1][:8], 16) + 1 for k in garbage - stuck)
    assert {f.key for f in on_record(cluster) if f.status == DELETED} == garbage - stuck
    assert {f.key for f in on_record(cluster) if f.status == FAILED} == stuck
    assert result.delete_errors == 0


def test_few_segments_are_under_way_whatever_the_bucket_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow deletes make the scanners wait, so memory does not grow with the bucket."""
    pages_of(monkeypatch, 5, 10)
    cluster = a_cluster(objects=100)
    store = store_of(cluster)
    store.page_size = 5
    seen = [0, 0]  # listed, deleted
    most = [0]
    lock = threading.Lock()
    scan, delete = store.scan, store.delete

    def counting_scan(prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        for page in scan(prefix, start_after):
            parsed = [cluster.controller.layout().parse(k) for k in page.keys]
            with lock:
                seen[0] += sum(p is not None and p.epoch <= 4 for p in parsed)
                most[0] = max(most[0], seen[0] - seen[1])
            yield page

    def slow_delete(keys: Sequence[str]) -> list[DeleteFailure]:
        time.sleep(0.001)
        failures = delete(keys)
        with lock:
            seen[1] += len(keys)
        return failures

    store.scan, store.delete = counting_scan, slow_delete  # type: ignore[method-assign]
    result = swept_by_many(cluster)
    assert result.deleted == 4 * 5 * 100
    # The segments in progress, one being filled, one of a waiting scanner, and a page for each scanner.
    assert most[0] <= (SEGMENTS_IN_HAND + 2) * 10 + 4 * 2 * 5


def test_ranges_are_scanned_in_order_if_key_order_counts() -> None:
    def ranges(**wanted: Any) -> int:
        told: list[int] = []

        class Telling(Parallel):
            def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
                told.append(len(items := list(items)))
                return super().map(fn, items)

        cluster = a_cluster(objects=0)
        SweepRun(cluster, Sweep(**wanted), LocalWorkers(by_threads(cluster, Telling()))).run()
        return max(told)

    assert (ranges(), ranges(max_objects=5)) == (4, 1)


def test_deletes_begin_before_the_listing_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(monkeypatch, 5, 10)
    cluster = a_cluster()
    store = store_of(cluster)
    store.page_size = 5
    kinds: list[str] = []
    store.fault = lambda call: kinds.append(call.kind)
    SweepRun(cluster).run(1)
    assert kinds.index("delete") < len(kinds) - 1 - kinds[::-1].index("scan")


@pytest.mark.parametrize("threads", [False, True])
def test_a_second_sweep_completes_a_stopped_one(monkeypatch: pytest.MonkeyPatch, threads: bool) -> None:
    pages_of(monkeypatch, 5, 10)
    cluster = a_cluster()
    store = store_of(cluster)
    store.page_size = 5
    before, garbage = level_zero(cluster), expected_garbage(cluster, 4)
    stop = threading.Event()

    def fault(call: Call) -> None:
        if call.kind == "delete" and call.when == "after" and store.requests["delete"] == 3:
            stop.set()

    store.fault = fault
    result = swept_by_many(cluster, stop) if threads else SweepRun(cluster, stop=stop).run(1)
    gone = before - level_zero(cluster)
    assert result.stopped
    assert 0 < len(gone) == result.deleted < len(garbage)
    rows = on_record(cluster)
    assert {f.key for f in rows if f.status == DELETED} == gone
    assert {f.status for f in rows} <= {DELETED, LEFT}
    store.fault = lambda call: None
    assert result.deleted + SweepRun(cluster).run(1).deleted == len(garbage)
    assert expected_garbage(cluster, 4) == set()


def test_a_stop_is_heard_where_nothing_is_eligible(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(monkeypatch, 1000, 10)
    cluster = a_cluster(watermark=-1, objects=50)
    publish_m(cluster, 0)
    store = store_of(cluster)
    store.page_size = 1  # no page is full, so the scan continues
    for key in expected_garbage(cluster, 0):
        store.delete([key])
    sweep = SweepRun(cluster)
    store.fault = once(sweep.stop.set, "scan", after=19 - store.requests["scan"])
    assert sweep.run(1).stopped
    assert store.requests["scan"] < 25


def test_an_unwritable_record_ends_the_run_before_any_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages_of(monkeypatch, 5, 10)
    cluster = a_cluster()
    store = store_of(cluster)
    before = level_zero(cluster)
    store.fault = failing(StoreError("no space"), "put")
    with pytest.raises(StoreError, match="no space"):
        swept_by_many(cluster)
    assert level_zero(cluster) == before


class Panic(BaseException):
    """A stand-in for PyO3's exception when Rust panics."""


@pytest.mark.timeout(300)
def test_a_panic_in_a_thread_that_deletes_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(monkeypatch, 5, 10)
    cluster = a_cluster()
    before = level_zero(cluster)
    store_of(cluster).fault = failing(Panic, "delete")
    with pytest.raises(Panic):
        swept_by_many(cluster)
    assert level_zero(cluster) == before


@pytest.mark.timeout(300)
@pytest.mark.parametrize("started", [0, 1, 4])
def test_where_no_thread_can_be_started_the_others_delete(monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    """A container may limit the number of threads."""
    pages_of(monkeypatch, 5, 5)
    cluster = a_cluster()
    garbage = expected_garbage(cluster, 4)

    submitted = itertools.count()

    class Crowded(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if next(submitted) >= started:
                raise RuntimeError("can't start new thread")
            return super().submit(fn, *args, **kwargs)

    with Parallel(4) as scanners, Crowded(2) as deleters:
        result = SweepRun(by_threads(cluster, scanners), deleters=deleters).run(4)
    assert not garbage & level_zero(cluster)
    assert result.deleted == len(garbage)
    assert {(f.key, f.status) for f in on_record(cluster)} == {(key, DELETED) for key in garbage}


def test_a_kill_of_the_waiting_thread_ends_the_threads_that_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program that uses the library, Ctrl-C does this."""

    class Interrupted(Parallel):
        def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
            raise KeyboardInterrupt

    cluster = a_cluster()
    sweep = SweepRun(cluster, workers=LocalWorkers(by_threads(cluster, Interrupted())))
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    assert sweep.stop.is_set()


def test_progress_shows_where_a_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pages_of(monkeypatch, 5, 10)
    cluster = a_cluster()
    store_of(cluster).page_size = 5
    told: list[dict[str, Any]] = []

    def progress(text: str, **fields: Any) -> None:
        told.append(fields | {"text": text})

    result = SweepRun(cluster, workers=LocalWorkers(cluster, progress=progress)).run(1)
    assert [p["deleted"] for p in told] == sorted(p["deleted"] for p in told)
    assert (told[-1]["deleted"], told[-1]["bytes"]) == (result.deleted, result.bytes)
    assert {p["shard"] for p in told} >= {"000", "001", "002", "003"}
    assert told[0]["listed"] == 5
    assert told[-1]["rate"] is None
    assert told[-1]["text"] == f"60 deleted, 180 B, shard {told[-1]['shard']}"


def test_tallies_of_workers_add_up() -> None:
    cluster = a_cluster()
    plan = plan_sweep(cluster, Sweep())
    total = RunCounts()
    with ThreadPoolExecutor(2) as deleters:
        for n, span in enumerate(plan.ranges(4)):
            queue = DeletionQueue(
                cluster.store, cluster.runtime, plan, worker=f"w{n}", deleters=deleters, records=cluster.store
            )
            with queue.finishing():
                sweep_ranges(quiet, cluster, queue, [span])
            total.include(queue.counts)
    assert (total.objects, total.eligible, total.bytes, total.failed) == (60, 60, 180, 0)
    assert total.highest_deleted_epoch == 4


# -- unfinished uploads ---------------------------------------------------------------------------------------------------


def with_uploads(cluster: ClusterHandles) -> dict[str, UnfinishedUpload]:
    store, layout = store_of(cluster), cluster.controller.layout()
    now = store.clock.ms
    uploads = {
        "old": UnfinishedUpload(layout.format(0, 1, name_of(1)), "1", now - 100_000),
        "young": UnfinishedUpload(layout.format(1, 4, name_of(2)), "2", now),
        "live": UnfinishedUpload(layout.format(1, 5, name_of(3)), "3", now - 100_000),
        "foreign": UnfinishedUpload(f"{layout.data_prefix}001/x", "4", now - 100_000),
        "elsewhere": UnfinishedUpload("level_one/data/x", "5", now - 100_000),
    }
    store.unfinished = list(uploads.values())
    return uploads


@pytest.mark.parametrize(
    ("options", "aborted"),
    [
        (Sweep(), {"old", "young"}),
        (Sweep(min_age_s=50), {"old"}),
        (Sweep(shards=(1, 3)), {"young"}),
        (Sweep(dry_run=True), set()),
    ],
)
def test_only_uploads_of_l0_keys_at_or_below_m_are_aborted(options: Sweep, aborted: set[str]) -> None:
    cluster = a_cluster()
    uploads = with_uploads(cluster)
    result = SweepRun(cluster, options).run()
    left = store_of(cluster).unfinished
    assert {name for name, u in uploads.items() if u not in left} == aborted
    assert result.uploads_aborted == (2 if options.dry_run else len(aborted))


def test_a_store_that_does_not_list_uploads_is_swept_all_the_same() -> None:
    cluster = a_cluster()
    store_of(cluster).fault = failing(StoreError("501 NotImplemented"), "list", "level_zero")
    result = SweepRun(cluster).run()
    assert (result.deleted, result.uploads_aborted) == (60, 0)
    assert "501 NotImplemented" in result.uploads_note
