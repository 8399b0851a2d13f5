"""Exports conformance vectors from the unit tests: `python -m tests.conformance.export` writes them to `*.json` here.

As a plugin of pytest it sees each entry that a test applies to a state whose whole log it has recorded, and keeps the
change or the reason for the refusal. It then proposes each of these entries after each of these logs, and keeps the
shortest logs for each rule. To add a vector, write a test of the rule, and export again.
"""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest

from l0gc.errors import CorruptObjectError
from l0gc.storage.entry import Place, StoredEntry
from l0gc.streamlog.controller import entries as controller
from l0gc.streamlog.journal import apply as journal
from l0gc.streamlog.journal.entries import Objects
from l0gc.streamlog.journal.producers import InputSpan
from tests.conformance.vectors import FOLDER, LogEntry, Vector, after, refusal, rule_of, shown, state_after
from tests.support.controller import FOUNDED, created

SOURCES: Final = ("tests/streamlog/controller", "tests/streamlog/journal")
"""The tests whose logs are exported."""
OF_EACH_REFUSAL: Final = 3
OF_EACH_ENTRY: Final = 12
LONGEST: Final = 12
"""The largest number of entries in a vector's log."""
MOST_BYTES: Final = 3000
"""The largest size of a vector's payloads, in bytes."""
FOUND: Final = 40
"""The number of vectors that are kept for each entry and each refusal, to choose from."""
LOGS: Final = 60
"""About how many logs of each machine are extended with entries of other logs."""
PROPOSED: Final = 250
"""About how many entries of each machine are proposed after other logs."""


@dataclass
class _Known:
    state: Any
    log: list[StoredEntry]


