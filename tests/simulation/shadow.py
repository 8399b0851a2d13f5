"""One journal as the world sees it written: its log, replayed entry by entry, and what its partitions may still need.

All numbers that are checked are counted here by separate rules: the window, the offsets, the unreconciled records, how
far each producer and each input has got. l0gc's state machine runs next to it only for comparison.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from l0gc.errors import L0gcError
from l0gc.keys import journal_log
from l0gc.storage.entry import StoredEntry, decode_entry
from l0gc.streamlog.controller.state import PRODUCER_EXPIRY_MS
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import (
    DRAIN,
    EXPIRE,
    GIVE_UP,
    MERGE,
    Advance,
    Barrier,
    Closed,
    Edit,
    FenceL1,
    JournalEntry,
    ObjectExtents,
    Objects,
    Purged,
    SetBack,
)
from l0gc.streamlog.journal.producers import ProducerBatch
from l0gc.streamlog.journal.rows import BLOCK, NUMBER, START, unpack
from l0gc.streamlog.journal.state import JournalState
from tests.simulation.shadow_l1 import L1Shadow, Ranges, Wrong
from tests.support.journal import gc_epoch_of

_ENTRY = msgspec.msgpack.Decoder(JournalEntry)


@dataclass(frozen=True)
class Live:
    """An unreconciled extent, in block `block` of the journal's part of the object, which begins at byte `start`."""

    key: str
    epoch: int
    base: int
    records: int
    log_offset: int
    start: int
    block: int
    time_ms: int = 0


@dataclass
class Part:
    """A partition; `batches` has the number of records that landed at each first offset.

    `given_up` has all offsets that were ever given up.
    """

    next_offset: int = 0
    reconciled: int = -1
    start: int = 0
    live: list[Live] = field(default_factory=list)
    batches: dict[int, int] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)


@dataclass
class TopicShadow:
    """The part of one incarnation of a topic that this journal holds."""

    revision: int
    topic_id: str
    closed: bool = False
    parts: dict[int, Part] = field(default_factory=dict)


@dataclass
class Run:
    """A producer's newest run in this journal; `inputs` has how far each input got, and when."""

    epoch: int
    run: str
    next_sequence: int
    time_ms: int
    inputs: dict[str, tuple[int, int]] = field(default_factory=dict)


class Fingerprint(NamedTuple):
    """Numbers for a state and for its L1 rows; None for the second if it was read without them."""

    head: int
    rows: int | None

    def agrees(self, whole: Fingerprint) -> bool:
        return self.head == whole.head and self.rows in (None, whole.rows)


def fingerprint(state: JournalState) -> Fingerprint:
    """Return a fingerprint that is the same for two states without an observable difference."""
    topics = [
        (
            t.revision,
            t.topic_id,
            t.partitions.tobytes(),
            t.next_offsets.tobytes(),
            t.reconciled.tobytes(),
            t.log_start.tobytes(),
            tuple((o.key, o.epoch, o.log_offset, o.start, o.blocks.tobytes(), o.extents.tobytes()) for o in t.objects),
            t.listed.sums,
            tuple((o.name, o.epoch, o.rows.tobytes(), o.flags.tobytes()) for o in t.shared),
        )
        for t in state.topics.values()
    ]
    producers = tuple((p, s.epoch, s.run, s.next_sequence) for p, s in state.producers.items())
    window = (state.previous_applied_epoch, state.max_applied_epoch, state.window_offset)
    l1 = (state.closed_revisions.tobytes(), state.l1_fence, state.dropped.tobytes(), state.set_backs, state.kept_below)
    whole = not any(t.lacks_l1 for t in state.topics.values())
    rows = hash(tuple(t.l1.tobytes() for t in state.topics.values())) if whole else None
    return Fingerprint(hash((window, tuple(topics), producers, state.time_ms, l1)), rows)


