"""What a partition's log and its checkpoints hold."""

from __future__ import annotations

from typing import Annotated

import msgspec

Int62 = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""What a report can hold, and a little less, so that what is one more or one less fits, too. JSON has larger numbers; an
entry or a checkpoint with one is corrupt."""


class InputSpan(msgspec.Struct, frozen=True):
    """The records `start` to `end` (end excluded) of what input `input_id` has for this partition."""

    input_id: str
    start: Int62
    end: Int62


class ProducerBatch(msgspec.Struct, frozen=True):
    """Who sends a batch, and which one it is; fixed when it is first sent (KIP-360)."""

    producer_id: Int62
    epoch: Int62
    sequence: Int62
    inputs: list[InputSpan] = []


class Placeholder(msgspec.Struct, frozen=True):
    """What the log holds instead of data: where the records are. `crc32c` is over the byte range."""

    key: str
    start: Int62
    length: Int62
    records: Int62
    crc32c: Int62
    base_offset: Int62
    producer: ProducerBatch | None = None

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.records - 1


class Placeholders(msgspec.Struct, frozen=True, tag="placeholders"):
    """Data at `epoch`."""

    epoch: Int62
    placeholders: list[Placeholder]


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """The window slides to `epoch` without data."""

    epoch: Int62


class Barrier(msgspec.Struct, frozen=True, tag="barrier"):
    """The window closes to `epoch` alone: a straggler below it has to upload again."""

    epoch: Int62


class L1File(msgspec.Struct, frozen=True):
    """An L1 object with the records `base_offset` to `last_offset`, both included."""

    key: str
    base_offset: Int62
    last_offset: Int62
    bytes: Int62


class Reconciled(msgspec.Struct, frozen=True, tag="reconciled"):
    """The records `base_offset` to `last_offset`, of the entries up to `log_offset`, are in `files`, durably."""

    base_offset: Int62
    last_offset: Int62
    log_offset: Int62
    files: list[L1File]


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The topic is gone."""


PartitionEntry = Placeholders | Advance | Barrier | Reconciled | Closed


class Unreconciled(msgspec.Struct, frozen=True):
    """A placeholder in the state, with the epoch and the log offset of its entry."""

    placeholder: Placeholder
    epoch: Int62
    log_offset: Int62


class LandedBatch(msgspec.Struct, frozen=True):
    sequence: Int62
    base_offset: Int62
    last_offset: Int62


class InputProgress(msgspec.Struct):
    """How many of an input's records for this partition have landed, and when the last ones did."""

    landed: Int62
    time_ms: Int62


class ProducerState(msgspec.Struct):
    """What a partition knows of a producer: enough to recognise a repeated batch, a gap and a zombie."""

    epoch: Int62
    next_sequence: Int62
    recent: list[LandedBatch]
    inputs: dict[str, InputProgress]
    time_ms: Int62
