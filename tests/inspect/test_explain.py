"""`explain` names what holds an object, an epoch or a partition, and a command that moves it."""

from __future__ import annotations

import re

import pytest

from l0gc.collect.sweep import SweepRun
from l0gc.errors import CorruptObjectError, NotFoundError, SafetyError, UsageError
from l0gc.inspect.explain import explain_epoch, explain_key, explain_partition
from l0gc.inspect.overview_reader import read_overview
from l0gc.keys import ATTEMPTS, CONTROLLER_LOG, GC_NOTE, L1_DATA, PAUSED, PUBLISHED_WATERMARK, RUNS, journal_log
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.delete_records import delete_records
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.pins import create_pin
from l0gc.watermark.source import IDLE, UNRECONCILED
from tests.support.memory_store import Call, another_process, external_cluster, publish_m, store_of, topic_in_memory
from tests.support.verify import compute_and_publish, handle_of, lift, put


@pytest.fixture
def needed() -> tuple[ClusterHandles, str]:
    """Create a cluster with one topic of two partitions, and one object that both refer to."""
    cluster = topic_in_memory(2)
    return cluster, put(cluster, {0: 1, 1: 3})


def spoil(cluster: ClusterHandles) -> str:
    """Damage the topic's journal; return the key of the damaged entry."""
    key = max(k for k in store_of(cluster).objects if k.startswith(journal_log(0) + "log/"))
    store_of(cluster).put(key, b"nonsense")
    return key


# -- a key --------------------------------------------------------------------------------------------------------------


def test_an_object_that_a_journal_names_is_needed_and_reconcile_moves_it(needed: tuple[ClusterHandles, str]) -> None:
    cluster, key = needed
    for _ in range(2):
        housekeep(cluster, barrier=True)
    e = explain_key(cluster, key)
    assert (e.verdict, e.next, e.held_by) == ("needed", "l0gc reconcile", 2)
    assert [h.key for h in e.holders] == [key, key]
    assert e.explanation[1] == (
        "Partition events/1 needs it: entry 0 of journal 0 refers to it for the records 0 to 2, which are not in L1 yet."
    )
    lift(cluster)
    assert explain_key(cluster, key).verdict == "releasable"


def test_an_object_kept_by_a_pin_is_held_until_its_end(needed: tuple[ClusterHandles, str]) -> None:
    cluster, key = needed
    create_pin(cluster, "backup", 3_600_000)
    lift(cluster)
    for _ in range(2):
        housekeep(cluster, barrier=True)
    e = explain_key(cluster, key)
    assert (e.verdict, e.held_by) == ("held", 0)
    assert e.explanation[-1].startswith("M stays at 0 because of pin 'backup' until ")
    assert e.next == "wait until the pin ends, or delete it with l0gc pin delete, then l0gc compute-watermark"
    cluster.controller.delete_pin("backup")
    assert explain_key(cluster, key).verdict == "releasable"


def test_what_is_reconciled_is_held_by_the_window_until_housekeeping_slides_it(
    needed: tuple[ClusterHandles, str],
) -> None:
    cluster, key = needed
    lift(cluster)
    e = explain_key(cluster, key)
    assert (e.verdict, e.held_by) == ("held", 2)
    assert "No journal refers to it any more" in e.explanation[0]
    assert "of its journal may still take epoch 1" in e.explanation[1]
    assert e.next == "nothing to do: epoch 1 is free in about 20 min, or now with l0gc gc --housekeep-barrier"


@pytest.mark.parametrize("happened", ["", "topic", "barrier", "barrier topic", "tick", "tick tick", "late"])
@pytest.mark.parametrize("behind", [0, 1, 2])
def test_what_windows_hold_is_free_when_it_says_and_not_before(happened: str, behind: int) -> None:
    """The window may have moved in any way. Housekeeping runs once before the first tick, and then after each tick."""
    cluster = topic_in_memory(2)
    clock, interval_s = store_of(cluster).clock, cluster.epoch_interval_s
    put(cluster, {0: 1})
    for n, what in enumerate(happened.split()):
        if what == "topic":
            cluster.controller.create_topic(f"other-{n}", 2)
        elif what == "barrier":
            housekeep(cluster, barrier=True)
        else:
            clock.sleep(interval_s)
            if what == "tick":
                housekeep(cluster)
    epoch = max(0, cluster.controller.epoch() - behind)
    put(cluster, {0: 1})
    lift(cluster)
    advice, ticks = explain_epoch(cluster, epoch).next, 0
    housekeep(cluster)
    while explain_epoch(cluster, epoch).verdict == "held":
        clock.sleep(interval_s)
        housekeep(cluster)
        ticks += 1
    minutes = re.search(r"^nothing to do: epoch \d+ is free in about (\d+) min", advice)
    assert ticks == round(int(minutes[1]) / 10 if minutes else 0), advice
    assert minutes or advice.startswith("l0gc ") or "with the next l0gc gc" in advice


