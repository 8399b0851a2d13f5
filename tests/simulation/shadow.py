"""One partition as the world sees it written: its log replayed entry by entry, and what it may still need by its own count.

`needs` is computed here, from the window and the unreconciled placeholders alone, and not taken from the state's bound: an
error in the bound is to be found, not repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from l0gc.errors import L0gcError
from l0gc.keys import PartitionId
from l0gc.storage.log import Landed
from l0gc.streamlog.journal.entries import Advance, Barrier, PartitionEntry, Placeholders, Reconciled
from l0gc.streamlog.journal.state import PartitionMachine, PartitionState

_PARTITION_ENTRY = msgspec.json.Decoder(PartitionEntry)


class Logged(msgspec.Struct, frozen=True):
    """What an entry of any log holds, as far as the watch looks."""

    time_ms: int
    entry: msgspec.Raw


_LOGGED = msgspec.json.Decoder(Logged)


def logged(body: bytes) -> Logged:
    return _LOGGED.decode(content(body))


def content(body: bytes) -> bytes:
    """An object without its checksum, which stands on a line of its own where it is not part of the content."""
    return body.split(b"\n", 1)[0]


@dataclass
class Shadow:
    """What a partition's log says. `batches` maps the first offset of a batch to its number of records."""

    partition: PartitionId
    state: PartitionState
    offset: int = -1
    batches: dict[int, int] = field(default_factory=dict)

    @property
    def needs(self) -> int:
        """The lowest epoch that something unreconciled has, or that may still land."""
        s = self.state
        lowest = s.previous_applied_epoch
        for u in s.placeholders:
            lowest = min(lowest, u.epoch)
        return lowest

    def abstract(self, epoch: int) -> tuple[int, ...]:
        """The partition, as far as the rules tell one from another: distances between epochs, and small counts."""
        s = self.state
        return (
            min(epoch - s.max_applied_epoch, 9),
            min(s.max_applied_epoch - s.previous_applied_epoch, 9),
            min(s.previous_applied_epoch - self.needs, 9),
            min(len(s.placeholders), 4),
            min(len(s.l1), 2),
            min(len(s.producers), 2),
            s.closed,
        )

    def land(self, offset: int, body: bytes, objects: dict[str, object], epoch: int, watermark: int) -> str | None:
        """Take the entry at `offset`; what is wrong with it, if anything is."""
        if offset != self.offset + 1:
            return f"has an entry at {offset}, the one before was {self.offset}"
        e = logged(body)
        entry = _PARTITION_ENTRY.decode(e.entry)
        s = self.state
        before = (self.needs, s.previous_applied_epoch, s.max_applied_epoch)
        if isinstance(entry, Placeholders | Advance | Barrier) and entry.epoch > epoch:
            return f"took epoch {entry.epoch}, above the cluster epoch {epoch}"
        if isinstance(entry, Placeholders):
            if entry.epoch < s.previous_applied_epoch:
                return f"took epoch {entry.epoch} below its window {s.window}"
            if entry.epoch <= watermark:
                return f"took epoch {entry.epoch}, though M = {watermark} is published"
            for x in entry.placeholders:
                if x.key not in objects:
                    return f"took a placeholder of {x.key}, which is gone"
        if isinstance(entry, Reconciled):
            for f in entry.files:
                if f.key not in objects:
                    return f"counts {f.key} as reconciled, which is not there"
        try:
            PartitionMachine(self.partition).apply(s, Landed(offset, e.time_ms, bytes(e.entry), 0))
        except L0gcError as error:
            return f"took an entry that it should have refused: {error}"
        if isinstance(entry, Placeholders):
            self.batches.update((x.base_offset, x.records) for x in entry.placeholders)
        self.offset = offset
        after = (self.needs, s.previous_applied_epoch, s.max_applied_epoch)
        if any(a < b for a, b in zip(after, before, strict=True)):
            return f"went back from (needs, previous, max) = {before} to {after}"
        if s.gc_epoch >= self.needs:
            return f"says that it is done with epoch {s.gc_epoch}, though it may still need {self.needs}"
        return None
