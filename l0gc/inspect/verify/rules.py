"""What a journal must not hold, compared with M and with the controller's topics (pure).

Everything is decided on whole columns: a journal may hold a million extents. Whether a state fits together at all, without
a gap from a partition's first record to its last, the decoder of checkpoints decides (`reading.py` asks it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from l0gc.epoch import NO_WATERMARK
from l0gc.inspect.overview import ahead_text, misplacement, set_back_text, unclosed_text
from l0gc.inspect.verify.findings import Kind, Suspect
from l0gc.keys import KeyLayout, L1Key, PartitionId, journal_log
from l0gc.streamlog.controller.state import ControllerState, Topic
from l0gc.streamlog.epoch_source import unknown_topic
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.journal.topic import TopicState, UnreconciledObject
from l0gc.watermark.publication import PublishedWatermark, watermark_of
from l0gc.watermark.source import UnitSummary

LIVE: Final = "live"
DELETED: Final = "deleted"
LATER: Final = "later"
"""Of a topic that was created after the controller was read."""
FOREIGN: Final = "foreign"

DOUBTFUL: Final = frozenset(
    {
        Kind.LOG_UNREADABLE,
        Kind.LOG_GAP,
        Kind.JOURNAL_SET_BACK,
        Kind.CHECKPOINT_DIFFERS,
        Kind.BOUNDARY_BROKEN,
        Kind.STATE_BROKEN,
        Kind.WATERMARK_AHEAD,
        Kind.LIVE_BELOW_WATERMARK,
        Kind.TOPIC_MISPLACED,
        Kind.TOPIC_UNKNOWN,
    }
)
"""A journal with one of these may have lost entries, so what it does not name is not called an orphan."""


@dataclass(frozen=True)
class Basis:
    """What is published, and the controller's snapshot taken after it.

    L1 objects changed after `young_after_ms`, by the store's clock, may still be named by a journal. The topics
    `to_be_closed` were deleted so long ago that each of their journals has closed them.
    """

    state: ControllerState
    published: PublishedWatermark | None
    young_after_ms: int
    to_be_closed: Sequence[Topic] = ()

    @property
    def watermark(self) -> int:
        return watermark_of(self.published)

    @cached_property
    def layout(self) -> KeyLayout:
        return KeyLayout(self.state.key_template, self.state.shards)

    @cached_property
    def live(self) -> dict[int, Topic]:
        """The topics that exist, by their revisions."""
        return {t.revision: t for t in self.state.topics.values()}

    @cached_property
    def _deleted(self) -> dict[int, Topic]:
        return {d.topic.revision: d.topic for d in self.state.deleted}

    def of(self, revision: int, topic_id: str) -> tuple[str, Topic | None]:
        """The state of the topic that a journal holds, and the topic if it is live."""
        kind, topic = self._known(revision)
        # A journal that records a topic's end before anything of it landed does not have its id.
        if topic is not None and topic_id not in {topic.topic_id, ""}:
            return FOREIGN, None
        return kind, topic if kind == LIVE else None

    def owner(self, key: L1Key | None) -> tuple[str, int]:
        """Whose an L1 object is, and the journal that names it; `FOREIGN` if no reconciler here can have written it."""
        if key is None:
            return FOREIGN, -1
        p = key.id
        kind, topic = self._known(p.revision)
        if topic is not None and (topic.name != p.topic or (kind == LIVE and p.partition >= topic.partitions)):
            return FOREIGN, -1
        return kind, topic.journal_of(p.partition) if topic is not None and kind == LIVE else -1

    def _known(self, revision: int) -> tuple[str, Topic | None]:
        for kind, topics in ((LIVE, self.live), (DELETED, self._deleted)):
            if revision in topics:
                return kind, topics[revision]
        return (LATER if revision > self.state.epoch else FOREIGN), None


@dataclass(frozen=True, slots=True)
class JournalCopy:
    """A journal as its log says at `offset`; `faults` is what is wrong with the log itself, as (kind, detail)."""

    journal: int
    state: JournalState
    offset: int
    faults: list[tuple[Kind, str]]

    @property
    def folder(self) -> str:
        return journal_log(self.journal)


class Placed(NamedTuple):
    """What a journal holds of a live topic that is placed in it."""

    topic: Topic
    state: TopicState


def placed(copy: JournalCopy, basis: Basis) -> list[Placed]:
    """The live topics that the journal holds and that belong there; what they refer to has to be in the bucket."""
    held = ((basis.of(state.revision, state.topic_id)[1], state) for state in copy.state.topics.values())
    return [Placed(t, state) for t, state in held if t is not None and not misplacement(copy.journal, t, state)]


def check_journal(copy: JournalCopy, basis: Basis) -> list[Suspect]:
    """All that is wrong with a journal by its log alone."""
    found = [Suspect(kind, copy.journal, key=copy.folder, detail=text) for kind, text in copy.faults]
    if (epoch := copy.state.max_applied_epoch) > basis.state.epoch:
        text = ahead_text(f"its window {copy.state.window}", epoch, basis.state.epoch)
        found.append(Suspect(Kind.EPOCH_AHEAD, copy.journal, key=copy.folder, expected=epoch, detail=text))
    end = UnitSummary(unit=f"journal {copy.journal}", gc_epochs={}, lowest=[], end=(copy.state.set_backs, copy.offset))
    if text := set_back_text(basis.published, end):  # what its partitions need and M does not allow is found below
        found.append(Suspect(Kind.JOURNAL_SET_BACK, copy.journal, key=copy.folder, detail=text))
    found += check_places(copy.journal, copy.state, basis)
    for p in placed(copy, basis):
        if text := _object_fault(copy, p.state):
            where = (copy.journal, p.topic.name, p.topic.revision)
            found.append(Suspect(Kind.STATE_BROKEN, *where, key=copy.folder, detail=text))
        found += _check_epochs(copy.journal, p, basis)
    live_below = {s.revision for s in found if s.kind == Kind.LIVE_BELOW_WATERMARK}
    for topic in basis.to_be_closed:
        if copy.journal in topic.journals and not copy.state.closed(topic.revision):
            where, text = (copy.journal, topic.name, topic.revision), unclosed_text(topic, copy.journal)
            found.append(Suspect(Kind.TOPIC_UNCLOSED, *where, key=copy.folder, detail=text))
    for topic, run in basis.state.topics_of(copy.journal) if basis.watermark != NO_WATERMARK else ():
        if topic.revision not in live_below and not copy.state.closed(topic.revision):
            (low,) = copy.state.lowest(topic.revision, run.first, run.count, 1)
            if low.gc_epoch < basis.watermark:  # the published M, also where nothing of the topic is unreconciled
                text = f"M = {basis.watermark} is published, and the journal allows {low.gc_epoch}"
                where = (copy.journal, topic.name, topic.revision)
                found.append(Suspect(Kind.WATERMARK_AHEAD, *where, low.partition, copy.folder, detail=text))
    return found


# -- where a topic is ----------------------------------------------------------------------------------------------------


def check_places(journal: int, state: JournalState, basis: Basis) -> Iterator[Suspect]:
    """What a journal holds and should not: topics that are unknown or placed elsewhere, and live ones that have ended."""
    folder = journal_log(journal)
    for t in state.topics.values():
        if text := unknown_topic(basis.state, "it", [(t.revision, t.topic_id)]):
            yield Suspect(Kind.TOPIC_UNKNOWN, journal, revision=t.revision, key=folder, detail=text)
        elif (topic := basis.live.get(t.revision)) is not None and (text := misplacement(journal, topic, t)):
            yield Suspect(Kind.TOPIC_MISPLACED, journal, topic.name, topic.revision, key=folder, detail=f"it {text}")
    for topic, _ in basis.state.topics_of(journal):
        if state.closed(topic.revision):
            text = f"topic {topic.name!r} has ended there, though it exists"
            yield Suspect(Kind.STATE_BROKEN, journal, topic.name, topic.revision, key=folder, detail=text)


# -- when its objects landed ---------------------------------------------------------------------------------------------


def _object_fault(copy: JournalCopy, t: TopicState) -> str:
    """Why the first object that cannot be there cannot; empty if all can."""
    before = -1
    for o in t.objects:
        if not t.revision <= o.epoch <= copy.state.max_applied_epoch:
            return (
                f"object {o.key} at epoch {o.epoch} does not lie between its topic's revision {t.revision} and the "
                f"window {copy.state.window}"
            )
        if not before <= o.log_offset <= copy.offset:
            return f"object {o.key} is said to have landed at offset {o.log_offset}, after {before} and up to {copy.offset}"
        before = o.log_offset
    return ""


# -- epochs --------------------------------------------------------------------------------------------------------------


def _check_epochs(journal: int, p: Placed, basis: Basis) -> Iterator[Suspect]:
    objects = p.state.objects
    for o, in_key in zip(objects, basis.layout.epochs([o.key for o in objects]), strict=True):
        lowest = o.epoch if in_key < 0 else min(o.epoch, in_key)
        if in_key == o.epoch and lowest > basis.watermark:
            continue
        if in_key != o.epoch:
            said = "is not an L0 key" if in_key < 0 else f"has epoch {in_key}"
            text = f"the journal has it at epoch {o.epoch}, and its key {said}"
            yield of_object(Kind.L0_WRONG_EPOCH, journal, p.topic, o, text)
        if lowest <= basis.watermark:
            text = f"{described(o)}, at epoch {lowest}, and M = {basis.watermark} is published"
            yield of_object(Kind.LIVE_BELOW_WATERMARK, journal, p.topic, o, text)


def of_object(kind: Kind, journal: int, topic: Topic, o: UnreconciledObject, detail: str = "") -> Suspect:
    """A suspect about an L0 object; its place is the first extent that the journal still needs."""
    partition, base, end = first_place(o)
    return Suspect(kind, journal, topic.name, topic.revision, partition, o.key, base, end, detail)


def first_place(o: UnreconciledObject) -> tuple[int, int, int]:
    """The partition and the record of the first extent that the journal still needs, and `needed_end`."""
    return int(o.extents["partition"][0]), int(o.extents["base"][0]), needed_end(o)


def needed_end(o: UnreconciledObject) -> int:
    """Where the last block ends that the journal still needs of an object."""
    last = o.block(int(o.extents["block"].max()))
    return last.start + last.length


def described(o: UnreconciledObject) -> str:
    """How much of an object is unreconciled."""
    records, n = int(o.extents["records"].sum(dtype=np.int64)), len(o.extents)
    return f"{records:,} unreconciled record{'' if records == 1 else 's'} of {n:,} partition{'' if n == 1 else 's'}"


def needs(state: JournalState, revision: int, keys: set[str]) -> dict[str, list[UnreconciledObject]]:
    """Those of the objects that the journal still needs for a topic; a copy has parts of several."""
    topic, found = state.topics.get(revision), dict[str, list[UnreconciledObject]]()
    for o in () if topic is None else topic.objects:
        if o.key in keys:
            found.setdefault(o.key, []).append(o)
    return found


def orphan_text(base: int, last: int, state: JournalState, p: PartitionId) -> str:
    """What is known of an L1 object that no journal names."""
    reconciled = state.topic(p.revision).view(p.partition).last_reconciled_offset
    if last <= reconciled:
        return f"no journal names it; its records {base} to {last} are in other L1 objects"
    return f"no journal names it; it holds records {base} to {last}, and {reconciled} is the last reconciled"
