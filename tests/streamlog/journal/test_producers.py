"""The journal's decisions about idempotent producers (KIP-360) and about repeated inputs."""

from __future__ import annotations

import msgspec
import pytest

from l0gc.errors import (
    InputPositionMovedError,
    InvalidProducerEpochError,
    ProtocolError,
    UnknownProducerError,
)
from l0gc.streamlog.cluster import ClusterHandles
from l0gc.streamlog.controller.state import NAME_EXPIRY_MS, PRODUCER_EXPIRY_MS, Producer
from l0gc.streamlog.journal import producers as rules
from l0gc.streamlog.journal.handle import JournalHandle
from l0gc.streamlog.journal.producers import (
    INPUTS_KEPT,
    RECENT_OBJECTS,
    InputSpan,
    LandedSequence,
    Overlay,
    ProducerBatch,
    ProducerState,
    admit,
    forget_unused,
    landed_of,
    needs_controller_check,
)
from tests.support.journal import key_of, of_topic
from tests.support.memory_store import MemoryStore, memory_cluster, store_of, topic_in_memory

Producers = dict[int, ProducerState]


def batch(
    sequence: int, *, epoch: int = 0, producer_id: int = 1, run: str = "", inputs: list[InputSpan] | None = None
) -> ProducerBatch:
    return ProducerBatch(producer_id, epoch, run or f"run-{epoch}", sequence, inputs or [])


def land(producers: Producers, b: ProducerBatch, log_offset: int = 0, time_ms: int = 0) -> None:
    """Admit the batch, which must be new, and record it."""
    assert admit(producers, b) is None
    rules.record(producers, b, log_offset, time_ms)


def landed(count: int, *, epoch: int = 0) -> Producers:
    producers: Producers = {}
    for sequence in range(count):
        land(producers, batch(sequence, epoch=epoch), log_offset=sequence)
    return producers


def landed_input(input_id: str, end: int) -> Producers:
    """Return producers, of which number 1 has landed an input's first `end` records."""
    producers: Producers = {}
    land(producers, batch(0, inputs=[InputSpan(input_id, 0, end)]))
    return producers


def test_a_repeated_batch_is_answered_with_its_offset() -> None:
    producers = landed(3)
    assert admit(producers, batch(1)) == LandedSequence(1, 1)
    assert admit(producers, batch(2)) == LandedSequence(2, 2)
    assert producers[1].next_sequence == 3


def test_a_batch_repeated_too_late_is_refused_and_not_appended_again() -> None:
    producers = landed(RECENT_OBJECTS + 1)
    assert admit(producers, batch(1)) == LandedSequence(1, 1)
    with pytest.raises(UnknownProducerError, match="repeats sequence 0, which landed too long ago"):
        admit(producers, batch(0))


def test_a_gap_is_refused() -> None:
    producers = landed(2)
    with pytest.raises(UnknownProducerError, match="sent sequence 3 instead of 2"):
        admit(producers, batch(3))
    assert admit(producers, batch(2)) is None


def test_after_a_batch_that_failed_every_later_one_fails_too() -> None:
    """A sequence is fixed when a batch is first sent, so a later batch cannot take the place of the missing one."""
    producers = landed(2)
    for sequence in (3, 4, 5, 100):
        with pytest.raises(UnknownProducerError):
            admit(producers, batch(sequence))
    land(producers, batch(2), log_offset=2)
    land(producers, batch(3), log_offset=3)


def test_a_refused_batch_changes_nothing() -> None:
    producers = landed(3, epoch=4)
    before = msgspec.json.encode(producers)
    moved = [InputSpan("a", 7, 9)]
    for b in (batch(5, epoch=4), batch(0, epoch=3), batch(1, epoch=5), batch(1, producer_id=9)):
        with pytest.raises(ProtocolError):
            admit(producers, b)
    with pytest.raises(InputPositionMovedError):
        admit(producers, batch(3, epoch=4, inputs=moved))
    assert admit(producers, batch(2, epoch=4)) is not None
    assert msgspec.json.encode(producers) == before


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
    assert not needs_controller_check({}, batch(1))  # refused without the lookup


