"""M of l0gc's own journals: what holds it, what does not, and how a restored controller log is detected."""

from __future__ import annotations

import msgspec
import pytest

from l0gc.errors import EpochRegressionError, StoreError, StoreUnreachableError
from l0gc.keys import CONTROLLER_LOG, journal_log
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.summary import JournalTask, read_journal
from l0gc.watermark.pipeline import WatermarkResult, run_pipeline
from l0gc.watermark.publication import read_published
from l0gc.watermark.source import HELD_BACK_SHOWN, IDLE, UNREADABLE, UNRECONCILED
from tests.support.journal import of_topic, reconciled
from tests.support.memory_store import another_process, copy_of, failing, memory_cluster, put_back, store_of


def m_of(cluster: ClusterHandles, *, dry_run: bool = False) -> WatermarkResult:
    return run_pipeline(cluster, JournalSource(cluster), dry_run=dry_run)


def land(cluster: ClusterHandles, topic: Topic, records: dict[int, int], epoch: int | None = None) -> JournalHandle:
    """Land an object at the cluster epoch, or an older one, in the journal of its first partition."""
    journal = cluster.journal(topic.journal_of(min(records)))
    at = cluster.identity().cluster_epoch if epoch is None else epoch
    assert journal.append([of_topic(topic, at, records)]).error is None
    return journal


def tick(cluster: ClusterHandles, times: int = 1) -> int:
    for _ in range(times):
        epoch = cluster.controller.advance()
    return epoch


def slide(cluster: ClusterHandles, *topics: Topic) -> int:
    """Advance the epoch, and the windows of these topics' journals, twice."""
    for _ in range(2):
        epoch = tick(cluster)
        for j in {j for t in topics for j in t.journals}:
            cluster.journal(j).advance(epoch)
    return epoch


def damage(cluster: ClusterHandles, journal: int) -> None:
    """Make the first entry of a journal unreadable."""
    store_of(cluster).put(f"{journal_log(journal)}log/{0:020}", b"damaged")


# -- holders of M -------------------------------------------------------------------------------------------------------


def test_a_topic_that_nothing_has_landed_in_holds_m_below_its_revision() -> None:
    """Hazard 6: a topic without entries in its journal still admits objects from its revision on."""
    cluster = memory_cluster()
    tick(cluster, 3)
    topic, _ = cluster.controller.create_topic("t", 3)
    tick(cluster, 3)
    result = m_of(cluster)
    assert (result.watermark, result.partitions) == (topic.revision - 1, 3)
    assert [(h.name, h.kind) for h in result.held_back_by] == [(f"t/{p}", IDLE) for p in range(3)]
    assert "the window [4, 4] of its journal may still take epoch 4" in result.held_back_by[0].reason


def test_m_follows_the_window_and_never_the_newest_epoch_of_it() -> None:
    """Hazard 1: a straggler at the previous epoch may still land."""
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("t", 2)
    newest = slide(cluster, topic)
    assert m_of(cluster).watermark == newest - 2
    land(cluster, topic, {0: 1}, newest - 1)
    assert m_of(cluster).watermark == newest - 2


def test_what_is_not_in_l1_holds_m_until_it_is() -> None:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("t", 3)
    at = tick(cluster)
    journal = land(cluster, topic, {1: 5})
    newest = slide(cluster, topic)
    held = m_of(cluster)
    assert (held.watermark, [h.name for h in held.held_back_by]) == (at - 1, ["t/1"])
    assert (held.held_back_by[0].kind, held.held_back_by[0].unreconciled_records) == (UNRECONCILED, 5)
    assert held.held_back_by[0].key.startswith("level_zero/data/")
    assert held.held_back_by[0].reason == f"5 unreconciled records from epoch {at} on (l0gc reconcile)"
    state = journal.catch_up()
    journal.land(reconciled(state, {1: 4}, revision=topic.revision, epoch=newest))
    assert m_of(cluster).watermark == newest - 2


def test_one_idle_journal_of_several_holds_m() -> None:
    cluster = memory_cluster()
    busy, _ = cluster.controller.create_topic("busy", 2)
    idle, _ = cluster.controller.create_topic("idle", 2)
    assert busy.journals != idle.journals
    slide(cluster, busy)
    result = m_of(cluster)
    assert (result.watermark, {h.topic for h in result.held_back_by}) == (idle.revision - 1, {"idle"})


def test_a_deleted_topic_holds_nothing_and_neither_do_all_of_them() -> None:
    """Hazard 6: a deleted topic's garbage must not stay for ever."""
    cluster = memory_cluster()
    topics = [cluster.controller.create_topic(name, 1)[0] for name in ("a", "b")]
    land(cluster, topics[0], {0: 1})
    kept = tick(cluster)
    cluster.controller.delete_topic("a")
    assert m_of(cluster).watermark == topics[1].revision - 1 < kept
    cluster.controller.delete_topic("b")
    result = m_of(cluster)
    assert (result.watermark, result.partitions) == (result.cluster_epoch, 0)


