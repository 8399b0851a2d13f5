"""Status: what M is, what holds it back, and what to do next; from the journals, and without a change."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from l0gc.collect.attempts import Attempt, write_attempt
from l0gc.collect.pause import set_pause
from l0gc.collect.record import Removed, RunSummary, write_summary
from l0gc.errors import AccessDeniedError, NotInitialisedError
from l0gc.inspect.status import status
from l0gc.keys import CONTROLLER_LOG, journal_log
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.give_up import give_up
from l0gc.streamlog.housekeep import housekeep
from l0gc.watermark.pipeline import run_pipeline
from l0gc.watermark.publication import PublishedWatermark, publish
from l0gc.watermark.source import IDLE, UNREADABLE, UNRECONCILED, Holder
from tests.support.journal import extents_of
from tests.support.memory_store import (
    Call,
    another_process,
    external_cluster,
    failing,
    memory_cluster,
    store_of,
    topic_in_memory,
)
from tests.support.verify import compute_and_publish, handle_of, lift, object_of, put, scan_and_publish, topic_of

EACH = {0: 2, 1: 2}


def publish_counts(cluster: Handles, objects: int = -1, *, cluster_id: str = "") -> None:
    """Publish M with what a listing found."""
    s = status(cluster)
    assert s.computable_watermark is not None
    at = cluster.store.now_ms()
    new = PublishedWatermark(cluster_id or s.cluster_id, s.computable_watermark, s.cluster_epoch, at, objects, objects)
    publish(cluster.store, cluster.runtime, new)


def causes(cluster: Handles) -> list[str]:
    return [c.cause for c in status(cluster).causes]


# -- M, what holds it, and what to do -----------------------------------------------------------------------------------


def test_the_next_step_leads_from_an_upload_to_an_empty_l0() -> None:
    cluster = topic_in_memory(2)
    compute_and_publish(cluster)
    assert status(cluster).next.startswith("nothing")
    put(cluster, EACH)
    assert status(cluster).next.startswith("l0gc reconcile")
    lift(cluster)
    for _ in range(3):
        cluster.controller.advance()
    assert status(cluster).next.startswith("l0gc housekeep")
    housekeep(cluster)
    housekeep(cluster, barrier=True)
    assert status(cluster).next.startswith("l0gc compute-watermark")
    compute_and_publish(cluster)
    s = status(cluster)
    assert s.next.startswith("nothing")
    assert s.watermark == s.computable_watermark == s.cluster_epoch - 1


def test_with_nothing_to_do_it_says_when_what_is_held_becomes_free() -> None:
    """And it does: after that many ticks, and at once with a barrier."""
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    lift(cluster)
    scan_and_publish(cluster)
    s = status(cluster)
    assert s.next == "nothing to do: 1 object becomes garbage in about 20 min, or now with l0gc gc --barrier"
    housekeep(cluster, barrier=True)
    scan_and_publish(cluster)
    assert status(cluster).next == "l0gc sweep"


def test_a_window_of_one_epoch_needs_two_ticks_and_says_so() -> None:
    cluster = topic_in_memory(2)
    housekeep(cluster, barrier=True)
    observed = []
    for _ in range(2):
        observed.append(status(cluster).held_back_by[0].reason.partition("; it moves with the ")[2].partition(" (")[0])
        before = status(cluster).computable_watermark
        cluster.controller.advance()
        housekeep(cluster)
        observed.append("moved" if status(cluster).computable_watermark != before else "stood")
    assert observed == ["second tick from now", "stood", "next tick", "moved"]


def test_counts_come_from_the_journals() -> None:
    cluster = topic_in_memory(2)
    put(cluster, {0: 3, 1: 4})
    lift(cluster)
    put(cluster, EACH)
    s = status(another_process(cluster))
    assert (s.topics, s.partitions, s.journals) == (1, 2, 1)
    assert (s.records, s.unreconciled_records, s.cluster_epoch) == (11, 4, 1)
    assert (s.watermark, s.eligible_objects, s.held_partitions) == (-1, -1, 2)
    assert [(h.name, h.gc_epoch, h.kind, h.unreconciled_records) for h in s.held_back_by] == [
        ("events/0", 0, UNRECONCILED, 2),
        ("events/1", 0, UNRECONCILED, 2),
    ]
    assert s.held_back_by[0].oldest_ms == store_of(cluster).objects[s.held_back_by[0].key].modified_ms


def test_what_holds_m_is_what_m_is_computed_from() -> None:
    cluster = topic_in_memory(2)
    cluster.controller.create_topic("quiet", 3, 2)
    put(cluster, {1: 2})
    for _ in range(2):
        cluster.journal(0).advance(cluster.controller.advance())
    s, computed = status(cluster), run_pipeline(cluster, JournalSource(cluster))
    assert (s.computable_watermark, s.partitions) == (computed.watermark, computed.partitions)
    assert [Holder(*msgspec.structs.astuple(h)[:-1]) for h in s.held_back_by] == computed.held_back_by
    assert {h.kind for h in s.held_back_by} == {IDLE, UNRECONCILED}


def test_without_topics_m_is_the_epoch() -> None:
    cluster = memory_cluster()
    cluster.controller.advance()
    s = status(cluster)
    assert (s.computable_watermark, s.cluster_epoch, s.held_back_by, s.held_partitions) == (1, 1, [], 0)


def test_a_deleted_topic_holds_nothing() -> None:
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    cluster.controller.delete_topic("events")
    s = status(cluster)
    assert (s.computable_watermark, s.records, s.held_back_by, s.errors) == (2, 0, [], [])


def test_a_topic_that_was_deleted_a_day_ago_and_is_not_closed_in_a_journal_is_a_warning() -> None:
    """Its deleter died before it reached the journals, and nobody housekeeps."""
    cluster = topic_in_memory(2)
    cluster.controller.delete_topic("events")
    store_of(cluster).clock.sleep(23 * 3600)
    assert status(cluster).warnings == []
    store_of(cluster).clock.sleep(2 * 3600)
    (warning,) = status(cluster).warnings
    assert warning.cause == "unclosed_topic"
    assert (
        "topic 'events' (revision 1) was deleted more than a day ago and is not closed in journal 0" in warning.detail
    )
    housekeep(cluster)
    assert status(cluster).warnings == []


def test_the_age_of_m_is_that_of_the_epoch_after_it() -> None:
    cluster = topic_in_memory(2)
    store = store_of(cluster)
    for _ in range(3):
        store.clock.sleep(600)
        cluster.controller.advance()
        housekeep(cluster)
    compute_and_publish(cluster)
    store.clock.sleep(60)
    s = status(cluster)
    # M is 2 at epoch 4: epoch 3 began one tick and a minute ago.
    assert (s.watermark, s.cluster_epoch, s.lag_ms, s.lag_at_least) == (2, 4, 660_000, False)
    del store.objects[cluster.controller.replica.log.entry_key(3)]  # as a truncation would
    s = status(cluster)
    assert (s.lag_ms, s.lag_at_least) == (60_000, True)


def test_where_m_is_the_epoch_it_has_no_age() -> None:
    cluster = memory_cluster()
    compute_and_publish(cluster)
    assert status(cluster).lag_ms == 0


def test_looking_changes_nothing() -> None:
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    before = dict(store_of(cluster).objects)
    status(another_process(cluster))
    assert store_of(cluster).objects == before


def test_without_a_cluster_there_is_no_status() -> None:
    with pytest.raises(NotInitialisedError, match="l0gc init"):
        status(memory_cluster(bootstrap=False))


@pytest.mark.parametrize("partitions", [2, 100_000])
def test_the_cost_goes_with_the_journals(partitions: int) -> None:
    cluster = topic_in_memory(partitions, 2)
    put(cluster, {0: 1, partitions // 2 - 1: 1})
    process = another_process(cluster)
    store_of(cluster).requests.clear()
    s = status(process)
    assert (s.partitions, s.journals) == (partitions, 2)
    assert store_of(cluster).requests.total() <= 3 * 16 + 20  # all 16 journals are looked at


# -- garbage ------------------------------------------------------------------------------------------------------------


def deleted_by(cluster: Handles, name_ms: int, swept_ms: int, objects: int) -> None:
    """The record of a run that began at `name_ms`, and swept at `swept_ms`."""
    name = f"{datetime.fromtimestamp(name_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{objects:08x}"
    some = RunSummary("", swept_ms, 0, 0, "local", "off", False, 0, 4, 0, "done", deleted=objects, bytes=objects)
    write_summary(cluster.store, msgspec.structs.replace(some, run_id=name))


def test_what_the_last_listing_found_is_repeated_and_what_was_deleted_since_is_not_garbage() -> None:
    cluster = topic_in_memory(2)
    publish_counts(cluster, 17)
    store_of(cluster).clock.sleep(60)
    s = status(cluster)
    published_ms = s.as_of_ms - 60_000
    assert (s.eligible_objects, s.eligible_bytes, s.eligible_as_of_ms) == (17, 17, published_ms)
    assert s.deleted_since == Removed()
    deleted_by(cluster, published_ms - 60_000, published_ms - 50_000, 3)  # before anybody counted
    deleted_by(cluster, published_ms + 30_000, published_ms + 30_000, 5)
    s = status(cluster)
    assert (s.deleted_since.objects, s.left_bytes, len(s.runs)) == (5, 12, 2)


def test_objects_that_gc_deletes_after_its_own_scan_are_not_garbage() -> None:
    """Issue 15.1: a run of `gc` has its name from before it computes M."""
    cluster = topic_in_memory(2)
    publish_counts(cluster, 17)
    published_ms = store_of(cluster).clock.ms
    deleted_by(cluster, published_ms - 40_000, published_ms, 17)
    s = status(cluster)
    assert (s.deleted_since.objects, s.left_bytes, s.next) == (17, 0, "nothing")


# -- what is broken -----------------------------------------------------------------------------------------------------


def test_a_damaged_journal_comes_first_and_holds_m_at_its_topics_revision() -> None:
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    lift(cluster)
    key = min(k for k in store_of(cluster).objects if k.startswith(journal_log(0)))
    store_of(cluster).objects[key].body = b"not an entry"
    s = status(another_process(cluster))
    assert [key in e for e in s.errors] == [True]
    assert (s.computable_watermark, [h.kind for h in s.held_back_by]) == (0, [UNREADABLE])
    assert [c.cause for c in s.causes] == ["damaged_journal"]
    assert s.causes[0].detail.startswith("journal 0 cannot be read: ")
    assert "restore" in s.next


def test_a_journal_that_the_store_refuses_is_named_and_the_rest_is_shown() -> None:
    cluster = topic_in_memory(2)
    cluster.controller.create_topic("other", 3)
    put(cluster, EACH)
    store_of(cluster).fault = failing(AccessDeniedError("not yours"), key=journal_log(1))
    s = status(another_process(cluster))
    assert (s.records, s.errors) == (4, ["journal 1 cannot be read: not yours"])
    assert s.causes[0].cause == "unreadable_journal"
    assert "restore" not in s.next


def test_a_journal_above_the_cluster_epoch_means_that_the_controller_went_back() -> None:
    """Hazard 10."""
    cluster = topic_in_memory(2)
    for _ in range(3):
        cluster.controller.advance()
    put(cluster, EACH)
    store = store_of(cluster)
    for key in [k for k in store.objects if k.startswith(CONTROLLER_LOG) and k[-20:].isdigit() and int(k[-20:]) > 1]:
        del store.objects[key]
    (cause,) = status(another_process(cluster)).causes
    assert cause.cause == "old_controller"
    assert cause.detail.startswith("journal 0 is at epoch 4, above the cluster epoch 1: ")


def test_a_topic_that_the_controller_does_not_know_means_that_it_went_back() -> None:
    """Hazard 10: the epoch has caught up since, so it alone shows nothing."""
    cluster = topic_in_memory(2)
    assert cluster.journal(5).append([extents_of(1, revision=1, topic_id="lost")]).error is None
    (cause,) = status(another_process(cluster)).causes
    assert cause.cause == "old_controller"
    assert cause.detail.startswith("journal 5 holds a topic with revision 1 and id ")


def test_another_clusters_watermark_is_a_cause() -> None:
    """Hazard 11: commands refuse it; status says so, and reports the rest."""
    cluster = topic_in_memory(2)
    publish_counts(cluster, cluster_id="somebody else's")
    s = status(cluster)
    assert [c.cause for c in s.causes] == ["foreign_watermark"]
    assert (s.watermark, s.computable_watermark) == (-1, 0)


@pytest.mark.parametrize("how", ["missing", "short", "changed"])
def test_an_object_that_is_not_what_the_log_says_is_a_cause(how: str) -> None:
    cluster = topic_in_memory(2)
    key = put(cluster, EACH)
    write_attempt(cluster.store, Attempt("reconcile", 4, f"{key} is damaged"))
    store, body = store_of(cluster), cluster.store.get(key).body
    changed = {"short": body[:-1], "changed": bytes([body[0] ^ 1]) + body[1:]}
    if how == "missing":
        store.delete([key])
    else:
        store.put(key, changed[how])
    (cause,) = [c for c in status(cluster).causes if c.cause == "damaged_object"]
    damage = {"missing": "it is missing", "short": "it is too short", "changed": "it does not match the checksum"}
    assert f"reconcile fails on object {key}: {damage[how]}" in cause.detail


def test_both_ways_out_of_a_lost_object_are_named_and_giving_up_ends_it() -> None:
    cluster = topic_in_memory(2)
    key = put(cluster, EACH)
    cluster.store.delete([key])
    write_attempt(cluster.store, Attempt("reconcile", 3, f"{key} does not exist"))
    for partition in EACH:
        known = status(cluster)
        assert known.next == known.causes[0].remedy
        assert "restore that object from a version or a backup, or give up its records" in known.next
        assert f"l0gc give-up events --partition {partition} --offsets 0-1 (docs" in known.next
        give_up(cluster, "events", partition, (0, 1), "ann")
    assert "damaged_object" not in causes(cluster)


def test_an_object_that_was_swept_since_the_reading_is_not_called_missing() -> None:
    """Another process reconciles and sweeps while status looks."""
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    for _ in range(3):
        cluster.controller.advance()
        housekeep(cluster)
    store, other, key = store_of(cluster), another_process(cluster), object_of(cluster).key

    def gone(call: Call) -> None:
        if call.kind == "head" and call.key == key and call.when == "before":
            store.fault = lambda call: None
            lift(other)
            del store.objects[key]

    store.fault = gone
    assert "damaged_object" not in causes(cluster)
    assert key not in store.objects
    assert not handle_of(cluster).catch_up().topic(topic_of(cluster).revision).extents(0)


# -- another system's log -------------------------------------------------------------------------------------------------


def test_of_a_system_with_its_external_log_the_epoch_is_the_one_that_was_published() -> None:
    cluster = external_cluster()
    s = status(cluster)
    assert (s.cluster_epoch, s.watermark, s.lag_epochs, s.computable_watermark, s.lag_ms) == (-1, -1, 0, None, None)
    publish(cluster.store, cluster.runtime, PublishedWatermark(s.cluster_id, 7, 12, s.as_of_ms))
    store_of(cluster).clock.sleep(86_400)
    s = status(cluster)
    assert (s.cluster_epoch, s.watermark, s.lag_epochs, s.lag_ms) == (12, 7, 5, None)
    assert (s.causes, s.next) == ([], "l0gc compute-watermark --reports PATH --partitions PATH")
    set_pause(cluster.store, "disk audit", "ann")
    s = status(cluster)
    assert ([c.cause for c in s.causes], s.next) == (
        ["paused"],
        "wait until its reason is gone, then l0gc resume",
    )
