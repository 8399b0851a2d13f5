"""Housekeeping: a quiet cluster advances, damage holds up only its own log, and the cost grows with the journals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from l0gc.errors import (
    AccessDeniedError,
    CorruptObjectError,
    EpochRegressionError,
    NotInitialisedError,
    SafetyError,
    StaleClusterEpochError,
)
from l0gc.keys import CONTROLLER_LOG, journal_log
from l0gc.storage.replica import CHECKPOINT_EVERY
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import Topic
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.admission import EpochWindow
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.handle import JournalHandle
from tests.support.journal import of_topic, reconciled
from tests.support.memory_store import (
    Call,
    MemoryStore,
    another_process,
    memory_cluster,
    publish_m,
    store_of,
    topic_in_memory,
)

INTERVAL_MS = 600_000


@pytest.fixture
def cluster() -> ClusterHandles:
    """Create a topic of four partitions in two journals."""
    return topic_in_memory(4, 2)


def events(cluster: ClusterHandles) -> Topic:
    return cluster.controller.snapshot().topic("events")


def an_object(cluster: ClusterHandles, epoch: int, number: int = 0) -> ObjectExtents:
    """Return an object with two records for the first partition, which is in journal 0."""
    return of_topic(events(cluster), epoch, {0: 2}, key=cluster.controller.layout().format(0, epoch, f"{number:036x}"))


def put(cluster: ClusterHandles, epoch: int | None = None) -> None:
    appended = cluster.journal(0).append([an_object(cluster, epoch or cluster.controller.snapshot().epoch)])
    assert appended.error is None


def reconcile(cluster: ClusterHandles) -> None:
    handle, revision = cluster.journal(0), events(cluster).revision
    last = handle.catch_up().topic(revision).view(0).next_offset - 1
    assert handle.land(reconciled(handle.state, {0: last}, revision=revision)).refused == {}


def windows(cluster: ClusterHandles) -> list[EpochWindow]:
    return [cluster.journal(j).catch_up().window for j in events(cluster).journals]


def m(cluster: ClusterHandles) -> int:
    """Return the lowest M(p) of all partitions."""
    ranges = events(cluster).partition_ranges()
    return min(
        cluster.journal(r.journal).catch_up().lowest(events(cluster).revision, r.first, r.count, 1)[0].gc_epoch
        for r in ranges
    )


def pass_interval(cluster: ClusterHandles) -> None:
    store_of(cluster).clock.ms += INTERVAL_MS


def deleted_and_another(cluster: ClusterHandles) -> None:
    """Delete the topic after a record landed, create another one, and let an interval pass."""
    put(cluster)
    cluster.controller.delete_topic("events")
    cluster.controller.create_topic("other", 2, 2)
    pass_interval(cluster)


def damage(cluster: ClusterHandles, journal: int, body: bytes = b"{}") -> str:
    """Spoil the last entry of a journal."""
    key = max(k for k in store_of(cluster).objects if k.startswith(journal_log(journal) + "log/"))
    store_of(cluster).objects[key].body = body
    return key


# -- the epoch and the windows -----------------------------------------------------------------------------------------


def test_m_follows_the_epoch_through_idle_journals(cluster: ClusterHandles) -> None:
    epochs = []
    for n in range(4):
        pass_interval(cluster)
        result = housekeep(another_process(cluster, n))
        assert (result.ticked, result.advanced, result.broken) == (True, 2, [])
        assert (result.journals, result.partitions) == (2, 4)
        epochs.append(result.cluster_epoch)
        previous = epochs[-2] if n else 0
        assert windows(cluster) == [EpochWindow(previous, epochs[-1])] * 2
        assert m(cluster) == max(previous, 1) - 1
    assert epochs == [2, 3, 4, 5]


def test_a_journal_that_no_topic_uses_is_left_alone() -> None:
    cluster = topic_in_memory(4)
    pass_interval(cluster)
    assert housekeep(cluster).advanced == 1
    used = {k.split("/")[2] for k in store_of(cluster).objects if k.startswith("l0gc/journal/")}
    assert used == {"0000"}


def test_before_the_interval_is_over_nothing_ticks_and_nothing_is_appended(cluster: ClusterHandles) -> None:
    pass_interval(cluster)
    housekeep(cluster)
    objects = set(store_of(cluster).objects)
    store_of(cluster).clock.ms += INTERVAL_MS * 9 // 10
    result = housekeep(cluster)
    assert (result.ticked, result.advanced, result.cluster_epoch) == (False, 0, 2)
    assert set(store_of(cluster).objects) == objects


def test_a_barrier_ticks_in_any_case_and_closes_every_window(cluster: ClusterHandles) -> None:
    put(cluster)
    reconcile(cluster)
    result = housekeep(another_process(cluster), barrier=True)
    assert (result.ticked, result.barriers, result.advanced) == (True, 2, 0)
    assert windows(cluster) == [EpochWindow(2, 2)] * 2
    assert m(cluster) == 1  # M passes everything uploaded before


def test_a_barrier_frees_nothing_that_is_unreconciled(cluster: ClusterHandles) -> None:
    put(cluster)
    for _ in range(3):
        housekeep(cluster, barrier=True)
    assert m(cluster) == 0


def test_a_straggler_after_a_barrier_is_refused(cluster: ClusterHandles) -> None:
    put(cluster)
    housekeep(another_process(cluster), barrier=True)
    late = cluster.journal(0).append([an_object(cluster, 1, number=1)])
    assert isinstance(late.error, StaleClusterEpochError)


# -- checkpoints and truncation ----------------------------------------------------------------------------------------


def test_what_a_writers_own_checkpoint_covers_is_truncated() -> None:
    cluster = topic_in_memory(4)
    handle = cluster.journal(0)
    for _ in range(CHECKPOINT_EVERY + 2):
        handle.advance(cluster.controller.advance())
    assert handle.replica.checkpoint_offset == CHECKPOINT_EVERY - 1
    pass_interval(cluster)
    pass_interval(cluster)
    result = housekeep(another_process(cluster))
    assert result.truncated_entries >= CHECKPOINT_EVERY - 1
    states = another_process(cluster, 2).journal(0).catch_up(), handle.catch_up()
    assert len({JournalMachine(0).encode(state) for state in states}) == 1


def test_what_is_truncated_is_in_a_checkpoint(cluster: ClusterHandles) -> None:
    for n in range(8):
        put(cluster, n + 1)
        pass_interval(cluster)
        result = housekeep(another_process(cluster, n))
        truth = cluster.journal(0).catch_up()  # this handle has followed the whole log and reads no checkpoint
        assert another_process(cluster, 20 + n).journal(0).catch_up().topic(1).totals() == truth.topic(1).totals()
    assert truth.topic(1).totals().records == 16
    assert result.truncated_entries > 0
    for folder in (CONTROLLER_LOG, journal_log(0), journal_log(1)):
        assert len([k for k in store_of(cluster).objects if k.startswith(f"{folder}log/")]) < 10
        assert len([k for k in store_of(cluster).objects if k.startswith(f"{folder}checkpoint/")]) == 2


def test_a_short_log_is_left_as_it_is(cluster: ClusterHandles) -> None:
    put(cluster)
    assert housekeep(cluster).checkpoints == 0
    assert not [k for k in store_of(cluster).objects if "/checkpoint/" in k]


# -- damaged journals and deleted topics -------------------------------------------------------------------------------


def test_a_damaged_journal_is_named_and_holds_m_while_the_others_move(cluster: ClusterHandles) -> None:
    pass_interval(cluster)
    housekeep(cluster)
    key = damage(cluster, 1)
    for n in range(3):
        pass_interval(cluster)
        process = another_process(cluster, n)
        result = housekeep(process)
        assert result.advanced == 1
        (broken,) = result.broken
        assert (broken.journal, broken.log) == (1, "journal 1")
        assert key in broken.error
    assert process.journal(0).catch_up().window == EpochWindow(4, 5)
    with pytest.raises(CorruptObjectError):
        process.journal(1).catch_up()


@pytest.mark.parametrize("kind", ["put_if_absent", "get", "list"])
def test_a_refused_journal_is_named_and_housekeeping_continues(cluster: ClusterHandles, kind: str) -> None:
    """The refusal stops the housekeeping of that journal alone."""
    pass_interval(cluster)
    process = another_process(cluster)
    store_of(cluster).fault = refusing(lambda c: c.kind == kind and c.key.startswith(journal_log(1)))
    result = housekeep(process)
    assert (result.ticked, result.advanced) == (True, 1)
    assert [(b.journal, b.error) for b in result.broken] == [(1, "not now")]


def test_a_refused_tick_is_named_and_journals_follow_the_epoch(cluster: ClusterHandles) -> None:
    """The windows still advance to the newest epoch."""
    cluster.controller.advance()
    pass_interval(cluster)
    store_of(cluster).fault = refusing(lambda c: c.kind == "put_if_absent" and c.key.startswith(CONTROLLER_LOG))
    result = housekeep(another_process(cluster))
    assert (result.ticked, result.cluster_epoch, result.advanced) == (False, 2, 2)
    assert [(b.journal, b.log) for b in result.broken] == [(None, "the controller's log")]


def test_an_unclosable_topic_does_not_stop_housekeeping(cluster: ClusterHandles) -> None:
    """The next run closes the topic."""
    deleted_and_another(cluster)
    taken: list[str] = []

    def first_closing(call: Call) -> bool:
        """Match the second entry of journal 0, the closing after the advance."""
        if call.kind == "put_if_absent" and call.when == "before" and call.key.startswith(journal_log(0) + "log/"):
            taken.append(call.key)
        return len(taken) == 2 and call.key == taken[1]

    store_of(cluster).fault = refusing(first_closing)
    result = housekeep(another_process(cluster))
    assert (result.advanced, result.closed, [b.journal for b in result.broken]) == (2, 1, [0])
    store_of(cluster).fault = lambda call: None
    again = housekeep(another_process(cluster, 2))
    assert (again.closed, again.broken) == (1, [])


def test_a_journal_unreadable_after_its_advance_does_not_stop_housekeeping(
    cluster: ClusterHandles,
) -> None:
    """Another read decides whether a deleted topic is closed there, and it may fail, too."""
    deleted_and_another(cluster)
    failed: list[str] = []

    def from_the_advance_on(call: Call) -> bool:
        if call.kind == "put_if_absent" and call.key.startswith(journal_log(0)):
            failed.append(call.key)
        return bool(failed) and call.key.startswith(journal_log(0))

    store_of(cluster).fault = refusing(from_the_advance_on)
    result = housekeep(another_process(cluster))
    assert (result.advanced, result.closed, [b.journal for b in result.broken]) == (1, 1, [0])


def refusing(which: Callable[[Call], bool]) -> Callable[[Call], None]:
    def fault(call: Call) -> None:
        if call.when == "before" and which(call):
            raise AccessDeniedError("not now")

    return fault


def test_a_deleted_topic_is_closed_once_in_each_journal_that_kept_it(cluster: ClusterHandles) -> None:
    revision = events(cluster).revision
    cluster.controller.delete_topic("events")  # the deleter crashes here
    cluster.controller.create_topic("events", 1)
    process = another_process(cluster)
    assert housekeep(process).closed == 2
    assert housekeep(another_process(cluster, 2)).closed == 0
    assert all(process.journal(j).catch_up().closed(revision) for j in (0, 1))
    assert not process.journal(0).catch_up().closed(events(cluster).revision)  # its namesake stays open


def test_a_topic_whose_deleter_died_is_closed_however_many_epochs_have_passed(cluster: ClusterHandles) -> None:
    """Hazard 6: the topic's deleter may die before it closes the topic in its journals."""
    put(cluster)
    revision = events(cluster).revision
    cluster.controller.delete_topic("events")  # the deleter crashes here
    cluster.controller.advance_above(3000)
    process = another_process(cluster)
    assert housekeep(process).closed == 2
    assert all(process.journal(j).catch_up().closed(revision) for j in (0, 1))


