"""What a partition decides about idempotent producers (KIP-360), and about inputs that come again."""

from __future__ import annotations

import pytest

from l0gc.errors import (
    InputPositionMovedError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownProducerError,
)
from l0gc.partition import producers as rules
from l0gc.partition.entries import InputSpan, LandedBatch, ProducerBatch, ProducerState
from l0gc.partition.producers import INPUTS_KEPT, RECENT_BATCHES, admit, expire, landed_of, needs_controller_check

Producers = dict[int, ProducerState]


def batch(
    sequence: int, *, epoch: int = 0, producer_id: int = 1, inputs: list[InputSpan] | None = None
) -> ProducerBatch:
    return ProducerBatch(producer_id, epoch, sequence, inputs or [])


def land(producers: Producers, b: ProducerBatch, base: int = 0, time_ms: int = 0) -> None:
    """Admit the batch as a new one of ten records."""
    assert admit(producers, b) is None
    rules.record(producers, b, base, base + 9, time_ms)


def landed(count: int, *, epoch: int = 0) -> Producers:
    producers: Producers = {}
    for sequence in range(count):
        land(producers, batch(sequence, epoch=epoch), base=10 * sequence)
    return producers


def test_a_repeated_batch_is_answered_with_its_offset() -> None:
    producers = landed(3)
    assert admit(producers, batch(1)) == LandedBatch(1, 10, 19)
    assert admit(producers, batch(2)) == LandedBatch(2, 20, 29)
    assert producers[1].next_sequence == 3


def test_a_batch_repeated_too_late_is_refused_and_not_appended_again() -> None:
    producers = landed(RECENT_BATCHES + 1)
    assert admit(producers, batch(1)) == LandedBatch(1, 10, 19)
    with pytest.raises(OutOfOrderSequenceError, match="repeats sequence 0, which landed too long ago"):
        admit(producers, batch(0))


def test_a_gap_is_refused() -> None:
    producers = landed(2)
    with pytest.raises(OutOfOrderSequenceError, match="sent sequence 3 where 2 is due"):
        admit(producers, batch(3))
    assert admit(producers, batch(2)) is None


@pytest.mark.parametrize("sequence", [0, 2, 3, 7])
def test_an_older_epoch_is_refused_at_any_sequence(sequence: int) -> None:
    producers = landed(3, epoch=4)
    with pytest.raises(InvalidProducerEpochError, match="epoch 3 is fenced by epoch 4"):
        admit(producers, batch(sequence, epoch=3))


def test_an_unknown_producer_may_begin_and_nothing_else() -> None:
    assert admit({}, batch(0)) is None
    with pytest.raises(UnknownProducerError, match=r"not known at sequence 1; .* bumps its epoch"):
        admit({}, batch(1))


def test_only_an_unknown_producer_that_begins_is_looked_up_at_the_controller() -> None:
    producers = landed(1)
    assert needs_controller_check({}, batch(0))
    assert needs_controller_check(producers, batch(0, producer_id=2))
    assert not needs_controller_check(producers, batch(0))
    assert not needs_controller_check(producers, batch(1))
    assert not needs_controller_check({}, batch(1))  # refused in any case


def test_a_bumped_epoch_starts_at_sequence_zero_and_fences_the_old_one() -> None:
    producers = landed(3)
    with pytest.raises(UnknownProducerError):
        admit(producers, batch(3, epoch=1))
    land(producers, batch(0, epoch=1), base=30)
    assert admit(producers, batch(0, epoch=1)) == LandedBatch(0, 30, 39)
    assert admit(producers, batch(1, epoch=1)) is None
    with pytest.raises(InvalidProducerEpochError):
        admit(producers, batch(3))


def test_producers_do_not_meet() -> None:
    producers = landed(3)
    land(producers, batch(0, producer_id=2, epoch=9))
    assert admit(producers, batch(3)) is None


def test_a_producer_is_known_until_it_expires_and_then_only_a_bumped_epoch_helps() -> None:
    producers: Producers = {}
    land(producers, batch(0), time_ms=100)
    land(producers, batch(0, producer_id=2), time_ms=200)
    expire(producers, 100)
    assert set(producers) == {1, 2}
    expire(producers, 101)
    assert set(producers) == {2}
    with pytest.raises(UnknownProducerError):
        admit(producers, batch(1))
    assert needs_controller_check(producers, batch(0, epoch=1))
    land(producers, batch(0, epoch=1), time_ms=300)


def test_an_input_expires_by_itself() -> None:
    producers: Producers = {}
    land(producers, batch(0, inputs=[InputSpan("a", 0, 10)]), time_ms=100)
    land(producers, batch(1, inputs=[InputSpan("b", 0, 10)]), time_ms=200)
    expire(producers, 150)
    assert (landed_of(producers, 1, "a"), landed_of(producers, 1, "b")) == (0, 10)


# -- inputs, by content ------------------------------------------------------------------------------------------------


def test_a_new_run_goes_on_behind_what_has_landed() -> None:
    producers: Producers = {}
    land(producers, batch(0, inputs=[InputSpan("a", 0, 6)]))
    land(producers, batch(1, inputs=[InputSpan("a", 6, 8), InputSpan("b", 0, 2)]))
    assert [landed_of(producers, 1, i) for i in "abc"] == [8, 2, 0]
    land(producers, batch(0, epoch=1, inputs=[InputSpan("b", 2, 5)]))
    assert landed_of(producers, 1, "b") == 5


@pytest.mark.parametrize("start", [0, 5, 7])
def test_an_input_that_another_run_has_moved_is_not_landed_twice_nor_with_a_hole(start: int) -> None:
    """Hazard 20: the same job runs twice."""
    producers: Producers = {}
    land(producers, batch(0, inputs=[InputSpan("a", 0, 6)]))
    with pytest.raises(InputPositionMovedError, match=f"6 records of input a have landed, not {start}") as e:
        admit(producers, batch(0, epoch=1, inputs=[InputSpan("a", start, start + 5)]))
    assert e.value.landed == 6


def test_one_moved_input_holds_back_the_whole_batch() -> None:
    producers: Producers = {}
    land(producers, batch(0, inputs=[InputSpan("b", 0, 1)]))
    with pytest.raises(InputPositionMovedError):
        admit(producers, batch(0, epoch=1, inputs=[InputSpan("a", 0, 6), InputSpan("b", 0, 3)]))
    assert landed_of(producers, 1, "a") == 0


def test_other_input_and_other_producers_are_never_taken_for_landed() -> None:
    producers: Producers = {}
    land(producers, batch(0, inputs=[InputSpan("a", 0, 6)]))
    assert landed_of(producers, 1, "another") == 0
    assert landed_of(producers, 2, "a") == 0
    land(producers, batch(0, producer_id=2, inputs=[InputSpan("a", 0, 6)]))


def test_the_oldest_inputs_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert INPUTS_KEPT >= 10_000
    monkeypatch.setattr(rules, "INPUTS_KEPT", 2)
    producers: Producers = {}
    land(producers, batch(0, inputs=[InputSpan("a", 0, 1)]))
    land(producers, batch(1, inputs=[InputSpan("b", 0, 1)]))
    land(producers, batch(2, inputs=[InputSpan("a", 1, 2)]))
    land(producers, batch(3, inputs=[InputSpan("c", 0, 1)]))
    assert [landed_of(producers, 1, i) for i in "abc"] == [2, 0, 1]