def test_a_closed_topic_still_listed_holds_nothing() -> None:
    cluster = memory_cluster()
    closed, _ = cluster.controller.create_topic("closed", 1)
    land(cluster, closed, {0: 1})
    assert cluster.journal(closed.journals[0]).close(closed.revision, closed.topic_id)
    epoch = tick(cluster, 3)
    assert m_of(cluster).watermark == epoch


def test_a_topic_created_again_under_its_old_name_needs_its_own_revision() -> None:
    """Hazard 6: the records of the first topic do not belong to the second."""
    cluster = memory_cluster()
    first, _ = cluster.controller.create_topic("t", 1)
    land(cluster, first, {0: 1})
    tick(cluster, 3)
    cluster.controller.delete_topic("t")
    again, _ = cluster.controller.create_topic("t", 1)
    assert m_of(cluster).watermark == again.revision - 1


def test_a_topic_over_several_journals_is_counted_once() -> None:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("t", 10, 3)
    slide(cluster, topic)
    (partition_range,) = [r for r in topic.partition_ranges() if r.journal == topic.journals[1]]
    at = tick(cluster)
    land(cluster, topic, {partition_range.first: 1})
    newest = slide(cluster, topic)
    result = m_of(cluster)
    assert (result.watermark, result.partitions, result.cluster_epoch) == (at - 1, 10, newest)
    assert [h.partition for h in result.held_back_by] == [partition_range.first]


# -- journals that cannot be read -----------------------------------------------------------------------------------------


def test_an_unreadable_journal_holds_m_below_its_oldest_topic() -> None:
    """Hazard 6: an unreadable journal may hold records from its oldest topic's revision on."""
    cluster = memory_cluster()
    tick(cluster, 2)
    topics = [cluster.controller.create_topic(name, 1, 1)[0] for name in ("a", "b")]
    slide(cluster, *topics)
    damage(memory_cluster(store_of(cluster), bootstrap=False), topics[1].journals[0])
    result = m_of(memory_cluster(store_of(cluster), bootstrap=False))
    assert (result.watermark, result.partitions) == (topics[1].revision - 1, 2)
    assert [(h.name, h.kind) for h in result.held_back_by] == [("b/0", UNREADABLE)]
    (broken,) = result.unreadable
    assert broken.unit == f"journal {topics[1].journals[0]}"
    assert "log/00000000000000000000" in broken.error
    assert broken.error in result.held_back_by[0].reason


def test_the_oldest_topic_of_an_unreadable_journal_holds_m() -> None:
    """Hazard 6: an unreadable journal may hold records from its oldest topic's revision on."""
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, journals=1)
    old, new = (cluster.controller.create_topic(name, 2)[0] for name in ("old", "new"))
    slide(cluster, old)
    damage(cluster, 0)
    result = m_of(memory_cluster(store_of(cluster), bootstrap=False))
    assert (result.watermark, result.partitions) == (old.revision - 1, 4)
    assert new.revision > old.revision
    assert [h.name for h in result.held_back_by] == ["old/0"]


def test_an_unreadable_journal_never_lowers_m() -> None:
    """Hazard 15: M(p) never goes down, so the journal needs nothing at or below the published M."""
    cluster = memory_cluster()
    topics = [cluster.controller.create_topic(name, 1, 1)[0] for name in ("a", "b")]
    newest = slide(cluster, *topics)
    assert m_of(cluster).watermark == newest - 2
    slide(cluster, *topics)
    damage(cluster, topics[0].journals[0])
    result = m_of(memory_cluster(store_of(cluster), bootstrap=False))
    assert (result.watermark, result.previous_watermark, len(result.unreadable)) == (newest - 2, newest - 2, 1)


def test_a_refused_journal_holds_m_and_a_lost_store_ends_the_run() -> None:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("t", 1)
    slide(cluster, topic)
    log = journal_log(topic.journals[0])
    store_of(cluster).fault = failing(StoreError("no"), key=log)
    assert m_of(cluster).watermark == topic.revision - 1
    store_of(cluster).fault = failing(StoreUnreachableError("no"), key=log)
    with pytest.raises(StoreUnreachableError):
        m_of(cluster)


def test_an_unused_unreadable_journal_holds_m_in_place() -> None:
    """Hazard 10: the journal may hold a topic that the controller has forgotten."""
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("t", 1)
    newest = slide(cluster, topic)
    assert m_of(cluster).watermark == newest - 2
    slide(cluster, topic)
    damage(cluster, 4)
    result = m_of(cluster)
    assert (result.watermark, [u.unit for u in result.unreadable]) == (newest - 2, ["journal 4"])
    assert (result.held_back_by[0].name, result.held_back_by[0].partition) == ("", -1)


# -- a controller log that was set back -----------------------------------------------------------------------------------


def restored(cluster: ClusterHandles, before: dict[str, bytes]) -> ClusterHandles:
    """Restore the controller log to a copy, and open the cluster in another process."""
    put_back(store_of(cluster), CONTROLLER_LOG, before)
    return another_process(cluster)


