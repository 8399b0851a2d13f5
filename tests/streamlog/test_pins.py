"""Pins: the objects that a pinned state names stay while the pin lives, through computations, vacuums and truncations
(hazard 36).
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import suppress

import msgspec
import pytest

from l0gc.epoch import NO_WATERMARK
from l0gc.errors import (
    CorruptObjectError,
    NotFoundError,
    SafetyError,
    SetBackError,
    StoreError,
    UsageError,
)
from l0gc.inspect.overview_reader import read_journals
from l0gc.keys import CONTROLLER_LOG, L1_DATA, PUBLISHED_WATERMARK, journal_log
from l0gc.storage.parallel import CLOSED
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.entries import MAX_PIN_MS
from l0gc.streamlog.controller.state import Pin
from l0gc.streamlog.epoch_source import JournalSource, journal_totals
from l0gc.streamlog.garbage import JournalGarbage
from l0gc.streamlog.housekeep import housekeep
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.level_one.merge_plan import MergeRule
from l0gc.streamlog.pins import create_pin, renewed
from l0gc.streamlog.topics import delete_topic
from l0gc.watermark.pipeline import WatermarkResult, run_pipeline
from l0gc.watermark.publication import read_published, require_seen, watermark_of
from l0gc.watermark.source import PINNED
from tests.support.interrupting import Interrupt
from tests.support.memory_store import (
    Call,
    another_process,
    copy_of,
    external_cluster,
    lose_reply,
    memory_cluster,
    once,
    put_back,
    store_of,
    topic_in_memory,
)
from tests.support.merge import merge
from tests.support.reconcile import put, reconcile
from tests.support.vacuum import tick, vacuum
from tests.support.wrong_dates import DAY_MS, MisdatedStore

HOUR_MS = 3_600_000


def compute(cluster: ClusterHandles, *, dry_run: bool = False) -> WatermarkResult:
    return run_pipeline(cluster, JournalSource(cluster), dry_run=dry_run)


def published(cluster: ClusterHandles) -> int:
    return watermark_of(read_published(cluster.store, cluster.identity().cluster_id)[0])


def lifted(cluster: ClusterHandles, times: int = 1) -> None:
    """Upload and reconcile `times` objects of each partition, at one epoch each."""
    topic = cluster.controller.snapshot().topic("events")
    for n in range(times):
        put(cluster, "events", {p: [b"%d" % n] for p in range(topic.partitions)})
        cluster.controller.advance()
        reconcile(cluster)
    housekeep(cluster, barrier=True)


def end(cluster: ClusterHandles, pin: Pin) -> None:
    """Let the pin expire."""
    store_of(cluster).clock.ms = pin.end_ms
    cluster.controller.tick_if_due()
    assert pin.name not in cluster.controller.snapshot().pins


@pytest.fixture
def cluster() -> ClusterHandles:
    return topic_in_memory(2, 2)


# -- M --------------------------------------------------------------------------------------------------------------------


def test_m_stays_at_the_pin_until_it_ends(cluster: ClusterHandles) -> None:
    lifted(cluster)
    before = compute(cluster).watermark
    pin = create_pin(cluster, "backup", HOUR_MS, why="nightly")
    assert pin.in_effect
    assert pin.watermark >= before
    lifted(cluster, 3)
    held = compute(another_process(cluster))
    assert held.watermark == published(cluster) == pin.watermark
    assert [(h.kind, h.gc_epoch) for h in held.held_back_by] == [(PINNED, pin.watermark)]
    assert "pin 'backup' until" in held.held_back_by[0].reason
    end(cluster, pin)
    assert compute(cluster).watermark > pin.watermark


def test_a_topics_pin_holds_m_only_for_that_topic(cluster: ClusterHandles) -> None:
    cluster.controller.create_topic("lagging", 1)
    put(cluster, "lagging", {0: [b"x"]})
    cluster.controller.advance()
    put(cluster, "events", {0: [b"lifted"]})
    reconcile(cluster, "events")
    cluster.controller.advance()
    needed = put(cluster, "events", {0: [b"y"]})
    for _ in range(3):
        cluster.controller.advance()
        housekeep(cluster, barrier=True)
    before = compute(cluster).watermark
    topics = cluster.controller.snapshot().topics
    pin = create_pin(cluster, "audit", 2 * HOUR_MS, topic=topics["events"].revision)
    rest = create_pin(cluster, "rest", HOUR_MS, topic=topics["lagging"].revision)
    epoch = cluster.controller.layout().parse(needed[0])
    assert epoch is not None
    assert before == rest.watermark < pin.watermark == epoch.epoch - 1
    end(cluster, rest)
    for _ in range(3):
        reconcile(cluster)
        cluster.controller.advance()
        housekeep(cluster, barrier=True)
    assert compute(cluster).watermark == published(cluster) == pin.watermark
    end(cluster, pin)
    assert compute(cluster).watermark > pin.watermark


def test_a_pin_of_a_topic_that_is_not_there_is_refused(cluster: ClusterHandles) -> None:
    revision = cluster.controller.snapshot().topic("events").revision
    delete_topic(cluster, "events")
    with pytest.raises(NotFoundError, match="names a topic that was deleted, or never existed"):
        create_pin(cluster, "audit", HOUR_MS, topic=revision)
    assert not cluster.controller.snapshot().pins


def test_a_pin_holds_also_the_journals_that_deleted_topics_alone_are_in(cluster: ClusterHandles) -> None:
    cluster.controller.create_topic("gone", 1)
    gone = cluster.controller.snapshot().topic("gone").journals
    assert gone[0] not in cluster.controller.snapshot().topic("events").journals
    put(cluster, "gone", {0: [b"x"]})
    reconcile(cluster)
    delete_topic(cluster, "gone")
    pin = create_pin(cluster, "backup", HOUR_MS)
    assert dict(pin.ends or ())[gone[0]] == cluster.journal(gone[0]).replica.end


def test_whether_m_could_move_counts_what_pins_hold(cluster: ClusterHandles) -> None:
    pin = create_pin(cluster, "backup", HOUR_MS)
    lifted(cluster, 3)
    assert journal_totals(cluster).lowest == pin.watermark
    end(cluster, pin)
    assert (journal_totals(cluster).lowest or 0) > pin.watermark


def test_a_level_one_pin_lets_m_move(cluster: ClusterHandles) -> None:
    pin = create_pin(cluster, "table", HOUR_MS, level_one=True)
    assert pin.watermark == NO_WATERMARK
    assert read_published(cluster.store, cluster.identity().cluster_id)[0] is None
    lifted(cluster, 3)
    assert compute(cluster).watermark > pin.revision


def test_a_pin_holds_the_possible_m_of_its_own_time(cluster: ClusterHandles) -> None:
    """Otherwise overlapping pins would hold M for ever."""
    compute(cluster)
    first = create_pin(cluster, "first", HOUR_MS)
    lifted(cluster, 3)
    second = create_pin(cluster, "second", 3 * HOUR_MS)
    assert compute(cluster).watermark == first.watermark < second.watermark
    end(cluster, first)
    lifted(cluster, 3)
    assert compute(cluster).watermark == second.watermark


def test_a_computation_that_did_not_see_the_pin_computes_again(cluster: ClusterHandles) -> None:
    """Hazard 36: the pin is created after the computation's last read and before its publication, so its M would pass
    the pin.
    """
    lifted(cluster)
    compute(cluster)
    other, pins = another_process(cluster), []
    lifted(cluster, 3)

    def pinned_now() -> None:
        other.controller.snapshot()
        pins.append(other.controller.create_pin("backup", HOUR_MS))
        require_seen(other, other.identity().cluster_id, pins[0].revision)

    before = published(cluster)
    store_of(cluster).fault = once(pinned_now, "put_if_match", PUBLISHED_WATERMARK)
    assert compute(cluster).watermark == published(cluster) == before


def test_a_pin_that_has_not_taken_effect_holds_m_where_it_is(cluster: ClusterHandles) -> None:
    lifted(cluster)
    before = compute(cluster).watermark
    pin = cluster.controller.create_pin("backup", HOUR_MS)
    lifted(cluster, 3)
    assert compute(cluster).watermark == before
    end(cluster, pin)
    assert compute(cluster).watermark > before


def test_m_respects_a_pin_before_it_takes_effect(cluster: ClusterHandles) -> None:
    """The records that are unreconciled when the pin takes effect are above the M that the pin holds."""
    put(cluster, "events", {0: [b"x"]})
    epoch = cluster.controller.snapshot().epoch
    lifted_elsewhere = another_process(cluster)
    lifted_elsewhere.controller.advance()
    pin = create_pin(cluster, "backup", HOUR_MS)
    assert pin.watermark < epoch
    reconcile(cluster)
    housekeep(cluster, barrier=True)
    assert compute(cluster).watermark == pin.watermark


def test_where_nothing_was_published_a_pin_publishes_that_nothing_may_go(cluster: ClusterHandles) -> None:
    lifted(cluster)
    pin = create_pin(cluster, "backup", HOUR_MS)
    found = read_published(cluster.store, cluster.identity().cluster_id)[0]
    assert found is not None
    assert (found.watermark, found.pinned) == (NO_WATERMARK, pin.revision)
    assert compute(cluster).watermark == pin.watermark


def test_a_dry_run_reports_what_a_pin_holds(cluster: ClusterHandles) -> None:
    compute(cluster)
    pin = create_pin(cluster, "backup", HOUR_MS)
    lifted(cluster, 3)
    assert compute(cluster, dry_run=True).watermark == pin.watermark


def test_a_lost_reply_leaves_one_pin(cluster: ClusterHandles) -> None:
    compute(cluster)
    store_of(cluster).fault = lose_reply(PUBLISHED_WATERMARK)
    pin = create_pin(cluster, "backup", HOUR_MS)
    assert list(cluster.controller.snapshot().pins.values()) == [pin]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("n", range(6))
def test_a_killed_pins_reservation_holds_until_its_end(n: int, when: str) -> None:
    """The process dies at any write: the entry, `published.json`, the two journals, or the entry that the pin took
    effect.
    """
    cluster = topic_in_memory(2, 2)
    lifted(cluster)
    before = compute(cluster).watermark
    store, nobody = store_of(cluster), store_of(cluster).fault
    dying, writes = another_process(cluster), itertools.count()
    dead = [False]

    def killed(call: Call) -> None:
        if call.kind.startswith("put_if") and call.when == when and next(writes) == n:
            dead[0] = True
        if dead[0]:
            raise Interrupt

    store.fault = killed
    with suppress(Interrupt):
        create_pin(dying, "backup", HOUR_MS)
    assert dead[0] == (n < 5)
    store.fault = nobody
    lifted(cluster, 3)
    pins, watermark = cluster.controller.snapshot().pins, compute(cluster).watermark
    assert bool(pins) == ((n, when) != (0, "before"))
    assert watermark == (pins["backup"].watermark if pins and pins["backup"].in_effect else before) or not pins


# -- the end of a pin -----------------------------------------------------------------------------------------------------


def test_a_pin_ends_by_log_time(cluster: ClusterHandles) -> None:
    pin = create_pin(cluster, "backup", 60_000)
    clock = store_of(cluster).clock
    clock.ms = pin.end_ms - 1
    assert not housekeep(cluster).ticked
    assert "backup" in cluster.controller.snapshot().pins
    clock.ms += 1
    assert housekeep(cluster).ticked
    assert not cluster.controller.snapshot().pins


def test_a_date_that_jumps_ends_no_pin() -> None:
    """Hazard 36: a wrong clock must not end a pin."""
    store = MisdatedStore(DAY_MS)
    cluster = memory_cluster(store)
    cluster.controller.create_topic("events", 1, 1)
    create_pin(cluster, "backup", HOUR_MS)
    store.wrong = ["get"] * 20
    with pytest.raises(SafetyError):
        cluster.controller.tick_if_due()
    assert "backup" in cluster.controller.snapshot().pins


def test_a_pin_that_ended_makes_room_for_its_name(cluster: ClusterHandles) -> None:
    pin = create_pin(cluster, "backup", HOUR_MS)
    with pytest.raises(UsageError, match=r"pin 'backup' exists, and ends at .*; delete it with l0gc pin delete"):
        create_pin(cluster, "backup", HOUR_MS)
    store_of(cluster).clock.ms = pin.end_ms
    assert create_pin(cluster, "backup", HOUR_MS).revision > pin.revision


def test_a_pin_is_deleted_and_another_of_its_name_is_left(cluster: ClusterHandles) -> None:
    pin = create_pin(cluster, "backup", HOUR_MS)
    cluster.controller.delete_pin("backup", pin.revision)
    other = create_pin(cluster, "backup", HOUR_MS)
    with pytest.raises(NotFoundError, match="has ended; that of epoch"):
        cluster.controller.delete_pin("backup", pin.revision)
    assert cluster.controller.snapshot().pins == {"backup": other}
    assert cluster.controller.delete_pin("backup") == other
    with pytest.raises(NotFoundError, match="pin 'backup' does not exist, or has ended; run l0gc pin list"):
        cluster.controller.delete_pin("backup")


# -- leases ---------------------------------------------------------------------------------------------------------------


def test_a_pin_that_is_renewed_holds_m_past_its_first_end(cluster: ClusterHandles) -> None:
    lifted(cluster)
    pin = create_pin(cluster, "reader", HOUR_MS)
    lifted(cluster, 3)
    store_of(cluster).clock.ms = pin.end_ms + 1  # no entry has ended it yet
    cluster.controller.renew_pin(pin.name, pin.revision, HOUR_MS)
    renewed_until = cluster.controller.snapshot().pin(pin.name)
    assert renewed_until == msgspec.structs.replace(pin, end_ms=pin.end_ms + 1 + HOUR_MS)
    lifted(cluster)
    assert compute(another_process(cluster)).watermark == pin.watermark
    end(cluster, renewed_until)
    assert compute(cluster).watermark > pin.watermark


def test_an_ended_pin_and_its_namesake_are_not_renewed(cluster: ClusterHandles) -> None:
    pin = create_pin(cluster, "reader", HOUR_MS)
    end(cluster, pin)
    with pytest.raises(NotFoundError, match="has ended"):
        cluster.controller.renew_pin(pin.name, pin.revision, HOUR_MS)
    another = create_pin(cluster, "reader", HOUR_MS)
    store_of(cluster).clock.ms += 60_000
    with pytest.raises(NotFoundError, match="was left as it is"):
        cluster.controller.renew_pin(pin.name, pin.revision, HOUR_MS)
    assert cluster.controller.snapshot().pin("reader") == another


def test_a_renewal_never_shortens_a_pins_life_and_every_pin_ends(cluster: ClusterHandles) -> None:
    pin = create_pin(cluster, "reader", HOUR_MS)
    cluster.controller.renew_pin(pin.name, pin.revision, 1000)
    assert cluster.controller.snapshot().pin("reader").end_ms == pin.end_ms
    store_of(cluster).clock.ms += 60_000
    cluster.controller.renew_pin(pin.name, pin.revision, MAX_PIN_MS)
    assert cluster.controller.snapshot().pin("reader").end_ms == pin.created_ms + MAX_PIN_MS


def leases() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "l0gc-lease"]


@pytest.mark.timeout(60)
def test_a_lease_is_renewed_despite_one_failure(cluster: ClusterHandles, caplog: pytest.LogCaptureFixture) -> None:
    pin = create_pin(cluster, "reader", 60)
    failed = list[Call]()

    def fault(call: Call) -> None:
        if call.kind.startswith("put") and not failed:
            failed.append(call)
            raise StoreError("no")

    store_of(cluster).fault = fault
    with renewed(lambda: cluster, pin.name, pin.revision, 60):
        store_of(cluster).clock.ms += 30
        while cluster.controller.snapshot().pin("reader").end_ms == pin.end_ms:
            time.sleep(0.005)
    assert "pin 'reader' was not renewed: no" in caplog.text
    assert not cluster.controller.snapshot().pins
    while leases():
        time.sleep(0.005)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("closed", [False, True])
def test_a_lease_ends_with_its_pin_or_cluster(cluster: ClusterHandles, *, closed: bool) -> None:
    pin = create_pin(cluster, "reader", HOUR_MS)

    def handles() -> ClusterHandles:
        if closed:
            raise UsageError(CLOSED)
        return cluster

    with renewed(handles, pin.name, pin.revision, 30):
        if not closed:
            cluster.controller.delete_pin("reader")
        while leases():
            time.sleep(0.005)
    assert ("reader" in cluster.controller.snapshot().pins) == closed


def test_a_pin_that_ends_before_it_takes_effect_is_an_error(cluster: ClusterHandles) -> None:
    store = store_of(cluster)
    compute(cluster)

    def sleep() -> None:
        store.clock.ms += 2 * HOUR_MS

    store.fault = once(sleep, "put_if_match", PUBLISHED_WATERMARK)
    with pytest.raises(NotFoundError):
        create_pin(cluster, "backup", HOUR_MS)


# -- refusals -------------------------------------------------------------------------------------------------------------


def test_a_cluster_of_another_systems_log_has_no_pins() -> None:
    with pytest.raises(SafetyError):
        create_pin(external_cluster(), "backup", HOUR_MS)


def test_no_pin_promises_what_a_journal_has_lost(cluster: ClusterHandles) -> None:
    store = store_of(cluster)
    kept = copy_of(store, journal_log(0))
    lifted(cluster, 2)
    compute(cluster)
    put_back(store, journal_log(0), kept)
    with pytest.raises(SetBackError):
        create_pin(another_process(cluster), "backup", HOUR_MS)
    assert not cluster.controller.snapshot().pins


def test_a_journal_that_cannot_be_read_is_no_state_to_promise(cluster: ClusterHandles) -> None:
    store = store_of(cluster)
    for key in [k for k in store.objects if k.startswith(f"{journal_log(0)}log/")]:
        store.put(key, b"damaged")
    put(cluster, "events", {1: [b"x"]})
    for key in [k for k in store.objects if k.startswith(f"{journal_log(1)}log/")]:
        store.put(key, b"damaged")
    with pytest.raises((StoreError, CorruptObjectError)):
        create_pin(another_process(cluster), "backup", HOUR_MS)
    assert not cluster.controller.snapshot().pins


def test_an_unreadable_journal_cannot_be_pinned(cluster: ClusterHandles) -> None:
    """The store fails after the journal's window has reached the pin's epoch."""
    store, reached = store_of(cluster), [0]

    def fails(call: Call) -> None:
        if call.kind == "put_if_absent" and journal_log(0) in call.key and call.when == "after":
            reached[0] += 1
        elif reached[0] and call.kind == "get" and journal_log(0) in call.key:
            raise StoreError("no answer")

    store.fault = fails
    with pytest.raises(StoreError, match="pin 'backup' was not created: journal 0 cannot be read: no answer"):
        create_pin(cluster, "backup", HOUR_MS)
    assert not cluster.controller.snapshot().pins


def test_a_pin_that_a_restored_controller_log_brings_back_lowers_nothing(cluster: ClusterHandles) -> None:
    """Hazard 10: the pin was deleted, so its objects may be deleted, too. It holds M in place until its end."""
    compute(cluster)
    create_pin(cluster, "backup", HOUR_MS)
    store = store_of(cluster)
    kept = copy_of(store, CONTROLLER_LOG)
    cluster.controller.delete_pin("backup")
    lifted(cluster, 3)
    moved = compute(cluster).watermark
    put_back(store, CONTROLLER_LOG, kept)
    restored = another_process(cluster)
    restored.controller.advance_above(50)
    assert "backup" in restored.controller.snapshot().pins
    put(restored, "events", {0: [b"later"]})
    housekeep(restored, barrier=True)
    with suppress(SafetyError):
        assert compute(restored).watermark == moved
    assert published(restored) == moved


# -- L1 -------------------------------------------------------------------------------------------------------------------


def l1(cluster: ClusterHandles) -> set[str]:
    return {k for k in store_of(cluster).objects if k.startswith("level_one/")}


@pytest.mark.parametrize("level_one", [False, True])
def test_what_is_dropped_under_a_pin_stays_until_it_ends(cluster: ClusterHandles, level_one: bool) -> None:
    lifted(cluster, 6)
    pin = create_pin(cluster, "table", HOUR_MS, level_one=level_one)
    named = l1(cluster)
    assert merge(cluster, None, MergeRule(fan_in=2)).objects_before
    tick(cluster, 5)
    assert vacuum(cluster).objects == 0
    assert named <= l1(cluster)
    end(cluster, pin)
    assert vacuum(cluster).problem is None
    assert not named & l1(cluster)


def test_a_topics_pin_keeps_only_that_topics_dropped_objects(cluster: ClusterHandles) -> None:
    cluster.controller.create_topic("other", 2)
    for _ in range(6):
        put(cluster, "other", {0: [b"x"], 1: [b"y"]})
        lifted(cluster)
    events = cluster.controller.snapshot().topic("events").revision
    pin = create_pin(cluster, "table", HOUR_MS, level_one=True, topic=events)
    assert another_process(cluster).controller.snapshot().pin("table") == pin
    kept = {k for k in l1(cluster) if k.startswith(f"{L1_DATA}events-")}
    others = l1(cluster) - kept
    delete_topic(cluster, "other")
    delete_topic(cluster, "events")
    tick(cluster, 5)
    held = sum(len(store_of(cluster).objects[key].body) for key in kept)
    assert read_journals(cluster, cluster.controller.snapshot(), -1).dropped_bytes(pin) == held
    assert vacuum(cluster).problem is None
    assert (kept & l1(cluster), others & l1(cluster)) == (kept, set())
    end(cluster, pin)
    assert vacuum(cluster).problem is None
    assert not kept & l1(cluster)


def test_no_vacuum_is_due_for_what_a_pin_keeps(cluster: ClusterHandles) -> None:
    lifted(cluster, 6)
    pin = create_pin(cluster, "table", HOUR_MS, level_one=True)
    merge(cluster, None, MergeRule(fan_in=2))
    tick(cluster, 5)

    def is_due() -> bool:
        garbage = JournalGarbage(cluster)
        garbage.refresh()
        return garbage.is_due(store_of(cluster).clock.ms)

    assert not is_due()
    end(cluster, pin)
    assert is_due()


def test_objects_a_pin_keeps_of_an_unknown_topic_are_not_orphans(cluster: ClusterHandles) -> None:
    lifted(cluster, 6)
    pin = create_pin(cluster, "table", HOUR_MS, level_one=True)
    delete_topic(cluster, "events")
    tick(cluster, 5)
    now_ms = store_of(cluster).clock.ms

    def waiting() -> list[int]:
        garbage = JournalGarbage(cluster)
        garbage.refresh()
        garbage._names = {}  # as after a restore of the controller log
        garbage.fence(now_ms, now_ms, dry_run=True)
        (part,) = garbage.parts(L1_DATA, 1)
        assert part.forgotten
        return part.waiting

    assert waiting()
    cluster.controller.delete_pin(pin.name)
    assert not waiting()


def test_what_was_dropped_before_a_pin_goes(cluster: ClusterHandles) -> None:
    """Pins that overlap for ever keep no object for ever."""
    lifted(cluster, 6)
    before = l1(cluster)
    assert merge(cluster, None, MergeRule(fan_in=2)).objects_before
    create_pin(cluster, "table", HOUR_MS, level_one=True)
    tick(cluster, 5)
    assert vacuum(cluster).problem is None
    assert not before & l1(cluster)


def test_a_vacuum_unaware_of_a_pin_deletes_nothing_it_keeps(cluster: ClusterHandles) -> None:
    lifted(cluster, 6)
    tick(cluster, 5)
    named, other = l1(cluster), another_process(cluster)

    def pinned_and_merged() -> None:
        create_pin(other, "table", HOUR_MS, level_one=True)
        assert merge(other, None, MergeRule(fan_in=2)).objects_before

    vacuuming = another_process(cluster, seed=2)
    store_of(cluster).fault = once(pinned_and_merged, "get", f"{journal_log(0)}")
    vacuum(vacuuming)
    assert "table" in cluster.controller.snapshot().pins
    assert named <= l1(cluster)


def test_objects_dropped_at_an_old_epoch_count_from_the_pin(cluster: ClusterHandles) -> None:
    """Each journal's window reaches the pin's epoch before the pin takes effect, even if a writer's epoch is stale."""
    lifted(cluster, 6)
    for _ in range(3):
        cluster.controller.advance()
    stale = cluster.controller.snapshot().epoch
    pin = create_pin(another_process(cluster), "table", HOUR_MS, level_one=True)
    for journal in cluster.controller.snapshot().journals_in_use():
        assert cluster.journal(journal).catch_up().max_applied_epoch >= pin.revision > stale
    merge(cluster, None, MergeRule(fan_in=2))
    dropped = [e for j in (0, 1) for e in cluster.journal(j).catch_up().dropped["dropped_epoch"].tolist()]
    assert dropped
    assert min(dropped) >= pin.revision