def test_all_deleted_topics_of_a_journal_are_closed_by_one_entry() -> None:
    """Requests grow with journals, never with topics."""
    cluster = memory_cluster()
    gone = []
    for n in range(300):
        cluster.controller.create_topic(f"t{n}", 2, 2)
        gone.append(cluster.controller.delete_topic(f"t{n}").revision)
    process = another_process(cluster)
    store_of(cluster).requests.clear()
    assert housekeep(process).closed == 600
    assert [process.journal(j).replica.offset for j in (0, 1)] == [0, 0]
    assert process.journal(1).state.closed_revisions.tolist() == gone
    assert store_of(cluster).requests.total() <= 12 * 2 + 20


def test_a_damaged_journal_of_a_deleted_topic_stops_nobody(cluster: ClusterHandles) -> None:
    put(cluster)
    key = damage(cluster, 0)
    gone = cluster.controller.delete_topic("events")
    cluster.controller.create_topic("other", 1)  # journal 0 keeps both topics
    cluster.controller.create_topic("another", 1)
    pass_interval(cluster)
    process = another_process(cluster)
    result = housekeep(process)
    assert result.advanced == 1
    assert process.journal(1).catch_up().closed(gone.revision)
    assert [key in b.error for b in result.broken] == [True]


# -- a controller log that was set back (hazard 10) --------------------------------------------------------------------


