"""Conformance vectors: a log, a further entry, whether it lands, and the state afterwards; see docs/reference/format.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from l0gc.decoding import UNDECODABLE
from l0gc.errors import CorruptObjectError, L0gcError
from l0gc.inspect import log as shown_log
from l0gc.storage.entry import StoredEntry
from l0gc.streamlog.controller.entries import ControllerMachine, decode_controller_entry
from l0gc.streamlog.controller.state import ControllerState
from l0gc.streamlog.journal.checkpoint import JournalMachine
from l0gc.streamlog.journal.entries import decode_journal_entry
from l0gc.streamlog.journal.state import JournalState

FOLDER: Final = Path(__file__).parent


class LogEntry(msgspec.Struct):
    """An entry of a log.

    Attributes:
        payload: the stored entry, a msgpack array; base64 in JSON.
        entry: the entry as `l0gc log show` prints it; empty if it cannot be decoded.
    """

    time_ms: int
    payload: bytes
    entry: dict[str, Any]


class Vector(msgspec.Struct):
    """A log and the next entry.

    Attributes:
        name: the machine, the entry's kind, and what happens to it.
        machine: `controller` or `journal`; the journal's number is 0.
        log: the entries from offset 0 on.
        proposed: the entry at the next offset.
        refused: the kind of refusal and the rule, without numbers and names; empty if the entry lands.
        state: the state afterwards, as `l0gc log show --checkpoint` prints it; a refusal does not change it. A journal's
            has `bounds`, too: for each topic, by revision, the lowest epoch that each partition may need; M(p) is one less.
            `untouched` is that of a topic with revision 0 in which nothing has landed.
    """

    name: str
    machine: str
    log: list[LogEntry]
    proposed: LogEntry
    refused: str
    state: dict[str, Any]


def shown(machine: str, entry: StoredEntry) -> dict[str, Any]:
    """Return an entry as `l0gc log show` prints it; empty if it cannot be decoded."""
    try:
        decoded: msgspec.Struct = (
            decode_controller_entry(entry.offset, entry.payload)
            if machine == "controller"
            else decode_journal_entry(entry.payload, "the entry")
        )
        return _plain(shown_log.entry_tree(decoded, {}))
    except (L0gcError, ValueError):
        return {}


def after(machine: str, state: ControllerState | JournalState) -> dict[str, Any]:
    """Return a state as `l0gc log show --checkpoint` prints it, and a journal's bounds."""
    if isinstance(state, ControllerState):
        parts = list(shown_log._controller_parts(state))
        return {"parts": [_plain(part) for part in parts]}
    bounds = {"untouched": state.bounds(0, 0, 1).tolist()}
    for revision, topic in state.topics.items():
        count = int(topic.partitions[-1]) + 1 if len(topic.partitions) else 0
        bounds[str(revision)] = state.bounds(revision, 0, count).tolist()
    window = [state.previous_applied_epoch, state.max_applied_epoch]
    return {"window": window, "bounds": bounds, "parts": [_plain(p) for p in shown_log._journal_parts(state, {})]}


def state_after(machine: str, log: Sequence[StoredEntry]) -> Any:
    """Return the state after a log."""
    state = ControllerMachine().initial() if machine == "controller" else JournalMachine(0).initial()
    for entry in log:
        if why := refusal(machine, state, entry):
            raise AssertionError(f"the entry at {entry.offset} of the log is refused: {why}")
    return state


def refusal(machine: str, state: Any, entry: StoredEntry) -> str:
    """Apply an entry; return why it is refused, or an empty text."""
    try:
        if machine == "controller":
            ControllerMachine().apply(state, entry)
        else:
            JournalMachine(0).apply(state, entry)
    except CorruptObjectError as e:
        return rule_of(e)
    return ""


def _plain(value: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(b"".join(shown_log._json(value)))
    return decoded


def rule_of(e: BaseException) -> str:
    """Return the kind of a refusal and its rule, without the parts that vary.

    An entry that cannot be decoded counts as damaged, since the decoder's errors differ between versions.
    """
    cause = e.__cause__ or e
    kind = "CorruptObjectError" if isinstance(cause, UNDECODABLE) else type(cause).__name__
    text = re.sub(
        r"'[^']*'|\"[^\"]*\"|[0-9a-f]{8}-[0-9a-f-]{27}|\S*/\S*|-?\d[\d,]*", "…", str(cause).removeprefix("Expected")
    )
    return f"{kind}: {text[:120]}"