@dataclass
class Shadow:
    """The contents of a journal's log. `prints` has a fingerprint of the state after each entry."""

    journal: int
    state: JournalState = field(default_factory=JournalState)
    offset: int = -1
    time_ms: int = 0
    previous: int = 0
    newest: int = 0
    topics: dict[int, TopicShadow] = field(default_factory=dict)
    producers: dict[int, Run] = field(default_factory=dict)
    landed: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    prints: list[Fingerprint] = field(default_factory=list)
    kept_below: int = 0
    l1: L1Shadow = field(default_factory=L1Shadow)

    def __post_init__(self) -> None:
        self.l1.journal = self.journal

    # -- epochs that may be needed --------------------------------------------------------------------------------------

    def needs(self, revision: int, partition: int) -> int:
        """Return the lowest epoch that unreconciled records of a partition have, or that may still land in it."""
        topic = self.topics.get(revision)
        part = topic.parts.get(partition) if topic is not None else None
        live = [x.epoch for x in part.live] if part is not None else []
        return min([max(self.previous, revision), *live])

    def keys(self, topic_id: str) -> Iterator[str]:
        """Yield the L0 objects that hold unreconciled records of a topic, one for each extent."""
        for topic in self.topics.values():
            if topic.topic_id == topic_id and not topic.closed:
                for part in topic.parts.values():
                    yield from (x.key for x in part.live)

    def abstract(self, epoch: int) -> tuple[int, ...]:
        """Return the journal as far as the rules distinguish it from others: distances between epochs, and small
        counts.
        """
        parts = [p for t in self.topics.values() if not t.closed for p in t.parts.values()]
        lowest = min([self.previous, *(x.epoch for p in parts for x in p.live)])
        return (
            min(epoch - self.newest, 9),
            min(self.newest - self.previous, 9),
            min(self.previous - lowest, 9),
            min(sum(len(p.live) for p in parts), 4),
            min(sum(p.reconciled >= 0 for p in parts), 3),
            min(len(self.producers), 2),
            min(len(self.topics), 3),
            min(sum(t.closed for t in self.topics.values()), 2),
        )

    # -- entries --------------------------------------------------------------------------------------------------------

    def land(self, offset: int, body: bytes, world: LandingWorld) -> JournalEntry:
        """Take the entry at `offset`, and return it. Raises `Wrong`."""
        if offset != self.offset + 1:
            raise Wrong(f"has an entry at {offset}, the one before was {self.offset}")
        e = decode_entry(f"{journal_log(self.journal)}log/{offset:020}", body)
        if e.time_ms < self.time_ms:
            raise Wrong(f"has an entry at {offset} that is older than the one before")
        self.time_ms = e.time_ms
        entry: JournalEntry = _ENTRY.decode(e.payload)
        match entry:
            case Objects():
                for o in entry.objects:
                    self._object(o, offset, e.time_ms, world)
            case Advance():
                self._slide(entry.epoch, world)
            case Barrier():
                if entry.epoch < self.newest:
                    raise Wrong(f"took a barrier at {entry.epoch}, which lowers its window")
                self._slide(entry.epoch, world)
                self.previous = entry.epoch
            case Edit():
                self._edited(entry, world)
            case FenceL1():
                if not self.l1.fence < entry.epoch <= world.epoch:
                    raise Wrong(f"took an L1 fence at {entry.epoch}, where {self.l1.fence} was")
                self.l1.fence = entry.epoch
            case Purged():
                self.l1.purged(entry.names, world.objects)
            case SetBack():
                if not max(self.newest, self.l1.fence) <= entry.epoch <= world.epoch:
                    raise Wrong(f"was accepted at {entry.epoch}, which is not fresh")
                self.previous = self.newest = self.l1.fence = self.kept_below = entry.epoch
            case Closed():
                for t in entry.topics:
                    topic = self.topics.setdefault(t.revision, TopicShadow(t.revision, ""))
                    topic.closed, topic.parts = True, {}
                    self.l1.closed(t.revision, (self.time_ms, max(self.newest, entry.epoch)))
        try:
            JournalMachine(self.journal).apply(self.state, StoredEntry(offset, e.time_ms, e.payload, 0, len(body)))
        except L0gcError as error:
            raise Wrong(f"took an entry that it should have refused: {error}") from error
        self.offset = offset
        self.prints.append(fingerprint(self.state))
        self._forget_producers(e.time_ms)
        self._compare()
        return entry

    def _slide(self, epoch: int, world: LandingWorld) -> None:
        if epoch > world.epoch:
            raise Wrong(f"took epoch {epoch}, above the cluster epoch {world.epoch}")
        if epoch > self.newest:
            self.previous, self.newest = self.newest, epoch

    def _object(self, o: ObjectExtents, offset: int, time_ms: int, world: LandingWorld) -> None:
        topic = self.topics.setdefault(o.revision, TopicShadow(o.revision, o.topic_id))
        if topic.closed or topic.topic_id != o.topic_id:
            raise Wrong(f"took {o.key} for a topic that is closed, or another one")
        if o.epoch < max(self.previous, o.revision):
            raise Wrong(
                f"took epoch {o.epoch} of revision {o.revision} below its window [{self.previous}, {self.newest}]"
            )
        if o.epoch <= world.watermark and o.topic_id in world.live:  # a deleted topic's journals may not know of it yet
            raise Wrong(f"took epoch {o.epoch}, though M = {world.watermark} is published")
        if o.key not in world.objects:
            raise Wrong(f"took extents of {o.key}, which is gone")
        if o.key in self.landed:
            raise Wrong(f"took {o.key} twice")
        if o.producer is not None:
            self._producer(o.producer, time_ms)
        bases = []
        blocks = [i for i, n in enumerate(unpack(o.blocks, BLOCK)["extents"].tolist()) for _ in range(n)]
        partitions, records = unpack(o.partitions, NUMBER).tolist(), unpack(o.records, NUMBER).tolist()
        for p, n, block in zip(partitions, records, blocks, strict=True):
            part = topic.parts.setdefault(p, Part())
            bases.append(part.next_offset)
            part.batches[part.next_offset] = n
            part.live.append(Live(o.key, o.epoch, part.next_offset, n, offset, o.start, block, time_ms))
            part.next_offset += n
        self.landed[o.key] = (offset, tuple(bases))
        self._slide(o.epoch, world)

    def _producer(self, b: ProducerBatch, time_ms: int) -> None:
        known = self.producers.get(b.producer_id)
        if known is None or b.epoch > known.epoch:
            if b.sequence != 0:
                raise Wrong(f"took sequence {b.sequence} of a run that it does not know")
            inputs = {} if known is None else known.inputs
            known = self.producers[b.producer_id] = Run(b.epoch, b.run, 0, time_ms, inputs)
        if (b.epoch, b.run, b.sequence) != (known.epoch, known.run, known.next_sequence):
            raise Wrong(
                f"took sequence {b.sequence} of run {b.run} at producer epoch {b.epoch}, where {known.next_sequence} of "
                f"{known.run} at {known.epoch} is due"
            )
        for s in b.inputs:
            if known.inputs.get(s.input_id, (0, 0))[0] != s.start:
                raise Wrong(
                    f"took input {s.input_id} from {s.start} on, where {known.inputs.get(s.input_id)} had landed"
                )
            known.inputs[s.input_id] = (s.end, time_ms)
        known.next_sequence, known.time_ms = b.sequence + 1, time_ms

    def _forget_producers(self, time_ms: int) -> None:
        """Forget what the state has forgotten, if that is allowed."""
        old = time_ms - PRODUCER_EXPIRY_MS
        for producer_id, run in list(self.producers.items()):
            kept = self.state.producers.get(producer_id)
            if kept is None:
                if run.time_ms >= old:
                    raise Wrong(f"forgot producer {producer_id} too early")
                del self.producers[producer_id]
                continue
            for input_id, (_, at) in list(run.inputs.items()):
                if input_id not in kept.inputs:
                    if at >= old:
                        raise Wrong(f"forgot input {input_id} too early")
                    del run.inputs[input_id]

    def _topic(self, revision: int, world: LandingWorld) -> tuple[TopicShadow, str]:
        topic = self.topics.get(revision)
        if topic is None or topic.closed:
            raise Wrong(f"took a commit of revision {revision}, which is not there")
        return topic, world.topic_names.get(topic.topic_id, "")

    def _edited(self, entry: Edit, world: LandingWorld) -> None:
        now = (self.time_ms, max(entry.epoch, self.newest))
        for t in entry.topics:
            topic, name = self._topic(t.revision, world)
            added, removed = self.l1.edited(name, t, world.objects, now)
            starts = dict(unpack(t.starts, START).tolist())
            if entry.kind == EXPIRE:
                self._begins(topic, name, starts)
                self.l1.begins(t.revision, starts, now)
            elif entry.kind == DRAIN:
                self.l1.drained(t.revision, added, now)
            elif entry.kind == MERGE:
                if added != removed:
                    raise Wrong(f"merged {removed} into {added}, which hold other records")
            else:
                if entry.kind == GIVE_UP:
                    self._given_up(topic, name, added, world)
                self._lifted(topic, name, added)
            partitions = starts.keys() | {p for p, _, _ in [*added, *removed]}
            self._check_l1(topic, partitions)

    @staticmethod
    def _lifted(topic: TopicShadow, name: str, ranges: Ranges) -> None:
        for p, base, last in ranges:
            part = topic.parts.get(p, Part())
            if base != part.reconciled + 1 or last >= part.next_offset:
                raise Wrong(f"took records {base} to {last} of {name}/{p} as reconciled after {part.reconciled}")
            part.reconciled = last
            part.live = [x for x in part.live if x.base > last]

    @staticmethod
    def _begins(topic: TopicShadow, name: str, starts: dict[int, int]) -> None:
        for p, start in starts.items():
            part = topic.parts.get(p, Part())
            if not part.start < start <= part.next_offset:
                raise Wrong(f"begins {name}/{p} at {start}, between {part.start} and {part.next_offset}")
            part.start = start
            below = [x.base + x.records - 1 for x in part.live if x.base + x.records <= start]
            part.reconciled = max([part.reconciled, *below])
            part.live = [x for x in part.live if x.base + x.records > start]

    @staticmethod
    def _given_up(topic: TopicShadow, name: str, ranges: Ranges, world: LandingWorld) -> None:
        """Check that only records of lost objects become a hole, and none that are in L1 (hazard 35)."""
        for p, base, last in ranges:
            part = topic.parts.get(p, Part())
            for x in part.live:
                if base <= x.base <= last and x.key not in world.lost:
                    raise Wrong(f"gave up records of {x.key}, which can be read")
            part.given_up |= set(range(base, last + 1))

    def _check_l1(self, topic: TopicShadow, partitions: set[int]) -> None:
        for p in partitions:
            self.l1.check(topic.revision, p, topic.parts[p].reconciled)

    # -- comparison with the state ----------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare the state with what is counted here, and check that its M(p) is not higher."""
        s = self.state
        if (s.previous_applied_epoch, s.max_applied_epoch) != (self.previous, self.newest):
            raise Wrong(f"has a state with window {s.window}, not [{self.previous}, {self.newest}]")
        for topic in self.topics.values():
            for p, part in topic.parts.items():
                view = s.topic(topic.revision).view(p)
                numbers = (view.next_offset, view.last_reconciled_offset, view.log_start_offset)
                if numbers != (part.next_offset, part.reconciled, part.start):
                    raise Wrong(f"has a state with {view} for partition {p} of revision {topic.revision}, not {part}")
                extents = [(e.key, e.epoch, e.base_offset, e.records) for e in s.topic(topic.revision).extents(p)]
                if extents != [(x.key, x.epoch, x.base, x.records) for x in part.live]:
                    raise Wrong(f"has a state with other extents in partition {p} of revision {topic.revision}")
                done = gc_epoch_of(s, topic.revision, p)
                if not topic.closed and done >= self.needs(topic.revision, p):
                    raise Wrong(
                        f"is done with epoch {done} in partition {p} of revision {topic.revision}, "
                        f"though that may still need {self.needs(topic.revision, p)}"
                    )
        for revision, there in s.topics.items():
            rows = zip(*(there.all_rows()[c].tolist() for c in ("partition", "base", "last", "name")), strict=True)
            if {(p, base, last, bytes(name)) for p, base, last, name in rows} != self.l1.rows_in_state(revision):
                raise Wrong(f"has a state with other L1 objects of revision {revision}")
        if {bytes(n) for n in s.dropped["name"]} != self.l1.dropped_names() or s.l1_fence != self.l1.fence:
            raise Wrong("has a state with other dropped objects, or another L1 fence")


@dataclass(frozen=True)
class LandingWorld:
    """Facts of the world with which an entry is compared."""

    objects: Mapping[str, Any]
    epoch: int
    watermark: int
    topic_names: Mapping[str, str]
    live: Container[str]
    lost: Container[str] = frozenset()
