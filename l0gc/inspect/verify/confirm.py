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
from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.basis import Basis
from l0gc.inspect.verify.findings import Suspect
from l0gc.inspect.verify.reading import (
    block_faults,
    controller_faults,
    indexed_rows,
    l1_fault,
    read_journal,
    size_of,
    unpack_object,
)
from l0gc.inspect.verify.references import in_chunks
from l0gc.inspect.verify.rules import (
    DOUBTFUL,
    JournalCopy,
    check_journal,
    described,
    needed_end,
    needs,
    orphan_text,
)
from l0gc.keys import CONTROLLER_LOG, L1Key, PartitionId, parse_level_one
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore
from l0gc.storage.parallel import Inline, Parallel
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.rows import name_bytes
from l0gc.streamlog.journal.state import JournalState
from l0gc.streamlog.level_one.index import files_of, l1_key

_L0: Final = {kinds.L0_MISSING, kinds.L0_SHORT, kinds.L0_CORRUPT}
_L1: Final = {kinds.L1_MISSING, kinds.L1_SIZE, kinds.L1_CORRUPT, kinds.L1_ORPHAN}
_READ_AT_ONCE: Final = 1000
_AS_SEEN: Final = {
    kinds.LIVE_BELOW_WATERMARK,
    kinds.WATERMARK_AHEAD,
    kinds.WATERMARK_UNREADABLE,
    kinds.TOPIC_MISPLACED,
    kinds.TOPIC_UNKNOWN,
}


def confirm(
    store: ObjectStore,
    runtime: Runtime,
    basis: Basis,
    suspects: Iterable[Suspect],
    *,
    parallel: Parallel | None = None,
    deep: bool = False,
) -> list[Suspect]:
    """The suspects that are findings, each with the detail that the second reading gave.

    Args:
        deep: as for the first reading; see `read_journal`.

    Raises:
        CorruptObjectError: the controller log cannot be read.
    """
    ordered = sorted(suspects, key=lambda s: (s.journal, s.revision, s.partition, s.kind, s.key, s.offset))
    if not ordered:
        return []
    reader = _Reader(store, runtime, basis, parallel or Inline(), deep)
    still: list[Suspect] = []
    for journal, group in groupby(ordered, key=lambda s: s.journal):
        seen: list[Suspect] = []
        for chunk in in_chunks(group, _READ_AT_ONCE):
            seen += (s for s in reader.parallel.map(reader.object_again, chunk) if s is not None)
        if journal < 0:
            still += seen
        elif seen:
            still += reader.journal_again(journal, seen)
    return _still_there(Controller(store, runtime).snapshot(), still)


def _still_there(state: ControllerState, suspects: Sequence[Suspect]) -> list[Suspect]:
    """Those suspects whose topic still is what it was, live or deleted, and whose epoch still was not reached."""
    live = {t.revision for t in state.topics.values()}
    deleted = {d.topic.revision for d in state.deleted}

    def is_left(s: Suspect) -> bool:
        there = not s.topic or s.revision in (deleted if s.kind == kinds.TOPIC_UNCLOSED else live)
        return there and (s.kind != kinds.EPOCH_AHEAD or s.expected > state.epoch)

    return [s for s in suspects if is_left(s)]


def _is_orphan(state: JournalState, key: L1Key) -> bool:
    """Whether nothing has named the object. If it was stamped before a log was set back, a lost entry may have named it."""
    return key.epoch >= state.kept_below and not _is_dropped(state, key)


def _is_dropped(state: JournalState, key: L1Key) -> bool:
    """Whether the journal has dropped the object, alone or with an index object: vacuum's work, and not an orphan."""
    p = key.id
    topic = state.topics.get(p.revision)
    live = [] if topic is None else topic.index_of(p.partition)["name"].tolist()
    trees = state.indexes_over(p.revision, p.partition, key.base, key.last)["name"].tolist()
    return name_bytes(key.name) in state.names(p.revision) or any(name not in live for name in trees)


def _partition(s: Suspect) -> PartitionId:
    return PartitionId(s.topic, s.revision, s.partition)


def _with(s: Suspect, detail: str) -> Suspect:
    return msgspec.structs.replace(s, detail=detail)


