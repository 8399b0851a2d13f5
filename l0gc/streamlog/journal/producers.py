"""A journal's decisions about idempotent producers (pure). Source: KIP-360.

A repeated object is recognised by its sequence. A repeated upload, which starts at sequence 0 under a bumped epoch, is
recognised by how much of its input has landed. A zombie's epoch is older than the one in the journal. If
`needs_controller_check` returns True, the caller checks with the controller that a producer without a record here is not a
zombie (hazard 17). The same id and epoch with another run means that a restored controller log assigned them twice, which
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from l0gc.errors import (
    InputPositionMovedError,
    InvalidProducerEpochError,
    UnknownProducerError,
    UsageError,
)

Int62 = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""Slightly less than a row can hold, so that one more or one less also fits."""


class InputSpan(msgspec.Struct, frozen=True, array_like=True):
    """The records `start` to `end` (end excluded) among those that input `input_id` has for this journal.

    For a sink, `rows` and `digest` identify the batch that the object belongs to: how many rows the whole batch has, and
    their digest. They are 0 and empty in an upload, whose `input_id` is a hash of the content.
    """

    input_id: str
    start: Int62
    end: Int62
    rows: Int62 = 0
    digest: str = ""


class ProducerBatch(msgspec.Struct, frozen=True, array_like=True):
    """The sender of an object, and the object's sequence; fixed when it is first sent (KIP-360).

    `run` is random, so that a restored controller log cannot assign the same identity twice.
    """

    producer_id: Int62
    epoch: Int62
    run: str
    sequence: Int62
    inputs: list[InputSpan] = []


class LandedSequence(msgspec.Struct, frozen=True, array_like=True):
    """An object of a producer, and the log offset at which it landed."""

    sequence: Int62
    log_offset: Int62


class InputProgress(msgspec.Struct, array_like=True):
    """The number of an input's records for this journal that have landed, when the last ones did, and their batch."""

    landed: Int62
    time_ms: Int62
    rows: Int62 = 0
    digest: str = ""


class ProducerState(msgspec.Struct, array_like=True):
    """A journal's record of a producer: enough to recognise a repeated object, a gap and a zombie."""

    epoch: Int62
    run: str
    next_sequence: Int62
    recent: list[LandedSequence]
    inputs: dict[str, InputProgress]
    time_ms: Int62


RECENT_OBJECTS: Final = 5
"""How many of a producer's last objects can be answered with their offset if repeated; Kafka keeps as many."""
INPUTS_KEPT: Final = 10_000
"""How many inputs of one producer are remembered; with more of them, the oldest are forgotten before they expire."""


def needs_controller_check(producers: Mapping[int, ProducerState], batch: ProducerBatch) -> bool:
    """Return whether the producer is unknown here and sends its first sequence."""
    return batch.producer_id not in producers and batch.sequence == 0


def landed_of(producers: Mapping[int, ProducerState], producer_id: int, input_id: str) -> int:
    """Return how many of the input's records for this journal have landed."""
    state = producers.get(producer_id)
    progress = state.inputs.get(input_id) if state is not None else None
    return progress.landed if progress is not None else 0


def progress_of(producers: Mapping[int, ProducerState], input_id: str) -> InputProgress | None:
    """Return the progress of an input that only one producer has, whatever the producer's id was; None if nothing
    landed.

    A restored controller log may have forgotten the producer, and then assigns its name another id.
    """
    positions = [s.inputs[input_id] for s in list(producers.values()) if input_id in s.inputs]
    return max(positions, key=lambda progress: progress.landed, default=None)


def is_ahead(state: ProducerState, epoch: int, run: str) -> bool:
    """Return whether a journal refuses this run, since it has seen a later one, or another one with the same epoch."""
    return state.epoch > epoch or (state.epoch == epoch and state.run != run)


