"""The whole of verify in memory: as one task and as many, and in which order it reads."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from l0gc.inspect.verify.findings import VerifyResult
from l0gc.inspect.verify.run import verify
from l0gc.keys import L1_DATA, PUBLISHED_WATERMARK, journal_log, level_one
from l0gc.storage.workers import SPARK, LocalWorkers, Stage
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.ingest.landing import put_l0
from tests.support.memory_store import Call, memory_cluster, publish_m, store_of
from tests.support.verify import handle_of, l1_of, lift, object_of, put, topic_of

UUID = "01234567-89ab-cdef-0123-456789abcdef"
SECOND = "second"
L0_DATA = "level_zero/data/"


class Tasks(LocalWorkers[Handles]):
    """Cuts its work as for executors, and pickles what goes from one task to another."""

    engine = SPARK  # type: ignore[misc]

    def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
        return super().flow(parts, *(Stage(s.tasks, pickled(s.work)) for s in stages))


def pickled(work: Any) -> Any:
    again = pickle.loads(pickle.dumps(work))
    return lambda place, items: (pickle.loads(pickle.dumps(found)) for found in again(place, items))


def two_topics() -> Handles:
    """Two topics, in two journals and in one, with L0 and L1 objects and an index object."""
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=5, journals=3)
    for name, journals, records in (("events", 2, {0: 70, 3: 4}), (SECOND, 1, {0: 3, 1: 4})):
        cluster.controller.create_topic(name, 4, journals)
        put(cluster, records, name)
        lift(cluster, name, per_file=1 if name == "events" else 100)
        for _ in range(3):
            put(cluster, records, name)
    return cluster


def verified(cluster: Handles, **options: Any) -> VerifyResult:
    """The result, of one task and of many: it has to be the same."""
    one = verify(cluster, LocalWorkers(cluster), **{"min_age_ms": -1, **options})
    many = verify(cluster, Tasks(cluster, slots=7), **{"min_age_ms": -1, **options})
    one.seconds = many.seconds = 0.0
    assert one == many
    return one


def kinds(result: VerifyResult) -> list[str]:
    return [f.kind for f in result.findings]


def test_a_healthy_bucket_is_counted() -> None:
    cluster = two_topics()
    cluster.store.put(f"{L0_DATA}foreign", b"x")
    put_l0(cluster, b"1234", cluster.controller.epoch())
    result = verified(cluster, deep=True)
    checked = result.checked
    assert (result.total, result.counts, result.findings) == (0, {}, [])
    assert (checked.journals, checked.partitions, checked.extents, checked.index_objects) == (3, 8, 12, 1)
    assert (checked.l0_objects, checked.l1_objects) == (2 + 6 + 1, 76)
    data = {k: len(o.body) for k, o in store_of(cluster).objects.items() if k.startswith((L0_DATA, L1_DATA))}
    needed = {object_of(cluster, i, name).key for name in ("events", SECOND) for i in range(3)}
    waiting = sum(size for k, size in data.items() if k.startswith(L0_DATA) and k not in needed) - len(b"x")
    assert (result.waiting_objects, result.waiting_bytes, result.unparsable_keys) == (3, waiting, 1)
    assert checked.bytes_read == sum(data.values()) - waiting - len(b"x")


def test_damages_are_found_by_the_tasks_that_list_them() -> None:
    cluster = two_topics()
    lost, shared = object_of(cluster, 0, SECOND).key, object_of(cluster).key
    of_l1, _ = l1_of(cluster)
    p = topic_of(cluster, SECOND).id(1)
    orphan = level_one(p, 1, 50, 59, UUID)
    cluster.store.delete([lost, shared])
    cluster.store.put(of_l1, b"short")
    cluster.store.put(orphan, b"x")
    result = verified(cluster)
    assert sorted((f.kind, f.topic, f.partition, f.key) for f in result.findings) == [
        ("l0_missing", "events", 0, shared),
        ("l0_missing", "events", 3, shared),  # of the other journal
        ("l0_missing", SECOND, 0, lost),
        ("l1_orphan", SECOND, 1, orphan),
        ("l1_size", "events", 0, of_l1),
    ]
    assert result.counts == {"l0_missing": 3, "l1_orphan": 1, "l1_size": 1}


def test_all_findings_are_counted_and_the_first_are_listed() -> None:
    cluster = two_topics()
    p = topic_of(cluster).id(1)
    keys = [level_one(p, 1, 50 + n, 59 + n, UUID) for n in range(30)]
    for key in keys:
        cluster.store.put(key, b"x")
    result = verified(cluster, max_findings=7)
    assert (result.total, result.counts, [f.key for f in result.findings]) == (30, {"l1_orphan": 30}, keys[:7])


def test_objects_ahead_are_one_finding_for_each_epoch_wherever_they_lie() -> None:
    cluster = two_topics()
    layout = cluster.controller.layout()
    for shard, epoch in ((0, 99), (1, 99), (4, 99), (2, 98)):
        cluster.store.put(layout.format(shard, epoch, UUID), b"x")
    result = verified(cluster)
    assert [(f.kind, f.key, f.detail.partition(",")[0]) for f in result.findings] == [
        ("epoch_ahead", layout.format(0, 99, UUID), "3 objects are at epoch 99"),
        ("epoch_ahead", layout.format(2, 98, UUID), "1 objects are at epoch 98"),
    ]
    assert result.checked.l0_objects == 6 + 4 + 2


def test_what_a_journal_in_doubt_does_not_name_is_not_called_an_orphan() -> None:
    """Each task learns of the doubt, whichever of them lists the object."""
    cluster = two_topics()
    topic = topic_of(cluster)
    for partition in range(4):
        cluster.store.put(level_one(topic.id(partition), 1, 50, 59, UUID), b"x")
    assert [topic.journal_of(p) == topic.journal_of(0) for p in range(4)] == [True, True, False, False]
    before = verified(cluster)
    assert (kinds(before), before.young_l1_objects) == (["l1_orphan"] * 4, 0)
    cluster.store.put(handle_of(cluster).replica.log.entry_key(1), b"{")
    after = verified(cluster)
    assert (sorted(kinds(after)), after.young_l1_objects) == (["l1_orphan"] * 2 + ["log_unreadable"], 70 + 2)


def test_the_listings_are_read_after_every_journal_and_m_before() -> None:
    """A reference read after the listing may be of an object that was written since: it would seem to be missing."""
    cluster = two_topics()
    epoch = cluster.controller.epoch()
    publish_m(cluster, 0, epoch)
    calls: list[str] = []

    def record(call: Call) -> None:
        if call.when == "before":
            calls.append(call.key)

    store_of(cluster).fault = record
    for workers in (LocalWorkers(cluster), Tasks(cluster, slots=7)):
        calls.clear()
        assert verify(cluster, workers, min_age_ms=0).total == 0
        listed = [i for i, key in enumerate(calls) if key.startswith((L0_DATA, L1_DATA))]
        journals = [i for n in range(3) for i, key in enumerate(calls) if key.startswith(journal_log(n))]
        assert calls.index(PUBLISHED_WATERMARK) < min(journals)
        assert max(journals) < min(listed)


@pytest.mark.parametrize("when", ["journals", "listings"])
def test_what_is_reconciled_and_swept_while_verify_reads_is_no_finding(when: str) -> None:
    cluster = two_topics()
    seen: list[str] = []

    def reconcile(call: Call) -> None:
        turn = journal_log(2) if when == "journals" else L0_DATA
        if call.key.startswith(turn) and call.when == "before" and not seen:
            seen.append(call.key)
            gone = [object_of(cluster, i).key for i in range(3)]
            lift(cluster)
            cluster.store.delete(gone)

    store_of(cluster).fault = reconcile
    assert verify(cluster, LocalWorkers(cluster), min_age_ms=-1).total == 0
    assert seen
