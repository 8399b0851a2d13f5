"""The steps of gc: which are due, which still run after a failure, and the exit code of the run."""

from __future__ import annotations

import itertools

import pytest

from l0gc import errors
from l0gc.collect.gc_steps import (
    COMPUTE,
    SCAN_EVERY_MS,
    STEPS,
    SWEEP,
    VACUUM,
    WORST,
    GcNote,
    compute_not_due,
    is_final,
    is_left_out,
    sweep_not_due,
    worst,
)
from l0gc.collect.record import read_gc_note, write_gc_note
from l0gc.errors import BucketNotFoundError, CorruptObjectError, L0gcError, NotInitialisedError, PausedError, UsageError
from l0gc.keys import GC_NOTE
from l0gc.watermark.publication import PublishedWatermark
from tests.support.memory_store import MemoryStore

AT_MS = 1_700_000_000_000
PUBLISHED = PublishedWatermark("c", 7, 9, AT_MS, eligible_objects=3, eligible_bytes=30, listed_objects=10)
NOTE = GcNote(landed=11, published_ms=AT_MS, held=0, swept=7)


def not_due(
    published: PublishedWatermark | None = PUBLISHED,
    note: GcNote = NOTE,
    *,
    lowest: int | None = 9,
    landed: int = 11,
    age_ms: int = 60_000,
) -> bool:
    return compute_not_due(published, note, lowest=lowest, landed=landed, now_ms=AT_MS + age_ms) != ""


def test_m_is_computed_where_it_could_let_something_go() -> None:
    assert not_due()  # M could move, but would release nothing
    assert not not_due(landed=12)
    assert not not_due(note=GcNote(11, AT_MS, held=1, swept=7))
    assert not not_due(note=GcNote(11, AT_MS, held=-1, swept=7))
    assert not not_due(note=GcNote(11, AT_MS - 1, held=0, swept=7))  # another run has since computed M


def test_m_is_not_computed_where_it_cannot_move() -> None:
    assert not_due(lowest=7, landed=12)
    assert not not_due(lowest=8, landed=12)


def test_m_is_computed_where_it_would_be_lower_than_published() -> None:
    """Computing M reports the journal that was set back (hazard 38)."""
    assert not not_due(lowest=6)
    assert not not_due(lowest=6, landed=12)


def test_m_is_computed_where_nobody_knows_and_once_a_day() -> None:
    assert not not_due(None)
    assert not not_due(lowest=None)
    assert not not_due(note=GcNote(), lowest=7)
    assert not not_due(PublishedWatermark("c", 7, 9, AT_MS), lowest=7)  # published without a listing
    assert not not_due(lowest=7, age_ms=SCAN_EVERY_MS)
    assert not_due(lowest=7, age_ms=SCAN_EVERY_MS - 1)


def test_a_sweep_is_due_where_m_has_moved_over_something() -> None:
    assert sweep_not_due(None, NOTE)
    assert sweep_not_due(PublishedWatermark("c", -1, 0, AT_MS), GcNote())
    assert sweep_not_due(PUBLISHED, NOTE)
    assert not sweep_not_due(PUBLISHED, GcNote(swept=6))
    assert not sweep_not_due(PUBLISHED, GcNote(swept=6, shadowed=7))  # a shadow run deletes nothing
    assert sweep_not_due(PUBLISHED, GcNote(swept=6, shadowed=7), shadow=True)
    assert sweep_not_due(PublishedWatermark("c", 7, 9, AT_MS, 0, 0, 10), GcNote(swept=6))
    assert not sweep_not_due(PublishedWatermark("c", 7, 9, AT_MS), GcNote(swept=6))
    graced = PublishedWatermark("c", 7, 9, AT_MS, history=[(5, AT_MS - 100)])
    assert sweep_not_due(graced, GcNote(swept=5), AT_MS - 1)
    assert not sweep_not_due(graced, GcNote(swept=4), AT_MS - 1)
    assert sweep_not_due(graced, GcNote(), AT_MS - 101)
    assert not sweep_not_due(graced, GcNote(swept=5), AT_MS)


@pytest.mark.parametrize("body", [b"\xff", b"{}{}", b'{"held": "x"}'])
def test_a_note_that_cannot_be_read_says_nothing(body: bytes) -> None:
    store = MemoryStore()
    assert read_gc_note(store) == GcNote()
    write_gc_note(store, NOTE)
    assert read_gc_note(store) == NOTE
    store.put(GC_NOTE, body)
    assert read_gc_note(store) == GcNote()


def test_nothing_is_deleted_unless_m_was_computed_or_need_not_be() -> None:
    """The other steps run even if M was not computed."""
    others = [s for s in STEPS if s not in (SWEEP, VACUUM)]
    for failed in itertools.chain.from_iterable(itertools.combinations(others, n) for n in range(6)):
        assert {is_left_out(step, failed) for step in (SWEEP, VACUUM)} == {COMPUTE in failed}
        assert not any(is_left_out(step, failed) for step in others)


@pytest.mark.parametrize("kind", [UsageError, NotInitialisedError, BucketNotFoundError])
def test_what_no_step_can_work_with_ends_the_run(kind: type[L0gcError]) -> None:
    assert is_final(kind("no"))


@pytest.mark.parametrize(
    "kind", [CorruptObjectError, PausedError, errors.StoreUnreachableError, errors.PartialFailureError]
)
def test_what_concerns_one_step_does_not_keep_others_from_their_work(kind: type[L0gcError]) -> None:
    assert not is_final(kind("no"))


def test_the_worst_code_counts_and_every_code_has_its_place() -> None:
    assert worst([]) == worst([0, 0]) == 0
    assert worst([3, 0, 1]) == 1
    assert worst([1, 4, 6, 3]) == 4
    assert worst([4, 130]) == 130
    order = [143, 130, 4, 6, 5, 2, 1, 3]
    assert [worst(order[n:][::-1]) for n in range(len(order))] == order
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, L0gcError)]
    assert {k.exit_code for k in kinds} <= set(WORST)
