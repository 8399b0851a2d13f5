"""`published.json`: only ever raised, only by this cluster, and only up to its epoch."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l0gc.collect.sweep import SweepRun
from l0gc.collect.vacuum import VacuumRun
from l0gc.epoch import NO_WATERMARK
from l0gc.errors import (
    AmbiguousWriteError,
    ClusterMismatchError,
    CorruptObjectError,
    EpochRegressionError,
    LostWatermarkError,
    PinnedSinceError,
    PreconditionFailedError,
    SafetyError,
    SetBackError,
    StoreError,
    UsageError,
)
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_COPY, PUBLISHED_WATERMARK, journal_log
from l0gc.operations import Sweep
from l0gc.runtime import Runtime
from l0gc.storage.entry import Place
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.pins import create_pin
from l0gc.watermark.publication import (
    PublishedWatermark,
    check_set_back,
    decode_published,
    encode_published,
    publish,
    read_published,
    refuse_if_behind,
    refuse_if_set_back,
    remembered,
    replace_unusable,
    require_seen,
    reserve_numbers,
    watermark_at,
    watermark_of,
    what_is_lost,
)
from l0gc.watermark.source import LogEnd, UnitSummary
from tests.support.memory_store import (
    Call,
    MemoryStore,
    another_process,
    copy_of,
    external_cluster,
    failing,
    lose_reply,
    memory_cluster,
    once,
    publish_m,
    put_back,
    store_of,
    topic_in_memory,
)
from tests.support.reconcile import put as put_records
from tests.support.topics import create_topic
from tests.support.verify import scan_and_publish

BODY = encode_published(PublishedWatermark("c", 5, 100, 0))


def a_watermark(watermark: int, cluster_epoch: int = 100, cluster_id: str = "c") -> PublishedWatermark:
    return PublishedWatermark(cluster_id, watermark, cluster_epoch, MemoryStore().clock.ms)


def put(store: MemoryStore, new: PublishedWatermark) -> PublishedWatermark | None:
    return publish(store, Runtime(store.clock, random.Random(0)), new)


def published(store: MemoryStore) -> int:
    return watermark_of(read_published(store, "c")[0])


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_nothing_published_is_the_watermark_that_deletes_nothing(store: MemoryStore) -> None:
    assert read_published(store, "c") == (None, "")
    assert published(store) == NO_WATERMARK


def test_a_watermark_is_raised_and_may_be_published_again(store: MemoryStore) -> None:
    assert put(store, a_watermark(5)) is None
    assert put(store, a_watermark(5)) == a_watermark(5)
    assert watermark_of(put(store, a_watermark(7))) == 5
    assert published(store) == 7


def test_a_lower_watermark_is_refused(store: MemoryStore) -> None:
    """Hazard 15: a slower run must not lower M."""
    put(store, a_watermark(7))
    with pytest.raises(SafetyError, match="computed M = 5, but M = 7 is published, and it never goes down"):
        put(store, a_watermark(5))
    assert published(store) == 7


def test_a_run_unaware_of_the_newest_pin_is_refused(
    store: MemoryStore,
) -> None:
    """Hazard 36: its M may pass the epochs that the pin holds."""
    cluster = memory_cluster(store)
    cluster_id = cluster.identity().cluster_id
    put(store, a_watermark(3, 10, cluster_id))
    require_seen(cluster, cluster_id, 8)
    require_seen(cluster, cluster_id, 7)  # a slower pin does not lower it
    now, _ = read_published(store, cluster_id)
    assert now == msgspec.structs.replace(a_watermark(3, 10, cluster_id), pinned=8, history=[(3, store.clock.ms)])
    runtime = Runtime(store.clock, random.Random(0))
    publish(store, runtime, a_watermark(3, 11, cluster_id), pins_as_of=8)
    for seen in (-1, 7):
        with pytest.raises(PinnedSinceError, match=f"created at epoch 8, and the pins were read at epoch {seen}"):
            publish(store, runtime, a_watermark(9, 11, cluster_id), pins_as_of=seen)
    assert watermark_of(read_published(store, cluster_id)[0]) == 3


def test_a_pin_shows_a_controller_log_that_went_back(store: MemoryStore) -> None:
    """Hazard 10: the pin's entry is newer than the published cluster epoch."""
    cluster = memory_cluster(store)
    cluster_id = cluster.identity().cluster_id
    put(store, a_watermark(0, 0, cluster_id))
    require_seen(cluster, cluster_id, 5)
    with pytest.raises(EpochRegressionError):
        refuse_if_behind(cluster)