def test_what_no_partition_needs_is_released_by_a_new_watermark(needed: tuple[ClusterHandles, str]) -> None:
    cluster, key = needed
    lift(cluster)
    housekeep(cluster, barrier=True)
    e = explain_key(cluster, key)
    assert (e.verdict, e.next) == ("releasable", "l0gc compute-watermark")
    compute_and_publish(cluster)
    e = explain_key(cluster, key)
    assert (e.verdict, e.next) == ("eligible", "l0gc sweep")
    cluster.store.delete([key])
    assert explain_key(cluster, key).verdict == "gone"


def test_of_an_object_that_a_sweep_deleted_the_run_is_named(needed: tuple[ClusterHandles, str]) -> None:
    cluster, key = needed
    lift(cluster)
    for _ in range(2):
        housekeep(cluster, barrier=True)
    compute_and_publish(cluster)
    run = SweepRun(cluster).run().run_id
    e = explain_key(cluster, key)
    assert e.verdict == "gone"
    assert e.explanation[0].startswith(f"There is no such object; run {run} (sweep) deleted it (")
    assert e.explanation[0].endswith("no version of it was kept, so only a backup brings it back.")
    never = f"{key[:-4]}0000"
    assert "no recorded run deleted it" in explain_key(cluster, never).explanation[0]


def test_foreign_objects_are_never_deleted_and_unknown_keys_are_not_found(needed: tuple[ClusterHandles, str]) -> None:
    cluster, _ = needed
    for key in ("level_zero/data/README", "level_one/data/README", "l0gc/README", f"{CONTROLLER_LOG}log/README"):
        cluster.store.put(key, b"x")
        assert explain_key(cluster, key).verdict == "foreign"
    for unknown, end in {
        "nonsense": "of its keys",
        "": "of its keys",
        "level_zero/data/": "of its keys",
        "level_zero/data/7": "of its keys",
        "5": "explain an epoch by --epoch 5",
        "events/1": "explain a partition by --partition events/1",
    }.items():
        with pytest.raises(NotFoundError, match=f"{end}$"):
            explain_key(cluster, unknown)


def test_every_key_of_l0gc_is_named_and_none_called_removable(needed: tuple[ClusterHandles, str]) -> None:
    cluster, l0 = needed
    lift(cluster)
    compute_and_publish(cluster)
    records = (
        f"{RUNS}20260101T000000Z-1/run.json",
        GC_NOTE,
        PAUSED,
        f"{ATTEMPTS}merge.json",
        "l0gc/probe/1/condition-1",
    )
    for key in (*records, f"{journal_log(3)}boundary.json", f"{CONTROLLER_LOG}checkpoint/{7:020}"):
        cluster.store.put(key, b"x")
    said = {key: explain_key(cluster, key) for key in store_of(cluster).objects if key != l0}
    for key, e in said.items():
        assert (e.verdict, e.next.startswith("nothing: leave it to l0gc; ")) == ("own", True), key
    assert said[f"{CONTROLLER_LOG}log/{1:020}"].explanation == ["This is entry 1 of the controller log."]
    assert said[f"{journal_log(0)}log/{0:020}"].explanation == ["This is entry 0 of the log of journal 0."]
    assert said[records[0]].explanation == ["This is a part of the record of run 20260101T000000Z-1."]


