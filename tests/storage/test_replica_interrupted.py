"""An exception at any bytecode of a catch-up, an append or a replay leaves the log's state (hazard 29)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from l0gc.errors import CorruptObjectError
from l0gc.runtime import Runtime
from l0gc.storage.entry import StoredEntry, decode_checkpoint
from l0gc.storage.log import SharedLog
from l0gc.storage.replica import Replica, StateMachine
from l0gc.streamlog.controller.entries import ControllerMachine
from l0gc.streamlog.journal.checkpoint import JournalMachine
from tests.fuzz.test_machines import CONTROLLER, JOURNAL, controller_entry
from tests.support.interrupting import KINDS, NoMemory, interrupted
from tests.support.memory_store import MemoryStore

FOLDER = "l0gc/journal/0000/"
LOGS: dict[str, tuple[StateMachine[Any], Sequence[StoredEntry]]] = {
    "journal": (JournalMachine(0), JOURNAL),
    "controller": (ControllerMachine(), [controller_entry(i, payload) for i, payload in enumerate(CONTROLLER)]),
}
ENTRIES = [(name, offset) for name, (_, entries) in LOGS.items() for offset in range(len(entries))]
FIRST = [(name, i) for name, i in ENTRIES if name != "journal" or i not in (2, 5, 6, 7, 8)]
"""The first entry of each kind."""
EVERY = 211
"""`make test` tries one in 211 bytecodes; no loop has that many."""


class Scene:
    """A log whose last entry is still to be read or written by a replica that has all entries before it."""

    def __init__(self, name: str, last: int) -> None:
        self.machine, entries = LOGS[name]
        self.store = MemoryStore()
        writer = self.replica(0)
        for entry in entries[: last + 1]:
            if entry.offset == last and last:
                writer.write_checkpoint()
            self.payload = msgspec.Raw(entry.payload)
            assert writer.propose(lambda state, offset: self.payload) == entry.offset
        self.state = self.machine.encode(writer.state)
        self.last = last
        self.key = writer.log.entry_key(last)
        self.entry = self.store.objects[self.key]

    def replica(self, seed: int) -> Replica[Any]:
        runtime = Runtime(self.store.clock, random.Random(seed))
        return Replica(SharedLog(self.store, FOLDER, runtime), self.machine, runtime)

    def before_the_last(self) -> Replica[Any]:
        self.store.objects.pop(self.key, None)
        reader = self.replica(1)
        _ = reader.state
        return reader

    def catches_up(self) -> tuple[Replica[Any], Callable[[], object]]:
        reader = self.before_the_last()
        self.store.objects[self.key] = self.entry
        return reader, reader.catch_up

    def appends(self) -> tuple[Replica[Any], Callable[[], object]]:
        writer = self.before_the_last()
        return writer, lambda: writer.propose(lambda state, offset: self.payload if offset == self.last else None)

    def is_beaten(self) -> tuple[Replica[Any], Callable[[], object]]:
        writer, append = self.appends()
        self.store.objects[self.key] = self.entry
        return writer, append

    def replays(self) -> tuple[Replica[Any], Callable[[], object]]:
        self.store.objects[self.key] = self.entry
        reader = self.replica(1)
        return reader, lambda: reader.state


WAYS = {"catch-up": Scene.catches_up, "append": Scene.appends, "conflict": Scene.is_beaten, "replay": Scene.replays}


def _nothing_half_is_kept(scene: Scene, way: str, every: int) -> None:
    replica, call = WAYS[way](scene)
    with interrupted(-1) as steps:
        call()
    for at in range(1, steps[0] + 1, every):
        kind = KINDS[at % len(KINDS)]
        replica, call = WAYS[way](scene)
        # If decoding takes too much memory, the bytes count as damaged and are read again.
        ends = suppress(kind, CorruptObjectError) if kind is NoMemory else pytest.raises(kind)
        with ends, interrupted(at, kind):
            call()
        call()  # the caller tries again
        scene.store.objects[scene.key] = scene.entry  # the append may have been interrupted before its write
        replica.catch_up()
        assert scene.machine.encode(replica.state) == scene.state, f"bytecode {at} of {steps[0]}"
        assert replica.offset == scene.last
        assert replica.write_checkpoint() == scene.last
        kept = scene.store.objects.pop(replica.log.checkpoint_key(scene.last))
        assert decode_checkpoint(replica.log.checkpoint_key(scene.last), kept.body).state == scene.state


@pytest.mark.parametrize(("name", "last"), ENTRIES)
def test_a_catch_up_that_is_interrupted_leaves_no_half_state(name: str, last: int) -> None:
    _nothing_half_is_kept(Scene(name, last), "catch-up", EVERY)


@pytest.mark.parametrize("way", ["append", "conflict", "replay"])
def test_no_way_to_apply_an_entry_leaves_a_half_state(way: str) -> None:
    _nothing_half_is_kept(Scene("journal", 2), way, EVERY)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "last"), FIRST)
def test_no_catch_up_of_any_entry_leaves_a_half_state(name: str, last: int) -> None:
    _nothing_half_is_kept(Scene(name, last), "catch-up", 23)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", LOGS)
def test_no_bytecode_of_a_catch_up_leaves_a_half_state(name: str) -> None:
    _nothing_half_is_kept(Scene(name, 1), "catch-up", 1)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", ["append", "conflict", "replay"])
@pytest.mark.parametrize(("name", "last"), FIRST)
def test_no_way_to_apply_any_entry_leaves_a_half_state(name: str, last: int, way: str) -> None:
    _nothing_half_is_kept(Scene(name, last), way, 101)
