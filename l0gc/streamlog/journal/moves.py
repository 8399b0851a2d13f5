"""What an evacuation may move, decided against the state at the very offset where its entry lands (pure).

What makes it safe:

- A block moves as a whole and as it is, with the checksum that the journal has of it. Of its records those move that are
  still unreconciled in the old object; what was reconciled, expired or moved by another meanwhile is not there any more, so
  it cannot come back (hazard 31). Where nothing is left the part is left out of the entry.
- The copy is stamped above the epoch of what it was copied from (hazard 32). While the old object is held, M stays below
  its epoch, so no sweep has taken the copy. Therefore the entry asks nothing of the window, and does not slide it.
- From then on the copy's epoch counts for the bound, as every unreconciled object's does, and the old one's no longer
  (hazard 33). An old object leaves with its last extent.
- Nothing that is stamped below the tick at which a set back log was accepted lands any more: what M allowed before that is
  not known to this log (hazard 38).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from l0gc.epoch import is_epoch
from l0gc.errors import UsageError
from l0gc.streamlog.journal.entries import Moved, MovedBlocks
from l0gc.streamlog.journal.rows import MAX_OFFSET, NUMBER, ascending, unpack
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject


def movable(topics: Mapping[int, TopicState], kept_below: int, parts: Sequence[MovedBlocks]) -> list[MovedBlocks]:
    """Those of the parts of which anything is still where it was copied from.

    Args:
        kept_below: nothing that is stamped below it lands.

    Raises:
        UsageError: a part cannot be meant; the log must not take it.
    """
    return [part for revision, some in _by_topic(parts) for part in _movable(topics.get(revision), kept_below, some)]


def apply_moved(topics: Mapping[int, TopicState], kept_below: int, e: Moved) -> None:
    """Move what the entry says. Raises `UsageError`, and moves nothing, if `movable` would have left out a part of it."""
    if not e.parts or len(movable(topics, kept_below, e.parts)) != len(e.parts):
        raise UsageError("it moves nothing, or records that are not where it says")
    for revision, parts in _by_topic(e.parts):
        topic = topics[revision]
        known = objects_by_place(topic)
        moving = {id(known[p.source, p.source_start]): p for p in parts}
        topic.objects = [after for o in topic.objects for after in _moved(o, moving.get(id(o)))]


def objects_by_place(topic: TopicState) -> dict[tuple[str, int], UnreconciledObject]:
    """The objects by their keys and starts; a key alone is not enough, since a copy has parts of several objects."""
    return {(o.key, o.start): o for o in topic.objects}


def check_stamp(part: MovedBlocks, o: UnreconciledObject) -> None:
    """Raises `UsageError`: the copy is not stamped above what it was copied from (hazard 32)."""
    if part.epoch <= o.epoch:
        raise UsageError(f"the copy of {part.source!r} is stamped with epoch {part.epoch}, not above {o.epoch}")


def _moved(o: UnreconciledObject, part: MovedBlocks | None) -> Iterator[UnreconciledObject]:
    """What becomes of an object: what stays of it, if anything does, and what is elsewhere now."""
    if part is None:
        yield o
        return
    numbers = unpack(part.blocks, NUMBER)
    moving = np.isin(o.extents["block"], numbers)
    if not moving.all():
        yield replace(o, extents=o.extents[~moving])
    extents = o.extents[moving]  # a copy
    extents["block"] = np.searchsorted(numbers, extents["block"])
    blocks, first = o.blocks[numbers], o.uploaded_epoch
    yield replace(
        o, key=part.key, epoch=part.epoch, start=part.start, blocks=blocks, extents=extents, first_epoch=first
    )


def _by_topic(parts: Sequence[MovedBlocks]) -> Iterator[tuple[int, list[MovedBlocks]]]:
    """The parts by revision; within a topic they keep their order."""
    for revision in sorted({p.revision for p in parts}):
        yield revision, [p for p in parts if p.revision == revision]


def _movable(topic: TopicState | None, kept_below: int, parts: Sequence[MovedBlocks]) -> Iterator[MovedBlocks]:
    known = {} if topic is None else objects_by_place(topic)
    taken, sources = {*known}, set[tuple[str, int]]()
    for part in parts:
        numbers = unpack(part.blocks, NUMBER)
        if not part.key or not is_epoch(part.epoch) or not 0 <= part.start <= MAX_OFFSET:
            raise UsageError(f"the copy {part.key!r} of {part.source!r} has an epoch or a place that cannot be")
        if not len(numbers) or numbers[0] < 0 or not ascending(numbers):
            raise UsageError(f"the blocks of {part.source!r} that were copied are missing, or not in ascending order")
        source = (part.source, part.source_start)
        o = known.get(source)
        if o is None or topic is None or topic.topic_id != part.topic_id or part.epoch < kept_below:
            continue
        check_stamp(part, o)
        left = np.isin(o.extents["block"], numbers).any()
        if numbers[-1] >= len(o.blocks) or (left and (source in sources or (part.key, part.start) in taken)):
            raise UsageError(f"what was copied from {part.source!r} is named twice, or was never in it")
        if left:
            sources.add(source)
            taken.add((part.key, part.start))
            yield part
