"""Giving up records that are lost, by name: their offsets become a hole, and the rest of the partition goes on.

What makes it safe (hazard 35): every block that holds some of the records is read first, and what can be read is refused
unless the caller insists. Which records may become a hole is decided by `journal/holes.py`, before that and where the entry
lands. What an operator has decided is on record before it takes effect, with the bytes that are still there: both lie
below `quarantine/` until vacuum takes them. If they cannot be written, nothing is given up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from l0gc.errors import CorruptObjectError, ObjectNotFoundError, SafetyError, StoreError, UsageError
from l0gc.formatting import Outcome
from l0gc.keys import QUARANTINE
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.ingest.extents import decode_block, fetch
from l0gc.streamlog.journal.entries import GaveUp
from l0gc.streamlog.journal.holes import check_give_up
from l0gc.streamlog.journal.rows import MAX_OFFSET, RANGE, pack
from l0gc.streamlog.journal.topic import Extent
from l0gc.streamlog.topic_view import topic_copy
from l0gc.watermark.publication import refuse_if_set_back

READABLE: Final = "it can be read"


@dataclass(slots=True)
class GiveUpResult(Outcome):
    """What was given up: the `records` from `first_offset` to `last_offset` of a partition.

    `quarantined` are the keys of copies of the bytes that were still there.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    quarantined: list[str] = field(default_factory=list)


class GiveUpRecord(msgspec.Struct, frozen=True):
    """The record of what an operator gave up: by whom, when, and of each L0 object with some of it why it was."""

    by: str
    at_ms: int
    topic: str
    revision: int
    partition: int
    first_offset: int
    last_offset: int
    objects: dict[str, str]


def give_up(
    cluster: Handles, topic: str, partition: int, offsets: tuple[int, int], by: str, *, force_readable: bool = False
) -> GiveUpResult:
    """Make the records of a partition from the first to the last of `offsets` a hole, which nothing fills any more.

    Args:
        by: who does it, for the record.
        force_readable: also if some of them can be read.

    Raises:
        What `check_give_up` raises: they cannot be given up.
        NotFoundError: there is no such topic.
        UsageError: there is no such partition, or the offsets cannot be meant.
        SafetyError: some of them can be read.
        StoreError: the store does not answer, or has no room for the bytes that are still there.
        EpochRegressionError: what is published is above the cluster epoch (hazard 10).
    """
    first, last = offsets
    if not 0 <= first <= last <= MAX_OFFSET:
        raise UsageError(f"{first}-{last} is not a range of offsets; use for example 20-29")
    refuse_if_set_back(cluster)
    target = cluster.controller.snapshot().topic(topic)
    p, where = target.id(partition), f"the records {first} to {last} of partition {topic}/{partition}"
    handle = cluster.journal(target.journal_of(partition))
    handle.catch_up()
    known = topic_copy(handle, target)
    held = [e for e in known.extents(partition) if e.base_offset <= last and e.last_offset >= first]
    ranges = np.array([(partition, first, last)], RANGE)
    entry = GaveUp(p.revision, target.topic_id, pack(ranges), list(dict.fromkeys(e.key for e in held)))
    check_give_up({p.revision: known} if known.topic_id else {}, entry, topic)
    objects = dict.fromkeys(entry.keys, "")
    for e in held:
        objects[e.key] = why_lost(cluster.store, e) or READABLE
    readable = [e for e in held if objects[e.key] == READABLE]
    if readable and not force_readable:
        some = f"{max(first, readable[0].base_offset)} to {readable[0].last_offset}"
        raise SafetyError(
            f"{where} are not all lost: {some} can be read in {readable[0].key}; nothing was given up. Give up the others "
            "alone, or insist with --force-readable"
        )
    record = GiveUpRecord(by, cluster.now_ms(), topic, p.revision, partition, first, last, objects)
    result = GiveUpResult(topic, partition, first, last, last - first + 1)
    try:
        cluster.store.put(f"{QUARANTINE}{p.path}/{first:020}-{last:020}.json", msgspec.json.encode(record))
        result.quarantined += _copies(cluster.store, entry.keys)
    except StoreError as e:
        raise type(e)(f"{e}; nothing was given up: what is left of the objects is kept first") from e
    handle.give_up(entry, topic)
    return result


def why_lost(store: ObjectStore, e: Extent) -> str:
    """Why an extent cannot be read; empty if it can be. Raises `StoreError`: that is not known."""
    try:
        (body,) = fetch(store, e.key, [(e.block.start, e.block.length)])
        decode_block(body, e.key, e.block, e.row + e.records)
    except (ObjectNotFoundError, CorruptObjectError) as error:
        return str(error)
    return ""


def _copies(store: ObjectStore, keys: Sequence[str]) -> Iterator[str]:
    """Copy objects below `quarantine/`; the keys of the copies of those that are there."""
    for key in keys:
        try:
            body = store.get(key).body
        except ObjectNotFoundError:
            continue
        store.put(f"{QUARANTINE}{key}", body)
        yield f"{QUARANTINE}{key}"