def test_a_bumped_epoch_starts_at_sequence_zero_and_fences_the_old_one() -> None:
    producers = landed(3)
    with pytest.raises(UnknownProducerError):
        admit(producers, batch(3, epoch=1))
    land(producers, batch(0, epoch=1), log_offset=3)
    assert admit(producers, batch(0, epoch=1)) == LandedSequence(0, 3)
    assert admit(producers, batch(1, epoch=1)) is None
    with pytest.raises(InvalidProducerEpochError):
        admit(producers, batch(3))


def test_a_previous_epochs_batch_does_not_count_as_the_new_epochs() -> None:
    producers = landed(3)
    assert admit(producers, batch(0, epoch=1)) is None  # although sequence 0 landed under epoch 0
    land(producers, batch(0, epoch=1), log_offset=3)
    with pytest.raises(UnknownProducerError, match="sent sequence 2 instead of 1"):
        admit(producers, batch(2, epoch=1))


def test_a_run_may_skip_epochs_in_which_nothing_landed_here() -> None:
    producers = landed(1)
    land(producers, batch(0, epoch=7), log_offset=1)
    assert producers[1].epoch == 7


def test_a_producer_does_not_change_the_sequences_of_another() -> None:
    producers = landed(3)
    land(producers, batch(0, producer_id=2, epoch=9))
    assert admit(producers, batch(3)) is None


def test_only_a_bumped_epoch_readmits_an_expired_producer() -> None:
    producers: Producers = {}
    land(producers, batch(0), time_ms=100)
    land(producers, batch(0, producer_id=2), time_ms=200)
    forget_unused(producers, 100)
    assert set(producers) == {1, 2}
    forget_unused(producers, 101)
    assert set(producers) == {2}
    with pytest.raises(UnknownProducerError):
        admit(producers, batch(1))
    assert needs_controller_check(producers, batch(0, epoch=1))
    land(producers, batch(0, epoch=1), time_ms=300)


def test_an_input_expires_by_itself() -> None:
    producers: Producers = {}
    land(producers, batch(0, inputs=[InputSpan("a", 0, 10)]), time_ms=100)
    land(producers, batch(1, inputs=[InputSpan("b", 0, 10)]), time_ms=200)
    forget_unused(producers, 100)
    assert (landed_of(producers, 1, "a"), landed_of(producers, 1, "b")) == (10, 10)
    forget_unused(producers, 101)
    assert (landed_of(producers, 1, "a"), landed_of(producers, 1, "b")) == (0, 10)


# -- inputs by content -------------------------------------------------------------------------------------------------


def test_a_new_run_goes_on_after_what_has_landed() -> None:
    producers = landed_input("a", 6)
    land(producers, batch(1, inputs=[InputSpan("a", 6, 8), InputSpan("b", 0, 2)]))
    assert [landed_of(producers, 1, i) for i in "abc"] == [8, 2, 0]
    land(producers, batch(0, epoch=1, inputs=[InputSpan("b", 2, 5)]))
    assert landed_of(producers, 1, "b") == 5


@pytest.mark.parametrize("start", [0, 5, 7])
def test_an_input_moved_by_another_run_lands_exactly_once(start: int) -> None:
    """Hazard 20: two runs of the same job overlap."""
    producers = landed_input("a", 6)
    with pytest.raises(InputPositionMovedError, match=f"6 records of input a have landed, not {start}") as e:
        admit(producers, batch(0, epoch=1, inputs=[InputSpan("a", start, start + 5)]))
    assert e.value.landed == 6


def test_one_moved_input_holds_back_the_whole_batch() -> None:
    producers = landed_input("b", 1)
    with pytest.raises(InputPositionMovedError):
        admit(producers, batch(0, epoch=1, inputs=[InputSpan("a", 0, 6), InputSpan("b", 0, 3)]))
    assert landed_of(producers, 1, "a") == 0


def test_other_input_and_other_producers_are_never_taken_for_landed() -> None:
    producers = landed_input("a", 6)
    assert landed_of(producers, 1, "another") == 0
    assert landed_of(producers, 2, "a") == 0
    land(producers, batch(0, producer_id=2, inputs=[InputSpan("a", 0, 6)]))


