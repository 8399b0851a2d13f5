"""A journal's log as known from every write, and the rules that it must obey.

It follows the rules without l0gc's state machine: the window, the unreconciled records, the landed objects. The state
machine runs next to it, for M(p) and for the state that a process must hold after a number of entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec

from l0gc.errors import L0gcError
from l0gc.keys import journal_log
from l0gc.storage.entry import StoredEntry, decode_entry
from l0gc.streamlog.journal.entries import Advance, Barrier, Closed, Edit, JournalEntry, ObjectExtents, Objects
from l0gc.streamlog.journal.rows import NUMBER, ranges_of, unpack
from l0gc.streamlog.journal.state import JournalState
from tests.exhaustive.process import MACHINES, REVISION
from tests.support.journal import gc_epoch_of

_PAYLOAD: Final = msgspec.msgpack.Decoder(JournalEntry)


class Live(NamedTuple):
    """An unreconciled extent."""

    epoch: int
    base: int
    records: int
    log_offset: int


class Upload(NamedTuple):
    """Where an upload landed: the log offset, and its first offset in each of its partitions."""

    name: str
    offset: int
    bases: tuple[int, ...]


class Part(NamedTuple):
    """A partition: its next offset, the last one in L1, the unreconciled extents, and M(p)."""

    next_offset: int = 0
    reconciled: int = -1
    live: tuple[Live, ...] = ()
    gc_epoch: int = REVISION - 1


@dataclass(frozen=True)
class Truth:
    """A journal's log up to its end. `states[n]` is the state after n entries; `wrong` describes the rule that is
    broken.
    """

    journal: int
    parts: tuple[tuple[int, Part], ...]
    states: tuple[bytes, ...]
    ids: frozenset[str] = frozenset()
    window: tuple[int, int] = (0, 0)
    uploads: tuple[Upload, ...] = ()
    keys: frozenset[str] = frozenset()
    wrong: str = ""

    @classmethod
    def empty(cls, journal: int, partitions: tuple[int, ...]) -> Truth:
        machine = MACHINES[journal]
        return cls(journal, tuple((p, Part()) for p in partitions), (machine.encode(machine.initial()),))

    def __len__(self) -> int:
        return len(self.states) - 1

    def then(self, body: bytes) -> Truth:
        """Return the log with one more entry."""
        offset, machine = len(self), MACHINES[self.journal]
        e = decode_entry(f"{journal_log(self.journal)}log/{offset:020}", body)
        after = replace(self, wrong=f"entry {e.id} is in the log twice" if e.id in self.ids else "")
        match _PAYLOAD.decode(e.payload):
            case Objects(objects):
                for o in objects:
                    after = after._land(o, offset)
            case Advance(epoch):
                after = after._slide(epoch)
            case Barrier(epoch):
                wrong = f"a barrier at {epoch} lowered the window {self.window}" if epoch < self.window[1] else ""
                after = replace(after, window=(epoch, epoch), wrong=after.wrong or wrong)
            case Edit() as entry:
                after = after._lift(entry)
            case Closed():
                pass
        state = machine.decode(self.states[-1], "the state")
        try:
            machine.apply(state, StoredEntry(offset, e.time_ms, e.payload, 0, len(body)))
        except L0gcError as error:
            return replace(after, wrong=after.wrong or str(error))
        after = replace(after, states=(*self.states, machine.encode(state)), ids=self.ids | {e.id})
        return after._compared(state)

    def _slide(self, epoch: int) -> Truth:
        return replace(self, window=(self.window[1], epoch)) if epoch > self.window[1] else self

    def _land(self, o: ObjectExtents, log_offset: int) -> Truth:
        upload, wrong, parts, bases = o.key.rsplit(".", 2)[0], self.wrong, dict(self.parts), []
        if o.epoch < self.window[0]:
            wrong = f"an object of epoch {o.epoch} landed below the window {self.window}"
        if upload in {u.name for u in self.uploads}:
            wrong = f"upload {upload} landed twice"
        records = unpack(o.records, NUMBER).tolist()
        for p, n in zip(unpack(o.partitions, NUMBER).tolist(), records, strict=True):
            part = parts[p]
            if o.epoch <= part.gc_epoch:
                wrong = f"an object of epoch {o.epoch} landed, though M({p}) was {part.gc_epoch}"
            bases.append(part.next_offset)
            live = (*part.live, Live(o.epoch, part.next_offset, n, log_offset))
            parts[p] = part._replace(next_offset=part.next_offset + n, live=live)
        landed = Upload(upload, log_offset, tuple(bases))
        after = replace(
            self,
            parts=tuple(parts.items()),
            uploads=(*self.uploads, landed),
            keys=self.keys | {o.key},
            wrong=wrong,
        )
        return after._slide(o.epoch)

    def _lift(self, entry: Edit) -> Truth:
        wrong, parts = self.wrong, dict(self.parts)
        for t in entry.topics:
            for p, base, last in ranges_of(t.change.added).tolist():
                part = parts[p]
                if base != part.reconciled + 1 or last >= part.next_offset:
                    wrong = f"records {base} to {last} of {p} were reconciled after {part.reconciled}"
                live = tuple(x for x in part.live if x.base > last)
                parts[p] = part._replace(reconciled=last, live=live)
        return replace(self, parts=tuple(parts.items()), wrong=wrong)

    def _compared(self, state: JournalState) -> Truth:
        """Return the truth with the state's M(p), after checking that M(p) is allowed and that the state agrees with
        the log.
        """
        wrong, parts = self.wrong, dict(self.parts)
        if self.window != (state.previous_applied_epoch, state.max_applied_epoch):
            wrong = wrong or f"the state has window {state.window}, not {self.window}"
        for p, part in self.parts:
            m, view = gc_epoch_of(state, REVISION, p), state.topic(REVISION).view(p)
            lowest = min((x.epoch for x in part.live), default=None)
            extents = [(x.epoch, x.base_offset, x.records, x.log_offset) for x in state.topic(REVISION).extents(p)]
            if wrong:
                break
            if m < part.gc_epoch:
                wrong = f"M({p}) went down from {part.gc_epoch} to {m}"
            elif lowest is not None and lowest <= m:
                wrong = f"M({p}) is {m}, though epoch {lowest} is unreconciled"
            elif (part.next_offset, part.reconciled) != (view.next_offset, view.last_reconciled_offset):
                wrong = f"the state has partition {p} end at {view.next_offset}, not at {part.next_offset}"
            elif extents != [tuple(x) for x in part.live]:
                wrong = f"the state has not the extents of partition {p} that the log has"
            parts[p] = part._replace(gc_epoch=m)
        return replace(self, parts=tuple(parts.items()), wrong=wrong)
