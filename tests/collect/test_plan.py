"""The plan: the limits of a sweep, decided before it deletes anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.deletion import Deletable, set_pause
from l0gc.collect.history import started_ms, usual_objects
from l0gc.collect.plan import BYTES, OBJECTS, RATIO, UNKNOWN, DeletionPlan, plan_sweep, plan_vacuum, run_id
from l0gc.collect.record import read_summary, write_summary
from l0gc.collect.run import Budget
from l0gc.collect.skip_scan import RunCounts
from l0gc.collect.sweep import SweepResult, SweepRun
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import PausedError, SafetyError, StoreError, UsageError
from l0gc.keys import PUBLISHED_WATERMARK
from l0gc.operations import Sweep, Vacuum
from l0gc.storage.objectstore import UnfinishedUpload
from l0gc.streamlog.housekeep import housekeep
from l0gc.watermark.publication import PublishedWatermark, publish, require_seen
from tests.collect.test_sweep_local import EPOCHS, a_cluster, expected_garbage, level_zero
from tests.inspect.report.support import summary
from tests.support.l0_buckets import name_of
from tests.support.memory_store import (
    Call,
    MemoryStore,
    another_process,
    memory_cluster,
    publish_m,
    store_of,
    topic_in_memory,
)
from tests.support.verify import scan_and_publish
from tests.support.wrong_dates import MisdatedStore


def test_shards_that_there_are_not_are_refused() -> None:
    cluster = a_cluster()
    for shards in [(0, 4), (4, 4), (3, 2)]:
        with pytest.raises(UsageError, match="are not within 0-3"):
            plan_sweep(cluster, Sweep(shards=shards))


@pytest.mark.parametrize("shards", [(0, 0), (1, 2), (3, 3), (0, 3)])
def test_only_the_shards_that_were_requested_are_swept(shards: tuple[int, int]) -> None:
    cluster = a_cluster()
    layout = cluster.controller.layout()
    before = level_zero(cluster)
    inside = {k for k in expected_garbage(cluster, 4) if (p := layout.parse(k)) and shards[0] <= p.shard <= shards[1]}
    result = SweepRun(cluster, Sweep(shards=shards)).run(3)
    assert before - level_zero(cluster) == inside
    assert result.deleted == len(inside)


@pytest.mark.parametrize(("counted", "ranges"), [(-1, 3), (0, 1), (1, 1), (1000, 1), (1001, 2), (10**9, 3)])
def test_a_small_bucket_is_scanned_in_few_complete_ranges(counted: int, ranges: int) -> None:
    plan = a_plan(counted=counted)
    found = plan.ranges(3)
    assert len(found) == ranges
    assert (found[0][0], found[-1][1]) == (plan.first_shard, plan.end_shard)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 40))
def test_the_ranges_cover_the_shards_once(first: int, more: int, n: int) -> None:
    plan = a_plan(first_shard=first, end_shard=first + more + 1)
    ranges = plan.ranges(n)
    assert [s for a, b in ranges for s in range(a, b)] == list(range(first, first + more + 1))
    assert 1 <= len(ranges) <= n
    assert all(a < b for a, b in ranges)


def a_plan(**changes: object) -> DeletionPlan[Sweep]:
    plan = plan_sweep(a_cluster(), Sweep())
    return msgspec.structs.replace(plan, **changes)


def test_a_plan_may_be_sent_to_another_process() -> None:
    plan = a_plan(ratio_limit=7, versioning="enabled")
    assert msgspec.json.decode(msgspec.json.encode(plan), type=DeletionPlan[Sweep]) == plan


def test_a_run_is_named_by_the_stores_clock() -> None:
    cluster = a_cluster()
    plan = plan_sweep(cluster, Sweep())
    assert started_ms(plan.run_id) == plan.started_ms // 1000 * 1000 == store_of(cluster).clock.ms // 1000 * 1000


def test_a_run_is_named_in_utc_wherever_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        name = run_id(0, "12345678-9")
    time.tzset()
    assert name == "19700101T000000Z-12345678"


@pytest.mark.parametrize("plan_run", [partial(plan_sweep, options=Sweep()), partial(plan_vacuum, options=Vacuum())])
def test_a_plan_shows_its_cluster_and_bucket(
    plan_run: Callable[..., DeletionPlan[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster()
    monkeypatch.setattr(store_of(cluster), "versioning", lambda: "enabled")
    plan = plan_run(cluster, name="job")
    assert (plan.run_id, plan.watermark, plan.bound, plan.external_log) == ("job", 4, 4, False)
    assert (plan.cluster_epoch, plan.layout) == (cluster.controller.epoch(), cluster.controller.layout())
    assert plan.versioning == "enabled"
    assert plan.paused == ""


@pytest.mark.parametrize("age_s", [1, 2.5, 86_400])
def test_a_minimum_age_counts_back_from_the_runs_start(age_s: float) -> None:
    plan = plan_sweep(a_cluster(), Sweep(min_age_s=age_s))
    assert plan.older_than_ms == plan.started_ms - age_s * 1000


@pytest.mark.parametrize(("plan_run", "options"), [(plan_sweep, Sweep), (plan_vacuum, Vacuum)], ids=["sweep", "vacuum"])
def test_a_pause_lets_only_a_dry_run_start(
    plan_run: Callable[..., DeletionPlan[Any]], options: Callable[..., Any]
) -> None:
    cluster = a_cluster()
    set_pause(cluster.store, "disk audit", "ann")
    with pytest.raises(PausedError, match="disk audit"):
        plan_run(cluster, options())
    assert "disk audit" in plan_run(cluster, options(dry_run=True)).paused


def test_without_a_minimum_age_an_object_of_this_very_moment_goes() -> None:
    """The store's clock has whole seconds, but the times of objects may be finer."""
    cluster = a_cluster()
    store = store_of(cluster)
    late = cluster.controller.layout().format(0, 1, "0000ffff-0000-4000-8000-000000000000")
    store.put(late, b"x")
    store.objects[late].modified_ms += 999
    assert SweepRun(cluster).run(1).held_by_age == 0
    assert late not in store.objects