def admit(producers: Mapping[int, ProducerState], batch: ProducerBatch) -> LandedSequence | None:
    """Return None if the object may land now, or the place where it landed earlier.

    Raises:
        UsageError: the batch is invalid.
        InvalidProducerEpochError: a newer instance of the producer was here, or another one with the same epoch.
        UnknownProducerError: there is no state to continue, an object before it is missing, or it is too old to be
            answered.
        InputPositionMovedError: another run has landed other parts of the input; nothing of this object landed.
    """
    if batch.sequence < 0 or batch.epoch < 0 or any(s.end <= s.start for s in batch.inputs):
        raise UsageError(f"sequence {batch.sequence} of producer {batch.producer_id} is invalid")
    state = producers.get(batch.producer_id)
    if state is None or batch.epoch > state.epoch:
        if batch.sequence != 0:
            raise UnknownProducerError(
                f"producer {batch.producer_id} epoch {batch.epoch} is not known at sequence {batch.sequence}; "
                "start the upload again, which bumps its epoch"
            )
    elif batch.epoch < state.epoch:
        raise InvalidProducerEpochError(
            f"producer {batch.producer_id} epoch {batch.epoch} is fenced by epoch {state.epoch}: another run took over; "
            "let this one end, or end the other one and begin again"
        )
    elif batch.run != state.run:
        raise InvalidProducerEpochError(
            f"producer {batch.producer_id} epoch {batch.epoch} belongs to another run: the controller log looks restored "
            "from a backup. Run l0gc doctor; then start the upload again, which bumps the epoch"
        )
    elif batch.sequence < state.next_sequence:
        for landed in state.recent:
            if landed.sequence == batch.sequence:
                return landed
        raise UnknownProducerError(
            f"producer {batch.producer_id} repeats sequence {batch.sequence}, which landed too long ago to be answered"
        )
    elif batch.sequence > state.next_sequence:
        raise UnknownProducerError(
            f"producer {batch.producer_id} sent sequence {batch.sequence} instead of {state.next_sequence}"
        )
    for span in batch.inputs:
        landed_records = landed_of(producers, batch.producer_id, span.input_id)
        if landed_records != span.start:
            raise InputPositionMovedError(
                f"{landed_records} records of input {span.input_id} have landed, not {span.start}: another run sends it, "
                "too; let one of the two end, and begin the other one again",
                landed=landed_records,
            )
    return None


def record(producers: dict[int, ProducerState], batch: ProducerBatch, log_offset: int, time_ms: int) -> None:
    state = producers.get(batch.producer_id)
    if state is None:
        state = producers[batch.producer_id] = ProducerState(batch.epoch, batch.run, 0, [], {}, time_ms)
    if batch.epoch > state.epoch:
        state.epoch, state.run, state.recent = batch.epoch, batch.run, []
    state.next_sequence = batch.sequence + 1
    state.recent = [*state.recent, LandedSequence(batch.sequence, log_offset)][-RECENT_OBJECTS:]
    state.time_ms = time_ms
    for span in batch.inputs:
        state.inputs.pop(span.input_id, None)
        state.inputs[span.input_id] = InputProgress(span.end, time_ms, span.rows, span.digest)
    while len(state.inputs) > INPUTS_KEPT:
        del state.inputs[next(iter(state.inputs))]


def forget_unused(producers: dict[int, ProducerState], before_ms: int) -> None:
    """Forget producers that were last used before `before_ms`."""
    for producer_id in [p for p, s in producers.items() if s.time_ms < before_ms]:
        del producers[producer_id]
    for state in producers.values():
        for input_id in [i for i, progress in state.inputs.items() if progress.time_ms < before_ms]:
            del state.inputs[input_id]


class Overlay:
    """The producers' states after each object of one entry, before any of them lands (hazard 22)."""

    def __init__(self, producers: Mapping[int, ProducerState]) -> None:
        self._base = producers
        self._changed: dict[int, ProducerState] = {}

    def admit(self, batch: ProducerBatch) -> LandedSequence | None:
        producer = self._changed.get(batch.producer_id) or self._base.get(batch.producer_id)
        return admit({} if producer is None else {batch.producer_id: producer}, batch)

    def record(self, batch: ProducerBatch) -> None:
        if batch.producer_id not in self._changed and batch.producer_id in self._base:
            producer = self._base[batch.producer_id]
            self._changed[batch.producer_id] = msgspec.structs.replace(producer, inputs=dict(producer.inputs))
        record(self._changed, batch, -1, 0)