def test_an_l1_object_is_live_dropped_or_left_over(needed: tuple[ClusterHandles, str]) -> None:
    cluster, _ = needed
    lift(cluster)
    (key,) = (k for k in store_of(cluster).objects if k.startswith(f"{L1_DATA}events-1/00001/"))
    assert explain_key(cluster, key).explanation == [
        "This is the L1 object with the records 0 to 2 of partition events/1, revision 1 of the topic.",
        "Journal 0 names it: its records are live.",
    ]
    other = f"{key[: -len('.parquet') - 36]}{cluster.runtime.new_id()}.parquet"
    cluster.store.put(other, b"x")
    assert explain_key(cluster, other).explanation[1].startswith("No journal that could be read names it")
    store_of(cluster).delete([key, other])
    lost, gone = explain_key(cluster, key), explain_key(cluster, other)
    assert (lost.verdict, lost.next.startswith("restore the named object")) == ("missing", True)
    assert (gone.verdict, gone.next) == ("gone", "nothing")
    assert gone.explanation[2] == "There is no such object; no recorded run deleted it."
    delete_records(cluster, "events", 1, before_offset=3)
    e = explain_key(cluster, key)
    assert (e.verdict, e.explanation[1].startswith("Journal 0 has dropped it")) == ("gone", True)


def test_of_an_entry_that_was_truncated_it_is_said_what_it_was(needed: tuple[ClusterHandles, str]) -> None:
    cluster, _ = needed
    e = explain_key(cluster, f"{journal_log(0)}log/{77:020}")
    assert (e.verdict, e.next) == ("gone", "nothing; housekeep deletes it once a checkpoint covers it")
    assert e.explanation == ["There is no such object. This is entry 77 of the log of journal 0."]


def test_an_object_swept_after_the_journal_reading_is_not_missing(
    needed: tuple[ClusterHandles, str],
) -> None:
    cluster, key = needed
    store = store_of(cluster)

    def collect(call: Call) -> None:
        if call.kind == "head" and call.key == key:
            store.fault = lambda call: None
            other = another_process(cluster)
            lift(other)
            housekeep(other, barrier=True)
            compute_and_publish(other)
            other.store.delete([key])

    store.fault = collect
    assert explain_key(cluster, key).verdict == "gone"
    assert key not in store.objects


def test_an_object_that_is_lost_is_missing(needed: tuple[ClusterHandles, str]) -> None:
    cluster, key = needed
    cluster.store.delete([key])
    e = explain_key(cluster, key)
    assert (e.verdict, e.held_by) == ("missing", 2)
    assert e.next.startswith("restore it")


def test_a_damaged_object_is_restored_or_given_up_and_not_reconciled(needed: tuple[ClusterHandles, str]) -> None:
    cluster, key = needed
    body = store_of(cluster).objects[key].body
    cluster.store.put(key, bytes(len(body)))
    e = explain_key(cluster, key)
    assert (e.verdict, e.next.startswith("restore it from a version or a backup, or give its records up")) == (
        "damaged",
        True,
    )
    assert "does not match the checksum" in " ".join(e.explanation)


def test_an_own_object_is_explained_with_the_cause_that_blocks_everything(needed: tuple[ClusterHandles, str]) -> None:
    cluster, _ = needed
    cluster.store.put(PUBLISHED_WATERMARK, b"nonsense")
    e = explain_key(cluster, PUBLISHED_WATERMARK)
    assert (e.verdict, e.next) == ("own", read_overview(cluster).causes[0].remedy)
    assert "until this is fixed" in e.explanation[-1]


@pytest.mark.parametrize(
    ("partitions", "others"), [(40, "So do 30 more partitions."), (11, "So does 1 more partition.")]
)
def test_many_partitions_needing_an_object_are_counted(partitions: int, others: str) -> None:
    cluster = topic_in_memory(partitions)
    key = put(cluster, dict.fromkeys(range(partitions), 1))
    e = explain_key(cluster, key)
    assert (e.held_by, len(e.holders), e.explanation[-1]) == (partitions, 10, others)
    e = explain_epoch(cluster, 1)
    assert (e.held_by, len(e.holders), e.explanation[-1]) == (partitions, 10, others)


# -- an epoch -----------------------------------------------------------------------------------------------------------


def test_an_epoch_is_held_by_the_lowest_partitions_first(needed: tuple[ClusterHandles, str]) -> None:
    cluster, key = needed
    cluster.controller.create_topic("younger", 2)
    for _ in range(2):
        handle_of(cluster).advance(cluster.controller.advance())
    e = explain_epoch(cluster, 3)
    assert (e.verdict, e.held_by, e.next) == ("held", 4, "l0gc reconcile")
    assert [(h.name, h.gc_epoch, h.kind) for h in e.holders] == [
        ("events/0", 0, UNRECONCILED),
        ("events/1", 0, UNRECONCILED),
        ("younger/0", 1, IDLE),
        ("younger/1", 1, IDLE),
    ]
    assert e.holders[0].key == key
    assert explain_epoch(cluster, 1).held_by == 2


