"""Journals that were restored to an older copy: commands refuse them by name, and change nothing (hazard 38)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from l0gc.collect.vacuum import VacuumRun
from l0gc.errors import AccessDeniedError, L0gcError, SetBackError
from l0gc.keys import JOURNALS, PUBLISHED_WATERMARK, journal_log
from l0gc.operations import Vacuum
from l0gc.streamlog.controller.decisions import RetentionSettings
from l0gc.streamlog.garbage import JournalGarbage
from tests.support.memory_store import failing, once
from tests.support.set_back import CHANGES, TOPIC, Objects, Place
from tests.support.tries import sampled

DAY_MS = 24 * 3_600_000
HARMLESS = {"epoch advance", "producer", "tick"}
"""Changes of the controller alone, which was not set back."""


def settled(place: Place, job: str) -> None:
    """Upload and lift a job's records, let M pass them, and delete the garbage."""
    place.upload(job)
    place.loop()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    settled(found, "second")
    return found


def days_later(place: Place) -> Objects:
    """Upload and lift records on three more days; return the bucket's content before them."""
    copy = place.objects()
    for day in range(3):
        place.store.clock.ms += DAY_MS
        settled(place, f"day-{day}")
    place.store.clock.ms += 2 * DAY_MS
    return copy


def refused(place: Place, names: set[str], match: str) -> None:
    """Check that each of these changes is refused in a sentence and leaves the bucket unchanged."""
    before = place.objects()
    for name in sorted(names):
        with pytest.raises(SetBackError, match=match) as e:
            CHANGES[name](place)
        assert e.value.exit_code == 4
        assert "l0gc help operate-logs" in str(e.value)
        assert place.objects() == before, name


def journals_of(place: Place) -> list[int]:
    return sorted(place.process().controller.snapshot().topic(TOPIC).journals)


def test_set_back_journals_stop_everything_until_restored(place: Place) -> None:
    newest = place.restore(JOURNALS, days_later(place))
    refused(
        place,
        CHANGES.keys() - HARMLESS,
        r"journal 0 ended at offset \d+, and ended at offset \d+ when it was read before",
    )
    place.restore(JOURNALS, newest)
    place.check_all_is_well()


def test_a_vacuum_by_itself_takes_no_live_object_for_an_orphan(place: Place) -> None:
    """With the default ages, the objects named in the lost part of the journal are old enough to be deleted."""
    newest = place.restore(JOURNALS, days_later(place))
    before = place.objects()
    cluster = place.process()
    with pytest.raises(SetBackError, match="journal 0"):
        VacuumRun(cluster, Vacuum()).run(JournalGarbage(cluster))
    assert place.objects() == before
    place.restore(JOURNALS, newest)
    place.check()


def test_a_sweep_by_itself_deletes_nothing_that_was_restored_with_its_journal(place: Place) -> None:
    place.upload("needed")
    copy = place.objects()
    settled(place, "later")
    place.restore(JOURNALS, copy)
    place.restore("level_zero/", copy)
    refused(place, {"sweep"}, "journal 0")


@pytest.mark.parametrize("journal", [0, 1])
def test_one_of_two_journals_is_refused_by_its_name(place: Place, journal: int) -> None:
    assert journals_of(place) == [0, 1]
    place.restore(journal_log(journal), days_later(place))
    refused(place, CHANGES.keys() - HARMLESS, f"journal {journal} ended at")


def test_a_journal_whose_log_is_gone_is_refused(place: Place) -> None:
    place.restore(journal_log(1), {})
    refused(place, CHANGES.keys() - HARMLESS, "journal 1 was empty, and ended at offset")


def test_an_upload_to_other_journals_goes_on(place: Place) -> None:
    """A topic in other journals is not affected, and no other journal is read for it."""
    place.process().controller.create_topic("elsewhere", 1)
    (journal,) = place.process().controller.snapshot().topic("elsewhere").journals
    assert journal not in journals_of(place)
    place.restore(journal_log(0), {})
    place.upload("other", "elsewhere")


def test_publications_without_ends_are_compared_with_the_journals_needs(place: Place) -> None:
    """The second check: the newer log released M, and an older log may still need objects at or below it."""
    copy = days_later(place)
    place.forget_ends()
    place.restore(JOURNALS, copy)
    refused(place, CHANGES.keys() - HARMLESS, r"journal 0 may still need epoch \d+, though M = \d+ is published")


# -- harmless restores ----------------------------------------------------------------------------------------------------

ALONE: dict[str, Callable[[str], bool]] = {
    "published.json": lambda key: key == PUBLISHED_WATERMARK,
    "boundaries": lambda key: key.startswith(JOURNALS) and key.endswith("boundary.json"),
    "checkpoints": lambda key: key.startswith(JOURNALS) and "/checkpoint/" in key,
    "L1 objects": lambda key: key.startswith("level_one/data/"),
    "L0 objects": lambda key: key.startswith("level_zero/"),
}


@pytest.mark.parametrize("part", sampled(ALONE, ["published.json", "L1 objects"]))
def test_what_is_set_back_without_its_journals_does_no_harm(place: Place, part: str) -> None:
    """Older objects appear next to the newer ones, or replace them under the same key."""
    for key, body in days_later(place).items():
        if ALONE[part](key):
            place.store.put(key, body)
    place.loop()
    CHANGES["vacuum"](place)
    place.check_all_is_well()


# -- a journal that could not be read at first ---------------------------------------------------------------------------


def test_m_stays_while_a_journal_that_was_set_back_cannot_be_read(place: Place) -> None:
    """M is published again unchanged, with the end that refuses the journal once it can be read."""
    copy = days_later(place)
    before = place.published()
    place.restore(journal_log(1), copy)
    place.store.fault = failing(AccessDeniedError("not now"), "get", journal_log(1))
    assert place.compute() == before.watermark
    place.store.fault = lambda call: None
    after = place.published()
    assert after.published_at_ms > before.published_at_ms
    assert (after.watermark, after.ends) == (before.watermark, before.ends)
    refused(place, CHANGES.keys() - HARMLESS, "journal 1 ended at")


@pytest.mark.parametrize(
    "name",
    sampled(
        ["reconcile", "merge", "expire", "housekeep", "vacuum", "upload", "sweep", "topic delete"],
        ["reconcile", "vacuum", "upload", "sweep"],
    ),
)
def test_an_unchecked_journal_is_left_out_though_readable_later(place: Place, name: str) -> None:
    """The first read of the journal fails, and later reads return the older log."""
    place.process().controller.alter_topic(TOPIC, RetentionSettings(1, 1))
    place.upload("unlifted")
    copy = days_later(place)
    place.restore(journal_log(1), copy)
    place.restore("level_zero/", copy)
    before = place.objects()
    failed: list[bool] = []

    def fail() -> None:
        failed.append(True)
        raise AccessDeniedError("not now")

    place.store.fault = once(fail, key=journal_log(1))
    with suppress(L0gcError, AssertionError):  # the command may report the journal that it left out
        CHANGES[name](place)
    place.store.fault = lambda call: None
    assert failed
    after = place.objects()
    lost = {key for key in before if key not in after and not key.startswith("l0gc/")}
    written = {key for key in after if key not in before}
    assert not {key for key in written if key.startswith((journal_log(1), "level_one/"))}
    assert lost == set()
