"""What the log says, as whoever saw every write knows it, and what must hold of it.

It follows the rules by itself, without l0gc's state machine: what the window is, what is unreconciled, what has landed.
The state machine runs beside it, for M(p) and for the state that a process must hold after so many entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from l0gc.errors import L0gcError
from l0gc.storage.entry import Entry
from l0gc.storage.log import Landed
from l0gc.streamlog.journal.entries import Advance, Barrier, Closed, PartitionEntry, Placeholders, Reconciled
from tests.exhaustive.actors import MACHINE, PARTITION

_ENTRY: Final = msgspec.json.Decoder(Entry)
_PAYLOAD: Final = msgspec.json.Decoder(PartitionEntry)


class Live(NamedTuple):
    """An unreconciled placeholder."""

    epoch: int
    last_offset: int
    log_offset: int


@dataclass(frozen=True)
class Truth:
    """The log up to its end. `states[n]` is the state after n entries; `wrong` says what does not hold, '' if all does."""

    states: tuple[bytes, ...] = (MACHINE.encode(MACHINE.initial()),)
    ids: frozenset[str] = frozenset()
    window: tuple[int, int] = (PARTITION.revision, PARTITION.revision)
    live: tuple[Live, ...] = ()
    next_offset: int = 0
    reconciled: int = -1
    gc_epoch: int = PARTITION.revision - 1
    uploads: tuple[tuple[str, int], ...] = ()
    keys: frozenset[str] = frozenset()
    wrong: str = ""

    def __len__(self) -> int:
        return len(self.states) - 1

    def then(self, body: bytes) -> Truth:
        """The log with one more entry."""
        e = _ENTRY.decode(body)
        entry = _PAYLOAD.decode(e.entry)
        window, live, next_offset, reconciled = self.window, self.live, self.next_offset, self.reconciled
        uploads, keys = self.uploads, self.keys
        wrong = f"entry {e.id} is in the log twice" if e.id in self.ids else ""
        match entry:
            case Placeholders():
                if entry.epoch < window[0]:
                    wrong = f"a placeholder of epoch {entry.epoch} landed below the window {window}"
                if entry.epoch <= self.gc_epoch:
                    wrong = f"a placeholder of epoch {entry.epoch} landed, though M(p) was {self.gc_epoch}"
                for p in entry.placeholders:
                    upload = p.key.rsplit(".", 2)[0]
                    if p.base_offset != next_offset:
                        wrong = f"{p.key} is at {p.base_offset}, not {next_offset}"
                    if upload in dict(uploads):
                        wrong = f"upload {upload} landed twice"
                    live = (*live, Live(entry.epoch, p.last_offset, len(self)))
                    uploads, keys = (*uploads, (upload, p.base_offset)), keys | {p.key}
                    next_offset = p.last_offset + 1
                if entry.epoch > window[1]:
                    window = (window[1], entry.epoch)
            case Advance():
                if entry.epoch > window[1]:
                    window = (window[1], entry.epoch)
            case Barrier():
                if entry.epoch < window[1]:
                    wrong = f"a barrier at {entry.epoch} lowered the window {window}"
                window = (entry.epoch, entry.epoch)
            case Reconciled():
                if entry.base_offset != reconciled + 1 or entry.last_offset >= next_offset:
                    wrong = f"records {entry.base_offset} to {entry.last_offset} were reconciled behind {reconciled}"
                reconciled = entry.last_offset
                live = tuple(x for x in live if x.last_offset > reconciled)
            case Closed():
                pass
        state = MACHINE.decode(self.states[-1], "the state")
        try:
            MACHINE.apply(state, Landed(len(self), e.time_ms, bytes(e.entry), 0))
        except L0gcError as error:
            wrong = wrong or str(error)
        m = state.gc_epoch
        if not wrong:
            lowest = min((x.epoch for x in live), default=None)
            if m < self.gc_epoch:
                wrong = f"M(p) went down from {self.gc_epoch} to {m}"
            elif lowest is not None and lowest <= m:
                wrong = f"M(p) is {m}, though epoch {lowest} is unreconciled"
            elif (window, next_offset, reconciled) != (
                (state.window.oldest, state.window.newest),
                state.next_offset,
                state.last_reconciled_offset,
            ):
                wrong = (
                    f"the state has window {state.window} and ends at {state.next_offset}, not {window}, {next_offset}"
                )
            elif [x.epoch for x in live] != [u.epoch for u in state.placeholders]:
                wrong = "the state has not the placeholders that the log has"
        return Truth(
            (*self.states, MACHINE.encode(state)),
            self.ids | {e.id},
            window,
            live,
            next_offset,
            reconciled,
            m,
            uploads,
            keys,
            wrong,
        )