def test_a_slower_run_does_not_lower_what_a_faster_one_published_meanwhile(store: MemoryStore) -> None:
    """Hazard 15: the faster run publishes between the slower one's read and write."""
    put(store, a_watermark(3))
    store.fault = once(lambda: put(store, a_watermark(7)), "put_if_match")
    with pytest.raises(SafetyError, match="never goes down"):
        put(store, a_watermark(5))
    assert published(store) == 7


@pytest.mark.parametrize("began_at", [2, 3])
def test_a_run_gives_way_to_an_m_published_since_it_began(store: MemoryStore, began_at: int) -> None:
    put(store, a_watermark(7))
    assert publish(store, Runtime(store.clock), a_watermark(3), began_at=began_at) == a_watermark(7)
    with pytest.raises(SafetyError, match="never goes down"):
        publish(store, Runtime(store.clock), a_watermark(3), began_at=4)
    assert published(store) == 7


def test_of_two_first_publications_the_higher_stays(store: MemoryStore) -> None:
    store.fault = once(lambda: put(store, a_watermark(2)), "put_if_absent")
    assert put(store, a_watermark(5)) == a_watermark(2)
    assert published(store) == 5


def test_a_published_watermark_above_the_cluster_epoch_is_refused(store: MemoryStore) -> None:
    """Hazard 10: the cluster has forgotten epochs whose objects a sweep deleted."""
    put(store, a_watermark(50))
    with pytest.raises(EpochRegressionError, match=r"published\.json is at epoch 50, above the cluster epoch 9"):
        put(store, a_watermark(5, cluster_epoch=9))
    assert published(store) == 50


def test_another_clusters_watermark_is_neither_read_nor_replaced(store: MemoryStore) -> None:
    """Hazard 11: M of one cluster must not release another cluster's objects."""
    put(store, a_watermark(7, cluster_id="d"))
    before = store.objects[PUBLISHED_WATERMARK].body
    with pytest.raises(ClusterMismatchError, match=r"published\.json belongs to cluster d"):
        read_published(store, "c")
    with pytest.raises(ClusterMismatchError):
        put(store, a_watermark(9))
    assert store.objects[PUBLISHED_WATERMARK].body == before


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b'{"watermark":9}', b'{"cluster_id":"c","watermark":"9"}', b"9", BODY.replace(b":5,", b":6,")],
)
def test_a_watermark_that_cannot_be_read_is_refused_with_its_remedy(store: MemoryStore, body: bytes) -> None:
    store.put(PUBLISHED_WATERMARK, body)
    for action in (lambda: read_published(store, "c"), lambda: put(store, a_watermark(9))):
        with pytest.raises(
            CorruptObjectError, match=r"published\.json cannot be read .*run l0gc compute-watermark --accept-lost"
        ):
            action()
    assert store.objects[PUBLISHED_WATERMARK].body == body


def test_a_publication_without_a_reply_is_looked_up(store: MemoryStore) -> None:
    put(store, a_watermark(3))
    store.fault = lose_reply(PUBLISHED_WATERMARK)
    assert put(store, a_watermark(5)) == a_watermark(3)  # the previous M, not its own
    assert published(store) == 5


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PreconditionFailedError("412"), "changed during each of 20 attempts to write it"),
        (AmbiguousWriteError("429"), "could not be written in 20 attempts: 429"),
    ],
)
def test_a_publication_that_never_lands_gives_up_with_the_cause(
    store: MemoryStore, error: StoreError, says: str
) -> None:
    put(store, a_watermark(1))
    store.fault = failing(error, "put_if_match")
    with pytest.raises(StoreError, match=says):
        put(store, a_watermark(5))
    assert published(store) == 1


