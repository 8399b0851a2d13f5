"""Idempotent producers, as far as a partition decides them (pure). Source: KIP-360.

What makes a batch land once: the decision is made against the state at the very offset where the batch lands. A repeated
batch is recognised by its sequence; a repeated upload, which starts at sequence 0 under a bumped epoch, by how much of its
input has landed. A zombie's epoch is older than the one the partition knows, and a zombie that the partition has forgotten
is looked up at the controller (hazard 17) by the caller, who is told by `needs_controller_check`.
"""

from __future__ import annotations

from typing import Final

from l0gc.errors import (
    InputPositionMovedError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownProducerError,
)
from l0gc.streamlog.journal.entries import InputProgress, LandedBatch, ProducerBatch, ProducerState

RECENT_BATCHES: Final = 5
"""How many batches can be answered with their offset when they are repeated; Kafka keeps as many."""
INPUTS_KEPT: Final = 10_000
"""How many inputs of one producer are remembered; more of them within the expiry forget the oldest."""


def needs_controller_check(producers: dict[int, ProducerState], batch: ProducerBatch) -> bool:
    """Whether the producer is unknown here and claims to begin."""
    return batch.producer_id not in producers and batch.sequence == 0


def landed_of(producers: dict[int, ProducerState], producer_id: int, input_id: str) -> int:
    """How many of the input's records for this partition have landed."""
    state = producers.get(producer_id)
    progress = state.inputs.get(input_id) if state is not None else None
    return progress.landed if progress is not None else 0


def admit(producers: dict[int, ProducerState], batch: ProducerBatch) -> LandedBatch | None:
    """None if the batch may land now; where it landed, if it has landed before.

    Raises:
        InvalidProducerEpochError: a newer instance of the producer was here.
        UnknownProducerError: nothing is known that this sequence could continue.
        OutOfOrderSequenceError: a batch before it is missing, or it is too old to be answered.
        InputPositionMovedError: another run has landed other parts of the input; nothing of this batch landed.
    """
    state = producers.get(batch.producer_id)
    if state is None or batch.epoch > state.epoch:
        if batch.sequence != 0:
            raise UnknownProducerError(
                f"producer {batch.producer_id} epoch {batch.epoch} is not known at sequence {batch.sequence}; "
                "start the upload again, which bumps its epoch"
            )
    elif batch.epoch < state.epoch:
        raise InvalidProducerEpochError(
            f"producer {batch.producer_id} epoch {batch.epoch} is fenced by epoch {state.epoch}: another run took over"
        )
    elif batch.sequence < state.next_sequence:
        for b in state.recent:
            if b.sequence == batch.sequence:
                return b
        raise OutOfOrderSequenceError(
            f"producer {batch.producer_id} repeats sequence {batch.sequence}, which landed too long ago to be answered"
        )
    elif batch.sequence > state.next_sequence:
        raise OutOfOrderSequenceError(
            f"producer {batch.producer_id} sent sequence {batch.sequence} where {state.next_sequence} is due"
        )
    for span in batch.inputs:
        landed = landed_of(producers, batch.producer_id, span.input_id)
        if landed != span.start:
            raise InputPositionMovedError(
                f"{landed} records of input {span.input_id} have landed, not {span.start}: another run sends it too",
                landed=landed,
            )
    return None


def record(
    producers: dict[int, ProducerState],
    batch: ProducerBatch,
    base_offset: int,
    last_offset: int,
    time_ms: int,
) -> None:
    """Remember a batch that landed."""
    state = producers.get(batch.producer_id)
    if state is None:
        state = producers[batch.producer_id] = ProducerState(batch.epoch, 0, [], {}, time_ms)
    if batch.epoch > state.epoch:
        state.epoch, state.recent = batch.epoch, []
    state.next_sequence = batch.sequence + 1
    state.recent = [*state.recent, LandedBatch(batch.sequence, base_offset, last_offset)][-RECENT_BATCHES:]
    state.time_ms = time_ms
    for span in batch.inputs:
        state.inputs.pop(span.input_id, None)
        state.inputs[span.input_id] = InputProgress(span.end, time_ms)
    while len(state.inputs) > INPUTS_KEPT:
        del state.inputs[next(iter(state.inputs))]


def expire(producers: dict[int, ProducerState], before_ms: int) -> None:
    """Forget what was last used before `before_ms`."""
    for producer_id in [p for p, s in producers.items() if s.time_ms < before_ms]:
        del producers[producer_id]
    for state in producers.values():
        for input_id in [i for i, progress in state.inputs.items() if progress.time_ms < before_ms]:
            del state.inputs[input_id]
