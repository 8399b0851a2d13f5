"""The acceptance of a journal that was set back and whose newest log is permanently lost (hazard 38)."""

from __future__ import annotations

from pathlib import Path

import pytest

from l0gc.errors import CorruptObjectError, SetBackError, UsageError
from l0gc.keys import JOURNALS, PUBLISHED_WATERMARK, journal_log
from l0gc.streamlog.epoch_source import JournalSource
from l0gc.streamlog.journal.entries import SetBack, decode_journal_entry
from l0gc.streamlog.level_one.reconcile import reconcile as lift
from l0gc.streamlog.pins import create_pin
from l0gc.streamlog.set_back import accept_set_back, set_back
from l0gc.watermark.pipeline import run_pipeline
from l0gc.watermark.publication import PublishedWatermark, decode_published
from tests.support.reconcile import reconcile
from tests.support.set_back import CHANGES, TOPIC, Place

DAY_MS = 24 * 3_600_000
BY_M = {"sweep", "compute-watermark"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Copy the bucket while the records of `second` are in L0, and restore journals and L0 from it three jobs later."""
    found = Place(tmp_path)
    found.loop()
    return restored(found)


def restored(found: Place) -> Place:
    found.upload("second")
    found.copy = found.objects()
    for day in range(3):
        found.upload(f"day-{day}")
        found.loop()
        found.store.clock.ms += 2 * DAY_MS
    found.newest = found.objects()
    found.restore(JOURNALS, found.copy)
    for key, body in found.copy.items():
        if key.startswith("level_zero/"):
            found.store.put(key, body)
    return found


def published(place: Place) -> PublishedWatermark:
    return decode_published(place.store.get(PUBLISHED_WATERMARK).body)


def accept(place: Place) -> None:
    for journal in (0, 1):
        accept_set_back(place.process(), journal)


def refused(place: Place, names: set[str], said: str) -> None:
    before = place.objects()
    for name in sorted(names):
        with pytest.raises(SetBackError, match=said):
            CHANGES[name](place)
        assert place.objects() == before, name


def test_the_cluster_goes_on_and_nothing_that_was_lost_is_deleted(place: Place) -> None:
    m, of_the_lost = published(place).watermark, place.objects("level_one/")
    accept(place)
    refused(place, BY_M, "run l0gc reconcile first")
    CHANGES["vacuum"](place)
    assert place.objects("level_one/") == of_the_lost

    assert reconcile(place.process()).records == 20
    place.acknowledged = [line for line in place.acknowledged if not line.startswith(b"day-")]
    place.check()
    for day in range(3):  # the journals have lost these records, so they land once more
        assert place.upload(f"day-{day}") == 20
    place.store.clock.ms += 10 * DAY_MS
    place.check_all_is_well()
    CHANGES["vacuum"](place)
    place.check()
    assert of_the_lost.items() <= place.objects("level_one/").items()
    assert published(place).watermark > m


def test_the_topic_s_end_is_the_end_of_what_was_kept(place: Place) -> None:
    accept(place)
    reconcile(place.process())
    CHANGES["topic delete"](place)
    for _ in range(3):
        place.store.clock.ms += 2 * DAY_MS
        place.loop()
        CHANGES["vacuum"](place)
    assert place.objects("level_one/") == {}


def test_an_acceptance_is_one_entry_and_lowers_nothing(place: Place) -> None:
    before, was = place.objects(), published(place)
    epoch = accept_set_back(place.process(), 1)
    changed = {k: v for k, v in place.objects().items() if before.get(k) != v}
    (entry,) = (k for k in changed if k.startswith(JOURNALS))
    handle = place.process().journal(1)
    state = handle.catch_up()
    assert decode_journal_entry(handle.replica.log.get(handle.replica.offset).payload, "it") == SetBack(epoch, 1)
    assert entry == handle.replica.log.entry_key(handle.replica.offset)
    assert (state.previous_applied_epoch, state.max_applied_epoch, state.l1_fence, state.kept_below) == (epoch,) * 4
    now = published(place)
    assert now.watermark == was.watermark < epoch
    assert now.ends == was.ends | {"journal 1": (1, handle.replica.end)}
    refused(place, {"housekeep"}, "journal 0")


def test_pins_that_were_created_before_do_not_keep_anybody_from_accepting(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.loop()
    pin = create_pin(place.process(), "backup", 3_600_000)
    m = published(restored(place)).watermark
    accept(place)
    assert (published(place).watermark, published(place).pinned) == (m, pin.revision)
    place.loop()
    assert published(place).watermark > m


def test_a_journal_is_accepted_before_a_lost_published_json_is(place: Place) -> None:
    place.store.delete([PUBLISHED_WATERMARK])
    accept(place)
    assert PUBLISHED_WATERMARK not in place.store.objects
    lift(place.process())
    cluster = place.process()
    run_pipeline(cluster, JournalSource(cluster), accept_lost=True)
    assert [published(place).ends[f"journal {journal}"][0] for journal in (0, 1)] == [1, 1]
    place.restore(JOURNALS, place.newest)
    refused(place, {"housekeep", "sweep"}, "after it was accepted 1 times when it was read before")


def test_the_newest_log_is_refused_after_accepting_an_older_one(place: Place) -> None:
    accept(place)
    reconcile(place.process())
    place.restore(JOURNALS, place.newest)
    refused(
        place,
        {"upload", "vacuum", "sweep"},
        "journal 0 ended at offset .* after it was accepted 1 times when it was read",
    )
    accept(place)
    place.store.clock.ms += DAY_MS
    place.check_all_is_well()


def test_a_copy_from_before_an_acceptance_is_accepted_as_the_next_one(place: Place) -> None:
    """The restored log lacks the acceptance, but the published object records it."""
    accept(place)
    place.restore(JOURNALS, place.copy)
    refused(place, {"upload", "vacuum", "sweep"}, "journal 0 ended at offset")
    accept(place)
    assert place.process().journal(0).catch_up().set_backs == 2
    assert published(place).ends["journal 0"][0] == 2


def test_only_what_was_set_back_can_be_accepted(place: Place) -> None:
    assert "journal 0 ended at" in set_back(place.process(), 0)
    for journal, said in ((2, "journal 2 was not set back"), (99, "journal 99 does not exist")):
        before = place.objects()
        with pytest.raises(UsageError, match=said):
            accept_set_back(place.process(), journal)
        assert place.objects() == before
    accept(place)
    with pytest.raises(UsageError, match="journal 0 was not set back"):
        accept_set_back(place.process(), 0)


def test_a_journal_that_is_gone_altogether_can_be_accepted(place: Place) -> None:
    place.restore(journal_log(0), {})
    accept(place)
    reconcile(place.process())
    CHANGES["vacuum"](place)
    place.compute()
    assert place.upload("last") == 20


def test_a_boundary_of_the_newer_log_has_to_go_first(place: Place) -> None:
    log = place.process().journal(0).replica.log
    log.boundary.lift(99)
    before = place.objects()
    with pytest.raises(
        CorruptObjectError, match=r"boundary\.json belongs to the newer log.*Restore it.*or move it elsewhere"
    ):
        accept_set_back(place.process(), 0)
    assert place.objects() == before
    place.store.delete([log.boundary.key])
    accept(place)


def test_m_waits_for_what_an_accepted_older_log_needs(place: Place) -> None:
    place.restore("level_zero/", {})
    accept(place)
    assert "does not exist" in lift(place.process()).errors[0]
    refused(place, BY_M, "run l0gc reconcile first")
    assert place.upload("last") == 20
    CHANGES["vacuum"](place)
    CHANGES["topic delete"](place)
    place.loop()
    assert TOPIC not in place.process().controller.snapshot().topics