def test_a_store_with_unknown_versioning_is_swept() -> None:
    class Mute(MemoryStore):
        def versioning(self) -> str:
            raise StoreError("501 NotImplemented")

    result = SweepRun(a_cluster(Mute())).run(1)
    assert (result.plan.versioning, result.deleted) == (UNKNOWN, 60)


# -- the bound ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("up_to", [0, 2, 4])
def test_a_run_deletes_nothing_above_its_bound(up_to: int) -> None:
    cluster = a_cluster()
    store, layout = store_of(cluster), cluster.controller.layout()
    uploads = [UnfinishedUpload(layout.format(0, epoch, name_of(epoch)), str(epoch), 0) for epoch in range(EPOCHS)]
    store.unfinished = list(uploads)
    before, garbage = level_zero(cluster), expected_garbage(cluster, up_to)
    dry = SweepRun(cluster, Sweep(up_to=up_to, dry_run=True)).run()
    result = SweepRun(cluster, Sweep(up_to=up_to)).run()
    assert before - level_zero(cluster) == garbage
    assert (result.deleted, result.eligible, result.uploads_aborted) == (len(garbage), len(garbage), up_to + 1)
    assert (dry.deleted, dry.uploads_aborted) == (result.deleted, up_to + 1)
    assert store.unfinished == uploads[up_to + 1 :]
    summary = read_summary(store, result.run_id)
    assert (result.watermark, result.bound) == (summary.watermark, summary.bound) == (4, up_to)
    assert result.plan.options.whole is False


