"""What a partition's log and its checkpoints hold."""

from __future__ import annotations

import msgspec


class InputSpan(msgspec.Struct, frozen=True):
    """The records `start` to `end` (end excluded) of what input `input_id` has for this partition."""

    input_id: str
    start: int
    end: int


class ProducerBatch(msgspec.Struct, frozen=True):
    """Who sends a batch, and which one it is; fixed when it is first sent (KIP-360)."""

    producer_id: int
    epoch: int
    sequence: int
    inputs: list[InputSpan] = []


class Placeholder(msgspec.Struct, frozen=True):
    """What the log holds instead of data: where the records are. `crc32c` is over the byte range."""

    key: str
    start: int
    length: int
    records: int
    crc32c: int
    base_offset: int
    producer: ProducerBatch | None = None

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.records - 1


class Placeholders(msgspec.Struct, frozen=True, tag="placeholders"):
    """Data at `epoch`."""

    epoch: int
    placeholders: list[Placeholder]


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """The window slides to `epoch` without data."""

    epoch: int


class Barrier(msgspec.Struct, frozen=True, tag="barrier"):
    """The window closes to `epoch` alone: a straggler below it has to upload again."""

    epoch: int


class L1File(msgspec.Struct, frozen=True):
    """An L1 object with the records `base_offset` to `last_offset`, both included."""

    key: str
    base_offset: int
    last_offset: int
    bytes: int


class Reconciled(msgspec.Struct, frozen=True, tag="reconciled"):
    """The records `base_offset` to `last_offset`, of the entries up to `log_offset`, are in `files`, durably."""

    base_offset: int
    last_offset: int
    log_offset: int
    files: list[L1File]


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The topic is gone."""


PartitionEntry = Placeholders | Advance | Barrier | Reconciled | Closed


class Unreconciled(msgspec.Struct, frozen=True):
    """A placeholder in the state, with the epoch and the log offset of its entry."""

    placeholder: Placeholder
    epoch: int
    log_offset: int


class LandedBatch(msgspec.Struct, frozen=True):
    sequence: int
    base_offset: int
    last_offset: int


class InputProgress(msgspec.Struct):
    """How many of an input's records for this partition have landed, and when the last ones did."""

    landed: int
    time_ms: int


class ProducerState(msgspec.Struct):
    """What a partition knows of a producer: enough to recognise a repeated batch, a gap and a zombie."""

    epoch: int
    next_sequence: int
    recent: list[LandedBatch]
    inputs: dict[str, InputProgress]
    time_ms: int