Run = tuple[int, list[tuple[int, int]]]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=2)), max_size=5
    )
)
def test_what_is_published_never_goes_down_however_publishers_interleave(runs: list[Run]) -> None:
    """Hazard 15: other runs may begin and end at any store call of a run."""
    store = MemoryStore()
    history = [NO_WATERMARK]
    plan: dict[int, int] = {}
    calls = 0

    def attempt(watermark: int) -> None:
        try:
            put(store, a_watermark(watermark))
        except SafetyError as e:
            if history[-1] <= watermark or "never goes down" not in str(e):
                raise AssertionError(e) from e
        else:
            assert max(history) >= watermark

    def fault(call: Call) -> None:
        nonlocal calls
        if call.when == "after":
            if call.kind.startswith("put_if"):
                history.append(decode_published(store.objects[PUBLISHED_WATERMARK].body).watermark)
            return
        calls += 1
        other = plan.pop(calls, None)
        if other is not None:
            attempt(other)

    store.fault = fault
    for watermark, others in runs:
        calls = 0
        plan.clear()
        plan.update(others)
        attempt(watermark)
    assert history == sorted(history)


def test_a_publication_that_saw_an_older_epoch_than_is_published_reads_again(store: MemoryStore) -> None:
    """Hazard 10: a faster run may have seen a newer epoch. If the epoch read again is older, the log was set back."""
    put(store, a_watermark(5, cluster_epoch=100))
    runtime = Runtime(store.clock, random.Random(0))
    for now in (99, 100):
        slower = a_watermark(6, cluster_epoch=90)
        if now < 100:
            with pytest.raises(EpochRegressionError, match=r"the cluster epoch in .* is at epoch 100, above .* 99"):
                publish(store, runtime, slower, epoch_now=lambda: 99)
        else:
            publish(store, runtime, slower, epoch_now=lambda: 100)
    found = read_published(store, "c")[0]
    assert found is not None
    assert (found.watermark, found.cluster_epoch) == (6, 100)


# -- checks before an admission or a deletion ---------------------------------------------------------------------------


def with_published(watermark: int, cluster_epoch: int, *, epoch: int) -> ClusterHandles:
    """Create a cluster at `epoch` with this published M and cluster epoch."""
    cluster = memory_cluster()
    for _ in range(epoch):
        cluster.controller.advance()
    stored = PublishedWatermark(cluster.identity().cluster_id, watermark, cluster_epoch, 0)
    cluster.store.put(PUBLISHED_WATERMARK, encode_published(stored))
    return cluster


@pytest.mark.parametrize(("watermark", "published_epoch"), [(7, 9), (0, 9)], ids=["by M", "by the epoch alone"])
def test_a_restored_controller_admits_nothing_and_stays_unchanged(watermark: int, published_epoch: int) -> None:
    """Hazard 10: the controller would assign epochs twice, and a sweep would delete objects accepted at them."""
    cluster = with_published(watermark, published_epoch, epoch=1)
    store = cluster.store
    assert isinstance(store, MemoryStore)
    before = {k: o.body for k, o in store.objects.items()}
    what = "the watermark in" if watermark > 1 else "the cluster epoch in"
    for change in (
        lambda: create_topic(cluster, "u", 1),
        lambda: cluster.controller.init_producer("p"),
        cluster.controller.advance,
        lambda: refuse_if_behind(cluster),
        lambda: SweepRun(cluster).run(),
    ):
        with pytest.raises(EpochRegressionError, match=f"{what} .*, above the cluster epoch 1"):
            change()
    assert {k: o.body for k, o in store.objects.items()} == before
    assert cluster.controller.advance_above(published_epoch - 1) == published_epoch
    assert create_topic(cluster, "u", 1).revision == published_epoch + 1


