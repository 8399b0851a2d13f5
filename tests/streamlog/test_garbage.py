"""The stream log's garbage: the fence decides on orphans, a journal on its dropped objects, and needed objects stay."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import msgspec
import numpy as np
import pytest

from l0gc.collect.orphans import ORPHANED_L1
from l0gc.collect.vacuum import VacuumResult
from l0gc.errors import EpochRegressionError, PartialFailureError, StoreError
from l0gc.keys import CONTROLLER_LOG, L1_DATA, PartitionId, journal_log, level_one, parse_level_one
from l0gc.operations import HOUR_S, Vacuum
from l0gc.storage.objectstore import DeleteFailure
from l0gc.streamlog import topics
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.garbage import JournalGarbage, unpinned
from l0gc.streamlog.garbage_facts import JournalNames, JournalPart, read_facts
from l0gc.streamlog.journal import edits
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.pins import create_pin
from tests.support.interrupting import Interrupt
from tests.support.memory_store import MemoryStore, copy_of, failing, memory_cluster, put_back
from tests.support.merge import merge
from tests.support.reconcile import begin, lifted, named, put, reconcile
from tests.support.vacuum import NOW, tick, vacuum

UUID = "01234567-89ab-4cde-8f01-23456789abcd"
HOUR_MS = 1000 * HOUR_S


class World:
    """A cluster with a topic, and the steps of uploads, reconciles and merges."""

    def __init__(self, partitions: int = 2, journals: int = 1, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.cluster = memory_cluster(self.store)
        self.values: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
        self.create(partitions, journals)

    def create(self, partitions: int = 2, journals: int = 1) -> None:
        self.cluster.controller.create_topic("events", partitions, journals)

    def tick(self, times: int = 1) -> None:
        tick(self.cluster, times)

    def upload(self, records: int = 3) -> None:
        for p, there in self.values.items():
            new = [f"{p}:{len(there) + i}".encode() for i in range(records)]
            put(self.cluster, "events", {p: new})
            there.extend(new)

    def lift(self, times: int = 1) -> None:
        for _ in range(times):
            self.upload()
            self.tick()
            reconcile(self.cluster)

    def merge(self) -> None:
        result = merge(self.cluster, None, MergeRule(fan_in=2))
        assert not result.errors
        assert result.objects_after

    def l1(self, prefix: str = "level_one/") -> set[str]:
        return {k for k in self.store.objects if k.startswith(prefix)}

    def vacuum(self, options: Vacuum = NOW, cluster: ClusterHandles | None = None) -> VacuumResult:
        return vacuum(cluster or self.cluster, options)

    def whole(self) -> None:
        """Check that every record is there, in order."""
        for p, there in self.values.items():
            assert lifted(self.cluster, "events", p) == there


@pytest.fixture
def w() -> World:
    return World()


def counts(result: VacuumResult) -> dict[str, int]:
    return {kind: d.objects for kind, d in result.deleted.items() if d.objects}


# -- orphans ------------------------------------------------------------------------------------------------------------


def test_a_killed_runs_objects_go_once_their_epoch_is_fenced(w: World) -> None:
    w.lift()
    w.upload()
    killed = begin(w.cluster)
    assert counts(w.vacuum()) == {}  # their epoch is the newest one
    w.tick()
    assert killed.keys <= w.l1()
    dry = w.vacuum(Vacuum(dry_run=True, l1_grace_s=0, orphan_age_s=0))
    assert killed.keys <= w.l1()
    done = w.vacuum()
    assert counts(dry) == counts(done) == {ORPHANED_L1: 2}
    assert dry.deleted == done.deleted
    assert w.l1() == named(w.cluster, "events")
    reconcile(w.cluster)
    w.whole()


def test_a_run_asleep_during_vacuum_is_refused_once(w: World) -> None:
    w.upload()
    sleeping = begin(memory_cluster(w.store, seed=7, bootstrap=False))
    w.tick()
    w.vacuum()
    assert not sleeping.keys & w.l1()
    committed = sleeping.commit()
    assert [c.records for c in committed] == [0]
    assert all("fenced off" in c.errors[0] for c in committed)
    reconcile(w.cluster)
    w.whole()


def test_what_is_committed_until_the_fence_is_no_orphan(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w.upload()
    late = begin(memory_cluster(w.store, seed=7, bootstrap=False))
    w.tick()
    raise_fence = JournalHandle.fence_l1

    def committed_before(handle: JournalHandle, epoch: int) -> int:
        monkeypatch.setattr(JournalHandle, "fence_l1", raise_fence)
        late.commit()
        return raise_fence(handle, epoch)

    monkeypatch.setattr(JournalHandle, "fence_l1", committed_before)
    w.vacuum()
    assert late.keys <= w.l1()
    w.whole()


def test_without_the_fence_in_the_log_a_look_is_refused(w: World) -> None:
    w.lift()
    source = JournalGarbage(w.cluster)
    source.refresh()
    epoch = w.cluster.controller.snapshot().epoch
    source.fence(w.store.clock.ms, w.store.clock.ms, dry_run=False)
    (part,) = source.parts("level_one/data/", 1)
    assert set(part.fences.values()) == {epoch}
    other = msgspec.structs.replace(part, epoch=epoch, fences={0: epoch + 1})
    assert read_facts(w.store, part)(sorted(w.l1()))[0].needed
    with pytest.raises(StoreError, match="its L1 fence at"):
        read_facts(w.store, other)


def test_an_interrupted_merge_makes_no_orphans_of_its_sources(w: World) -> None:
    """Hazard 29: halfway through the entry, these objects are neither listed nor dropped."""
    w.lift(4)
    w.tick()
    before = sorted(w.l1("level_one/data/"))
    source = JournalGarbage(w.cluster)
    source.refresh()
    source.fence(w.store.clock.ms, w.store.clock.ms, dry_run=False)
    merge(memory_cluster(w.store, seed=1, bootstrap=False), None, MergeRule(fan_in=2))
    with pytest.raises(Interrupt), mock.patch.object(edits, "dropped_rows", side_effect=Interrupt):
        w.cluster.journal(0).catch_up()
    (part,) = source.parts("level_one/data/", 1)
    facts = source.facts_reader(remote=False)(w.store, part)(before)
    assert [f.needed for f in facts] == [True] * len(before)


def test_the_age_of_orphans_is_that_of_their_epoch(w: World) -> None:
    w.upload()
    killed = begin(w.cluster)
    w.tick(3)
    age = Vacuum(orphan_age_s=2 * HOUR_S)
    assert counts(w.vacuum(age)) == {}
    w.store.clock.ms += 3 * HOUR_MS
    assert counts(w.vacuum(age)) == {ORPHANED_L1: len(killed.keys)}


def test_keys_that_do_not_parse_stay_and_are_counted(w: World) -> None:
    w.lift()
    w.tick()
    p = w.cluster.controller.snapshot().topic("events").id(0)
    strange = [
        "level_one/data/README",
        level_one(p, 0, 0, 1, UUID) + ".tmp",
        level_one(p, 0, 0, 1, UUID.upper()),
        level_one(PartitionId("events", p.revision, 7), 0, 0, 1, UUID),  # the topic has only two partitions
    ]
    for key in strange:
        w.store.put(key, b"x")
    w.store.put(level_one(p, 0, 0, 1, UUID), b"x")
    done = w.vacuum()
    assert counts(done) == {ORPHANED_L1: 1}
    assert (done.unparsable, set(strange) <= w.l1()) == (len(strange), True)


@pytest.mark.parametrize(
    "key",
    [
        "level_one/data/a-1/00000/000000000000000000/x.parquet",
        "level_one/data/a-01/00000/000000000000000000/00000000000000000000-00000000000000000001-" + UUID + ".parquet",
        "level_one/data/a-1/0000/000000000000000000/00000000000000000000-00000000000000000001-" + UUID + ".parquet",
        "level_one/data/a-1/000001/000000000000000000/00000000000000000000-00000000000000000001-" + UUID + ".parquet",
        "level_one/data/a-1/00000/000000000000000000/" + UUID,
        "level_one/index/a-1/00000/000000000000000000/00000000000000000000-00000000000000000001-" + UUID + ".parquet",
        "level_one/data/a-1/00000/000000000000000000/00000000000000000000-00000000000000000001-" + UUID + ".parquet\n",
    ],
)
def test_what_is_not_written_as_l0gc_writes_it_is_no_l1_key(key: str) -> None:
    assert parse_level_one(key) is None


@pytest.mark.parametrize("partition", [0, 99_999, 100_000])
def test_keys_say_what_they_were_made_of(partition: int) -> None:
    p = PartitionId("a.b-7", 12, partition)
    assert parse_level_one(level_one(p, 3, 4, 5, UUID)) == ("a.b-7", 12, partition, 3, 4, 5, UUID, -1)


def closed_as_unknown(w: World) -> tuple[ClusterHandles, int, int, set[str]]:
    """Restore a controller log that lacks a topic, and close it; return the cluster, journal, revision and L1 keys."""
    w.lift()
    backup = copy_of(w.store, CONTROLLER_LOG)
    w.cluster.controller.create_topic("lost", 1)
    put(w.cluster, "lost", {0: [b"x"]})
    w.lift()
    lost = named(w.cluster, "lost")
    put_back(w.store, CONTROLLER_LOG, backup)
    restored = memory_cluster(w.store, seed=9, bootstrap=False)
    restored.controller.advance_above(w.cluster.controller.epoch())
    ((journal, revision, _),) = topics.close_unknown_topics(restored)
    assert restored.journal(journal).catch_up().has_dropped(revision)
    return restored, journal, revision, lost


def test_a_topic_closed_as_unknown_leaves_nothing(w: World) -> None:
    restored, journal, revision, lost = closed_as_unknown(w)
    assert counts(w.vacuum(cluster=restored)) == {}  # two epochs must pass first
    for _ in range(2):
        restored.controller.advance()
    assert counts(w.vacuum(Vacuum(l1_grace_s=HOUR_S), cluster=restored)) == {}
    assert lost <= w.l1()  # the grace applies to these objects, too
    done = w.vacuum(cluster=restored)
    assert not lost & w.l1()
    assert counts(done)[ORPHANED_L1] == len(lost) == 1
    assert not restored.journal(journal).catch_up().has_dropped(revision)
    assert named(restored, "events") == w.l1()


def fenced(cluster: ClusterHandles) -> JournalGarbage:
    """Return the journals as a vacuum reads them two epochs later, after it raised the fences."""
    tick(cluster, 2)
    source = JournalGarbage(cluster)
    source.refresh()
    source.fence(cluster.now_ms(), cluster.now_ms(), dry_run=False)
    return source


def test_of_an_unknown_topic_only_objects_below_the_fence_are_purged(w: World) -> None:
    restored, journal, revision, _ = closed_as_unknown(w)
    source, dropped = fenced(restored), restored.journal(journal).state.dropped
    (stamp,) = dropped["epoch"][dropped["revision"] == revision].tolist()
    for fence, is_left in ((stamp, True), (stamp + 1, False)):
        source.scanned(fence, [])
        assert restored.journal(journal).catch_up().has_dropped(revision) is is_left


def test_a_deleted_topic_is_not_forgotten_while_its_journal_is_broken(w: World) -> None:
    topics.delete_topic(w.cluster, "events")
    w.store.fault = failing(StoreError("no"), "put_if_absent", "l0gc/journal/")
    for is_left in (True, False):
        fenced(w.cluster).scanned(1 << 40, [])
        assert bool(w.cluster.controller.snapshot().deleted) is is_left
        w.store.fault = lambda call: None


# -- needed objects -----------------------------------------------------------------------------------------------------


def test_an_unreadable_journal_keeps_its_topics_objects() -> None:
    w = World(2, journals=2)
    w.upload()
    killed = begin(w.cluster)
    w.tick()
    assert len(killed.keys) == 2
    w.store.put(f"{journal_log(1)}log/{0:020}", b"nonsense")
    fresh = memory_cluster(w.store, seed=3, bootstrap=False)
    done = w.vacuum(cluster=fresh)
    assert counts(done) == {ORPHANED_L1: 1}
    assert isinstance(done.problem, PartialFailureError)
    assert "journal 1" in str(done.problem)


# -- merged objects and deleted topics ----------------------------------------------------------------------------------


def test_merged_objects_go_after_the_grace_and_two_epochs(w: World) -> None:
    w.lift(4)
    before = w.l1()
    w.merge()
    merged = w.l1() - before
    grace = Vacuum(l1_grace_s=HOUR_S)
    w.store.clock.ms += HOUR_MS + 1
    assert counts(w.vacuum(grace)) == {}  # two epochs have not passed
    w.tick(2)
    done = w.vacuum(grace)
    assert counts(done) == {"dropped_l1": len(before)}
    assert w.l1() == merged == named(w.cluster, "events")
    assert counts(w.vacuum(grace)) == {}
    w.whole()
    w.lift(4)
    w.merge()
    w.tick(3)
    assert counts(w.vacuum(Vacuum(l1_grace_s=HOUR_S))) == {}  # an hour has not passed


def test_a_pin_keeps_what_is_dropped_from_its_own_epoch_on(w: World) -> None:
    """Hazard 36: the windows reach the pin's epoch, and a run that began earlier may drop objects there."""
    topic = w.cluster.controller.snapshot().topic("events").revision
    pin = create_pin(w.cluster, "backup", HOUR_MS, level_one=True, topic=topic)
    state = w.cluster.controller.snapshot()
    assert unpinned(state, 100, np.array([topic, topic + 1])).tolist() == [pin.revision - 1, 100]