def test_a_journal_above_the_cluster_epoch_is_named_and_left(cluster: ClusterHandles) -> None:
    for _ in range(3):
        pass_interval(cluster)
        housekeep(cluster)
    store = store_of(cluster)
    for key in [k for k in store.objects if k.startswith(CONTROLLER_LOG) and k[-20:].isdigit() and int(k[-20:]) > 1]:
        del store.objects[key]
    before = {k: o.body for k, o in store.objects.items()}
    result = housekeep(another_process(cluster))
    assert [b.journal for b in result.broken] == [0, 1]
    assert "has seen epoch 4, above the cluster epoch 2" in result.broken[0].error
    assert {k: o.body for k, o in store.objects.items() if k.startswith("l0gc/journal/")} == {
        k: body for k, body in before.items() if k.startswith("l0gc/journal/")
    }


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize(("m", "epoch"), [(9, 9), (0, 9)])
@pytest.mark.parametrize("ticks", [False, True])
def test_where_what_is_published_is_above_the_epoch_nothing_is_written(
    cluster: ClusterHandles, m: int, epoch: int, *, barrier: bool, ticks: bool
) -> None:
    """A published M or epoch above the cluster epoch shows a restored controller log."""
    publish_m(cluster, m, epoch)
    if ticks:
        pass_interval(cluster)
    objects = dict(store_of(cluster).objects)
    with pytest.raises(EpochRegressionError):
        housekeep(another_process(cluster), barrier=barrier)
    assert store_of(cluster).objects == objects


