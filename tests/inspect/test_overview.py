"""The overview: M, what holds it, and the next step, the same in every view, without a change of the bucket."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

from l0gc.cli.status import lines_of
from l0gc.collect.deletion import set_pause
from l0gc.collect.gc_steps import GcNote
from l0gc.collect.record import Attempt, RunSummary, write_attempt, write_gc_note, write_summary
from l0gc.errors import AccessDeniedError, NotInitialisedError, StoreUnreachableError
from l0gc.inspect import doctor
from l0gc.inspect.causes import NOTHING
from l0gc.inspect.explain import explain_epoch, explain_partition
from l0gc.inspect.overview_reader import read_overview
from l0gc.inspect.report.facts import gather
from l0gc.inspect.verify.run import verify
from l0gc.keys import CONTROLLER_LOG, PUBLISHED_WATERMARK, journal_log
from l0gc.storage.workers import LocalWorkers
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.epoch_source import JournalSource, journal_totals
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.level_one.give_up import give_up
from l0gc.watermark.pipeline import run_pipeline
from l0gc.watermark.publication import PublishedWatermark, publish, read_published
from l0gc.watermark.scans import ScanRow, ScanSnapshot, write_scan
from l0gc.watermark.source import IDLE, UNREADABLE, UNRECONCILED, Holder
from tests.inspect.report.support import totals
from tests.support.journal import extents_of, of_topic
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


def causes(cluster: ClusterHandles) -> list[str]:
    return [c.cause for c in read_overview(cluster).causes]


# -- M, its holders, and the next step ----------------------------------------------------------------------------------


def test_the_next_step_leads_from_an_upload_to_an_empty_l0() -> None:
    cluster = topic_in_memory(2)
    compute_and_publish(cluster)
    assert read_overview(cluster).next.startswith("nothing")
    put(cluster, EACH)
    assert read_overview(cluster).next.startswith("l0gc reconcile")
    lift(cluster)
    for _ in range(3):
        cluster.controller.advance()
    assert read_overview(cluster).next.startswith("l0gc housekeep")
    housekeep(cluster)
    housekeep(cluster, barrier=True)
    assert read_overview(cluster).next.startswith("l0gc compute-watermark")
    compute_and_publish(cluster)
    o = read_overview(cluster)
    assert o.next.startswith("nothing")
    assert o.watermark == o.computable_watermark == o.cluster_epoch - 1


def test_with_nothing_to_do_it_says_when_what_is_held_becomes_free() -> None:
    """The advice holds: a barrier frees the object at once."""
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    lift(cluster)
    scan_and_publish(cluster)
    o = read_overview(cluster)
    assert o.next == "nothing to do: 1 object becomes garbage in about 20 min, or now with l0gc gc --housekeep-barrier"
    housekeep(cluster, barrier=True)
    scan_and_publish(cluster)
    assert read_overview(cluster).next == "l0gc sweep"


def test_a_window_of_one_epoch_needs_two_ticks_and_says_so() -> None:
    cluster = topic_in_memory(2)
    housekeep(cluster, barrier=True)
    observed = []
    for _ in range(2):
        observed.append(
            read_overview(cluster).held_back_by[0].reason.partition("; it moves with the ")[2].partition(" (")[0]
        )
        before = read_overview(cluster).computable_watermark
        cluster.controller.advance()
        housekeep(cluster)
        observed.append("moved" if read_overview(cluster).computable_watermark != before else "stood")
    assert observed == ["second tick from now", "stood", "next tick", "moved"]


def test_counts_come_from_the_journals() -> None:
    cluster = topic_in_memory(2)
    put(cluster, {0: 3, 1: 4})
    lift(cluster)
    put(cluster, EACH)
    o = read_overview(another_process(cluster))
    assert (o.topics, o.partitions, o.journals) == (1, 2, 1)
    assert (o.records, o.unreconciled_records, o.cluster_epoch) == (11, 4, 1)
    assert (o.watermark, o.garbage, o.held_partitions) == (-1, None, 2)
    assert [(h.name, h.gc_epoch, h.kind, h.unreconciled_records) for h in o.held_back_by] == [
        ("events/0", 0, UNRECONCILED, 2),
        ("events/1", 0, UNRECONCILED, 2),
    ]
    assert o.held_back_by[0].oldest_ms == store_of(cluster).objects[o.held_back_by[0].key].modified_ms


def test_uncounted_records_of_an_unreadable_journal_are_reported() -> None:
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    key = max(k for k in store_of(cluster).objects if k.startswith(journal_log(0) + "log/"))
    store_of(cluster).put(key, b"nonsense")
    (line,) = (x for x in lines_of(read_overview(another_process(cluster)), "s3://b/") if x.label == "records")
    assert line.text == "0, of which 0 unreconciled in L0; not counted: 1 journal that cannot be read"


def test_what_holds_m_is_what_m_is_computed_from() -> None:
    cluster = topic_in_memory(2)
    cluster.controller.create_topic("quiet", 3, 2)
    put(cluster, {1: 2})
    for _ in range(2):
        cluster.journal(0).advance(cluster.controller.advance())
    o, computed = read_overview(cluster), run_pipeline(cluster, JournalSource(cluster))
    assert (o.computable_watermark, o.partitions) == (computed.watermark, computed.partitions)
    assert [Holder(*msgspec.structs.astuple(h)[:-1]) for h in o.held_back_by] == computed.held_back_by
    assert {h.kind for h in o.held_back_by} == {IDLE, UNRECONCILED}


def test_without_topics_m_is_the_epoch() -> None:
    cluster = memory_cluster()
    cluster.controller.advance()
    o = read_overview(cluster)
    assert (o.computable_watermark, o.cluster_epoch, o.held_back_by, o.held_partitions) == (1, 1, [], 0)


def test_a_deleted_topic_holds_nothing() -> None:
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    cluster.controller.delete_topic("events")
    o = read_overview(cluster)
    assert (o.computable_watermark, o.records, o.held_back_by, o.errors) == (2, 0, [], [])


def test_a_deleted_topic_left_open_for_a_day_is_a_warning() -> None:
    """The deleter died before it reached the journals, and no housekeeping ran."""
    cluster = topic_in_memory(2)
    cluster.controller.delete_topic("events")
    store_of(cluster).clock.sleep(23 * 3600)
    assert read_overview(cluster).warnings == []
    store_of(cluster).clock.sleep(2 * 3600)
    (warning,) = read_overview(cluster).warnings
    assert warning.cause == "unclosed_topic"
    assert (
        "topic 'events' (revision 1) was deleted more than a day ago and is not closed in journal 0" in warning.detail
    )
    housekeep(cluster)
    assert read_overview(cluster).warnings == []


def test_the_age_of_m_is_that_of_the_epoch_after_it() -> None:
    cluster = topic_in_memory(2)
    store = store_of(cluster)
    for _ in range(3):
        store.clock.sleep(600)
        cluster.controller.advance()
        housekeep(cluster)
    compute_and_publish(cluster)
    store.clock.sleep(60)
    o = read_overview(cluster)
    # M is 2 at epoch 4, and epoch 3 began one tick and one minute ago.
    assert (o.watermark, o.cluster_epoch, o.lag_ms, o.lag_at_least) == (2, 4, 660_000, False)
    del store.objects[cluster.controller.replica.log.entry_key(3)]  # as if the log were truncated
    o = read_overview(cluster)
    assert (o.lag_ms, o.lag_at_least) == (60_000, True)
    written_ms = o.as_of_ms - 90 * 60_000  # a held object is above M, so M has stood for longer
    held = ScanSnapshot(
        totals(o.as_of_ms, cluster_id=o.cluster_id), [ScanRow(2, 1, 1, 1), ScanRow(3, 1, 1, written_ms)]
    )
    write_scan(cluster.store, cluster.runtime, held)
    o = read_overview(cluster)
    assert (o.lag_ms, o.lag_at_least) == (90 * 60_000, True)


def test_where_m_is_the_epoch_it_has_no_age() -> None:
    cluster = memory_cluster()
    compute_and_publish(cluster)
    assert read_overview(cluster).lag_ms == 0


def test_no_lag_grows_where_no_computation_could_release_an_object() -> None:
    cluster = topic_in_memory(2)
    scan_and_publish(cluster)
    published, _ = read_published(cluster.store, cluster.identity().cluster_id)
    assert published is not None
    for _ in range(20):
        store_of(cluster).clock.sleep(600)
        cluster.controller.advance()
        housekeep(cluster)
    note = GcNote(journal_totals(cluster).landed, published.published_at_ms, held=0)
    write_gc_note(cluster.store, note)
    o = read_overview(cluster)
    assert (o.idle, o.lag_epochs, o.lag_ms, o.causes, o.next) == (True, 2, 600_000, [], NOTHING)
    write_gc_note(cluster.store, msgspec.structs.replace(note, held=1))
    o = read_overview(cluster)
    assert (o.idle, o.lag_epochs, causes(cluster)) == (False, 21, ["not_computed"])
    write_gc_note(cluster.store, note)
    put(cluster, EACH)
    assert not read_overview(cluster).idle


def test_looking_changes_nothing() -> None:
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    before = dict(store_of(cluster).objects)
    read_overview(another_process(cluster))
    assert store_of(cluster).objects == before


def test_without_a_cluster_there_is_no_status() -> None:
    with pytest.raises(NotInitialisedError, match="l0gc init"):
        read_overview(memory_cluster(bootstrap=False))


@pytest.mark.parametrize("partitions", [2, 100_000])
def test_the_cost_goes_with_the_journals(partitions: int) -> None:
    cluster = topic_in_memory(partitions, 2)
    put(cluster, {0: 1, partitions // 2 - 1: 1})
    process = another_process(cluster)
    store_of(cluster).requests.clear()
    o = read_overview(process)
    assert (o.partitions, o.journals) == (partitions, 2)
    assert store_of(cluster).requests.total() <= 3 * 16 + 20  # the overview reads all 16 journals


# -- garbage ------------------------------------------------------------------------------------------------------------


def deleted_by(cluster: ClusterHandles, name_ms: int, swept_ms: int, objects: int) -> None:
    """Write the record of a run that began at `name_ms` and swept at `swept_ms`."""
    name = f"{datetime.fromtimestamp(name_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{objects:08x}"
    some = RunSummary(
        run_id=name, started_ms=swept_ms, ended_ms=0, outcome="done", watermark=0, cluster_epoch=0,
        objects=objects, bytes=objects,
    )  # fmt: skip
    write_summary(cluster.store, some)


def test_garbage_is_what_the_newest_scan_saw_less_what_was_deleted_since() -> None:
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    lift(cluster)
    housekeep(cluster, barrier=True)
    scan_and_publish(cluster)
    store_of(cluster).clock.sleep(60)
    o = read_overview(cluster)
    assert o.garbage is not None
    assert (o.garbage.eligible_objects, o.left_objects, o.garbage.taken_ms) == (1, 1, o.as_of_ms - 60_000)
    deleted_by(cluster, o.as_of_ms - 120_000, o.as_of_ms - 110_000, 3)  # before the scan counted
    assert read_overview(cluster).garbage == o.garbage
    # A `gc` run gets its name before it computes M, and its sweep begins afterwards.
    deleted_by(cluster, o.as_of_ms - 90_000, o.as_of_ms - 60_000, 1)
    o = read_overview(cluster)
    assert o.garbage is not None
    assert (o.garbage.deleted_objects, o.left_objects, len(o.runs), o.next[:7]) == (1, 0, 2, "nothing")


# -- damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [PUBLISHED_WATERMARK, f"{journal_log(0)}log/{0:020}"])
def test_a_cause_and_a_finding_print_their_remedy_once(key: str) -> None:
    cluster = topic_in_memory(2)
    scan_and_publish(cluster)
    cluster.store.put(key, b"nonsense")
    o = read_overview(another_process(cluster))
    assert "restore" not in o.causes[0].detail
    assert o.causes[0].remedy.count("restore ") == 1
    findings = verify(another_process(cluster), LocalWorkers(cluster), min_age_ms=0).findings
    assert findings
    assert [f.line for f in findings if f.line.count("restore ") > 1] == []


def test_a_damaged_record_hides_only_its_own_run() -> None:
    cluster = memory_cluster()
    for hour in (1, 2):
        deleted_by(cluster, hour * 3_600_000, hour * 3_600_000, 5)
    first, second = sorted(k for k in store_of(cluster).objects if k.endswith("/run.json"))
    cluster.store.put(first, b"nonsense")
    o = read_overview(cluster)
    assert [(r.outcome, r.deleted) for r in o.runs] == [("damaged", None), ("done", 5)]
    (warning,) = [w for w in o.warnings if w.cause == "damaged_record"]
    assert first in warning.detail
    assert second not in warning.detail


def test_a_damaged_journal_comes_first_and_holds_m_at_its_topics_revision() -> None:
    cluster = topic_in_memory(2)
    put(cluster, EACH)
    lift(cluster)
    key = min(k for k in store_of(cluster).objects if k.startswith(journal_log(0)))
    store_of(cluster).objects[key].body = b"not an entry"
    o = read_overview(another_process(cluster))
    assert [key in e for e in o.errors] == [True]
    assert (o.computable_watermark, [h.kind for h in o.held_back_by]) == (0, [UNREADABLE])
    assert [c.cause for c in o.causes] == ["damaged_journal"]
    assert o.causes[0].detail.startswith("journal 0 cannot be read: ")
    assert "restore" in o.next


def test_a_refused_journal_is_named_and_the_rest_shown() -> None:
    cluster = topic_in_memory(2)
    cluster.controller.create_topic("other", 3)
    put(cluster, EACH)
    store_of(cluster).fault = failing(AccessDeniedError("not yours"), key=journal_log(1))
    o = read_overview(another_process(cluster))
    assert (o.records, o.errors) == (4, ["journal 1 cannot be read: not yours"])
    assert o.causes[0].cause == "unreadable_journal"
    assert "restore" not in o.next


@pytest.mark.parametrize(
    ("kind", "key", "noted"),
    [
        ("get", "l0gc/attempts/reconcile", "the last run of reconcile is not shown: 403"),
        ("[ls]*", "l0gc/runs/", "no past sweep is shown, nor what they deleted: 403"),
        ("get", "l0gc/runs/", "no past sweep is shown, nor what they deleted: 403"),
        ("get", "l0gc/paused.json", "whether sweeps are paused is not known, and none begins: 403"),
        ("*", "level_zero/", "the L0 objects that hold M were not checked: 403"),
        ("get", "watermarks/scans", "no scan is shown: 403"),
    ],
)
def test_what_the_store_refuses_is_named_and_all_else_is_shown(kind: str, key: str, noted: str) -> None:
    cluster = topic_in_memory()
    put(cluster, {0: 1})
    scan_and_publish(cluster)
    deleted_by(cluster, 0, 0, 1)
    store_of(cluster).fault = failing(AccessDeniedError("403"), kind, key)
    found = read_overview(another_process(cluster))
    assert [n for n in found.notes if n.startswith(noted)] != []
    assert (found.records, found.partitions, found.to_json()["cluster_epoch"]) == (1, 1, found.cluster_epoch)
    text = "\n".join(f"{line.label}: {line.text}" for line in lines_of(found, "s3://b/"))
    assert noted in text
    assert ("reconcile\N{NO-BREAK SPACE}not" in text) == ("attempts" in key)
    assert ("sweeps: not paused" in text) != ("paused" in key)


def test_an_unreadable_published_m_is_a_cause_and_hides_nothing_else() -> None:
    cluster = topic_in_memory()
    put(cluster, {0: 1})
    store_of(cluster).fault = failing(AccessDeniedError("403"), "get", PUBLISHED_WATERMARK)
    found = read_overview(another_process(cluster))
    assert (found.records, found.watermark) == (1, -1)
    assert [(c.cause, c.remedy) for c in found.causes][:1] == [
        ("unreadable_watermark", "fix what it reports, then l0gc compute-watermark")
    ]


def test_a_store_that_cannot_be_reached_has_no_status() -> None:
    cluster = topic_in_memory()
    store_of(cluster).fault = failing(StoreUnreachableError("gone"), "get", "l0gc/paused.json")
    with pytest.raises(StoreUnreachableError):
        read_overview(another_process(cluster))


def test_a_journal_above_the_cluster_epoch_means_that_the_controller_went_back() -> None:
    """Hazard 10: only an old backup of the controller log explains a later epoch in a journal."""
    cluster = topic_in_memory(2)
    for _ in range(3):
        cluster.controller.advance()
    put(cluster, EACH)
    store = store_of(cluster)
    for key in [k for k in store.objects if k.startswith(CONTROLLER_LOG) and k[-20:].isdigit() and int(k[-20:]) > 1]:
        del store.objects[key]
    (cause,) = read_overview(another_process(cluster)).causes
    assert cause.cause == "old_controller"
    assert cause.detail.startswith("journal 0 is at epoch 4, above the cluster epoch 1: ")


def test_an_unknown_topic_shows_that_the_controller_went_back() -> None:
    """Hazard 10: the epoch has caught up, so only the topic shows the restore."""
    cluster = topic_in_memory(2)
    assert cluster.journal(4).append([extents_of(1, revision=1, topic_id="lost")]).error is None
    (cause,) = read_overview(another_process(cluster)).causes
    assert cause.cause == "old_controller"
    assert cause.detail.startswith("journal 4 holds a topic with revision 1 and id ")


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
    (cause,) = [c for c in read_overview(cluster).causes if c.cause == "damaged_object"]
    damage = {"missing": "it is missing", "short": "it is too short", "changed": "it does not match the checksum"}
    assert f"reconcile fails on object {key}: {damage[how]}" in cause.detail


def test_both_remedies_for_a_lost_object_are_named() -> None:
    cluster = topic_in_memory(2)
    key = put(cluster, EACH)
    cluster.store.delete([key])
    write_attempt(cluster.store, Attempt("reconcile", 3, f"{key} does not exist"))
    known = read_overview(cluster)
    assert known.next == known.causes[0].remedy
    assert "restore that object from a version or a backup, or give up its records" in known.next
    assert f"l0gc give-up --object {key} (l0gc help" in known.next
    give_up(cluster, "ann", objects=[key])
    assert "damaged_object" not in causes(cluster)


def test_an_object_that_was_swept_since_the_reading_is_not_called_missing() -> None:
    """Another process reconciles and sweeps while status reads."""
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


def test_an_external_logs_epoch_is_the_published_one() -> None:
    cluster = external_cluster()
    o = read_overview(cluster)
    assert (o.cluster_epoch, o.watermark, o.lag_epochs, o.computable_watermark, o.lag_ms) == (-1, -1, 0, None, None)
    publish(cluster.store, cluster.runtime, PublishedWatermark(o.cluster_id, 7, 12, o.as_of_ms))
    store_of(cluster).clock.sleep(86_400)
    o = read_overview(cluster)
    assert (o.cluster_epoch, o.watermark, o.lag_epochs, o.lag_ms) == (12, 7, 5, None)
    assert (o.causes, o.next) == ([], "l0gc compute-watermark --reports PATH --partitions PATH")
    set_pause(cluster.store, "disk audit", "ann")
    o = read_overview(cluster)
    assert ([c.cause for c in o.causes], o.next) == (
        ["paused"],
        "wait until its reason no longer holds, then l0gc resume",
    )


# -- agreement of the views ----------------------------------------------------------------------------------------------


def set_back(cluster: ClusterHandles) -> None:
    """Set the journal back to an older copy, which looks whole but has lost acknowledged records."""
    put(cluster, EACH)
    handle = handle_of(cluster)
    older = handle.replica.offset
    put(cluster, EACH)
    compute_and_publish(cluster)
    cluster.store.delete([handle.replica.log.entry_key(n) for n in range(older + 1, handle.replica.offset + 1)])


def controller_went_back(cluster: ClusterHandles) -> None:
    for _ in range(3):
        cluster.controller.advance()
    put(cluster, EACH)
    compute_and_publish(cluster)
    cluster.store.delete([cluster.controller.replica.log.entry_key(n) for n in (3, 4)])


def watermark_of_another(cluster: ClusterHandles) -> None:
    publish(cluster.store, cluster.runtime, PublishedWatermark("somebody else's", 0, 1, cluster.store.now_ms()))


def damaged_m(cluster: ClusterHandles) -> None:
    cluster.store.put(PUBLISHED_WATERMARK, b"no watermark")


def topic_elsewhere(cluster: ClusterHandles) -> None:
    topic = topic_of(cluster)
    assert cluster.journal(4).append([of_topic(topic, topic.revision)]).error is None


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("happened", "cause", "finding"),
    [
        (set_back, "set_back_journal", "journal_set_back"),
        (controller_went_back, "old_controller", "epoch_ahead"),
        (watermark_of_another, "foreign_watermark", "watermark_unreadable"),
        (damaged_m, "damaged_watermark", "watermark_unreadable"),
        (topic_elsewhere, "old_controller", "topic_misplaced"),
    ],
)
def test_what_went_back_is_seen_by_every_view_alike(
    happened: Callable[[ClusterHandles], None], cause: str, finding: str, *, deep: bool
) -> None:
    cluster = topic_in_memory(2)
    happened(cluster)
    before = dict(store_of(cluster).objects)
    first = read_overview(another_process(cluster)).causes[0]
    assert first.cause == cause
    for e in (explain_epoch(another_process(cluster), 1), explain_partition(another_process(cluster), "events/0")):
        assert (e.explanation[-1], e.next) == (
            f"Nothing is published or deleted by M until this is fixed: {first.detail}.",
            first.remedy,
        )
    checks = [
        (c.name, c.text, c.remedy) for c in doctor.cluster(another_process(cluster)) if c.status == doctor.FAILURE
    ]
    assert checks == [(first.cause, first.detail, first.remedy)]
    report = gather(another_process(cluster), "s3://b/")
    assert (report.verdict.state, report.verdict.cause) == ("needs_you", cause)
    process = another_process(cluster)
    result = verify(process, LocalWorkers(process), deep=deep, min_age_ms=0)
    assert finding in result.counts
    assert result.problem is not None
    assert store_of(cluster).objects == before