class Recorder:
    """Keeps the log of each state that tests create, and what each further entry changed."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self.found: dict[tuple[str, str, str], list[Vector]] = defaultdict(list)

    def record(self, machine: str, state: Any, entry: StoredEntry, apply: Callable[[], None]) -> None:
        known = self._known.get(id(state))
        if known is None and after(machine, state) == after(machine, state_after(machine, [])):
            known = self._known[id(state)] = _Known(state, [])
        consecutive = known is not None and entry.offset == len(known.log)
        if known is None or not consecutive or len(known.log) >= LONGEST:
            apply()
            if known is not None:
                del self._known[id(state)]
            return
        refused = ""
        try:
            apply()
        except CorruptObjectError as e:
            refused = rule_of(e)
            raise
        finally:
            if sys.exc_info()[0] in (None, CorruptObjectError):
                self._keep(machine, known, entry, refused)
                known.log.extend([] if refused else [entry])
            else:
                del self._known[id(state)]

    def _keep(self, machine: str, known: _Known, entry: StoredEntry, refused: str) -> None:
        if sum(len(e.payload) for e in (*known.log, entry)) > MOST_BYTES:
            return
        proposed = shown(machine, entry)
        kind = proposed.get("entry", "damaged")
        if kind == "edit":
            kind = f"{proposed['kind']} {kind}"
            kind += " with misfits" if any("misfits" in topic for topic in proposed["topics"]) else ""
        if len(self.found[machine, kind, refused]) >= FOUND:
            return
        log = [*(LogEntry(e.time_ms, e.payload, shown(machine, e)) for e in known.log)]
        log.append(LogEntry(entry.time_ms, entry.payload, proposed))
        name = f"{machine}: {kind}, {refused or 'lands'}"
        state = after(machine, known.state)
        self.found[machine, kind, refused].append(Vector(name, machine, log[:-1], log[-1], refused, state))

    def play(self) -> None:
        """Add logs whose rules the unit tests try without a log, or through a handle alone."""
        from tests.support.journal import batch, extents_of, key_of  # it imports `apply`, which `Plugin` replaces

        pin = controller.CreatePin("backup", 1000, False, "a reason")
        first = batch(0, inputs=[InputSpan("a", 0, 6)])
        later = [
            batch(1, run="run-2"),
            batch(0, epoch=1, inputs=[InputSpan("a", 4, 9)]),
            batch(0, epoch=1, inputs=[InputSpan("a", 8, 9)]),
            batch(2),
            batch(0),
            batch(1, epoch=1),
            batch(0, epoch=1, inputs=[InputSpan("a", 6, 9)]),
        ]
        several = Objects([extents_of(5, {0: 2, 1: 3}, key=key_of(5, 1)), extents_of(6, {0: 4}, key=key_of(6, 2))])
        logs: list[tuple[str, list[Any]]] = [
            (
                "controller",
                [FOUNDED, created("t"), pin, controller.PinTookEffect("backup", 2, 0, [(0, Place(0, "e"))])],
            ),
            (
                "controller",
                [
                    *(FOUNDED, created("t"), pin, controller.PinTookEffect("backup", 2, 0, [(0, Place(0, "e"))])),
                    controller.RenewPin("backup", 2, 60_000),
                ],
            ),
            ("controller", [FOUNDED, created("t"), pin, controller.RenewPin("backup", 2, 60_000)]),
            ("controller", [FOUNDED, created("t"), pin, controller.DeletePin("backup", 2)]),
            ("controller", [FOUNDED, created("t"), controller.CreateTable("t", 1, "lake", "l0gc.t")]),
            (
                "controller",
                [FOUNDED, created("t"), controller.CreateTable("t", 1, "lake", "l0gc.t"), controller.DropTable("t", 1)],
            ),
            ("journal", [several, several]),
            *(("journal", [Objects([extents_of(5, {0: 6}, producer=b)]) for b in (first, other)]) for other in later),
        ]
        for machine, log in logs:
            known = _Known(state_after(machine, []), [])
            for offset, e in enumerate(log):
                entry = StoredEntry(offset, 0, msgspec.msgpack.encode(e), 0)
                refused = refusal(machine, known.state, entry)
                self._keep(machine, known, entry, refused)
                known.log.extend([] if refused else [entry])

    def cross(self, machine: str) -> None:
        """Propose each entry after each log."""
        every = [v for (m, *_), some in sorted(self.found.items()) if m == machine for v in some]
        logs = {msgspec.json.encode([e.payload for e in v.log]): v.log for v in every}
        entries = {v.proposed.payload: v.proposed for v in every}
        for log in sorted(logs.values(), key=len)[:: max(1, len(logs) // LOGS)]:
            landed = [StoredEntry(n, e.time_ms, e.payload, e.time_ms) for n, e in enumerate(log)]
            before = state_after(machine, landed)
            for proposed in list(entries.values())[:: max(1, len(entries) // PROPOSED)]:
                entry = StoredEntry(len(landed), proposed.time_ms, proposed.payload, proposed.time_ms)
                known = _Known(copy.deepcopy(before), landed)
                self._keep(machine, known, entry, refusal(machine, known.state, entry))


def chosen(found: dict[tuple[str, str, str], list[Vector]]) -> list[Vector]:
    """Return the distinct vectors with the shortest logs, for each entry and each refusal."""
    vectors = []
    for (*_, refused), some in sorted(found.items()):
        distinct = {msgspec.json.encode((v.log, v.proposed)): v for v in some}
        shortest = sorted(distinct.values(), key=lambda v: (len(v.log), len(msgspec.json.encode(v))))
        if refused:
            vectors += shortest[:OF_EACH_REFUSAL]
        else:  # short ones, and some with longer logs
            vectors += (
                shortest[: OF_EACH_ENTRY // 2]
                + shortest[OF_EACH_ENTRY // 2 :: max(1, len(shortest) * 2 // OF_EACH_ENTRY)]
            )
    return vectors


class Plugin:
    def __init__(self) -> None:
        self.recorder = Recorder()
        apply, machine_apply, record = journal.apply, controller.ControllerMachine.apply, self.recorder.record
        self._originals = apply, machine_apply

        def of_journal(state: Any, entry: StoredEntry, where: str) -> None:
            record("journal", state, entry, lambda: apply(state, entry, where))

        def of_controller(machine: Any, state: Any, entry: StoredEntry) -> None:
            record("controller", state, entry, lambda: machine_apply(machine, state, entry))

        journal.apply = of_journal
        controller.ControllerMachine.apply = of_controller  # type: ignore[method-assign, assignment]

    def end(self) -> None:
        journal.apply, controller.ControllerMachine.apply = self._originals  # type: ignore[method-assign]


def main() -> int:
    plugin = Plugin()
    failed = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *SOURCES], plugins=[plugin])
    plugin.end()
    plugin.recorder.play()
    for machine in ("controller", "journal"):
        plugin.recorder.cross(machine)
    vectors = chosen(plugin.recorder.found)
    for machine in ("controller", "journal"):
        some = [v for v in vectors if v.machine == machine]
        lines = b",\n".join(msgspec.json.encode(v) for v in some)
        (FOLDER / f"{machine}.json").write_bytes(b"[\n" + lines + b"\n]\n")
        sys.stdout.write(f"{machine}: {len(some)} vectors, {sum(bool(v.refused) for v in some)} of them refusals\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
