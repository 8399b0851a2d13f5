"""The copies of an evacuation: which blocks, into which objects (reads L0, writes L0, decides nothing).

Ranges of blocks are copied as they are, each checked by the checksum that its journal has: a block that does not match is
left where it is, and reported. Many old objects go into one new one, each old object is read once for all journals, and
where tiny extents share a block, the block moves. A copy is durable before anybody is told of it (hazard 32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from l0gc.errors import CorruptObjectError, ObjectNotFoundError
from l0gc.storage.parallel import grouped
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.evacuation.choice import COPY_BYTES
from l0gc.streamlog.ingest.extents import check_block, fetch
from l0gc.streamlog.journal.entries import MovedBlocks
from l0gc.streamlog.journal.rows import NUMBER, pack
from l0gc.streamlog.journal.topic import Block, UnreconciledObject


@dataclass(frozen=True, slots=True)
class Source:
    """What a journal still needs of an object: `blocks`, by their numbers in the journal's part, which begins at `start`."""

    journal: int
    revision: int
    topic_id: str
    key: str
    start: int
    numbers: list[int]
    blocks: list[Block]

    @classmethod
    def of(cls, journal: int, revision: int, topic_id: str, o: UnreconciledObject) -> Source:
        numbers: list[int] = o.needed.tolist()
        return cls(journal, revision, topic_id, o.key, o.start, numbers, [o.block(n) for n in numbers])

    @property
    def bytes(self) -> int:
        return sum(b.length for b in self.blocks)


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of a source: `part` is what its journal is to be told, if anything was copied. `error` is what could not
    be, in a sentence."""

    journal: int
    bytes: int = 0
    part: MovedBlocks | None = None
    error: str = ""


StillThere = Callable[[Source], bool]
"""Whether the journal says, now, that it needs something of the object."""


def copy_all(cluster: Handles, sources: Iterable[Source], epoch: int, still_there: StillThere) -> Iterator[Copied]:
    """Copy what is needed into new objects at `epoch`. Raises `StoreError`; what was written counts for nothing then."""
    ordered = sorted(sources, key=lambda s: (s.key, s.journal, s.start))
    objects = [list(same) for _, same in groupby(ordered, key=lambda s: s.key)]
    for some in grouped(objects, (lambda o: sum(s.bytes for s in o), COPY_BYTES)):
        body, parts = bytearray(), list[tuple[Source, list[int], int, int]]()
        for same, bodies in zip(some, cluster.parallel.map(lambda o: _fetched(cluster, o), some), strict=True):
            if isinstance(bodies, str):
                yield from (Copied(s.journal, error=bodies) for s in same if still_there(s))
                continue
            for s in same:
                kept, start = list[int](), len(body)
                for number, block in zip(s.numbers, s.blocks, strict=True):
                    content = bodies[block.start]
                    try:
                        check_block(content, s.key, block)
                    except CorruptObjectError as e:
                        yield Copied(s.journal, error=str(e))
                        continue
                    kept.append(number)
                    body += content
                if kept:
                    parts.append((s, kept, start, len(body) - start))
        if parts:
            key = cluster.write_l0(bytes(body), epoch)
            for s, kept, start, length in parts:
                numbers = pack(np.array(kept, NUMBER))
                part = MovedBlocks(s.revision, s.topic_id, s.key, s.start, numbers, key, epoch, start)
                yield Copied(s.journal, length, part)


def _fetched(cluster: Handles, same: list[Source]) -> dict[int, bytes] | str:
    """The blocks of an object that its journals need, by where they begin; or why it cannot be read."""
    blocks = sorted({(b.start, b.length) for s in same for b in s.blocks})
    try:
        bodies = fetch(cluster.store, same[0].key, blocks)
    except ObjectNotFoundError as e:
        return f"{e}; restore that object from a version"
    except CorruptObjectError as e:
        return str(e)
    return {start: body for (start, _), body in zip(blocks, bodies, strict=True)}
