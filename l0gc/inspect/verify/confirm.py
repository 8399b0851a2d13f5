"""The second reading: which suspects are findings.

The bucket is in use while it is read, so the listing, a journal and an object are of different moments. The order of the
second reading leaves one explanation:

1. the object itself, by its key: missing, short, or not holding what the journal records;
2. then the journal, replayed: does it still need that object? It does not need what was reconciled and swept in between, and
   it names an L1 object that was committed in between. Objects never come back under an old key, so an object that the
   journal needs *after* it was found missing is missing.
3. then the controller: does the topic still exist, and has the epoch been reached? A topic is deleted there first, and
   only then may M pass it and its objects go.

That M is above something live needs no second reading of the journal. M was read before the journal, M never goes down, and
nothing may need again what M once allowed to go: it was wrong even if a reconciler has put it right since. A topic's
placement needs no second reading either, since it never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from l0gc.errors import CorruptObjectError, ObjectNotFoundError
from l0gc.inspect.verify.findings import Kind, Suspect
from l0gc.inspect.verify.listings import in_chunks
from l0gc.inspect.verify.reading import (
    block_faults,
    controller_faults,
    indexed_rows,
    l1_fault,
    read_copy,
    size_of,
)
from l0gc.inspect.verify.rules import (
    DOUBTFUL,
    Basis,
    JournalCopy,
    check_journal,
    described,
    needed_end,
    needs,
    orphan_text,
)
from l0gc.keys import CONTROLLER_LOG, L1Key, PartitionId, parse_level_one
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.cluster import Handles
from l0gc.streamlog.journal.rows import name_bytes
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.index import files_of, l1_key

_BY_SIZE: Final = {Kind.L0_MISSING, Kind.L0_SHORT, Kind.L1_MISSING, Kind.L1_SIZE}
_L0: Final = {Kind.L0_MISSING, Kind.L0_SHORT, Kind.L0_CORRUPT}
_L1: Final = {Kind.L1_MISSING, Kind.L1_SIZE, Kind.L1_CORRUPT, Kind.L1_ORPHAN}
_READ_AT_ONCE: Final = 1000
_AS_SEEN: Final = {
    Kind.LIVE_BELOW_WATERMARK,
    Kind.WATERMARK_AHEAD,
    Kind.WATERMARK_UNREADABLE,
    Kind.TOPIC_MISPLACED,
    Kind.TOPIC_UNKNOWN,
}


def confirm(cluster: Handles, basis: Basis, suspects: Iterable[Suspect], *, deep: bool = False) -> list[Suspect]:
    """The suspects that are findings, each with the detail that the second reading gave.

    Args:
        deep: as for the first reading; see `read_copy`.

    Raises:
        CorruptObjectError: the controller log cannot be read.
    """
    ordered = sorted(suspects, key=lambda s: (s.journal, s.revision, s.partition, s.kind, s.key, s.offset))
    still: list[Suspect] = []
    for journal, group in groupby(ordered, key=lambda s: s.journal):
        seen: list[Suspect] = []
        for chunk in in_chunks(group, _READ_AT_ONCE):
            found = cluster.parallel.map(lambda s: _object_again(cluster, s, deep=deep), chunk)
            seen += (s for s in found if s is not None)
        still += _journal_again(cluster, basis, journal, seen, deep=deep) if journal >= 0 and seen else seen
    if not still:
        return []
    state = cluster.controller.snapshot()
    topics = {t.revision for t in state.topics.values()}, {d.topic.revision for d in state.deleted}

    def is_left(s: Suspect) -> bool:
        """Whether its topic still is what it was, live or deleted, and its epoch still was not reached."""
        there = not s.topic or s.revision in topics[s.kind == Kind.TOPIC_UNCLOSED]
        return there and (s.kind != Kind.EPOCH_AHEAD or s.expected > state.epoch)

    return [s for s in still if is_left(s)]


def _with(s: Suspect, detail: str | None) -> Suspect | None:
    """The suspect as it is now; None without anything that is wrong."""
    return msgspec.structs.replace(s, detail=detail) if detail else None


# -- the object ----------------------------------------------------------------------------------------------------------


def _object_again(cluster: Handles, s: Suspect, *, deep: bool) -> Suspect | None:
    """The suspect again if its object still has the fault, or no object is to be read."""
    if s.kind in _BY_SIZE:
        size = size_of(cluster.store, s.key)
        if size is None:
            return _with(s, "the object is missing")
        if s.kind == Kind.L0_SHORT and size < s.expected:
            return _with(s, f"it has {size} bytes, and the journal refers to bytes up to {s.expected}")
        if s.kind == Kind.L1_SIZE and size != s.expected:
            return _with(s, f"it has {size} bytes, and the journal records {s.expected}")
        return None
    match s.kind:
        case Kind.L0_CORRUPT:
            assert s.needed is not None
            faults = block_faults(cluster.store, s.needed)
            return _with(s, faults[0][1]) if faults else None
        case Kind.L1_CORRUPT:
            return _with(s, l1_fault(cluster.store, s.key, s.expected))
        case Kind.L1_ORPHAN:
            return s if size_of(cluster.store, s.key) is not None else None
    if s.key == CONTROLLER_LOG and s.kind in DOUBTFUL:
        return _with(s, dict(controller_faults(cluster, deep=deep)).get(s.kind))
    return s


# -- the journal ---------------------------------------------------------------------------------------------------------


def _journal_again(
    cluster: Handles, basis: Basis, journal: int, suspects: Sequence[Suspect], *, deep: bool
) -> list[Suspect]:
    """The suspects of one journal that it confirms. While the journal is in doubt, no orphan is confirmed."""
    still = [s for s in suspects if s.kind in _AS_SEEN]
    try:
        copy = read_copy(cluster, journal, deep=deep)
    except CorruptObjectError as e:
        unreadable = (_with(s, str(e)) for s in suspects if s.kind == Kind.LOG_UNREADABLE)
        return still + [s for s in unreadable if s is not None]
    again = check_journal(copy, basis)
    if any(s.kind in DOUBTFUL for s in again):
        suspects = [s for s in suspects if s.kind != Kind.L1_ORPHAN]
    places = {s.place for s in suspects}
    still += [s for s in again if s.place in places and s.kind not in _AS_SEEN]
    found: list[Suspect | None] = []
    for revision, group in groupby((s for s in suspects if s.kind in _L0), key=lambda s: s.revision):
        found += _l0_again(copy, revision, list(group))
    for p, group in groupby((s for s in suspects if s.kind in _L1), key=_partition):
        found += _l1_again(cluster.store, copy, p, list(group))
    found += [_index_again(cluster.store, copy, s) for s in suspects if s.kind == Kind.INDEX_UNREADABLE]
    return still + [s for s in found if s is not None]


def _l0_again(copy: JournalCopy, revision: int, suspects: Sequence[Suspect]) -> list[Suspect | None]:
    needed = needs(copy.state, revision, {s.key for s in suspects})
    found: list[Suspect | None] = []
    for s in suspects:
        for o in needed.get(s.key, ()):
            row = o.extents[o.extents["partition"] == s.partition]
            if s.kind == Kind.L0_CORRUPT:
                found += [s] if len(row) and row["base"][0] == s.offset else []
            elif s.kind == Kind.L0_MISSING or needed_end(o) >= s.expected:
                found.append(_with(s, f"{s.detail}; {described(o)}"))
                break
    return found


def _l1_again(
    store: ObjectStore, copy: JournalCopy, p: PartitionId, suspects: Sequence[Suspect]
) -> list[Suspect | None]:
    if copy.state.closed(p.revision):
        return []
    try:
        named = {l1_key(p, f): f.bytes for f in files_of(store, p, copy.state)}
    except (CorruptObjectError, ObjectNotFoundError):
        return []  # its index is the finding
    found: list[Suspect | None] = []
    for s in suspects:
        if s.kind != Kind.L1_ORPHAN:
            if s.key in named and (s.kind != Kind.L1_SIZE or named[s.key] == s.expected):
                found.append(s)
        elif s.key not in named and (key := parse_level_one(s.key)) is not None and _is_orphan(copy.state, key):
            found.append(_with(s, orphan_text(key.base, key.last, copy.state, p)))
    return found


def _is_orphan(state: JournalState, key: L1Key) -> bool:
    """Whether nothing has named the object, and the journal has not dropped it, alone or with an index object.

    What it has dropped is vacuum's work. If it was stamped before a log was set back, a lost entry may have named it.
    """
    p = key.id
    topic = state.topics.get(p.revision)
    live = [] if topic is None else topic.index_of(p.partition)["name"].tolist()
    trees = state.indexes_over(p.revision, p.partition, key.base, key.last)["name"].tolist()
    dropped = name_bytes(key.name) in state.names(p.revision) or any(name not in live for name in trees)
    return key.epoch >= state.kept_below and not dropped


def _index_again(store: ObjectStore, copy: JournalCopy, s: Suspect) -> Suspect | None:
    topic = copy.state.topics.get(s.revision)
    if topic is None or not len(index := topic.index_of(s.partition)):
        return None
    fault = indexed_rows(store, _partition(s), index, topic.view(s.partition).log_start_offset)
    return _with(s, fault) if isinstance(fault, str) else None


def _partition(s: Suspect) -> PartitionId:
    return PartitionId(s.topic, s.revision, s.partition)