def test_without_own_journals_housekeeping_does_nothing() -> None:
    with pytest.raises(NotInitialisedError):
        housekeep(memory_cluster(bootstrap=False))
    cluster = memory_cluster(bootstrap=False)
    cluster.controller.bootstrap(shards=4, external_log=True)
    with pytest.raises(SafetyError, match="another system"):
        housekeep(cluster)


# -- checkpoints after a lost append (hazard 18) -----------------------------------------------------------------------


def append(handle: JournalHandle, o: ObjectExtents) -> None:
    error = handle.append([o]).error
    assert error is not None
    raise error


LOST: list[Callable[[JournalHandle, ObjectExtents], object]] = [
    append,
    lambda handle, o: handle.advance(6),
    lambda handle, o: handle.barrier(6),
]


@pytest.mark.parametrize("lose", LOST, ids=["objects", "advance", "barrier"])
def test_what_never_landed_is_in_no_checkpoint(lose: Callable[[JournalHandle, ObjectExtents], object]) -> None:
    """Hazard 18: a checkpoint must not contain more than the log."""
    cluster = topic_in_memory(4)
    for _ in range(5):
        cluster.controller.advance()
    put(cluster, 2)
    lost = an_object(cluster, 6, number=1)
    store_of(cluster).fault = refusing(lambda c: c.kind == "put_if_absent" and c.key.startswith("l0gc/journal/"))
    with pytest.raises(AccessDeniedError):
        lose(cluster.journal(0), lost)
    store_of(cluster).fault = lambda call: None
    cluster.journal(0).replica.write_checkpoint()
    truth = another_process(cluster).journal(0).catch_up()  # read from that checkpoint
    assert truth.window == EpochWindow(0, 2)
    assert truth.topic(1).totals() == without_checkpoints(cluster).journal(0).catch_up().topic(1).totals()


def without_checkpoints(cluster: ClusterHandles) -> ClusterHandles:
    copy = MemoryStore(store_of(cluster).clock)
    copy.objects = {k: o for k, o in store_of(cluster).objects.items() if "/checkpoint/" not in k}
    return memory_cluster(copy, seed=5, bootstrap=False)


# -- cost --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 1024, 100_000])
@pytest.mark.parametrize("journals", [1, 3])
def test_an_idle_cluster_costs_12_requests_for_each_journal_and_20(partitions: int, journals: int) -> None:
    cluster = topic_in_memory(max(partitions, journals), journals)
    store, most = store_of(cluster), 0
    for n in range(12):
        pass_interval(cluster)
        process = another_process(cluster, n)
        store.requests.clear()
        assert housekeep(process).advanced == journals
        most = max(most, store.requests.total())
    assert most <= 12 * journals + 20


def test_topics_that_were_deleted_long_ago_cost_nothing() -> None:
    cluster = topic_in_memory(4)
    for n in range(40):
        cluster.controller.create_topic(f"t{n}", 1)
        cluster.controller.delete_topic(f"t{n}")
    for n in range(3):
        pass_interval(cluster)
        housekeep(another_process(cluster, n))
    pass_interval(cluster)
    process = another_process(cluster, 9)
    store_of(cluster).requests.clear()
    assert housekeep(process).closed == 0
    journals = len({k.split("/")[2] for k in store_of(cluster).objects if k.startswith("l0gc/journal/")})
    assert store_of(cluster).requests.total() <= 12 * journals + 20
