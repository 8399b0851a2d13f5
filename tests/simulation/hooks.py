"""Connects the watch to l0gc's processes: the calls and answers of a handle, and the states that a process holds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import l0gc.streamlog.ingest.uploader
import l0gc.streamlog.journal.summary
from l0gc.errors import AppendOutcomeUnknownError, CorruptObjectError, L0gcError, StoreError
from l0gc.runtime import Runtime
from l0gc.storage.entry import StoredEntry
from l0gc.storage.replica import Replica
from l0gc.streamlog.journal.entries import ObjectExtents
from l0gc.streamlog.journal.handle import AppendResult, JournalHandle
from l0gc.streamlog.journal.state import JournalState
from tests.simulation.files import executor

if TYPE_CHECKING:
    from tests.simulation.world import World


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Give the watch of `world` every reply to its processes until the block ends."""
    append, apply = JournalHandle.append, Replica._apply

    def watched_append(self: JournalHandle, objects: Sequence[ObjectExtents]) -> AppendResult:
        watch, journal = world.watch, self.journal
        before = watch.offers(journal, objects)
        error: L0gcError | None = None
        landed = 0
        try:
            appended = append(self, objects)
            error, landed = appended.error, len(appended.landed)
            watch.reported_landed(journal, objects, appended.landed)
            return appended
        except L0gcError as e:
            error = e
            raise
        finally:
            if error is not None and not isinstance(error, AppendOutcomeUnknownError):
                watch.reported_refused(journal, [o for o in objects[landed:] if o.key not in before])

    def watched_apply(self: Replica[Any], entry: StoredEntry) -> None:
        with world.interrupts.strike(self, entry) as struck:
            try:
                apply(self, entry)
            except CorruptObjectError as e:
                # An entry may need the checkpoint's L1 rows, which are read at this point; a missing answer is an
                # expected fault.
                if struck is None and not isinstance(e, StoreError):
                    raise world.violation(
                        f"a process cannot apply entry {entry.offset} of {self.log.folder}: {e}"
                    ) from e
                raise
        state = self._state
        if isinstance(state, JournalState):
            journal = int(self.log.folder.rstrip("/").rsplit("/", 1)[1])
            world.watch.agrees(journal, self.offset, state)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(JournalHandle, "append", watched_append))
        stack.enter_context(mock.patch.object(Replica, "_apply", watched_apply))
        # A task of compute-watermark has its own clock; here it is the world's.
        task = mock.Mock(side_effect=lambda: Runtime(world.task_clock(), random.Random(0)))
        stack.enter_context(mock.patch.object(l0gc.streamlog.journal.summary, "Runtime", task))
        pool = mock.Mock(side_effect=lambda workers, name: executor(world, workers, name))
        stack.enter_context(mock.patch.object(l0gc.streamlog.ingest.uploader, "WorkerThreads", pool))
        yield