def test_a_future_epoch_is_a_fault_only_if_an_object_has_it(
    needed: tuple[ClusterHandles, str],
) -> None:
    cluster, _ = needed
    e = explain_epoch(cluster, 99)
    assert (e.verdict, e.next) == ("not begun", "nothing")
    assert e.explanation == ["The cluster epoch is 1: epoch 99 has not begun, and holds nothing."]
    key = cluster.controller.layout().format(1, 99, cluster.runtime.new_id())
    cluster.store.put(key, b"x")
    e = explain_key(cluster, key)
    assert (e.verdict, e.next.startswith("restore the newest controller log")) == ("above the cluster epoch", True)
    assert e.explanation == [f"The key {key} claims epoch 99, above the cluster epoch 1; M is refused."]


def test_what_windows_and_a_pin_hold_is_not_free_with_the_window(needed: tuple[ClusterHandles, str]) -> None:
    cluster, _ = needed
    create_pin(cluster, "backup", 3_600_000)
    lift(cluster)
    e = explain_epoch(cluster, 1)
    assert (e.verdict, e.next.startswith("wait until the pin ends")) == ("held", True)


# -- a partition --------------------------------------------------------------------------------------------------------


def test_the_explanation_of_a_partition_says_what_it_holds(needed: tuple[ClusterHandles, str]) -> None:
    cluster, key = needed
    handle_of(cluster).barrier(cluster.controller.advance())
    e = explain_partition(cluster, "events/1")
    assert (e.verdict, e.holders[0].key, e.next) == ("holds", key, "l0gc reconcile")
    assert "3 unreconciled records from epoch 1 on" in e.explanation[0]
    lift(cluster)
    cluster.controller.create_topic("another", 1)
    handle_of(cluster).barrier(cluster.controller.advance())
    e = explain_partition(cluster, "events/1")
    assert (e.verdict, e.next[:20]) == ("does not hold M", "nothing to do: epoch")
    e = explain_partition(cluster, "another/0")
    assert "--barrier" in e.explanation[-1]


@pytest.mark.parametrize(
    ("name", "error"), [("events", UsageError), ("events/x", UsageError), ("events/9", NotFoundError)]
)
def test_a_partition_that_is_none_is_refused(
    needed: tuple[ClusterHandles, str], name: str, error: type[Exception]
) -> None:
    cluster, _ = needed
    with pytest.raises(error):
        explain_partition(cluster, name)


# -- damage -------------------------------------------------------------------------------------------------------------


def test_a_journal_that_cannot_be_read_is_named(needed: tuple[ClusterHandles, str]) -> None:
    cluster, _ = needed
    cluster.controller.create_topic("other", 2)
    other = put(cluster, {0: 1}, "other")
    entry = spoil(cluster)
    e = explain_epoch(another_process(cluster), 2)
    assert [entry in b for b in e.broken] == [True]
    assert e.next.startswith("restore")
    assert explain_key(another_process(cluster), other).verdict == "needed"
    with pytest.raises(CorruptObjectError, match="journal 0 cannot be read"):
        explain_partition(another_process(cluster), "events/0")


def test_an_unreadable_journal_leaves_references_unknown(needed: tuple[ClusterHandles, str]) -> None:
    cluster, key = needed
    spoil(cluster)
    e = explain_key(another_process(cluster), key)
    assert (e.verdict, len(e.broken)) == ("held", 1)
    assert not [s for s in e.explanation if "No journal refers" in s]


def test_of_another_systems_log_only_m_is_known() -> None:
    cluster = external_cluster()
    key = cluster.controller.layout().format(1, 41, cluster.runtime.new_id())
    cluster.store.put(key, b"x")
    e = explain_key(cluster, key)
    assert (e.verdict, e.watermark, e.cluster_epoch, e.explanation[1:]) == ("held", -1, -1, [])
    assert e.next.startswith("l0gc compute-watermark --reports")
    publish_m(cluster, 40, 50)
    assert explain_key(cluster, key).verdict == "held"
    assert explain_epoch(cluster, 51).verdict == "held"
    e = explain_epoch(cluster, 40)
    assert (e.verdict, e.cluster_epoch) == ("eligible", 50)
    with pytest.raises(SafetyError, match="events/0 belongs to another system"):
        explain_partition(cluster, "events/0")
