"""The local sweep: it deletes exactly the garbage, a dry run predicts this, and in doubt it deletes nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.history import list_runs
from l0gc.collect.record import DELETED, SEGMENT_OBJECTS, RecordedObject, read_segment
from l0gc.collect.sweep import SweepResult, SweepRun
from l0gc.errors import AccessDeniedError, ClusterMismatchError, EpochRegressionError, NotInitialisedError
from l0gc.keys import RUNS, KeyLayout
from l0gc.operations import Sweep
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import DeleteFailure, ListedPage
from l0gc.storage.parallel import Parallel
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.watermark.publication import PublishedWatermark, publish
from tests.support.l0_buckets import name_of
from tests.support.memory_store import FakeClock, MemoryStore, failing, memory_cluster, once, publish_m, store_of
from tests.support.tries import tries

EPOCHS = 8


def a_cluster(store: MemoryStore | None = None, watermark: int | None = 4, objects: int = 3) -> ClusterHandles:
    """Create a cluster at epoch 8 with objects at each epoch of its 4 shards, some foreign files, and a published M."""
    cluster = memory_cluster(store)
    for _ in range(EPOCHS):
        cluster.controller.advance()
    layout = cluster.controller.layout()
    for shard in range(layout.shards):
        for epoch in range(EPOCHS + 1):
            for n in range(objects):
                cluster.store.put(layout.format(shard, epoch, name_of(n)), b"x" * (epoch + 1))
    for foreign in (f"{layout.data_prefix}README", f"{layout.shard_prefix(1)}/{1:018}/x", f"{layout.data_prefix}zzz"):
        cluster.store.put(foreign, b"foreign")
    if watermark is not None:
        publish_m(cluster, watermark)
    return cluster


def level_zero(cluster: ClusterHandles) -> set[str]:
    return {k for k in store_of(cluster).objects if k.startswith("level_zero/")}


def expected_garbage(cluster: ClusterHandles, watermark: int) -> set[str]:
    layout = cluster.controller.layout()
    return {k for k in level_zero(cluster) if (p := layout.parse(k)) and p.epoch <= watermark}


def sweep(
    cluster: ClusterHandles,
    *,
    threads: Parallel | None = None,
    ranges: int = 3,
    dry_run: bool = False,
    min_age_ms: int = 0,
    max_objects: int | None = None,
) -> SweepResult:
    options = Sweep(dry_run=dry_run, min_age_s=min_age_ms / 1000, max_objects=max_objects)
    return SweepRun(by_threads(cluster, threads or Parallel()), options).run(ranges)


def by_threads(cluster: ClusterHandles, threads: Parallel) -> ClusterHandles:
    """Return another handle on the cluster, which uses these threads."""
    return msgspec.structs.replace(cluster, parallel=threads)


def swept_by_many(cluster: ClusterHandles, stop: threading.Event | None = None, ranges: int = 4) -> SweepResult:
    """Sweep with four scanning and two deleting threads."""
    with Parallel(4) as scanners, ThreadPoolExecutor(2) as deleters:
        return SweepRun(by_threads(cluster, scanners), stop=stop, deleters=deleters).run(ranges)


def on_record(cluster: ClusterHandles) -> list[RecordedObject]:
    """Return the rows of all segments of all runs."""
    segments = [k for k in store_of(cluster).objects if k.startswith(RUNS) and k.endswith(".parquet")]
    return [f for k in segments for f in read_segment(cluster.store, k)]


def numbers(r: SweepResult) -> dict[str, object]:
    return {
        "watermark": r.watermark,
        "listed": r.listed,
        "eligible": r.eligible,
        "held_by_age": r.held_by_age,
        "unparsable": r.unparsable,
        "deleted": r.deleted,
        "bytes": r.bytes,
        "failed": r.failed,
        "list requests": r.list_requests,
        "delete requests": r.delete_requests,
    }


def pages_of(patch: pytest.MonkeyPatch, page: int, segment: int = SEGMENT_OBJECTS) -> None:
    patch.setattr("l0gc.collect.skip_scan.PAGE_SIZE", page)
    patch.setattr("l0gc.collect.deletion.PAGE_SIZE", page)
    patch.setattr("l0gc.collect.run.SEGMENT_OBJECTS", segment)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    pages_of(monkeypatch, 5)
    return 5


@pytest.mark.parametrize("min_age_ms", [0, 60_000])
@pytest.mark.parametrize("max_objects", [None, 1, 7, 1000])
def test_a_dry_run_says_what_the_run_after_it_does(small_pages: int, min_age_ms: int, max_objects: int | None) -> None:
    cluster = a_cluster()
    store = store_of(cluster)
    store.page_size = small_pages
    store.clock.sleep(3600)
    cluster.store.put(cluster.controller.layout().format(2, 3, name_of(99)), b"young")
    before = dict(store.objects)
    dry = sweep(cluster, dry_run=True, min_age_ms=min_age_ms, max_objects=max_objects)
    assert store.objects == before
    assert dry.dry_run
    assert numbers(dry) == numbers(sweep(cluster, min_age_ms=min_age_ms, max_objects=max_objects))


def test_a_delete_request_takes_a_full_page(small_pages: int) -> None:
    cluster = a_cluster()
    store_of(cluster).page_size = small_pages
    result = sweep(cluster, ranges=1)
    assert result.delete_requests == store_of(cluster).requests["delete"] == 60 / 5


# -- doubt, in which nothing is deleted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dry_run", [False, True])
def test_without_a_published_watermark_nothing_goes(dry_run: bool) -> None:
    cluster = a_cluster(watermark=None)
    before = dict(store_of(cluster).objects)
    result = sweep(cluster, dry_run=dry_run)
    assert (result.watermark, result.deleted) == (-1, 0)
    assert store_of(cluster).objects == before


def test_a_watermark_above_the_cluster_epoch_is_refused() -> None:
    """Hazard 10: the controller log was restored from an old backup, and assigns old epochs again."""
    cluster = a_cluster()
    publish_m(cluster, EPOCHS + 1, EPOCHS + 1)
    before = dict(store_of(cluster).objects)
    with pytest.raises(EpochRegressionError, match="epoch 9, above the cluster epoch 8"):
        sweep(cluster)
    assert store_of(cluster).objects == before


def test_another_clusters_watermark_is_refused() -> None:
    """Hazard 11: M of one cluster must not release another cluster's objects."""
    cluster = a_cluster(watermark=None)
    publish(cluster.store, cluster.runtime, PublishedWatermark("another", 4, EPOCHS, 0))
    before = dict(store_of(cluster).objects)
    with pytest.raises(ClusterMismatchError, match="belongs to cluster another"):
        sweep(cluster)
    assert store_of(cluster).objects == before