def test_only_a_sweep_up_to_m_expects_what_the_listing_counted() -> None:
    cluster = a_cluster(watermark=None)
    published = msgspec.structs.replace(with_counts(108, 60), cluster_id=cluster.controller.snapshot().cluster_id)
    publish(cluster.store, cluster.runtime, published)
    assert [plan_sweep(cluster, Sweep(up_to=up_to)).expected for up_to in (None, 4, 3)] == [60, 60, -1]


def test_with_a_grace_only_what_an_m_of_then_allowed_goes() -> None:
    cluster = a_cluster(watermark=None)
    store = store_of(cluster)
    for m in (1, 3):
        publish_m(cluster, m, at_ms=store.clock.ms)
        store.clock.ms += 3_600_000
    for grace_s, bound in ((10_000, NO_WATERMARK), (7200, 1), (3601, 1), (3600, 3), (0, 3)):
        assert SweepRun(cluster, Sweep(grace_s=grace_s, dry_run=True)).run().bound == bound
    assert SweepRun(cluster, Sweep(grace_s=3600, up_to=2, dry_run=True)).run().bound == 2
    before, garbage = level_zero(cluster), expected_garbage(cluster, 1)
    result = SweepRun(cluster, Sweep(grace_s=3601)).run()
    assert (before - level_zero(cluster), result.bound) == (garbage, 1)


@pytest.mark.parametrize("hours", [-20, -1, -0.15, 0.15, 1, 20])
@pytest.mark.parametrize("when", ["published", "swept"])
def test_a_reply_with_a_wrong_date_ends_no_grace_early(hours: float, when: str) -> None:
    """Hazard 34: whichever reply has a wrong date, M was published less than an hour ago."""
    for wrong in range(3):
        store = MisdatedStore(int(hours * 3_600_000))
        cluster = topic_in_memory(store=store)
        for _ in range(4):
            cluster.controller.advance()
        store.put(cluster.identity().layout.format(1, 1, str(UUID(int=1))), b"x")
        housekeep(cluster, barrier=True)
        replies = count()

        def date(replies: Iterator[int] = replies, wrong: int = wrong, store: MisdatedStore = store) -> int:
            return store.clock.ms + (store.ahead_ms if next(replies) == wrong else 0)

        with pytest.MonkeyPatch.context() as patch, suppress(SafetyError):
            if when == "published":
                patch.setattr(store, "now_ms", date)
            scan_and_publish(cluster)
        if PUBLISHED_WATERMARK not in store.objects:
            scan_and_publish(cluster)
        store.clock.ms += 3_300_000
        process = another_process(cluster)
        process.controller.snapshot()
        with pytest.MonkeyPatch.context() as patch, suppress(SafetyError):
            if when == "swept":
                patch.setattr(store, "now_ms", date)
            assert SweepRun(process, Sweep(grace_s=3600)).run().deleted == 0
        store.clock.ms += 3_600_000
        assert SweepRun(another_process(cluster, 2), Sweep(grace_s=3600)).run().deleted == 1


def test_grace_begins_when_a_suspended_publisher_writes() -> None:
    """Hazard 16: the publication's date precedes the suspension. A later pin does not restart the grace."""
    cluster = topic_in_memory()
    store = store_of(cluster)
    for _ in range(4):
        cluster.controller.advance()
    store.put(cluster.identity().layout.format(1, 1, str(UUID(int=1))), b"x")
    housekeep(cluster, barrier=True)

    def suspended(call: Call) -> None:
        if call.kind.startswith("put_if") and call.key == PUBLISHED_WATERMARK:
            store.fault = lambda call: None
            store.clock.ms += 3_600_000

    store.fault = suspended
    scan_and_publish(cluster)
    assert SweepRun(another_process(cluster), Sweep(grace_s=3600)).run().deleted == 0
    store.clock.ms += 3_000_000
    require_seen(cluster, cluster.identity().cluster_id, 2)
    store.clock.ms += 600_000
    assert SweepRun(another_process(cluster, 2), Sweep(grace_s=3600)).run().deleted == 1