def test_a_publication_after_the_snapshot_is_not_an_old_backup() -> None:
    cluster = with_published(0, 1, epoch=1)
    process = another_process(cluster)
    process.identity()
    publishes = once(lambda: publish_m(cluster, 1, cluster.controller.advance()), "get", PUBLISHED_WATERMARK)
    store_of(cluster).fault = publishes
    identity, stored = refuse_if_behind(process)
    assert stored is not None
    assert (identity.cluster_epoch, stored.cluster_epoch) == (2, 2)


def test_of_an_external_log_the_published_epoch_is_all_that_is_known() -> None:
    cluster = external_cluster()
    stored = PublishedWatermark(cluster.identity().cluster_id, 7, 9, 0)
    cluster.store.put(PUBLISHED_WATERMARK, encode_published(stored))
    assert refuse_if_behind(cluster)[0].cluster_epoch == 9


# -- the ends of logs (hazard 38) -----------------------------------------------------------------------------------------


def at(accepted: int, offset: int) -> LogEnd:
    return accepted, Place(offset, f"{accepted}-{offset}")


def ending(**ends: tuple[int, int]) -> PublishedWatermark:
    return msgspec.structs.replace(a_watermark(5), ends={unit: at(*end) for unit, end in ends.items()})


def test_the_end_of_a_journal_never_goes_down() -> None:
    """A slower run read one journal before a faster run did, and could not read another."""
    store = MemoryStore()
    put(store, ending(a=(0, 7), b=(1, 2), c=(0, 3)))
    put(store, ending(a=(0, 6), b=(0, 90), d=(0, 0)))
    found = read_published(store, "c")[0]
    assert found is not None
    assert found.ends == {"a": at(0, 7), "b": at(1, 2), "c": at(0, 3), "d": at(0, 0)}


def unit(end: tuple[int, int] | None, *gc_epochs: int) -> UnitSummary:
    return UnitSummary(
        unit="a", gc_epochs=dict.fromkeys(gc_epochs, 1), lowest=[], end=None if end is None else at(*end)
    )


@pytest.mark.parametrize(
    "found",
    [unit((0, 7), 5), unit((0, 8), 5, 9), unit((0, 7)), unit((1, 0), 5), unit((1, 0), 3), unit(None, 3)],
)
def test_a_unit_that_was_not_set_back_is_never_refused(found: UnitSummary) -> None:
    """A unit that was set back and accepted may hold what M has released, until those records are in L1."""
    check_set_back(ending(a=(0, 7)), found)
    check_set_back(None, found)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (unit((0, 6), 9), "a ended at offset 6, and ended at offset 7 when it was read before: "),
        (unit((0, -1)), "a was empty, and ended at offset 7 when it was read before: "),
        (unit((0, 8), 9, 4), "a may still need epoch 5, though M = 5 is published: "),
    ],
)
def test_a_unit_that_was_set_back_is_refused(found: UnitSummary, said: str) -> None:
    with pytest.raises(SetBackError) as e:
        check_set_back(ending(a=(0, 7)), found)
    assert str(e.value).startswith(said)


def test_an_accepted_units_unmet_needs_stop_everything_by_m() -> None:
    with pytest.raises(SetBackError, match="run l0gc reconcile first"):
        check_set_back(ending(a=(0, 7)), unit((1, 0), 4), by_m=True)
    check_set_back(ending(a=(0, 7)), unit((1, 0), 5), by_m=True)


def test_the_log_of_before_an_acceptance_is_refused() -> None:
    with pytest.raises(SetBackError, match="a ended at offset 99, and ended at offset 2 after it was accepted 1 times"):
        check_set_back(ending(a=(1, 2)), unit((0, 99), 9))


# -- earlier values of M ------------------------------------------------------------------------------------------------