def test_without_a_cluster_nothing_goes() -> None:
    cluster = a_cluster()
    store = store_of(cluster)
    for k in [k for k in store.objects if k.startswith("l0gc/controller/")]:
        del store.objects[k]
    before = dict(store.objects)
    with pytest.raises(NotInitialisedError):
        sweep(ClusterHandles(store, Runtime(store.clock, random.Random(1))))
    assert store.objects == before


def test_a_watermark_that_rises_during_the_run_waits_for_the_next_one() -> None:
    cluster = a_cluster()
    store = store_of(cluster)
    garbage, before = expected_garbage(cluster, 4), level_zero(cluster)
    store.fault = once(lambda: publish_m(cluster, 7), "scan")
    assert sweep(cluster).watermark == 4
    assert before - level_zero(cluster) == garbage
    assert sweep(cluster).deleted == 3 * 3 * 4


@pytest.mark.parametrize("local_ms", [0, 10**13])
def test_age_is_measured_by_the_stores_clock(local_ms: int) -> None:
    """Hazard 16: a local clock that is wrong by centuries changes nothing."""
    cluster = a_cluster()
    store = store_of(cluster)
    wrong = ClusterHandles(store, Runtime(FakeClock(local_ms), random.Random(1)))
    store.clock.ms += 59_000
    held = sweep(wrong, min_age_ms=60_000)
    assert (held.deleted, held.held_by_age, held.eligible) == (0, 60, 60)
    store.clock.ms += 1_000
    assert sweep(wrong, min_age_ms=60_000).deleted == 60


# -- failures -----------------------------------------------------------------------------------------------------------


class Failing(MemoryStore):
    """A store that deletes no key at epoch 3, and fails those at epoch 2 once."""

    code = "AccessDenied"

    def __init__(self) -> None:
        super().__init__()
        self.failed_once: set[str] = set()

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        failures = [DeleteFailure(k, self.code, "locked") for k in keys if f"/{3:018}/" in k]
        for k in keys:
            if f"/{2:018}/" in k and k not in self.failed_once:
                self.failed_once.add(k)
                failures.append(DeleteFailure(k, "SlowDown", "later"))
        lost = {f.key for f in failures}
        super().delete([k for k in keys if k not in lost])
        return failures


def test_refused_credentials_end_the_run_and_nothing_goes() -> None:
    cluster = a_cluster()
    store = store_of(cluster)
    store.fault = failing(AccessDeniedError("denied"), "delete")
    before = level_zero(cluster)
    with pytest.raises(AccessDeniedError):
        sweep(cluster)
    assert level_zero(cluster) == before


def test_what_went_before_a_failure_is_recorded_all_the_same(small_pages: int) -> None:
    cluster = a_cluster()
    store = store_of(cluster)
    store.page_size = small_pages
    before = level_zero(cluster)
    store.fault = failing(AccessDeniedError("denied"), "delete", after=2)
    with pytest.raises(AccessDeniedError):
        sweep(cluster, ranges=1)
    gone = before - level_zero(cluster)
    assert len(gone) == 10
    assert {f.key for f in on_record(cluster) if f.status == DELETED} == gone
    (run,), _ = list_runs(store, 1)
    assert run.summary is not None
    assert (run.summary.outcome, run.summary.objects) == ("failed", 10)