@pytest.mark.parametrize(("watermark", "why"), [(4, "--up-to 5 is above M = 4"), (None, "needs an M")])
def test_a_bound_above_m_is_refused(watermark: int | None, why: str) -> None:
    cluster = a_cluster(watermark=watermark)
    before = dict(store_of(cluster).objects)
    with pytest.raises(SafetyError, match=why):
        SweepRun(cluster, Sweep(up_to=5)).run()
    assert store_of(cluster).objects == before


# -- the share of the bucket --------------------------------------------------------------------------------------------


def with_counts(listed: int, eligible: int = -1) -> PublishedWatermark:
    return PublishedWatermark("", 4, EPOCHS, 0, eligible, eligible, listed)


@pytest.mark.parametrize(("ratio", "most"), [(0.0, 0), (0.25, 27), (0.5, 54), (0.6, 60), (1.0, 60)])
def test_a_sweep_deletes_no_more_than_the_share_and_says_so(ratio: float, most: int) -> None:
    cluster = a_cluster(watermark=None)
    published = with_counts(108)
    state = cluster.controller.snapshot()
    publish(cluster.store, cluster.runtime, msgspec.structs.replace(published, cluster_id=state.cluster_id))
    before = level_zero(cluster)
    options = Sweep(max_delete_ratio=ratio)
    dry = SweepRun(cluster, msgspec.structs.replace(options, dry_run=True)).run(3)
    result = SweepRun(cluster, options).run(3)
    assert len(before - level_zero(cluster)) == result.deleted == dry.deleted == most
    assert result.over_ratio == dry.over_ratio == (most < 60)


@pytest.mark.parametrize(
    ("listed", "eligible", "most"), [(100, 50, 50), (100, 51, 99), (100, -1, 99), (0, 0, 0), (1, 1, 99)]
)
def test_the_usual_number_counts_only_if_the_share_may_not_suffice(listed: int, eligible: int, most: int) -> None:
    cluster = a_cluster(watermark=None)
    published = msgspec.structs.replace(with_counts(listed, eligible), cluster_id=cluster.identity().cluster_id)
    publish(cluster.store, cluster.runtime, published)
    plan = plan_sweep(cluster, Sweep(max_delete_ratio=0.5), usual=lambda now_ms: 99)
    assert plan.limits == {RATIO: most}


def test_a_share_of_nothing_deletes_nothing_even_if_more_is_usual() -> None:
    plan = plan_sweep(a_cluster(), Sweep())
    plan = msgspec.structs.replace(plan, options=Sweep(max_delete_ratio=0.0))
    assert plan.limited_to_share(108, 99).limits == {RATIO: 0}


class Weeks:
    """A cluster with a limited share, whose M follows the epoch by two unless it is held."""

    def __init__(self) -> None:
        self.cluster = memory_cluster()
        self._layout, self._epoch, self._names, self._m = self.cluster.controller.layout(), 0, count(), 0

    def tick(self, uploads: int, *, held: bool = False) -> SweepResult:
        """Let ten minutes pass, land `uploads` objects, publish M and sweep; `held` keeps M, like a pin."""
        cluster = self.cluster
        store_of(cluster).clock.sleep(600)
        self._epoch = cluster.controller.advance()
        for _ in range(uploads):
            cluster.store.put(self._layout.format(0, self._epoch, name_of(next(self._names))), b"x")
        self._m = self._m if held else self._epoch - 2
        keys = [self._layout.parse(k) for k in level_zero(cluster)]
        eligible = sum(k is not None and k.epoch <= self._m for k in keys)
        published = msgspec.structs.replace(
            with_counts(len(keys), eligible), watermark=self._m, cluster_epoch=self._epoch
        )
        state = cluster.controller.snapshot()
        publish(cluster.store, cluster.runtime, msgspec.structs.replace(published, cluster_id=state.cluster_id))
        return SweepRun(cluster, Sweep(max_delete_ratio=0.5)).run()


