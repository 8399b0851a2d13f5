"""What the processes of the search do: short programs whose every step is l0gc's own code.

Between two steps, all that a process knows is in its `Local`: two histories that leave a process knowing the same are one.
Within a step it is the answers that the step has had. A process may die at any time: a search that looks at every state
has looked at the ones where it never goes on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import msgspec

from l0gc.errors import AppendOutcomeUnknownError, L0gcError, StaleClusterEpochError, StaleReconcilerError, StoreError
from l0gc.keys import PartitionId, level_one
from l0gc.runtime import Runtime
from l0gc.streamlog.controller.handle import Controller
from l0gc.streamlog.journal.entries import L1File, Placeholder, ProducerBatch, Reconciled
from l0gc.streamlog.journal.handle import PartitionHandle
from l0gc.streamlog.journal.state import PartitionMachine
from l0gc.streamlog.journal.window import EpochWindow
from l0gc.streamlog.level_one.plan import commit_entry, make_plan
from tests.exhaustive.store import Answer, AnsweredStore, Asked, LocalClock, Stands

PARTITION: Final = PartitionId("t", 1, 0)
EPOCHS: Final = (1, 2, 3)
"""The cluster epochs that there are. The cluster is at the last one; a process may know any of them as the newest."""
MACHINE: Final = PartitionMachine(PARTITION)
_RECONCILED: Final = msgspec.json.Decoder(Reconciled)


class Replica(NamedTuple):
    """What a process keeps of the log between two steps: the fields of its `Replica`, and its fence's seen window."""

    state: bytes
    offset: int
    time_ms: int
    as_of_ms: int | None
    checkpoint_offset: int
    covered: int
    seen: EpochWindow | None


class Told(NamedTuple):
    """What an upload was told: `base` is where it landed, None if it was refused and is not in the log."""

    upload: str
    key: str
    base: int | None


class Local(NamedTuple):
    """A process between two steps. `step` is what it does next; '' when it has ended."""

    step: str
    turn: int = 0
    replica: Replica | None = None
    number: int = 0
    epoch: int = 0
    tries: int = 0
    entry: bytes = b""
    told: tuple[Told, ...] = ()
    trouble: str = ""


class Seen(NamedTuple):
    """A process where it stands: the call that it waits for (None between two steps) and the state that it holds."""

    local: Local
    asked: Asked | None
    offset: int
    state: bytes


class _Controller:
    """The cluster epoch, as the newest that anybody knows; admission is decided by the partition's own window."""

    def epoch(self, at_least: int = -1) -> int:
        return EPOCHS[-1]

    def producer_is_current(self, producer_id: int, epoch: int) -> bool:
        return True


class Actor:
    """A process and its program."""

    deletes = False
    """Whether it may delete from the log."""

    def __init__(self, name: str) -> None:
        self.name = name

    def begin(self) -> Local:
        raise NotImplementedError

    def choices(self, local: Local) -> list[tuple[str, Local]]:
        """What the process may decide here, whatever others do; none if it goes on with its step."""
        return []

    def act(self, handle: PartitionHandle, local: Local) -> Local:
        """One step, by l0gc's own code; returns what is next, without the replica."""
        raise NotImplementedError

    def is_content(self, local: Local) -> bool:
        """Whether it has ended with all done that it was to do."""
        return not local.step

    def run(self, local: Local, answers: Sequence[Answer], min_age_ms: int) -> Seen:
        """The process, `answers` after the beginning of its step."""
        clock = LocalClock()
        runtime = Runtime(clock, random.Random(f"{self.name}/{local.turn}"))
        store = AnsweredStore(answers, clock)
        handle = PartitionHandle(
            PARTITION, store, cast(Controller, _Controller()), runtime, truncate_min_age_ms=min_age_ms
        )
        replica = handle.replica
        if local.replica is not None:
            kept = local.replica
            replica._state = MACHINE.decode(kept.state, "the replica")
            replica.offset, replica.time_ms, replica.as_of_ms = kept.offset, kept.time_ms, kept.as_of_ms
            replica.checkpoint_offset, replica.covered = kept.checkpoint_offset, kept.covered
            replica._looked_at = 0.0  # no time of its own has passed since: a process may be stopped between two steps
            handle.fence._seen = kept.seen
        asked: Asked | None = None
        after = local
        try:
            after = self.act(handle, local)
        except Stands as stands:
            asked = stands.asked
        except L0gcError as e:
            after = local._replace(step="", trouble=f"{type(e).__name__}: {e}")
        state = MACHINE.encode(replica._state)
        if asked is None:
            seen = handle.fence._seen
            kept = Replica(
                state,
                replica.offset,
                replica.time_ms,
                replica.as_of_ms,
                replica.checkpoint_offset,
                replica.covered,
                seen,
            )
            after = after._replace(turn=local.turn + 1, replica=kept if after.step else None)
        return Seen(after, asked, replica.offset, state)


