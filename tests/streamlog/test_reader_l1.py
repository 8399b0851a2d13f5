"""Hazard 19: L1 objects are merged or expired, and removed at once, while a reader reads them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from l0gc.errors import OffsetOutOfRangeError
from l0gc.keys import level_one
from l0gc.storage.parallel import Parallel, WorkerThreads
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.journal.rows import name_text
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.offset_reader import OffsetReader
from l0gc.streamlog.reader import read_topic
from tests.support.expire import cluster_with
from tests.support.memory_store import another_process
from tests.support.merge import merge

RECORDS = [(p, o) for p in range(2) for o in range(60)]


def remove_dropped(cluster: ClusterHandles, topic: Topic) -> int:
    """Delete and purge dropped objects like a vacuum without grace; return their number."""
    handle = cluster.journal(0)
    rows = handle.catch_up().dropped
    for row in rows:
        p, name = topic.id(int(row["partition"])), name_text(row["name"])
        place = int(row["epoch"]), int(row["base"]), int(row["last"])
        cluster.store.delete([level_one(p, *place, name)])
    handle.purge([bytes(name) for name in rows["name"]])
    return len(rows)


def test_merged_and_removed_records_are_read_from_their_replacement(window_bytes: int) -> None:
    for after in (1, 15, 59, 61):
        cluster, topic = cluster_with(6)
        worker = another_process(cluster, after)
        records = ((r.partition, r.offset) for r in read_topic(cluster, topic))
        found = [next(records) for _ in range(after)]
        assert merge(worker, rule=MergeRule(fan_in=2)).objects_before > 0
        assert remove_dropped(worker, topic) > 0
        assert [*found, *records] == RECORDS


def test_records_expired_below_the_reader_are_not_a_loss(window_bytes: int) -> None:
    for partition, before in ((0, 20), (0, 40), (1, 40)):
        cluster, topic = cluster_with(6)
        worker = another_process(cluster, before)
        records = ((r.partition, r.offset) for r in read_topic(cluster, topic))
        found = [next(records) for _ in range(25)]
        delete_records(worker, "events", partition, before_offset=before)
        assert remove_dropped(worker, topic) == before // 10
        if partition == 0 and before > 25 and window_bytes == 1:
            with pytest.raises(OffsetOutOfRangeError, match="has offset 40"):
                list(records)
            continue
        left = [*found, *records]
        assert left == [at for at in RECORDS if at in left]  # each record once, and in order
        lacking = [at for at in RECORDS if at not in left]
        assert lacking == [] or (partition == 1 and lacking == [(1, o) for o in range(40)])


def test_an_object_that_is_fetched_whole_takes_one_task_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task costs as much time as the records of a small object."""
    cluster, topic = cluster_with(6)
    tasks, submit = list[str](), WorkerThreads.submit

    def counted(pool: WorkerThreads, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        tasks.append(fn.__qualname__)
        return submit(pool, fn, *args)

    monkeypatch.setattr(WorkerThreads, "submit", counted)
    with Parallel(4) as threads:
        found = read_topic(msgspec.structs.replace(cluster, parallel=threads), topic)
        assert [(r.partition, r.offset) for r in found] == RECORDS
    assert len([name for name in tasks if name.startswith(OffsetReader.__name__)]) == 2 * 6