def test_a_week_of_days_nights_and_pins_stays_within_the_share() -> None:
    """Garbage is most of the bucket once uploads stop or a pin has ended."""
    weeks = Weeks()
    for day in range(7):
        pinned = range(6, 18) if day in (2, 5) else range(0)
        over = [weeks.tick(n, held=i in pinned).over_ratio for i, n in enumerate([10] * 12 + [0] * 12)]
        assert not any(over), day
        assert not level_zero(weeks.cluster)


def test_a_pin_longer_than_the_runs_on_record_stays_within_the_share() -> None:
    weeks = Weeks()
    for _ in range(6):
        weeks.tick(10)
    for _ in range(40):
        weeks.tick(10, held=True)
    assert not weeks.tick(0).over_ratio


def test_the_share_ends_a_jump_of_m_however_long_it_takes() -> None:
    weeks = Weeks()
    for _ in range(20):
        weeks.tick(10)
    result = weeks.tick(500, held=True)
    assert not result.over_ratio
    weeks.tick(0, held=True)
    result = weeks.tick(0)  # M jumps by mistake
    assert result.over_ratio
    assert len(level_zero(weeks.cluster)) >= 240
    for _ in range(20):  # time passes without a scan
        store_of(weeks.cluster).clock.sleep(3_600)
    before = len(level_zero(weeks.cluster))
    assert weeks.tick(0).over_ratio
    assert len(level_zero(weeks.cluster)) == before - before // 2


@pytest.mark.parametrize(("passed_ms", "usual"), [(10_000, 20), (10_001, 40)])
def test_deletions_within_as_long_as_has_passed_are_usual(passed_ms: int, usual: int) -> None:
    cluster = memory_cluster()
    for n in range(2):
        write_summary(cluster.store, summary(1_700_000_000_000 + 10_000 * n, 10))
    assert usual_objects(cluster, "sweep", 1_700_000_010_000 + passed_ms) == usual


def test_runs_on_record_are_read_only_if_the_share_may_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def usual(cluster: object, command: str, now_ms: int) -> int:
        asked.append(now_ms)
        return 99

    weeks = Weeks()
    for _ in range(6):
        weeks.tick(10)
    monkeypatch.setattr("l0gc.collect.sweep.usual_objects", usual)
    weeks.tick(30)
    assert not asked
    for _ in range(2):
        weeks.tick(0)
    assert asked


@pytest.mark.parametrize(("ratio", "left"), [(0.25, 1), (1.0, 0)])
def test_a_sweep_that_its_share_ends_aborts_no_upload(ratio: float, left: int) -> None:
    cluster = a_cluster(watermark=None)
    store, state = store_of(cluster), cluster.controller.snapshot()
    publish(store, cluster.runtime, msgspec.structs.replace(with_counts(108), cluster_id=state.cluster_id))
    store.unfinished = [UnfinishedUpload(cluster.controller.layout().format(0, 1, name_of(1)), "1", 0)]
    SweepRun(cluster, Sweep(max_delete_ratio=ratio)).run()
    assert len(store.unfinished) == left


def test_a_bucket_without_versions_is_not_purged_of_them() -> None:
    assert not plan_sweep(a_cluster(), Sweep(purge_versions=True)).by_version


def test_a_share_of_a_bucket_that_nobody_counted_is_refused() -> None:
    cluster = a_cluster()
    before = level_zero(cluster)
    with pytest.raises(SafetyError, match="did not count the bucket"):
        SweepRun(cluster, Sweep(max_delete_ratio=0.5)).run()
    assert level_zero(cluster) == before