# -- stores that list out of order (hazard 12) --------------------------------------------------------------------------


class Disordered(MemoryStore):
    """Lists the data prefix in a random order, from a listing taken before any deletion."""

    seed = 0
    ordered_pages = 0

    def scan(self, prefix: str, start_after: str = "") -> Iterator[ListedPage]:
        keys = [k for k in sorted(self.objects) if k.startswith(prefix) and k > start_after]
        kept, rest = keys[: self.ordered_pages * self.page_size], keys[self.ordered_pages * self.page_size :]
        random.Random(self.seed).shuffle(rest)
        keys = kept + rest
        objects = dict(self.objects)
        for at in range(0, max(1, len(keys)), self.page_size):
            self._enter("scan", prefix)
            page = keys[at : at + self.page_size]
            if page:
                yield ListedPage(page, [len(objects[k].body) for k in page], [objects[k].modified_ms for k in page])


def disordered(seed: int, ordered_pages: int, kind: type[Disordered] = Disordered) -> ClusterHandles:
    store = kind()
    cluster = a_cluster(store)
    store.seed, store.ordered_pages, store.page_size = seed, ordered_pages, 5
    return cluster


@pytest.mark.parametrize("ordered_pages", [0, 1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_disordered_store_is_swept_slower_and_not_wrong(small_pages: int, seed: int, ordered_pages: int) -> None:
    cluster = disordered(seed, ordered_pages)
    before, garbage = level_zero(cluster), expected_garbage(cluster, 4)
    result = sweep(cluster)
    assert level_zero(cluster) == before - garbage
    assert result.deleted == result.eligible == len(garbage)
    assert result.bytes == 180
    assert (result.listed, result.unparsable) == (111, 3)
    assert result.requests["list"] == store_of(cluster).requests["scan"] + 1  # one more for unfinished uploads


@pytest.mark.parametrize("max_bytes", [20, 179, 180])
@pytest.mark.parametrize("ordered_pages", [0, 1, 3])
def test_a_limit_of_bytes_holds_over_both_scans_of_a_disordered_store(
    small_pages: int, ordered_pages: int, max_bytes: int
) -> None:
    dry = SweepRun(disordered(0, ordered_pages), Sweep(dry_run=True, max_bytes=max_bytes)).run()
    done = SweepRun(disordered(0, ordered_pages), Sweep(max_bytes=max_bytes)).run()
    for result in (dry, done):
        assert max_bytes - 5 < result.bytes <= max_bytes
        assert result.limited == (max_bytes < 180)


@pytest.mark.parametrize("max_objects", [None, 7, 1000])
@pytest.mark.parametrize("ordered_pages", [0, 1, 3])
def test_a_dry_run_of_a_disordered_store_counts_nothing_twice(
    small_pages: int, ordered_pages: int, max_objects: int | None
) -> None:
    dry = sweep(disordered(0, ordered_pages), dry_run=True, max_objects=max_objects)
    done = sweep(disordered(0, ordered_pages), max_objects=max_objects)
    assert dry.deleted == done.deleted
    if max_objects is None or max_objects > 60:
        assert (done.deleted, done.bytes) == (dry.deleted, dry.bytes) == (60, 180)
        assert dry.eligible == done.eligible == 60
    else:
        assert done.deleted == max_objects


# -- random buckets -----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, EPOCHS), st.integers(0, 30)), max_size=60),
    st.lists(st.sampled_from(["README", "002/", "002/x", "004/1", "003~", "0000", "~"]), max_size=4),
    st.integers(-1, EPOCHS),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from([None, 1, 5, 50]),
)
@tries(60)
def test_any_bucket_is_swept_of_its_garbage_and_of_nothing_else(
    objects: list[tuple[int, int, int]],
    foreign: list[str],
    watermark: int,
    page_size: int,
    ranges: int,
    max_objects: int | None,
) -> None:
    cluster = a_cluster(watermark=watermark, objects=0)
    store = store_of(cluster)
    layout = KeyLayout(shards=4)
    for shard, epoch, n in objects:
        store.put(layout.format(shard, epoch, name_of(n)), b"x" * (n + 1))
    for key in foreign:
        store.put(layout.data_prefix + key, b"?")
    store.page_size = page_size
    before, garbage = level_zero(cluster), expected_garbage(cluster, watermark)
    with pytest.MonkeyPatch.context() as patch:
        pages_of(patch, page_size)
        dry = sweep(cluster, ranges=ranges, dry_run=True, max_objects=max_objects)
        assert level_zero(cluster) == before
        result = sweep(cluster, ranges=ranges, max_objects=max_objects)
    gone = before - level_zero(cluster)
    assert gone <= garbage
    assert len(gone) == result.deleted == min(len(garbage), len(garbage) if max_objects is None else max_objects)
    assert numbers(dry) == numbers(result)
