"""Vacuum: each kind of garbage has its own rule, a dry run predicts the deletions, and a sweep's limits hold for a
vacuum.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import l0gc.collect.run
from l0gc.cli.sweep import vacuumed
from l0gc.collect.deletion import Deletable, set_pause
from l0gc.collect.dropped_l1 import DROPPED_L1, Amounts
from l0gc.collect.gc_steps import VACUUM
from l0gc.collect.history import list_runs, old_run_records, show_run
from l0gc.collect.orphans import ORPHANED_L1, Fact, is_orphan
from l0gc.collect.plan import BYTES, OBJECTS, RATIO, DeletionPlan, run_id
from l0gc.collect.record import Attempt, attempt_key, read_summary, write_attempt
from l0gc.collect.skip_scan import FAILURES_KEPT, SAMPLES
from l0gc.collect.vacuum import KINDS, VacuumResult, VacuumRun
from l0gc.errors import EpochRegressionError, PartialFailureError, PausedError, SafetyError, StoppedError, StoreError
from l0gc.keys import ATTEMPTS, L1_DATA, RUNS, SCANS, PartitionId, level_one
from l0gc.operations import Vacuum
from l0gc.storage.objectstore import DeleteFailure, UnfinishedUpload
from l0gc.storage.ranges import KeyRange
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.watermark.scans import KEEP_DAYS
from tests.support.garbage import DATA, FakeGarbage, key_of
from tests.support.l0_buckets import Backwards
from tests.support.memory_store import MemoryStore, memory_cluster, publish_m

HOUR_MS = 3_600_000
KEEP_RUNS_MS = int(1000 * Vacuum().keep_runs_s)


def a_cluster(store: MemoryStore | None = None, epoch: int = 20) -> tuple[ClusterHandles, MemoryStore]:
    store = store or MemoryStore()
    cluster = memory_cluster(store)
    while cluster.controller.snapshot().epoch < epoch:
        cluster.controller.advance()
    return cluster, store


def vacuum(cluster: ClusterHandles, source: FakeGarbage | None, options: Vacuum | None = None) -> VacuumResult:
    return VacuumRun(cluster, options).run(source)


def counts(result: VacuumResult) -> dict[str, int]:
    return {kind: removed.objects for kind, removed in result.deleted.items() if removed.objects}


def put(store: MemoryStore, *keys: str) -> list[Deletable]:
    for key in keys:
        store.put(key, b"x" * 10)
    return [Deletable(key, 1, 10) for key in keys]


def planted(store: MemoryStore) -> FakeGarbage:
    """Plant every kind of garbage, and next to each kind objects that must stay."""
    source = FakeGarbage(fence_at=10)
    now = store.clock.ms
    old = put(store, "l1/dropped/a", "l1/dropped/b")
    source.drop(0, now - 2 * HOUR_MS, 3, old)
    source.drop(0, now - 2 * HOUR_MS, 3, put(store, "l1/dropped/c"))
    source.drop(1, now - HOUR_MS // 2, 3, put(store, "l1/dropped/young"))
    source.drop(1, now - 2 * HOUR_MS, 19, put(store, "l1/dropped/of-this-epoch"))
    put(store, *(key_of(e, f"orphan-{e}") for e in (1, 8, 9, 10, 15)))
    put(store, f"{DATA}foreign")
    source.named = {key_of(3, "named")}
    put(store, *source.named)
    for days in (1, 31):
        run = run_id(now - days * 86_400_000, "0123abcd")
        put(store, f"{RUNS}{run}/run.json", f"{RUNS}{run}/objects-local-00000.parquet")
        put(store, f"{SCANS}{now - 3 * days * 86_400_000:015}-01234567-0000-4000-8000-000000000000")
    assert KEEP_DAYS < 3 * 31
    write_attempt(store, Attempt("sweep", 0, ""))
    put(store, attempt_key("a-job-of-long-ago"))
    for key in (attempt_key("a-job-of-long-ago"), attempt_key("sweep")):
        store.objects[key].modified_ms -= KEEP_RUNS_MS + 1
    return source


EVERY_KIND = {
    "dropped_l1": 3, "orphaned_l1": 3,
    "run_records": 3, "scan_snapshots": 1,
}  # fmt: skip
EVERY = sum(EVERY_KIND.values())
"""All objects that a vacuum deletes, of 10 bytes each."""


def test_a_dry_run_predicts_every_kind_of_deletion() -> None:
    cluster, store = a_cluster()
    source = planted(store)
    before = dict(store.objects)
    dry = vacuum(cluster, source, Vacuum(dry_run=True))
    assert store.objects == before
    assert (source.fences, source.purged_keys) == ([], [])
    done = vacuum(cluster, source)
    assert counts(dry) == counts(done) == EVERY_KIND
    assert set(EVERY_KIND) == set(KINDS)
    assert dry.deleted == done.deleted
    gone = before.keys() - store.objects.keys()
    assert len(gone) == EVERY
    assert {k for k in gone if k.startswith(DATA)} == {
        key_of(1, "orphan-1"), key_of(8, "orphan-8"), key_of(9, "orphan-9"),
    }  # fmt: skip
    assert source.purged_keys == ["l1/dropped/a", "l1/dropped/b", "l1/dropped/c"]
    assert (done.unparsable, sorted(done.unparsable_samples)) == (1, [f"{DATA}foreign"])
    assert source.fences == [10]


def test_without_orphans_nothing_is_fenced_listed_or_deleted_of_them() -> None:
    cluster, store = a_cluster()
    source = planted(store)
    done = vacuum(cluster, source, Vacuum(orphans=False))
    assert counts(done) == {kind: number for kind, number in EVERY_KIND.items() if kind != "orphaned_l1"}
    assert (source.fences, done.fence, done.listed) == ([], None, 0)
    assert all(key_of(epoch, f"orphan-{epoch}") in store.objects for epoch in (1, 8, 9, 10, 15))


def test_a_second_run_finds_nothing_and_leaves_no_record() -> None:
    cluster, store = a_cluster()
    source = planted(store)
    vacuum(cluster, source)
    source.batches.clear()
    there = dict(store.objects)
    again = vacuum(cluster, source)
    assert (counts(again), store.objects) == ({}, there)


def test_what_was_deleted_is_on_record_by_kind_but_for_old_records() -> None:
    cluster, store = a_cluster()
    done = vacuum(cluster, planted(store))
    summary = read_summary(store, done.run_id)
    assert (summary.command, summary.kinds) == (VACUUM, done.deleted)
    detail = show_run(cluster, done.run_id, sample=100)
    assert detail.by_status == {"deleted": 6}
    assert not [r for r in detail.sample if r.key.startswith("l0gc/")]
    assert list_runs(store, 1)[0][0].run_id == done.run_id


@pytest.mark.parametrize(
    ("fact", "goes"),
    [
        (Fact(9, 10, needed=False), True),
        (Fact(10, 10, needed=False), False),
        (Fact(9, 10, needed=True), False),
        (Fact(-1, 10, needed=False), False),
        (Fact(0, -1, needed=False), False),
    ],
)
def test_an_orphan_is_below_the_fence_and_not_needed(fact: Fact, goes: bool) -> None:
    assert is_orphan(fact) is goes


def test_the_order_is_fence_then_look_then_list() -> None:
    class Telling(MemoryStore):
        def scan(self, prefix: str, start_after: str = "") -> Iterator[object]:  # type: ignore[override]
            if prefix == DATA:
                source.events.append("list")
            yield from super().scan(prefix, start_after)

    cluster, store = a_cluster(Telling())
    source = FakeGarbage(fence_at=10)
    put(store, key_of(1, "orphan"))
    vacuum(cluster, source)
    assert source.events == ["look", "fence", "look at a part", "list", "scanned"]


def test_without_a_fence_nothing_is_listed() -> None:
    cluster, store = a_cluster()
    put(store, key_of(0, "x"))
    source = FakeGarbage(fence_at=0)
    done = vacuum(cluster, source)
    assert (done.fence, done.listed, source.events) == (None, 0, ["look", "fence"])


@given(
    epochs=st.lists(st.integers(0, 12), max_size=40),
    named=st.sets(st.integers(0, 39)),
    cuts=st.sets(st.integers(0, 12), max_size=4),
    page=st.integers(1, 7),
    backwards=st.booleans(),
)
@settings(max_examples=60)
def test_any_listing_in_any_order_loses_its_orphans_and_nothing_else(
    epochs: list[int], named: set[int], cuts: set[int], page: int, backwards: bool
) -> None:
    cluster, store = a_cluster(Backwards() if backwards else MemoryStore())
    keys = [key_of(e, f"{i:04}") for i, e in enumerate(epochs)]
    put(store, *keys)
    store.page_size = max(page, 2) if backwards else page  # a page of one key has no order
    source = FakeGarbage(fence_at=7, named={k for i, k in enumerate(keys) if i in named})
    source.cuts = tuple(f"{DATA}{c:03}~" for c in sorted(cuts))
    done = vacuum(cluster, source)
    left = {k for k in keys if k in source.named or int(k[len(DATA) :][:3]) >= 7}
    assert {k for k in store.objects if k.startswith(DATA)} == left
    assert (done.listed, counts(done).get(ORPHANED_L1, 0)) == (len(keys), len(keys) - len(left))


def test_an_unknown_key_in_a_listing_stays_and_the_rest_goes() -> None:
    class Strange(FakeGarbage):
        def facts_reader(self, *, remote: bool) -> object:  # type: ignore[override]
            def facts(keys: Sequence[str]) -> list[Fact]:
                return [Fact(1, 9, needed=False, unknown="strange" in k) for k in keys]

            return lambda store, part: facts

    cluster, store = a_cluster()
    strange = [f"{DATA}strange-{n}/x" for n in range(5)]
    put(store, key_of(1, "x"), *strange)
    done = vacuum(cluster, Strange(fence_at=9))
    assert counts(done) == {ORPHANED_L1: 1}
    assert set(strange) <= store.objects.keys()
    assert (done.unknown, len(done.unknown_folders)) == (5, SAMPLES)
    assert isinstance(done.problem, EpochRegressionError)


def test_where_the_controller_went_back_nothing_is_deleted() -> None:
    cluster, store = a_cluster()
    source = planted(store)
    publish_m(cluster, 30, 30)
    before = dict(store.objects)
    with pytest.raises(EpochRegressionError):
        vacuum(cluster, source)
    assert store.objects == before


@pytest.mark.parametrize("dry_run", [False, True])
def test_unfinished_uploads_of_l1_objects_below_the_fence_are_aborted(*, dry_run: bool) -> None:
    cluster, store = a_cluster()
    p = PartitionId("events", 1, 0)
    keys = [level_one(p, epoch, 0, 9, str(uuid.uuid4())) for epoch in (5, 8, 9, 10)]
    keys += [f"{L1_DATA}foreign", "level_zero/data/000/000000000000000001/x"]
    store.unfinished = [UnfinishedUpload(key, str(n), 0) for n, key in enumerate(keys)]
    done = vacuum(cluster, FakeGarbage(fence_at=9), Vacuum(dry_run=dry_run))
    assert (done.uploads_aborted, done.to_json()["uploads_aborted"]) == (2, 2)
    assert [u.key for u in store.unfinished] == (keys if dry_run else keys[2:])
    assert "2 unfinished uploads" in " ".join(vacuumed(done))


def test_a_store_that_does_not_list_uploads_ends_no_vacuum() -> None:
    cluster, store = a_cluster(MemoryStore())
    put(store, key_of(1, "x"))
    store.uploads = failing_uploads  # type: ignore[method-assign]
    done = vacuum(cluster, FakeGarbage(fence_at=9))
    assert (counts(done), done.problem) == ({ORPHANED_L1: 1}, None)
    assert "not all listed: 501" in " ".join(vacuumed(done))


def failing_uploads(prefix: str) -> Iterator[list[UnfinishedUpload]]:
    raise StoreError("501 NotImplemented")


# -- dropped objects --------------------------------------------------------------------------------------------------


class Stubborn(MemoryStore):
    """A store that refuses to delete some keys."""

    kept: frozenset[str] = frozenset()

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        super().delete([k for k in keys if k not in self.kept])
        return [DeleteFailure(k, "AccessDenied", "locked") for k in keys if k in self.kept]


def test_what_could_not_be_deleted_is_not_purged() -> None:
    store = Stubborn()
    cluster, _ = a_cluster(store)
    source = FakeGarbage()
    source.drop(0, 0, 0, put(store, "a", "b"))
    source.drop(1, 0, 0, put(store, "c", "d"))
    store.kept = frozenset({"b", "d"})
    done = vacuum(cluster, source)
    assert isinstance(done.problem, PartialFailureError)
    assert "2 objects could not be deleted; the first is b: AccessDenied locked (allow s3:Delete" in str(done.problem)
    assert "The rest is done" in str(done.problem)
    assert {k for k in store.objects if "/" not in k} == {"b", "d"}
    assert source.purged_keys == ["a", "c"]
    assert counts(done) == {DROPPED_L1: 2}


def test_what_could_not_be_deleted_keeps_no_later_lot_of_its_unit() -> None:
    """Hazard 46: a legal hold on one object must not stop the rest."""
    store = Stubborn()
    cluster, _ = a_cluster(store)
    source = FakeGarbage(fence_at=9)
    source.drop(0, 0, 0, put(store, "a", "b"))
    source.drop(0, 0, 0, put(store, "c"))
    put(store, key_of(1, "orphan"), key_of(2, "held"))
    store.kept = frozenset({"b", key_of(2, "held")})
    done = vacuum(cluster, source)
    assert isinstance(done.problem, PartialFailureError)
    assert source.purged_keys == ["a", "c"]
    assert counts(done) == {DROPPED_L1: 2, ORPHANED_L1: 1}
    assert source.events[-1] == "scanned"
    assert source.left == [key_of(2, "held")]  # so its topic is not forgotten


def test_where_too_many_orphans_are_left_to_be_named_none_is() -> None:
    store = Stubborn()
    cluster, _ = a_cluster(store)
    source = FakeGarbage(fence_at=9)
    keys = [key_of(1, f"{n:03}") for n in range(FAILURES_KEPT + 1)]
    put(store, *keys)
    store.kept = frozenset(keys)
    vacuum(cluster, source)
    assert (source.events[-1], source.left) == ("scanned", None)


def test_units_that_cannot_be_read_are_reported_after_the_rest() -> None:
    cluster, store = a_cluster()
    source = planted(store)
    source.broken = ["journal 3: damaged"]
    done = vacuum(cluster, source)
    assert counts(done) == EVERY_KIND
    assert "journal 3: damaged" in str(done.problem)


# -- limits and pauses, as for a sweep --------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_a_limit_holds_over_all_kinds_and_a_dry_run_knows_it(most: int) -> None:
    cluster, store = a_cluster()
    source = planted(store)
    dry = vacuum(cluster, source, Vacuum(dry_run=True, max_objects=most))
    before = len(store.objects)
    done = vacuum(cluster, source, Vacuum(max_objects=most, record=False))
    assert dry.deleted == done.deleted
    assert before - len(store.objects) == sum(counts(done).values()) == most
    assert ("scanned" in source.events) == (most > 6)


@pytest.mark.parametrize(
    ("options", "limited_by", "amount"),
    [
        (Vacuum(max_bytes=10 * EVERY - 1), BYTES, (EVERY - 1, 10 * EVERY - 10)),
        (Vacuum(max_bytes=10 * EVERY), "", (EVERY, 10 * EVERY)),
        (Vacuum(max_bytes=45, max_delete_ratio=0.5), BYTES, (4, 40)),
        (Vacuum(max_bytes=65, max_delete_ratio=0.6), BYTES, (6, 60)),  # old records do not count in the share
        (Vacuum(max_objects=5, max_delete_ratio=0.5), RATIO, (5, 50)),
        (Vacuum(max_objects=7, max_delete_ratio=0.6), OBJECTS, (7, 70)),
    ],
)
def test_the_limit_that_ended_a_vacuum_is_on_record(options: Vacuum, limited_by: str, amount: tuple[int, int]) -> None:
    cluster, store = a_cluster()
    source = planted(store)
    source.l1 = Amounts(live_objects=6, dropped_objects=4)
    dry = vacuum(cluster, source, msgspec.structs.replace(options, dry_run=True))
    result = vacuum(cluster, source, options)
    assert dry.deleted == result.deleted
    for r in (dry, result):
        assert (r.limited_by, (r.objects, r.bytes)) == (limited_by, amount)
        assert isinstance(r.problem, SafetyError) == (limited_by == RATIO)
    assert read_summary(store, result.run_id).limited_by == limited_by


@pytest.mark.parametrize(
    ("options", "in_order"),
    [
        (Vacuum(), False),
        (Vacuum(max_objects=9), True),
        (Vacuum(max_bytes=9), True),
        (Vacuum(max_delete_ratio=0.5), True),
    ],
)
def test_orphans_are_searched_for_in_key_order_under_a_limit(options: Vacuum, *, in_order: bool) -> None:
    """The limit then covers the same objects in a dry run and in the run after it."""
    asked = list[int]()

    class Large(FakeGarbage):
        @property
        def objects(self) -> int:
            return 100_000

        def parts(self, prefix: str, count: int) -> Sequence[KeyRange]:
            asked.append(count)
            return super().parts(prefix, count)

    cluster, _ = a_cluster()
    vacuum(cluster, Large(fence_at=9), options)
    assert [count == 1 for count in asked] == [in_order]


def test_no_batch_of_dropped_objects_is_read_after_the_limit() -> None:
    class Watched(FakeGarbage):
        def dropped(self, unit: int, before_ms: int, epoch: int) -> Iterator[list[Deletable]]:
            for batch in super().dropped(unit, before_ms, epoch):
                self.events.append("batch")
                yield batch

    cluster, store = a_cluster()
    source = Watched()
    for name in "abc":
        source.drop(0, 0, 3, put(store, f"l1/dropped/{name}"))
    vacuum(cluster, source, Vacuum(max_objects=1))
    assert source.events.count("batch") == 2  # the second batch shows that the limit leaves objects


@pytest.mark.parametrize(("ratio", "data"), [(0.0, 0), (0.25, 2), (0.5, 5), (0.6, 6), (1.0, 6)])
def test_the_delete_ratio_of_vacuum_counts_only_l1(ratio: float, data: int) -> None:
    """A journal that lost its rows turns live objects into orphans."""
    cluster, store = a_cluster()
    source = planted(store)
    source.l1 = Amounts(live_objects=6, dropped_objects=4)
    dry = vacuum(cluster, source, Vacuum(dry_run=True, max_delete_ratio=ratio))
    result = VacuumRun(cluster, Vacuum(max_delete_ratio=ratio)).run(source)
    assert dry.deleted == result.deleted
    assert result.over_ratio == dry.over_ratio == (data < 6)
    assert isinstance(result.problem, SafetyError) == (data < 6)
    assert result.objects == (data if data < 6 else EVERY)


def test_a_pause_stops_a_run_and_not_a_dry_run() -> None:
    cluster, store = a_cluster()
    source = planted(store)
    set_pause(store, "audit", "ann")
    before = dict(store.objects)
    with pytest.raises(PausedError):
        vacuum(cluster, source)
    dry = vacuum(cluster, source, Vacuum(dry_run=True))
    assert (store.objects, counts(dry)) == (before, EVERY_KIND)
    assert dry.paused is not None


def test_a_stop_ends_the_run_in_good_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l0gc.collect.run, "SEGMENT_OBJECTS", 1)
    cluster, store = a_cluster()
    source = planted(store)
    stop = threading.Event()
    workers = LocalWorkers(cluster, progress=lambda text, **fields: stop.set())
    done = VacuumRun(cluster, workers=workers, stop=stop).run(source)
    assert isinstance(done.problem, StoppedError)
    assert (done.stopped, counts(done), source.purged_keys) == (True, {DROPPED_L1: 1}, ["l1/dropped/a"])
    assert read_summary(store, done.run_id).outcome == "stopped"


def test_an_external_log_has_old_records_alone() -> None:
    cluster, store = a_cluster()
    planted(store)
    done = vacuum(cluster, None)
    assert counts(done) == {k: n for k, n in EVERY_KIND.items() if not k.startswith(("dropped", "orphaned"))}


# -- old records ------------------------------------------------------------------------------------------------------


def test_run_records_expire_by_age_and_number_except_this_runs() -> None:
    store = MemoryStore()
    runs = [run_id(1_700_000_000_000 + 1000 * i, f"{i:08x}") for i in range(6)]
    for run in runs:
        put(store, f"{RUNS}{run}/run.json")
    put(store, f"{RUNS}foreign")

    def old(before: int, keep: int, this: str = "") -> list[str]:
        plan = DeletionPlan(options=Vacuum(keep_runs_s=0), started_ms=1_700_000_000_000 + 1000 * before, run_id=this)
        batches = old_run_records(store, plan, keep)
        return [o.key.split("/")[2] for batch in batches for o in batch]

    assert old(2, 100) == runs[:2]
    assert old(0, 2) == runs[:4]
    assert old(6, 100, runs[3]) == [r for r in runs if r != runs[3]]
    assert old(0, 100) == []


def test_attempts_of_known_jobs_stay_however_old() -> None:
    cluster, store = a_cluster()
    write_attempt(store, Attempt("sweep", 0, ""))
    store.clock.ms += 10 * KEEP_RUNS_MS
    assert counts(vacuum(cluster, None)) == {}
    assert f"{ATTEMPTS}sweep.json" in store.objects