def test_the_parts_of_a_listing_have_each_partition_once() -> None:
    w = World(8)
    w.lift()
    source, topic = JournalGarbage(w.cluster), w.cluster.controller.snapshot().topic("events")
    source.refresh()
    spans = [part.span(topic) for part in source.parts(L1_DATA, 4)]
    assert [p for s in spans for p in range(s.first, s.last + 1)] == list(range(8))
    assert len(spans) == 4


def test_a_topic_up_to_the_snapshots_epoch_is_unknown() -> None:
    part = JournalPart(topics=[], epoch=5, fences={}, forgotten=[], waiting=[])
    names = JournalNames(part, lambda journal: JournalState())
    keys = [level_one(PartitionId("lost", revision, 0), 7, 0, 9, UUID) for revision in (5, 6)]
    assert [fact.unknown for fact in names.facts(keys)] == [True, False]


def test_the_fence_of_a_vacuum_is_the_lowest_of_its_journals() -> None:
    w = World(2, journals=2)
    w.tick(4)
    w.cluster.journal(1).fence_l1(3)
    source = JournalGarbage(w.cluster)
    source.refresh()
    assert source.fence(0, 0, dry_run=False) == 0


def test_a_run_killed_before_its_journal_knew_is_done_again(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w.lift(4)
    w.merge()
    w.tick(3)

    def dies(self: JournalGarbage, unit: int, objects: Sequence[object]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(JournalGarbage, "purged", dies)
        with pytest.raises(KeyboardInterrupt):
            w.vacuum()
    assert counts(w.vacuum()) == {"dropped_l1": 8}
    assert counts(w.vacuum()) == {}
    w.whole()


def test_of_a_deleted_topic_nothing_is_left_and_the_controller_forgets_it() -> None:
    w = World(2, journals=2)
    w.lift(6)
    w.upload()
    begin(w.cluster)
    topics.delete_topic(w.cluster, "events")
    w.create()
    w.tick(3)
    done = w.vacuum()
    assert w.l1() == set()
    assert {"dropped_l1", "orphaned_l1"} <= set(counts(done))
    state = w.cluster.controller.snapshot()
    assert state.deleted == []
    assert set(state.topics) == {"events"}
    w.values = {0: [], 1: []}
    w.lift()
    w.whole()
    assert counts(w.vacuum()) == {}


class Held(MemoryStore):
    """A store with legal holds on some objects."""

    held: frozenset[str] = frozenset()

    def delete(self, keys: Sequence[str]) -> list[DeleteFailure]:
        super().delete([k for k in keys if k not in self.held])
        return [DeleteFailure(k, "AccessDenied", "legal hold") for k in keys if k in self.held]


def test_a_legal_hold_delays_forgetting_only_its_own_topic() -> None:
    """Hazard 46: a legal hold on one topic's object must not stop the others."""
    store = Held()
    w = World(store=store)
    w.cluster.controller.create_topic("other", 2)
    put(w.cluster, "other", {0: [b"x"], 1: [b"y"]})
    w.lift(2)
    for name in ("events", "other"):
        topics.delete_topic(w.cluster, name)
    w.tick(3)
    held = min(k for k in w.l1() if "/events-" in k)
    store.held = frozenset({held})
    done = w.vacuum()
    assert w.l1() == {held}
    assert f"1 object could not be deleted; the first is {held}: AccessDenied legal hold" in str(done.problem)
    assert [d.topic.name for d in w.cluster.controller.snapshot().deleted] == ["events"]
    assert len(w.cluster.journal(0).state.dropped) == 1
    store.held = frozenset()
    assert w.vacuum().problem is None
    assert (w.l1(), w.cluster.controller.snapshot().deleted) == (set(), [])


def test_an_unknown_topics_objects_under_legal_hold_are_not_purged() -> None:
    """The journal forgets only objects that are deleted."""
    store = Held()
    w = World(store=store)
    restored, journal, revision, lost = closed_as_unknown(w)
    for _ in range(2):
        restored.controller.advance()
    store.held = frozenset(lost)
    assert isinstance(w.vacuum(cluster=restored).problem, PartialFailureError)
    assert restored.journal(journal).catch_up().has_dropped(revision)
    store.held = frozenset()
    assert w.vacuum(cluster=restored).problem is None
    assert not restored.journal(journal).catch_up().has_dropped(revision)
    assert not lost & w.l1()


def test_what_comes_after_a_forgotten_topic_is_still_an_orphan(w: World) -> None:
    w.lift()
    p = w.cluster.controller.snapshot().topic("events").id(0)
    topics.delete_topic(w.cluster, "events")
    w.tick(3)
    w.vacuum()
    w.store.put(level_one(p, 1, 0, 1, UUID), b"late")
    assert counts(w.vacuum()) == {ORPHANED_L1: 1}


def test_an_unknown_topics_folder_is_named_and_left(w: World) -> None:
    w.lift()
    w.tick(2)
    p = w.cluster.controller.snapshot().topic("events").id(0)
    strange = {level_one(PartitionId(name, 0, 0), 0, 0, 1, UUID) for name in ("another", "stranger")}
    orphan = level_one(p, p.revision, 0, 1, UUID)
    for key in (*strange, orphan):
        w.store.put(key, b"x")
    done = w.vacuum()
    assert counts(done) == {ORPHANED_L1: 1}
    assert orphan not in w.l1()
    assert strange <= w.l1()
    folders = ["level_one/data/another-0/", "level_one/data/stranger-0/"]
    assert (done.unknown, done.unknown_folders) == (2, folders)
    problem = done.problem
    assert isinstance(problem, EpochRegressionError)
    assert problem.exit_code == 4
    assert str(problem).startswith(
        f"2 objects in {', '.join(folders)} stay, since neither the controller nor a journal"
    )


def test_a_topic_lost_with_controller_and_journal_keeps_its_l1(w: World) -> None:
    """Hazard 10: the restored logs are older than the bucket, and their epoch has since passed the lost topic's
    revision.
    """
    w.lift()
    logs = copy_of(w.store, "l0gc/")
    lost, _ = w.cluster.controller.create_topic("lost", 1)
    put(w.cluster, "lost", {0: [b"x"]})
    w.tick()
    reconcile(w.cluster)
    there = named(w.cluster, "lost")
    put_back(w.store, "l0gc/", logs)
    w.cluster = memory_cluster(w.store, seed=5, bootstrap=False)
    assert w.vacuum().problem is None  # the revision is above the epoch, like that of a newer topic
    w.tick(5)
    done = w.vacuum()
    assert there <= w.l1()
    assert done.unknown_folders == [f"level_one/data/lost-{lost.revision}/"]
    assert isinstance(done.problem, EpochRegressionError)


def test_a_topic_lost_by_the_controller_ends_the_vacuum(w: World) -> None:
    before = copy_of(w.store)
    w.tick(5)
    w.create()
    w.cluster.controller.create_topic("lost", 1)
    put(w.cluster, "lost", {0: [b"x"]})
    w.upload()
    begin(w.cluster)
    put_back(w.store, "l0gc/controller/", before)
    restored = memory_cluster(w.store, seed=5, bootstrap=False)
    there = w.l1()
    with pytest.raises(EpochRegressionError):
        w.vacuum(cluster=restored)
    assert w.l1() == there


# -- parts of the listing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_parts_cover_the_listing_and_agree_everywhere(count: int) -> None:
    w = World(5, journals=3)
    w.lift(3)
    w.cluster.controller.create_topic("events-2", 1)
    put(w.cluster, "events-2", {0: [b"x"]})
    reconcile(w.cluster)
    w.upload()
    begin(w.cluster)
    w.tick()
    source = JournalGarbage(w.cluster)
    source.refresh()
    source.fence(w.store.clock.ms, w.store.clock.ms, dry_run=False)
    parts = source.parts("level_one/data/", count)
    assert [p.start for p in parts] == ["", *(p.end for p in parts[:-1])]
    assert parts[-1].end is None
    assert len(parts) <= count
    keys = sorted(w.l1("level_one/data/"))
    for part in parts:
        inside = [k for k in keys if k > part.start and (part.end is None or k <= part.end)]
        here, there = (source.facts_reader(remote=remote)(w.store, part) for remote in (False, True))
        assert here(inside) == there(inside)
        assert all(f.fence > 0 for f in here(inside))