@pytest.mark.parametrize(
    ("options", "limited_by", "deleted", "size"),
    [
        (Sweep(max_bytes=180), "", 60, 180),
        (Sweep(max_bytes=179), BYTES, 59, 175),
        (Sweep(max_bytes=5), BYTES, 4, 5),  # sizes 1, 1, 1, 2, but not another 2
        (Sweep(max_objects=60, max_bytes=180, max_delete_ratio=1.0), "", 60, 180),
        (Sweep(max_bytes=50, max_delete_ratio=1.0), BYTES, 19, 50),
        (Sweep(max_objects=59, max_delete_ratio=1.0), OBJECTS, 59, 175),
        (Sweep(max_objects=5, max_delete_ratio=0.5), OBJECTS, 5, 7),
        (Sweep(max_objects=5, max_bytes=6), BYTES, 4, 5),
        (Sweep(max_objects=54, max_bytes=1000, max_delete_ratio=0.5), RATIO, 54, 153),
        (Sweep(max_objects=54, max_bytes=153, max_delete_ratio=0.5), RATIO, 54, 153),
        (Sweep(max_objects=54, max_bytes=152, max_delete_ratio=0.5), BYTES, 53, 150),
    ],
)
@pytest.mark.parametrize("page", [1000, 3])
def test_the_limit_that_excluded_an_object_is_on_record(
    options: Sweep, limited_by: str, deleted: int, size: int, page: int
) -> None:
    """Sixty objects of 180 bytes in total are eligible: three of each size from 1 to 5 in each shard."""
    cluster = a_cluster(watermark=None)
    store_of(cluster).page_size = page
    state = cluster.controller.snapshot()
    publish(cluster.store, cluster.runtime, msgspec.structs.replace(with_counts(108), cluster_id=state.cluster_id))
    before = level_zero(cluster)
    dry = SweepRun(cluster, msgspec.structs.replace(options, dry_run=True)).run(3)
    result = SweepRun(cluster, options).run(3)
    for r in (dry, result):
        assert (r.limited_by, r.deleted, r.bytes) == (limited_by, deleted, size)
        assert r.to_json()["limited_by"] == (limited_by or None)
        assert isinstance(r.problem, SafetyError) == (limited_by == RATIO)
    assert len(before - level_zero(cluster)) == deleted
    assert read_summary(cluster.store, result.run_id).limited_by == limited_by


@pytest.mark.parametrize(
    ("options", "aborted"), [(Sweep(max_delete_ratio=0.5), 0), (Sweep(max_bytes=50, max_delete_ratio=1.0), 1)]
)
def test_the_share_alone_keeps_unfinished_uploads(options: Sweep, aborted: int) -> None:
    cluster = a_cluster(watermark=None)
    store = store_of(cluster)
    store.unfinished = [UnfinishedUpload(cluster.controller.layout().format(0, 1, name_of(99)), "u", 0)]
    state = cluster.controller.snapshot()
    publish(cluster.store, cluster.runtime, msgspec.structs.replace(with_counts(108), cluster_id=state.cluster_id))
    dry = SweepRun(cluster, msgspec.structs.replace(options, dry_run=True)).run()
    assert (dry.uploads_aborted, SweepRun(cluster, options).run().uploads_aborted) == (aborted, aborted)
    assert len(store.unfinished) == 1 - aborted


@pytest.mark.parametrize("sizes", [[[5, 1]], [[5], [1]], [[], [5], [], [1]]])
def test_nothing_is_claimed_behind_what_a_limit_excluded(sizes: list[list[int]]) -> None:
    budget = Budget({BYTES: 4}, RunCounts())
    claimed = [budget.claim([Deletable("a", 1, size) for size in batch]) for batch in sizes]
    assert (claimed, budget.limited_by) == ([[]] * len(sizes), BYTES)


def test_a_sweep_without_a_watermark_asks_for_nothing_more() -> None:
    cluster = a_cluster(watermark=None)
    calls: list[Call] = []
    store_of(cluster).fault = calls.append
    SweepRun(cluster).run()
    assert not {c.kind for c in calls} & {"scan", "delete", "put"}
    publish_m(cluster, 4)