def test_a_deleted_topics_l1_stays_under_a_pin(cluster: ClusterHandles) -> None:
    lifted(cluster, 6)
    pin = create_pin(cluster, "audit", HOUR_MS, level_one=True)
    named = l1(cluster)
    delete_topic(cluster, "events")
    tick(cluster, 5)
    vacuum(cluster)
    tick(cluster, 5)
    vacuum(cluster)
    assert l1(cluster) == named
    end(cluster, pin)
    vacuum(cluster)
    assert not l1(cluster)


# -- logs -----------------------------------------------------------------------------------------------------------------


def state_as_of(cluster: ClusterHandles, journal: int, offset: int) -> bytes:
    """Return the state that a replay of the journal up to an offset gives."""
    machine, log = JournalMachine(journal), cluster.journal(journal).replica.log
    folder = log.list_folder()
    first = folder.needed_from(offset)
    state = machine.initial() if first < 0 else machine.decode(log.get_checkpoint(first).payload, "")
    for at in range(first + 1, offset + 1):
        machine.apply(state, log.get(at))
    return machine.encode(state)


def list_of(cluster: ClusterHandles, log: str) -> list[str]:
    return [k for k in store_of(cluster).objects if k.startswith(f"{log}log/")]


def busy(cluster: ClusterHandles, rounds: int = 8) -> int:
    """Upload and keep house until logs are truncated; return the number of truncated entries."""
    gone = 0
    for n in range(rounds):
        put(cluster, "events", {0: [b"%d" % n], 1: [b"%d" % n]})
        put(cluster, "events", {0: [b"%d" % n], 1: [b"%d" % n]})
        store_of(cluster).clock.ms += 20 * 60_000
        for c in (cluster, another_process(cluster, seed=n)):
            gone += housekeep(c).truncated_entries
    return gone