def test_the_oldest_inputs_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert INPUTS_KEPT >= 10_000
    monkeypatch.setattr(rules, "INPUTS_KEPT", 2)
    producers = landed_input("a", 1)
    land(producers, batch(1, inputs=[InputSpan("b", 0, 1)]))
    land(producers, batch(2, inputs=[InputSpan("a", 1, 2)]))
    land(producers, batch(3, inputs=[InputSpan("c", 0, 1)]))
    assert [landed_of(producers, 1, i) for i in "abc"] == [2, 0, 1]


# -- runs ----------------------------------------------------------------------------------------------------------------


def test_the_same_epoch_of_another_run_is_refused() -> None:
    """A restored controller log assigns an epoch twice, and sequence 0 of the other run is not this run's."""
    producers: Producers = {}
    land(producers, batch(0, run="before the restore"))
    for sequence in (0, 1):
        with pytest.raises(InvalidProducerEpochError, match="belongs to another run"):
            admit(producers, batch(sequence, run="after the restore"))
    land(producers, batch(0, epoch=1, run="the next one"))


def test_an_entrys_batches_are_admitted_in_order_without_side_effects() -> None:
    """Hazard 22: each batch is admitted to the state after the batch before it."""
    producers = landed_input("a", 2)
    before = msgspec.json.encode(producers)
    overlay = Overlay(producers)
    for b in (
        batch(1, inputs=[InputSpan("a", 2, 3)]),
        batch(2, inputs=[InputSpan("a", 3, 5)]),
        batch(0, producer_id=2),
        batch(0, epoch=1, inputs=[InputSpan("a", 5, 6)]),
    ):
        assert overlay.admit(b) is None
        overlay.record(b)
    assert overlay.admit(batch(0, producer_id=2)) == LandedSequence(0, -1)
    with pytest.raises(InvalidProducerEpochError):
        overlay.admit(batch(3))
    with pytest.raises(InputPositionMovedError):
        overlay.admit(batch(1, epoch=1, inputs=[InputSpan("a", 5, 7)]))
    assert msgspec.json.encode(producers) == before


# -- the whole path: the controller, two journals, the log, and time -----------------------------------------------------

DAY_MS = 24 * 3_600_000


def begun() -> tuple[ClusterHandles, MemoryStore, Producer]:
    """Return a cluster with a topic in two journals, its store, and a run that begins."""
    cluster = topic_in_memory(2, 2)
    return cluster, store_of(cluster), cluster.controller.init_producer("job")


def send(
    cluster: ClusterHandles, partition: int, run: Producer | None, sequence: int = 0, span: InputSpan | None = None
) -> int:
    """Append a batch of one record, after a read of the log; return its log offset."""
    topic = cluster.controller.snapshot().topic("events")
    handle = cluster.journal(topic.journal_of(partition))
    handle.catch_up()
    b = (
        ProducerBatch(run.producer_id, run.epoch, run.run, sequence, [span] if span else [])
        if run is not None
        else None
    )
    epoch = cluster.controller.epoch()
    key = key_of(epoch, cluster.runtime.random.getrandbits(64))
    appended = handle.append([of_topic(topic, epoch, {partition: 1}, key=key, producer=b)])
    if appended.error is not None:
        raise appended.error
    return appended.landed[0].log_offset


def journal_of(cluster: ClusterHandles, partition: int) -> JournalHandle:
    return cluster.journal(cluster.controller.snapshot().topic("events").journal_of(partition))


def days_pass(cluster: ClusterHandles, store: MemoryStore, days: float, partitions: list[int]) -> None:
    """Advance the store's clock, the epoch, and the logs of these partitions by a record each."""
    store.clock.ms += int(days * DAY_MS)
    cluster.controller.advance()
    for p in partitions:
        send(cluster, p, None)


def test_what_is_known_of_a_producer_outlives_truncation() -> None:
    cluster, store, run = begun()
    first = send(cluster, 0, run, 0, InputSpan("day-1", 0, 1))
    second = send(cluster, 0, run, 1, InputSpan("day-1", 1, 2))
    store.clock.ms += 3_600_000
    journal_of(cluster, 0).replica.write_checkpoint()
    assert journal_of(cluster, 0).replica.log.truncate() == 1
    anew = memory_cluster(store, seed=1, bootstrap=False)
    assert send(anew, 0, run, 0, InputSpan("day-1", 0, 1)) == first
    assert send(anew, 0, run, 1, InputSpan("day-1", 1, 2)) == second
    with pytest.raises(UnknownProducerError):
        send(anew, 0, run, 3)
    assert send(anew, 0, run, 2, InputSpan("day-1", 2, 3)) == 2
    assert landed_of(journal_of(anew, 0).state.producers, run.producer_id, "day-1") == 3


