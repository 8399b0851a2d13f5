"""The second look: which suspects are findings.

The bucket is in use while it is looked at, so the listing, a log and an object are of different moments. The order of the
second look leaves one explanation alone:

1. the object itself, by its key: missing, short, or not holding what the log says;
2. then the partition's log, replayed: does it still need that object? What was reconciled meanwhile, and then swept, it
   does not. An L1 object that was committed meanwhile, it names. Objects never come back under an old key, so what the
   log needs *after* the object was missed is missing.
3. then the controller: does the topic still exist, and has the epoch been reached? A topic is deleted there first, and
   only then may M pass it and its objects go.

That M is above something live needs no second look at the log. M was read before the log was, M never goes down, and what
it has once allowed nothing may need again: it was wrong even if a reconciler has put it right since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from l0gc.errors import CorruptObjectError, ObjectNotFoundError
from l0gc.inspect.verify import findings as kinds
from l0gc.inspect.verify.findings import Suspect
from l0gc.inspect.verify.look import extent_faults, l1_fault, look_at, size_of
from l0gc.inspect.verify.rules import (
    Basis,
    PartitionLook,
    ReportTop,
    check_partition,
    names,
    orphan_text,
    parse_l1,
    report_says_more,
)
from l0gc.runtime import Runtime
from l0gc.storage.objectstore import ObjectStore
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.entries import L1File, Unreconciled
from l0gc.watermark.reports import read_report_file

_L0: Final = {kinds.L0_MISSING, kinds.L0_SHORT, kinds.L0_CORRUPT}
_L1: Final = {kinds.L1_MISSING, kinds.L1_SIZE, kinds.L1_CORRUPT}
_AS_SEEN: Final = {kinds.LIVE_BELOW_WATERMARK, kinds.WATERMARK_AHEAD, kinds.WATERMARK_UNREADABLE, kinds.REPORT_FOREIGN}

# Built at import, by one thread: msgspec learns a type at its first use, and two threads doing that at once crash it.
_UNRECONCILED: Final = msgspec.json.Decoder(Unreconciled)
_L1_FILE: Final = msgspec.json.Decoder(L1File)
_TOP: Final = msgspec.json.Decoder(ReportTop)


def confirm(store: ObjectStore, runtime: Runtime, basis: Basis, suspects: Iterable[Suspect]) -> list[Suspect]:
    """The suspects that are findings, each with the detail that the second look gave.

    Raises:
        CorruptObjectError: the controller log cannot be read.
    """
    ordered = sorted(suspects, key=lambda s: (s.topic, s.revision, s.partition, s.kind, s.key, s.offset))
    if not ordered:
        return []
    still: list[Suspect] = []
    for p, group in groupby(ordered, key=lambda s: s.id):
        seen = [t for s in group if (t := _look_at_object(store, s)) is not None]
        if p is None:
            still += seen
        elif seen:
            still += _look_at_log(store, runtime, basis, seen)
    return _look_at_controller(Controller(store, runtime).snapshot(), still)


def _with(s: Suspect, detail: str) -> Suspect:
    return msgspec.structs.replace(s, detail=detail)


def _look_at_object(store: ObjectStore, s: Suspect) -> Suspect | None:
    """The suspect again if its object still is what it was, or there is no object to ask for."""
    match s.kind:
        case kinds.L0_MISSING | kinds.L1_MISSING:
            return _with(s, "the object is missing") if size_of(store, s.key) is None else None
        case kinds.L0_SHORT:
            p, size = _UNRECONCILED.decode(s.ref).placeholder, size_of(store, s.key)
            if size is None:
                return _with(s, "the object is missing")
            text = f"it has {size} bytes, and the log refers to bytes {p.start} to {p.start + p.length}"
            return _with(s, text) if size < p.start + p.length else None
        case kinds.L1_SIZE:
            f, size = _L1_FILE.decode(s.ref), size_of(store, s.key)
            if size is None:
                return _with(s, "the object is missing")
            return _with(s, f"it has {size} bytes, and the log says {f.bytes}") if size != f.bytes else None
        case kinds.L0_CORRUPT:
            faults = extent_faults(store, s.key, [_UNRECONCILED.decode(s.ref)])
            return _with(s, faults[0][1]) if faults else None
        case kinds.L1_CORRUPT:
            fault = l1_fault(store, _L1_FILE.decode(s.ref))
            return _with(s, fault) if fault else None
        case kinds.L1_ORPHAN:
            return s if size_of(store, s.key) is not None else None
        case kinds.REPORT_UNREADABLE:
            try:
                read_report_file(store.get(s.key).body, s.key)
            except ObjectNotFoundError:
                return None
            except CorruptObjectError as e:
                return _with(s, str(e))
            return None
    return s


def _look_at_log(store: ObjectStore, runtime: Runtime, basis: Basis, suspects: Sequence[Suspect]) -> list[Suspect]:
    """Those suspects of one partition that its log bears out. An orphan is none while the log cannot be read."""
    p = suspects[0].id
    assert p is not None
    still = [s for s in suspects if s.kind in _AS_SEEN]
    try:
        look = look_at(store, runtime, p)
    except CorruptObjectError as e:
        return still + [_with(s, str(e)) for s in suspects if s.kind == kinds.LOG_UNREADABLE]
    places = {s.place for s in suspects}
    again = check_partition(look, basis.layout, basis.watermark, basis.cluster_epoch)
    still += [s for s in again if s.place in places and s.kind not in _AS_SEEN]
    return still + [t for s in suspects if (t := _by_log(s, look)) is not None]


def _by_log(s: Suspect, look: PartitionLook) -> Suspect | None:
    """The suspect again if it concerns an object or a report and the log still bears it out."""
    state = look.state
    if s.kind in _L0:
        return s if names(state, _UNRECONCILED.decode(s.ref)) else None
    if s.kind in _L1:
        return s if _L1_FILE.decode(s.ref) in state.l1 else None
    if s.kind == kinds.REPORT_AHEAD:
        text = report_says_more(_TOP.decode(s.ref), look)
        return _with(s, text) if text else None
    key = parse_l1(s.key) if s.kind == kinds.L1_ORPHAN else None
    if key is None or any(f.key == s.key for f in state.l1):
        return None
    return _with(s, orphan_text(key.base_offset, key.last_offset, state))


def _look_at_controller(state: ControllerState, suspects: Sequence[Suspect]) -> list[Suspect]:
    """Those suspects whose topic still exists, and whose epoch still was not reached."""
    live = {(t.name, t.revision) for t in state.topics.values()}
    return [
        s
        for s in suspects
        if (not s.topic or (s.topic, s.revision) in live) and (s.kind != kinds.EPOCH_AHEAD or int(s.ref) > state.epoch)
    ]
