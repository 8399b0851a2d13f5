"""What a journal's log holds."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from l0gc.decoding import decoded

Int62 = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""What a row can hold, and a little less, so that what is one more or one less fits, too."""

ENTRY_BYTES: Final = 1 << 20
"""About how much one entry holds: what goes beyond that goes into the next one."""


class InputSpan(msgspec.Struct, frozen=True, array_like=True):
    """The records `start` to `end` (end excluded) of those that input `input_id` has for this journal.

    `rows` and `digest` identify the batch of which the object is a part, if it is a sink's: how many rows the whole batch
    has, and their digest. They are 0 and empty in an upload, whose `input_id` is a hash of the content.
    """

    input_id: str
    start: Int62
    end: Int62
    rows: Int62 = 0
    digest: str = ""


class ProducerBatch(msgspec.Struct, frozen=True, array_like=True):
    """Who sends an object, and which one it is; fixed when it is first sent (KIP-360).

    `run` is random, so that a controller log that was restored from a backup cannot give the same identity twice.
    """

    producer_id: Int62
    epoch: Int62
    run: str
    sequence: Int62
    inputs: list[InputSpan] = []


class ObjectExtents(msgspec.Struct, frozen=True, array_like=True):
    """This journal's part of an L0 object: which records of which partitions lie where in it.

    Its blocks lie one after the other from byte `start` on. Each holds the records of one or more partitions, in order of
    partition; a partition's records lie in one block. Offsets are not stored: `apply` assigns them.

    Attributes:
        epoch: the epoch in its key.
        revision, topic_id: the topic's incarnation. The id is random; a revision can be given twice by a restored log.
        blocks: rows of `rows.BLOCK`.
        partitions: the partitions, ascending, as `rows.NUMBER`.
        records: how many records each of them has, as `rows.NUMBER`.
    """

    key: str
    epoch: Int62
    revision: Int62
    topic_id: str
    start: Int62
    blocks: bytes
    partitions: bytes
    records: bytes
    producer: ProducerBatch | None = None


class Objects(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """Data: objects in the order in which they are admitted."""

    objects: list[ObjectExtents]


class Advance(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """The window slides to `epoch` without data."""

    epoch: Int62


class Barrier(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """The window closes to `epoch` alone: a straggler below it has to upload again."""

    epoch: Int62


class ReconciledTopic(msgspec.Struct, frozen=True, array_like=True):
    """Of one topic: `ranges` (rows of `rows.RANGE`, by partition) are in the L1 objects `files` (rows of `rows.L1_ROW`).

    `indexes` (rows of `rows.INDEX_ROW`) take the place of `replaced_indexes`, and of the oldest L1 rows in the state.
    """

    revision: Int62
    ranges: bytes
    files: bytes
    indexes: bytes = b""
    replaced_indexes: bytes = b""


class Reconciled(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Records of the entries up to `log_offset` are in L1, durably; `epoch` is that of the run that lifted them."""

    epoch: Int62
    log_offset: Int62
    topics: list[ReconciledTopic]


class MergedTopic(msgspec.Struct, frozen=True, array_like=True):
    """Of one topic: `files` hold the records of the L1 objects `replaced`; both are rows of `rows.L1_ROW`, in their order.

    Where a replaced one is listed by an index object, that one is among `replaced_indexes`, and `indexes` take its place.
    """

    revision: Int62
    replaced: bytes
    files: bytes
    indexes: bytes = b""
    replaced_indexes: bytes = b""


class Merged(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """L1 objects have taken the place of others, durably; `epoch` is that of the run that merged them."""

    epoch: Int62
    topics: list[MergedTopic]


class ExpiredTopic(msgspec.Struct, frozen=True, array_like=True):
    """Of one topic: `partitions` (ascending, as `rows.NUMBER`) begin at `log_start_offsets` (as `rows.OFFSET`) from now on.

    An index object that the start cuts may be among `replaced_indexes`; `indexes` list what is left of it, and `dropped`
    (rows of `rows.L1_ROW`) are those L1 objects of it that are wholly below the start.
    """

    revision: Int62
    topic_id: str
    partitions: bytes
    log_start_offsets: bytes
    indexes: bytes = b""
    replaced_indexes: bytes = b""
    dropped: bytes = b""


class Expired(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """Records were deleted, by retention or by hand. `epoch` is the cluster epoch as of which that was decided."""

    topics: list[ExpiredTopic]
    epoch: Int62 = 0


class FenceL1(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """No L1 or index object that is stamped below `epoch` is named any more."""

    epoch: Int62


class Purged(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """Dropped objects, by their `names` as `rows.NAME`, are gone from the bucket."""

    names: bytes


class ClosedTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic that was deleted.

    The id is the topic's, as in `ObjectExtents`: a deletion by a restored log must not end another topic (hazard 10). An
    empty one stands for whichever topic has the revision.
    """

    revision: Int62
    topic_id: str = ""


class Closed(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """These topics are gone. `epoch` is the cluster epoch when that was appended."""

    topics: list[ClosedTopic]
    epoch: Int62 = 0


class SetBack(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """The log was set back to an older copy, for the time of this number, and an operator has accepted it as it is.

    `epoch` is a fresh tick. Nothing lands below it, and what is stamped below it is neither named any more nor an orphan:
    the part that was lost may have named it (hazard 38).
    """

    epoch: Int62
    times: Int62


class GaveUp(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """Of one topic: the records `ranges` (rows of `rows.RANGE`, one for each partition) are lost, and a hole from now on.

    `keys` are the L0 objects that they lie in, of which nobody could read them (hazard 35).
    """

    revision: Int62
    topic_id: str
    ranges: bytes
    keys: list[str]


JournalEntry = (
    Objects | Advance | Barrier | Reconciled | Merged | Expired | FenceL1 | Purged | Closed | SetBack | GaveUp
)


_ENTRY: Final[msgspec.msgpack.Decoder[JournalEntry]] = msgspec.msgpack.Decoder(JournalEntry)


def decode_journal_entry(payload: bytes, where: str) -> JournalEntry:
    """The entry in a log entry's payload. Raises `CorruptObjectError`, naming `where`."""
    return decoded(_ENTRY, payload, f"{where} cannot be read")


class LandedSequence(msgspec.Struct, frozen=True, array_like=True):
    """An object of a producer, and the log offset at which it landed."""

    sequence: Int62
    log_offset: Int62


class InputProgress(msgspec.Struct, array_like=True):
    """How many of an input's records for this journal have landed, and when the last ones did, of which batch."""

    landed: Int62
    time_ms: Int62
    rows: Int62 = 0
    digest: str = ""


class ProducerState(msgspec.Struct, array_like=True):
    """What a journal records about a producer: enough to recognise a repeated object, a gap and a zombie."""

    epoch: Int62
    run: str
    next_sequence: Int62
    recent: list[LandedSequence]
    inputs: dict[str, InputProgress]
    time_ms: Int62
