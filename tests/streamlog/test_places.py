"""Logs that were set back and have grown past a noted place: the id of the entry there shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from l0gc.errors import EpochRegressionError, SetBackError
from l0gc.inspect.overview_reader import read_overview
from l0gc.keys import CONTROLLER_LOG, JOURNALS, PUBLISHED_COPY, PUBLISHED_WATERMARK
from l0gc.streamlog.pins import create_pin
from l0gc.streamlog.set_back import accept_set_back
from l0gc.watermark.publication import decode_published
from tests.support.set_back import CHANGES, TOPIC, Objects, Place

HOUR_MS = 3_600_000
OF_THE_CONTROLLER = {"epoch advance", "producer", "tick"}
"""Changes that need no journal."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.loop()
    return found


def grown(place: Place, prefix: str, copy: Objects, grow: Callable[[], object], times: int = 30) -> None:
    """Set logs back, and let them grow past their noted ends by processes that do not see what is published."""
    published = place.objects(PUBLISHED_WATERMARK) | place.objects(PUBLISHED_COPY)
    place.restore(prefix, copy)
    place.store.delete(list(published))
    for _ in range(times):
        grow()
    for key, body in published.items():
        place.store.put(key, body)


def grown_journals(place: Place) -> None:
    copy = place.objects()
    place.upload("lost")
    place.loop()
    grown(place, JOURNALS, copy, lambda: uploads(place), 12)
    for journal in (0, 1):
        noted = decode_published(place.store.get(PUBLISHED_WATERMARK).body).ends[f"journal {journal}"][1]
        now = place.process().journal(journal)
        now.catch_up()
        assert now.replica.offset > noted.offset, "the log must grow past its noted end"
        assert not now.replica.holds(noted)


def uploads(place: Place) -> None:
    place.upload(f"new-{len(place.objects())}")


def test_a_journal_that_grew_past_its_noted_end_is_refused_by_name(place: Place) -> None:
    grown_journals(place)
    before = place.objects()
    for name in sorted(CHANGES.keys() - OF_THE_CONTROLLER):
        with pytest.raises(SetBackError, match=r"journal [01] has another entry at offset \d+"):
            CHANGES[name](place)
        assert place.objects() == before, name
    assert "has another entry" in read_overview(place.process()).set_back


def test_a_journal_that_grew_past_its_noted_end_can_be_accepted(place: Place) -> None:
    grown_journals(place)
    for journal in (0, 1):
        accept_set_back(place.process(), journal)
    assert place.upload("after") == 20


def test_a_pin_of_an_accepted_set_back_journal_reads_only_its_history(place: Place) -> None:
    copy = place.objects()
    place.upload("pinned")
    pin = create_pin(place.process(), "backup", HOUR_MS)
    topic = place.process().controller.snapshot().topic(TOPIC)
    grown(place, JOURNALS, copy, lambda: uploads(place), 12)
    process = place.process()
    with pytest.raises(SetBackError, match="is not the one that was pinned"):
        process.journal_as_of(0, pin.end(0)).catch_up()
    assert process.journal_as_of(1, process.journal(1).replica.end).catch_up().topic(topic.revision) is not None


def test_a_controller_log_that_grew_past_what_is_published_is_refused(place: Place) -> None:
    def advance() -> int:
        return place.process().controller.advance()

    copy = place.objects()
    for _ in range(3):
        place.process().controller.advance()
    place.loop()
    grown(place, CONTROLLER_LOG, copy, advance)
    before = place.objects()
    for name in sorted(CHANGES.keys() - {"tick"}):
        with pytest.raises(EpochRegressionError, match="the controller log has another entry"):
            CHANGES[name](place)
        assert place.objects() == before, name
    epoch = place.process().controller.advance_above(place.process().controller.snapshot().epoch)
    assert place.process().controller.advance() == epoch + 1


def test_a_place_that_a_checkpoint_covers_is_compared_with_its_entry(place: Place) -> None:
    uploads(place)
    handle = place.process().journal(0)
    handle.catch_up()
    noted = handle.replica.end
    uploads(place)
    handle.catch_up()
    handle.replica.write_checkpoint()
    again = place.process().journal(0)
    again.catch_up()
    assert again.replica.holds(noted)
    assert not again.replica.holds(noted._replace(id="another"))
    assert not again.replica.holds(again.replica.end._replace(offset=again.replica.offset + 1))
