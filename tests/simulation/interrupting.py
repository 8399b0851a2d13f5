"""Raises exceptions of any kind between any two bytecodes of `apply`: Ctrl-C, too little memory, a task's timeout
(hazard 29).

The interrupted job ends, as a cell of a notebook does, and its process continues with the same handles. A separate
source of chance chooses the applies and the bytecodes, so that a seed takes the same steps up to its first interrupt.
Only the chosen apply is traced, once on a copy of the state, which shows how many bytecodes there are.
"""

from __future__ import annotations

import copy
import random
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from l0gc.errors import CorruptObjectError
from l0gc.storage.entry import StoredEntry
from l0gc.storage.replica import Replica
from tests.support.interrupting import KINDS, interrupted

if TYPE_CHECKING:
    from tests.simulation.world import World

INTERRUPTED = "applies interrupted"
_OF_THE_REPLICA = 60
"""The approximate number of bytecodes of the replica, after those of the machine."""


class Interrupts:
    """Chooses the applies that are interrupted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"interrupts of {world.seed}")

    def strike(self, replica: Replica[Any], entry: StoredEntry) -> AbstractContextManager[list[int] | None]:
        """Return a context that may interrupt what is applied inside it; it yields None if it does not.

        The first read of a log is not interrupted: the process has no state yet that could be wrong.
        """
        world, thread = self._world, self._world.thread
        if replica.as_of_ms is None or thread is None or (world.alone is not None and thread is world.alone[0]):
            return nullcontext()
        if self._chance.random() >= world.faults.interrupt:
            return nullcontext()
        state = copy.deepcopy(replica._state)
        with suppress(CorruptObjectError), interrupted(-1) as steps:
            replica._machine.apply(state, entry)
        # The state is changed towards the end, after all checks.
        before_end = int(steps[0] * self._chance.random() ** 3)
        return interrupted(steps[0] + _OF_THE_REPLICA - before_end, self._chance.choice(KINDS))