@pytest.mark.parametrize("page_size", [8, 1000])
def test_logs_stay_replayable_until_the_pin_ends(cluster: ClusterHandles, page_size: int) -> None:
    store_of(cluster).page_size = page_size
    assert busy(cluster)
    pin = create_pin(cluster, "backup", 3 * DAY_MS)
    assert pin.ends is not None
    then = {j: state_as_of(cluster, j, at.offset) for j, at in pin.ends}
    busy(cluster)
    assert {j: state_as_of(cluster, j, at.offset) for j, at in pin.ends} == then
    assert any(k.startswith(f"{CONTROLLER_LOG}log/{pin.offset:020}") for k in store_of(cluster).objects)
    end(cluster, pin)
    assert busy(cluster)
    at = dict(pin.ends)[0].offset
    assert f"{journal_log(0)}log/{at:020}" not in store_of(cluster).objects
    assert len(list_of(cluster, journal_log(0))) < 20


def test_a_truncation_asks_for_pins_after_its_listing(cluster: ClusterHandles) -> None:
    """The truncation sees a pin created after its listing; a later pin is newer than every truncated entry."""
    store, keeper, other = store_of(cluster), another_process(cluster, seed=5), another_process(cluster, seed=6)
    housekeep(keeper)
    for n in range(6):
        put(cluster, "events", {0: [b"%d" % n], 1: [b"%d" % n]})
    store.clock.ms += 20 * 60_000
    pins: list[Pin] = []

    def pinned() -> None:
        pins.append(create_pin(other, "backup", 3 * DAY_MS))
        busy(other, 2)

    store.fault = once(pinned, "list", journal_log(0))
    housekeep(keeper)
    assert pins
    for j, at in pins[0].ends or ():
        state_as_of(cluster, j, at.offset)


def test_a_pin_that_has_not_taken_effect_keeps_whole_logs(cluster: ClusterHandles) -> None:
    busy(cluster, 2)
    cluster.controller.create_pin("backup", 3 * DAY_MS)
    before = list_of(cluster, journal_log(0))
    busy(cluster, 4)
    assert set(before) < set(list_of(cluster, journal_log(0)))