MINUTE_MS = 60_000


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500)), min_size=1, max_size=300))
def test_the_graced_m_was_published_then(steps: list[tuple[int, int]]) -> None:
    """Each step raises M by its first number, after a pause of its second number in minutes."""
    current = PublishedWatermark("c", 0, 9, 0)
    all_of_them = [(0, 0)]
    for more, minutes in steps:
        m, at_ms = current.watermark + more, current.published_at_ms + minutes * MINUTE_MS
        current = PublishedWatermark("c", m, 9, at_ms, history=remembered(current, at_ms))
        all_of_them.append((m, at_ms))
    now_ms = current.published_at_ms
    for age_ms in (0, 5 * MINUTE_MS, 60 * MINUTE_MS, 24 * 60 * MINUTE_MS):
        found = watermark_at(current, now_ms - age_ms)
        assert found <= max((m for m, at_ms in all_of_them if at_ms <= now_ms - age_ms), default=NO_WATERMARK)
    for m, at_ms in all_of_them:
        age_ms = now_ms - at_ms
        assert watermark_at(current, at_ms + max(10 * MINUTE_MS, age_ms // 8)) >= m
    assert len(current.history) < 120


def test_the_history_of_m_stays_small_however_often_it_is_published() -> None:
    current = PublishedWatermark("c", 0, 10_000, 0)
    for n in range(1, 20_000):
        at_ms = n * 2 * MINUTE_MS
        current = PublishedWatermark("c", n, 20_000, at_ms, history=remembered(current, at_ms))
    assert len(current.history) < 100
    day_ago = watermark_at(current, current.published_at_ms - 24 * 60 * MINUTE_MS)
    assert current.watermark - 24 * 30 * 9 // 7 <= day_ago <= current.watermark - 24 * 30


# -- a published.json that is lost ----------------------------------------------------------------------------------------


def a_loss() -> tuple[ClusterHandles, PublishedWatermark]:
    """Create a cluster with an object at or below M, and delete its `published.json`; return the lost content, too."""
    cluster = memory_cluster()
    for _ in range(6):
        cluster.controller.advance()
    cluster.store.put(cluster.identity().layout.format(1, 3, str(UUID(int=3))), b"x")
    cluster.controller.create_topic("events", 1)
    scan_and_publish(cluster)
    held, _ = read_published(cluster.store, cluster.identity().cluster_id)
    assert held is not None
    cluster.store.delete([PUBLISHED_WATERMARK])
    return cluster, held


DELETES: dict[str, Callable[[ClusterHandles], object]] = {
    "sweep": lambda cluster: SweepRun(cluster).run(),
    "sweep --dry-run": lambda cluster: SweepRun(cluster, Sweep(dry_run=True)).run(),
    "vacuum": lambda cluster: VacuumRun(cluster).run(JournalGarbage(cluster)),
    "compute-watermark": scan_and_publish,
    "pin create": lambda cluster: create_pin(cluster, "backup", 60_000, level_one=False, why=""),
}


@pytest.mark.parametrize("what", DELETES)
def test_nothing_is_deleted_or_published_while_what_was_published_is_lost(what: str) -> None:
    """Hazard 38: the lost object showed whether a journal was set back."""
    cluster, _ = a_loss()
    before = {key for key in store_of(cluster).objects if not key.startswith(CONTROLLER_LOG)}
    with pytest.raises(LostWatermarkError, match=r"is lost\. Its copy of .* has M = 6 and where 6 logs ended"):
        DELETES[what](another_process(cluster))
    assert {key for key in store_of(cluster).objects if not key.startswith(CONTROLLER_LOG)} == before


def test_an_accepted_lost_watermark_is_computed_from_its_whole_copy() -> None:
    cluster, held = a_loss()
    scan_and_publish(cluster, accept_lost=True)
    now, _ = read_published(cluster.store, held.cluster_id)
    assert now is not None
    assert (now.watermark, now.ends, now.history) == (held.watermark, held.ends, [(6, held.published_at_ms)])
    assert SweepRun(cluster).run().deleted == 1


def test_a_lost_watermarks_copy_refuses_a_journal_set_back() -> None:
    cluster = topic_in_memory()
    put_records(cluster, "events", {0: [b"a"]})
    copy = copy_of(store_of(cluster), journal_log(0))
    put_records(cluster, "events", {0: [b"b"]})
    scan_and_publish(cluster)
    cluster.store.delete([PUBLISHED_WATERMARK])
    put_back(store_of(cluster), journal_log(0), copy)
    for accept_lost in (False, True):
        with pytest.raises(SetBackError if accept_lost else LostWatermarkError):
            scan_and_publish(another_process(cluster), accept_lost=accept_lost)
    with pytest.raises(SetBackError, match="journal 0 ended at offset"):
        refuse_if_set_back(another_process(cluster))


def test_a_copy_follows_each_publication_also_one_whose_reply_was_lost(store: MemoryStore) -> None:
    put(store, a_watermark(5))
    store.fault = lose_reply(PUBLISHED_WATERMARK)
    put(store, a_watermark(7))
    assert decode_published(store.objects[PUBLISHED_COPY].body, PUBLISHED_COPY).watermark == 7


def foreign(cluster: ClusterHandles) -> None:
    """Replace the file and its copy by another cluster's."""
    for key in (PUBLISHED_WATERMARK, PUBLISHED_COPY):
        cluster.store.put(key, encode_published(a_watermark(9), key))


def damage(cluster: ClusterHandles, *keys: str) -> None:
    for key in keys:
        cluster.store.put(key, b"nonsense")


UNUSABLE: dict[str, tuple[Callable[[ClusterHandles], None], str, int]] = {
    "damaged": (lambda cluster: damage(cluster, PUBLISHED_WATERMARK), "cannot be read .* M = 6 and where", 6),
    "both damaged": (lambda cluster: damage(cluster, PUBLISHED_WATERMARK, PUBLISHED_COPY), "no usable copy exists", -1),
    "gone, and a damaged copy": (lambda cluster: damage(cluster, PUBLISHED_COPY), "no usable copy exists", -1),
    "another cluster's": (foreign, "belongs to cluster c,.*no usable copy exists", -1),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_watermark_is_replaced_once_the_loss_is_accepted(case: str) -> None:
    cluster, held = a_loss()
    make, told, m = UNUSABLE[case]
    make(cluster)
    assert re.search(told, what_is_lost(cluster)), what_is_lost(cluster)
    replace_unusable(cluster)
    now, etag = read_published(cluster.store, held.cluster_id)
    assert etag
    assert watermark_of(now) == m
    scan_and_publish(cluster)
    assert watermark_of(read_published(cluster.store, held.cluster_id)[0]) == held.watermark


def test_a_watermark_that_was_restored_meanwhile_stays() -> None:
    cluster, held = a_loss()
    damage(cluster, PUBLISHED_WATERMARK)
    restored = encode_published(held)
    store_of(cluster).fault = once(lambda: store_of(cluster).put(PUBLISHED_WATERMARK, restored), "get", PUBLISHED_COPY)
    with pytest.raises(StoreError, match="changed since it was read"):
        replace_unusable(cluster)
    assert cluster.store.get(PUBLISHED_WATERMARK).body == restored


def test_no_loss_is_accepted_while_published_json_is_there() -> None:
    cluster = memory_cluster()
    assert what_is_lost(cluster) == ""  # no loss: a new cluster has published nothing
    publish_m(cluster, 0)
    with pytest.raises(UsageError, match="exists"):
        what_is_lost(cluster)
    cluster.store.delete([PUBLISHED_WATERMARK])
    assert "is lost" in what_is_lost(cluster)


def test_a_first_publication_between_two_reads_is_not_a_loss(store: MemoryStore) -> None:
    store.fault = once(lambda: put(store, a_watermark(5)), "get", PUBLISHED_COPY)
    published, etag = read_published(store, "c")
    assert (watermark_of(published), etag) == (5, store.objects[PUBLISHED_WATERMARK].etag)


def test_a_new_cluster_has_lost_nothing() -> None:
    cluster = memory_cluster()
    assert SweepRun(cluster).run().deleted == 0
    scan_and_publish(cluster)


def test_each_of_two_reserved_numbers_only_grows() -> None:
    cluster = memory_cluster()
    for wanted in ((3, 0), (1, 5)):
        reserve_numbers(cluster, wanted)
        scan_and_publish(cluster)
    published, _ = read_published(cluster.store, cluster.identity().cluster_id)
    assert published is not None
    assert published.given == (3, 5)
