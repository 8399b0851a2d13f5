"""All of verify in memory: as one task and as many, the order of its reads, and what its second reading confirms."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from l0gc.collect.deletion import Deletable
from l0gc.collect.record import DELETED, RecordedObject, RunRecord
from l0gc.inspect.verify.findings import ClusterSnapshot, Kind, Suspect, VerifyResult, of_object
from l0gc.inspect.verify.run import confirm, verify
from l0gc.keys import CONTROLLER_LOG, L1_DATA, PUBLISHED_WATERMARK, journal_log, level_one
from l0gc.storage.workers import LOCAL, SPARK, LocalWorkers, Stage
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.ingest.landing import put_l0
from l0gc.streamlog.journal.state import JournalState
from l0gc.watermark.publication import PublishedWatermark
from tests.support.memory_store import Call, another_process, memory_cluster, publish_m, store_of
from tests.support.verify import handle_of, l1_of, lift, loaded_cluster, object_of, put, state_of, topic_of

UUID = "01234567-89ab-cdef-0123-456789abcdef"
SECOND = "second"
L0_DATA = "level_zero/data/"


class Tasks(LocalWorkers[ClusterHandles]):
    """Divides its work as for executors, and pickles the items that one task sends to another."""

    engine = SPARK  # type: ignore[misc]

    def flow(self, parts: Sequence[Any], *stages: Stage) -> list[Any]:
        return super().flow(parts, *(Stage(s.tasks, pickled(s.work)) for s in stages))


def pickled(work: Any) -> Any:
    again = pickle.loads(pickle.dumps(work))
    return lambda place, items: (pickle.loads(pickle.dumps(found)) for found in again(place, items))


def two_topics() -> ClusterHandles:
    """Create two topics with L0 and L1 objects, one in two journals and one in a single journal."""
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=5, journals=3)
    for name, journals, records in (("events", 2, {0: 70, 3: 4}), (SECOND, 1, {0: 3, 1: 4})):
        cluster.controller.create_topic(name, 4, journals)
        put(cluster, records, name)
        lift(cluster, name, per_file=1 if name == "events" else 100)
        for _ in range(3):
            put(cluster, records, name)
    return cluster


def verified(cluster: ClusterHandles, **options: Any) -> VerifyResult:
    """Verify with one task and with many, check that the results are equal, and return one."""
    one = verify(cluster, LocalWorkers(cluster), **{"min_age_ms": -1, **options})
    many = verify(cluster, Tasks(cluster, slots=7), **{"min_age_ms": -1, **options})
    one.seconds = many.seconds = 0.0
    assert (one.engine, many.engine) == (LOCAL, SPARK)
    many.engine = one.engine
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
    assert (checked.journals, checked.partitions, checked.extents) == (3, 8, 12)
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
        ("l0_missing", "events", 3, shared),  # in the other journal
        ("l0_missing", SECOND, 0, lost),
        ("l1_orphan", SECOND, 1, orphan),
        ("l1_size", "events", 0, of_l1),
    ]
    assert result.counts == {"l0_missing": 3, "l1_orphan": 1, "l1_size": 1}


def test_of_a_missing_object_the_run_that_deleted_it_is_named() -> None:
    cluster = two_topics()
    lost, of_l1 = object_of(cluster, 0, SECOND).key, l1_of(cluster)[0]
    run = "20260131T235959Z-0123abcd"
    record = RunRecord(store_of(cluster), run, "l0")
    segment = record.plan([Deletable(lost, 1, 7)])
    record.write(segment, lambda: [RecordedObject(lost, 1, 7, status=DELETED)])
    cluster.store.delete([lost, of_l1])
    details = {f.key: f.detail for f in verified(cluster).findings}
    assert f"; run {run} (killed) deleted it (7 B); l0gc undelete --run {run} brings back" in details[lost]
    assert details[of_l1] == "the object is missing; no recorded run deleted it"


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
        ("epoch_ahead", layout.format(2, 98, UUID), "1 object is at epoch 98"),
    ]
    assert result.checked.l0_objects == 6 + 4 + 2


def test_objects_of_a_doubtful_journal_are_not_called_orphans() -> None:
    """Each task learns of the doubt, whichever task lists the object."""
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
    """A reference that is read after the listing may name an object written since, which would seem to be missing."""
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


# -- the second reading -------------------------------------------------------------------------------------------------


JOURNAL = journal_log(0)


def snapshot(cluster: ClusterHandles, watermark: int = -1) -> ClusterSnapshot:
    published = PublishedWatermark("", watermark, watermark, 0)
    return ClusterSnapshot(cluster.controller.snapshot(), published, cluster.store.now_ms())


def found(cluster: ClusterHandles, *suspects: Suspect, seen: ClusterSnapshot | None = None) -> list[tuple[str, str]]:
    """Return kind and detail of the suspects that a second reading in another process confirms."""
    confirmed = confirm(another_process(cluster), seen or snapshot(cluster), suspects)
    return [(s.kind, s.detail) for s in confirmed]


def of_l0(cluster: ClusterHandles, kind: Kind) -> Suspect:
    o = object_of(cluster)
    return structs.replace(of_object(kind, 0, topic_of(cluster), o), needed=o)


def of_l1(cluster: ClusterHandles, kind: Kind) -> Suspect:
    key, f = l1_of(cluster)
    return Suspect(kind, 0, "events", topic_of(cluster).revision, 0, key, f.base_offset, f.bytes)


def cut(cluster: ClusterHandles, key: str) -> None:
    cluster.store.put(key, store_of(cluster).objects[key].body[:-1])


def flip(cluster: ClusterHandles, key: str) -> None:
    body = store_of(cluster).objects[key].body
    at = len(body) // 2
    cluster.store.put(key, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])


def remove(cluster: ClusterHandles, key: str) -> None:
    cluster.store.delete([key])


DAMAGE: list[tuple[Kind, Callable[[ClusterHandles, Kind], Suspect], Callable[[ClusterHandles, str], None]]] = [
    (Kind.L0_MISSING, of_l0, remove),
    (Kind.L0_SHORT, of_l0, cut),
    (Kind.L0_CORRUPT, of_l0, flip),
    (Kind.L1_MISSING, of_l1, remove),
    (Kind.L1_SIZE, of_l1, cut),
    (Kind.L1_CORRUPT, of_l1, flip),
]


@pytest.mark.parametrize(("kind", "suspected", "damage"), DAMAGE)
def test_only_a_damaged_object_is_a_finding(
    kind: Kind, suspected: Callable[[ClusterHandles, Kind], Suspect], damage: Callable[[ClusterHandles, str], None]
) -> None:
    cluster = loaded_cluster()
    s = suspected(cluster, kind)
    assert found(cluster, s) == []
    damage(cluster, s.key)
    ((again, detail),) = found(cluster, s)
    assert again == kind
    assert detail


@pytest.mark.parametrize(("kind", "suspected", "damage"), DAMAGE)
def test_an_object_of_a_topic_that_was_deleted_meanwhile_is_no_finding(
    kind: Kind, suspected: Callable[[ClusterHandles, Kind], Suspect], damage: Callable[[ClusterHandles, str], None]
) -> None:
    cluster = loaded_cluster()
    s, seen = suspected(cluster, kind), snapshot(cluster)
    damage(cluster, s.key)
    another_process(cluster).controller.delete_topic("events")  # the deleter dies before it closes the topic
    assert found(cluster, s, seen=seen) == []


def test_what_was_reconciled_and_swept_meanwhile_is_no_finding() -> None:
    cluster = loaded_cluster()
    suspects = [of_l0(cluster, k) for k in (Kind.L0_MISSING, Kind.L0_SHORT)]
    lift(another_process(cluster))
    remove(cluster, suspects[0].key)
    assert found(cluster, *suspects) == []


def reconcile_and_sweep(cluster: ClusterHandles, key: str) -> None:
    lift(cluster)
    remove(cluster, key)


def delete_and_sweep(cluster: ClusterHandles, key: str) -> None:
    cluster.controller.delete_topic("events")
    remove(cluster, key)


@pytest.mark.parametrize("event", [reconcile_and_sweep, delete_and_sweep])
def test_rightful_deletion_during_the_second_reading_is_not_a_finding(
    event: Callable[[ClusterHandles, str], None],
) -> None:
    happened = 0
    for moment in range(40):
        cluster = loaded_cluster()
        s, seen, other = of_l0(cluster, Kind.L0_MISSING), snapshot(cluster), another_process(cluster)
        left = [moment]

        def at_the_moment(
            call: Call,
            cluster: ClusterHandles = cluster,
            other: ClusterHandles = other,
            left: list[int] = left,
            key: str = s.key,
        ) -> None:
            left[0] -= 1
            if left[0] < 0:
                store_of(cluster).fault = lambda call: None
                event(other, key)

        store_of(cluster).fault = at_the_moment
        assert found(cluster, s, seen=seen) == [], moment
        happened += left[0] < 0
    assert 2 <= happened < 40


def test_a_missing_object_is_reported_with_what_is_lost() -> None:
    cluster = loaded_cluster()
    s = of_l0(cluster, Kind.L0_MISSING)
    remove(cluster, s.key)
    assert found(cluster, s) == [
        (Kind.L0_MISSING, "the object is missing; 16 unreconciled records of 2 partitions"),
    ]


# -- L1 objects that no journal names ---------------------------------------------------------------------------------------


def orphan(cluster: ClusterHandles, base: int = 10, last: int = 19) -> Suspect:
    p = topic_of(cluster).id(0)
    key = level_one(p, 1, base, last, UUID)
    cluster.store.put(key, b"x")
    return Suspect(Kind.L1_ORPHAN, 0, p.topic, p.revision, p.partition, key)


def test_an_l1_object_that_no_journal_names_is_a_finding() -> None:
    cluster = loaded_cluster()
    assert [kind for kind, _ in found(cluster, orphan(cluster))] == [Kind.L1_ORPHAN]


def test_an_l1_object_that_was_committed_or_removed_meanwhile_is_no_orphan() -> None:
    cluster = loaded_cluster()
    lift(another_process(cluster))
    committed = of_l1(cluster, Kind.L1_ORPHAN)
    removed = orphan(cluster, 20, 21)
    remove(cluster, removed.key)
    assert found(cluster, committed, removed) == []


def test_an_unreadable_journal_is_the_only_finding() -> None:
    cluster = loaded_cluster()
    unreadable = Suspect(Kind.LOG_UNREADABLE, 0, key=JOURNAL)
    suspects = [orphan(cluster), of_l0(cluster, Kind.L0_MISSING), unreadable]
    assert [kind for kind, _ in found(cluster, *suspects)] == [Kind.L1_ORPHAN]
    cluster.store.put(f"{JOURNAL}log/{1:020}", b"{")
    ((kind, detail),) = found(cluster, *suspects)
    assert kind == Kind.LOG_UNREADABLE
    assert f"{1:020}" in detail


def test_while_a_journal_may_have_lost_entries_nothing_is_an_orphan() -> None:
    cluster = loaded_cluster()
    at = handle_of(cluster).replica.write_checkpoint()
    remove(cluster, f"{JOURNAL}log/{at:020}")
    gap = Suspect(Kind.LOG_GAP, 0, key=JOURNAL)
    assert [kind for kind, _ in found(cluster, orphan(cluster), gap)] == [Kind.LOG_GAP]


# -- the journal alone -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.LIVE_BELOW_WATERMARK, Kind.WATERMARK_AHEAD, Kind.TOPIC_MISPLACED])
def test_a_confirmed_fault_remains_a_finding(kind: Kind) -> None:
    cluster = loaded_cluster()
    suspects = [of_l0(cluster, kind)]
    lift(another_process(cluster))
    assert len(found(cluster, *suspects)) == 1
    another_process(cluster).controller.delete_topic("events")
    assert found(cluster, *suspects) == []


def broken_checkpoint(cluster: ClusterHandles, change: Callable[[JournalState], object]) -> None:
    replica = handle_of(cluster).replica
    state = replica._machine.decode(replica._machine.encode(state_of(cluster)), "a copy")
    change(state)
    replica.log.write_checkpoint(replica.offset, replica._machine.encode(state), replica.time_ms)


def test_a_state_is_checked_again_by_the_journal_as_it_is_then() -> None:
    cluster = loaded_cluster()
    p = topic_of(cluster).id(0)
    where = (0, p.topic, p.revision)
    broken = Suspect(Kind.STATE_BROKEN, *where, key=JOURNAL, detail="then")
    assert found(cluster, broken) == []

    def change(state: JournalState) -> None:
        o = state.topics[p.revision].objects[0]
        state.topics[p.revision].objects = [msgspec.structs.replace(o, log_offset=99)]

    broken_checkpoint(cluster, change)
    assert [(kind, "then" in detail) for kind, detail in found(cluster, broken)] == [(Kind.STATE_BROKEN, False)]


def test_a_checkpoint_that_differs_from_its_entries_is_read_again() -> None:
    cluster = loaded_cluster()
    s = Suspect(Kind.CHECKPOINT_DIFFERS, 0, key=JOURNAL)
    assert found(cluster, s) == []

    def change(state: JournalState) -> None:
        state.topics[1].log_start[0] = 3

    broken_checkpoint(cluster, change)
    assert [kind for kind, _ in found(cluster, s)] == [Kind.CHECKPOINT_DIFFERS]


def test_a_gap_in_the_controller_log_is_read_again() -> None:
    cluster = loaded_cluster()
    s = Suspect(Kind.LOG_GAP, key=CONTROLLER_LOG)
    assert found(cluster, s) == []
    at = cluster.controller.replica.write_checkpoint()
    remove(cluster, f"{CONTROLLER_LOG}log/{at:020}")
    assert [kind for kind, _ in found(cluster, s)] == [Kind.LOG_GAP]


# -- epochs ----------------------------------------------------------------------------------------------------------------


def test_an_epoch_that_the_cluster_has_reached_meanwhile_is_no_finding() -> None:
    cluster = loaded_cluster()
    seen = snapshot(cluster)
    ahead = Suspect(Kind.EPOCH_AHEAD, key="level_zero/data/…", expected=seen.state.epoch + 1)
    assert len(found(cluster, ahead, seen=seen)) == 1
    another_process(cluster).controller.advance()
    assert found(cluster, ahead, seen=seen) == []


def test_an_upload_begun_after_the_snapshot_is_not_a_finding() -> None:
    cluster = loaded_cluster()
    seen, other = snapshot(cluster), another_process(cluster)
    epoch = other.controller.advance()
    handle_of(other).advance(epoch)
    s = Suspect(Kind.EPOCH_AHEAD, 0, key=JOURNAL, expected=epoch)
    assert found(cluster, s, seen=seen) == []


def test_an_unclosed_topic_is_a_finding_only_until_closed() -> None:
    cluster = loaded_cluster()
    topic = cluster.controller.delete_topic("events")
    late = replace(snapshot(cluster), to_be_closed=[topic])
    s = Suspect(Kind.TOPIC_UNCLOSED, 0, "events", topic.revision, key=JOURNAL)
    assert [kind for kind, _ in found(cluster, s, seen=late)] == [Kind.TOPIC_UNCLOSED]
    cluster.journal(0).close(topic.revision, topic.topic_id)
    assert found(cluster, s, seen=late) == []