def controller_log(cluster: ClusterHandles) -> dict[str, bytes]:
    return copy_of(store_of(cluster), CONTROLLER_LOG)


def test_a_journal_that_has_seen_a_later_epoch_stops_everything() -> None:
    """Hazard 10: only an old backup of the controller log explains a later epoch in a journal."""
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("t", 1)
    before = controller_log(cluster)
    seen = slide(cluster, topic)
    after = restored(cluster, before)
    with pytest.raises(
        EpochRegressionError, match=rf"journal {topic.journals[0]} is at epoch {seen}, above the cluster"
    ):
        m_of(after)
    assert read_published(after.store, after.identity().cluster_id)[0] is None


def test_a_topic_of_a_later_revision_stops_everything() -> None:
    """Hazard 10: the topic was deleted later, and its journal remembers it."""
    cluster = memory_cluster()
    before = controller_log(cluster)
    tick(cluster, 3)
    topic, _ = cluster.controller.create_topic("t", 1)
    cluster.journal(topic.journals[0]).close(topic.revision)
    with pytest.raises(EpochRegressionError, match="a topic in journal 0 is at epoch 4, above the cluster epoch 0"):
        m_of(restored(cluster, before))


@pytest.mark.parametrize("used", [True, False], ids=["its journal is in use", "its journal is not"])
def test_a_topic_that_the_controller_never_knew_stops_everything(used: bool) -> None:
    """Hazard 10: the epoch has caught up with the data, so M would release the lost topic's objects."""
    cluster = memory_cluster()
    cluster.controller.create_topic("kept", 1)
    before = controller_log(cluster)
    lost, _ = cluster.controller.create_topic("lost", 5 if used else 1, 5 if used else 1)
    land(cluster, lost, {0: 1})
    after = restored(cluster, before)
    after.controller.advance_above(8)
    with pytest.raises(
        EpochRegressionError, match=rf"topic with revision {lost.revision} and id {lost.topic_id}, which"
    ):
        m_of(after)
    assert read_published(after.store, after.identity().cluster_id)[0] is None


def test_another_topic_with_the_same_revision_is_distinguished_by_its_id() -> None:
    """Hazard 10: a restored log assigns a revision a second time."""
    cluster = memory_cluster()
    before = controller_log(cluster)
    first, _ = cluster.controller.create_topic("t", 1)
    land(cluster, first, {0: 1})
    after = restored(cluster, before)
    again, _ = after.controller.create_topic("t", 1)
    assert (again.revision, again.journals) == (first.revision, first.journals)
    with pytest.raises(EpochRegressionError, match=f"id {first.topic_id}, which the controller log does not list"):
        m_of(after)


def test_a_topic_changed_meanwhile_does_not_indicate_an_old_backup() -> None:
    """Hazard 5: another process creates and deletes topics between the two readings."""
    cluster = memory_cluster()
    old, _ = cluster.controller.create_topic("old", 1)
    land(cluster, old, {0: 1})
    other = memory_cluster(store_of(cluster), seed=2, bootstrap=False)

    class Meanwhile(LocalWorkers[ClusterHandles]):
        def map(self, work, items):  # type: ignore[no-untyped-def]
            new, _ = other.controller.create_topic("new", 1)
            land(other, new, {0: 1})
            other.controller.delete_topic("old")
            return super().map(work, items)

    source = JournalSource(cluster, Meanwhile(cluster))
    result = run_pipeline(cluster, source)
    assert (result.watermark, result.cluster_epoch) == (old.revision - 1, old.revision)


def test_a_deleted_topic_that_is_not_closed_yet_is_known() -> None:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("t", 1)
    land(cluster, topic, {0: 1})
    cluster.controller.delete_topic("t")
    assert m_of(cluster).watermark == cluster.identity().cluster_epoch


# -- growth -------------------------------------------------------------------------------------------------------


def test_a_summary_does_not_grow_with_the_partitions() -> None:
    cluster = memory_cluster()
    topic, _ = cluster.controller.create_topic("t", 100_000)
    land(cluster, topic, dict.fromkeys(range(0, 100000, 7), 1))
    slide(cluster, topic)
    task = JournalTask(topic.journals[0], [(topic, topic.partition_ranges()[0])], -1)
    reading = read_journal(cluster.store, msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=JournalTask))
    assert sum(reading[0].gc_epochs.values()) == 100_000
    assert len(reading[0].lowest) == HELD_BACK_SHOWN
    assert len(msgspec.msgpack.encode(reading)) < 5_000


def test_a_run_costs_few_requests_per_journal() -> None:
    cluster = memory_cluster()
    topics = [cluster.controller.create_topic(f"t{i}", 50_000)[0] for i in range(4)]
    slide(cluster, *topics)
    process = memory_cluster(store_of(cluster), seed=3, bootstrap=False)
    store_of(cluster).requests.clear()
    m_of(process, dry_run=True)
    assert store_of(cluster).requests.total() <= 5 * 2 + 4 * 3 + 20
