"""A process's commits to L1: which parts are refused at the offset where they land, and which parts still land."""

from __future__ import annotations

import numpy as np
import pytest

from l0gc.errors import SafetyError
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.journal import handle as journal_handle
from l0gc.streamlog.journal.edits import ANOTHER_TOPIC
from l0gc.streamlog.journal.entries import EXPIRE, MERGE, Edit
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.rows import NAME
from tests.support.journal import edit, journal_of, l1_row, l1_rows, of_topic, reconciled, starts_of
from tests.support.memory_store import MemoryStore, memory_cluster


def lifted(partitions: int = 2, objects: int = 3) -> tuple[ClusterHandles, Topic, JournalHandle]:
    """Create a journal whose partitions have L1 objects of ten records each."""
    cluster, topic, handle = journal_of(partitions)
    epoch = cluster.controller.epoch()
    for n in range(objects):
        records = dict.fromkeys(range(partitions), 10)
        assert handle.append([of_topic(topic, epoch, records, key=f"o{n}")]).error is None
        upto = dict.fromkeys(range(partitions), 10 * n + 9)
        entry = reconciled(handle.state, upto, revision=topic.revision, epoch=epoch)
        assert handle.land(entry).refused == {}
    return cluster, topic, handle


def another(cluster: ClusterHandles) -> JournalHandle:
    assert isinstance(cluster.store, MemoryStore)
    return memory_cluster(cluster.store, seed=9, bootstrap=False).journal(0)


def merge_of(topic: Topic, handle: JournalHandle, *partitions: int, name: int = 1000) -> Edit:
    known = handle.state.topics[topic.revision]
    rows = np.concatenate([known.l1_of(p)[:2] for p in partitions])
    epoch = int(rows["epoch"].max())
    files = l1_rows(*(l1_row(p, 0, 19, epoch=epoch, name=name + p) for p in partitions))
    return edit(MERGE, epoch, topic.revision, topic.topic_id, removed=rows, added=files)


def expiry(topic: Topic, starts: dict[int, int], topic_id: str = "") -> Edit:
    return edit(EXPIRE, 0, topic.revision, topic_id or topic.topic_id, starts=starts_of(starts))


def test_a_repeated_expiry_changes_nothing() -> None:
    _, topic, handle = lifted()
    assert handle.land(expiry(topic, {0: 15, 1: 10})).refused == {}
    offset = handle.replica.offset
    again = handle.land(expiry(topic, {0: 15, 1: 5})).refused
    assert set(again.values()) == {"it already begins at record 15", "it already begins at record 10"}
    assert handle.replica.offset == offset
    (why,) = handle.land(expiry(topic, {0: 31, 1: 12})).refused.values()
    assert "its next one will be 30" in why
    views = [handle.state.topic(topic.revision).view(p).log_start_offset for p in (0, 1)]
    assert views == [15, 12]
    assert handle.land(expiry(topic, {0: 20}, "another topic")).refused == {(topic.revision, 0): ANOTHER_TOPIC}


def test_after_the_fence_what_is_stamped_below_lands_no_more() -> None:
    """Hazard 25: vacuum may delete an orphan below the fence only if no later commit names it."""
    cluster, topic, handle = lifted()
    merge = merge_of(topic, handle, 0)
    other = another(cluster)
    other.catch_up()
    epoch = cluster.controller.advance()
    assert handle.fence_l1(epoch) == epoch
    landed = handle.replica.offset
    for again in (epoch, epoch - 1):
        assert handle.fence_l1(again) == epoch
    assert handle.replica.offset == landed
    assert "run it again" in other.land(merge).refused[topic.revision, 0]
    assert other.append([of_topic(topic, epoch, {0: 1}, key="late")]).error is None
    stale = reconciled(other.state, {0: 30}, revision=topic.revision, epoch=epoch - 1)
    assert "run it again" in other.land(stale).refused[topic.revision, 0]
    fresh = reconciled(other.state, {0: 30}, revision=topic.revision, epoch=epoch)
    assert other.land(fresh).refused == {}
    with pytest.raises(SafetyError):
        handle.fence_l1(epoch + 1)


def test_dropped_objects_count_from_the_current_epoch() -> None:
    """Hazard 26: readers may need a dropped object until the grace after this epoch ends."""
    cluster, topic, handle = lifted()
    merge = merge_of(topic, handle, 0)
    epochs = [cluster.controller.advance() for _ in range(3)]
    assert handle.land(merge).refused == {}
    assert handle.state.dropped["dropped_epoch"].tolist() == [epochs[-1], epochs[-1]]
    assert handle.state.max_applied_epoch < epochs[0]
    later = cluster.controller.advance()
    assert handle.land(expiry(topic, {1: 10})).refused == {}
    assert handle.state.dropped["dropped_epoch"].tolist() == [epochs[-1], epochs[-1], later]


def test_purges_are_counted_once_and_cut_into_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, topic, handle = lifted()
    assert handle.land(merge_of(topic, handle, 0)).refused == {}
    names = [bytes(n) for n in handle.state.dropped["name"]]
    other = another(cluster)
    monkeypatch.setattr(journal_handle, "ENTRY_BYTES", NAME.itemsize)
    offset = handle.replica.offset
    assert handle.purge([*names, names[0], b"?" * 16]) == 2
    assert handle.replica.offset == offset + 2
    assert other.purge(names) == 0
    assert not other.state.has_dropped(topic.revision)


def test_a_closed_topics_objects_count_from_its_closing_epoch() -> None:
    """Hazard 26: processes with an older state may still read the objects of a closed topic."""
    cluster, topic, handle = lifted(1, 1)
    cluster.controller.advance_above(20)
    deleted = cluster.controller.delete_topic(topic.name)
    assert handle.close(deleted.revision, deleted.topic_id)
    assert set(handle.state.dropped["dropped_epoch"].tolist()) == {22}