@pytest.mark.parametrize("days", [0.5, 6.5])
def test_a_runs_early_landings_are_remembered_with_its_producer(days: float) -> None:
    """The run wrote to one journal on its first day only, and to the other for a week; then it is repeated."""
    cluster, store, run = begun()
    send(cluster, 0, run, 0, InputSpan("day-1", 0, 1))
    send(cluster, 1, run, 0, InputSpan("day-1", 0, 1))
    days_pass(cluster, store, 6.9, [0, 1])
    send(cluster, 1, run, 1, InputSpan("day-1", 1, 2))
    days_pass(cluster, store, days, [0, 1])
    again = cluster.controller.init_producer("job")
    assert (again.producer_id, again.epoch) == (run.producer_id, run.epoch + 1)
    days_pass(cluster, store, 6.9, [0, 1])
    assert landed_of(journal_of(cluster, 0).state.producers, again.producer_id, "day-1") == 1
    with pytest.raises(InputPositionMovedError):
        send(cluster, 0, again, 0, InputSpan("day-1", 0, 1))
    send(cluster, 1, again, 0, InputSpan("day-1", 2, 3))


@pytest.mark.parametrize("sequence", [0, 1])
def test_a_run_that_a_journal_forgot_cannot_land_again_what_it_landed(sequence: int) -> None:
    """Hazard 17: no later run has fenced it, so only a bump helps."""
    cluster, store, run = begun()
    send(cluster, 0, run, 0)
    send(cluster, 0, run, 1)
    store.clock.ms += 1
    days_pass(cluster, store, PRODUCER_EXPIRY_MS / DAY_MS, [0])
    assert journal_of(cluster, 0).state.producers == {}
    with pytest.raises(UnknownProducerError, match="bumps its epoch"):
        send(cluster, 0, run, sequence)
    again = cluster.controller.init_producer("job")
    send(cluster, 0, again, 0)
    with pytest.raises((UnknownProducerError, InvalidProducerEpochError)):
        send(cluster, 0, run, sequence)


def test_a_run_forgotten_by_the_controller_continues_only_where_known() -> None:
    cluster, store, run = begun()
    for sequence in range(4):
        send(cluster, 0, run, sequence)
        days_pass(cluster, store, 5, [0, 1])
    assert 4 * 5 * DAY_MS > NAME_EXPIRY_MS
    assert cluster.controller.snapshot().producers == {}
    send(cluster, 0, run, 4)
    with pytest.raises(UnknownProducerError):
        send(cluster, 1, run, 0)


def test_an_id_is_not_given_again_after_its_name_was_forgotten() -> None:
    """The journal still keeps the old id and its input; the new id is a different producer."""
    cluster, store, run = begun()
    for sequence in range(4):
        send(cluster, 0, run, sequence, InputSpan("day-1", sequence, sequence + 1))
        days_pass(cluster, store, 5, [0])
    again = cluster.controller.init_producer("job")
    assert again.producer_id != run.producer_id
    assert (again.epoch, again.last_epoch) == (0, -1)
    assert landed_of(journal_of(cluster, 0).state.producers, run.producer_id, "day-1") == 4
    assert landed_of(journal_of(cluster, 0).state.producers, again.producer_id, "day-1") == 0
    send(cluster, 0, again, 0)


def test_a_known_producers_bump_does_not_read_the_controller() -> None:
    """Only the controller assigns epochs, so an epoch above the recorded one is newer, and the journal need not ask."""
    cluster, _, run = begun()
    send(cluster, 0, run, 0)
    bumped = cluster.controller.init_producer("job")
    send(cluster, 0, bumped, 0)
    with pytest.raises(InvalidProducerEpochError):
        send(cluster, 0, run, 1)