class _Reader:
    """Reads again what the suspects are about."""

    def __init__(self, store: ObjectStore, runtime: Runtime, basis: Basis, parallel: Parallel, deep: bool) -> None:
        self._store, self._runtime, self._basis, self.parallel, self._deep = store, runtime, basis, parallel, deep

    # -- the object --------------------------------------------------------------------------------------------------------

    def object_again(self, s: Suspect) -> Suspect | None:
        """The suspect again if its object still has the fault, or no object is to be read."""
        store = self._store
        match s.kind:
            case kinds.L0_MISSING | kinds.L1_MISSING:
                return _with(s, "the object is missing") if size_of(store, s.key) is None else None
            case kinds.L0_SHORT:
                size = size_of(store, s.key)
                if size is None:
                    return _with(s, "the object is missing")
                text = f"it has {size} bytes, and the journal refers to bytes up to {s.expected}"
                return _with(s, text) if size < s.expected else None
            case kinds.L1_SIZE:
                size = size_of(store, s.key)
                if size is None:
                    return _with(s, "the object is missing")
                text = f"it has {size} bytes, and the journal records {s.expected}"
                return _with(s, text) if size != s.expected else None
            case kinds.L0_CORRUPT:
                faults = block_faults(store, unpack_object(s.key, s.ref))
                return _with(s, faults[0][1]) if faults else None
            case kinds.L1_CORRUPT:
                fault = l1_fault(store, s.key, s.expected)
                return _with(s, fault) if fault else None
            case kinds.L1_ORPHAN:
                return s if size_of(store, s.key) is not None else None
        if s.key == CONTROLLER_LOG and s.kind in DOUBTFUL:
            faults_now = controller_faults(store, self._runtime, parallel=self.parallel, deep=self._deep)
            return next((_with(s, text) for kind, text in faults_now if kind == s.kind), None)
        return s

    # -- the journal -------------------------------------------------------------------------------------------------------

    def journal_again(self, journal: int, suspects: Sequence[Suspect]) -> list[Suspect]:
        """The suspects of one journal that it confirms. While the journal is in doubt, no orphan is confirmed."""
        still = [s for s in suspects if s.kind in _AS_SEEN]
        try:
            copy = read_journal(self._store, self._runtime, journal, parallel=self.parallel, deep=self._deep)
        except CorruptObjectError as e:
            return still + [_with(s, str(e)) for s in suspects if s.kind == kinds.LOG_UNREADABLE]
        again = check_journal(copy, self._basis)
        if any(s.kind in DOUBTFUL for s in again):
            suspects = [s for s in suspects if s.kind != kinds.L1_ORPHAN]
        places = {s.place for s in suspects}
        still += [s for s in again if s.place in places and s.kind not in _AS_SEEN]
        for revision, group in groupby((s for s in suspects if s.kind in _L0), key=lambda s: s.revision):
            still += self._l0_again(copy, revision, list(group))
        for p, group in groupby((s for s in suspects if s.kind in _L1), key=_partition):
            still += self._l1_again(copy, p, list(group))
        return still + [t for s in suspects if s.kind == kinds.INDEX_UNREADABLE and (t := self._index_again(copy, s))]

    @staticmethod
    def _l0_again(copy: JournalCopy, revision: int, suspects: Sequence[Suspect]) -> list[Suspect]:
        needed = needs(copy.state, revision, {s.key for s in suspects})
        found = []
        for s in suspects:
            o = needed.get(s.key)
            if o is None:
                continue
            if s.kind == kinds.L0_CORRUPT:
                row = o.extents[o.extents["partition"] == s.partition]
                if len(row) and row["base"][0] == s.offset:
                    found.append(s)
            elif s.kind == kinds.L0_MISSING or needed_end(o) >= s.expected:
                found.append(_with(s, f"{s.detail}; {described(o)}"))
        return found

    def _l1_again(self, copy: JournalCopy, p: PartitionId, suspects: Sequence[Suspect]) -> list[Suspect]:
        if copy.state.closed(p.revision):
            return []
        try:
            named = {l1_key(p, f): f.bytes for f in files_of(self._store, p, copy.state)}
        except (CorruptObjectError, ObjectNotFoundError):
            return []  # its index is the finding
        found = []
        for s in suspects:
            if s.kind != kinds.L1_ORPHAN:
                if s.key in named and (s.kind != kinds.L1_SIZE or named[s.key] == s.expected):
                    found.append(s)
            elif s.key not in named and (key := parse_level_one(s.key)) is not None and _is_orphan(copy.state, key):
                text = orphan_text(key.base, key.last, copy.state, p)
                found.append(_with(s, text))
        return found

    def _index_again(self, copy: JournalCopy, s: Suspect) -> Suspect | None:
        topic = copy.state.topics.get(s.revision)
        if topic is None or not len(index := topic.index_of(s.partition)):
            return None
        log_start = copy.state.topic(s.revision).view(s.partition).log_start_offset
        fault = indexed_rows(self._store, _partition(s), index, log_start)
        return _with(s, fault) if isinstance(fault, str) else None