class Uploader(Actor):
    """Appends a placeholder for each of its uploads, each stamped with any epoch: its cache may be that stale.

    Args:
        uploads: how many, one after another, by one handle.
        restamps: how often an upload that is refused as stale is stamped anew.
        producer: whether it sends sequences, and sends again what it does not know to have landed.
    """

    def __init__(self, name: str, uploads: int, *, restamps: int = 1, producer: bool = False) -> None:
        super().__init__(name)
        self._uploads, self._restamps, self._producer = uploads, restamps, producer

    def begin(self) -> Local:
        return Local("stamp", epoch=EPOCHS[0])

    def choices(self, local: Local) -> list[tuple[str, Local]]:
        if local.step != "stamp":
            return []
        following = "look" if local.replica is None else "append"
        return [(f"stamps {e}", local._replace(step=following, epoch=e)) for e in EPOCHS if e >= local.epoch]

    def is_content(self, local: Local) -> bool:
        return not local.step and len(local.told) == self._uploads and all(t.base is not None for t in local.told)

    def act(self, handle: PartitionHandle, local: Local) -> Local:
        if local.step == "look":
            _ = handle.state
            return local._replace(step="append")
        upload = f"{self.name}.{local.number}"
        key = f"{upload}.{local.epoch}.{local.tries}"
        batch = ProducerBatch(ord(self.name[0]), 0, local.number) if self._producer else None
        try:
            landed = handle.append_placeholder(Placeholder(key, 0, 1, 1, 0, -1, batch), local.epoch)
        except StaleClusterEpochError as e:
            again = local._replace(told=(*local.told, Told(upload, key, None)), tries=local.tries + 1)
            return again._replace(step="stamp" if local.tries < self._restamps else "", epoch=e.window[0])
        except AppendOutcomeUnknownError:
            return local._replace(step="append" if self._producer else "", tries=local.tries + 1)
        except StoreError:
            return local._replace(step="", told=(*local.told, Told(upload, key, None)))
        told = (*local.told, Told(upload, key, landed.base_offset))
        more = local.number + 1 < self._uploads
        return local._replace(step="stamp" if more else "", told=told, number=local.number + 1, epoch=1, tries=0)


class Reconciler(Actor):
    """Plans, writes L1 objects (which nobody reads here), and commits what it planned, so many times."""

    def __init__(self, name: str, rounds: int) -> None:
        super().__init__(name)
        self._rounds = rounds

    def begin(self) -> Local:
        return Local("plan")

    def act(self, handle: PartitionHandle, local: Local) -> Local:
        following = local._replace(step="plan", number=local.number + 1, entry=b"")
        if following.number >= self._rounds:
            following = following._replace(step="")
        if local.step == "plan":
            plan = make_plan([(PARTITION, handle.catch_up())])
            if not plan.partitions:
                return following
            p = plan.partitions[0]
            key = level_one(PARTITION, p.base_offset, p.last_offset, f"{self.name}.{local.number}")
            entry = commit_entry(p, [L1File(key, p.base_offset, p.last_offset, 1)])
            return local._replace(step="commit", entry=msgspec.json.encode(entry))
        try:
            handle.commit_reconciled(_RECONCILED.decode(local.entry))
        except (StaleReconcilerError, AppendOutcomeUnknownError, StoreError):
            return following
        return following


class Housekeeper(Actor):
    """Moves the window to an epoch, or closes it there; if it `truncates`, it then keeps the state and truncates."""

    def __init__(self, name: str, rounds: int, *, truncates: bool) -> None:
        super().__init__(name)
        self._rounds, self.deletes = rounds, truncates

    def begin(self) -> Local:
        return Local("choose")

    def choices(self, local: Local) -> list[tuple[str, Local]]:
        if local.step != "choose":
            return []
        return [(f"{s}s to {e}", local._replace(step=s, epoch=e)) for s in ("advance", "barrier") for e in EPOCHS[1:]]

    def act(self, handle: PartitionHandle, local: Local) -> Local:
        following = local._replace(step="choose", number=local.number + 1, epoch=0)
        if following.number >= self._rounds:
            following = following._replace(step="")
        try:
            if local.step in {"advance", "barrier"}:
                (handle.advance if local.step == "advance" else handle.barrier)(local.epoch)
                return local._replace(step="checkpoint") if self.deletes else following
            if local.step == "checkpoint":
                handle.replica.write_checkpoint()
                return local._replace(step="truncate")
            handle.replica.log.truncate()
        except (AppendOutcomeUnknownError, StoreError):
            return local._replace(step="")
        return following
